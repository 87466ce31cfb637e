//! Group descriptors: where a group's bitmaps and inode table lie, and what is said of them.
//!
//! They are read one at a time through the volume's cache: a volume of 64 TiB has half a million.

use block::{Error, FieldValue, ReadAt, Result, read_vec};
use extent::Volume;
use zerocopy::{FromBytes, IntoBytes};

use super::checksum::{crc16, crc32c};
use super::corrupt::Corrupt;
use super::layout::{DESCRIPTOR_BYTES_LARGE, DESCRIPTOR_CHECKSUM_AT, RawGroupDescriptor, group_flags};
use super::superblock::{BlockNumber, GroupNumber, Superblock};

/// A validated group descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) block_bitmap: BlockNumber,
    pub(super) inode_bitmap: BlockNumber,
    pub(super) inode_table: BlockNumber,
    pub(super) free_clusters: u32,
    pub(super) free_inodes: u32,
    /// Inodes at the table's end that were never used.
    pub(super) inodes_unused: u32,
    /// The block bitmap was never written.
    pub(super) block_uninit: bool,
    /// The inode bitmap was never written.
    pub(super) inode_uninit: bool,
    pub(super) block_bitmap_checksum: u32,
    pub(super) inode_bitmap_checksum: u32,
}

/// Reads and validates the descriptor of `group`.
pub(super) fn read(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    group: GroupNumber,
) -> Result<Group> {
    let at = superblock.descriptor_at(group);
    let bytes = read_vec(source, at, superblock.descriptor_bytes.into(), "ext group descriptor")?;
    parse(&bytes, superblock, group).map_err(|error| error.at(at))
}

/// Reads the descriptor of `group` as it is: not a number in it is validated.
pub(super) fn read_unchecked(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    group: GroupNumber,
) -> Result<Group> {
    let at = superblock.descriptor_at(group);
    let bytes = read_vec(source, at, superblock.descriptor_bytes.into(), "ext group descriptor")?;
    Ok(Group::from_raw(&raw(&bytes), superblock))
}

/// What of a descriptor is known here; the upper halves of a small one are zeros.
fn raw(bytes: &[u8]) -> RawGroupDescriptor {
    let mut padded = [0; size_of::<RawGroupDescriptor>()];
    let len = bytes.len().min(padded.len());
    padded[..len].copy_from_slice(&bytes[..len]);
    RawGroupDescriptor::read_from_bytes(&padded).expect("exactly the struct's size")
}

fn parse(bytes: &[u8], superblock: &Superblock, group: GroupNumber) -> Result<Group> {
    let corrupt = |field: &str, found: FieldValue, expected: String| {
        Error::corrupt(Corrupt::GroupDescriptor { group }).field(field, found, expected)
    };
    let raw = raw(bytes);
    if let Some(expected) = checksum(bytes, superblock, group)
        && raw.checksum.get() != expected
    {
        let found = raw.checksum.get();
        return Err(Error::corrupt(Corrupt::GroupDescriptorChecksum { group, found, expected }));
    }
    let parsed = Group::from_raw(&raw, superblock);
    let table_blocks = u64::from(superblock.inode_table_blocks());
    for (field, block, count) in [
        ("block_bitmap", parsed.block_bitmap, 1),
        ("inode_bitmap", parsed.inode_bitmap, 1),
        ("inode_table", parsed.inode_table, table_blocks),
    ] {
        if !superblock.holds(block, count) {
            return Err(corrupt(field, format!("block {block}").into(), "within the volume".into()));
        }
    }
    if parsed.inodes_unused > superblock.inodes_per_group {
        let max = superblock.inodes_per_group;
        return Err(corrupt("itable_unused", parsed.inodes_unused.into(), format!("at most {max}")));
    }
    if group == 0 && (parsed.block_uninit || parsed.inode_uninit) {
        return Err(corrupt("flags", FieldValue::hex(raw.flags), "an initialised first group".into()));
    }
    Ok(parsed)
}

