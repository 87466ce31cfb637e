//! The on-disk structs of Btrfs, all little-endian.
//!
//! Source: "On-disk Format" and "Btree items" of <https://btrfs.readthedocs.io>; names are those of
//! `include/uapi/linux/btrfs_tree.h` of Linux 6.18 without their prefixes. "Logical" addresses count bytes of the space that chunks map
//! to the device.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the superblock lies, and then its copies (`btrfs_sb_offset`).
pub(super) const SUPERBLOCKS_AT: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// `BTRFS_SUPER_INFO_SIZE`.
pub(super) const SUPERBLOCK_BYTES: u64 = 4096;
/// What lies before is for boot loaders (`BTRFS_DEVICE_RANGE_RESERVED`).
pub(super) const RESERVED_BYTES: u64 = 1 << 20;
/// `BTRFS_MAGIC`.
pub(super) const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// `BTRFS_STRIPE_LEN`.
pub(super) const STRIPE_BYTES: u64 = 64 << 10;
/// A checksum, whatever its kind, at the beginning of what it covers.
pub(super) const CHECKSUM_BYTES: usize = 32;

/// `struct btrfs_super_block`, as far as it is used.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawSuperblock {
    pub(super) csum: [u8; CHECKSUM_BYTES],
    pub(super) fsid: [u8; 16],
    /// Its own place.
    pub(super) bytenr: U64,
    /// Bits of [`super_flag`].
    pub(super) flags: U64,
    pub(super) magic: [u8; 8],
    pub(super) generation: U64,
    pub(super) root: U64,
    pub(super) chunk_root: U64,
    pub(super) log_root: U64,
    pub(super) log_root_transid: U64,
    pub(super) total_bytes: U64,
    pub(super) bytes_used: U64,
    pub(super) root_dir_objectid: U64,
    pub(super) num_devices: U64,
    pub(super) sectorsize: U32,
    pub(super) nodesize: U32,
    pub(super) leafsize: U32,
    pub(super) stripesize: U32,
    pub(super) sys_chunk_array_size: U32,
    pub(super) chunk_root_generation: U64,
    pub(super) compat_flags: U64,
    /// Bits of [`compat_ro`].
    pub(super) compat_ro_flags: U64,
    /// Bits of [`incompat`].
    pub(super) incompat_flags: U64,
    pub(super) csum_type: U16,
    pub(super) root_level: u8,
    pub(super) chunk_root_level: u8,
    pub(super) log_root_level: u8,
    pub(super) dev_item: RawDevice,
    pub(super) label: [u8; 256],
    pub(super) cache_generation: U64,
    pub(super) uuid_tree_generation: U64,
    pub(super) metadata_uuid: [u8; 16],
    pub(super) reserved: [u8; 224],
    pub(super) sys_chunk_array: [u8; 2048],
    pub(super) rest: [u8; 1237],
}

const _: () = assert!(size_of::<RawSuperblock>() as u64 == SUPERBLOCK_BYTES);
const _: () = assert!(
    offset_of!(RawSuperblock, sectorsize) == 144
        && offset_of!(RawSuperblock, csum_type) == 196
        && offset_of!(RawSuperblock, label) == 299
        && offset_of!(RawSuperblock, metadata_uuid) == 571
        && offset_of!(RawSuperblock, sys_chunk_array) == 811
);

/// Bits of the superblock's `flags`.
pub(super) mod super_flag {
    pub(crate) const WRITTEN: u64 = 1 << 0;
    pub(crate) const RELOC: u64 = 1 << 1;
    /// The kernel met an error, and stopped to write.
    pub(crate) const ERROR: u64 = 1 << 2;
    /// Other volumes stand on it.
    pub(crate) const SEEDING: u64 = 1 << 32;
    /// Metadata without data (`btrfs-image`), in two forms.
    pub(crate) const METADUMP: u64 = 3 << 33;
    /// A change of all metadata (of the UUID, of checksums, to another tree) was not finished.
    pub(crate) const CHANGING: u64 = 0b11 << 35 | 0b111 << 38;
}

