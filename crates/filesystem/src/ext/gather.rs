//! Reads many blocks that lie all over a volume, in few pieces and in the order in which they lie.

use std::ops::Range;

use block::{Result, read_vec};

use super::superblock::{BlockNumber, Superblock};
use crate::Source;

/// Bytes read at once.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// What lies between two blocks is read along if it is no more than that: about what a request costs.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// Calls `each` with the items, in order, and the bytes of their blocks. `items` are sorted by block; the volume holds
/// them all. What `is_wanted` is false for when its turn comes is not read.
pub(super) fn each_block<T>(
    source: &Source,
    superblock: &Superblock,
    items: &[T],
    block_of: impl Fn(&T) -> BlockNumber,
    is_wanted: impl Fn(&T) -> bool,
    mut each: impl FnMut(&T, &[u8]),
) -> Result<()> {
    let block_bytes = u64::from(superblock.block_bytes);
    let mut rest = items;
    while let Some(first) = rest.iter().position(&is_wanted) {
        rest = &rest[first..];
        let blocks = piece(rest.iter().map(&block_of), block_bytes);
        let (now, later) = rest.split_at(rest.partition_point(|item| block_of(item) < blocks.end));
        let len_bytes = (blocks.end - blocks.start) * block_bytes;
        let bytes = read_vec(source, superblock.offset_of(blocks.start), len_bytes, "ext blocks")?;
        for item in now.iter().filter(|item| is_wanted(item)) {
            let at = usize::try_from((block_of(item) - blocks.start) * block_bytes).expect("within a piece");
            each(item, &bytes[at..][..usize::try_from(block_bytes).expect("at most 64 KiB")]);
        }
        rest = later;
    }
    Ok(())
}

/// The blocks to read at once, from the first of `sorted`, of which there is one.
fn piece(mut sorted: impl Iterator<Item = BlockNumber>, block_bytes: u64) -> Range<BlockNumber> {
    let first = sorted.next().unwrap_or_default();
    let mut end = first + 1;
    for block in sorted {
        let gap = block.saturating_sub(end);
        if gap * block_bytes > GAP_BYTES_MAX || (block + 1 - first) * block_bytes > PIECE_BYTES_MAX {
            break;
        }
        end = block + 1;
    }
    first..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_bridge_small_gaps_and_end() {
        let piece = |blocks: &[u64]| piece(blocks.iter().copied(), 4096);
        assert_eq!(piece(&[7]), 7..8);
        assert_eq!(piece(&[7, 7, 8, 25, 100]), 7..26);
        assert_eq!(piece(&(0..1000).collect::<Vec<_>>()), 0..256);
    }
}
