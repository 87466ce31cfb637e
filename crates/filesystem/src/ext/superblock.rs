//! The superblock, validated: geometry, features, state.
//!
//! After [`Superblock::parse`] succeeded, every number in it is bounded by the volume's size, so that later
//! arithmetic on blocks, groups and inodes cannot overflow.

use block::{Error, FieldValue, Result};
use extent::VolumeOffset;
use zerocopy::IntoBytes;

use super::checksum::{SEED, crc32c};
use super::corrupt::Corrupt;
use super::features::{FeatureSet, Features, compat, incompat, ro_compat};
use super::layout::{
    DESCRIPTOR_BYTES_LARGE, DESCRIPTOR_BYTES_SMALL, INODE_BYTES_SMALL, RawSuperblock, SUPERBLOCK_OFFSET,
    special_inode, state,
};
use crate::probe::fields::label;

/// A block's number, from the start of the volume.
pub type BlockNumber = u64;
/// A block group's number.
pub type GroupNumber = u32;

/// What `s_state` and the error counter say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mounting {
    pub(super) valid: bool,
    pub(super) errors: bool,
    pub(super) replaying_fast_commit: bool,
}

/// The validated superblock.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) features: Features,
    pub(super) block_bytes: u32,
    /// Blocks of a cluster: a power of two, 1 without bigalloc.
    pub(super) cluster_blocks: u32,
    pub(super) blocks_count: u64,
    pub(super) free_blocks_count: u64,
    pub(super) free_inodes_count: u32,
    pub(super) first_data_block: BlockNumber,
    pub(super) blocks_per_group: u32,
    pub(super) clusters_per_group: u32,
    pub(super) inodes_per_group: u32,
    pub(super) inodes_count: u32,
    pub(super) groups_count: GroupNumber,
    pub(super) inode_bytes: u16,
    pub(super) descriptor_bytes: u32,
    pub(super) reserved_gdt_blocks: u32,
    pub(super) first_meta_bg: u32,
    /// Groups whose bitmaps and tables lie together: a power of two, 1 without `flex_bg`.
    pub(super) flex_groups: u32,
    pub(super) backup_groups: [u32; 2],
    pub(super) uuid: [u8; 16],
    pub(super) label: Option<String>,
    pub(super) journal_inode: u32,
    /// Inodes below are the file system's own, but for the root.
    pub(super) first_inode: u32,
    /// Its own inodes at any number: journal, quotas, orphan file; 0 for none.
    pub(super) own_inodes: [u32; 5],
    pub(super) last_orphan: u32,
    pub(super) mmp_block: Option<BlockNumber>,
    pub(super) mounting: Mounting,
    /// Where every CRC-32C of the metadata starts from.
    pub(super) checksum_seed: u32,
}

fn corrupt(field: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
    Error::corrupt(Corrupt::Superblock).at(VolumeOffset::new(SUPERBLOCK_OFFSET)).field(field, found, expected)
}

fn check(field: &str, found: u64, expected: &str, holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(corrupt(field, found, expected)) }
}

/// The features as written; those of the first revision are none, whatever its bytes say.
pub(super) fn features_of(raw: &RawSuperblock) -> Features {
    let set = |bits: u32| FeatureSet::new(if raw.rev_level.get() == 0 { 0 } else { bits });
    Features {
        compat: set(raw.feature_compat.get()),
        incompat: set(raw.feature_incompat.get()),
        ro_compat: set(raw.feature_ro_compat.get()),
    }
}

/// The label, up to the first NUL.
pub(super) fn label_of(raw: &RawSuperblock) -> Option<String> {
    label(&raw.volume_name)
}

fn own_inodes(raw: &RawSuperblock, features: &Features) -> [u32; 5] {
    let with = |holds: bool, number: u32| if holds { number } else { 0 };
    let quota = features.ro_compat.has(ro_compat::QUOTA);
    [
        with(features.has_journal(), raw.journal_inum.get()),
        with(quota, raw.usr_quota_inum.get()),
        with(quota, raw.grp_quota_inum.get()),
        with(quota, raw.prj_quota_inum.get()),
        with(features.compat.has(compat::ORPHAN_FILE), raw.orphan_file_inum.get()),
    ]
}

