//! From raw structures to validated ones: footers, dynamic header, the parent's names.

use block::{Error, FieldValue, HostFile, Result, read_struct, read_vec};
use extent::{Host, HostOffset, HostSpan, Span};
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::corrupt::Corrupt;
use super::layout::{
    DynamicHeader, FOOTER_BYTES, FOOTER_COOKIE, FOOTER_OLD_BYTES, Footer, HEADER_BYTES, HEADER_COOKIE,
    NO_OFFSET, ParentLocator, SECTOR_BYTES, TYPE_DIFFERENCING, TYPE_DYNAMIC, TYPE_FIXED, VERSION_1_0,
};
use super::names::{ParentNames, from_utf16};

/// What kind of disk a footer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Fixed,
    Dynamic,
    Differencing,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Dynamic => "dynamic",
            Self::Differencing => "differencing",
        }
    }
}

/// A footer whose cookie, version, type and checksum are right.
#[derive(Clone, Debug)]
pub(super) struct CheckedFooter {
    raw: Footer,
    pub(super) kind: Kind,
}

/// The footer that counts, and what else is known of the pair.
#[derive(Debug)]
pub(super) struct Footers {
    pub(super) footer: CheckedFooter,
    /// Where the file's data end: the footer's place, or the file's end if there is none.
    pub(super) data_end: u64,
    /// What was wrong with the one that was not used.
    pub(super) note: Option<String>,
}

/// Sum of all bytes but the checksum's own, complemented: section "Checksum".
pub(super) fn checksum(bytes: &[u8], checksum: u32) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    !sum(bytes).wrapping_sub(sum(checksum.as_bytes()))
}

impl CheckedFooter {
    fn check(raw: Footer, at: HostOffset) -> Result<Self> {
        let corrupt = || Error::corrupt(Corrupt::Footer).at(at);
        if raw.cookie != FOOTER_COOKIE {
            return Err(corrupt().field("cookie", raw.cookie.escape_ascii(), "conectix"));
        }
        let sum = checksum(raw.as_bytes(), raw.checksum.get());
        if raw.checksum.get() != sum {
            let found = raw.checksum.get();
            return Err(Error::corrupt(Corrupt::FooterChecksum { found, expected: sum }).at(at));
        }
        if raw.file_format_version.get() >> 16 != VERSION_1_0 >> 16 {
            let found = format!("{:#010x}", raw.file_format_version.get());
            return Err(Error::unsupported("VHD footer").at(at).field("version", found, "0x00010000"));
        }
        let kind = match raw.disk_type.get() {
            TYPE_FIXED => Kind::Fixed,
            TYPE_DYNAMIC => Kind::Dynamic,
            TYPE_DIFFERENCING => Kind::Differencing,
            other => return Err(corrupt().field("disk type", other, "2, 3 or 4")),
        };
        Ok(Self { raw, kind })
    }

    pub(super) fn unique_id(&self) -> String {
        Uuid::from_bytes(self.raw.unique_id).to_string()
    }

    pub(super) fn current_bytes(&self) -> u64 {
        self.raw.current_size.get()
    }

    pub(super) fn has_saved_state(&self) -> bool {
        self.raw.saved_state != 0
    }

    fn geometry_bytes(&self) -> u64 {
        let tracks = u64::from(self.raw.cylinders.get()) * u64::from(self.raw.heads);
        tracks * u64::from(self.raw.sectors_per_track) * SECTOR_BYTES
    }

    /// The size of the virtual disk that the guest saw. Virtual PC and early QEMU show a disk of the geometry's
    /// size, which is below the current size; all others show the current size. A geometry at its maximum
    /// says only that the disk is larger.
    pub(super) fn virtual_bytes(&self) -> u64 {
        let by_geometry = matches!(&self.raw.creator_application, b"vpc " | b"qemu");
        let is_largest =
            (self.raw.cylinders.get(), self.raw.heads, self.raw.sectors_per_track) == (u16::MAX, 16, 255);
        match self.geometry_bytes() {
            geometry if by_geometry && !is_largest && (1..self.current_bytes()).contains(&geometry) => {
                geometry
            }
            _ => self.current_bytes(),
        }
    }

