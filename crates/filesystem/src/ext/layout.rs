//! The on-disk structs of ext2/3/4, all little-endian.
//!
//! Source: `fs/ext4/ext4.h` and `fs/ext4/ext4_extents.h` of Linux 6.18, whose field names these are without
//! their prefixes; `Documentation/filesystems/ext4`. "Block" is the file system's block.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the primary superblock lies, in bytes, whatever the block size.
pub(super) const SUPERBLOCK_OFFSET: u64 = 1024;
/// `s_magic`.
pub(super) const SUPERBLOCK_MAGIC: u16 = 0xef53;

/// `struct ext4_super_block`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    /// Inodes: groups times `inodes_per_group`.
    pub(super) inodes_count: U32,
    /// Blocks, including those before `first_data_block`.
    pub(super) blocks_count_lo: U32,
    pub(super) r_blocks_count_lo: U32,
    /// Free blocks; updated lazily.
    pub(super) free_blocks_count_lo: U32,
    pub(super) free_inodes_count: U32,
    /// First block of group 0: 1 with blocks of 1 KiB (0 with bigalloc), else 0.
    pub(super) first_data_block: U32,
    /// Block size is 2^(10 + this): 0 to 6.
    pub(super) log_block_size: U32,
    /// Cluster size likewise; equal to `log_block_size` without bigalloc.
    pub(super) log_cluster_size: U32,
    pub(super) blocks_per_group: U32,
    pub(super) clusters_per_group: U32,
    pub(super) inodes_per_group: U32,
    pub(super) mtime: U32,
    pub(super) wtime: U32,
    pub(super) mnt_count: U16,
    pub(super) max_mnt_count: U16,
    pub(super) magic: U16,
    /// Bits of [`state`].
    pub(super) state: U16,
    pub(super) errors: U16,
    pub(super) minor_rev_level: U16,
    pub(super) lastcheck: U32,
    pub(super) checkinterval: U32,
    /// 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites.
    pub(super) creator_os: U32,
    /// 0: the fields from `first_ino` on mean nothing. 1: they do.
    pub(super) rev_level: U32,
    pub(super) def_resuid: U16,
    pub(super) def_resgid: U16,
    pub(super) first_ino: U32,
    /// Bytes: a power of two from 128 to the block size.
    pub(super) inode_size: U16,
    pub(super) block_group_nr: U16,
    pub(super) feature_compat: U32,
    pub(super) feature_incompat: U32,
    pub(super) feature_ro_compat: U32,
    pub(super) uuid: [u8; 16],
    /// Padded with NUL.
    pub(super) volume_name: [u8; 16],
    pub(super) last_mounted: [u8; 64],
    pub(super) algorithm_usage_bitmap: U32,
    pub(super) prealloc_blocks: u8,
    pub(super) prealloc_dir_blocks: u8,
    /// Blocks after each copy of the group descriptors, kept for growing.
    pub(super) reserved_gdt_blocks: U16,
    pub(super) journal_uuid: [u8; 16],
    /// The journal's inode, 0 if it is on another device.
    pub(super) journal_inum: U32,
    pub(super) journal_dev: U32,
    /// First of the chain of inodes deleted but open, or being truncated; 0 if none.
    pub(super) last_orphan: U32,
    pub(super) hash_seed: [U32; 4],
    pub(super) def_hash_version: u8,
    pub(super) jnl_backup_type: u8,
    /// Bytes of a group descriptor under `64bit`: a power of two from 64 to 1024.
    pub(super) desc_size: U16,
    pub(super) default_mount_opts: U32,
    /// First block of group descriptors that is placed by `meta_bg`.
    pub(super) first_meta_bg: U32,
    pub(super) mkfs_time: U32,
    /// Copy of the journal inode's `block` and size.
    pub(super) jnl_blocks: [U32; 17],
    /// The upper halves, under `64bit`.
    pub(super) blocks_count_hi: U32,
    pub(super) r_blocks_count_hi: U32,
    pub(super) free_blocks_count_hi: U32,
    pub(super) min_extra_isize: U16,
    pub(super) want_extra_isize: U16,
    pub(super) flags: U32,
    pub(super) raid_stride: U16,
    pub(super) mmp_update_interval: U16,
    /// The block of multiple-mount protection.
    pub(super) mmp_block: U64,
    pub(super) raid_stripe_width: U32,
    pub(super) log_groups_per_flex: u8,
    /// 1: CRC-32C.
    pub(super) checksum_type: u8,
    pub(super) encryption_level: u8,
    pub(super) reserved_pad: u8,
    pub(super) kbytes_written: U64,
    pub(super) snapshot_inum: U32,
    pub(super) snapshot_id: U32,
    pub(super) snapshot_r_blocks_count: U64,
    pub(super) snapshot_list: U32,
    /// Errors since the last check.
    pub(super) error_count: U32,
    pub(super) error_records: [u8; 0x68],
    pub(super) mount_opts: [u8; 64],
    pub(super) usr_quota_inum: U32,
    pub(super) grp_quota_inum: U32,
    pub(super) overhead_clusters: U32,
    /// The groups with backups under `sparse_super2`, 0 for none.
    pub(super) backup_bgs: [U32; 2],
    pub(super) encrypt_algos: [u8; 4],
    pub(super) encrypt_pw_salt: [u8; 16],
    pub(super) lpf_ino: U32,
    pub(super) prj_quota_inum: U32,
    /// CRC-32C of the UUID under which the volume was made, under `metadata_csum_seed`.
    pub(super) checksum_seed: U32,
    pub(super) times_hi: [u8; 8],
    pub(super) encoding: U16,
    pub(super) encoding_flags: U16,
    pub(super) orphan_file_inum: U32,
    pub(super) reserved: [U32; 94],
    /// CRC-32C of all before it.
    pub(super) checksum: U32,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == 1024);
    assert!(offset_of!(RawSuperblock, magic) == 0x38);
    assert!(offset_of!(RawSuperblock, uuid) == 0x68);
    assert!(offset_of!(RawSuperblock, journal_inum) == 0xe0);
    assert!(offset_of!(RawSuperblock, desc_size) == 0xfe);
    assert!(offset_of!(RawSuperblock, blocks_count_hi) == 0x150);
    assert!(offset_of!(RawSuperblock, mmp_block) == 0x168);
    assert!(offset_of!(RawSuperblock, checksum_type) == 0x175);
    assert!(offset_of!(RawSuperblock, error_count) == 0x194);
    assert!(offset_of!(RawSuperblock, mount_opts) == 0x200);
    assert!(offset_of!(RawSuperblock, backup_bgs) == 0x24c);
    assert!(offset_of!(RawSuperblock, checksum_seed) == 0x270);
    assert!(offset_of!(RawSuperblock, orphan_file_inum) == 0x280);
    assert!(offset_of!(RawSuperblock, checksum) == 0x3fc);
};

