//! The structures of a VHDX file as they lie on disk, all little-endian. No logic.
//!
//! Source: Microsoft, \[MS-VHDX\] "Virtual Hard Disk v2 (VHDX) File Format", version 6.0; sections are named at
//! each structure.

use std::mem::offset_of;

use uuid::{Uuid, uuid};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What regions, blocks and the log are aligned to (2.1).
pub(super) const MIB: u64 = 1 << 20;
/// Size of each structure of the header section (2.2).
pub(super) const HEADER_SLOT_BYTES: u64 = 64 << 10;
/// Where the file type identifier is (2.2).
pub(super) const FILE_IDENTIFIER_AT: u64 = 0;
/// Where the two headers are (2.2).
pub(super) const HEADERS_AT: [u64; 2] = [64 << 10, 128 << 10];
/// Where the two copies of the region table are (2.2).
pub(super) const REGION_TABLES_AT: [u64; 2] = [192 << 10, 256 << 10];
/// [`FileIdentifier::signature`].
pub(super) const FILE_SIGNATURE: [u8; 8] = *b"vhdxfile";
/// [`Header::signature`].
pub(super) const HEADER_SIGNATURE: [u8; 4] = *b"head";
/// [`RegionTableHeader::signature`].
pub(super) const REGION_SIGNATURE: [u8; 4] = *b"regi";
/// [`MetadataTableHeader::signature`].
pub(super) const METADATA_SIGNATURE: [u8; 8] = *b"metadata";
/// [`LogEntryHeader::signature`].
pub(super) const LOG_ENTRY_SIGNATURE: [u8; 4] = *b"loge";
/// [`LogDescriptor::signature`] of a zero descriptor.
pub(super) const LOG_ZERO_SIGNATURE: [u8; 4] = *b"zero";
/// [`LogDescriptor::signature`] of a data descriptor.
pub(super) const LOG_DATA_SIGNATURE: [u8; 4] = *b"desc";
/// [`LogDataSector::signature`].
pub(super) const LOG_SECTOR_SIGNATURE: [u8; 4] = *b"data";
/// The unit of the log (2.3).
pub(super) const LOG_SECTOR_BYTES: u64 = 4096;
/// [`Header::version`].
pub(super) const VERSION: u16 = 1;
/// [`Header::log_version`].
pub(super) const LOG_VERSION: u16 = 0;
/// The most entries of a region table, and of a metadata table (2.2.3.1, 2.6.1.1).
pub(super) const TABLE_ENTRY_COUNT_MAX: u32 = 2047;
/// [`RegionTableEntry::flags`]: the file must not be opened by who does not know the region.
pub(super) const REGION_REQUIRED: u32 = 1;
/// [`MetadataTableEntry::flags`]: belongs to the user, not to the format.
pub(super) const METADATA_IS_USER: u32 = 1;
/// [`MetadataTableEntry::flags`]: belongs to the virtual disk rather than to the file.
pub(super) const METADATA_IS_VIRTUAL_DISK: u32 = 2;
/// [`MetadataTableEntry::flags`]: the file must not be opened by who does not know the item.
pub(super) const METADATA_IS_REQUIRED: u32 = 4;
/// [`FileParameters::flags`]: the disk is fixed.
pub(super) const PARAMETER_LEAVE_BLOCKS_ALLOCATED: u32 = 1;
/// [`FileParameters::flags`]: the disk is differencing.
pub(super) const PARAMETER_HAS_PARENT: u32 = 2;
/// Sectors that one sector bitmap block covers (2.4): what a chunk of payload blocks holds.
pub(super) const CHUNK_SECTOR_COUNT: u64 = 1 << 23;
/// Size of a sector bitmap block (2.4).
pub(super) const BITMAP_BLOCK_BYTES: u64 = MIB;
/// A BAT entry's state (2.5.1): the low bits.
pub(super) const BAT_STATE_MASK: u64 = 7;
/// A BAT entry's FileOffsetMB (2.5.1) begins at this bit: what lies there and above, masked, is the offset in bytes.
pub(super) const BAT_OFFSET_MASK: u64 = !(MIB - 1);

