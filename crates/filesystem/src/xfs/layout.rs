//! The on-disk structs of XFS of versions 4 and 5, all big-endian but the checksums.
//!
//! Structs are those of version 5. Those of version 4 are their beginnings, without checksum, place and owner; how long these are is said beside
//! them.
//!
//! Source: "XFS Algorithms & Data Structures", third edition; names are those of `fs/xfs/libxfs/xfs_format.h` of Linux 6.18 without their
//! prefixes. "Block" is the file system's block, "sector" its sector, and addresses in `blkno` count 512 bytes.

use std::mem::offset_of;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::little_endian::U32 as LeU32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What stands for no block of a group.
pub(super) const NO_BLOCK: u32 = u32::MAX;
/// What stands for no inode of a group.
pub(super) const NO_INODE: u32 = u32::MAX;
/// What stands for no inode, and for no block of the volume.
pub(super) const NONE: u64 = u64::MAX;

/// `XFS_SB_MAGIC`.
pub(super) const SUPERBLOCK_MAGIC: [u8; 4] = *b"XFSB";

/// `struct xfs_dsb`, as far as it is the same in all versions of Linux.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub(super) magicnum: [u8; 4],
    pub(super) blocksize: U32,
    pub(super) dblocks: U64,
    pub(super) rblocks: U64,
    pub(super) rextents: U64,
    pub(super) uuid: [u8; 16],
    pub(super) logstart: U64,
    pub(super) rootino: U64,
    pub(super) rbmino: U64,
    pub(super) rsumino: U64,
    pub(super) rextsize: U32,
    pub(super) agblocks: U32,
    pub(super) agcount: U32,
    pub(super) rbmblocks: U32,
    pub(super) logblocks: U32,
    /// The version in the lower four bits, and bits of [`version`].
    pub(super) versionnum: U16,
    pub(super) sectsize: U16,
    pub(super) inodesize: U16,
    pub(super) inopblock: U16,
    pub(super) fname: [u8; 12],
    pub(super) blocklog: u8,
    pub(super) sectlog: u8,
    pub(super) inodelog: u8,
    pub(super) inopblog: u8,
    pub(super) agblklog: u8,
    pub(super) rextslog: u8,
    pub(super) inprogress: u8,
    pub(super) imax_pct: u8,
    pub(super) icount: U64,
    pub(super) ifree: U64,
    pub(super) fdblocks: U64,
    pub(super) frextents: U64,
    pub(super) uquotino: U64,
    pub(super) gquotino: U64,
    pub(super) qflags: U16,
    pub(super) flags: u8,
    pub(super) shared_vn: u8,
    pub(super) inoalignmt: U32,
    pub(super) unit: U32,
    pub(super) width: U32,
    pub(super) dirblklog: u8,
    pub(super) logsectlog: u8,
    pub(super) logsectsize: U16,
    pub(super) logsunit: U32,
    pub(super) features2: U32,
    pub(super) bad_features2: U32,
    pub(super) features_compat: U32,
    /// Bits of [`ro_compat`].
    pub(super) features_ro_compat: U32,
    /// Bits of [`incompat`].
    pub(super) features_incompat: U32,
    pub(super) features_log_incompat: U32,
    pub(super) crc: LeU32,
    pub(super) spino_align: U32,
    pub(super) pquotino: U64,
    pub(super) lsn: U64,
    pub(super) meta_uuid: [u8; 16],
}

const _: () = assert!(size_of::<RawSuperblock>() == 264 && offset_of!(RawSuperblock, crc) == 224);

