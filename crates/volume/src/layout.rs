//! The on-disk structs of partition tables, and nothing else.
//!
//! Sources: UEFI specification 2.10, chapter 5 (GPT and the MBR that protects it); for the plain MBR and its
//! chains of extended boot records there is no specification but what Linux (`block/partitions/msdos.c`) and
//! `sfdisk` read and write.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// The last two bytes of an MBR, of an extended boot record, and of most boot sectors (UEFI 5.2.1).
pub(crate) const BOOT_SIGNATURE: u16 = 0xaa55;

/// The partition type that says that a GPT follows (UEFI 5.2.3).
pub(crate) const KIND_GPT_PROTECTIVE: u8 = 0xee;

/// Types of extended partitions: CHS, LBA, and Linux's own.
pub(crate) const KINDS_EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// A partition that belongs to Windows' logical disk manager.
pub(crate) const KIND_LDM: u8 = 0x42;

/// An MBR, or an extended boot record.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct BootRecord {
    /// Code; in a file system's boot sector, its description.
    pub(crate) code: [u8; 440],
    /// Identifies the disk to Windows. 0: none.
    pub(crate) disk_signature: U32,
    /// Usually zero.
    pub(crate) reserved: U16,
    /// Four primary partitions. In an extended boot record: a logical one and the link to the next record.
    pub(crate) entries: [MbrEntry; 4],
    /// [`BOOT_SIGNATURE`].
    pub(crate) signature: U16,
}

const _: () = assert!(size_of::<BootRecord>() == 512);
const _: () = assert!(offset_of!(BootRecord, disk_signature) == 440);
const _: () = assert!(offset_of!(BootRecord, entries) == 446);
const _: () = assert!(offset_of!(BootRecord, signature) == 510);

/// A partition in a [`BootRecord`].
#[derive(FromBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct MbrEntry {
    /// 0x80: boot this one. 0: do not. Nothing else in a partition table.
    pub(crate) status: u8,
    /// The first sector as cylinder, head, sector. Ignored, as every current system does.
    pub(crate) first_chs: [u8; 3],
    /// What it is for. 0: unused entry.
    pub(crate) kind: u8,
    /// The last sector as cylinder, head, sector. Ignored.
    pub(crate) last_chs: [u8; 3],
    /// The first sector, counted from: the disk's start in the MBR; this record for a logical partition; the extended
    /// partition's start for a link.
    pub(crate) first_sector: U32,
    /// Number of sectors. 0: unused entry.
    pub(crate) sector_count: U32,
}

const _: () = assert!(size_of::<MbrEntry>() == 16);
const _: () = assert!(offset_of!(MbrEntry, first_sector) == 8);

/// `EFI PART` (UEFI 5.3.2).
pub(crate) const GPT_SIGNATURE: [u8; 8] = *b"EFI PART";

/// The only revision there is (UEFI 5.3.2).
pub(crate) const GPT_REVISION: u32 = 0x0001_0000;

/// The header of a GPT, or of its backup (UEFI table 5.5).
#[derive(FromBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct GptHeader {
    /// [`GPT_SIGNATURE`].
    pub(crate) signature: [u8; 8],
    /// [`GPT_REVISION`].
    pub(crate) revision: U32,
    /// Bytes that the checksum covers: from this struct's size to one sector.
    pub(crate) header_len_bytes: U32,
    /// CRC32 of the header with this field zero.
    pub(crate) header_crc32: U32,
    /// Zero.
    pub(crate) reserved: U32,
    /// The sector that this header lies in.
    pub(crate) my_lba: U64,
    /// The sector of the other header.
    pub(crate) alternate_lba: U64,
    /// The first sector that a partition may use.
    pub(crate) first_usable_lba: U64,
    /// The last sector that a partition may use.
    pub(crate) last_usable_lba: U64,
    /// The disk's GUID.
    pub(crate) disk_guid: [u8; 16],
    /// The first sector of the array of entries.
    pub(crate) entries_lba: U64,
    /// Number of entries.
    pub(crate) entry_count: U32,
    /// Bytes from one entry to the next: 128 times a power of two.
    pub(crate) entry_len_bytes: U32,
    /// CRC32 of the whole array.
    pub(crate) entries_crc32: U32,
}

const _: () = assert!(size_of::<GptHeader>() == 92);
const _: () = assert!(offset_of!(GptHeader, header_crc32) == 16);
const _: () = assert!(offset_of!(GptHeader, disk_guid) == 56);
const _: () = assert!(offset_of!(GptHeader, entries_crc32) == 88);

/// One partition of a GPT (UEFI table 5.6).
#[derive(FromBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct GptEntry {
    /// What it is for. All zero: unused entry.
    pub(crate) kind_guid: [u8; 16],
    /// The partition's own GUID.
    pub(crate) guid: [u8; 16],
    /// The first sector.
    pub(crate) first_lba: U64,
    /// The last sector, which belongs to it.
    pub(crate) last_lba: U64,
    /// Flags, of which none changes where the partition lies.
    pub(crate) attributes: U64,
    /// UTF-16, filled up with zeros.
    pub(crate) name: [U16; 36],
}

const _: () = assert!(size_of::<GptEntry>() == 128);
const _: () = assert!(offset_of!(GptEntry, first_lba) == 32);
const _: () = assert!(offset_of!(GptEntry, name) == 56);