/// What of the superblock changes whenever the file system is used.
pub(super) mod witness {
    use std::mem::offset_of;

    use super::RawSuperblock;

    /// Where fields lie, and how long they are: times of mount and of writing, count of mounts, state, time of the last
    /// check, first orphan, bytes written, count of errors.
    pub(in super::super) const SUPERBLOCK_FIELDS: [(u64, u64); 7] = [
        (offset_of!(RawSuperblock, mtime) as u64, 10),
        (offset_of!(RawSuperblock, state) as u64, 2),
        (offset_of!(RawSuperblock, lastcheck) as u64, 4),
        (offset_of!(RawSuperblock, last_orphan) as u64, 4),
        (offset_of!(RawSuperblock, kbytes_written) as u64, 8),
        (offset_of!(RawSuperblock, error_count) as u64, 4),
        (offset_of!(RawSuperblock, times_hi) as u64, 8),
    ];

    const _: () = {
        assert!(offset_of!(RawSuperblock, mtime) + 4 == offset_of!(RawSuperblock, wtime));
        assert!(offset_of!(RawSuperblock, wtime) + 4 == offset_of!(RawSuperblock, mnt_count));
    };
}

/// Bits of `s_state`.
pub(super) mod state {
    /// Unmounted cleanly, or journaled.
    pub(in super::super) const VALID: u16 = 0x1;
    /// The driver met an error.
    pub(in super::super) const ERROR: u16 = 0x2;
    /// A fast commit was being replayed.
    pub(in super::super) const FC_REPLAY: u16 = 0x20;
}

