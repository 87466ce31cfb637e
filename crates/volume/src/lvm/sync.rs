//! Whether the legs of a mirror are in sync, by what the device mapper wrote beside them.
//!
//! Invariant: every field that has a say has the one value that it has in a mirror at rest; anything else is a reason.
//!
//! Source: Linux, `drivers/md/dm-raid.c` (`super_sync`, `super_validate`), `drivers/md/md-bitmap.c` (`md_bitmap_read_sb`,
//! `md_bitmap_init_from_disk`), `drivers/md/dm-log.c` (`disk_resume`).

use block::{ReadAt, Result, read_struct};
use extent::{Offset, Volume};
use zerocopy::IntoBytes;

use super::layout::{
    BITMAP_AT, BITMAP_MAGIC, BITMAP_VERSION, BitmapHeader, MIRROR_BITS_AT, MIRROR_MAGIC, MIRROR_VERSION,
    MirrorLogHeader, RAID_DONE, RAID_EXTENDED, RAID_MAGIC, RaidSuperblock, SECTOR_BYTES,
};
use super::mirror::Log;

/// Bits are read in pieces of this size.
const PIECE_BYTES: u64 = 64 << 10;
/// Where the bits of a bitmap begin.
const BITMAP_BITS_AT: u64 = BITMAP_AT + size_of::<BitmapHeader>() as u64;

/// Why the legs of a mirror of `len_bytes` may differ, by the contents of its log's places; `None` if they are in sync.
pub fn doubt(log: &Log, contents: &[&dyn ReadAt<Volume>], len_bytes: u64) -> Result<Option<String>> {
    match (log, contents) {
        (Log::OfLegs(_), [first, ..]) => of_legs(*first, contents, len_bytes),
        (Log::Shared { region_bytes, .. }, [log]) => of_log(*log, *region_bytes, len_bytes),
        _ => Ok(Some("it has no log".into())),
    }
}

/// Whether all bits are as `wanted` says from `at` on.
fn are_all(source: &dyn ReadAt<Volume>, at: u64, count: u64, wanted: bool) -> Result<bool> {
    let byte = if wanted { 0xff } else { 0 };
    let (mut done, whole) = (0, count / 8);
    while done < whole {
        let len_bytes = PIECE_BYTES.min(whole - done);
        let mut piece = vec![0; usize::try_from(len_bytes).unwrap_or(0)];
        source.read_at(Offset::new(at + done), &mut piece)?;
        if piece.iter().any(|found| *found != byte) {
            return Ok(false);
        }
        done += len_bytes;
    }
    // What is behind the last bit says nothing.
    let mask = !(0xff_u8 << (count % 8));
    let mut last = [byte];
    if mask != 0 {
        source.read_at(Offset::new(at + whole), &mut last)?;
    }
    Ok(last[0] & mask == byte & mask)
}

/// Whether `count` bits from `at` on lie within a part.
fn is_within(source: &dyn ReadAt<Volume>, at: u64, count: u64) -> bool {
    at.checked_add(count.div_ceil(8)).is_some_and(|end| end <= source.len_bytes())
}

fn of_legs(
    first: &dyn ReadAt<Volume>,
    legs: &[&dyn ReadAt<Volume>],
    len_bytes: u64,
) -> Result<Option<String>> {
    if legs.iter().any(|leg| leg.len_bytes() < BITMAP_BITS_AT) {
        return Ok(Some("its metadata are too short".into()));
    }
    let (events, bitmap) = (read_superblock(first)?.events, read_bitmap(first)?);
    let told = |position: usize, doubt: &str| Ok(Some(format!("leg {position}: {doubt}")));
    for (position, leg) in legs.iter().enumerate() {
        let (superblock, header) = (read_superblock(*leg)?, read_bitmap(*leg)?);
        let is_of_one_time = superblock.events == events && header.as_bytes() == bitmap.as_bytes();
        let doubt = of_superblock(&superblock, position, legs.len(), len_bytes)
            .or_else(|| (!is_of_one_time).then_some("what it and the first leg say is not of one time"))
            .or_else(|| of_bitmap(&header, &superblock));
        if let Some(doubt) = doubt {
            return told(position, doubt);
        }
    }
    // Where a leg failed or is being rebuilt, writes are under way as well: that comes last.
    for (position, leg) in legs.iter().enumerate() {
        if let Some(doubt) = of_bits(*leg, &bitmap, len_bytes)? {
            return told(position, doubt);
        }
    }
    Ok(None)
}

