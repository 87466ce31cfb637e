//! The on-disk structs of QCOW2, and nothing else.
//!
//! Source: QEMU, `docs/interop/qcow2.rst` ("the specification"), sections in parentheses. All numbers are
//! big-endian. Limits that the specification leaves open are those of QEMU's `block/qcow2.h` ("QEMU").

use std::mem::offset_of;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes: `QFI` and 0xfb (Header).
pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";

/// Clusters of 512 bytes to 2 MiB (Header; the upper limit is QEMU's).
pub(super) const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Extended L2 entries need subclusters of a sector or more, 32 a cluster (Extended L2 Entries).
pub(super) const EXTENDED_CLUSTER_BITS_MIN: u32 = 14;
/// 32 MiB of L1 table (QEMU, `QCOW_MAX_L1_SIZE`).
pub(super) const L1_BYTES_MAX: u64 = 32 << 20;
/// 8 MiB of refcount table (QEMU, `QCOW_MAX_REFTABLE_SIZE`).
pub(super) const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// Refcounts of 1 to 64 bits (Header, `refcount_order`).
pub(super) const REFCOUNT_ORDER_MAX: u32 = 6;
/// Refcounts of 16 bits, which version 2 always has (Header).
pub(super) const REFCOUNT_ORDER_16_BITS: u32 = 4;
/// Internal snapshots (QEMU, `QCOW_MAX_SNAPSHOTS`).
pub(super) const SNAPSHOT_COUNT_MAX: u32 = 65_536;
/// The least that an entry of the snapshot table takes (Snapshots).
pub(super) const SNAPSHOT_BYTES_MIN: u64 = 40;
/// Persistent bitmaps (QEMU, `QCOW2_MAX_BITMAPS`).
pub(super) const BITMAP_COUNT_MAX: u32 = 65_535;
/// Length of a backing file's name (Header).
pub(super) const BACKING_NAME_BYTES_MAX: u32 = 1023;
/// Compressed data is counted in sectors, whatever the guest's are (Cluster mapping).
pub(super) const SECTOR_BYTES: u64 = 512;

/// The header up to `header_length` 112 (Header). Fields beyond the stated length read as zeros.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct Header {
    /// [`MAGIC`].
    pub(super) magic: [u8; 4],
    /// 2 or 3.
    pub(super) version: U32,
    /// Offset of the backing file's name in bytes; 0 if there is none.
    pub(super) backing_file_offset: U64,
    /// Length of that name in bytes, 1023 at most.
    pub(super) backing_file_size: U32,
    /// log2 of the cluster's bytes, see [`CLUSTER_BITS`].
    pub(super) cluster_bits: U32,
    /// Size of the virtual disk in bytes.
    pub(super) size: U64,
    /// 0 none, 1 AES, 2 LUKS.
    pub(super) crypt_method: U32,
    /// Entries in the L1 table.
    pub(super) l1_size: U32,
    /// Offset of the L1 table in bytes, whole clusters.
    pub(super) l1_table_offset: U64,
    /// Offset of the refcount table in bytes, whole clusters.
    pub(super) refcount_table_offset: U64,
    /// Clusters that the refcount table takes.
    pub(super) refcount_table_clusters: U32,
    /// Internal snapshots.
    pub(super) nb_snapshots: U32,
    /// Offset of the snapshot table in bytes, whole clusters.
    pub(super) snapshots_offset: U64,
    /// Version 3: bits that a reader must know, see [`incompatible`].
    pub(super) incompatible_features: U64,
    /// Version 3: bits that may be ignored; bit 0 is lazy refcounts.
    pub(super) compatible_features: U64,
    /// Version 3: bits that a writer clears unless it knows them, see [`autoclear`].
    pub(super) autoclear_features: U64,
    /// Version 3: log2 of a refcount's bits, 0 to 6.
    pub(super) refcount_order: U32,
    /// Version 3: bytes of the header, 104 or more.
    pub(super) header_length: U32,
    /// Version 3 with `header_length` above 104: 0 zlib, 1 zstd.
    pub(super) compression_type: u8,
    /// Zeros.
    pub(super) padding: [u8; 7],
}

/// Bytes of a version 2 header.
pub(super) const HEADER_V2_BYTES: usize = 72;
/// The least that a version 3 header takes.
pub(super) const HEADER_V3_BYTES_MIN: usize = 104;

const _: () = {
    assert!(size_of::<Header>() == 112);
    assert!(offset_of!(Header, size) == 24);
    assert!(offset_of!(Header, l1_table_offset) == 40);
    assert!(offset_of!(Header, incompatible_features) == HEADER_V2_BYTES);
    assert!(offset_of!(Header, compression_type) == HEADER_V3_BYTES_MIN);
};