/// What the kernel takes for a group that stands alone (`ext4_fill_flex_info`) is one here, too.
fn flex_groups(raw: &RawSuperblock, features: &Features) -> u32 {
    let log = u32::from(raw.log_groups_per_flex);
    if features.incompat.has(incompat::FLEX_BG) && log < 32 { 1 << log } else { 1 }
}

fn join(lo: u32, hi: u32) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}

impl Superblock {
    /// Validates `raw` for a volume of `volume_bytes`.
    pub(super) fn parse(raw: &RawSuperblock, volume_bytes: u64) -> Result<Self> {
        let rev_level = raw.rev_level.get();
        if rev_level > 1 {
            return Err(Error::unsupported("ext superblock").field("rev_level", rev_level, "0 or 1"));
        }
        let features = features_of(raw);
        verify_checksum(raw, &features)?;
        features.check()?;
        if ![0, 3].contains(&raw.creator_os.get()) {
            return Err(Error::unsupported("ext superblock").field(
                "creator_os",
                raw.creator_os,
                "0 (Linux) or 3 (FreeBSD)",
            ));
        }
        let sizes = Sizes::parse(raw, &features)?;
        let counts = Counts::parse(raw, &features, &sizes, volume_bytes)?;
        let seed = match features.incompat.has(incompat::CSUM_SEED) {
            true => raw.checksum_seed.get(),
            false => crc32c(SEED, &raw.uuid),
        };
        let mmp = features.incompat.has(incompat::MMP) && raw.mmp_block.get() != 0;
        let state = raw.state.get();
        Ok(Self {
            features,
            block_bytes: sizes.block_bytes,
            cluster_blocks: sizes.cluster_blocks,
            blocks_count: counts.blocks,
            free_blocks_count: counts.free_blocks,
            free_inodes_count: raw.free_inodes_count.get(),
            first_data_block: counts.first_data_block,
            blocks_per_group: raw.blocks_per_group.get(),
            clusters_per_group: counts.clusters_per_group,
            inodes_per_group: raw.inodes_per_group.get(),
            inodes_count: raw.inodes_count.get(),
            groups_count: counts.groups,
            inode_bytes: sizes.inode_bytes,
            descriptor_bytes: sizes.descriptor_bytes,
            reserved_gdt_blocks: u32::from(raw.reserved_gdt_blocks.get()),
            first_meta_bg: raw.first_meta_bg.get(),
            flex_groups: flex_groups(raw, &features),
            backup_groups: raw.backup_bgs.map(Into::into),
            uuid: raw.uuid,
            label: label_of(raw),
            journal_inode: raw.journal_inum.get(),
            first_inode: if rev_level == 0 { special_inode::FIRST_USER } else { raw.first_ino.get() },
            own_inodes: own_inodes(raw, &features),
            last_orphan: raw.last_orphan.get(),
            mmp_block: mmp.then(|| raw.mmp_block.get()),
            mounting: Mounting {
                valid: state & state::VALID != 0,
                errors: state & state::ERROR != 0,
                replaying_fast_commit: state & state::FC_REPLAY != 0,
            },
            checksum_seed: seed,
        })
    }

    /// Bytes of so many clusters.
    pub(super) fn clusters_bytes(&self, count: u64) -> u64 {
        count.saturating_mul(u64::from(self.cluster_blocks) * u64::from(self.block_bytes))
    }

    /// Where a block starts.
    pub(super) fn offset_of(&self, block: BlockNumber) -> VolumeOffset {
        VolumeOffset::new(block.saturating_mul(u64::from(self.block_bytes)))
    }