fn read_superblock(leg: &dyn ReadAt<Volume>) -> Result<RaidSuperblock> {
    read_struct(leg, Offset::ZERO, "superblock of a RAID1 leg")
}

fn read_bitmap(leg: &dyn ReadAt<Volume>) -> Result<BitmapHeader> {
    read_struct(leg, Offset::new(BITMAP_AT), "bitmap of a RAID1 leg")
}

/// What a leg's superblock says against it.
fn of_superblock(
    found: &RaidSuperblock,
    position: usize,
    count: usize,
    len_bytes: u64,
) -> Option<&'static str> {
    let sectors = len_bytes / SECTOR_BYTES;
    let is_number = |found: u32, wanted: usize| usize::try_from(found).is_ok_and(|found| found == wanted);
    let has_failed = found.failed_devices.get() != 0
        || found.extended_failed_devices.iter().any(|devices| devices.get() != 0);
    let is_plain = found.level.get() == 1
        && found.layout.get() == 0
        && found.stripe_sectors.get() == 0
        && found.flags.get() == 0
        && found.reshape_position.get() == RAID_DONE
        && found.new_level.get() == 1
        && found.new_layout.get() == 0
        && found.new_stripe_sectors.get() == 0
        && found.delta_disks.get() == 0;
    let is_there = found.array_sectors.get() == sectors
        && found.sectors.get() == sectors
        && found.data_offset.get() == 0
        && found.new_data_offset.get() == 0;
    let is_known = found.compat_features.get() == RAID_EXTENDED
        && found.incompat_features.get() == 0
        && found.rest.iter().all(|byte| *byte == 0);
    let expected = [
        (found.magic.get() == RAID_MAGIC, "it has no superblock"),
        (is_known, "its superblock has features that are not understood"),
        (is_number(found.num_devices.get(), count), "its superblock has another number of legs"),
        (is_number(found.array_position.get(), position), "its superblock is another leg's"),
        (found.events.get() > 0, "its superblock was never brought up to date"),
        (!has_failed, "a leg failed"),
        (found.disk_recovery_offset.get() == RAID_DONE, "it is being rebuilt"),
        (found.array_resync_offset.get() == RAID_DONE, "the legs were not yet made equal"),
        (is_plain, "its layout is not that of RAID1, or is changing"),
        (is_there, "its superblock has another length or place"),
    ];
    expected.into_iter().find(|(is_so, _)| !is_so).map(|(_, reason)| reason)
}

/// What the header of a leg's bitmap says against it.
fn of_bitmap(found: &BitmapHeader, superblock: &RaidSuperblock) -> Option<&'static str> {
    let chunk_bytes = u64::from(found.chunksize.get());
    let is_known = found.magic.get() == BITMAP_MAGIC
        && found.version.get() == BITMAP_VERSION
        && found.uuid == [0; 16]
        && found.nodes.get() == 0
        && found.rest.iter().all(|byte| *byte == 0)
        && chunk_bytes.is_power_of_two()
        && chunk_bytes >= SECTOR_BYTES;
    let is_current = found.events == superblock.events
        && found.events_cleared.get() <= found.events.get()
        && found.sync_size == superblock.sectors;
    let expected = [
        (is_known, "its bitmap is not understood"),
        (is_current && found.state.get() == 0, "its bitmap is out of date"),
    ];
    expected.into_iter().find(|(is_so, _)| !is_so).map(|(_, reason)| reason)
}

fn of_bits(leg: &dyn ReadAt<Volume>, header: &BitmapHeader, len_bytes: u64) -> Result<Option<&'static str>> {
    let count = len_bytes.div_ceil(u64::from(header.chunksize.get()));
    if !is_within(leg, BITMAP_BITS_AT, count) {
        return Ok(Some("its bitmap is too short"));
    }
    let is_clean = are_all(leg, BITMAP_BITS_AT, count, false)?;
    Ok((!is_clean).then_some("writes were under way"))
}