/// Bits of [`Header::incompatible_features`] (Header).
pub(super) mod incompatible {
    /// Refcounts may be wrong; the mapping is not.
    pub(crate) const DIRTY: u64 = 1 << 0;
    /// A writer found the metadata inconsistent.
    pub(crate) const CORRUPT: u64 = 1 << 1;
    /// Guest data lies in another file.
    pub(crate) const EXTERNAL_DATA: u64 = 1 << 2;
    /// `compression_type` is not zlib.
    pub(crate) const COMPRESSION_TYPE: u64 = 1 << 3;
    /// L2 entries of 16 bytes, with subclusters.
    pub(crate) const EXTENDED_L2: u64 = 1 << 4;
    /// All of these.
    pub(crate) const KNOWN: u64 = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION_TYPE | EXTENDED_L2;
}

/// Bit of [`Header::compatible_features`]: refcounts are written late.
pub(super) const COMPATIBLE_LAZY_REFCOUNTS: u64 = 1 << 0;

/// Bits of [`Header::autoclear_features`] (Header).
pub(super) mod autoclear {
    /// The bitmaps extension is consistent.
    pub(crate) const BITMAPS: u64 = 1 << 0;
    /// The external data file is the virtual disk as it is.
    pub(crate) const RAW_EXTERNAL_DATA: u64 = 1 << 1;
    /// Both of these.
    pub(crate) const KNOWN: u64 = BITMAPS | RAW_EXTERNAL_DATA;
}

/// What precedes each header extension (Header extensions). The data is padded to 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct ExtensionHead {
    /// See [`extension`].
    pub(super) kind: U32,
    /// Bytes of data, without padding.
    pub(super) len_bytes: U32,
}

const _: () = assert!(size_of::<ExtensionHead>() == 8);

/// Kinds of header extension (Header extensions).
pub(super) mod extension {
    /// No more extensions.
    pub(crate) const END: u32 = 0;
    /// The backing file's format, as QEMU calls it.
    pub(crate) const BACKING_FORMAT: u32 = 0xe279_2aca;
    /// Names of feature bits.
    pub(crate) const FEATURE_NAMES: u32 = 0x6803_f857;
    /// Where the dirty bitmaps are.
    pub(crate) const BITMAPS: u32 = 0x2385_2875;
    /// The external data file's name.
    pub(crate) const DATA_FILE_NAME: u32 = 0x4441_5441;
    /// Leandisk's own: the disk of a snapshot that the image stands on, see [`super::OverlayHead`]. Others keep it and go on
    /// ("ignored, can be safely ignored", Header extensions).
    pub(crate) const OVERLAY: u32 = 0x4c44_534e;
}

/// What the extension [`extension::OVERLAY`] begins with. The disk's name follows, to the extension's end.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct OverlayHead {
    /// The repository's ID.
    pub(super) repository: [u8; 32],
    /// The snapshot's ID.
    pub(super) snapshot: [u8; 32],
    /// The ID of the snapshot's tree.
    pub(super) tree: [u8; 32],
}

const _: () = assert!(size_of::<OverlayHead>() == 96);

/// The longest name of a disk in that extension, so that it fits the cluster.
pub(super) const SNAPSHOT_DISK_BYTES_MAX: usize = 1023;

/// An entry of the feature name table (Feature name table).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct FeatureName {
    /// 0 incompatible, 1 compatible, 2 autoclear.
    pub(super) kind: u8,
    /// 0 to 63.
    pub(super) bit: u8,
    /// Padded with zeros.
    pub(super) name: [u8; 46],
}

const _: () = assert!(size_of::<FeatureName>() == 48);

/// The start of an entry of the snapshot table (Snapshots). Extra data, ID and name follow, then zeros up to 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct SnapshotEntry {
    /// Offset of the snapshot's L1 table in bytes, whole clusters.
    pub(super) l1_table_offset: U64,
    /// Entries in it.
    pub(super) l1_size: U32,
    /// Length of the ID in bytes.
    pub(super) id_str_size: U16,
    /// Length of the name in bytes.
    pub(super) name_size: U16,
    /// When it was made: seconds since 1970.
    pub(super) date_sec: U32,
    /// And nanoseconds.
    pub(super) date_nsec: U32,
    /// How long the guest had run, in nanoseconds.
    pub(super) vm_clock_nsec: U64,
    /// Bytes of the guest's memory and devices.
    pub(super) vm_state_size: U32,
    /// Length of the extra data in bytes.
    pub(super) extra_data_size: U32,
}

const _: () = assert!(size_of::<SnapshotEntry>() == 40 && offset_of!(SnapshotEntry, extra_data_size) == 36);

/// The data of the bitmaps extension (Bitmaps extension).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct BitmapsExtension {
    /// Bitmaps of the image.
    pub(super) nb_bitmaps: U32,
    /// Zero.
    pub(super) reserved: U32,
    /// Length of the bitmap directory in bytes.
    pub(super) bitmap_directory_size: U64,
    /// Offset of it in bytes, whole clusters.
    pub(super) bitmap_directory_offset: U64,
}

const _: () = assert!(size_of::<BitmapsExtension>() == 24);

