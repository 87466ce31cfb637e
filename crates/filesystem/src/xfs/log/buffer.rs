//! Buffers of the log: blocks of metadata of which chunks were changed.

use std::mem::offset_of;

use block::Result;
use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

use super::layout::{BUFFER_CHUNK_BYTES, RawBufferItem, buffer};
use super::record::{Item, short};
use crate::bits::Bits;
use crate::xfs::layout::{
    INDEX_MAGICS, RawAttributeValue, RawDirectoryBlock, RawFree, RawFreeList, RawIndexBlock, RawInodes,
    RawLongNode, RawShortNode, RawSuperblock, RawSymlink,
};
use crate::xfs::superblock::Superblock;

/// A buffer by its place and length, in sectors of the log.
pub(super) type Place = (u64, u64);

/// What an item says of its buffer.
pub(super) struct Buffer {
    flags: u16,
    pub(super) place: Place,
}

impl Buffer {
    /// Reads it from the item's first region.
    pub(super) fn of(item: &Item) -> Result<Self> {
        let (raw, _) = RawBufferItem::read_from_prefix(item.head()).map_err(|_| short("item"))?;
        Ok(Self { flags: raw.flags.get(), place: (raw.blkno.get(), raw.len.get().into()) })
    }

    /// Whether it was freed: what transactions say of it before is not to be replayed.
    pub(super) fn is_cancelled(&self) -> bool {
        self.flags & buffer::CANCEL != 0
    }

    /// Whether it holds inodes.
    pub(super) fn is_of_inodes(&self) -> bool {
        self.flags & buffer::INODE_BUF != 0
    }
}

/// Which chunks of its buffer an item has.
fn changed(item: &Item) -> Result<Bits> {
    let (raw, map) = RawBufferItem::read_from_prefix(item.head()).map_err(|_| short("item"))?;
    let len = usize::try_from(raw.map_size.get()).ok().and_then(|words| words.checked_mul(4));
    let map = len.and_then(|len| map.get(..len)).ok_or_else(|| short("item"))?;
    Ok(Bits::from_bytes(map, u32::try_from(map.len() * 8).map_err(|_| short("item"))?))
}

/// Puts what an item says into the `bytes` of its buffer: a region for each run of chunks, or several where the buffer's pages did not follow each
/// other in memory.
pub(super) fn put(bytes: &mut [u8], item: &Item) -> Result<()> {
    let changed = changed(item)?;
    let mut regions = item.regions[1..].iter();
    for run in changed.runs(0, changed.len(), true) {
        let (mut at, end) = (run.start as usize, run.end as usize);
        while at < end {
            let region = regions.next().ok_or_else(|| short("regions"))?;
            let count = (region.len() / BUFFER_CHUNK_BYTES).min(end - at);
            let len = count * BUFFER_CHUNK_BYTES;
            let target = bytes.get_mut(at * BUFFER_CHUNK_BYTES..).and_then(|rest| rest.get_mut(..len));
            let target = target.filter(|_| count > 0).ok_or_else(|| short("buffer"))?;
            target.copy_from_slice(&region[..len]);
            at += count;
        }
    }
    Ok(())
}

/// Where a buffer has its checksum; and when it was written, and whose it is, if it says so.
struct Stamps {
    crc_at: usize,
    lsn_and_uuid_at: Option<(usize, usize)>,
}

/// The places in a struct that has all of them.
macro_rules! stamps {
    ($raw:ty) => {
        Stamps {
            crc_at: offset_of!($raw, crc),
            lsn_and_uuid_at: Some((offset_of!($raw, lsn), offset_of!($raw, uuid))),
        }
    };
}

/// What a buffer is, by its magic number; `None` if it has no checksum that is looked at.
fn stamps_of(bytes: &[u8]) -> Option<Stamps> {
    let without_lsn = |crc_at| Stamps { crc_at, lsn_and_uuid_at: None };
    match bytes.get(..4)? {
        b"AB3B" | b"AB3C" | b"RMB3" | b"R3FC" | b"IAB3" | b"FIB3" => Some(stamps!(RawShortNode)),
        b"BMA3" => Some(stamps!(RawLongNode)),
        b"XAGF" => Some(stamps!(RawFree)),
        b"XAFL" => Some(stamps!(RawFreeList)),
        b"XAGI" => Some(stamps!(RawInodes)),
        b"XSLM" => Some(stamps!(RawSymlink)),
        b"XDB3" | b"XDD3" | b"XDF3" => Some(stamps!(RawDirectoryBlock)),
        // What these say of when they were written is not kept.
        b"XFSB" => Some(without_lsn(offset_of!(RawSuperblock, crc))),
        b"XARM" => Some(without_lsn(offset_of!(RawAttributeValue, crc))),
        _ => {
            let (raw, _) = RawIndexBlock::read_from_prefix(bytes).ok()?;
            INDEX_MAGICS.contains(&raw.magic).then_some(stamps!(RawIndexBlock))
        }
    }
}

/// Where a buffer has its checksum, if it has one.
pub(super) fn crc_at(bytes: &[u8]) -> Option<usize> {
    stamps_of(bytes).map(|stamps| stamps.crc_at)
}

/// When a buffer was written, if it says so and is of this volume.
pub(super) fn lsn_of(bytes: &[u8], superblock: &Superblock) -> Option<u64> {
    let (lsn_at, uuid_at) = stamps_of(bytes)?.lsn_and_uuid_at?;
    let is_own = bytes.get(uuid_at..)?.starts_with(&superblock.meta_uuid);
    let (lsn, _) = U64::read_from_prefix(bytes.get(lsn_at..)?).ok()?;
    Some(lsn.get()).filter(|_| is_own)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::super::layout::{RawItem, item as kind};
    use super::*;

    /// An item of a buffer of 512 bytes whose chunks 1, 2 and 3 were changed, in these regions.
    fn item(regions: &[Vec<u8>]) -> Item {
        let raw = RawBufferItem {
            item: RawItem { type_: kind::BUF.into(), size: 2.into() },
            flags: 0.into(),
            len: 1.into(),
            blkno: 0.into(),
            map_size: 1.into(),
        };
        let head = [raw.as_bytes(), &[0b1110, 0, 0, 0]].concat();
        Item { regions: [&[head], regions].concat() }
    }

    #[test]
    fn a_run_of_chunks_may_be_in_several_regions() {
        let (part, rest) = (vec![1; 128], vec![2; 256]);
        for regions in [vec![[&part[..], &rest[..]].concat()], vec![part.clone(), rest.clone()]] {
            let mut bytes = vec![9; 512];
            put(&mut bytes, &item(&regions)).unwrap();
            assert_eq!(bytes, [&[9; 128][..], &[1; 128], &[2; 256]].concat());
        }
        for regions in [vec![part.clone()], vec![part, vec![2; 100]], vec![]] {
            assert!(put(&mut vec![9; 512], &item(&regions)).is_err());
        }
        assert!(put(&mut vec![9; 400], &item(&[vec![1; 384]])).is_err(), "a buffer that is too short");
    }
}