    /// Bytes from the start of the volume to the end of the last block.
    pub(super) fn end_bytes(&self) -> u64 {
        self.blocks_count * u64::from(self.block_bytes)
    }

    /// Whether the `count` blocks from `first` are all blocks of a group.
    pub(super) fn holds(&self, first: BlockNumber, count: u64) -> bool {
        first >= self.first_data_block && first.checked_add(count).is_some_and(|end| end <= self.blocks_count)
    }

    /// The group in which a block lies. For blocks that the volume [holds](Self::holds).
    pub(super) fn group_of(&self, block: BlockNumber) -> GroupNumber {
        let group = (block - self.first_data_block) / u64::from(self.blocks_per_group);
        u32::try_from(group).expect("a group of the volume")
    }

    /// The inodes of the quota files of users, groups and projects; 0 for none.
    pub(super) fn quota_inodes(&self) -> [u32; 3] {
        let [_, user, group, project, _] = self.own_inodes;
        [user, group, project]
    }

    /// The group of an inode, by its number from 1 on.
    pub(super) fn group_of_inode(&self, number: u32) -> GroupNumber {
        (number - 1) / self.inodes_per_group
    }

    /// The first block of a group.
    pub(super) fn group_start(&self, group: GroupNumber) -> BlockNumber {
        self.first_data_block + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Blocks of a group: fewer in the last one.
    pub(super) fn group_blocks(&self, group: GroupNumber) -> u32 {
        let rest = self.blocks_count.saturating_sub(self.group_start(group));
        u32::try_from(rest).map_or(self.blocks_per_group, |rest| rest.min(self.blocks_per_group))
    }

    /// Clusters of a group, the last of which may be cut by the volume's end.
    pub(super) fn group_clusters(&self, group: GroupNumber) -> u32 {
        self.group_blocks(group).div_ceil(self.cluster_blocks)
    }

    /// Blocks of a group's inode table.
    pub(super) fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.block_bytes / u32::from(self.inode_bytes))
    }

    /// Descriptors that fit in a block.
    pub(super) fn descriptors_per_block(&self) -> u32 {
        self.block_bytes / self.descriptor_bytes
    }

    /// Whether a group starts with a copy of the superblock (the kernel's `ext4_bg_has_super`).
    pub(super) fn has_superblock(&self, group: GroupNumber) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.compat.has(compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if group == 1 || !self.features.ro_compat.has(ro_compat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
    }

    /// Blocks of group descriptors that follow a group's superblock, or that `meta_bg` puts into the group.
    fn descriptor_blocks_in(&self, group: GroupNumber) -> u32 {
        let per_block = self.descriptors_per_block();
        let meta_bg = self.features.incompat.has(incompat::META_BG);
        if meta_bg && u64::from(group) >= u64::from(self.first_meta_bg) * u64::from(per_block) {
            return u32::from([0, 1, per_block - 1].contains(&(group % per_block)));
        }
        let all = self.groups_count.div_ceil(per_block);
        match (self.has_superblock(group), meta_bg) {
            (false, _) => 0,
            (true, true) => self.first_meta_bg.min(all),
            (true, false) => all,
        }
    }

    /// Blocks at the start of a group that hold the superblock's copy, the descriptors and the room to grow
    /// them (the kernel's `ext4_num_base_meta_blocks`).
    pub(super) fn base_blocks(&self, group: GroupNumber) -> u32 {
        let superblock = u32::from(self.has_superblock(group));
        let meta_bg = self.features.incompat.has(incompat::META_BG)
            && u64::from(group) >= u64::from(self.first_meta_bg) * u64::from(self.descriptors_per_block());
        let reserved = if superblock == 1 && !meta_bg { self.reserved_gdt_blocks } else { 0 };
        superblock + self.descriptor_blocks_in(group) + reserved
    }

    /// The block that holds the superblock.
    fn superblock_block(&self) -> BlockNumber {
        SUPERBLOCK_OFFSET / u64::from(self.block_bytes)
    }

    /// The blocks of a group that [`Self::base_blocks`] counts: they start with the group, but for the first
    /// block of a bigalloc volume with blocks of 1 KiB, which is before the superblock.
    pub(super) fn base_start(&self, group: GroupNumber) -> BlockNumber {
        if group == 0 { self.superblock_block().max(self.first_data_block) } else { self.group_start(group) }
    }

    /// Where a group's descriptor lies (the kernel's `descriptor_loc`).
    pub(super) fn descriptor_at(&self, group: GroupNumber) -> VolumeOffset {
        let per_block = self.descriptors_per_block();
        let index = group / per_block;
        let meta_bg = self.features.incompat.has(incompat::META_BG) && index >= self.first_meta_bg;
        let block = if meta_bg {
            let first = index * per_block;
            self.base_start(first) + u64::from(self.has_superblock(first))
        } else {
            self.superblock_block() + 1 + u64::from(index)
        };
        let within = u64::from(group % per_block) * u64::from(self.descriptor_bytes);
        VolumeOffset::new(self.offset_of(block).get() + within)
    }

    /// The first few blocks that hold a copy of the superblock.
    pub(super) fn backup_blocks(&self) -> Vec<BlockNumber> {
        (1..self.groups_count.min(1000))
            .filter(|group| self.has_superblock(*group))
            .map(|group| self.group_start(group))
            .take(4)
            .collect()
    }
}

fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

fn verify_checksum(raw: &RawSuperblock, features: &Features) -> Result<()> {
    if !features.metadata_csum() {
        return Ok(());
    }
    check("checksum_type", raw.checksum_type.into(), "1 (CRC-32C)", raw.checksum_type == 1)?;
    let bytes = raw.as_bytes();
    let computed = crc32c(SEED, &bytes[..bytes.len() - size_of_val(&raw.checksum)]);
    if computed != raw.checksum.get() {
        let (found, expected) = (raw.checksum.get(), computed);
        let what = Corrupt::SuperblockChecksum { found, expected };
        return Err(Error::corrupt(what).at(VolumeOffset::new(SUPERBLOCK_OFFSET)));
    }
    Ok(())
}

/// The sizes of things.
struct Sizes {
    block_bytes: u32,
    cluster_blocks: u32,
    inode_bytes: u16,
    descriptor_bytes: u32,
}

impl Sizes {
    fn parse(raw: &RawSuperblock, features: &Features) -> Result<Self> {
        let log_block = raw.log_block_size.get();
        check("log_block_size", log_block.into(), "0 to 6", log_block <= 6)?;
        let block_bytes = 1024u32 << log_block;
        let log_cluster = raw.log_cluster_size.get();
        // A cluster of more than 256 MiB is no kernel's (EXT4_MAX_CLUSTER_LOG_SIZE is 30).
        let cluster_holds = match features.ro_compat.has(ro_compat::BIGALLOC) {
            true => (log_block..=18).contains(&log_cluster),
            false => log_cluster == log_block || raw.rev_level.get() == 0,
        };
        check(
            "log_cluster_size",
            log_cluster.into(),
            "log_block_size, or with bigalloc up to 18",
            cluster_holds,
        )?;
        let cluster_blocks = match features.ro_compat.has(ro_compat::BIGALLOC) {
            true => 1 << (log_cluster - log_block),
            false => 1,
        };
        let inode_bytes = if raw.rev_level.get() == 0 { INODE_BYTES_SMALL } else { raw.inode_size.get() };
        let inode_holds = inode_bytes.is_power_of_two()
            && inode_bytes >= INODE_BYTES_SMALL
            && u32::from(inode_bytes) <= block_bytes;
        check("inode_size", inode_bytes.into(), "a power of two from 128 to the block size", inode_holds)?;
        Ok(Self {
            block_bytes,
            cluster_blocks,
            inode_bytes,
            descriptor_bytes: descriptor_bytes(raw, features)?,
        })
    }
}