    pub(super) fn details(&self) -> Vec<crate::Fact> {
        let Footer { cylinders, heads, sectors_per_track, .. } = self.raw;
        let version = self.raw.creator_version.get();
        let mut details = vec![
            ("creator", String::from_utf8_lossy(&self.raw.creator_application).into_owned()),
            ("creator version", format!("{}.{}", version >> 16, version & 0xffff)),
            ("creator host", String::from_utf8_lossy(&self.raw.creator_host_os).into_owned()),
            ("geometry", format!("{cylinders}/{heads}/{sectors_per_track}")),
        ];
        if self.virtual_bytes() != self.current_bytes() {
            details.push((
                "current size (unused: the creator goes by geometry)",
                self.current_bytes().to_string(),
            ));
        }
        if self.raw.saved_state != 0 {
            details.push(("saved state", "yes".into()));
        }
        details
    }

    /// Whether two copies tell the same disk. Time, creator and saved state may lag behind in one of them.
    fn agrees_with(&self, other: &Self) -> bool {
        let essence = |footer: &Self| {
            let Footer { data_offset, current_size, unique_id, .. } = footer.raw;
            (footer.kind, data_offset.get(), current_size.get(), unique_id, footer.virtual_bytes())
        };
        essence(self) == essence(other)
    }
}

/// A place where a footer may be, and what is there.
struct Candidate {
    at: HostOffset,
    result: Result<CheckedFooter>,
    has_cookie: bool,
}

fn candidate(file: &dyn HostFile, at: u64, len: u64) -> Result<Option<Candidate>> {
    if at.checked_add(len).is_none_or(|end| end > file.len_bytes()) {
        return Ok(None);
    }
    let at = HostOffset::new(at);
    let mut bytes = read_vec(file, at, len, "VHD footer")?;
    bytes.resize(size_of::<Footer>(), 0);
    let raw = Footer::read_from_bytes(&bytes).expect("resized to it");
    let has_cookie = raw.cookie == FOOTER_COOKIE;
    Ok(Some(Candidate { at, result: CheckedFooter::check(raw, at), has_cookie }))
}

/// Finds the footer. `Ok(None)` if there is not even a cookie.
///
/// The footer at the end goes before its copy at the start, which a fixed disk does not have: there the guest's
/// first sector lies.
pub(super) fn read_footers(file: &dyn HostFile) -> Result<Option<Footers>> {
    let len = file.len_bytes();
    let mut tail = candidate(file, len.saturating_sub(FOOTER_BYTES), FOOTER_BYTES)?;
    if !tail.as_ref().is_some_and(|tail| tail.has_cookie) {
        let old = candidate(file, len.saturating_sub(FOOTER_OLD_BYTES), FOOTER_OLD_BYTES)?;
        tail = old.filter(|old| old.has_cookie);
    }
    if let Some(Candidate { result: Ok(footer), at, .. }) = &tail
        && footer.kind == Kind::Fixed
    {
        return fixed(footer.clone(), *at).map(Some);
    }
    let copy = candidate(file, 0, FOOTER_BYTES)?.filter(|copy| copy.has_cookie);
    choose(tail, copy, len)
}

fn fixed(footer: CheckedFooter, at: HostOffset) -> Result<Footers> {
    let corrupt = |field, found: u64, expected: u64| {
        Error::corrupt(Corrupt::FixedFooter).at(at).field(
            field,
            FieldValue::hex(found),
            format!("{expected:#x}"),
        )
    };
    if footer.raw.data_offset.get() != NO_OFFSET {
        return Err(corrupt("data offset", footer.raw.data_offset.get(), NO_OFFSET));
    }
    if footer.current_bytes() != at.get() {
        return Err(corrupt("current size", footer.current_bytes(), at.get()));
    }
    Ok(Footers { footer, data_end: at.get(), note: None })
}

