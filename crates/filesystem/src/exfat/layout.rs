//! The on-disk structs of exFAT, all little-endian.
//!
//! Source: Microsoft, "exFAT file system specification", revision 1.00, whose field names these are. "Sector" is the volume's own sector.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// `FileSystemName` (section 3.1.2).
pub(super) const FILE_SYSTEM_NAME: &[u8; 8] = b"EXFAT   ";
/// `BootSignature` (section 3.1.18).
pub(super) const BOOT_SIGNATURE: u16 = 0xaa55;
/// `FileSystemRevision` 1.00 (section 3.1.12).
pub(super) const REVISION: u16 = 0x0100;

/// The boot sector (section 3.1).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BootSector {
    /// `eb 76 90`.
    pub(super) jump_boot: [u8; 3],
    /// [`FILE_SYSTEM_NAME`].
    pub(super) file_system_name: [u8; 8],
    /// 0, where FAT has its parameters.
    pub(super) must_be_zero: [u8; 53],
    /// Sectors before the volume on its medium; 0 if not known.
    pub(super) partition_offset: U64,
    /// Sectors of the volume.
    pub(super) volume_length: U64,
    /// First sector of the first FAT, at least 24.
    pub(super) fat_offset: U32,
    /// Sectors of one FAT.
    pub(super) fat_length: U32,
    /// First sector of the clusters.
    pub(super) cluster_heap_offset: U32,
    /// Count of clusters.
    pub(super) cluster_count: U32,
    /// First cluster of the root directory.
    pub(super) first_cluster_of_root_directory: U32,
    pub(super) volume_serial_number: U32,
    /// [`REVISION`].
    pub(super) file_system_revision: U16,
    /// Bits of [`volume_flags`].
    pub(super) volume_flags: U16,
    /// Logarithm of the sector's bytes: 9 to 12.
    pub(super) bytes_per_sector_shift: u8,
    /// Logarithm of the cluster's sectors: at most 25 less the one before.
    pub(super) sectors_per_cluster_shift: u8,
    /// 1; 2 of TexFAT.
    pub(super) number_of_fats: u8,
    pub(super) drive_select: u8,
    /// 0 to 100, or `0xff` if not known.
    pub(super) percent_in_use: u8,
    pub(super) reserved: [u8; 7],
    pub(super) boot_code: [u8; 390],
    /// [`BOOT_SIGNATURE`].
    pub(super) boot_signature: U16,
}

/// Bits of `VolumeFlags` (section 3.1.13). Bit 3, `ClearToZero`, means nothing to readers.
pub(super) mod volume_flags {
    /// The second FAT and bitmap are the active ones.
    pub(in super::super) const ACTIVE_FAT: u16 = 0x01;
    pub(in super::super) const VOLUME_DIRTY: u16 = 0x02;
    pub(in super::super) const MEDIA_FAILURE: u16 = 0x04;
}

/// Sectors of a boot region, the checksum's included; the backup follows the main one (section 2).
pub(super) const BOOT_REGION_SECTORS: u64 = 12;
/// Places in the boot sector that its checksum leaves out: `VolumeFlags` and `PercentInUse` (section 3.4).
pub(super) const UNCHECKED: [usize; 3] = [106, 107, 112];

/// `FatEntry[0]`: the media type, and ones (section 4.1.1).
pub(super) const MEDIA_ENTRY: u32 = 0xffff_fff8;
/// An entry of the FAT that ends a chain (section 4.1.3).
pub(super) const END_OF_CHAIN: u32 = 0xffff_ffff;

/// Bytes of an entry of a directory (section 6).
pub(super) const ENTRY_BYTES: usize = 32;

/// `EntryType` (section 6.2.1). Bit 7 tells that an entry is in use; 0 ends a directory.
pub(super) mod entry_type {
    pub(in super::super) const IN_USE: u8 = 0x80;
    pub(in super::super) const BITMAP: u8 = 0x81;
    pub(in super::super) const UPCASE: u8 = 0x82;
    pub(in super::super) const LABEL: u8 = 0x83;
    pub(in super::super) const FILE: u8 = 0x85;
    pub(in super::super) const VOLUME_GUID: u8 = 0xa0;
    pub(in super::super) const STREAM: u8 = 0xc0;
    pub(in super::super) const NAME: u8 = 0xc1;
}

