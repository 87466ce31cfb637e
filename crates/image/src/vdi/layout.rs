//! The on-disk structs of VDI, and nothing else. All fields are little-endian.
//!
//! Sources: VirtualBox `src/VBox/Storage/VDICore.h` (`VDIPREHEADER`, `VDIHEADER1PLUS`) and the article *All about
//! VDIs* in VirtualBox's forum.

use std::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header at the file's start.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct VdiHeader {
    /// Who made it, for people. Never checked.
    pub file_info: [u8; 64],
    /// [`SIGNATURE`].
    pub signature: U32,
    /// [`VERSION_1_1`].
    pub version: U32,
    /// Bytes of the header from this field on: 384, or 400 with the last field.
    pub header_bytes: U32,
    /// `TYPE_*`.
    pub image_type: U32,
    /// Hints on allocation.
    pub flags: U32,
    /// A comment, UTF-8.
    pub comment: [u8; 256],
    /// Byte offset of the block map.
    pub map_offset: U32,
    /// Byte offset of the first block.
    pub data_offset: U32,
    /// Cylinders, heads, sectors of a geometry no longer used.
    pub legacy_geometry: [U32; 3],
    /// Bytes of a sector: 512; 0 in some early files.
    pub sector_bytes: U32,
    /// Not used.
    pub dummy: U32,
    /// Bytes of the virtual disk.
    pub disk_bytes: U64,
    /// Bytes of a block, a power of two: 1 MiB.
    pub block_bytes: U32,
    /// Bytes before each block's data: 0.
    pub block_extra_bytes: U32,
    /// Entries of the block map.
    pub block_count: U32,
    /// Blocks that are allocated.
    pub allocated_block_count: U32,
    /// The image's own UUID; all UUIDs have their first three fields little-endian.
    pub uuid_create: [u8; 16],
    /// Changes with the contents.
    pub uuid_modify: [u8; 16],
    /// `uuid_create` of the parent; zeros if there is none.
    pub uuid_linkage: [u8; 16],
    /// `uuid_modify` of the parent; may be zeros.
    pub uuid_parent_modify: [u8; 16],
    /// Cylinders, heads, sectors, and bytes of a sector of the geometry for the guest's BIOS; zeros if not set.
    pub lchs_geometry: [U32; 4],
    /// Zeros.
    pub pad: [u8; 40],
}
const _: () = assert!(size_of::<VdiHeader>() == 512);
const _: () = assert!(offset_of!(VdiHeader, header_bytes) == 0x48);
const _: () = assert!(offset_of!(VdiHeader, map_offset) == 0x154);
const _: () = assert!(offset_of!(VdiHeader, disk_bytes) == 0x170);
const _: () = assert!(offset_of!(VdiHeader, uuid_create) == 0x188);

/// `VDI_IMAGE_SIGNATURE`
pub(super) const SIGNATURE: u32 = 0xbeda_107f;
/// Major version in the upper 16 bits, minor in the lower.
pub(super) const VERSION_1_1: u32 = 0x0001_0001;
/// `VDI_IMAGE_TYPE_NORMAL`: blocks are allocated as they are written.
pub(super) const TYPE_DYNAMIC: u32 = 1;
/// `VDI_IMAGE_TYPE_FIXED`: all blocks are allocated.
pub(super) const TYPE_FIXED: u32 = 2;
/// `VDI_IMAGE_TYPE_DIFF`: a free block is the parent's.
pub(super) const TYPE_DIFFERENCING: u32 = 4;
/// Map entry: not allocated.
pub(super) const BLOCK_FREE: u32 = 0xffff_ffff;
/// Map entry: reads as zeros, hides the parent.
pub(super) const BLOCK_ZERO: u32 = 0xffff_fffe;
/// The block size that VirtualBox and QEMU write; QEMU reads no other.
pub(super) const BLOCK_BYTES: u32 = 1 << 20;
/// VirtualBox aligns map and data to this (`VDI_DATA_ALIGN`).
pub(super) const ALIGNMENT_BYTES: u64 = 1 << 20;