/// Bits of `versionnum`.
pub(super) mod version {
    pub(crate) const NUMBER: u16 = 0xf;
    /// Some inode has had an extended attribute.
    pub(crate) const ATTR: u16 = 1 << 4;
    /// Inodes count links in 32 bits.
    pub(crate) const NLINK: u16 = 1 << 5;
    /// There are, or were, quotas.
    pub(crate) const QUOTA: u16 = 1 << 6;
    /// Chunks of inodes are aligned.
    pub(crate) const ALIGN: u16 = 1 << 7;
    /// There are a stripe's unit and width.
    pub(crate) const DALIGN: u16 = 1 << 8;
    /// Part of the volume is shared with others: never used.
    pub(crate) const SHARED: u16 = 1 << 9;
    /// Records of the log have a stripe and more than one header.
    pub(crate) const LOGV2: u16 = 1 << 10;
    /// Sectors need not be of 512 bytes.
    pub(crate) const SECTOR: u16 = 1 << 11;
    /// Extents may be unwritten: there since 1999, and demanded by Linux.
    pub(crate) const EXTFLG: u16 = 1 << 12;
    /// Directories of version 2: demanded by Linux.
    pub(crate) const DIRV2: u16 = 1 << 13;
    /// There are bits of [`features2`](super::features2).
    pub(crate) const MOREBITS: u16 = 1 << 15;
    /// What every volume of version 5 has.
    pub(crate) const OF_5: u16 = NLINK | ALIGN | LOGV2 | EXTFLG | DIRV2 | MOREBITS;
}

/// Bits of `features2`, which has a meaning of its own in version 4 alone.
pub(super) mod features2 {
    pub(crate) const LAZYSBCOUNT: u32 = 1 << 1;
    pub(crate) const ATTR2: u32 = 1 << 3;
    pub(crate) const PROJID32: u32 = 1 << 7;
    pub(crate) const FTYPE: u32 = 1 << 9;
    pub(crate) const KNOWN: u32 = LAZYSBCOUNT | ATTR2 | PROJID32 | FTYPE;
    /// What version 5 has there (`CRC`), and may have (`PARENT`).
    pub(crate) const CRC: u32 = 1 << 8;
    pub(crate) const PARENT: u32 = 1 << 4;
}

/// Bits of `features_ro_compat`.
pub(super) mod ro_compat {
    pub(crate) const FINOBT: u32 = 1;
    pub(crate) const RMAPBT: u32 = 1 << 1;
    pub(crate) const REFLINK: u32 = 1 << 2;
    pub(crate) const INOBTCNT: u32 = 1 << 3;
    pub(crate) const KNOWN: u32 = FINOBT | RMAPBT | REFLINK | INOBTCNT;
}

/// Bits of `features_incompat`.
pub(super) mod incompat {
    pub(crate) const FTYPE: u32 = 1;
    pub(crate) const SPINODES: u32 = 1 << 1;
    pub(crate) const META_UUID: u32 = 1 << 2;
    pub(crate) const BIGTIME: u32 = 1 << 3;
    pub(crate) const NEEDSREPAIR: u32 = 1 << 4;
    pub(crate) const NREXT64: u32 = 1 << 5;
    pub(crate) const EXCHRANGE: u32 = 1 << 6;
    pub(crate) const PARENT: u32 = 1 << 7;
    /// Not read: what the volume keeps for itself lies in files of a tree of its own (fs/xfs/libxfs/xfs_format.h since Linux 6.13).
    pub(crate) const METADIR: u32 = 1 << 8;
    pub(crate) const KNOWN: u32 =
        FTYPE | SPINODES | META_UUID | BIGTIME | NEEDSREPAIR | NREXT64 | EXCHRANGE | PARENT;
}

/// `struct xfs_agf`, in the second sector of a group: its free space.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawFree {
    pub(super) magicnum: [u8; 4],
    pub(super) versionnum: U32,
    pub(super) seqno: U32,
    pub(super) length: U32,
    /// Of the trees by place, by length, and of the reverse map.
    pub(super) roots: [U32; 3],
    pub(super) levels: [U32; 3],
    pub(super) flfirst: U32,
    pub(super) fllast: U32,
    pub(super) flcount: U32,
    pub(super) freeblks: U32,
    pub(super) longest: U32,
    pub(super) btreeblks: U32,
    pub(super) uuid: [u8; 16],
    pub(super) rmap_blocks: U32,
    pub(super) refcount_blocks: U32,
    pub(super) refcount_root: U32,
    pub(super) refcount_level: U32,
    pub(super) spare64: [U64; 14],
    pub(super) lsn: U64,
    pub(super) crc: LeU32,
    pub(super) spare2: U32,
}

const _: () = assert!(size_of::<RawFree>() == 224 && offset_of!(RawFree, crc) == 216);