fn choose(tail: Option<Candidate>, copy: Option<Candidate>, len: u64) -> Result<Option<Footers>> {
    let damaged = |which: &str, error: &Error| format!("{which} is damaged and was not used: {error}");
    let used = |footer, data_end, note| Ok(Some(Footers { footer, data_end, note }));
    match (tail, copy) {
        (Some(Candidate { result: Ok(footer), at, .. }), None) => {
            used(footer, at.get(), Some("the copy of the footer at the start is missing".into()))
        }
        (Some(Candidate { result: Ok(footer), at, .. }), Some(copy)) => match copy.result {
            Ok(copy) if footer.agrees_with(&copy) => used(footer, at.get(), None),
            Ok(copy) => Err(Error::corrupt(Corrupt::FootersDiffer).at(at).field(
                "current size, type and identity",
                format!("{} {} {}", footer.current_bytes(), footer.kind.name(), footer.unique_id()),
                format!("{} {} {}", copy.current_bytes(), copy.kind.name(), copy.unique_id()),
            )),
            Err(error) => {
                used(footer, at.get(), Some(damaged("the copy of the footer at the start", &error)))
            }
        },
        (tail, Some(Candidate { result: Ok(footer), .. })) if footer.kind != Kind::Fixed => {
            let has_cookie = tail.as_ref().is_some_and(|tail| tail.has_cookie);
            let note = match tail.and_then(|tail| tail.result.err()) {
                Some(error) => damaged("the footer at the end", &error),
                None => "the footer at the end is missing".into(),
            };
            // A damaged footer still takes its place at the end; a missing one leaves it to the last block.
            used(footer, if has_cookie { len.saturating_sub(FOOTER_BYTES) } else { len }, Some(note))
        }
        (Some(Candidate { result: Err(error), has_cookie: true, .. }), _) => Err(error),
        (_, Some(Candidate { result: Err(error), .. })) => Err(error),
        // A fixed disk's footer at the start and none at the end: what a guest can write. Not a VHD.
        (_, Some(_)) | (Some(Candidate { has_cookie: false, .. }), None) | (None, None) => Ok(None),
    }
}

/// What a dynamic header says, checked against the footer and the file.
#[derive(Clone, Debug)]
pub(super) struct Dynamic {
    pub(super) block_bytes: u64,
    /// Bytes of the sector bitmap before each block's data: whole sectors.
    pub(super) bitmap_bytes: u64,
    pub(super) block_count: u64,
    pub(super) bat: HostSpan,
    /// The footer's copy and the header: no block may lie in them.
    pub(super) header: HostSpan,
    raw: DynamicHeader,
}

/// Bytes of the bitmap of one block: a bit a sector, filled up to whole sectors.
pub(crate) fn bitmap_bytes(block_bytes: u64) -> u64 {
    (block_bytes / SECTOR_BYTES).div_ceil(8).next_multiple_of(SECTOR_BYTES)
}

/// Reads the header that `footers` points to.
pub(super) fn read_dynamic(file: &dyn HostFile, footers: &Footers) -> Result<Dynamic> {
    let at = HostOffset::new(footers.footer.raw.data_offset.get());
    let raw: DynamicHeader = read_struct(file, at, "VHD dynamic header")?;
    check_header(&raw, at)?;
    let block_bytes = u64::from(raw.block_size.get());
    let corrupt = || Error::corrupt(Corrupt::DynamicHeader).at(at);
    // Hyper-V takes 512 KiB and 2 MiB; other programs may make others, but none that large.
    if !block_bytes.is_power_of_two() || !(SECTOR_BYTES..=256 << 20).contains(&block_bytes) {
        return Err(corrupt().field("block size", block_bytes, "a power of two from 512 to 256 MiB"));
    }
    let needed = footers.footer.virtual_bytes().div_ceil(block_bytes);
    let entries = u64::from(raw.max_table_entries.get());
    if entries < needed {
        return Err(corrupt().field("number of BAT entries", entries, format!("at least {needed}")));
    }
    let bat_at = HostOffset::new(raw.table_offset.get());
    let bat = Span::checked(bat_at, needed * 4).filter(|bat| bat.end().get() <= footers.data_end);
    let bat = bat.ok_or_else(|| {
        corrupt().field(
            "BAT",
            format!("{needed} entries at {:#x}", bat_at.get()),
            format!("an end at or below {:#x}", footers.data_end),
        )
    })?;
    let header = Span::new(at, HEADER_BYTES);
    if bat.intersect(&header).is_some() || bat_at.get() < FOOTER_BYTES {
        return Err(corrupt().field("BAT", format!("{bat:?}"), "a place apart from footer and header"));
    }
    Ok(Dynamic {
        block_bytes,
        bitmap_bytes: bitmap_bytes(block_bytes),
        block_count: needed,
        bat,
        header,
        raw,
    })
}