/// The BAT's region (2.2.3.2).
pub(super) const REGION_BAT: Uuid = uuid!("2dc27766-f623-4200-9d64-115e9bfd4a08");
/// The metadata's region (2.2.3.2).
pub(super) const REGION_METADATA: Uuid = uuid!("8b7ca206-4790-4b9a-b8fe-575f050f886e");
/// Item [`FileParameters`] (2.6.2.1).
pub(super) const ITEM_FILE_PARAMETERS: Uuid = uuid!("caa16737-fa36-4d43-b3b6-33f0aa44e76b");
/// Item virtual disk size, 8 bytes (2.6.2.2).
pub(super) const ITEM_VIRTUAL_DISK_SIZE: Uuid = uuid!("2fa54224-cd1b-4876-b211-5dbed83bf4b8");
/// Item virtual disk ID, a GUID (2.6.2.3).
pub(super) const ITEM_VIRTUAL_DISK_ID: Uuid = uuid!("beca12ab-b2e6-4523-93ef-c309e000c746");
/// Item logical sector size, 4 bytes (2.6.2.4).
pub(super) const ITEM_LOGICAL_SECTOR_SIZE: Uuid = uuid!("8141bf1d-a96f-4709-ba47-f233a8faab5f");
/// Item physical sector size, 4 bytes (2.6.2.5).
pub(super) const ITEM_PHYSICAL_SECTOR_SIZE: Uuid = uuid!("cda348c7-445d-4471-9cc9-e9885251c556");
/// Item parent locator (2.6.2.6).
pub(super) const ITEM_PARENT_LOCATOR: Uuid = uuid!("a8d35f2d-b30b-454d-abf7-d3d84834ab0c");
/// [`ParentLocatorHeader::locator_type`] of a VHDX parent (2.6.2.6.3).
pub(super) const LOCATOR_VHDX: Uuid = uuid!("b04aefb7-d19e-4a81-b789-25b8e9445913");

/// A GUID as Windows stores it: its first three fields little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Guid(pub(super) [u8; 16]);

/// File type identifier (2.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FileIdentifier {
    /// `vhdxfile`.
    pub(super) signature: [u8; 8],
    /// The program that made the file, UTF-16 filled up with zeros.
    pub(super) creator: [U16; 256],
}

/// Header (2.2.2). The one with the higher sequence number counts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    /// `head`.
    pub(super) signature: [u8; 4],
    /// CRC-32C of the structure's 4 KiB with this field zero.
    pub(super) checksum: U32,
    /// Grows with each change of the header.
    pub(super) sequence_number: U64,
    /// New whenever the file is opened for writing.
    pub(super) file_write_guid: Guid,
    /// New whenever what the guest sees changes. Children name it.
    pub(super) data_write_guid: Guid,
    /// What the entries of a pending log bear; zero if there is none.
    pub(super) log_guid: Guid,
    /// 0.
    pub(super) log_version: U16,
    /// 1.
    pub(super) version: U16,
    /// Bytes of the log: a multiple of 1 MiB.
    pub(super) log_length: U32,
    /// Bytes from the file's start to the log: a multiple of 1 MiB.
    pub(super) log_offset: U64,
    /// Zeros.
    pub(super) reserved: [u8; 4016],
}

/// Region table header (2.2.3.1), followed by its entries; the checksum is over 64 KiB.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RegionTableHeader {
    /// `regi`.
    pub(super) signature: [u8; 4],
    /// CRC-32C of the table's 64 KiB with this field zero.
    pub(super) checksum: U32,
    /// At most 2047.
    pub(super) entry_count: U32,
    /// Zero.
    pub(super) reserved: U32,
}

/// Region table entry (2.2.3.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RegionTableEntry {
    /// What the region is.
    pub(super) guid: Guid,
    /// Bytes from the file's start: a multiple of 1 MiB, at least 1 MiB.
    pub(super) file_offset: U64,
    /// Bytes: a multiple of 1 MiB.
    pub(super) length: U32,
    /// Bit 0: required.
    pub(super) flags: U32,
}

/// Log entry header (2.3.1.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LogEntryHeader {
    /// `loge`.
    pub(super) signature: [u8; 4],
    /// CRC-32C of the whole entry with this field zero.
    pub(super) checksum: U32,
    /// Bytes of the entry: a multiple of 4 KiB.
    pub(super) entry_length: U32,
    /// Bytes from the log's start to the first entry to replay if this one is the last.
    pub(super) tail: U32,
    /// One more than the entry before; not zero.
    pub(super) sequence_number: U64,
    /// Descriptors after this header.
    pub(super) descriptor_count: U32,
    /// Zero.
    pub(super) reserved: U32,
    /// [`Header::log_guid`].
    pub(super) log_guid: Guid,
    /// Bytes of the file that were on stable storage when the entry was written.
    pub(super) flushed_file_offset: U64,
    /// Bytes of the file that its structures need.
    pub(super) last_file_offset: U64,
}

