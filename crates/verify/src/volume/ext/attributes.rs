//! Extended attributes, as far as they own something: blocks that inodes share, and values in inodes of their own.

use block::{Error, FieldValue, Result};
use zerocopy::FromBytes;

use super::corrupt::CorruptExt;
use super::geometry::{Geometry, crc32c};
use super::layout::{ATTRIBUTES_MAGIC, AttributeEntry, AttributesHeader};

/// Where a block's checksum lies.
const CHECKSUM_AT: usize = 16;

/// A block of attributes.
pub(super) struct Block {
    /// How many inodes refer to it.
    pub(super) refcount: u32,
    /// Values in inodes of their own: number and bytes.
    pub(super) outside: Vec<(u32, u32)>,
    pub(super) bytes: Vec<u8>,
}

/// The values outside of attributes that begin at `area`, which begins with the magic; `None` if these are out of
/// bounds.
pub(super) fn in_inode(area: &[u8]) -> Option<Vec<(u32, u32)>> {
    match area.split_first_chunk::<4>() {
        Some((magic, entries)) if u32::from_le_bytes(*magic) == ATTRIBUTES_MAGIC => {
            entries_outside(entries, entries)
        }
        _ => Some(Vec::new()),
    }
}

/// `values` is what the offsets of values count from.
fn entries_outside(mut entries: &[u8], values: &[u8]) -> Option<Vec<(u32, u32)>> {
    let mut outside = Vec::new();
    // Four zeros end the list.
    while *entries.first_chunk::<4>()? != [0; 4] {
        let (entry, rest) = AttributeEntry::ref_from_prefix(entries).ok()?;
        let size = usize::try_from(entry.value_size.get()).ok()?;
        match entry.value_inum.get() {
            0 if size > 0 => {
                values.get(usize::from(entry.value_offs.get())..)?.get(..size)?;
            }
            0 => {}
            inode => outside.push((inode, entry.value_size.get())),
        }
        entries = rest.get(usize::from(entry.name_len).next_multiple_of(4)..)?;
    }
    Some(outside)
}

/// Reads a block of attributes and verifies its checksum.
pub(super) fn read(geometry: &Geometry, block: u64, owner: u64) -> Result<Block> {
    let error = || Error::corrupt(CorruptExt::AttributeBlockOf { block, inode: owner });
    if !geometry.holds(block, 1) {
        return Err(error().field("place", block, "within the volume"));
    }
    let bytes = geometry.read(block, "ext attribute block")?;
    let error = || error().at(geometry.at(block));
    let (header, entries) = AttributesHeader::ref_from_prefix(&bytes).map_err(|_| error())?;
    if header.magic.get() != ATTRIBUTES_MAGIC {
        return Err(error().field("magic", FieldValue::hex(header.magic), format!("{ATTRIBUTES_MAGIC:#x}")));
    }
    if header.blocks.get() != 1 {
        return Err(error().field("blocks", header.blocks, 1));
    }
    if geometry.has_checksums() {
        let parts = [&block.to_le_bytes()[..], &bytes[..CHECKSUM_AT], &[0; 4], &bytes[CHECKSUM_AT + 4..]];
        let computed = parts.into_iter().fold(geometry.seed, crc32c);
        if header.checksum.get() != computed {
            return Err(error().field(
                "checksum",
                FieldValue::hex(header.checksum),
                format!("{computed:#x}"),
            ));
        }
    }
    let outside = entries_outside(entries, &bytes)
        .ok_or_else(|| error().field("entries", "out of bounds", "within"))?;
    Ok(Block { refcount: header.refcount.get(), outside, bytes })
}

/// What of a block stays the same wherever it lies: all but the checksum, which covers the place.
pub(super) fn content(bytes: &[u8]) -> [&[u8]; 2] {
    [&bytes[..CHECKSUM_AT], &bytes[CHECKSUM_AT + 4..]]
}
