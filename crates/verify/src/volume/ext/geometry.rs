//! The superblock and the group descriptors, their checksums verified.

use block::{Error, FieldValue, ReadAt, Result, read_struct, read_vec};
use extent::VolumeOffset;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use super::corrupt::CorruptExt;
use super::layout::{
    DESCRIPTOR_CHECKSUM_AT, Descriptor, MAGIC, SUPERBLOCK_AT, Superblock, compat, incompat, ro_compat,
};
use crate::volume::Source;

/// CRC-32C with neither inversion (`ext4_chksum`).
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 with the polynomial 0xa001.
fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| if crc & 1 != 0 { crc >> 1 ^ 0xa001 } else { crc >> 1 })
    })
}

/// A volume whose superblock makes sense.
pub(super) struct Geometry {
    pub(super) source: Source,
    pub(super) raw: Superblock,
    pub(super) block_bytes: u64,
    /// Blocks of a cluster: 1 without `bigalloc`.
    pub(super) ratio: u64,
    pub(super) blocks_count: u64,
    pub(super) first_block: u64,
    pub(super) blocks_per_group: u64,
    pub(super) groups: u64,
    pub(super) inodes_per_group: u64,
    pub(super) inode_bytes: u64,
    descriptor_bytes: u64,
    /// Where checksums of metadata start.
    pub(super) seed: u32,
}

/// A group's descriptor.
pub(super) struct Group {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
    pub(super) free_clusters: u64,
    pub(super) free_inodes: u64,
    pub(super) directories: u64,
    /// Inodes at the end of the table that were never used.
    pub(super) unused_inodes: u64,
    pub(super) block_bitmap_checksum: u32,
    pub(super) inode_bitmap_checksum: u32,
    pub(super) has_block_bitmap: bool,
    pub(super) has_inode_bitmap: bool,
}

/// Whether the volume bears the magic.
pub(in crate::volume) fn is_ext(source: &Source) -> Result<bool> {
    if source.len_bytes() < SUPERBLOCK_AT + size_of::<Superblock>() as u64 {
        return Ok(false);
    }
    let raw: Superblock = read_struct(source, VolumeOffset::new(SUPERBLOCK_AT), "ext superblock")?;
    Ok(raw.magic.get() == MAGIC)
}

fn bad(field: &str, found: impl Into<FieldValue>, wanted: impl std::fmt::Display) -> Error {
    Error::corrupt(CorruptExt::Superblock).field(field, found, wanted).at(VolumeOffset::new(SUPERBLOCK_AT))
}

fn require(
    holds: bool,
    field: &str,
    found: impl Into<FieldValue>,
    wanted: impl std::fmt::Display,
) -> Result<()> {
    if holds { Ok(()) } else { Err(bad(field, found, wanted)) }
}

fn join(lo: u32, hi: u32) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}

impl Geometry {
    pub(super) fn open(source: &Source) -> Result<Self> {
        let bytes = read_vec(source, VolumeOffset::new(SUPERBLOCK_AT), 1024, "ext superblock")?;
        let raw = Superblock::read_from_bytes(&bytes).map_err(|_| bad("length", bytes.len(), 1024))?;
        check_features(&raw)?;
        if raw.feature_ro_compat.get() & ro_compat::METADATA_CSUM != 0 {
            let computed = crc32c(!0, &bytes[..1020]);
            require(
                raw.checksum.get() == computed,
                "checksum",
                format!("{:#x}", raw.checksum),
                format!("{computed:#x}"),
            )?;
        }
        check_state(&raw)?;
        let geometry = Self::parse(source, raw)?;
        geometry.check_counts()?;
        Ok(geometry)
    }

