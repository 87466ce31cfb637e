//! Which parts of an inode table are read, by what its bitmap says; and which the kernel reads for one inode.

use std::ops::Range;

use block::{Error, ReadAt, Result};
use extent::{Span, Volume, VolumeSpan};

use super::bitmap::Bits;
use super::corrupt::Corrupt;
use super::group;
use super::superblock::{BlockNumber, Superblock};
use crate::FileId;

/// Bytes of inode tables read at once.
const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Inodes not in use are read along if there are no more bytes of them than that between two in use.
const GAP_BYTES_MAX: u32 = 32 << 10;
/// So many blocks are read along by the kernel, unless it was mounted with another `inode_readahead_blks`.
const READ_AHEAD_BLOCKS: u64 = 32;

/// The parts of an inode table to read: all that is in use, in pieces neither too small nor too large.
pub(super) fn pieces(used: &Bits, limit: u32, inode_bytes: u32) -> Vec<Range<u32>> {
    let mut pieces: Vec<Range<u32>> = Vec::new();
    let mut at = used.next(0, limit, true);
    while at < limit {
        let end = used.next(at, limit, false).min(at + PIECE_BYTES_MAX / inode_bytes);
        match pieces.last_mut() {
            Some(last)
                if (at - last.end) * inode_bytes <= GAP_BYTES_MAX
                    && (end - last.start) * inode_bytes <= PIECE_BYTES_MAX =>
            {
                last.end = end;
            }
            _ => pieces.push(at..end),
        }
        at = used.next(end, limit, true);
    }
    pieces
}

/// What the kernel reads of the table for one inode of which nothing is cached: first what is near it and may be in use, then its block.
///
/// Source: Linux, `fs/ext4/inode.c`, `__ext4_get_inode_loc`.
pub(super) fn reads(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    file: FileId,
) -> Result<Vec<VolumeSpan>> {
    let max = superblock.inodes_count;
    let number = u32::try_from(file.0).ok().filter(|number| (1..=max).contains(number));
    let number = number.ok_or_else(|| {
        Error::corrupt(Corrupt::InodeNumber { found: u32::try_from(file.0).unwrap_or(u32::MAX), max })
    })?;
    let group = group::read(source, superblock, superblock.group_of_inode(number))?;
    let block_inodes = u64::from(superblock.block_bytes / u32::from(superblock.inode_bytes));
    let index = u64::from((number - 1) % superblock.inodes_per_group);
    let used = u64::from(superblock.inodes_per_group - group.inodes_unused);
    let table = group.inode_table;
    let own = table + index / block_inodes;
    let window = own - own % READ_AHEAD_BLOCKS;
    // The block behind the window is read as well.
    let last = (window + READ_AHEAD_BLOCKS).min(table + used / block_inodes).min(superblock.blocks_count - 1);
    let blocks = |from: BlockNumber, to: BlockNumber| {
        Span::between(superblock.offset_of(from), superblock.offset_of(to.max(from)))
    };
    let reads = [blocks(window.max(table), own), blocks(own + 1, last + 1), blocks(own, own + 1)];
    Ok(reads.into_iter().filter(|read| !read.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_what_is_in_use_and_skip_large_gaps() {
        let mut used = Bits::clear(8192);
        for (from, end) in [(0, 11), (20, 30), (1000, 1001), (2000, 7000)] {
            used.set(from, end);
        }
        let pieces = pieces(&used, 7000, 256);
        assert_eq!(pieces, [0..30, 1000..1001, 2000..6096, 6096..7000]);
    }
}
