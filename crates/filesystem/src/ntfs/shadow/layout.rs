//! The on-disk structs of volume shadow copies, and nothing else.
//!
//! Microsoft published no specification. Names, offsets and meanings follow J. Metz, "Volume Shadow Snapshot (VSS) format"
//! (libvshadow); the chapter is named at each struct. All integers are little-endian, and offsets count from the volume's start
//! unless they say otherwise.

use std::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Where [`VolumeHeader`] lies, in the boot file's last sector but one.
pub(super) const HEADER_OFFSET: u64 = 0x1e00;
/// Bytes of everything else: of a block of the catalog, of a store's lists, and of what a store holds.
pub(super) const BLOCK_BYTES: u64 = 0x4000;
/// What begins each block of metadata: {3808876b-c176-4e48-b7ae-04046e6cc752}.
pub(super) const IDENTIFIER: [u8; 16] =
    [0x6b, 0x87, 0x08, 0x38, 0x76, 0xc1, 0x48, 0x4e, 0xb7, 0xae, 0x04, 0x04, 0x6e, 0x6c, 0xc7, 0x52];
/// The identifier as it ends the names of the files that hold shadow copies. The catalog's has no other name.
pub(super) const NAME_END: &str = "{3808876b-c176-4e48-b7ae-04046e6cc752}";

/// [`VolumeHeader::record_type`].
pub(super) const RECORD_VOLUME_HEADER: u32 = 1;
/// [`BlockHeader::record_type`] of a block of the catalog.
pub(super) const RECORD_CATALOG: u32 = 2;
/// Of a list of [`BlockDescriptor`].
pub(super) const RECORD_BLOCK_LIST: u32 = 3;
/// Of a store's first block, which [`StoreInformation`] follows.
pub(super) const RECORD_STORE_HEADER: u32 = 4;
/// Of a list of the places where the store's own file lies.
pub(super) const RECORD_BLOCK_RANGES: u32 = 5;
/// Of a bitmap with a bit for each block of the volume.
pub(super) const RECORD_BITMAP: u32 = 6;

/// Chapter "Volume header".
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct VolumeHeader {
    /// [`IDENTIFIER`].
    pub(super) identifier: [u8; 16],
    /// 1, or 2 since Windows 8.
    pub(super) version: U32,
    /// [`RECORD_VOLUME_HEADER`].
    pub(super) record_type: U32,
    /// [`HEADER_OFFSET`].
    pub(super) current_offset: U64,
    /// Not known.
    pub(super) unknown_20: [U64; 2],
    /// The catalog's first block; 0 if there is none.
    pub(super) catalog_offset: U64,
    /// The most that stores may take, in bytes; 0 if nothing was set.
    pub(super) maximum_size: U64,
    /// The GUID of this volume.
    pub(super) volume_identifier: [u8; 16],
    /// The GUID of the volume with the stores of this one.
    pub(super) storage_volume_identifier: [u8; 16],
}
const _: () = assert!(size_of::<VolumeHeader>() == 96);
const _: () = assert!(offset_of!(VolumeHeader, catalog_offset) == 48);
const _: () = assert!(offset_of!(VolumeHeader, storage_volume_identifier) == 80);

/// What begins a block of metadata: chapters "Catalog block header" and "Store block header", which are the same but for
/// `information_size`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BlockHeader {
    /// [`IDENTIFIER`].
    pub(super) identifier: [u8; 16],
    /// 1.
    pub(super) version: U32,
    /// [`RECORD_CATALOG`] and the following.
    pub(super) record_type: U32,
    /// Where it lies in the catalog, or in the store.
    pub(super) relative_offset: U64,
    /// Where it lies.
    pub(super) current_offset: U64,
    /// Where the next block of its list lies; 0 in the last one.
    pub(super) next_offset: U64,
    /// Bytes of what follows a store's header; zero in all others.
    pub(super) information_size: U64,
    /// Zero.
    pub(super) unused_38: [U64; 9],
}
const _: () = assert!(size_of::<BlockHeader>() == 128);
const _: () = assert!(offset_of!(BlockHeader, next_offset) == 40);

/// Bytes of an entry of the catalog.
pub(super) const CATALOG_ENTRY_BYTES: usize = 128;
/// [`CopyEntry::entry_type`] of an entry that is not used: nothing but zeros.
pub(super) const ENTRY_EMPTY: u64 = 0;
/// Of an entry that is not used any more.
pub(super) const ENTRY_UNUSED: u64 = 1;
/// Of a [`CopyEntry`].
pub(super) const ENTRY_COPY: u64 = 2;
/// Of a [`StoreEntry`].
pub(super) const ENTRY_STORE: u64 = 3;

