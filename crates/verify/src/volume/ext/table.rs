//! The inodes of a group's table.

use std::ops::Range;

use block::{Error, Result, read_vec};
use extent::VolumeOffset;

use super::corrupt::CorruptExt;
use super::geometry::{Geometry, Group};
use crate::volume::bits::Bits;

/// How much of a table is read at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Where only inodes in use are looked at, others between two of them are read along up to so many bytes.
const GAP_BYTES: u64 = 32 << 10;

/// The inodes in use of a group, by their index in its table.
pub(super) fn used(geometry: &Geometry, number: u64, group: &Group) -> Result<Bits> {
    let count = geometry.inodes_per_group;
    if !group.has_inode_bitmap {
        return Ok(Bits::none(0..count));
    }
    let bytes = read_vec(&geometry.source, geometry.at(group.inode_bitmap), count / 8, "ext inode bitmap")?;
    geometry.check_bitmap("inode", number, &bytes, group.inode_bitmap_checksum)?;
    let used = Bits::of_bytes(0..count, &bytes);
    let limit = count - group.unused_inodes;
    if used.count(limit..count) > 0 {
        let error = Error::corrupt(CorruptExt::GroupDescriptor { group: number });
        return Err(error.field("itable_unused", group.unused_inodes, "fewer: inodes there are in use"));
    }
    Ok(used)
}

/// Calls `each` with the index, the bytes and the place of each inode of a group that was ever used, or, given those in use,
/// of at least these. A table without a bitmap was never written.
pub(super) fn each(
    geometry: &Geometry,
    group: &Group,
    in_use: Option<&Bits>,
    mut each: impl FnMut(u64, &[u8], VolumeOffset) -> Result<()>,
) -> Result<()> {
    let limit = if group.has_inode_bitmap { geometry.inodes_per_group - group.unused_inodes } else { 0 };
    let step = (PIECE_BYTES / geometry.inode_bytes).max(1);
    let len = usize::try_from(geometry.inode_bytes).expect("a block at most");
    let mut at = 0;
    while let Some(piece) = piece(at..limit, step, GAP_BYTES / geometry.inode_bytes, in_use) {
        let end = piece.end;
        at = piece.start;
        let place = geometry.at(group.inode_table).plus(at * geometry.inode_bytes);
        let bytes = read_vec(&geometry.source, place, (end - at) * geometry.inode_bytes, "ext inode table")?;
        for (index, bytes) in (at..end).zip(bytes.chunks_exact(len)) {
            each(index, bytes, place.plus((index - at) * geometry.inode_bytes))?;
        }
        at = end;
    }
    Ok(())
}

/// The first inodes of `rest` to read at once, at most `step`: up to a gap of more than `gap` that are not `in_use`, if that is
/// given.
fn piece(rest: Range<u64>, step: u64, gap: u64, in_use: Option<&Bits>) -> Option<Range<u64>> {
    let Some(in_use) = in_use else {
        return (!rest.is_empty()).then(|| rest.start..rest.end.min(rest.start + step));
    };
    let start = rest.clone().find(|index| in_use.has(*index))?;
    let mut end = start + 1;
    for index in start + 1..rest.end.min(start + step) {
        if in_use.has(index) {
            end = index + 1;
        } else if index - end >= gap {
            break;
        }
    }
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_what_is_in_use_and_skip_large_gaps() {
        let mut in_use = Bits::none(0..8192);
        for (from, end) in [(0, 11), (20, 30), (1000, 1001), (2000, 7000)] {
            in_use.join(from..end);
        }
        let pieces = |in_use| {
            let mut at = 0;
            let next = || {
                let found = piece(at..7500, 4096, 128, in_use)?;
                at = found.end;
                Some(found)
            };
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        assert_eq!(pieces(Some(&in_use)), [0..30, 1000..1001, 2000..6096, 6096..7000]);
        assert_eq!(pieces(None), [0..4096, 4096..7500]);
    }
}