/// `struct ext4_group_desc`; the first 32 bytes alone without `64bit`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawGroupDescriptor {
    /// Block of the block bitmap.
    pub(super) block_bitmap_lo: U32,
    /// Block of the inode bitmap.
    pub(super) inode_bitmap_lo: U32,
    /// First block of the inode table.
    pub(super) inode_table_lo: U32,
    /// Free clusters.
    pub(super) free_blocks_count_lo: U16,
    pub(super) free_inodes_count_lo: U16,
    pub(super) used_dirs_count_lo: U16,
    /// Bits of [`group_flags`].
    pub(super) flags: U16,
    pub(super) exclude_bitmap_lo: U32,
    pub(super) block_bitmap_csum_lo: U16,
    pub(super) inode_bitmap_csum_lo: U16,
    /// Inodes at the end of the table that were never used.
    pub(super) itable_unused_lo: U16,
    /// CRC-16, or the lower half of a CRC-32C.
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

/// Bytes of a descriptor without `64bit`.
pub(super) const DESCRIPTOR_BYTES_SMALL: u32 = 32;
/// Bytes of a descriptor's known fields under `64bit`.
pub(super) const DESCRIPTOR_BYTES_LARGE: u32 = 64;
/// Where a descriptor's own checksum lies.
pub(super) const DESCRIPTOR_CHECKSUM_AT: usize = offset_of!(RawGroupDescriptor, checksum);

const _: () = {
    assert!(size_of::<RawGroupDescriptor>() == 64);
    assert!(DESCRIPTOR_CHECKSUM_AT == 0x1e);
    assert!(offset_of!(RawGroupDescriptor, block_bitmap_hi) == 0x20);
    assert!(offset_of!(RawGroupDescriptor, block_bitmap_csum_hi) == 0x38);
};

/// Bits of `bg_flags`.
pub(super) mod group_flags {
    /// No inode is in use and the inode bitmap was never written.
    pub(in super::super) const INODE_UNINIT: u16 = 0x1;
    /// Only the group's own metadata are in use and the block bitmap was never written.
    pub(in super::super) const BLOCK_UNINIT: u16 = 0x2;
}

/// The part of `struct ext4_inode` that is used here: the 128 bytes of every revision, then the fields of
/// larger inodes up to the checksum.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawInode {
    pub(super) mode: U16,
    pub(super) uid_lo: U16,
    pub(super) size_lo: U32,
    pub(super) atime: U32,
    pub(super) ctime: U32,
    pub(super) mtime: U32,
    pub(super) dtime: U32,
    pub(super) gid_lo: U16,
    pub(super) links_count: U16,
    /// Units of 512 bytes, or blocks (`HUGE_FILE_FL`).
    pub(super) blocks_lo: U32,
    /// Bits of [`inode_flags`].
    pub(super) flags: U32,
    pub(super) version: U32,
    /// Block pointers, the root of an extent tree, a symbolic link's target, or inline data.
    pub(super) block: [u8; 60],
    pub(super) generation: U32,
    /// Block of extended attributes, 0 if none.
    pub(super) file_acl_lo: U32,
    pub(super) size_hi: U32,
    pub(super) obso_faddr: U32,
    pub(super) blocks_hi: U16,
    pub(super) file_acl_hi: U16,
    pub(super) uid_hi: U16,
    pub(super) gid_hi: U16,
    /// Lower half of the CRC-32C, under `metadata_csum`.
    pub(super) checksum_lo: U16,
    pub(super) reserved: U16,
}