fn of_log(log: &dyn ReadAt<Volume>, region_bytes: u64, len_bytes: u64) -> Result<Option<String>> {
    let count = len_bytes.div_ceil(region_bytes);
    if !is_within(log, MIRROR_BITS_AT, count) {
        return Ok(Some("its log is too short".into()));
    }
    let header: MirrorLogHeader = read_struct(log, Offset::ZERO, "log of a mirror")?;
    let is_known = header.magic.get() == MIRROR_MAGIC && header.version.get() == MIRROR_VERSION;
    if !is_known || header.nr_regions.get() != count {
        return Ok(Some("its log is not understood, or is of another length".into()));
    }
    let is_clean = are_all(log, MIRROR_BITS_AT, count, true)?;
    Ok((!is_clean).then(|| "writes were under way, or the legs were not yet made equal".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Memory;

    const LEN_BYTES: u64 = 64 << 20;
    /// So that the last byte of the bits is used in part.
    const CHUNK_BYTES: u64 = 1 << 20;
    const BIT_COUNT: usize = 64 - 3;
    /// What the volume is long.
    const VOLUME_BYTES: u64 = LEN_BYTES - 3 * CHUNK_BYTES;

    fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// The metadata of a leg at rest, as Linux 6.12 writes them.
    fn leg(position: u32) -> Vec<u8> {
        let sectors = VOLUME_BYTES / 512;
        let mut bytes = vec![0; 5 << 10];
        for (at, value) in [(0, RAID_MAGIC), (4, 1), (8, 2), (12, position), (48, 1), (72, 1)] {
            put(&mut bytes, at, &value.to_le_bytes());
        }
        for (at, value) in
            [(16, 21), (32, u64::MAX), (40, u64::MAX), (64, u64::MAX), (88, sectors), (112, sectors)]
        {
            put(&mut bytes, at, &value.to_le_bytes());
        }
        for (at, value) in [(0, BITMAP_MAGIC), (4, 4), (52, 1 << 20), (56, 5)] {
            put(&mut bytes, 4096 + at, &value.to_le_bytes());
        }
        for (at, value) in [(24, 21_u64), (32, 20), (40, sectors)] {
            put(&mut bytes, 4096 + at, &value.to_le_bytes());
        }
        // Behind the last bit all are set.
        bytes[4096 + 256 + BIT_COUNT / 8] = 0xff << (BIT_COUNT % 8);
        bytes[4096 + 256 + BIT_COUNT / 8 + 1..].fill(0xff);
        bytes
    }

    fn of_two(legs: [&[u8]; 2]) -> Option<String> {
        let legs = legs.map(|leg| Memory::new(leg.to_vec()));
        let contents: Vec<&dyn ReadAt<Volume>> = legs.iter().map(|leg| leg as _).collect();
        doubt(&Log::OfLegs(Vec::new()), &contents, VOLUME_BYTES).unwrap()
    }

    /// Every bit that is set or clear in a leg at rest says so: one that is not makes the mirror one that is not in sync.
    #[test]
    fn a_bit_flipped_in_a_leg_is_a_doubt() {
        let legs = [leg(0), leg(1)];
        assert_eq!(of_two([&legs[0], &legs[1]]), None);
        let places = (0..512 * 8).chain(4096 * 8..(4096 + 256) * 8 + BIT_COUNT);
        for bit in places {
            for which in [0, 1] {
                let mut flipped = legs.clone();
                flipped[which][bit / 8] ^= 1 << (bit % 8);
                assert_ne!(of_two([&flipped[0], &flipped[1]]), None, "byte {}, leg {which}", bit / 8);
            }
        }
        for bit in (4096 + 256) * 8 + BIT_COUNT..5120 * 8 {
            let mut flipped = legs.clone();
            flipped[0][bit / 8] ^= 1 << (bit % 8);
            assert_eq!(of_two([&flipped[0], &flipped[1]]), None, "byte {}", bit / 8);
        }
    }

    /// The same bit on both legs, as the kernel would write it.
    #[test]
    fn a_bit_flipped_in_both_legs_is_a_doubt() {
        let legs = [leg(0), leg(1)];
        // Of the bitmap: since when its bits are cleared, how often it is written, late writes, room.
        let harmless = [4096 + 32..4096 + 40, 4096 + 56..4096 + 68];
        for bit in (0..512 * 8).chain(4096 * 8..(4096 + 256) * 8 + BIT_COUNT) {
            if harmless.iter().any(|range| range.contains(&(bit / 8))) {
                continue;
            }
            let mut flipped = legs.clone();
            flipped.iter_mut().for_each(|leg| leg[bit / 8] ^= 1 << (bit % 8));
            assert_ne!(of_two([&flipped[0], &flipped[1]]), None, "byte {}", bit / 8);
        }
    }

    #[test]
    fn what_a_leg_says_is_told() {
        let legs = [leg(0), leg(1)];
        for (at, value, reason) in [
            (0, 0_u8, "leg 1: it has no superblock"),
            (4, 0, "leg 1: its superblock has features that are not understood"),
            (8, 3, "leg 1: its superblock has another number of legs"),
            (12, 0, "leg 1: its superblock is another leg's"),
            (16, 22, "leg 1: what it and the first leg say is not of one time"),
            (24, 1, "leg 1: a leg failed"),
            (39, 0, "leg 1: it is being rebuilt"),
            (40, 0, "leg 1: the legs were not yet made equal"),
            (60, 1, "leg 1: its layout is not that of RAID1, or is changing"),
            (112, 1, "leg 1: its superblock has another length or place"),
            (120, 1, "leg 1: a leg failed"),
            (4096 + 256, 4, "leg 1: writes were under way"),
        ] {
            let mut changed = legs[1].clone();
            changed[at] = value;
            assert_eq!(of_two([&legs[0], &changed]).as_deref(), Some(reason));
        }
        // Of several reasons, that a leg is behind is told first.
        let changed = [(0, 4096 + 256, 4), (1, 39, 0)].map(|(which, at, value)| {
            let mut changed = legs[which].clone();
            changed[at] = value;
            changed
        });
        assert_eq!(of_two([&changed[0], &changed[1]]).as_deref(), Some("leg 1: it is being rebuilt"));
        assert!(of_two([&legs[0], &legs[0]]).is_some() && of_two([&legs[1], &legs[0]]).is_some());
        assert!(of_two([&legs[0], &legs[1][..4096 + 256 + 7]]).unwrap().contains("too short"));
        assert!(of_two([&legs[0], &legs[1][..4096]]).unwrap().contains("too short"));
    }

    fn log_of(regions: u64) -> Vec<u8> {
        let mut bytes = vec![0; 2048];
        put(&mut bytes, 0, b"rRiM\x02\0\0\0");
        put(&mut bytes, 8, &regions.to_le_bytes());
        for bit in 0..usize::try_from(regions).unwrap() {
            bytes[1024 + bit / 8] |= 1 << (bit % 8);
        }
        bytes
    }

    fn of_one(log: &[u8]) -> Option<String> {
        let log = Memory::new(log.to_vec());
        let kind = Log::Shared { place: Vec::new(), region_bytes: CHUNK_BYTES };
        doubt(&kind, &[&log], VOLUME_BYTES).unwrap()
    }

    #[test]
    fn a_bit_flipped_in_a_log_is_a_doubt() {
        let log = log_of(BIT_COUNT as u64);
        assert_eq!(of_one(&log), None);
        for bit in (0..16 * 8).chain(1024 * 8..1024 * 8 + BIT_COUNT) {
            let mut flipped = log.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of_one(&flipped), None, "byte {}", bit / 8);
        }
        // A log that was never written to says how long it is with all bits set.
        assert!(of_one(&log_of(BIT_COUNT as u64 - 1)).is_some());
        assert!(of_one(&log[..1024 + 7]).unwrap().contains("too short"));
        assert!(of_one(&log[..8]).unwrap().contains("too short"));
    }
}