/// Bits of the superblock's `incompat_flags`.
pub(super) mod incompat {
    pub(crate) const MIXED_BACKREF: u64 = 1 << 0;
    pub(crate) const DEFAULT_SUBVOL: u64 = 1 << 1;
    pub(crate) const MIXED_GROUPS: u64 = 1 << 2;
    pub(crate) const COMPRESS_LZO: u64 = 1 << 3;
    pub(crate) const COMPRESS_ZSTD: u64 = 1 << 4;
    pub(crate) const BIG_METADATA: u64 = 1 << 5;
    pub(crate) const EXTENDED_IREF: u64 = 1 << 6;
    pub(crate) const RAID56: u64 = 1 << 7;
    pub(crate) const SKINNY_METADATA: u64 = 1 << 8;
    pub(crate) const NO_HOLES: u64 = 1 << 9;
    pub(crate) const METADATA_UUID: u64 = 1 << 10;
    pub(crate) const RAID1C34: u64 = 1 << 11;
    pub(crate) const ZONED: u64 = 1 << 12;
    pub(crate) const EXTENT_TREE_V2: u64 = 1 << 13;
    pub(crate) const RAID_STRIPE_TREE: u64 = 1 << 14;
    pub(crate) const SIMPLE_QUOTA: u64 = 1 << 16;
    /// Those that change nothing which is not understood here.
    pub(crate) const KNOWN: u64 = MIXED_BACKREF
        | DEFAULT_SUBVOL
        | MIXED_GROUPS
        | COMPRESS_LZO
        | COMPRESS_ZSTD
        | BIG_METADATA
        | EXTENDED_IREF
        | RAID56
        | SKINNY_METADATA
        | NO_HOLES
        | METADATA_UUID
        | RAID1C34
        | SIMPLE_QUOTA;
}

/// Bits of the superblock's `compat_ro_flags`.
pub(super) mod compat_ro {
    pub(crate) const FREE_SPACE_TREE: u64 = 1 << 0;
    pub(crate) const FREE_SPACE_TREE_VALID: u64 = 1 << 1;
    pub(crate) const VERITY: u64 = 1 << 2;
    pub(crate) const BLOCK_GROUP_TREE: u64 = 1 << 3;
    pub(crate) const KNOWN: u64 = FREE_SPACE_TREE | FREE_SPACE_TREE_VALID | VERITY | BLOCK_GROUP_TREE;
}

/// Numbers of trees, and of what is no file.
pub(super) mod object {
    pub(crate) const ROOT_TREE: u64 = 1;
    pub(crate) const EXTENT_TREE: u64 = 2;
    pub(crate) const CHUNK_TREE: u64 = 3;
    pub(crate) const DEVICE_TREE: u64 = 4;
    pub(crate) const FS_TREE: u64 = 5;
    pub(crate) const BLOCK_GROUP_TREE: u64 = 11;
    pub(crate) const RAID_STRIPE_TREE: u64 = 12;
    pub(crate) const TREE_LOG: u64 = 6_u64.wrapping_neg();
    pub(crate) const TREE_RELOC: u64 = 8_u64.wrapping_neg();
    /// The first number of subvolumes, and of files in them.
    pub(crate) const FIRST_FREE: u64 = 256;
    pub(crate) const LAST_FREE: u64 = 256_u64.wrapping_neg();
    /// All chunks bear it.
    pub(crate) const FIRST_CHUNK: u64 = 256;
    pub(crate) const DEVICES: u64 = 1;
    /// What a balance bears that was begun, and not ended.
    pub(crate) const BALANCE: u64 = 4_u64.wrapping_neg();
    /// What the replacement of a device bears.
    pub(crate) const REPLACE: u64 = 0;
}