/// The fields after the first 128 bytes, in inodes larger than that.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawInodeExtra {
    /// Bytes after the first 128 that are fields.
    pub(super) extra_isize: U16,
    /// Upper half of the checksum, if `extra_isize` covers it.
    pub(super) checksum_hi: U16,
    pub(super) ctime_extra: U32,
    pub(super) mtime_extra: U32,
    pub(super) atime_extra: U32,
    pub(super) crtime: U32,
    pub(super) crtime_extra: U32,
    pub(super) version_hi: U32,
    /// The project, if `extra_isize` covers it.
    pub(super) projid: U32,
}

/// Bytes of the inode of the first revision.
pub(super) const INODE_BYTES_SMALL: u16 = 128;
/// Where the halves of an inode's checksum lie.
pub(super) const INODE_CHECKSUM_LO_AT: usize = offset_of!(RawInode, checksum_lo);
/// See [`INODE_CHECKSUM_LO_AT`].
pub(super) const INODE_CHECKSUM_HI_AT: usize =
    INODE_BYTES_SMALL as usize + offset_of!(RawInodeExtra, checksum_hi);

const _: () = {
    assert!(size_of::<RawInode>() == 128);
    assert!(offset_of!(RawInode, block) == 0x28);
    assert!(offset_of!(RawInode, file_acl_lo) == 0x68);
    assert!(size_of::<RawInodeExtra>() == 32);
    assert!(INODE_CHECKSUM_LO_AT == 0x7c);
    assert!(INODE_CHECKSUM_HI_AT == 0x82);
};

/// Bits of `i_flags`.
pub(super) mod inode_flags {
    /// Must not be changed: boot loaders keep files that they find by their blocks so.
    pub(in super::super) const IMMUTABLE: u32 = 0x10;
    pub(in super::super) const ENCRYPT: u32 = 0x800;
    /// A directory with a hash tree.
    pub(in super::super) const INDEX: u32 = 0x1000;
    pub(in super::super) const HUGE_FILE: u32 = 0x4_0000;
    pub(in super::super) const EXTENTS: u32 = 0x8_0000;
    pub(in super::super) const VERITY: u32 = 0x10_0000;
    pub(in super::super) const EA_INODE: u32 = 0x20_0000;
    pub(in super::super) const INLINE_DATA: u32 = 0x1000_0000;
}

/// Values of `i_mode`'s upper four bits.
pub(super) mod file_type {
    pub(in super::super) const FIFO: u16 = 0x1000;
    pub(in super::super) const CHARACTER: u16 = 0x2000;
    pub(in super::super) const DIRECTORY: u16 = 0x4000;
    pub(in super::super) const BLOCK: u16 = 0x6000;
    pub(in super::super) const REGULAR: u16 = 0x8000;
    pub(in super::super) const SYMLINK: u16 = 0xa000;
    pub(in super::super) const SOCKET: u16 = 0xc000;
    pub(in super::super) const MASK: u16 = 0xf000;
}

/// Numbers of inodes with a meaning of their own.
pub(super) mod special_inode {
    /// Its block map lists bad blocks.
    pub(in super::super) const BAD_BLOCKS: u32 = 1;
    /// The root directory.
    pub(in super::super) const ROOT: u32 = 2;
    /// Its block map lists the blocks reserved for growing the group descriptors.
    pub(in super::super) const RESIZE: u32 = 7;
    /// The first inode that is a user's file, unless the superblock says otherwise (`EXT4_GOOD_OLD_FIRST_INO`).
    pub(in super::super) const FIRST_USER: u32 = 11;
}

/// `struct ext4_extent_header`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtentHeader {
    pub(super) magic: U16,
    /// Entries in use.
    pub(super) entries: U16,
    /// Entries there is room for.
    pub(super) max: U16,
    /// Levels below: 0 to 5.
    pub(super) depth: U16,
    pub(super) generation: U32,
}

/// `eh_magic`.
pub(super) const EXTENT_MAGIC: u16 = 0xf30a;
/// The deepest tree that the kernel accepts (`EXT4_MAX_EXTENT_DEPTH`).
pub(super) const EXTENT_DEPTH_MAX: u16 = 5;

/// `struct ext4_extent_idx`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtentIndex {
    /// First logical block below.
    pub(super) block: U32,
    /// Block of the node below.
    pub(super) leaf_lo: U32,
    pub(super) leaf_hi: U16,
    pub(super) unused: U16,
}

