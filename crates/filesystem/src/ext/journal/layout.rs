//! The on-disk structs of the journal (jbd2), all big-endian.
//!
//! Source: `include/linux/jbd2.h` of Linux 6.18, whose field names these are without their prefixes.

use std::mem::offset_of;

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `JBD2_MAGIC_NUMBER`.
pub(super) const MAGIC: u32 = 0xc03b_3998;

/// Values of `h_blocktype`.
pub(super) mod block_type {
    pub(in super::super) const DESCRIPTOR: u32 = 1;
    pub(in super::super) const COMMIT: u32 = 2;
    pub(in super::super) const SUPERBLOCK_V1: u32 = 3;
    pub(in super::super) const SUPERBLOCK_V2: u32 = 4;
    pub(in super::super) const REVOKE: u32 = 5;
}

/// `journal_header_t`, at the start of each block of the log that is not a copy.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) magic: U32,
    /// One of [`block_type`].
    pub(super) blocktype: U32,
    /// The transaction.
    pub(super) sequence: U32,
}

/// Bytes of [`RawHeader`].
pub(super) const HEADER_BYTES: usize = size_of::<RawHeader>();

/// `journal_superblock_t`: the journal's first block.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawJournalSuperblock {
    pub(super) header: RawHeader,
    /// The file system's block size.
    pub(super) blocksize: U32,
    /// Blocks of the journal, this one included.
    pub(super) maxlen: U32,
    /// First block of the log.
    pub(super) first: U32,
    /// The transaction expected first.
    pub(super) sequence: U32,
    /// Where it starts; 0 if nothing is pending.
    pub(super) start: U32,
    /// The error that stopped the journal, 0 if none.
    pub(super) errno: U32,
    /// From here on only in the second version.
    pub(super) feature_compat: U32,
    pub(super) feature_incompat: U32,
    pub(super) feature_ro_compat: U32,
    pub(super) uuid: [u8; 16],
    pub(super) nr_users: U32,
    pub(super) dynsuper: U32,
    pub(super) max_transaction: U32,
    pub(super) max_trans_data: U32,
    /// 4: CRC-32C.
    pub(super) checksum_type: u8,
    pub(super) padding2: [u8; 3],
    /// Blocks at the journal's end for fast commits; 0 stands for 256.
    pub(super) num_fc_blks: U32,
    pub(super) head: U32,
    pub(super) padding: [U32; 40],
    /// CRC-32C of the struct with zeros here.
    pub(super) checksum: U32,
    pub(super) users: [u8; 16 * 48],
}

/// Where the checksum lies in [`RawJournalSuperblock`].
pub(super) const SUPERBLOCK_CHECKSUM_AT: usize = offset_of!(RawJournalSuperblock, checksum);

const _: () = {
    assert!(HEADER_BYTES == 12);
    assert!(size_of::<RawJournalSuperblock>() == 1024);
    assert!(offset_of!(RawJournalSuperblock, uuid) == 0x30);
    assert!(offset_of!(RawJournalSuperblock, checksum_type) == 0x50);
    assert!(SUPERBLOCK_CHECKSUM_AT == 0xfc);
};

/// Bits of the journal's features.
pub(super) mod features {
    /// Whole transactions have a checksum.
    pub(in super::super) const COMPAT_CHECKSUM: u32 = 0x1;
    pub(in super::super) const INCOMPAT_REVOKE: u32 = 0x1;
    pub(in super::super) const INCOMPAT_64BIT: u32 = 0x2;
    /// A commit block may reach the disk before what it commits.
    pub(in super::super) const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
    pub(in super::super) const INCOMPAT_CSUM_V2: u32 = 0x8;
    pub(in super::super) const INCOMPAT_CSUM_V3: u32 = 0x10;
    pub(in super::super) const INCOMPAT_FAST_COMMIT: u32 = 0x20;
}

/// `struct commit_header`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawCommit {
    pub(super) header: RawHeader,
    /// 0 none, 1 CRC-32; of the first kind of checksum.
    pub(super) chksum_type: u8,
    pub(super) chksum_size: u8,
    pub(super) padding: [u8; 2],
    /// Of the transaction (first kind), or of this block with zeros here (second and third).
    pub(super) chksum: [U32; 8],
    /// Seconds since 1970.
    pub(super) commit_sec: U64,
    pub(super) commit_nsec: U32,
}

/// Where the checksum lies in [`RawCommit`].
pub(super) const COMMIT_CHECKSUM_AT: usize = offset_of!(RawCommit, chksum);

const _: () = assert!(COMMIT_CHECKSUM_AT == 16 && offset_of!(RawCommit, commit_sec) == 48);

/// Where a tag's parts lie. Tags vary in size with the journal's features, so there is no one struct:
/// - `journal_block_tag_t`: block (4), checksum (2), flags (2), with `64bit` upper half of block (4), with the
///   second kind of checksum 2 more bytes that are not used;
/// - `journal_block_tag3_t`: block (4), flags (4), upper half of block (4), checksum (4).
pub(super) mod tag {
    pub(in super::super) const BLOCK_LO_AT: usize = 0;
    pub(in super::super) const CHECKSUM_V2_AT: usize = 4;
    /// In either struct: the lower half of the third kind's flags.
    pub(in super::super) const FLAGS_AT: usize = 6;
    pub(in super::super) const BLOCK_HI_AT: usize = 8;
    pub(in super::super) const CHECKSUM_V3_AT: usize = 12;
    pub(in super::super) const BYTES_32: usize = 8;
    pub(in super::super) const BYTES_64: usize = 12;
    pub(in super::super) const BYTES_V2_MORE: usize = 2;
    pub(in super::super) const BYTES_V3: usize = 16;
    /// The copy's first four bytes were the magic, and are zeros in the log.
    pub(in super::super) const ESCAPE: u16 = 1;
    /// No UUID follows.
    pub(in super::super) const SAME_UUID: u16 = 2;
    /// The last tag of the block.
    pub(in super::super) const LAST: u16 = 8;
    pub(in super::super) const UUID_BYTES: usize = 16;
}

/// Bytes of the checksum at the end of descriptor and revoke blocks.
pub(super) const TAIL_BYTES: usize = 4;
/// Where a revoke block says how many of its bytes are used.
pub(super) const REVOKE_COUNT_AT: usize = HEADER_BYTES;
/// Where its records start.
pub(super) const REVOKE_RECORDS_AT: usize = HEADER_BYTES + 4;

/// The tags of fast commits, little-endian (`fs/ext4/fast_commit.h`).
pub(super) mod fast_commit {
    /// `EXT4_FC_TAG_HEAD`; its value is features (4), then transaction (4).
    pub(in super::super) const HEAD: u16 = 9;
    /// Where the head's transaction lies.
    pub(in super::super) const HEAD_SEQUENCE_AT: usize = 8;
    /// Blocks if the superblock says 0.
    pub(in super::super) const BLOCKS_DEFAULT: u32 = 256;
    /// The log is never made shorter than that.
    pub(in super::super) const LOG_BLOCKS_MIN: u32 = 1024;
}