impl Group {
    fn from_raw(raw: &RawGroupDescriptor, superblock: &Superblock) -> Self {
        let large = superblock.descriptor_bytes >= DESCRIPTOR_BYTES_LARGE;
        let block = |lo: u32, hi: u32| u64::from(if large { hi } else { 0 }) << 32 | u64::from(lo);
        let count = |lo: u16, hi: u16| u32::from(if large { hi } else { 0 }) << 16 | u32::from(lo);
        // Without checksums the flags and the count of unused inodes mean nothing.
        let checked = superblock.features.group_checksums();
        let flag = |flag: u16| checked && raw.flags.get() & flag != 0;
        Self {
            block_bitmap: block(raw.block_bitmap_lo.get(), raw.block_bitmap_hi.get()),
            inode_bitmap: block(raw.inode_bitmap_lo.get(), raw.inode_bitmap_hi.get()),
            inode_table: block(raw.inode_table_lo.get(), raw.inode_table_hi.get()),
            free_clusters: count(raw.free_blocks_count_lo.get(), raw.free_blocks_count_hi.get()),
            free_inodes: count(raw.free_inodes_count_lo.get(), raw.free_inodes_count_hi.get()),
            inodes_unused: match checked {
                true => count(raw.itable_unused_lo.get(), raw.itable_unused_hi.get()),
                false => 0,
            },
            block_uninit: flag(group_flags::BLOCK_UNINIT),
            inode_uninit: flag(group_flags::INODE_UNINIT),
            block_bitmap_checksum: count(raw.block_bitmap_csum_lo.get(), raw.block_bitmap_csum_hi.get()),
            inode_bitmap_checksum: count(raw.inode_bitmap_csum_lo.get(), raw.inode_bitmap_csum_hi.get()),
        }
    }
}

/// What a descriptor's checksum must be; `None` if the volume has none.
fn checksum(bytes: &[u8], superblock: &Superblock, group: GroupNumber) -> Option<u16> {
    let number = group.to_le_bytes();
    let (before, after) = (&bytes[..DESCRIPTOR_CHECKSUM_AT], &bytes[DESCRIPTOR_CHECKSUM_AT + 2..]);
    if superblock.features.metadata_csum() {
        let crc = [&number[..], before, &[0, 0], after].into_iter().fold(superblock.checksum_seed, crc32c);
        let [low, high, ..] = crc.to_le_bytes();
        return Some(u16::from_le_bytes([low, high]));
    }
    superblock
        .features
        .group_checksums()
        .then(|| [&superblock.uuid[..], &number, before, after].into_iter().fold(0xffff, crc16))
}

/// What changes of a group when blocks of it are taken or left. Its bitmap is initialised then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupUpdate {
    pub(super) free_clusters: u32,
    /// Of the block bitmap, where the volume has such.
    pub(super) block_bitmap_checksum: u32,
}

impl GroupUpdate {
    /// Of a group that has so many free clusters by the block bitmap `bytes`.
    pub(super) fn new(superblock: &Superblock, free_clusters: u32, bytes: &[u8]) -> Self {
        Self { free_clusters, block_bitmap_checksum: crc32c(superblock.checksum_seed, bytes) }
    }

    /// Enters itself into a descriptor that was validated.
    pub(super) fn apply(&self, bytes: &mut [u8], superblock: &Superblock, group: GroupNumber) {
        let mut raw = raw(bytes);
        let len = bytes.len().min(size_of::<RawGroupDescriptor>());
        let [low, high] = halves(self.free_clusters);
        raw.free_blocks_count_lo.set(low);
        raw.free_blocks_count_hi.set(high);
        if superblock.features.group_checksums() {
            raw.flags.set(raw.flags.get() & !group_flags::BLOCK_UNINIT);
        }
        if superblock.features.metadata_csum() {
            let [low, high] = halves(self.block_bitmap_checksum);
            raw.block_bitmap_csum_lo.set(low);
            raw.block_bitmap_csum_hi.set(high);
        }
        bytes[..len].copy_from_slice(&raw.as_bytes()[..len]);
        if let Some(sum) = checksum(bytes, superblock, group) {
            bytes[DESCRIPTOR_CHECKSUM_AT..][..2].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// The lower and the upper half. Small descriptors keep only the lower one.
fn halves(number: u32) -> [u16; 2] {
    let [a, b, c, d] = number.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

/// Whether a bitmap's bytes have the checksum that a descriptor gives, of which only the lower half is
/// stored in small descriptors.
pub(super) fn bitmap_checksum_holds(superblock: &Superblock, bytes: &[u8], stored: u32) -> bool {
    if !superblock.features.metadata_csum() {
        return true;
    }
    let computed = crc32c(superblock.checksum_seed, bytes);
    let mask = if superblock.descriptor_bytes >= DESCRIPTOR_BYTES_LARGE { u32::MAX } else { 0xffff };
    computed & mask == stored
}
