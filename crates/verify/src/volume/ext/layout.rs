//! The on-disk structs of ext2/3/4 that the check reads, written down once more on purpose: what edits a volume must not
//! share its understanding with what judges the result.
//!
//! Source: `Documentation/filesystems/ext4` of Linux (*Super Block*, *Block Group Descriptors*, *Index Nodes*, *Extent
//! Tree*, *Directory Entries*, *Extended Attributes*), whose names these are without their prefixes. Little-endian.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Where the superblock lies.
pub(super) const SUPERBLOCK_AT: u64 = 1024;
/// `s_magic`.
pub(super) const MAGIC: u16 = 0xef53;

/// `struct ext4_super_block`.
#[derive(Clone, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Superblock {
    pub(super) inodes_count: U32,
    pub(super) blocks_count_lo: U32,
    pub(super) r_blocks_count_lo: U32,
    pub(super) free_blocks_count_lo: U32,
    pub(super) free_inodes_count: U32,
    pub(super) first_data_block: U32,
    pub(super) log_block_size: U32,
    pub(super) log_cluster_size: U32,
    pub(super) blocks_per_group: U32,
    pub(super) clusters_per_group: U32,
    pub(super) inodes_per_group: U32,
    pub(super) times: [U32; 2],
    pub(super) mount_counts: [U16; 2],
    pub(super) magic: U16,
    /// 1: closed cleanly; 2: an error was met.
    pub(super) state: U16,
    pub(super) errors: U16,
    pub(super) minor_rev_level: U16,
    pub(super) check_times: [U32; 2],
    pub(super) creator_os: U32,
    /// 0: no field from `first_ino` on means anything.
    pub(super) rev_level: U32,
    pub(super) def_res: [U16; 2],
    pub(super) first_ino: U32,
    pub(super) inode_size: U16,
    pub(super) block_group_nr: U16,
    pub(super) feature_compat: U32,
    pub(super) feature_incompat: U32,
    pub(super) feature_ro_compat: U32,
    pub(super) uuid: [u8; 16],
    pub(super) volume_name: [u8; 16],
    pub(super) last_mounted: [u8; 64],
    pub(super) algorithm_usage_bitmap: U32,
    pub(super) prealloc: [u8; 2],
    pub(super) reserved_gdt_blocks: U16,
    pub(super) journal_uuid: [u8; 16],
    pub(super) journal_inum: U32,
    pub(super) journal_dev: U32,
    /// The first of a list of inodes that were deleted while open.
    pub(super) last_orphan: U32,
    pub(super) hash_seed: [U32; 4],
    pub(super) def_hash_version: u8,
    pub(super) jnl_backup_type: u8,
    pub(super) desc_size: U16,
    pub(super) default_mount_opts: U32,
    pub(super) first_meta_bg: U32,
    pub(super) mkfs_time: U32,
    pub(super) jnl_blocks: [U32; 17],
    pub(super) blocks_count_hi: U32,
    pub(super) r_blocks_count_hi: U32,
    pub(super) free_blocks_count_hi: U32,
    pub(super) extra_isizes: [U16; 2],
    pub(super) flags: U32,
    pub(super) raid_stride: U16,
    pub(super) mmp_interval: U16,
    pub(super) mmp_block: U64,
    pub(super) raid_stripe_width: U32,
    pub(super) log_groups_per_flex: u8,
    pub(super) checksum_type: u8,
    pub(super) reserved_176: [u8; 2],
    pub(super) kbytes_written: U64,
    pub(super) snapshots: [u8; 20],
    pub(super) error_count: U32,
    pub(super) error_records: [u8; 0x68],
    pub(super) mount_opts: [u8; 64],
    pub(super) usr_quota_inum: U32,
    pub(super) grp_quota_inum: U32,
    pub(super) overhead_clusters: U32,
    /// Groups with a copy of the superblock under `sparse_super2`.
    pub(super) backup_bgs: [U32; 2],
    pub(super) encrypt: [u8; 20],
    pub(super) lpf_ino: U32,
    pub(super) prj_quota_inum: U32,
    /// Under `metadata_csum_seed`.
    pub(super) checksum_seed: U32,
    pub(super) reserved_274: [u8; 12],
    pub(super) orphan_file_inum: U32,
    pub(super) reserved_284: [u8; 376],
    /// CRC-32C of all before it.
    pub(super) checksum: U32,
}

/// Bits of `s_feature_compat`.
pub(super) mod compat {
    pub(in crate::volume) const HAS_JOURNAL: u32 = 0x4;
    pub(in crate::volume) const SPARSE_SUPER2: u32 = 0x200;
    pub(in crate::volume) const ORPHAN_FILE: u32 = 0x1000;
    /// What is understood here: also dir_prealloc, imagic, ext_attr, resize_inode, dir_index, fast_commit, stable_inodes.
    pub(in crate::volume) const KNOWN: u32 = 0x3f | 0x200 | 0x400 | 0x800 | 0x1000;
}