/// The start of an entry of the bitmap directory (Bitmap directory). Extra data and name follow, then zeros up to 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct BitmapEntry {
    /// Offset of the bitmap's table in bytes, whole clusters.
    pub(super) bitmap_table_offset: U64,
    /// Entries in it.
    pub(super) bitmap_table_size: U32,
    /// In use, automatic, extra data is compatible.
    pub(super) flags: U32,
    /// 1: a dirty bitmap.
    pub(super) kind: u8,
    /// log2 of the bytes that a bit stands for.
    pub(super) granularity_bits: u8,
    /// Length of the name in bytes, 1023 at most.
    pub(super) name_size: U16,
    /// Length of the extra data in bytes.
    pub(super) extra_data_size: U32,
}

const _: () = assert!(size_of::<BitmapEntry>() == 24 && offset_of!(BitmapEntry, name_size) == 18);

/// [`BitmapEntry::kind`]: each bit says whether a part of the disk changed.
pub(super) const DIRTY_BITMAP: u8 = 1;
/// [`BitmapEntry::granularity_bits`] (QEMU, `BME_MIN_GRANULARITY_BITS` and `BME_MAX_GRANULARITY_BITS`).
pub(super) const BITMAP_GRANULARITY_BITS: std::ops::RangeInclusive<u32> = 9..=31;
/// The longest name (QEMU, `BME_MAX_NAME_SIZE`).
pub(super) const BITMAP_NAME_BYTES_MAX: u64 = 1023;
/// A bitmap's table is read in one piece: enough for 2^22 clusters of bits.
pub(super) const BITMAP_TABLE_BYTES_MAX: u64 = 32 << 20;

/// [`BitmapEntry::flags`] (Bitmap directory).
pub(super) mod bitmap_flag {
    /// A program has the image open and did not store the bitmap yet, or ended without doing so.
    pub(crate) const IN_USE: u32 = 1 << 0;
    /// Every change of the disk is to be noted.
    pub(crate) const AUTO: u32 = 1 << 1;
    /// Who does not know the extra data may use the bitmap all the same.
    pub(crate) const EXTRA_DATA_COMPATIBLE: u32 = 1 << 2;
    /// Those that are known.
    pub(crate) const KNOWN: u32 = IN_USE | AUTO | EXTRA_DATA_COMPATIBLE;
}

/// A word of a bitmap's table (Bitmap table).
pub(super) mod bitmap_word {
    /// Offset of a cluster of bits in bytes; 0 if all of its bits are the same.
    pub(crate) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
    /// Without an offset: all bits are set.
    pub(crate) const ALL_ONES: u64 = 1 << 0;
}

/// Bits of L1 entries (L1 table entry) and L2 entries (Standard Cluster Descriptor).
pub(super) mod entry {
    /// Offset in the file in bytes, whole clusters.
    pub(crate) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
    /// The cluster's refcount is exactly one. In an external data file: offset 0 is a place.
    pub(crate) const COPIED: u64 = 1 << 63;
    /// The cluster is compressed: another descriptor follows.
    pub(crate) const COMPRESSED: u64 = 1 << 62;
    /// Version 3, standard entries: reads as zeros, whether it has a place or not.
    pub(crate) const ZERO: u64 = 1 << 0;
}

/// Subclusters of a cluster with extended L2 entries. Their bitmap is the second word of the entry: bit `n` says
/// that subcluster `n` is allocated, bit `32 + n` that it reads as zeros (Extended L2 Entries).
pub(super) const SUBCLUSTER_COUNT: u32 = 32;

/// What each entry of the snapshot table begins with (Snapshots). Extra data, the ID and the name follow, up to a multiple of
/// 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct SnapshotHead {
    /// Offset of the snapshot's L1 table in bytes, whole clusters.
    pub(super) l1_table_offset: U64,
    /// Entries in it.
    pub(super) l1_size: U32,
    /// Bytes of the ID.
    pub(super) id_size: U16,
    /// Bytes of the name.
    pub(super) name_size: U16,
    /// When it was taken, and the guest's clock then.
    pub(super) times: [u8; 16],
    /// Bytes of the machine's state.
    pub(super) vm_state_size: U32,
    /// Bytes of extra data.
    pub(super) extra_data_size: U32,
}

const _: () = assert!(size_of::<SnapshotHead>() as u64 == SNAPSHOT_BYTES_MIN);
const _: () = assert!(offset_of!(SnapshotHead, extra_data_size) == 36);

/// Extra data of a snapshot (QEMU, `QCOW_MAX_SNAPSHOT_EXTRA_DATA`).
pub(super) const SNAPSHOT_EXTRA_BYTES_MAX: u32 = 1024;

/// Entry of the refcount table: where a block of refcounts lies, whole clusters; 0 if there is none (Refcounts).
pub(super) const REFCOUNT_BLOCK_OFFSET: u64 = 0xffff_ffff_ffff_fe00;

/// Bits of the offset in a compressed cluster's descriptor; above them, up to bit 61, is the number of sectors
/// beyond the first that the data touches (Compressed Clusters Descriptor).
pub(super) const fn compressed_offset_bits(cluster_bits: u32) -> u32 {
    62 - (cluster_bits - 8)
}