/// `struct xfs_agi`, in the third sector of a group: its inodes.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawInodes {
    pub(super) magicnum: [u8; 4],
    pub(super) versionnum: U32,
    pub(super) seqno: U32,
    pub(super) length: U32,
    pub(super) count: U32,
    pub(super) root: U32,
    pub(super) level: U32,
    pub(super) freecount: U32,
    pub(super) newino: U32,
    pub(super) dirino: U32,
    pub(super) unlinked: [U32; 64],
    pub(super) uuid: [u8; 16],
    pub(super) crc: LeU32,
    pub(super) pad32: U32,
    pub(super) lsn: U64,
    pub(super) free_root: U32,
    pub(super) free_level: U32,
    pub(super) iblocks: U32,
    pub(super) fblocks: U32,
}

const _: () = assert!(size_of::<RawInodes>() == 344 && offset_of!(RawInodes, crc) == 312);

/// `struct xfs_agfl`, in the fourth sector of a group: blocks kept for its trees. Their numbers follow up to the end of the sector.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawFreeList {
    pub(super) magicnum: [u8; 4],
    pub(super) seqno: U32,
    pub(super) uuid: [u8; 16],
    pub(super) lsn: U64,
    pub(super) crc: LeU32,
}

const _: () = assert!(size_of::<RawFreeList>() == 36 && offset_of!(RawFreeList, crc) == 32);

/// The header of a block of a group's tree (`struct xfs_btree_block_shdr`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawShortNode {
    pub(super) magic: [u8; 4],
    pub(super) level: U16,
    pub(super) numrecs: U16,
    pub(super) leftsib: U32,
    pub(super) rightsib: U32,
    pub(super) blkno: U64,
    pub(super) lsn: U64,
    pub(super) uuid: [u8; 16],
    pub(super) owner: U32,
    pub(super) crc: LeU32,
}

const _: () = assert!(size_of::<RawShortNode>() == 56 && offset_of!(RawShortNode, crc) == 52);

/// Of [`RawShortNode`] in version 4.
pub(super) const SHORT_NODE_4_BYTES: usize = offset_of!(RawShortNode, blkno);

/// A record of a group's reverse map (`struct xfs_rmap_rec`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawReverse {
    pub(super) startblock: U32,
    pub(super) blockcount: U32,
    /// An inode, or one of [`reverse`].
    pub(super) owner: U64,
    /// In the fork, in blocks, with bits of [`reverse`].
    pub(super) offset: U64,
}

const _: () = assert!(size_of::<RawReverse>() == 24);

/// Owners that are no inodes (`XFS_RMAP_OWN_...`), and bits of `offset` (`XFS_RMAP_OFF_...`).
pub(super) mod reverse {
    /// Of these, which are all above.
    pub(crate) const FIRST: u64 = 1 << 63;
    /// The headers of a group.
    pub(crate) const HEADERS: u64 = 3_u64.wrapping_neg();
    pub(crate) const LOG: u64 = 4_u64.wrapping_neg();
    /// The trees of free space, the reverse map, and what is kept for them.
    pub(crate) const FREE_TREES: u64 = 5_u64.wrapping_neg();
    pub(crate) const INODE_TREES: u64 = 6_u64.wrapping_neg();
    pub(crate) const INODES: u64 = 7_u64.wrapping_neg();
    /// The tree of reference counts.
    pub(crate) const REFERENCES: u64 = 8_u64.wrapping_neg();
    /// What is staged for writes to what is shared.
    pub(crate) const STAGED: u64 = 9_u64.wrapping_neg();
    /// It is of the attribute fork.
    pub(crate) const ATTRIBUTES: u64 = 1 << 63;
    /// It is a block of the tree of the fork's extents.
    pub(crate) const TREE: u64 = 1 << 62;
    pub(crate) const UNWRITTEN: u64 = 1 << 61;
    pub(crate) const FLAGS: u64 = ATTRIBUTES | TREE | UNWRITTEN;
    /// The place in the fork.
    pub(crate) const LOGICAL: u64 = (1 << 54) - 1;
}

/// The header of a block of an inode's tree of extents (`struct xfs_btree_block_lhdr`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawLongNode {
    pub(super) magic: [u8; 4],
    pub(super) level: U16,
    pub(super) numrecs: U16,
    pub(super) leftsib: U64,
    pub(super) rightsib: U64,
    pub(super) blkno: U64,
    pub(super) lsn: U64,
    pub(super) uuid: [u8; 16],
    pub(super) owner: U64,
    pub(super) crc: LeU32,
    pub(super) pad: U32,
}