    fn parse(source: &Source, raw: Superblock) -> Result<Self> {
        let log = raw.log_block_size.get();
        require(log <= 6, "log_block_size", log, "0 to 6")?;
        let block_bytes = 1024u64 << log;
        let log_cluster = raw.log_cluster_size.get();
        let is_bigalloc = raw.feature_ro_compat.get() & ro_compat::BIGALLOC != 0;
        let log_ratio = if is_bigalloc { log_cluster.wrapping_sub(log) } else { 0 };
        require(log_ratio <= 18, "log_cluster_size", log_cluster, "that of the block, up to 18 more")?;
        let is_64bit = raw.feature_incompat.get() & incompat::BIT64 != 0;
        let hi = if is_64bit { raw.blocks_count_hi.get() } else { 0 };
        let descriptor_bytes = if is_64bit { u64::from(raw.desc_size.get()) } else { 32 };
        require(
            descriptor_bytes == 32
                || descriptor_bytes.is_power_of_two() && (64..=1024).contains(&descriptor_bytes),
            "desc_size",
            descriptor_bytes,
            "a power of two from 64 to 1024",
        )?;
        let inode_bytes = if raw.rev_level.get() == 0 { 128 } else { u64::from(raw.inode_size.get()) };
        require(
            inode_bytes.is_power_of_two() && (128..=block_bytes).contains(&inode_bytes),
            "inode_size",
            inode_bytes,
            "a power of two from 128 to the block size",
        )?;
        let first_block = u64::from(raw.first_data_block.get());
        let blocks_count = join(raw.blocks_count_lo.get(), hi);
        let blocks_per_group = u64::from(raw.blocks_per_group.get());
        require(first_block <= 1, "first_data_block", first_block, "0 or 1")?;
        let seed = match raw.feature_incompat.get() & incompat::CSUM_SEED != 0 {
            true => raw.checksum_seed.get(),
            false => crc32c(!0, &raw.uuid),
        };
        require(
            blocks_per_group > 0 && blocks_count > first_block + 1,
            "blocks_count",
            blocks_count,
            "blocks of one group or more",
        )?;
        Ok(Self {
            source: source.clone(),
            block_bytes,
            ratio: 1 << log_ratio,
            blocks_count,
            first_block,
            blocks_per_group,
            groups: (blocks_count - first_block).div_ceil(blocks_per_group),
            inodes_per_group: u64::from(raw.inodes_per_group.get()),
            inode_bytes,
            descriptor_bytes,
            seed,
            raw,
        })
    }

    fn check_counts(&self) -> Result<()> {
        let volume_blocks = self.source.len_bytes() / self.block_bytes;
        require(
            self.blocks_count <= volume_blocks,
            "blocks_count",
            self.blocks_count,
            format!("{volume_blocks} at most"),
        )?;
        let bits = self.block_bytes * 8;
        let clusters = self.blocks_per_group / self.ratio;
        require(
            clusters > 0
                && clusters <= bits
                && clusters.is_multiple_of(8)
                && self.blocks_per_group.is_multiple_of(self.ratio),
            "blocks_per_group",
            self.blocks_per_group,
            "clusters in whole bytes of one block",
        )?;
        require(
            self.inodes_per_group > 0
                && self.inodes_per_group <= bits
                && self.inodes_per_group.is_multiple_of(8),
            "inodes_per_group",
            self.inodes_per_group,
            "whole bytes of one block",
        )?;
        let inodes = self.groups.checked_mul(self.inodes_per_group);
        let found = u64::from(self.raw.inodes_count.get());
        require(inodes == Some(found), "inodes_count", found, "groups times inodes_per_group")
    }

    pub(super) fn has_ro_compat(&self, bit: u32) -> bool {
        self.raw.feature_ro_compat.get() & bit != 0
    }

    pub(super) fn has_incompat(&self, bit: u32) -> bool {
        self.raw.feature_incompat.get() & bit != 0
    }

    /// Whether metadata have checksums.
    pub(super) fn has_checksums(&self) -> bool {
        self.has_ro_compat(ro_compat::METADATA_CSUM)
    }

    /// Where a block lies.
    pub(super) fn at(&self, block: u64) -> VolumeOffset {
        VolumeOffset::new(block.saturating_mul(self.block_bytes))
    }

    /// Whether these are blocks of groups.
    pub(super) fn holds(&self, first: u64, count: u64) -> bool {
        first >= self.first_block && first.checked_add(count).is_some_and(|end| end <= self.blocks_count)
    }

    /// Reads a block.
    pub(super) fn read(&self, block: u64, what: &str) -> Result<Vec<u8>> {
        read_vec(&self.source, self.at(block), self.block_bytes, what)
    }

    pub(super) fn group_start(&self, group: u64) -> u64 {
        self.first_block + group * self.blocks_per_group
    }

    /// Blocks of a group.
    pub(super) fn group_blocks(&self, group: u64) -> u64 {
        self.blocks_per_group.min(self.blocks_count - self.group_start(group))
    }

    /// The cluster of a block, counted from the first one.
    pub(super) fn cluster_of(&self, block: u64) -> u64 {
        (block - self.first_block) / self.ratio
    }

    /// All clusters.
    pub(super) fn clusters(&self) -> u64 {
        (self.blocks_count - self.first_block).div_ceil(self.ratio)
    }

    /// Blocks of an inode table.
    pub(super) fn table_blocks(&self) -> u64 {
        (self.inodes_per_group * self.inode_bytes).div_ceil(self.block_bytes)
    }