fn descriptor_bytes(raw: &RawSuperblock, features: &Features) -> Result<u32> {
    if !features.incompat.has(incompat::BIT64) {
        return Ok(DESCRIPTOR_BYTES_SMALL);
    }
    let bytes = u32::from(raw.desc_size.get());
    let holds = bytes.is_power_of_two() && (DESCRIPTOR_BYTES_LARGE..=1024).contains(&bytes);
    check("desc_size", bytes.into(), "a power of two from 64 to 1024", holds)?;
    Ok(bytes)
}

/// The numbers of things.
struct Counts {
    blocks: u64,
    free_blocks: u64,
    first_data_block: BlockNumber,
    clusters_per_group: u32,
    groups: GroupNumber,
}

impl Counts {
    fn parse(raw: &RawSuperblock, features: &Features, sizes: &Sizes, volume_bytes: u64) -> Result<Self> {
        let hi = |value: u32| if features.incompat.has(incompat::BIT64) { value } else { 0 };
        let blocks = join(raw.blocks_count_lo.get(), hi(raw.blocks_count_hi.get()));
        let blocks_max = volume_bytes / u64::from(sizes.block_bytes);
        let first_data_block = u64::from(raw.first_data_block.get());
        let first_holds = match (sizes.block_bytes, sizes.cluster_blocks) {
            (1024, 1) => first_data_block == 1,
            (1024, _) => first_data_block <= 1,
            _ => first_data_block == 0,
        };
        check("first_data_block", first_data_block, "1 with blocks of 1 KiB, else 0", first_holds)?;
        let fits = blocks > first_data_block + 1 && blocks <= blocks_max;
        check("blocks_count", blocks, &format!("at most {blocks_max}, the blocks of the volume"), fits)?;
        let clusters_per_group = per_group(raw, sizes)?;
        let groups = (blocks - first_data_block).div_ceil(u64::from(raw.blocks_per_group.get()));
        let groups = u32::try_from(groups).map_err(|_| corrupt("groups", groups, "at most 2^32"))?;
        let inodes = u64::from(groups) * u64::from(raw.inodes_per_group.get());
        let inodes_hold = u64::from(raw.inodes_count.get()) == inodes;
        check("inodes_count", raw.inodes_count.get().into(), &inodes.to_string(), inodes_hold)?;
        let free_blocks = join(raw.free_blocks_count_lo.get(), hi(raw.free_blocks_count_hi.get()));
        Ok(Self { blocks, free_blocks, first_data_block, clusters_per_group, groups })
    }
}

/// Checks blocks, clusters and inodes per group; returns the clusters.
fn per_group(raw: &RawSuperblock, sizes: &Sizes) -> Result<u32> {
    let bitmap_bits = sizes.block_bytes * 8;
    let blocks = raw.blocks_per_group.get();
    let clusters = blocks / sizes.cluster_blocks;
    let blocks_hold = clusters > 0
        && clusters.is_multiple_of(8)
        && clusters <= bitmap_bits
        && blocks.is_multiple_of(sizes.cluster_blocks);
    check(
        "blocks_per_group",
        blocks.into(),
        "clusters that fill whole bytes of one block of bitmap",
        blocks_hold,
    )?;
    if sizes.cluster_blocks > 1 {
        let found = raw.clusters_per_group.get();
        check("clusters_per_group", found.into(), &clusters.to_string(), found == clusters)?;
    }
    let inodes = raw.inodes_per_group.get();
    let inodes_hold = inodes >= sizes.block_bytes / u32::from(sizes.inode_bytes)
        && inodes <= bitmap_bits
        && inodes.is_multiple_of(8);
    check("inodes_per_group", inodes.into(), "a block of inodes up to a block of bitmap", inodes_hold)?;
    Ok(clusters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        let powers: Vec<_> = (1..400).filter(|number| is_power_of(*number, 7)).collect();
        assert_eq!(powers, [1, 7, 49, 343]);
        assert!(!is_power_of(0, 3));
    }
}
