//! `$LogFile`: whether the volume was dismounted cleanly. Log records are looked at in [`super::log`].

use block::{Error, ReadAt, Result, read_vec};
use extent::Offset;
use zerocopy::FromBytes;

use super::layout::{
    LOGFILE_NO_CLIENT, MAGIC_CHKD, MAGIC_RSTR, RESTART_VOLUME_IS_CLEAN, RestartArea, RestartPageHeader,
};
use super::record::fix_up;
use super::stream::Stream;
use crate::ntfs::corrupt::Corrupt;

/// Restart pages lie at 0 and at their own size, which is at most this.
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// One restart page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RestartPage {
    lsn: u64,
    version: (u16, u16),
    is_in_use: bool,
    is_clean: bool,
}

/// What NTFS fills a log with that is to be begun anew. A log without a restart page is one.
pub(super) const EMPTY_BYTE: u8 = 0xff;

/// Whether the log is empty: drivers ask its first page, and ntfs-3g the head of each page that lies at a power of
/// two; here the first and the last 64 KiB must hold nothing else either.
pub(super) fn is_empty(log: &Stream) -> Result<bool> {
    let Some(last) = log.len_bytes().checked_sub(PAGE_BYTES_MAX) else { return Ok(false) };
    let heads = (17..64).map(|shift| 1u64 << shift).take_while(|at| *at < last).map(|at| (at, 512));
    for (at, len_bytes) in [(0, PAGE_BYTES_MAX), (last, PAGE_BYTES_MAX)].into_iter().chain(heads) {
        let bytes = read_vec(log, Offset::new(at), len_bytes, "$LogFile")?;
        if bytes.iter().any(|byte| *byte != EMPTY_BYTE) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Why the log says that the volume was not dismounted cleanly; `None` if it was.
pub(super) fn unclean_reason(log: &Stream) -> Result<Option<String>> {
    let pages = match restart_pages(log) {
        Ok(pages) => pages,
        Err(error) if error.kind() == block::ErrorKind::Corrupt => return Ok(Some(error.to_string())),
        Err(error) => return Err(error),
    };
    Ok(judge(&pages))
}

fn judge(pages: &[RestartPage]) -> Option<String> {
    // Of two pages the one that was written last counts; if neither was, both do.
    let current_lsn = pages.iter().map(|page| page.lsn).max();
    for page in pages.iter().filter(|page| Some(page.lsn) == current_lsn) {
        let (major, minor) = page.version;
        if page.version != (1, 0) && page.version != (1, 1) {
            // Windows 8 and later turn the log back to 1.1 when they let go of a volume.
            return Some(format!("its log is of version {major}.{minor}: Windows still uses the volume"));
        }
        if page.is_in_use && !page.is_clean {
            return Some("its log says that it was not dismounted".into());
        }
    }
    None
}

/// The restart pages; none if the log was never used.
fn restart_pages(log: &Stream) -> Result<Vec<RestartPage>> {
    let mut pages = Vec::new();
    let mut is_empty = true;
    for at in [0].into_iter().chain((9..=16).map(|shift| 1u64 << shift)) {
        if log.len_bytes().checked_sub(at).is_none_or(|left| left < 512) {
            break;
        }
        is_empty &= read_vec(log, Offset::new(at), 4, "$LogFile")? == [EMPTY_BYTE; 4];
        pages.extend(restart_page(log, at)?.map(|(page, area_at)| judged(&page, area_at)));
    }
    if pages.is_empty() && !is_empty {
        return Err(Error::corrupt(Corrupt::NoRestartPage));
    }
    if pages.is_empty() && log.len_bytes() < PAGE_BYTES_MAX {
        return Err(Error::corrupt(Corrupt::LogFile).field("size", log.len_bytes(), "at least 64 KiB"));
    }
    Ok(pages)
}

/// The restart page at `at` with its fixups undone, and where its restart area begins in it; `None` if there is none.
pub(super) fn restart_page(log: &Stream, at: u64) -> Result<Option<(Vec<u8>, usize)>> {
    let error = || Error::corrupt(Corrupt::RestartPage).at(log.volume_offset(at));
    let Some(left) = log.len_bytes().checked_sub(at).filter(|left| *left >= 512) else { return Ok(None) };
    let head = read_vec(log, Offset::new(at), 512, "$LogFile")?;
    if !head.starts_with(&MAGIC_RSTR) && !head.starts_with(&MAGIC_CHKD) {
        return Ok(None);
    }
    let (header, _) = RestartPageHeader::ref_from_prefix(&head).expect("512 bytes");
    let page_bytes = u64::from(header.system_page_size.get());
    if !page_bytes.is_power_of_two() || !(512..=PAGE_BYTES_MAX.min(left)).contains(&page_bytes) {
        return Err(error().field("page size", page_bytes, "512 to 65536"));
    }
    if at != 0 && at != page_bytes {
        return Err(error().field("page size", page_bytes, format!("{at}, where the second page lies")));
    }
    let mut page = read_vec(log, Offset::new(at), page_bytes, "$LogFile")?;
    fix_up(&mut page, &[MAGIC_RSTR, MAGIC_CHKD], error)?;
    let (header, _) = RestartPageHeader::ref_from_prefix(&page).expect("at least 512 bytes");
    let area_at = usize::from(header.restart_area_offset.get());
    let area = page.get(area_at..).and_then(|bytes| RestartArea::ref_from_prefix(bytes).ok());
    if area.is_none() || area_at < size_of::<RestartPageHeader>() {
        return Err(error().field("restart area's offset", area_at, "within the page"));
    }
    Ok(Some((page, area_at)))
}

/// What says whether the volume was dismounted.
fn judged(page: &[u8], area_at: usize) -> RestartPage {
    let (header, _) = RestartPageHeader::ref_from_prefix(page).expect("checked when it was read");
    let (area, _) = RestartArea::ref_from_prefix(&page[area_at..]).expect("checked when it was read");
    RestartPage {
        lsn: area.current_lsn.get(),
        version: (header.major_version.get(), header.minor_version.get()),
        is_in_use: area.client_in_use_list != LOGFILE_NO_CLIENT,
        is_clean: area.flags.get() & RESTART_VOLUME_IS_CLEAN != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_written_last_decides() {
        let clean = RestartPage { lsn: 2, version: (1, 1), is_in_use: true, is_clean: true };
        let open = RestartPage { lsn: 1, is_clean: false, ..clean };
        assert_eq!(judge(&[]), None);
        assert_eq!(judge(&[clean, open]), None);
        assert!(judge(&[open]).is_some());
        assert!(judge(&[clean, RestartPage { lsn: 3, ..open }]).is_some());
        assert!(judge(&[clean, RestartPage { lsn: 2, ..open }]).is_some());
        assert_eq!(judge(&[RestartPage { is_in_use: false, ..open }]), None);
        assert!(judge(&[RestartPage { version: (2, 0), ..clean }]).is_some());
    }
}
