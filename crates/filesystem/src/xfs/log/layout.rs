//! The on-disk structs of the log: records and the headers of operations are big-endian, items are in the order of the machine that
//! wrote them, which is little-endian here.
//!
//! Source: `fs/xfs/libxfs/xfs_log_format.h` of Linux 6.18, whose names these are without their prefixes.

use std::mem::offset_of;

use zerocopy::big_endian;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `BBSIZE`: the log counts in these, whatever the sectors are.
pub(super) const SECTOR_BYTES: usize = 512;
/// `XLOG_HEADER_MAGIC_NUM`.
pub(super) const LOG_MAGIC: u32 = 0xfeed_babe;
/// `XFS_TRANS_HEADER_MAGIC`, as it lies there.
pub(super) const TRANSACTION_MAGIC: [u8; 4] = *b"NART";
/// Of `version`: a record has one sector of headers (`XLOG_VERSION_1`), as many volumes of version 4 of the format have it.
pub(super) const VERSION_1: u32 = 1;
/// Of `version`: a record may have more than one sector of headers (`XLOG_VERSION_2`).
pub(super) const VERSION_2: u32 = 2;
/// Of `fmt`: items are little-endian (`XLOG_FMT_LINUX_LE`).
pub(super) const LITTLE_ENDIAN: u32 = 1;
/// The client that unmounts (`XFS_LOG`).
pub(super) const LOG_CLIENT: u8 = 0xaa;

/// `struct xlog_rec_header`, in the first sector of a record. On machines of 64 bits it is 4 bytes longer.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawLogRecord {
    pub(super) magicno: big_endian::U32,
    pub(super) cycle: big_endian::U32,
    pub(super) version: big_endian::U32,
    pub(super) len: big_endian::U32,
    pub(super) lsn: big_endian::U64,
    pub(super) tail_lsn: big_endian::U64,
    pub(super) crc: U32,
    pub(super) prev_block: big_endian::U32,
    pub(super) num_logops: big_endian::U32,
    /// The first words of the sectors behind the headers, which have the number of the cycle instead.
    pub(super) cycle_data: [big_endian::U32; 64],
    pub(super) fmt: big_endian::U32,
    pub(super) fs_uuid: [u8; 16],
    pub(super) size: big_endian::U32,
}

const _: () = assert!(size_of::<RawLogRecord>() == 324 && offset_of!(RawLogRecord, crc) == 32);

/// `struct xlog_rec_ext_header`, in each further sector of headers.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawFurtherHeader {
    pub(super) cycle: big_endian::U32,
    pub(super) cycle_data: [big_endian::U32; 64],
}

const _: () = assert!(size_of::<RawFurtherHeader>() == 260);

/// `struct xlog_op_header`, before what is logged.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawOperation {
    /// The transaction.
    pub(super) tid: big_endian::U32,
    pub(super) len: big_endian::U32,
    pub(super) clientid: u8,
    /// Bits of [`operation`].
    pub(super) flags: u8,
    pub(super) res2: U16,
}

const _: () = assert!(size_of::<RawOperation>() == 12 && offset_of!(RawOperation, flags) == 9);

/// Bits of an operation's `flags`.
pub(super) mod operation {
    pub(in super::super) const START_TRANS: u8 = 0x01;
    pub(in super::super) const COMMIT_TRANS: u8 = 0x02;
    pub(in super::super) const WAS_CONT_TRANS: u8 = 0x08;
    pub(in super::super) const UNMOUNT_TRANS: u8 = 0x20;
}

/// `struct xfs_trans_header`, the first that is logged of a transaction.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawTransactionHeader {
    pub(super) magic: [u8; 4],
    pub(super) type_: U32,
    pub(super) tid: U32,
    pub(super) num_items: U32,
}

const _: () = assert!(size_of::<RawTransactionHeader>() == 16);

/// What all items begin with.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawItem {
    /// One of [`item`].
    pub(super) type_: U16,
    /// How many regions it has, the first included.
    pub(super) size: U16,
}

const _: () = assert!(size_of::<RawItem>() == 4);

/// Values of an item's `type_`.
pub(super) mod item {
    /// Extents that are to be freed.
    pub(in super::super) const EFI: u16 = 0x1236;
    /// Extents that were freed.
    pub(in super::super) const EFD: u16 = 0x1237;
    pub(in super::super) const IUNLINK: u16 = 0x1238;
    pub(in super::super) const INODE: u16 = 0x123b;
    pub(in super::super) const BUF: u16 = 0x123c;
    pub(in super::super) const DQUOT: u16 = 0x123d;
    pub(in super::super) const QUOTAOFF: u16 = 0x123e;
    pub(in super::super) const ICREATE: u16 = 0x123f;
    /// Changes of the reverse map. Intents and what is done of them take turns from here on.
    pub(in super::super) const RUI: u16 = 0x1240;
    /// Of reference counts.
    pub(in super::super) const CUI: u16 = 0x1242;
    /// Of extents of inodes.
    pub(in super::super) const BUI: u16 = 0x1244;
    /// The last of them: of attributes and of files that exchange extents, and what was done of the latter.
    pub(in super::super) const XMD: u16 = 0x1249;
}