/// `struct ext4_extent`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtent {
    /// First logical block.
    pub(super) block: U32,
    /// Blocks; above [`EXTENT_WRITTEN_MAX`] the extent is unwritten and that much shorter.
    pub(super) len: U16,
    pub(super) start_hi: U16,
    pub(super) start_lo: U32,
}

/// The longest written extent (`EXT_INIT_MAX_LEN`).
pub(super) const EXTENT_WRITTEN_MAX: u16 = 32768;
/// The longest unwritten extent (`EXT_UNWRITTEN_MAX_LEN`).
pub(super) const EXTENT_UNWRITTEN_MAX: u16 = EXTENT_WRITTEN_MAX - 1;
/// Bytes of the header, of an index and of an extent alike.
pub(super) const EXTENT_ENTRY_BYTES: usize = 12;

const _: () = {
    assert!(size_of::<RawExtentHeader>() == EXTENT_ENTRY_BYTES);
    assert!(size_of::<RawExtentIndex>() == EXTENT_ENTRY_BYTES);
    assert!(size_of::<RawExtent>() == EXTENT_ENTRY_BYTES);
};

/// The start of `struct ext4_dir_entry_2`; the name follows. Without `filetype` the length of the name has 16 bits,
/// of which the upper 8 are zeros in `file_type`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDirectoryEntry {
    /// Inode, 0 if the entry is not in use.
    pub(super) inode: U32,
    /// Bytes up to the next entry, a multiple of 4.
    pub(super) rec_len: U16,
    /// Bytes of the name.
    pub(super) name_len: u8,
    pub(super) file_type: u8,
}

/// Bytes of an entry before its name.
pub(super) const DIRECTORY_ENTRY_HEAD_BYTES: usize = size_of::<RawDirectoryEntry>();
/// Bytes of the smallest entry (`ext4_dir_rec_len` of a name of one byte).
pub(super) const DIRECTORY_ENTRY_BYTES_MIN: usize = 12;

/// `struct ext4_dir_entry_tail`: the last bytes of a block of entries under `metadata_csum`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDirectoryTail {
    /// An entry not in use, of the tail's length, with a name of 0 bytes.
    pub(super) entry: RawDirectoryEntry,
    /// CRC-32C of the block before the tail.
    pub(super) checksum: U32,
}

/// `struct dx_countlimit`, in the place of the first entry of a node of a hash tree.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIndexCounts {
    /// Entries there is room for.
    pub(super) limit: U16,
    /// Entries in use, this one included.
    pub(super) count: U16,
}

/// Where the entries of a hash tree's root begin (`struct dx_root`).
pub(super) const INDEX_ROOT_ENTRIES_AT: usize = 32;
/// Where those of its other nodes begin (`struct dx_node`).
pub(super) const INDEX_NODE_ENTRIES_AT: usize = 8;
/// Bytes of an entry of a hash tree (`struct dx_entry`).
pub(super) const INDEX_ENTRY_BYTES: usize = 8;

/// `struct dx_tail`, behind the room for entries.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIndexTail {
    pub(super) reserved: U32,
    /// CRC-32C of the node up to its last entry in use, of `reserved` and of four zeros.
    pub(super) checksum: U32,
}

/// `struct ext4_xattr_entry`; the name follows.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawAttribute {
    /// Bytes of the name.
    pub(super) name_len: u8,
    /// Which prefix the name has.
    pub(super) name_index: u8,
    /// Where the value lies, in bytes from the first entry.
    pub(super) value_offs: U16,
    /// The inode that holds the value, 0 if it is here.
    pub(super) value_inum: U32,
    /// Bytes of the value.
    pub(super) value_size: U32,
    pub(super) hash: U32,
}

