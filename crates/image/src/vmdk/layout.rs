//! The on-disk structs of VMDK extents, and nothing else. All are little-endian; offsets and sizes are counted
//! in sectors of 512 bytes unless a field says otherwise.
//!
//! Sources: VMware, *Virtual Disk Format 1.1* (hosted sparse, stream-optimised and ESX server sparse extents).
//! SESparse is not documented by VMware; its facts are those that QEMU's driver established.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The unit of every count and offset in the format.
pub(super) const SECTOR_BYTES: u64 = 512;

/// `KDMV`: a hosted sparse extent.
pub(super) const SPARSE_MAGIC: u32 = u32::from_le_bytes(*b"KDMV");
/// `COWD`: an ESX server sparse extent.
pub(super) const COWD_MAGIC: u32 = u32::from_le_bytes(*b"COWD");
/// An SESparse extent's constant header.
pub(super) const SESPARSE_MAGIC: u64 = 0x0000_0000_cafe_babe;
/// An SESparse extent's volatile header.
pub(super) const SESPARSE_VOLATILE_MAGIC: u64 = 0x0000_0000_cafe_cafe;

/// Hosted sparse extent header (section *Hosted Sparse Extent Metadata*), sector 0; and the stream's footer.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SparseHeader {
    /// [`SPARSE_MAGIC`].
    pub magic: U32,
    /// 1; 2 where zeroed grains are used; 3 with changed-block tracking or by stream writers.
    pub version: U32,
    /// `FLAG_*`.
    pub flags: U32,
    /// Sectors of the virtual disk that the extent holds. 0: the embedded descriptor names other extents.
    pub capacity: U64,
    /// Sectors of a grain, a power of two above 4 by the specification.
    pub grain_size: U64,
    /// Sector of the embedded descriptor, 0 if there is none.
    pub descriptor_offset: U64,
    /// Sectors of the embedded descriptor.
    pub descriptor_size: U64,
    /// Entries of a grain table: 512.
    pub gtes_per_gt: U32,
    /// Sector of the redundant grain directory, if [`FLAG_REDUNDANT`].
    pub rgd_offset: U64,
    /// Sector of the grain directory, or [`GD_AT_END`].
    pub gd_offset: U64,
    /// Sectors before the first grain.
    pub overhead: U64,
    /// Not 0 while a program has the extent open for writing.
    pub unclean_shutdown: u8,
    /// [`NEWLINES`], damaged by a transfer that takes the file for text.
    pub newlines: [u8; 4],
    /// [`COMPRESSION_NONE`] or [`COMPRESSION_DEFLATE`].
    pub compress_algorithm: U16,
    /// Zeros.
    pub pad: [u8; 433],
}
const _: () = assert!(size_of::<SparseHeader>() == 512);
const _: () = assert!(offset_of!(SparseHeader, capacity) == 12);
const _: () = assert!(offset_of!(SparseHeader, gd_offset) == 56);
const _: () = assert!(offset_of!(SparseHeader, compress_algorithm) == 77);

/// `singleEndLineChar` to `doubleEndLineChar2`.
pub(super) const NEWLINES: [u8; 4] = *b"\n \r\n";
/// The newline bytes are there to be checked.
pub(super) const FLAG_NEWLINES: u32 = 1 << 0;
/// The redundant grain directory is in use.
pub(super) const FLAG_REDUNDANT: u32 = 1 << 1;
/// A grain-table entry of 1 marks a zeroed grain.
pub(super) const FLAG_ZEROED_GRAINS: u32 = 1 << 2;
/// Grains are compressed.
pub(super) const FLAG_COMPRESSED: u32 = 1 << 16;
/// Grains and metadata are preceded by markers.
pub(super) const FLAG_MARKERS: u32 = 1 << 17;
/// Flags that a reader must know.
pub(super) const FLAGS_INCOMPATIBLE: u32 = 0xffff_0000;
/// The grain directory's place is in the footer.
pub(super) const GD_AT_END: u64 = u64::MAX;
/// Grains lie as they are.
pub(super) const COMPRESSION_NONE: u16 = 0;
/// Grains are zlib streams (RFC 1950), though the specification speaks of RFC 1951.
pub(super) const COMPRESSION_DEFLATE: u16 = 1;
/// Grain-table entry: not allocated.
pub(super) const GTE_ABSENT: u32 = 0;
/// Grain-table entry: zeroed, under [`FLAG_ZEROED_GRAINS`].
pub(super) const GTE_ZEROED: u32 = 1;
/// Entries of a grain table, by the specification.
pub(super) const GTES_PER_GT: u32 = 512;

/// What precedes a compressed grain (section *Stream-Optimized Compressed Sparse Extents*). The data follow
/// without a gap.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct GrainMarker {
    /// First sector of the grain within the extent's part of the virtual disk.
    pub lba: U64,
    /// Bytes of compressed data; never 0.
    pub size: U32,
}
const _: () = assert!(size_of::<GrainMarker>() == 12);

/// What precedes metadata in a stream: one sector.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct MetadataMarker {
    /// Sectors of metadata that follow.
    pub sector_count: U64,
    /// 0, which tells it from a grain's marker.
    pub size: U32,
    /// `MARKER_*`.
    pub kind: U32,
    /// Zeros.
    pub pad: [u8; 496],
}
const _: () = assert!(size_of::<MetadataMarker>() == 512);