/// Bits of `s_feature_incompat`.
pub(super) mod incompat {
    pub(in crate::volume) const FILETYPE: u32 = 0x2;
    pub(in crate::volume) const RECOVER: u32 = 0x4;
    pub(in crate::volume) const META_BG: u32 = 0x10;
    pub(in crate::volume) const BIT64: u32 = 0x80;
    pub(in crate::volume) const MMP: u32 = 0x100;
    pub(in crate::volume) const CSUM_SEED: u32 = 0x2000;
    /// What is understood here: also extents, flex_bg, ea_inode, largedir, inline_data, encrypt, casefold.
    pub(in crate::volume) const KNOWN: u32 = 0x2
        | 0x4
        | 0x10
        | 0x40
        | 0x80
        | 0x100
        | 0x200
        | 0x400
        | 0x2000
        | 0x4000
        | 0x8000
        | 0x1_0000
        | 0x2_0000;
}

/// Bits of `s_feature_ro_compat`.
pub(super) mod ro_compat {
    pub(in crate::volume) const SPARSE_SUPER: u32 = 0x1;
    pub(in crate::volume) const HUGE_FILE: u32 = 0x8;
    pub(in crate::volume) const GDT_CSUM: u32 = 0x10;
    pub(in crate::volume) const DIR_NLINK: u32 = 0x20;
    pub(in crate::volume) const QUOTA: u32 = 0x100;
    pub(in crate::volume) const BIGALLOC: u32 = 0x200;
    pub(in crate::volume) const METADATA_CSUM: u32 = 0x400;
    pub(in crate::volume) const ORPHAN_PRESENT: u32 = 0x1_0000;
    /// What is understood here: also large_file, btree_dir, extra_isize, read-only, project, verity.
    pub(in crate::volume) const KNOWN: u32 = 0x1
        | 0x2
        | 0x4
        | 0x8
        | 0x10
        | 0x20
        | 0x40
        | 0x100
        | 0x200
        | 0x400
        | 0x1000
        | 0x2000
        | 0x8000
        | 0x1_0000;
}

/// `struct ext4_group_desc`; without `64bit` its first 32 bytes.
#[derive(Clone, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) block_bitmap_lo: U32,
    pub(super) inode_bitmap_lo: U32,
    pub(super) inode_table_lo: U32,
    pub(super) free_blocks_count_lo: U16,
    pub(super) free_inodes_count_lo: U16,
    pub(super) used_dirs_count_lo: U16,
    /// 1: the inode bitmap was never written; 2: nor the block bitmap.
    pub(super) flags: U16,
    pub(super) exclude_bitmap_lo: U32,
    pub(super) block_bitmap_csum_lo: U16,
    pub(super) inode_bitmap_csum_lo: U16,
    pub(super) itable_unused_lo: U16,
    pub(super) checksum: U16,
    pub(super) block_bitmap_hi: U32,
    pub(super) inode_bitmap_hi: U32,
    pub(super) inode_table_hi: U32,
    pub(super) free_blocks_count_hi: U16,
    pub(super) free_inodes_count_hi: U16,
    pub(super) used_dirs_count_hi: U16,
    pub(super) itable_unused_hi: U16,
    pub(super) exclude_bitmap_hi: U32,
    pub(super) block_bitmap_csum_hi: U16,
    pub(super) inode_bitmap_csum_hi: U16,
    pub(super) reserved: U32,
}

/// Where a descriptor's checksum lies.
pub(super) const DESCRIPTOR_CHECKSUM_AT: usize = 0x1e;

/// The first 128 bytes of `struct ext4_inode`.
#[derive(Clone, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Inode {
    pub(super) mode: U16,
    pub(super) uid_lo: U16,
    pub(super) size_lo: U32,
    pub(super) times: [U32; 3],
    pub(super) dtime: U32,
    pub(super) gid_lo: U16,
    pub(super) links_count: U16,
    pub(super) blocks_lo: U32,
    pub(super) flags: U32,
    pub(super) version: U32,
    pub(super) block: [u8; 60],
    pub(super) generation: U32,
    pub(super) file_acl_lo: U32,
    pub(super) size_hi: U32,
    pub(super) faddr: U32,
    pub(super) blocks_hi: U16,
    pub(super) file_acl_hi: U16,
    pub(super) uid_hi: U16,
    pub(super) gid_hi: U16,
    pub(super) checksum_lo: U16,
    pub(super) reserved: U16,
}

