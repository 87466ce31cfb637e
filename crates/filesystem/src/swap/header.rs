//! The header of a swap area: of a partition, or of a file in a file system.

use block::{Error, FieldValue, Result};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::layout::{HIBERNATED, RawHeader, SIGNATURE, SIGNATURE_BYTES, SIGNATURE_OLD};
use crate::probe::fields::label;

/// The page sizes that Linux has.
const PAGE_BYTES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// The smallest of them.
pub(crate) const PAGE_BYTES_MIN: u64 = 4 << 10;
/// The largest of them.
pub(crate) const PAGE_BYTES_MAX: u64 = 64 << 10;

/// A validated header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) page_bytes: u64,
    pub(crate) last_page: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) label: Option<String>,
}

impl Header {
    /// Bytes from the header to the end of the last page.
    pub(crate) fn area_bytes(&self) -> u64 {
        (u64::from(self.last_page) + 1) * self.page_bytes
    }
}

/// What the first bytes of an area are.
#[derive(Debug)]
pub(crate) enum Found {
    /// No swap area.
    None,
    /// A swap area.
    Swap(Header),
    /// A swap area that holds the memory of a hibernated system.
    Hibernated { signature: &'static str },
    /// A swap area of the old kind.
    Old,
    /// The signature is there, but the rest makes no sense.
    Broken(Error),
}

/// Whether an area that begins with `page`, the smallest there is, may be one that [`examine`] knows. Whatever the page size, a
/// hibernated system leaves the version where it is; areas of the old kind, which have none, are told with that page size alone.
pub(crate) fn may_be(page: &[u8]) -> bool {
    let is_marked = !matches!(examine(page), Found::None);
    let version = RawHeader::read_from_prefix(page).map(|(raw, _)| raw.version);
    is_marked || version.is_ok_and(|version| matches!(version, [1, 0, 0, 0] | [0, 0, 0, 1]))
}

/// Looks at the first bytes of an area: [`PAGE_BYTES_MAX`], or all if there are fewer.
pub(crate) fn examine(first: &[u8]) -> Found {
    let signatures: Vec<_> = PAGE_BYTES
        .into_iter()
        .filter_map(|page_bytes| {
            let len = usize::try_from(page_bytes).expect("at most 64 KiB");
            let page = first.get(..len)?;
            Some((page, page_bytes, Signature::of(&page[len - SIGNATURE_BYTES..])?))
        })
        .collect();
    if let Some(signature) = hibernated_at_start(first) {
        return Found::Hibernated { signature };
    }
    let hibernated = signatures.iter().find_map(|(_, _, signature)| match signature {
        Signature::Hibernated(name) => Some(*name),
        _ => None,
    });
    match (hibernated, &signatures[..]) {
        (Some(signature), _) => Found::Hibernated { signature },
        (None, []) => Found::None,
        (None, [(_, _, Signature::Old)]) => Found::Old,
        (None, [(page, page_bytes, _)]) => parse(page, *page_bytes).map_or_else(Found::Broken, Found::Swap),
        (None, [_, _, ..]) => Found::Broken(Error::corrupt(Corrupt::TwoSignatures)),
    }
}

/// Some versions of TuxOnIce mark the first bytes of the area.
fn hibernated_at_start(first: &[u8]) -> Option<&'static str> {
    let (magic, name) = HIBERNATED.last().expect("not empty");
    first.starts_with(magic).then_some(name)
}

enum Signature {
    New,
    Old,
    Hibernated(&'static str),
}

impl Signature {
    fn of(bytes: &[u8]) -> Option<Self> {
        if bytes == SIGNATURE {
            return Some(Self::New);
        }
        if bytes == SIGNATURE_OLD {
            return Some(Self::Old);
        }
        let known = HIBERNATED.iter().find(|(magic, _)| bytes.starts_with(magic));
        known.map(|(_, name)| Self::Hibernated(name))
    }
}

fn corrupt(field: &str, found: impl Into<FieldValue>, expected: &str) -> Error {
    Error::corrupt(Corrupt::Header).field(field, found, expected)
}

fn parse(page: &[u8], page_bytes: u64) -> Result<Header> {
    let (raw, after) = RawHeader::read_from_prefix(page).expect("a page is larger than the header");
    let read = match raw.version {
        [1, 0, 0, 0] => u32::from_le_bytes,
        [0, 0, 0, 1] => u32::from_be_bytes,
        other => return Err(corrupt("version", format!("{other:x?}"), "1")),
    };
    if raw.bootbits.iter().chain(&raw.padding).any(|byte| *byte != 0) {
        return Err(corrupt("padding", "not zeros", "zeros: there may be something else on the volume"));
    }
    let last_page = read(raw.last_page);
    if last_page == 0 {
        return Err(corrupt("last_page", last_page, "at least 1"));
    }
    let list = &after[..after.len() - SIGNATURE_BYTES];
    let bad_count = read(raw.nr_badpages);
    let bad_pages = usize::try_from(bad_count).ok().and_then(|count| list.get(..count.checked_mul(4)?));
    let Some(bad_pages) = bad_pages else {
        return Err(corrupt("nr_badpages", bad_count, "what fits in the header"));
    };
    for bytes in bad_pages.chunks_exact(4) {
        let bad = read([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if bad == 0 || bad > last_page {
            return Err(corrupt("bad page", bad, "1 up to the last page"));
        }
    }
    Ok(Header { page_bytes, last_page, uuid: raw.uuid, label: label(&raw.volume_name) })
}