/// Chapter "Catalog entry type 0x02": a shadow copy of this volume.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct CopyEntry {
    /// [`ENTRY_COPY`].
    pub(super) entry_type: U64,
    /// Bytes of the volume when the copy was made.
    pub(super) volume_size: U64,
    /// The GUID in the name of the store's file.
    pub(super) store_identifier: [u8; 16],
    /// Counts the copies, as far as is known.
    pub(super) sequence_number: U64,
    /// Not known; 0x40 in Windows 7.
    pub(super) flags: U64,
    /// When the copy was made, in units of 100 ns since 1601 (UTC).
    pub(super) creation_time: U64,
    /// Zero.
    pub(super) unused_38: [U64; 9],
}
const _: () = assert!(size_of::<CopyEntry>() == CATALOG_ENTRY_BYTES);
const _: () = assert!(offset_of!(CopyEntry, creation_time) == 48);

/// Chapter "Catalog entry type 0x03": a store on this volume.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct StoreEntry {
    /// [`ENTRY_STORE`].
    pub(super) entry_type: U64,
    /// The first block with [`BlockDescriptor`]s.
    pub(super) block_list_offset: U64,
    /// That of the [`CopyEntry`].
    pub(super) store_identifier: [u8; 16],
    /// The store's first block.
    pub(super) header_offset: U64,
    /// The first block of the list of where the store's file lies.
    pub(super) range_list_offset: U64,
    /// The first block of the bitmap of what the copy does not use.
    pub(super) bitmap_offset: U64,
    /// The store's file in `$MFT`.
    pub(super) file_reference: U64,
    /// Not sure: bytes that the store takes.
    pub(super) allocated_size: U64,
    /// The first block of the bitmap of what older copies do not use; 0 if there is none.
    pub(super) previous_bitmap_offset: U64,
    /// Not known.
    pub(super) unknown_50: U64,
    /// Zero.
    pub(super) unused_58: [U64; 5],
}
const _: () = assert!(size_of::<StoreEntry>() == CATALOG_ENTRY_BYTES);
const _: () = assert!(offset_of!(StoreEntry, previous_bitmap_offset) == 72);

/// Chapter "Store information".
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct StoreInformation {
    /// Not known.
    pub(super) unknown_00: [u8; 16],
    /// The GUID under which Windows lists the copy.
    pub(super) copy_identifier: [u8; 16],
    /// The GUID that copies of several volumes share that were made at the same time.
    pub(super) copy_set_identifier: [u8; 16],
    /// What it was made for.
    pub(super) context: U32,
    /// Not known.
    pub(super) provider: U32,
    /// Flags such as "persistent".
    pub(super) attribute_flags: U32,
    /// Not known.
    pub(super) unknown_3c: U32,
}
const _: () = assert!(size_of::<StoreInformation>() == 64);

/// Chapter "Block descriptor": where a block of the copy is.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BlockDescriptor {
    /// Where the block lay when the copy was made.
    pub(super) original_offset: U64,
    /// Where its data lie in the store; of a forwarder where they lie on the volume.
    pub(super) relative_offset: U64,
    /// Where its data lie on the volume; of a forwarder 0.
    pub(super) store_offset: U64,
    /// [`DESCRIPTOR_FORWARDER`] and the following.
    pub(super) flags: U32,
    /// Of an overlay: a bit for each 512 bytes that it holds.
    pub(super) allocation_bitmap: U32,
}
const _: () = assert!(size_of::<BlockDescriptor>() == 32);

/// The block was moved, not copied.
pub(super) const DESCRIPTOR_FORWARDER: u32 = 0x01;
/// Holds parts of the block only.
pub(super) const DESCRIPTOR_OVERLAY: u32 = 0x02;
/// To be ignored.
pub(super) const DESCRIPTOR_NOT_USED: u32 = 0x04;
/// Flags that were seen, whose meaning is not known, and which no reader minds.
pub(super) const DESCRIPTOR_HARMLESS: u32 = 0xf8;
/// Bytes that a bit of [`BlockDescriptor::allocation_bitmap`] stands for.
pub(super) const OVERLAY_BIT_BYTES: u64 = 512;