/// End of stream.
pub(super) const MARKER_END: u32 = 0;
/// A grain table follows.
pub(super) const MARKER_GRAIN_TABLE: u32 = 1;
/// The grain directory follows.
pub(super) const MARKER_GRAIN_DIRECTORY: u32 = 2;
/// The footer follows.
pub(super) const MARKER_FOOTER: u32 = 3;

/// ESX server sparse extent header (section *ESX Server Sparse Extents*), sectors 0 to 3.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct CowdHeader {
    /// [`COWD_MAGIC`].
    pub magic: U32,
    /// 1.
    pub version: U32,
    /// 3; [`COWD_FLAG_INCONSISTENT`] where a check failed.
    pub flags: U32,
    /// Sectors of the virtual disk.
    pub capacity: U32,
    /// Sectors of a grain: 1 by default.
    pub grain_size: U32,
    /// Sector of the grain directory: 4.
    pub gd_offset: U32,
    /// Entries of the grain directory.
    pub gd_entry_count: U32,
    /// The next free sector.
    pub free_sector: U32,
    /// Root: geometry. Child: the parent's name and generation. The descriptor says it today.
    pub root_or_child: [u8; 1028],
    /// Changes with each opening.
    pub generation: U32,
    /// Free text.
    pub name: [u8; 60],
    /// Free text.
    pub description: [u8; 512],
    /// The generation when it was last saved.
    pub saved_generation: U32,
    /// Zeros.
    pub reserved: [u8; 8],
    /// Not 0 while a program has the extent open for writing.
    pub unclean_shutdown: U32,
    /// Zeros.
    pub padding: [u8; 396],
}
const _: () = assert!(size_of::<CowdHeader>() == 2048);
const _: () = assert!(offset_of!(CowdHeader, unclean_shutdown) == 1648);

/// The extent was found to contradict itself.
pub(super) const COWD_FLAG_INCONSISTENT: u32 = 1 << 2;
/// Entries of an ESX server sparse extent's grain table.
pub(super) const COWD_GTES_PER_GT: u32 = 4096;

/// An area of an SESparse extent, in sectors.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SeSparseArea {
    /// First sector.
    pub offset: U64,
    /// Sectors.
    pub size: U64,
}

/// SESparse constant header, sector 0.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SeSparseHeader {
    /// [`SESPARSE_MAGIC`].
    pub magic: U64,
    /// [`SESPARSE_VERSION`].
    pub version: U64,
    /// Sectors of the virtual disk.
    pub capacity: U64,
    /// Sectors of a grain: 8.
    pub grain_size: U64,
    /// Sectors of a grain table: 64.
    pub grain_table_size: U64,
    /// 0.
    pub flags: U64,
    /// Zeros.
    pub reserved: [U64; 4],
    /// One sector: [`SeSparseVolatileHeader`].
    pub volatile_header: SeSparseArea,
    /// The journal's header.
    pub journal_header: SeSparseArea,
    /// The journal.
    pub journal: SeSparseArea,
    /// The grain directory.
    pub grain_directory: SeSparseArea,
    /// All grain tables, counted by the directory's entries.
    pub grain_tables: SeSparseArea,
    /// Which grains are free.
    pub free_bitmap: SeSparseArea,
    /// From grains to tables.
    pub backmap: SeSparseArea,
    /// All grains, counted by the tables' entries.
    pub grains: SeSparseArea,
    /// Zeros.
    pub pad: [u8; 304],
}
const _: () = assert!(size_of::<SeSparseHeader>() == 512);
const _: () = assert!(offset_of!(SeSparseHeader, grain_directory) == 128);

/// The one version known.
pub(super) const SESPARSE_VERSION: u64 = 0x0000_0002_0000_0001;

/// SESparse volatile header.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SeSparseVolatileHeader {
    /// [`SESPARSE_VOLATILE_MAGIC`].
    pub magic: U64,
    /// The next free grain table.
    pub free_gt_number: U64,
    /// The journal's next transaction.
    pub next_txn_seq_number: U64,
    /// Not 0: the journal holds changes that the tables lack.
    pub replay_journal: U64,
    /// Zeros.
    pub pad: [u8; 480],
}
const _: () = assert!(size_of::<SeSparseVolatileHeader>() == 512);

/// Upper half of a grain-directory entry that has a table; the lower half is the table's number.
pub(super) const SESPARSE_GDE_ALLOCATED: u64 = 0x1000_0000;
/// The kind of a grain-table entry.
pub(super) const SESPARSE_GTE_KIND_SHIFT: u32 = 60;
/// Kind: unmapped by the guest; reads as zeros.
pub(super) const SESPARSE_GTE_UNMAPPED: u64 = 1;
/// Kind: zeros.
pub(super) const SESPARSE_GTE_ZEROED: u64 = 2;
/// Kind: allocated. The grain's number is split: its low 12 bits lie in bits 48 to 59, the rest in bits 0 to 47.
pub(super) const SESPARSE_GTE_ALLOCATED: u64 = 3;
