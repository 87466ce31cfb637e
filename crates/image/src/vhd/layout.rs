//! The structures of a VHD file as they lie on disk, all big-endian. No logic.
//!
//! Source: Microsoft, "Virtual Hard Disk Image Format Specification", version 1.0 of 2006-10-11, sections
//! "Hard Disk Footer Format" and "Dynamic Disk Header Format".

use std::mem::offset_of;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The unit in which the BAT and the sector bitmaps count.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Size of the footer.
pub(super) const FOOTER_BYTES: u64 = 512;
/// Size of the footer that Virtual PC wrote before 2004: the last reserved byte is missing.
pub(super) const FOOTER_OLD_BYTES: u64 = 511;
/// Size of the dynamic disk header.
pub(super) const HEADER_BYTES: u64 = 1024;
/// [`Footer::cookie`].
pub(super) const FOOTER_COOKIE: [u8; 8] = *b"conectix";
/// [`DynamicHeader::cookie`].
pub(super) const HEADER_COOKIE: [u8; 8] = *b"cxsparse";
/// [`Footer::file_format_version`] and [`DynamicHeader::header_version`]: major 1, minor 0.
pub(super) const VERSION_1_0: u32 = 0x0001_0000;
/// [`Footer::data_offset`] of a fixed disk; [`DynamicHeader::data_offset`] always.
pub(super) const NO_OFFSET: u64 = u64::MAX;
/// A BAT entry of a block that is not in the file.
pub(super) const BAT_UNUSED: u32 = u32::MAX;
/// [`Footer::disk_type`] of a fixed disk.
pub(super) const TYPE_FIXED: u32 = 2;
/// [`Footer::disk_type`] of a dynamic disk.
pub(super) const TYPE_DYNAMIC: u32 = 3;
/// [`Footer::disk_type`] of a differencing disk.
pub(super) const TYPE_DIFFERENCING: u32 = 4;
/// [`Footer::features`]: the bit that is always set ("Reserved").
pub(super) const FEATURE_RESERVED: u32 = 2;
/// 2000-01-01 00:00 UTC, from which VHD counts seconds, in Unix time.
pub(super) const EPOCH_UNIX_SECONDS: u64 = 946_684_800;

/// The hard disk footer: the last sector of the file, and its first too unless the disk is fixed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Footer {
    /// `conectix`.
    pub(super) cookie: [u8; 8],
    /// Bits: 1 temporary, 2 always set.
    pub(super) features: U32,
    /// [`VERSION_1_0`].
    pub(super) file_format_version: U32,
    /// Bytes from the file's start to the dynamic header; [`NO_OFFSET`] in a fixed disk.
    pub(super) data_offset: U64,
    /// Seconds since 2000-01-01 UTC.
    pub(super) time_stamp: U32,
    /// Four characters that name the program.
    pub(super) creator_application: [u8; 4],
    /// Major version in the upper half, minor in the lower.
    pub(super) creator_version: U32,
    /// `Wi2k` or `Mac `.
    pub(super) creator_host_os: [u8; 4],
    /// Bytes of the virtual disk when it was made.
    pub(super) original_size: U64,
    /// Bytes of the virtual disk now.
    pub(super) current_size: U64,
    /// Disk geometry: cylinders.
    pub(super) cylinders: U16,
    /// Disk geometry: heads.
    pub(super) heads: u8,
    /// Disk geometry: sectors per track.
    pub(super) sectors_per_track: u8,
    /// 2 fixed, 3 dynamic, 4 differencing.
    pub(super) disk_type: U32,
    /// One's complement of the sum of all other bytes.
    pub(super) checksum: U32,
    /// Identifies the disk to its children.
    pub(super) unique_id: [u8; 16],
    /// 1 if the machine was suspended.
    pub(super) saved_state: u8,
    /// Zeros.
    pub(super) reserved: [u8; 427],
}

/// The dynamic disk header, at [`Footer::data_offset`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DynamicHeader {
    /// `cxsparse`.
    pub(super) cookie: [u8; 8],
    /// [`NO_OFFSET`].
    pub(super) data_offset: U64,
    /// Bytes from the file's start to the BAT.
    pub(super) table_offset: U64,
    /// [`VERSION_1_0`].
    pub(super) header_version: U32,
    /// Number of BAT entries: blocks of the virtual disk.
    pub(super) max_table_entries: U32,
    /// Bytes of a block without its sector bitmap: a power of two of sectors, 2 MiB by default.
    pub(super) block_size: U32,
    /// One's complement of the sum of all other bytes.
    pub(super) checksum: U32,
    /// [`Footer::unique_id`] of the parent.
    pub(super) parent_unique_id: [u8; 16],
    /// Seconds since 2000-01-01 UTC at which the parent was last modified.
    pub(super) parent_time_stamp: U32,
    /// Zeros.
    pub(super) reserved1: U32,
    /// File name of the parent, UTF-16 big-endian, filled up with zeros.
    pub(super) parent_unicode_name: [U16; 256],
    /// Where the parent's names lie.
    pub(super) parent_locators: [ParentLocator; 8],
    /// Zeros.
    pub(super) reserved2: [u8; 256],
}

/// Where one name of the parent lies.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ParentLocator {
    /// How the name is written; zero if the entry is unused.
    pub(super) platform_code: [u8; 4],
    /// Sectors (by many writers: bytes) set aside for the name.
    pub(super) platform_data_space: U32,
    /// Bytes of the name.
    pub(super) platform_data_length: U32,
    /// Zeros.
    pub(super) reserved: U32,
    /// Bytes from the file's start to the name.
    pub(super) platform_data_offset: U64,
}

const _: () = {
    assert!(size_of::<Footer>() as u64 == FOOTER_BYTES);
    assert!(offset_of!(Footer, data_offset) == 16);
    assert!(offset_of!(Footer, current_size) == 48);
    assert!(offset_of!(Footer, disk_type) == 60);
    assert!(offset_of!(Footer, unique_id) == 68);
    assert!(size_of::<DynamicHeader>() as u64 == HEADER_BYTES);
    assert!(offset_of!(DynamicHeader, block_size) == 32);
    assert!(offset_of!(DynamicHeader, parent_unicode_name) == 64);
    assert!(offset_of!(DynamicHeader, parent_locators) == 576);
    assert!(size_of::<ParentLocator>() == 24);
};