/// Types of items: what a key is of.
pub(super) mod item {
    pub(crate) const INODE: u8 = 1;
    pub(crate) const INODE_REF: u8 = 12;
    pub(crate) const INODE_EXTREF: u8 = 13;
    pub(crate) const XATTR: u8 = 24;
    pub(crate) const DIR_INDEX: u8 = 96;
    pub(crate) const EXTENT_DATA: u8 = 108;
    pub(crate) const ROOT: u8 = 132;
    pub(crate) const ROOT_REF: u8 = 156;
    pub(crate) const EXTENT: u8 = 168;
    pub(crate) const METADATA: u8 = 169;
    pub(crate) const EXTENT_OWNER_REF: u8 = 172;
    pub(crate) const TREE_BLOCK_REF: u8 = 176;
    pub(crate) const EXTENT_DATA_REF: u8 = 178;
    pub(crate) const SHARED_BLOCK_REF: u8 = 182;
    pub(crate) const SHARED_DATA_REF: u8 = 184;
    pub(crate) const BLOCK_GROUP: u8 = 192;
    pub(crate) const DEVICE_EXTENT: u8 = 204;
    pub(crate) const DEVICE: u8 = 216;
    pub(crate) const CHUNK: u8 = 228;
    pub(crate) const TEMPORARY: u8 = 248;
    pub(crate) const REPLACE: u8 = 250;
}

/// `struct btrfs_disk_key`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawKey {
    pub(super) objectid: U64,
    pub(super) type_: u8,
    pub(super) offset: U64,
}

const _: () = assert!(size_of::<RawKey>() == 17);

/// `struct btrfs_header`: what every block of a tree begins with.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) csum: [u8; CHECKSUM_BYTES],
    pub(super) fsid: [u8; 16],
    pub(super) bytenr: U64,
    pub(super) flags: U64,
    pub(super) chunk_tree_uuid: [u8; 16],
    pub(super) generation: U64,
    pub(super) owner: U64,
    pub(super) nritems: U32,
    pub(super) level: u8,
}

const _: () = assert!(size_of::<RawHeader>() == 101);

/// `struct btrfs_item`: an entry of a leaf. Its data lie `offset` bytes behind the header.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawItem {
    pub(super) key: RawKey,
    pub(super) offset: U32,
    pub(super) size: U32,
}

const _: () = assert!(size_of::<RawItem>() == 25);

/// `struct btrfs_key_ptr`: an entry of a block that is no leaf.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawPointer {
    pub(super) key: RawKey,
    pub(super) blockptr: U64,
    pub(super) generation: U64,
}

const _: () = assert!(size_of::<RawPointer>() == 33);

/// `struct btrfs_dev_item`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDevice {
    pub(super) devid: U64,
    pub(super) total_bytes: U64,
    pub(super) bytes_used: U64,
    pub(super) io_align: U32,
    pub(super) io_width: U32,
    pub(super) sector_size: U32,
    pub(super) type_: U64,
    pub(super) generation: U64,
    pub(super) start_offset: U64,
    pub(super) dev_group: U32,
    pub(super) seek_speed: u8,
    pub(super) bandwidth: u8,
    pub(super) uuid: [u8; 16],
    pub(super) fsid: [u8; 16],
}

const _: () = assert!(size_of::<RawDevice>() == 98);

/// `struct btrfs_chunk` without its stripes.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawChunk {
    pub(super) length: U64,
    pub(super) owner: U64,
    pub(super) stripe_len: U64,
    /// Bits of [`group`].
    pub(super) type_: U64,
    pub(super) io_align: U32,
    pub(super) io_width: U32,
    pub(super) sector_size: U32,
    pub(super) num_stripes: U16,
    pub(super) sub_stripes: U16,
}

const _: () = assert!(size_of::<RawChunk>() == 48);

/// `struct btrfs_stripe`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawStripe {
    pub(super) devid: U64,
    pub(super) offset: U64,
    pub(super) dev_uuid: [u8; 16],
}