/// Where fields of an inode lie.
pub(super) mod inode_at {
    pub(in crate::volume) const BLOCKS_LO: usize = 0x1c;
    pub(in crate::volume) const BLOCK: usize = 0x28;
    pub(in crate::volume) const FILE_ACL_LO: usize = 0x68;
    pub(in crate::volume) const BLOCKS_HI: usize = 0x74;
    pub(in crate::volume) const FILE_ACL_HI: usize = 0x76;
    pub(in crate::volume) const CHECKSUM_LO: usize = 0x7c;
    pub(in crate::volume) const SMALL_END: usize = 0x80;
    pub(in crate::volume) const CHECKSUM_HI: usize = 0x82;
}

/// Bits of `i_flags`.
pub(super) mod flags {
    pub(in crate::volume) const INDEX: u32 = 0x1000;
    pub(in crate::volume) const HUGE_FILE: u32 = 0x4_0000;
    pub(in crate::volume) const EXTENTS: u32 = 0x8_0000;
    pub(in crate::volume) const EA_INODE: u32 = 0x20_0000;
    pub(in crate::volume) const INLINE_DATA: u32 = 0x1000_0000;
}

/// `struct ext4_extent_header`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ExtentHeader {
    /// 0xf30a.
    pub(super) magic: U16,
    pub(super) entries: U16,
    pub(super) max: U16,
    pub(super) depth: U16,
    pub(super) generation: U32,
}

/// `struct ext4_extent_idx`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ExtentIndex {
    pub(super) block: U32,
    pub(super) leaf_lo: U32,
    pub(super) leaf_hi: U16,
    pub(super) unused: U16,
}

/// `struct ext4_extent`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Extent {
    pub(super) block: U32,
    /// Above 32768: unwritten, and that much less.
    pub(super) len: U16,
    pub(super) start_hi: U16,
    pub(super) start_lo: U32,
}

/// The start of `struct ext4_dir_entry_2`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct DirectoryEntry {
    pub(super) inode: U32,
    pub(super) rec_len: U16,
    pub(super) name_len: u8,
    pub(super) file_type: u8,
}

/// `struct ext4_xattr_header`, of a block.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AttributesHeader {
    /// 0xea020000.
    pub(super) magic: U32,
    pub(super) refcount: U32,
    pub(super) blocks: U32,
    pub(super) hash: U32,
    pub(super) checksum: U32,
    pub(super) reserved: [U32; 3],
}

/// `struct ext4_xattr_entry`; the name follows.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AttributeEntry {
    pub(super) name_len: u8,
    pub(super) name_index: u8,
    pub(super) value_offs: U16,
    pub(super) value_inum: U32,
    pub(super) value_size: U32,
    pub(super) hash: U32,
}

/// `h_magic`, of a block and within an inode.
pub(super) const ATTRIBUTES_MAGIC: u32 = 0xea02_0000;

const _: () = {
    assert!(size_of::<Superblock>() == 1024);
    assert!(offset_of!(Superblock, uuid) == 0x68);
    assert!(offset_of!(Superblock, last_orphan) == 0xe8);
    assert!(offset_of!(Superblock, blocks_count_hi) == 0x150);
    assert!(offset_of!(Superblock, mmp_block) == 0x168);
    assert!(offset_of!(Superblock, error_count) == 0x194);
    assert!(offset_of!(Superblock, backup_bgs) == 0x24c);
    assert!(offset_of!(Superblock, checksum_seed) == 0x270);
    assert!(offset_of!(Superblock, orphan_file_inum) == 0x280);
    assert!(offset_of!(Superblock, checksum) == 0x3fc);
    assert!(size_of::<Descriptor>() == 64);
    assert!(offset_of!(Descriptor, checksum) == DESCRIPTOR_CHECKSUM_AT);
    assert!(size_of::<Inode>() == inode_at::SMALL_END);
    assert!(offset_of!(Inode, blocks_lo) == inode_at::BLOCKS_LO);
    assert!(offset_of!(Inode, block) == inode_at::BLOCK);
    assert!(offset_of!(Inode, file_acl_lo) == inode_at::FILE_ACL_LO);
    assert!(offset_of!(Inode, blocks_hi) == inode_at::BLOCKS_HI);
    assert!(offset_of!(Inode, file_acl_hi) == inode_at::FILE_ACL_HI);
    assert!(offset_of!(Inode, checksum_lo) == inode_at::CHECKSUM_LO);
    assert!(size_of::<ExtentHeader>() == 12);
    assert!(size_of::<ExtentIndex>() == 12);
    assert!(size_of::<Extent>() == 12);
    assert!(size_of::<AttributesHeader>() == 32);
    assert!(size_of::<AttributeEntry>() == 16);
};