    /// The first number of an inode that is no file system's own.
    pub(super) fn first_user_inode(&self) -> u64 {
        if self.raw.rev_level.get() == 0 { 11 } else { u64::from(self.raw.first_ino.get()) }
    }

    /// Whether an inode is the file system's own, and has no name.
    pub(super) fn is_own(&self, inode: u64) -> bool {
        let with = |holds: bool, number: u32| holds && inode == u64::from(number);
        let quota = self.has_ro_compat(ro_compat::QUOTA);
        let compat = self.raw.feature_compat.get();
        inode != 2 && inode < self.first_user_inode()
            || with(compat & compat::HAS_JOURNAL != 0, self.raw.journal_inum.get())
            || with(quota, self.raw.usr_quota_inum.get())
            || with(quota, self.raw.grp_quota_inum.get())
            || with(quota, self.raw.prj_quota_inum.get())
            || with(compat & compat::ORPHAN_FILE != 0, self.raw.orphan_file_inum.get())
    }

    /// Whether a group begins with a superblock (`ext4_bg_has_super`).
    fn has_superblock(&self, group: u64) -> bool {
        let is_power = |base: u64| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        if self.raw.feature_compat.get() & compat::SPARSE_SUPER2 != 0 {
            return group == 0 || self.raw.backup_bgs.iter().any(|backup| u64::from(backup.get()) == group);
        }
        group <= 1 || !self.has_ro_compat(ro_compat::SPARSE_SUPER) || [3, 5, 7].into_iter().any(is_power)
    }

    /// The block that follows a group's superblock, if any.
    fn after_superblock(&self, group: u64) -> u64 {
        let own = if group == 0 { SUPERBLOCK_AT / self.block_bytes } else { self.group_start(group) };
        own.max(self.group_start(group)) + u64::from(self.has_superblock(group))
    }

    fn descriptors_per_block(&self) -> u64 {
        self.block_bytes / self.descriptor_bytes
    }

    /// The first descriptor block that `meta_bg` places.
    fn first_meta_block(&self) -> u64 {
        if self.has_incompat(incompat::META_BG) { u64::from(self.raw.first_meta_bg.get()) } else { u64::MAX }
    }

    /// What a group holds of superblocks, descriptors and room for these: first block and count.
    pub(super) fn base(&self, group: u64) -> (u64, u64) {
        let has_superblock = self.has_superblock(group);
        let start = self.after_superblock(group) - u64::from(has_superblock);
        let per_block = self.descriptors_per_block();
        let descriptors = if group / per_block >= self.first_meta_block() {
            u64::from([0, 1, per_block - 1].contains(&(group % per_block)))
        } else if has_superblock {
            let all = self.groups.div_ceil(per_block).min(self.first_meta_block());
            all + u64::from(self.raw.reserved_gdt_blocks.get())
        } else {
            0
        };
        (start, u64::from(has_superblock) + descriptors)
    }

    fn descriptor_at(&self, group: u64) -> VolumeOffset {
        let per_block = self.descriptors_per_block();
        let index = group / per_block;
        let block = match index >= self.first_meta_block() {
            true => self.after_superblock(index * per_block),
            false => self.after_superblock(0) + index,
        };
        VolumeOffset::new(self.at(block).get() + group % per_block * self.descriptor_bytes)
    }