const _: () = assert!(size_of::<RawStripe>() == 32);

/// Bits of the type of a chunk and of its block group.
pub(super) mod group {
    pub(crate) const DATA: u64 = 1 << 0;
    pub(crate) const SYSTEM: u64 = 1 << 1;
    pub(crate) const METADATA: u64 = 1 << 2;
    pub(crate) const RAID0: u64 = 1 << 3;
    pub(crate) const RAID1: u64 = 1 << 4;
    pub(crate) const DUP: u64 = 1 << 5;
    pub(crate) const RAID10: u64 = 1 << 6;
    pub(crate) const RAID5: u64 = 1 << 7;
    pub(crate) const RAID6: u64 = 1 << 8;
    pub(crate) const RAID1C3: u64 = 1 << 9;
    pub(crate) const RAID1C4: u64 = 1 << 10;
    pub(crate) const CONTENTS: u64 = DATA | SYSTEM | METADATA;
}

/// `struct btrfs_dev_extent`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDeviceExtent {
    pub(super) chunk_tree: U64,
    pub(super) chunk_objectid: U64,
    pub(super) chunk_offset: U64,
    pub(super) length: U64,
    pub(super) chunk_tree_uuid: [u8; 16],
}

const _: () = assert!(size_of::<RawDeviceExtent>() == 48);

/// `struct btrfs_dev_replace_item`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawReplace {
    pub(super) src_devid: U64,
    pub(super) cursor_left: U64,
    pub(super) cursor_right: U64,
    pub(super) cont_reading_from_srcdev_mode: U64,
    /// Of [`replace`].
    pub(super) replace_state: U64,
    pub(super) time_started: U64,
    pub(super) time_stopped: U64,
    pub(super) num_write_errors: U64,
    pub(super) num_uncorrectable_read_errors: U64,
}

const _: () = assert!(size_of::<RawReplace>() == 72);

/// States in which no device is being replaced (`BTRFS_IOCTL_DEV_REPLACE_STATE_*`).
pub(super) mod replace {
    pub(crate) const NEVER_STARTED: u64 = 0;
    pub(crate) const FINISHED: u64 = 2;
    pub(crate) const CANCELED: u64 = 3;
}

/// `struct btrfs_block_group_item`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawBlockGroup {
    pub(super) used: U64,
    pub(super) chunk_objectid: U64,
    /// Bits of [`group`].
    pub(super) flags: U64,
}

const _: () = assert!(size_of::<RawBlockGroup>() == 24);

/// `struct btrfs_extent_item` without what follows.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtent {
    pub(super) refs: U64,
    pub(super) generation: U64,
    /// Bits of [`extent_flag`].
    pub(super) flags: U64,
}

const _: () = assert!(size_of::<RawExtent>() == 24);

/// Bits of an extent's `flags`.
pub(super) mod extent_flag {
    pub(crate) const DATA: u64 = 1 << 0;
    pub(crate) const TREE_BLOCK: u64 = 1 << 1;
    /// References of what the block names bear the block, and not its tree.
    pub(crate) const FULL_BACKREF: u64 = 1 << 8;
}

/// `struct btrfs_tree_block_info`: in front of the references of a tree's block whose item is no `METADATA_ITEM`.
pub(super) const TREE_BLOCK_INFO_BYTES: usize = 18;

/// `struct btrfs_extent_data_ref`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDataReference {
    pub(super) root: U64,
    pub(super) objectid: U64,
    pub(super) offset: U64,
    pub(super) count: U32,
}

const _: () = assert!(size_of::<RawDataReference>() == 28);

/// `struct btrfs_root_item`, as long as all versions have it.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawRoot {
    pub(super) inode: [u8; 160],
    pub(super) generation: U64,
    pub(super) root_dirid: U64,
    pub(super) bytenr: U64,
    pub(super) byte_limit: U64,
    pub(super) bytes_used: U64,
    pub(super) last_snapshot: U64,
    pub(super) flags: U64,
    /// 0 once it is deleted, until all of it is.
    pub(super) refs: U32,
    /// How far deleting it got.
    pub(super) drop_progress: RawKey,
    pub(super) drop_level: u8,
    pub(super) level: u8,
}

