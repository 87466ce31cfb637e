//! Bitmaps of blocks (of clusters, under bigalloc) and of inodes.

use std::sync::Arc;

use block::{Error, ReadAt, Result, read_vec};
use extent::Volume;

use super::corrupt::Corrupt;
use super::group::{Group, bitmap_checksum_holds};
use super::superblock::{GroupNumber, Superblock};

pub(super) use crate::bits::{Bits, set_range};

fn index(word: u32) -> usize {
    usize::try_from(word).expect("a bitmap fits in memory")
}

/// The block that holds a group's block bitmap, the checksum verified; of a group whose bitmap was never written, what is
/// to be written there.
pub(super) fn block_of(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    number: GroupNumber,
    group: &Group,
) -> Result<Vec<u8>> {
    if group.block_uninit {
        return Ok(uninitialised(superblock, number, group).to_block(superblock.block_bytes));
    }
    let at = superblock.offset_of(group.block_bitmap);
    let bytes = read_vec(source, at, superblock.block_bytes.into(), "ext block bitmap")?;
    let len = index(superblock.clusters_per_group / 8);
    if !bitmap_checksum_holds(superblock, &bytes[..len], group.block_bitmap_checksum) {
        return Err(wrong_checksum(number).at(at));
    }
    Ok(bytes)
}

fn wrong_checksum(number: GroupNumber) -> Error {
    Error::corrupt(Corrupt::BlockBitmapChecksum { group: number })
}

/// The used clusters of a group, the checksum verified; of a group whose bitmap was never written, computed
/// as the kernel's `ext4_init_block_bitmap` does.
pub(super) fn read_blocks(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    number: GroupNumber,
    group: &Group,
) -> Result<Arc<Bits>> {
    if group.block_uninit {
        return Ok(Arc::new(uninitialised(superblock, number, group)));
    }
    let at = superblock.offset_of(group.block_bitmap);
    let bytes = read_vec(source, at, u64::from(superblock.clusters_per_group / 8), "ext block bitmap")?;
    if !bitmap_checksum_holds(superblock, &bytes, group.block_bitmap_checksum) {
        return Err(wrong_checksum(number).at(at));
    }
    Ok(Arc::new(Bits::from_bytes(&bytes, superblock.group_clusters(number))))
}

fn uninitialised(superblock: &Superblock, number: GroupNumber, group: &Group) -> Bits {
    let mut bits = Bits::clear(superblock.group_clusters(number));
    let start = superblock.group_start(number);
    let end = start + u64::from(superblock.group_blocks(number));
    let base = (superblock.base_start(number), u64::from(superblock.base_blocks(number)));
    let table = (group.inode_table, u64::from(superblock.inode_table_blocks()));
    for (first, count) in [base, (group.block_bitmap, 1), (group.inode_bitmap, 1), table] {
        let (from, to) = (first.max(start), (first + count).min(end));
        if from < to {
            let bit = |block: u64| u32::try_from(block - start).expect("within the group");
            let ratio = superblock.cluster_blocks;
            bits.set(bit(from) / ratio, bit(to).div_ceil(ratio));
        }
    }
    bits
}

/// The used inodes of a group, the checksum verified.
pub(super) fn read_inodes(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    number: GroupNumber,
    group: &Group,
) -> Result<Bits> {
    if group.inode_uninit {
        return Ok(Bits::clear(superblock.inodes_per_group));
    }
    let at = superblock.offset_of(group.inode_bitmap);
    let bytes = read_vec(source, at, u64::from(superblock.inodes_per_group / 8), "ext inode bitmap")?;
    if !bitmap_checksum_holds(superblock, &bytes, group.inode_bitmap_checksum) {
        return Err(Error::corrupt(Corrupt::InodeBitmapChecksum { group: number }).at(at));
    }
    Ok(Bits::from_bytes(&bytes, superblock.inodes_per_group))
}
