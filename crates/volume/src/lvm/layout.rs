//! The on-disk structs of LVM2 and of the device mapper's mirrors, and nothing else. What LVM2's lead to is text ([`super::text`]).
//!
//! Source: LVM2, `lib/label/label.h` (`struct label_header`), `lib/format_text/layout.h` (`struct pv_header`, `struct disk_locn`,
//! `struct mda_header`, `struct raw_locn`); Linux, `drivers/md/dm-raid.c` (`struct dm_raid_superblock`), `drivers/md/md-bitmap.h`
//! (`struct bitmap_super_s`), `drivers/md/dm-log.c` (`struct log_header_disk`). All numbers are little-endian.

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

/// `DM_RAID_MAGIC`.
pub(super) const RAID_MAGIC: u32 = 0x6452_6d44;
/// `FEATURE_FLAG_SUPPORTS_V190`: the fields from `flags` on count.
pub(super) const RAID_EXTENDED: u32 = 1;
/// `MaxSector`, as what there is nothing left to do of.
pub(super) const RAID_DONE: u64 = u64::MAX;
/// Where the bitmap of writes under way begins (`super_validate`).
pub(super) const BITMAP_AT: u64 = 4096;
/// `BITMAP_MAGIC`.
pub(super) const BITMAP_MAGIC: u32 = 0x6d74_6962;
/// `BITMAP_MAJOR_HI`.
pub(super) const BITMAP_VERSION: u32 = 4;
/// `MIRROR_MAGIC`.
pub(super) const MIRROR_MAGIC: u32 = 0x4d69_5272;
/// `MIRROR_DISK_VERSION`.
pub(super) const MIRROR_VERSION: u32 = 2;
/// `LOG_OFFSET`, in bytes: where the log's bits begin.
pub(super) const MIRROR_BITS_AT: u64 = 1024;

/// The first sector of a leg's metadata: `struct dm_raid_superblock`, and the zeros behind it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct RaidSuperblock {
    /// [`RAID_MAGIC`].
    pub(super) magic: U32,
    /// [`RAID_EXTENDED`].
    pub(super) compat_features: U32,
    /// Legs.
    pub(super) num_devices: U32,
    /// Which leg it is of.
    pub(super) array_position: U32,
    /// Of how many changes of all superblocks this is the last.
    pub(super) events: U64,
    /// A bit for each leg that failed.
    pub(super) failed_devices: U64,
    /// How far the leg was rebuilt, in sectors; [`RAID_DONE`] if it is whole.
    pub(super) disk_recovery_offset: U64,
    /// How far the legs were first made equal, in sectors; [`RAID_DONE`] if they are.
    pub(super) array_resync_offset: U64,
    /// RAID's.
    pub(super) level: U32,
    /// None for RAID1.
    pub(super) layout: U32,
    /// None for RAID1.
    pub(super) stripe_sectors: U32,
    /// Of a change of the layout.
    pub(super) flags: U32,
    /// How far that got; [`RAID_DONE`] if there is none.
    pub(super) reshape_position: U64,
    /// What it changes to.
    pub(super) new_level: U32,
    /// What it changes to.
    pub(super) new_layout: U32,
    /// What it changes to.
    pub(super) new_stripe_sectors: U32,
    /// Legs that it adds.
    pub(super) delta_disks: U32,
    /// How long the volume is.
    pub(super) array_sectors: U64,
    /// Where the leg's data begin.
    pub(super) data_offset: U64,
    /// What it changes to.
    pub(super) new_data_offset: U64,
    /// How long the leg is.
    pub(super) sectors: U64,
    /// More of [`Self::failed_devices`].
    pub(super) extended_failed_devices: [U64; 3],
    /// None is known.
    pub(super) incompat_features: U32,
    /// Zeros.
    pub(super) rest: [u8; 364],
}

const _: () = assert!(size_of::<RaidSuperblock>() == 512);
const _: () = assert!(offset_of!(RaidSuperblock, array_resync_offset) == 40);
const _: () = assert!(offset_of!(RaidSuperblock, reshape_position) == 64);
const _: () = assert!(offset_of!(RaidSuperblock, sectors) == 112);
const _: () = assert!(offset_of!(RaidSuperblock, rest) == 148);

/// The header of a bitmap: `struct bitmap_super_s`. A bit for each chunk follows, set where a write may be under way.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct BitmapHeader {
    /// [`BITMAP_MAGIC`].
    pub(super) magic: U32,
    /// [`BITMAP_VERSION`].
    pub(super) version: U32,
    /// Zeros: arrays of the device mapper have none.
    pub(super) uuid: [u8; 16],
    /// As the superblock's.
    pub(super) events: U64,
    /// The superblock's when a bit was last cleared.
    pub(super) events_cleared: U64,
    /// Sectors that the bits stand for.
    pub(super) sync_size: U64,
    /// Whether it is out of date, or could not be written.
    pub(super) state: U32,
    /// Bytes that a bit stands for.
    pub(super) chunksize: U32,
    /// Seconds.
    pub(super) daemon_sleep: U32,
    /// Writes that may be late on a leg.
    pub(super) write_behind: U32,
    /// Sectors reserved for the bitmap.
    pub(super) sectors_reserved: U32,
    /// Of a cluster.
    pub(super) nodes: U32,
    /// Of a cluster, and zeros.
    pub(super) rest: [u8; 184],
}

const _: () = assert!(size_of::<BitmapHeader>() == 256);
const _: () = assert!(offset_of!(BitmapHeader, sync_size) == 40);
const _: () = assert!(offset_of!(BitmapHeader, rest) == 72);

/// The header of a mirror's log: `struct log_header_disk`. A bit for each region lies behind it, clear where a write may be under
/// way.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct MirrorLogHeader {
    /// [`MIRROR_MAGIC`].
    pub(super) magic: U32,
    /// [`MIRROR_VERSION`].
    pub(super) version: U32,
    /// How many bits there are.
    pub(super) nr_regions: U64,
}

const _: () = assert!(size_of::<MirrorLogHeader>() == 16);
