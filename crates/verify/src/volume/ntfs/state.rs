//! Whether the volume was left in peace: its flags, and the restart pages of `$LogFile`.

use block::{Error, Result};
use zerocopy::FromBytes;

use super::corrupt::CorruptNtfs;
use super::layout::{DATA, RestartArea, RestartPage, VOLUME_INFORMATION, VolumeInformation};
use super::record::fix_up;
use super::stream::Stream;
use super::volume::Volume;

/// `$LogFile`.
const LOG: u64 = 2;
/// `$Volume`.
const VOLUME: u64 = 3;

/// Flags that say nothing against the volume (M. Suhanov, "NTFS today", 2019): mounted on NT 4, no short names, no
/// transactions, no scrubbing, no corruption log, no heat gathering, once modified by chkdsk.
const HARMLESS: u16 = 0x0008 | 0x0080 | 0x0400 | 0x0800 | 0x1000 | 0x2000 | 0x8000;

/// A restart page is no larger.
const PAGE_BYTES_MAX: u64 = 64 << 10;

pub(super) fn check(volume: &Volume) -> Result<()> {
    check_flags(volume)?;
    check_log(volume)
}

fn check_flags(volume: &Volume) -> Result<()> {
    volume.with_system_file(VOLUME, |file| {
        let found = file.attributes.iter().find(|attribute| attribute.kind == VOLUME_INFORMATION);
        let found =
            found.ok_or_else(|| file.record.error().field("volume information", "missing", "there"))?;
        let (information, _) = VolumeInformation::ref_from_prefix(found.resident()?)
            .map_err(|_| found.error("size", "too small", "12 or more"))?;
        let flags = information.flags.get();
        if flags & !HARMLESS != 0 {
            return Err(Error::corrupt(CorruptNtfs::Volume).field(
                "flags",
                format!("{flags:#06x}"),
                format!("none but those of {HARMLESS:#06x}: neither dirty nor in the middle of a change"),
            ));
        }
        Ok(())
    })
}

fn check_log(volume: &Volume) -> Result<()> {
    let log = volume.with_system_file(LOG, |file| {
        let pieces: Vec<_> =
            file.attributes.iter().filter(|piece| piece.kind == DATA && piece.name.is_empty()).collect();
        let (first, rest) =
            pieces.split_first().ok_or_else(|| file.record.error().field("data", "missing", "there"))?;
        let mut stream = volume.begin(first)?;
        rest.iter().try_for_each(|piece| stream.append(volume.cluster_count, piece))?;
        Ok(stream)
    })?;
    let mut pages = Vec::new();
    let mut is_blank = true;
    for at in [0].into_iter().chain((9..17).map(|shift| 1u64 << shift)) {
        if at + 512 > log.data_bytes {
            break;
        }
        let mut head = [0; 512];
        log.read(at, &mut head)?;
        is_blank &= head[..4] == [0xff; 4];
        if head.starts_with(b"RSTR") || head.starts_with(b"CHKD") {
            pages.push(read_page(&log, at, &head)?);
        }
    }
    match pages.iter().map(|page| page.0).max() {
        None if is_blank => Ok(()),
        None => Err(Error::corrupt(CorruptNtfs::LogFile).field(
            "first pages",
            "no restart page",
            "one, or all ones",
        )),
        Some(latest) => {
            let is_open = pages.iter().any(|page| page.0 == latest && !page.1);
            let error =
                || Error::corrupt(CorruptNtfs::LogFile).field("restart page", "in use", "closed cleanly");
            if is_open { Err(error()) } else { Ok(()) }
        }
    }
}

/// The page's sequence number, and whether it says that the volume was let go.
fn read_page(log: &Stream, at: u64, head: &[u8]) -> Result<(u64, bool)> {
    let error = || Error::corrupt(CorruptNtfs::RestartPage { offset: at });
    let (page, _) = RestartPage::ref_from_prefix(head).map_err(|_| error())?;
    let len = u64::from(page.page_bytes.get());
    if !len.is_power_of_two() || !(512..=PAGE_BYTES_MAX).contains(&len) || at + len > log.data_bytes {
        return Err(error().field("page size", len, "a power of two, 512 to 65536"));
    }
    let mut bytes = vec![0; usize::try_from(len).expect("64 KiB at most")];
    log.read(at, &mut bytes)?;
    fix_up(&mut bytes, &[b"RSTR", b"CHKD"], &error)?;
    let (page, _) = RestartPage::ref_from_prefix(&bytes).map_err(|_| error())?;
    let area_at = usize::from(page.area_at.get());
    let area = bytes.get(area_at..).and_then(|bytes| RestartArea::ref_from_prefix(bytes).ok());
    let (area, _) = area.ok_or_else(|| error().field("restart area's offset", area_at, "within the page"))?;
    let is_known = page.major.get() == 1 && page.minor.get() <= 1;
    let is_closed = area.clients_in_use.get() == u16::MAX || area.flags.get() & 2 != 0;
    Ok((area.lsn.get(), is_known && is_closed))
}