fn check_header(raw: &DynamicHeader, at: HostOffset) -> Result<()> {
    let corrupt = || Error::corrupt(Corrupt::DynamicHeader).at(at);
    if raw.cookie != HEADER_COOKIE {
        return Err(corrupt().field("cookie", raw.cookie.escape_ascii(), "cxsparse"));
    }
    let sum = checksum(raw.as_bytes(), raw.checksum.get());
    if raw.checksum.get() != sum {
        let found = raw.checksum.get();
        return Err(Error::corrupt(Corrupt::DynamicHeaderChecksum { found, expected: sum }).at(at));
    }
    if raw.header_version.get() >> 16 != VERSION_1_0 >> 16 {
        let found = format!("{:#010x}", raw.header_version.get());
        return Err(Error::unsupported("VHD dynamic header").at(at).field("version", found, "0x00010000"));
    }
    Ok(())
}

/// The longest name read: the longest path of Windows, in UTF-16.
const NAME_BYTES_MAX: u32 = 65_536;

impl Dynamic {
    /// The BAT with the entries that the disk does not need.
    pub(super) fn whole_bat(&self) -> HostSpan {
        Span::new(self.bat.start(), u64::from(self.raw.max_table_entries.get()) * 4)
    }

    pub(super) fn parent_id(&self) -> String {
        Uuid::from_bytes(self.raw.parent_unique_id).to_string()
    }

    /// The parent's names: locators first, then the name in the header.
    pub(super) fn parent_names(&self, file: &dyn HostFile) -> Result<Vec<String>> {
        let mut names = ParentNames::default();
        for locator in &self.raw.parent_locators {
            push_locator(file, locator, &mut names)?;
        }
        names.push_absolute(&from_utf16(self.raw.parent_unicode_name.iter().map(|unit| unit.get())));
        Ok(names.into_vec())
    }
}

fn push_locator(file: &dyn HostFile, locator: &ParentLocator, names: &mut ParentNames) -> Result<()> {
    let text: fn(&[u8]) -> String = match &locator.platform_code {
        b"W2ru" | b"W2ku" => utf16_of_either_order,
        b"Wi2r" | b"Wi2k" => |bytes| String::from_utf8_lossy(bytes).into_owned(),
        b"MacX" => path_of_url,
        // Unused, or a Mac OS alias, which is no path.
        _ => return Ok(()),
    };
    let at = HostOffset::new(locator.platform_data_offset.get());
    let len = locator.platform_data_length.get();
    if len > NAME_BYTES_MAX {
        let expected = format!("at most {NAME_BYTES_MAX}");
        return Err(Error::corrupt(Corrupt::ParentLocator).at(at).field("length", len, expected));
    }
    let name = text(&read_vec::<Host>(file, at, u64::from(len), "VHD parent locator")?);
    match &locator.platform_code {
        b"W2ru" | b"Wi2r" => names.push_relative(&name),
        _ => names.push_absolute(&name),
    }
    Ok(())
}

/// The specification does not say the byte order; Windows writes little-endian, others big. A path is mostly
/// ASCII in the right one.
fn utf16_of_either_order(bytes: &[u8]) -> String {
    let (pairs, _) = bytes.as_chunks::<2>();
    let little = from_utf16(pairs.iter().map(|pair| u16::from_le_bytes(*pair)));
    let big = from_utf16(pairs.iter().map(|pair| u16::from_be_bytes(*pair)));
    let ascii = |text: &str| text.chars().filter(char::is_ascii).count();
    if ascii(&big) > ascii(&little) { big } else { little }
}

/// The path in `file://host/path`, with `%xx` decoded; nothing for another scheme.
fn path_of_url(bytes: &[u8]) -> String {
    let Some(rest) = bytes.strip_prefix(b"file://") else { return String::new() };
    let path = rest.iter().position(|byte| *byte == b'/').map_or(&[][..], |slash| &rest[slash..]);
    let mut decoded = Vec::new();
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        let code = path.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *byte == b'%') {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