/// `struct xfs_buf_log_format` without its map, of which each bit stands for [`BUFFER_CHUNK_BYTES`].
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawBufferItem {
    pub(super) item: RawItem,
    /// Bits of [`buffer`].
    pub(super) flags: U16,
    /// In sectors of the log.
    pub(super) len: U16,
    pub(super) blkno: U64,
    /// How many words of 32 bits the map has.
    pub(super) map_size: U32,
}

const _: () = assert!(size_of::<RawBufferItem>() == 20 && offset_of!(RawBufferItem, blkno) == 8);

/// `XFS_BLF_CHUNK`.
pub(super) const BUFFER_CHUNK_BYTES: usize = 128;

/// Bits of a buffer item's `flags`.
pub(super) mod buffer {
    pub(in super::super) const INODE_BUF: u16 = 1;
    pub(in super::super) const CANCEL: u16 = 2;
}

/// `struct xfs_inode_log_format`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawInodeItem {
    pub(super) item: RawItem,
    /// Bits of [`inode_field`].
    pub(super) fields: U32,
    pub(super) asize: U16,
    pub(super) dsize: U16,
    pub(super) pad: U32,
    pub(super) ino: U64,
    /// Of a device, its number.
    pub(super) rdev: U32,
    pub(super) pad_u: [u8; 12],
    /// Where the inodes around it lie, in sectors of the log.
    pub(super) blkno: U64,
    pub(super) len: U32,
    /// Where it lies among them, in bytes.
    pub(super) boffset: U32,
}

const _: () = assert!(size_of::<RawInodeItem>() == 56 && offset_of!(RawInodeItem, blkno) == 40);

/// Bits of an inode item's `fields`: data, extents and root of each fork.
pub(super) mod inode_field {
    pub(in super::super) const DBROOT: u32 = 0x008;
    pub(in super::super) const DEV: u32 = 0x010;
    pub(in super::super) const DATA: u32 = 0x002 | 0x004 | DBROOT;
    pub(in super::super) const ABROOT: u32 = 0x100;
    pub(in super::super) const ATTRIBUTES: u32 = 0x040 | 0x080 | ABROOT;
}

/// `struct xfs_log_dinode`: [`RawInode`](crate::xfs::layout::RawInode) as the machine has it.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawLogInode {
    pub(super) magic: U16,
    pub(super) mode: U16,
    pub(super) version: u8,
    pub(super) format: u8,
    pub(super) onlink: U16,
    pub(super) uid: U32,
    pub(super) gid: U32,
    pub(super) nlink: U32,
    pub(super) projid: [U16; 2],
    pub(super) big_nextents: U64,
    pub(super) times: [U64; 3],
    pub(super) size: U64,
    pub(super) nblocks: U64,
    pub(super) extsize: U32,
    pub(super) nextents: U32,
    pub(super) anextents: U16,
    pub(super) forkoff: u8,
    pub(super) aformat: u8,
    pub(super) dmevmask: U32,
    pub(super) dmstate: U16,
    pub(super) flags: U16,
    pub(super) gen_: U32,
    pub(super) next_unlinked: U32,
    pub(super) crc: U32,
    pub(super) changecount: U64,
    pub(super) lsn: U64,
    pub(super) flags2: U64,
    pub(super) cowextsize: U32,
    pub(super) pad2: [u8; 12],
    pub(super) crtime: U64,
    pub(super) ino: U64,
    pub(super) uuid: [u8; 16],
}

const _: () = assert!(size_of::<RawLogInode>() == 176 && offset_of!(RawLogInode, forkoff) == 82);

/// Of [`RawLogInode`] of versions 1 and 2.
pub(super) const LOG_INODE_2_BYTES: usize = offset_of!(RawLogInode, next_unlinked);

const _: () = assert!(LOG_INODE_2_BYTES == 96);

/// What all intents begin with, and what is done of them: `struct xfs_efi_log_format_64` and `xfs_efd_log_format_64` without their
/// extents, for one.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIntent {
    pub(super) item: RawItem,
    pub(super) nextents: U32,
    /// Of what is done, that of the intent.
    pub(super) id: U64,
}

const _: () = assert!(size_of::<RawIntent>() == 16);

/// `struct xfs_extent_64`, of what is to be freed, and `struct xfs_phys_extent`, of what is counted, with its flags for padding.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtent {
    pub(super) start: U64,
    pub(super) len: U32,
    pub(super) pad: U32,
}

const _: () = assert!(size_of::<RawExtent>() == 16);

/// `struct xfs_map_extent`, of what is mapped or recorded.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawMapping {
    pub(super) owner: U64,
    pub(super) start: U64,
    pub(super) startoff: U64,
    pub(super) len: U32,
    pub(super) flags: U32,
}

const _: () = assert!(size_of::<RawMapping>() == 32 && offset_of!(RawMapping, len) == 24);

/// `struct xfs_icreate_log`: inodes that are made. All but its beginning is big-endian.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawNewInodes {
    pub(super) item: RawItem,
    pub(super) ag: big_endian::U32,
    pub(super) agbno: big_endian::U32,
    pub(super) count: big_endian::U32,
    pub(super) isize: big_endian::U32,
    /// In blocks.
    pub(super) length: big_endian::U32,
    pub(super) gen_: big_endian::U32,
}

const _: () = assert!(size_of::<RawNewInodes>() == 28);