/// The allocation bitmap (section 7.1), and the up-case table (section 7.2), as far as they are alike.
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct TableEntry {
    pub(super) entry_type: u8,
    /// `BitmapFlags`: bit 0 marks the bitmap of the second FAT.
    pub(super) bitmap_flags: u8,
    pub(super) reserved1: [u8; 2],
    /// `TableChecksum` of the up-case table.
    pub(super) table_checksum: U32,
    pub(super) reserved2: [u8; 12],
    pub(super) first_cluster: U32,
    /// Bytes.
    pub(super) data_length: U64,
}

/// The primary entry of a file's or directory's set (section 7.4).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FileEntry {
    pub(super) entry_type: u8,
    /// Entries that follow and belong to it: 2 to 18.
    pub(super) secondary_count: u8,
    /// Of the whole set (section 6.3.3).
    pub(super) set_checksum: U16,
    /// Bit 4: a directory.
    pub(super) file_attributes: U16,
    pub(super) reserved1: U16,
    /// Of making, of the last change, and of the last access: a date above a time, as DOS has them.
    pub(super) created: U32,
    pub(super) modified: U32,
    pub(super) accessed: U32,
    /// More of these, in 10 ms.
    pub(super) created_10ms: u8,
    pub(super) modified_10ms: u8,
    /// How far the clock was ahead of UTC: quarters of an hour in seven bits with a sign, if bit 7 is set.
    pub(super) created_offset: u8,
    pub(super) modified_offset: u8,
    pub(super) accessed_offset: u8,
    pub(super) reserved2: [u8; 7],
}

/// `FileAttributes`: a directory.
pub(super) const DIRECTORY: u16 = 0x10;

/// Where a file's contents lie (section 7.6).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct StreamEntry {
    pub(super) entry_type: u8,
    /// `GeneralSecondaryFlags`: [`ALLOCATION_POSSIBLE`] and [`NO_FAT_CHAIN`].
    pub(super) flags: u8,
    pub(super) reserved1: u8,
    /// UTF-16 units of the name: 1 to 255.
    pub(super) name_length: u8,
    /// Of the name in upper case (section 7.6.4).
    pub(super) name_hash: U16,
    pub(super) reserved2: U16,
    /// Bytes that were written; those behind them read as zeros.
    pub(super) valid_data_length: U64,
    pub(super) reserved3: U32,
    /// 0 if there is none.
    pub(super) first_cluster: U32,
    /// Bytes.
    pub(super) data_length: U64,
}

/// It may have clusters (section 6.4.2.1).
pub(super) const ALLOCATION_POSSIBLE: u8 = 0x01;
/// Its clusters follow one another, and the FAT says nothing of them (section 6.4.2.2).
pub(super) const NO_FAT_CHAIN: u8 = 0x02;
/// UTF-16 units in an entry of a name (section 7.7).
pub(super) const NAME_UNITS: usize = 15;

const _: () = {
    assert!(size_of::<BootSector>() == 512);
    assert!(offset_of!(BootSector, partition_offset) == 64);
    assert!(offset_of!(BootSector, cluster_heap_offset) == 88);
    assert!(offset_of!(BootSector, volume_flags) == UNCHECKED[0]);
    assert!(offset_of!(BootSector, percent_in_use) == UNCHECKED[2]);
    assert!(size_of::<TableEntry>() == ENTRY_BYTES && offset_of!(TableEntry, first_cluster) == 20);
    assert!(size_of::<FileEntry>() == ENTRY_BYTES && offset_of!(FileEntry, file_attributes) == 4);
    assert!(size_of::<StreamEntry>() == ENTRY_BYTES && offset_of!(StreamEntry, first_cluster) == 20);
};
