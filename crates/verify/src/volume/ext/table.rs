//! The inodes of a group's table.

use block::{Error, Result, read_vec};
use extent::VolumeOffset;

use super::geometry::{Geometry, Group};
use crate::volume::bits::Bits;

/// How much of a table is read at once.
const PIECE_BYTES: u64 = 1 << 20;

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
        let error = Error::corrupt(format!("ext group descriptor {number}"));
        return Err(error.field("itable_unused", group.unused_inodes, "fewer: inodes there are in use"));
    }
    Ok(used)
}

/// Calls `each` with the index, the bytes and the place of each inode of a group that was ever used. A table without a
/// bitmap was never written.
pub(super) fn each(
    geometry: &Geometry,
    group: &Group,
    mut each: impl FnMut(u64, &[u8], VolumeOffset) -> Result<()>,
) -> Result<()> {
    let limit = if group.has_inode_bitmap { geometry.inodes_per_group - group.unused_inodes } else { 0 };
    let step = (PIECE_BYTES / geometry.inode_bytes).max(1);
    let len = usize::try_from(geometry.inode_bytes).expect("a block at most");
    let mut at = 0;
    while at < limit {
        let end = limit.min(at + step);
        let place = geometry.at(group.inode_table).plus(at * geometry.inode_bytes);
        let bytes = read_vec(&geometry.source, place, (end - at) * geometry.inode_bytes, "ext inode table")?;
        for (index, bytes) in (at..end).zip(bytes.chunks_exact(len)) {
            each(index, bytes, place.plus((index - at) * geometry.inode_bytes))?;
        }
        at = end;
    }
    Ok(())
}