const _: () = assert!(size_of::<RawLongNode>() == 72 && offset_of!(RawLongNode, crc) == 64);

/// Of [`RawLongNode`] in version 4.
pub(super) const LONG_NODE_4_BYTES: usize = offset_of!(RawLongNode, blkno);

/// `XFS_DINODE_MAGIC`.
pub(super) const INODE_MAGIC: [u8; 2] = *b"IN";

/// `struct xfs_dinode` of version 3. No inode is shorter.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawInode {
    pub(super) magic: [u8; 2],
    pub(super) mode: U16,
    pub(super) version: u8,
    /// Of [`mod@format`].
    pub(super) format: u8,
    pub(super) onlink: U16,
    pub(super) uid: U32,
    pub(super) gid: U32,
    pub(super) nlink: U32,
    pub(super) projid: [U16; 2],
    /// With large extent counters: how many extents the data fork has.
    pub(super) big_nextents: U64,
    pub(super) times: [U64; 3],
    pub(super) size: U64,
    pub(super) nblocks: U64,
    pub(super) extsize: U32,
    /// How many extents the data fork has; with large extent counters, the attribute fork.
    pub(super) nextents: U32,
    /// How many extents the attribute fork has, without them.
    pub(super) anextents: U16,
    /// Where the attribute fork begins behind this struct, in units of 8 bytes; 0 if there is none.
    pub(super) forkoff: u8,
    pub(super) aformat: u8,
    pub(super) dmevmask: U32,
    pub(super) dmstate: U16,
    pub(super) flags: U16,
    pub(super) gen_: U32,
    pub(super) next_unlinked: U32,
    pub(super) crc: LeU32,
    pub(super) changecount: U64,
    pub(super) lsn: U64,
    pub(super) flags2: U64,
    pub(super) cowextsize: U32,
    pub(super) pad2: [u8; 12],
    pub(super) crtime: U64,
    pub(super) ino: U64,
    pub(super) uuid: [u8; 16],
}

const _: () = assert!(size_of::<RawInode>() == 176 && offset_of!(RawInode, crc) == 100);

/// Of [`RawInode`] of versions 1 and 2, which volumes of version 4 have.
pub(super) const INODE_2_BYTES: usize = offset_of!(RawInode, crc);

/// The root of a tree of extents in an inode (`struct xfs_bmdr_block`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawForkRoot {
    pub(super) level: U16,
    pub(super) numrecs: U16,
}

const _: () = assert!(size_of::<RawForkRoot>() == 4);

/// The header of a block with the target of a symbolic link (`struct xfs_dsymlink_hdr`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSymlink {
    pub(super) magic: [u8; 4],
    pub(super) offset: U32,
    pub(super) bytes: U32,
    pub(super) crc: LeU32,
    pub(super) uuid: [u8; 16],
    pub(super) owner: U64,
    pub(super) blkno: U64,
    pub(super) lsn: U64,
}

const _: () = assert!(size_of::<RawSymlink>() == 56 && offset_of!(RawSymlink, crc) == 12);

/// `struct xfs_attr3_rmt_hdr`, before the value of an extended attribute: the same, but that its `lsn` is none.
pub(super) type RawAttributeValue = RawSymlink;

/// What blocks of the indexes of directories and attributes begin with (`struct xfs_da3_blkinfo`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIndexBlock {
    pub(super) forw: U32,
    pub(super) back: U32,
    /// One of [`INDEX_MAGICS`].
    pub(super) magic: [u8; 2],
    pub(super) pad: U16,
    pub(super) crc: LeU32,
    pub(super) blkno: U64,
    pub(super) lsn: U64,
    pub(super) uuid: [u8; 16],
    pub(super) owner: U64,
}

const _: () = assert!(size_of::<RawIndexBlock>() == 56 && offset_of!(RawIndexBlock, crc) == 12);

/// `XFS_DA3_NODE_MAGIC`, `XFS_DIR3_LEAF1_MAGIC`, `XFS_DIR3_LEAFN_MAGIC` and `XFS_ATTR3_LEAF_MAGIC`.
pub(super) const INDEX_MAGICS: [[u8; 2]; 4] = [[0x3e, 0xbe], [0x3d, 0xf1], [0x3d, 0xff], [0x3b, 0xee]];

