//! The on-disk structs of the journal, and nothing else. `docs/formats/journal.md` has them byte by byte.
//!
//! Source: Leandisk's own format. All numbers are little-endian.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a journal.
pub(crate) const HEADER_MAGIC: [u8; 8] = *b"LEANDJNL";

/// The first bytes of a record.
pub(crate) const RECORD_MAGIC: [u8; 8] = *b"LEANDREC";

/// The version that is written.
pub(crate) const VERSION: u32 = 2;

/// The version before, which has no [`OwnerEntry`]. It is read, so that what was interrupted then can be finished.
pub(crate) const VERSION_WITHOUT_OWNER: u32 = 1;

/// What a journal begins with, before the witnesses and texts.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct HeaderStart {
    /// [`HEADER_MAGIC`].
    pub(crate) magic: [u8; 8],
    /// [`VERSION`], or [`VERSION_WITHOUT_OWNER`].
    pub(crate) version: U32,
    /// Bytes of the header with all that follows this struct; the rest up to [`crate::HEADER_BYTES`] is zeros.
    pub(crate) len_bytes: U32,
    /// XXH3-128 of `len_bytes` bytes, these taken as zeros.
    pub(crate) digest: [u8; 16],
    /// Size of the virtual disk in bytes.
    pub(crate) virtual_bytes: U64,
    /// Where the volume begins on the virtual disk, in bytes.
    pub(crate) volume_start: U64,
    /// Size of the volume in bytes.
    pub(crate) volume_bytes: U64,
    /// Size of each of the two slots in bytes: a multiple of 4096.
    pub(crate) slot_bytes: U64,
    /// XXH3-128 of the witnesses' bytes, one after the other, when the journal was made.
    pub(crate) witness_digest: [u8; 16],
    /// Count of [`SpanEntry`]s that follow the [`OwnerEntry`]: at most [`crate::WITNESS_COUNT_MAX`].
    pub(crate) witness_count: U32,
    /// Bytes of the file system's name, which follows the witnesses.
    pub(crate) filesystem_len: U16,
    /// Bytes of the file system's UUID, which follows.
    pub(crate) uuid_len: U16,
    /// Bytes of the image's format, which follows.
    pub(crate) format_len: U16,
    /// Bytes of the image's path, which follows.
    pub(crate) path_len: U16,
    /// Zero.
    pub(crate) reserved: U32,
}

const _: () = assert!(size_of::<HeaderStart>() == 96);
const _: () = assert!(offset_of!(HeaderStart, digest) == 16);
const _: () = assert!(offset_of!(HeaderStart, witness_digest) == 64);
const _: () = assert!(offset_of!(HeaderStart, witness_count) == 80);

/// Which file the disk is, and which one the journal. Follows [`HeaderStart`] from version 2 on.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct OwnerEntry {
    /// `st_dev` of the disk's first file; all ones if that is a block device.
    pub(crate) disk_device: U64,
    /// Its inode's number; of a block device its own number (`st_rdev`).
    pub(crate) disk_inode: U64,
    /// `st_dev` of the journal's file.
    pub(crate) journal_device: U64,
    /// Its inode's number.
    pub(crate) journal_inode: U64,
    /// Bytes of a block device's lasting name, which follows the other texts.
    pub(crate) lasting_name_len: U16,
    /// Zeros.
    pub(crate) reserved: [u8; 6],
}

const _: () = assert!(size_of::<OwnerEntry>() == 40);
const _: () = assert!(offset_of!(OwnerEntry, journal_device) == 16);
const _: () = assert!(offset_of!(OwnerEntry, lasting_name_len) == 32);

/// A witness.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct SpanEntry {
    /// Where it begins on the virtual disk, in bytes.
    pub(crate) start: U64,
    /// Its length in bytes.
    pub(crate) len_bytes: U64,
}

const _: () = assert!(size_of::<SpanEntry>() == 16);

/// What a record begins with.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RecordStart {
    /// [`RECORD_MAGIC`].
    pub(crate) magic: [u8; 8],
    /// Bytes of the record with all that follows this struct: at most a slot.
    pub(crate) len_bytes: U64,
    /// XXH3-128 of `len_bytes` bytes, these taken as zeros.
    pub(crate) digest: [u8; 16],
    /// The digest of the header that the record belongs to.
    pub(crate) header_digest: [u8; 16],
    /// Counts up from 1. Odd ones lie in the second slot, even ones in the first.
    pub(crate) sequence: U64,
    /// Count of [`MoveEntry`]s that follow this struct.
    pub(crate) move_count: U32,
    /// Count of [`PatchEntry`]s that follow the moves.
    pub(crate) patch_count: U32,
}

const _: () = assert!(size_of::<RecordStart>() == 64);
const _: () = assert!(offset_of!(RecordStart, digest) == 16);
const _: () = assert!(offset_of!(RecordStart, sequence) == 48);

/// Bytes that were copied.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct MoveEntry {
    /// Where they lay on the virtual disk.
    pub(crate) from: U64,
    /// Where they lie now, too.
    pub(crate) to: U64,
    /// How many.
    pub(crate) len_bytes: U64,
    /// XXH3-128 of them.
    pub(crate) digest: [u8; 16],
}

const _: () = assert!(size_of::<MoveEntry>() == 40);

/// Bytes that change. All of them as they are afterwards, then the differences, follow the entries, patch by patch.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct PatchEntry {
    /// Where they lie on the virtual disk.
    pub(crate) at: U64,
    /// How many.
    pub(crate) len_bytes: U32,
    /// Count of [`DifferenceEntry`]s.
    pub(crate) difference_count: U32,
}

const _: () = assert!(size_of::<PatchEntry>() == 16);

/// Where a patch's bytes before differ from those after. The bytes before follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct DifferenceEntry {
    /// From the patch's start.
    pub(crate) start: U32,
    /// How many bytes.
    pub(crate) len_bytes: U32,
}

const _: () = assert!(size_of::<DifferenceEntry>() == 8);
