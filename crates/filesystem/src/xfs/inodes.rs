//! Inodes in the order in which they lie, read ahead in long pieces: a chunk of 64 has 16 to 128 KiB, and thousands follow each other.

use block::{Result, read_vec};
use extent::{Span, VolumeSpan};

use super::space::Chunk;
use super::superblock::{GroupNumber, Superblock};
use crate::Source;
use crate::ahead::Ahead;

/// Inodes of a chunk.
const CHUNK_INODES: u64 = 64;
/// Bytes read at once.
const PIECE_BYTES_MAX: u64 = 256 << 10;
/// What lies between two chunks is read along if it is no more than that: about what a request costs.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// Calls `each` with each of the chunks, and with the volume, of which their inodes are in memory.
pub(super) fn each_read_ahead(
    source: &Source,
    superblock: &Superblock,
    chunks: &[(GroupNumber, Chunk)],
    mut each: impl FnMut(&Source, GroupNumber, Chunk) -> Result<()>,
) -> Result<()> {
    let mut rest = chunks;
    while let Some((count, span)) =
        piece(rest.iter().map(|&(group, chunk)| span_of(superblock, group, chunk)))
    {
        let (now, later) = rest.split_at(count);
        let ahead = Ahead::read(source, span);
        now.iter().try_for_each(|&(group, chunk)| each(&ahead, group, chunk))?;
        rest = later;
    }
    Ok(())
}

/// Where the inodes of a chunk lie, those between them that are not there included.
fn span_of(superblock: &Superblock, group: GroupNumber, chunk: Chunk) -> VolumeSpan {
    let size = u64::from(superblock.inode_bytes);
    let first = superblock.header_at(group, 0).plus(u64::from(chunk.first) * size);
    Span::new(first, CHUNK_INODES * size)
}

/// How many spans to read at once, from the first on, and what all of them are in.
fn piece(mut spans: impl Iterator<Item = VolumeSpan>) -> Option<(usize, VolumeSpan)> {
    let mut all = spans.next()?;
    let mut count = 1;
    for span in spans {
        let gap = span.start().get().checked_sub(all.end().get());
        let is_near = gap.is_some_and(|gap| gap <= GAP_BYTES_MAX);
        if !is_near || span.end().get() - all.start().get() > PIECE_BYTES_MAX {
            break;
        }
        all = Span::between(all.start(), span.end());
        count += 1;
    }
    Some((count, all))
}

/// An inode as it lies there.
pub(super) struct Found<'a> {
    pub(super) number: u64,
    pub(super) is_free: bool,
    pub(super) bytes: &'a [u8],
}

/// Calls `each` with the inodes of a chunk that are there.
pub(super) fn each_inode(
    source: &Source,
    superblock: &Superblock,
    group: GroupNumber,
    chunk: Chunk,
    each: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<()> {
    let size = u64::from(superblock.inode_bytes);
    let start = superblock.header_at(group, 0);
    let mut index = 0;
    while index < CHUNK_INODES {
        let there = chunk.there >> index;
        if there & 1 == 0 {
            index += 1;
            continue;
        }
        let count = u64::from((!there).trailing_zeros()).min(CHUNK_INODES - index);
        let at = start.plus((u64::from(chunk.first) + index) * size);
        let bytes = read_vec(&**source, at, count * size, "XFS inodes")?;
        for (bytes, offset) in bytes.chunks_exact(superblock.inode_bytes as usize).zip(0..) {
            let bit = index + offset;
            let number = superblock.inode_name(group, chunk.first + u32::try_from(bit).expect("below 64"));
            let is_free = chunk.free >> bit & 1 == 1;
            each(Found { number, is_free, bytes }).map_err(|error| error.at(at.plus(offset * size)))?;
        }
        index += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use extent::VolumeOffset;

    use super::*;

    #[test]
    fn pieces_bridge_small_gaps_and_end() {
        const KIB: u64 = 1 << 10;
        let piece = |starts: &[u64]| {
            let spans = starts.iter().map(|start| Span::new(VolumeOffset::new(start * KIB), 32 * KIB));
            let (count, span) = piece(spans).unwrap();
            (count, span.start().get() / KIB..span.end().get() / KIB)
        };
        assert_eq!(super::piece(std::iter::empty()), None);
        assert_eq!(piece(&[64]), (1, 64..96));
        assert_eq!(piece(&[64, 96, 192, 289]), (3, 64..224), "over 64 KiB, and not over 65");
        assert_eq!(piece(&[64, 32]), (1, 64..96), "not backwards");
        assert_eq!(piece(&[64, 64]), (1, 64..96), "not the same twice");
        assert_eq!(piece(&(0..100).map(|number| number * 32).collect::<Vec<_>>()), (8, 0..256));
    }
}
