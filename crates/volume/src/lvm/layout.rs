//! The on-disk structs of LVM2, and nothing else. What they lead to is text ([`super::text`]).
//!
//! Source: LVM2, `lib/label/label.h` (`struct label_header`), `lib/format_text/layout.h` (`struct pv_header`, `struct disk_locn`,
//! `struct mda_header`, `struct raw_locn`). All numbers are little-endian.

use std::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The label lies in one of the first four sectors (`LABEL_SCAN_SECTORS`).
pub(super) const LABEL_SECTOR_COUNT: u64 = 4;
/// LVM counts in sectors of this size, whatever those of the disk are (`SECTOR_SIZE`).
pub(crate) const SECTOR_BYTES: u64 = 512;
/// `LABEL_ID`.
pub(super) const LABEL_ID: [u8; 8] = *b"LABELONE";
/// `LVM2_LABEL`.
pub(super) const LABEL_TYPE: [u8; 8] = *b"LVM2 001";
/// `FMTT_MAGIC`.
pub(super) const AREA_MAGIC: [u8; 16] = *b"\x20LVM2\x20x[5A%r0N*>";
/// `FMTT_VERSION`.
pub(super) const AREA_VERSION: u32 = 1;
/// `MDA_HEADER_SIZE`: the text begins behind it, and goes on there after the end of the area.
pub(super) const AREA_HEADER_BYTES: u64 = 512;
/// `RAW_LOCN_IGNORED`.
pub(super) const TEXT_IGNORED: u32 = 1;
/// `INITIAL_CRC`: with what the register of all checksums begins.
pub(super) const CRC_START: u32 = 0xf597_a6cf;

/// The sector of the label: `struct label_header`, and what follows it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct Label {
    /// [`LABEL_ID`].
    pub(super) id: [u8; 8],
    /// The sector that it lies in.
    pub(super) sector: U64,
    /// Of everything that follows it in the sector.
    pub(super) checksum: U32,
    /// Where in the sector `struct pv_header` begins.
    pub(super) header_at: U32,
    /// [`LABEL_TYPE`].
    pub(super) kind: [u8; 8],
    /// The rest of the sector.
    pub(super) rest: [u8; 480],
}

const _: () = assert!(size_of::<Label>() == 512);
const _: () = assert!(offset_of!(Label, header_at) == 20);

/// `struct pv_header`, without the lists behind it.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct VolumeHeader {
    /// The physical volume's identifier.
    pub(super) id: [u8; 32],
    /// Bytes that it takes of its device.
    pub(super) device_bytes: U64,
}

/// A part of the device: `struct disk_locn`. One that is all zeros ends a list.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Area {
    /// Its first byte.
    pub(super) offset: U64,
    /// Its length. 0 for extents up to the device's end.
    pub(super) len_bytes: U64,
}

/// The header of a metadata area: `struct mda_header`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct AreaHeader {
    /// Of everything that follows it in the sector.
    pub(super) checksum: U32,
    /// [`AREA_MAGIC`].
    pub(super) magic: [u8; 16],
    /// [`AREA_VERSION`].
    pub(super) version: U32,
    /// Where the area begins, which is this header's place.
    pub(super) start: U64,
    /// How long it is.
    pub(super) len_bytes: U64,
    /// The text that counts, and one that is about to.
    pub(super) texts: [TextLocation; 2],
    /// Unused.
    pub(super) rest: [u8; 424],
}

const _: () = assert!(size_of::<AreaHeader>() == 512);
const _: () = assert!(offset_of!(AreaHeader, texts) == 40);

/// Where a text lies in its area: `struct raw_locn`. One whose offset is 0 is none.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct TextLocation {
    /// From the area's beginning.
    pub(super) offset: U64,
    /// Its length, the terminating zero included.
    pub(super) len_bytes: U64,
    /// Of the text.
    pub(super) checksum: U32,
    /// [`TEXT_IGNORED`].
    pub(super) flags: U32,
}