const _: () = assert!(size_of::<RawRoot>() == 239);

/// `struct btrfs_timespec`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawTime {
    pub(super) sec: U64,
    pub(super) nsec: U32,
}

const _: () = assert!(size_of::<RawTime>() == 12);

/// `struct btrfs_dir_item`, of directories and of extended attributes. The name follows, then the value.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDirectoryItem {
    /// That of an inode, or of the root of a subvolume.
    pub(super) location: RawKey,
    pub(super) transid: U64,
    pub(super) data_len: U16,
    pub(super) name_len: U16,
    pub(super) type_: u8,
}

const _: () = assert!(size_of::<RawDirectoryItem>() == 30);

/// `struct btrfs_inode_item`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawInode {
    pub(super) generation: U64,
    pub(super) transid: U64,
    pub(super) size: U64,
    pub(super) nbytes: U64,
    pub(super) block_group: U64,
    pub(super) nlink: U32,
    pub(super) uid: U32,
    pub(super) gid: U32,
    pub(super) mode: U32,
    pub(super) rdev: U64,
    pub(super) flags: U64,
    pub(super) sequence: U64,
    pub(super) reserved: [u8; 32],
    /// When it was read, when its attributes changed, when its contents did, and when it was made.
    pub(super) times: [RawTime; 4],
}

const _: () = assert!(size_of::<RawInode>() == 160);

/// The front of `struct btrfs_file_extent_item`: all that an inline extent has before its bytes.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawFileExtent {
    pub(super) generation: U64,
    /// How many bytes it is once it is decompressed.
    pub(super) ram_bytes: U64,
    pub(super) compression: u8,
    pub(super) encryption: u8,
    pub(super) other_encoding: U16,
    /// Of [`file_extent`].
    pub(super) type_: u8,
}

const _: () = assert!(size_of::<RawFileExtent>() == 21);

/// What follows it, unless it is inline.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawFileExtentPlace {
    /// Where the extent lies; 0 for a hole.
    pub(super) disk_bytenr: U64,
    pub(super) disk_num_bytes: U64,
    /// Where in the extent the file's part begins, once it is decompressed.
    pub(super) offset: U64,
    /// Of the file.
    pub(super) num_bytes: U64,
}

const _: () = assert!(size_of::<RawFileExtentPlace>() == 32);

/// The most bytes of a compressed extent, before and after it is decompressed (`BTRFS_MAX_COMPRESSED`, `BTRFS_MAX_UNCOMPRESSED`).
pub(super) const COMPRESSED_BYTES_MAX: u64 = 128 << 10;
/// The directory that stands in a snapshot where a subvolume is in what it is of (`BTRFS_EMPTY_SUBVOL_DIR_OBJECTID`).
pub(super) const EMPTY_SUBVOLUME: u64 = 2;

/// Types of file extents.
pub(super) mod file_extent {
    pub(crate) const INLINE: u8 = 0;
    pub(crate) const REGULAR: u8 = 1;
    pub(crate) const PREALLOCATED: u8 = 2;
}

/// Of a file's mode, as in all of Unix.
pub(super) mod mode {
    pub(crate) const MASK: u32 = 0o170_000;
    pub(crate) const REGULAR: u32 = 0o100_000;
    pub(crate) const DIRECTORY: u32 = 0o040_000;
    pub(crate) const SYMLINK: u32 = 0o120_000;
    pub(crate) const PIPE: u32 = 0o010_000;
    pub(crate) const CHARACTER: u32 = 0o020_000;
    pub(crate) const BLOCK: u32 = 0o060_000;
    pub(crate) const SOCKET: u32 = 0o140_000;
}
