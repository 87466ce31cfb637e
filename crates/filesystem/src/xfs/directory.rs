//! Directories: in the inode, or in blocks that begin below 32 GiB of the directory. What lies above are indexes.

use std::mem::offset_of;

use block::{Error, Result};
use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::inode::wrong;
use super::layout::{
    DIRECTORY_4_BYTES, DIRECTORY_BLOCK_4_MAGIC, DIRECTORY_BLOCK_MAGIC, DIRECTORY_DATA_4_MAGIC,
    DIRECTORY_DATA_MAGIC, RawDirectoryBlock,
};
use super::seal::crc_holds;
use super::superblock::{BlockNumber, Superblock};

/// Where the entries of a directory end (`XFS_DIR2_LEAF_OFFSET`).
pub(super) const ENTRIES_END_BYTES: u64 = 32 << 30;
/// What stands where an entry could be.
const UNUSED: u16 = 0xffff;
/// Entries begin at multiples of this.
const ALIGN_BYTES: usize = 8;

/// A name, and which inode it is of.
pub(super) struct Entry<'a> {
    pub(super) inode: u64,
    pub(super) name: &'a [u8],
}

fn broken(number: u64, at: usize) -> Error {
    wrong(number, "directory entry", at as u64, "one that ends within its block")
}

/// Calls `each` with the entries of a directory that lies in its inode.
pub(super) fn each_inline(
    superblock: &Superblock,
    number: u64,
    bytes: &[u8],
    each: &mut dyn FnMut(Entry<'_>),
) -> Result<()> {
    let fail = |at| broken(number, at);
    let [count, large_count, ..] = *bytes else { return Err(fail(0)) };
    let number_bytes = if large_count > 0 { 8 } else { 4 };
    let type_bytes = usize::from(superblock.has_types());
    let mut at = 2 + number_bytes;
    for _ in 0..count {
        let len = usize::from(*bytes.get(at).ok_or_else(|| fail(at))?);
        let name_at = at + 3;
        let number_at = name_at + len + type_bytes;
        let entry = bytes.get(name_at..name_at + len).zip(bytes.get(number_at..number_at + number_bytes));
        let (name, inode) = entry.filter(|_| len > 0).ok_or_else(|| fail(at))?;
        let inode = match number_bytes {
            8 => U64::read_from_bytes(inode).expect("8 bytes").get(),
            _ => U32::read_from_bytes(inode).expect("4 bytes").get().into(),
        };
        each(Entry { inode, name });
        at = number_at + number_bytes;
    }
    Ok(())
}

/// Calls `each` with the entries of a block of a directory, but for the directory itself and its parent. It begins at `block`.
pub(super) fn each_in_block(
    superblock: &Superblock,
    number: u64,
    block: BlockNumber,
    bytes: &[u8],
    each: &mut dyn FnMut(Entry<'_>),
) -> Result<()> {
    let (raw, _) = RawDirectoryBlock::read_from_prefix(bytes).map_err(|_| broken(number, 0))?;
    let is_its = raw.owner.get() == number && raw.uuid == superblock.meta_uuid;
    let is_its = is_its && raw.blkno.get() == superblock.daddr_of(block);
    if superblock.has_checksums && !(is_its && crc_holds(bytes, offset_of!(RawDirectoryBlock, crc))) {
        return Err(wrong(number, "header of a directory block", block, "its owner, place and checksum"));
    }
    let (magics, mut at) = match superblock.has_checksums {
        true => ([DIRECTORY_DATA_MAGIC, DIRECTORY_BLOCK_MAGIC], size_of::<RawDirectoryBlock>()),
        false => ([DIRECTORY_DATA_4_MAGIC, DIRECTORY_BLOCK_4_MAGIC], DIRECTORY_4_BYTES),
    };
    let end = match magics.iter().position(|magic| *magic == raw.magic) {
        Some(0) => bytes.len(),
        Some(_) => end_of_entries(bytes, at).ok_or_else(|| broken(number, bytes.len()))?,
        None => return Err(wrong(number, "magic of a directory block", block, "that of a block of entries")),
    };
    while at < end {
        at += entry(superblock, &bytes[at..end], each).ok_or_else(|| broken(number, at))?;
    }
    Ok(())
}

/// Where the index begins in a directory's only block: the count of its entries of 8 bytes lies before the block's last 4 bytes.
fn end_of_entries(bytes: &[u8], header_bytes: usize) -> Option<usize> {
    let tail = bytes.len().checked_sub(8)?;
    let count = U32::read_from_bytes(bytes.get(tail..tail + 4)?).ok()?.get();
    tail.checked_sub(usize::try_from(count).ok()?.checked_mul(8)?).filter(|end| *end >= header_bytes)
}

/// Reads an entry, or what is unused; answers how long it is.
fn entry(superblock: &Superblock, bytes: &[u8], each: &mut dyn FnMut(Entry<'_>)) -> Option<usize> {
    let tag = U16::read_from_bytes(bytes.get(..2)?).ok()?.get();
    if tag == UNUSED {
        let len = usize::from(U16::read_from_bytes(bytes.get(2..4)?).ok()?.get());
        return (len >= ALIGN_BYTES && len <= bytes.len() && len.is_multiple_of(ALIGN_BYTES)).then_some(len);
    }
    let inode = U64::read_from_bytes(bytes.get(..8)?).ok()?.get();
    let name_len = usize::from(*bytes.get(8)?);
    let name = bytes.get(9..9 + name_len).filter(|name| !name.is_empty())?;
    // A tag of two bytes ends it.
    let len = (9 + name_len + usize::from(superblock.has_types()) + 2).next_multiple_of(ALIGN_BYTES);
    if len > bytes.len() {
        return None;
    }
    if name != b"." && name != b".." {
        each(Entry { inode, name });
    }
    Some(len)
}