/// `EXT4_XATTR_MAGIC`, before the attributes within an inode.
pub(super) const ATTRIBUTES_MAGIC: u32 = 0xea02_0000;
/// `EXT4_XATTR_INDEX_SYSTEM`: the prefix `system.`.
pub(super) const ATTRIBUTE_INDEX_SYSTEM: u8 = 7;
/// Before the attributes in a block of their own: `struct ext4_xattr_header`, whose magic number comes first.
pub(super) const ATTRIBUTES_HEADER_BYTES: usize = 32;
/// What the names of attributes begin with, by `e_name_index` (`EXT4_XATTR_INDEX_*`). The two of lists are whole names.
pub(super) const ATTRIBUTE_PREFIXES: [(u8, &[u8]); 7] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
    (ATTRIBUTE_INDEX_SYSTEM, b"system."),
    (8, b"system.richacl"),
];
/// The first four bytes of an access-control list as ext keeps it (`EXT4_ACL_VERSION`).
pub(super) const ACL_VERSION: u32 = 1;
/// The rest of the name of the attribute that continues inline data (`EXT4_XATTR_SYSTEM_DATA`).
pub(super) const ATTRIBUTE_NAME_DATA: &[u8] = b"data";
/// Bytes of the parent's number before the entries of an inline directory (`EXT4_INLINE_DOTDOT_SIZE`).
pub(super) const INLINE_PARENT_BYTES: usize = 4;

const _: () = {
    assert!(size_of::<RawDirectoryEntry>() == 8);
    assert!(size_of::<RawDirectoryTail>() == 12);
    assert!(size_of::<RawIndexTail>() == 8);
    assert!(size_of::<RawAttribute>() == 16);
};

/// `struct v2_disk_dqheader` and `struct v2_disk_dqinfo`, at the start of a quota file (`fs/quota/quotaio_v2.h`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawQuotaHeader {
    /// One of [`quota::MAGICS`].
    pub(super) magic: U32,
    /// 1: entries are [`RawQuotaEntry`].
    pub(super) version: U32,
    pub(super) bgrace: U32,
    pub(super) igrace: U32,
    pub(super) flags: U32,
    /// Blocks of the file, of 1 KiB.
    pub(super) blocks: U32,
    pub(super) free_blk: U32,
    pub(super) free_entry: U32,
}

/// `struct v2r1_disk_dqblk`: what an owner uses. All zeros if there is none.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawQuotaEntry {
    pub(super) id: U32,
    pub(super) pad: U32,
    pub(super) ihardlimit: U64,
    pub(super) isoftlimit: U64,
    pub(super) curinodes: U64,
    pub(super) bhardlimit: U64,
    pub(super) bsoftlimit: U64,
    /// Bytes that are occupied.
    pub(super) curspace: U64,
    pub(super) btime: U64,
    pub(super) itime: U64,
}

const _: () = assert!(size_of::<RawQuotaHeader>() == 32 && size_of::<RawQuotaEntry>() == 72);

/// Of quota files (`fs/quota/quota_tree.h`, `quotaio_v2.h`): a tree of blocks of 1 KiB, each of 256 numbers of blocks, by the
/// bytes of an owner's number from the highest on; then blocks of entries.
pub(super) mod quota {
    /// Of users, groups and projects (`V2_INITQMAGICS`).
    pub(in super::super) const MAGICS: [u32; 3] = [0xd9c0_1f11, 0xd9c0_1927, 0xd9c0_3f14];
    pub(in super::super) const VERSION: u32 = 1;
    pub(in super::super) const BLOCK_BYTES: u64 = 1024;
    /// The block of the tree's root (`QT_TREEOFF`).
    pub(in super::super) const ROOT_BLOCK: u32 = 1;
    /// Bytes of a block of entries before the first (`struct qt_disk_dqdbheader`).
    pub(in super::super) const ENTRIES_AT: usize = 16;
}

/// The start of `struct mmp_struct`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawMmp {
    pub(super) magic: U32,
    pub(super) seq: U32,
}

/// `mmp_magic`.
pub(super) const MMP_MAGIC: u32 = 0x004d_4d50;
/// `mmp_seq` while nobody uses the file system.
pub(super) const MMP_SEQ_CLEAN: u32 = 0xff4d_4d50;
/// `mmp_seq` while a check of the file system runs.
pub(super) const MMP_SEQ_FSCK: u32 = 0xe24d_4d50;