/// The first of these, and the last, in version 5 and in version 4: a node of an index, and a leaf of an index of attributes.
pub(super) const NODE_MAGICS: [[u8; 2]; 2] = [[0x3e, 0xbe], [0xfe, 0xbe]];
/// See [`NODE_MAGICS`].
pub(super) const ATTRIBUTE_LEAF_MAGICS: [[u8; 2]; 2] = [[0x3b, 0xee], [0xfb, 0xee]];
/// What blocks of version 4 begin with instead of [`RawIndexBlock`] (`struct xfs_da_blkinfo`).
pub(super) const INDEX_4_BYTES: usize = 12;
/// Of a block with a part of an attribute's value.
pub(super) const ATTRIBUTE_VALUE_MAGIC: [u8; 4] = *b"XARM";

/// Behind that, in a leaf of attributes (`struct xfs_attr3_leaf_hdr`), in both versions as far as here. In version 5 four bytes follow.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawAttributeLeaf {
    pub(super) count: U16,
    pub(super) usedbytes: U16,
    pub(super) firstused: U16,
    pub(super) holes: u8,
    pub(super) pad1: u8,
    pub(super) freemap: [[U16; 2]; 3],
}

const _: () = assert!(size_of::<RawAttributeLeaf>() == 20);

/// An entry of a leaf (`struct xfs_attr_leaf_entry`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawAttributeEntry {
    pub(super) hashval: U32,
    /// Where its name lies in the block.
    pub(super) nameidx: U16,
    /// Of [`attribute`].
    pub(super) flags: u8,
    pub(super) pad2: u8,
}

const _: () = assert!(size_of::<RawAttributeEntry>() == 8);

/// Flags of an attribute.
pub(super) mod attribute {
    /// The value lies beside the name.
    pub(crate) const LOCAL: u8 = 1;
    pub(crate) const ROOT: u8 = 1 << 1;
    pub(crate) const SECURE: u8 = 1 << 2;
    /// Who is whose parent: the file system's own.
    pub(crate) const PARENT: u8 = 1 << 3;
    /// It is being written.
    pub(crate) const INCOMPLETE: u8 = 1 << 7;
}

/// Of a block that is all of a directory.
pub(super) const DIRECTORY_BLOCK_MAGIC: [u8; 4] = *b"XDB3";
/// Of one of several blocks with entries.
pub(super) const DIRECTORY_DATA_MAGIC: [u8; 4] = *b"XDD3";

/// The same two of version 4.
pub(super) const DIRECTORY_BLOCK_4_MAGIC: [u8; 4] = *b"XD2B";
/// See [`DIRECTORY_DATA_MAGIC`].
pub(super) const DIRECTORY_DATA_4_MAGIC: [u8; 4] = *b"XD2D";
/// What is before the entries of such a block (`struct xfs_dir2_data_hdr`): its magic number, and `best_free`.
pub(super) const DIRECTORY_4_BYTES: usize = 16;

/// The header of a block of a directory with entries (`struct xfs_dir3_data_hdr`).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDirectoryBlock {
    pub(super) magic: [u8; 4],
    pub(super) crc: LeU32,
    pub(super) blkno: U64,
    pub(super) lsn: U64,
    pub(super) uuid: [u8; 16],
    pub(super) owner: U64,
    /// The longest places where nothing is.
    pub(super) best_free: [[U16; 2]; 3],
    pub(super) pad: U32,
}

const _: () = assert!(size_of::<RawDirectoryBlock>() == 64 && offset_of!(RawDirectoryBlock, crc) == 4);

/// How a fork is kept.
pub(super) mod format {
    pub(crate) const DEVICE: u8 = 0;
    pub(crate) const LOCAL: u8 = 1;
    pub(crate) const EXTENTS: u8 = 2;
    pub(crate) const BTREE: u8 = 3;
}

/// Bits of an inode's `flags`.
pub(super) const REALTIME: u16 = 1;
/// Bits of an inode's `flags2`: its times are nanoseconds from the first one that 32 bits could hold.
pub(super) const BIGTIME: u64 = 1 << 3;
/// See [`BIGTIME`].
pub(super) const NREXT64: u64 = 1 << 4;
