//! Which parts of an inode table are read, by what its bitmap says.

use std::ops::Range;

use super::bitmap::Bits;

/// Bytes of inode tables read at once.
const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Inodes not in use are read along if there are no more bytes of them than that between two in use.
const GAP_BYTES_MAX: u32 = 32 << 10;

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