/// Zero descriptor (2.3.1.2) or data descriptor (2.3.1.3), by its signature.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LogDescriptor {
    /// `zero` or `desc`.
    pub(super) signature: [u8; 4],
    /// Data: the sector's last 4 bytes. Zero: reserved.
    pub(super) trailing_bytes: [u8; 4],
    /// Data: the sector's first 8 bytes. Zero: bytes to zero, a multiple of 4 KiB.
    pub(super) leading_bytes: [u8; 8],
    /// Where in the file: a multiple of 4 KiB.
    pub(super) file_offset: U64,
    /// The entry's.
    pub(super) sequence_number: U64,
}

/// Data sector (2.3.1.4): one for each data descriptor, in order, after all descriptors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LogDataSector {
    /// `data`.
    pub(super) signature: [u8; 4],
    /// Upper half of the entry's sequence number.
    pub(super) sequence_high: U32,
    /// The sector without its first 8 and last 4 bytes.
    pub(super) data: [u8; 4084],
    /// Lower half of the entry's sequence number.
    pub(super) sequence_low: U32,
}

/// Metadata table header (2.6.1.1), at the metadata region's start.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct MetadataTableHeader {
    /// `metadata`.
    pub(super) signature: [u8; 8],
    /// Zero.
    pub(super) reserved1: U16,
    /// At most 2047.
    pub(super) entry_count: U16,
    /// Zeros.
    pub(super) reserved2: [u8; 20],
}

/// Metadata table entry (2.6.1.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct MetadataTableEntry {
    /// What the item is.
    pub(super) item_id: Guid,
    /// Bytes from the region's start: at least 64 KiB, or zero if the item is empty.
    pub(super) offset: U32,
    /// Bytes of the item: at most 1 MiB.
    pub(super) length: U32,
    /// Bit 0 user, bit 1 virtual disk, bit 2 required.
    pub(super) flags: U32,
    /// Zero.
    pub(super) reserved: U32,
}

/// File parameters (2.6.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FileParameters {
    /// Bytes of a payload block: a power of two from 1 to 256 MiB.
    pub(super) block_size: U32,
    /// Bit 0 leave blocks allocated (fixed), bit 1 has a parent.
    pub(super) flags: U32,
}

/// Parent locator header (2.6.2.6.1), followed by its entries.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ParentLocatorHeader {
    /// [`LOCATOR_VHDX`].
    pub(super) locator_type: Guid,
    /// Zero.
    pub(super) reserved: U16,
    /// Entries that follow.
    pub(super) key_value_count: U16,
}

/// Parent locator entry (2.6.2.6.2). Keys and values are UTF-16 without a final zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ParentLocatorEntry {
    /// Bytes from the item's start.
    pub(super) key_offset: U32,
    /// Bytes from the item's start.
    pub(super) value_offset: U32,
    /// Bytes.
    pub(super) key_length: U16,
    /// Bytes.
    pub(super) value_length: U16,
}

const _: () = {
    assert!(size_of::<FileIdentifier>() == 520);
    assert!(size_of::<Header>() == 4096);
    assert!(offset_of!(Header, log_guid) == 48);
    assert!(offset_of!(Header, log_offset) == 72);
    assert!(size_of::<RegionTableHeader>() == 16);
    assert!(size_of::<RegionTableEntry>() == 32);
    assert!(size_of::<LogEntryHeader>() == 64);
    assert!(offset_of!(LogEntryHeader, flushed_file_offset) == 48);
    assert!(size_of::<LogDescriptor>() == 32);
    assert!(size_of::<LogDataSector>() as u64 == LOG_SECTOR_BYTES);
    assert!(size_of::<MetadataTableHeader>() == 32);
    assert!(size_of::<MetadataTableEntry>() == 32);
    assert!(size_of::<ParentLocatorHeader>() == 20);
    assert!(size_of::<ParentLocatorEntry>() == 12);
};