    /// Reads a descriptor and verifies its checksum.
    pub(super) fn group(&self, group: u64) -> Result<Group> {
        let at = self.descriptor_at(group);
        let bytes = read_vec(&self.source, at, self.descriptor_bytes, "ext group descriptor")?;
        let error = || Error::corrupt(CorruptExt::GroupDescriptor { group }).at(at);
        let mut padded = [0; size_of::<Descriptor>()];
        let len = bytes.len().min(padded.len());
        padded[..len].copy_from_slice(&bytes[..len]);
        let raw = Descriptor::read_from_bytes(&padded).map_err(|_| error())?;
        let number =
            u32::try_from(group).map_err(|_| error().field("number", group, "32 bits"))?.to_le_bytes();
        let (before, after) = (&bytes[..DESCRIPTOR_CHECKSUM_AT], &bytes[DESCRIPTOR_CHECKSUM_AT + 2..]);
        let has_gdt = self.has_ro_compat(ro_compat::GDT_CSUM);
        let computed = if self.has_checksums() {
            let crc = [&number[..], before, &[0; 2], after].into_iter().fold(self.seed, crc32c).to_le_bytes();
            Some(u16::from_le_bytes([crc[0], crc[1]]))
        } else if has_gdt {
            Some([&self.raw.uuid[..], &number, before, after].into_iter().fold(0xffff, crc16))
        } else {
            None
        };
        if let Some(computed) = computed.filter(|computed| *computed != raw.checksum.get()) {
            return Err(error().field("checksum", FieldValue::hex(raw.checksum), format!("{computed:#x}")));
        }
        let is_large = self.descriptor_bytes >= 64;
        let wide = |lo: U32, hi: U32| join(lo.get(), if is_large { hi.get() } else { 0 });
        let count =
            |lo: U16, hi: U16| u64::from(lo.get()) | if is_large { u64::from(hi.get()) << 16 } else { 0 };
        let sum =
            |lo: U16, hi: U16| u32::from(lo.get()) | if is_large { u32::from(hi.get()) << 16 } else { 0 };
        let flag = |bit: u16| computed.is_some() && raw.flags.get() & bit != 0;
        let parsed = Group {
            block_bitmap: wide(raw.block_bitmap_lo, raw.block_bitmap_hi),
            inode_bitmap: wide(raw.inode_bitmap_lo, raw.inode_bitmap_hi),
            inode_table: wide(raw.inode_table_lo, raw.inode_table_hi),
            free_clusters: count(raw.free_blocks_count_lo, raw.free_blocks_count_hi),
            free_inodes: count(raw.free_inodes_count_lo, raw.free_inodes_count_hi),
            directories: count(raw.used_dirs_count_lo, raw.used_dirs_count_hi),
            unused_inodes: if computed.is_some() {
                count(raw.itable_unused_lo, raw.itable_unused_hi)
            } else {
                0
            },
            block_bitmap_checksum: sum(raw.block_bitmap_csum_lo, raw.block_bitmap_csum_hi),
            inode_bitmap_checksum: sum(raw.inode_bitmap_csum_lo, raw.inode_bitmap_csum_hi),
            has_block_bitmap: !flag(2),
            has_inode_bitmap: !flag(1),
        };
        for (field, block, count) in [
            ("block_bitmap", parsed.block_bitmap, 1),
            ("inode_bitmap", parsed.inode_bitmap, 1),
            ("inode_table", parsed.inode_table, self.table_blocks()),
        ] {
            if !self.holds(block, count) {
                return Err(error().field(field, format!("block {block}"), "within the volume"));
            }
        }
        if parsed.unused_inodes > self.inodes_per_group {
            return Err(error().field(
                "itable_unused",
                parsed.unused_inodes,
                format!("{} at most", self.inodes_per_group),
            ));
        }
        Ok(parsed)
    }

    /// Whether a bitmap's checksum is that of its descriptor, which may keep half of it.
    pub(super) fn check_bitmap(
        &self,
        what: &'static str,
        group: u64,
        bytes: &[u8],
        stored: u32,
    ) -> Result<()> {
        if !self.has_checksums() {
            return Ok(());
        }
        let mask = if self.descriptor_bytes >= 64 { u32::MAX } else { 0xffff };
        let computed = crc32c(self.seed, bytes) & mask;
        if computed == stored {
            return Ok(());
        }
        let error = Error::corrupt(CorruptExt::Bitmap { what, group });
        Err(error.field("checksum", FieldValue::hex(stored), format!("{computed:#x}")))
    }
}

fn check_features(raw: &Superblock) -> Result<()> {
    for (name, found, known) in [
        ("compat", raw.feature_compat.get(), compat::KNOWN),
        ("incompat", raw.feature_incompat.get(), incompat::KNOWN),
        ("ro_compat", raw.feature_ro_compat.get(), ro_compat::KNOWN),
    ] {
        if found & !known != 0 {
            let error = Error::unsupported("ext superblock");
            return Err(error.field(
                format!("feature_{name}"),
                FieldValue::hex(found),
                format!("bits of {known:#x}"),
            ));
        }
    }
    if raw.rev_level.get() > 1 {
        return Err(Error::unsupported("ext superblock").field("rev_level", raw.rev_level, "0 or 1"));
    }
    Ok(())
}

/// Closed cleanly, without anything that a mount would do first.
fn check_state(raw: &Superblock) -> Result<()> {
    let state = raw.state.get();
    require(state & 1 != 0 && state & !1 == 0, "state", format!("{state:#x}"), "1: closed cleanly")?;
    let recover = raw.feature_incompat.get() & incompat::RECOVER;
    require(recover == 0, "journal", "to be replayed", "empty")?;
    let orphans = raw.feature_ro_compat.get() & ro_compat::ORPHAN_PRESENT;
    require(orphans == 0, "orphan file", "in use", "empty")?;
    require(raw.last_orphan.get() == 0, "last_orphan", raw.last_orphan, 0)?;
    require(raw.error_count.get() == 0, "error_count", raw.error_count, 0)
}
