//! The structs of a recording, little-endian.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// How a recording begins.
pub const MAGIC: [u8; 8] = *b"LDTRACE\0";
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"TBLK");

/// A recording's first bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    /// Bytes of this header.
    pub(super) header_bytes: U32,
    /// Nanoseconds since 1970 at which times count from zero.
    pub(super) began_unix_ns: U64,
    /// Length of the disk in bytes.
    pub(super) disk_bytes: U64,
    pub(super) sector_bytes: U32,
    pub(super) reserved: [u8; 24],
    /// CRC-32C of the bytes before.
    pub(super) checksum: U32,
}
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// What comes before a block's records.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct BlockHeader {
    pub(super) magic: U32,
    /// Bytes of records that follow.
    pub(super) payload_bytes: U32,
    pub(super) record_count: U32,
    /// CRC-32C of the records.
    pub(super) checksum: U32,
    /// Microseconds from which the first record's time counts.
    pub(super) base_us: U64,
    /// Requests that were dropped since the block before.
    pub(super) dropped: U64,
}
const _: () = assert!(size_of::<BlockHeader>() == 32);

pub(super) const BLOCK_HEADER_BYTES: usize = size_of::<BlockHeader>();
