//! Btrfs of several devices, put together from the volumes of the disk and of those that were named with it.
//!
//! Invariants:
//! - a file system counts only if each of its devices is there, once, and nothing else is in the same place;
//! - all of each device is in the volume that they make; what the devices themselves have left is nothing.

use std::collections::BTreeMap;

use block::{ErrorKind, Result};
use extent::{Span, VolumeOffset};
use filesystem::btrfs::{self, Device, Joined, Piece};
use filesystem::{Facts, Scope, State, holder};

use crate::lvm::Elsewhere;
use crate::member::Member;
use crate::placement::{Column, Placement};
use crate::view::Disks;
use crate::{Volume, source_of};

/// What the holder of a device is called, and what it has.
const BTRFS: &str = "btrfs";

/// A device that was found.
struct Found {
    /// Which of the disk's volumes it is; `None` if it is on another disk.
    volume: Option<usize>,
    place: Placement,
    device: Device,
}

/// Puts the file systems together that have several devices, of which one at least is on the disk. They come behind all other volumes.
/// `elsewhere` are volumes of other disks, `logical` logical volumes that lie on these alone.
pub(crate) fn assemble(
    disks: &Disks,
    volumes: &mut Vec<Volume>,
    elsewhere: &[Elsewhere],
    logical: &[Volume],
) -> Result<()> {
    let own = volumes.iter().zip(0..).map(|(volume, index)| (volume, Some(index), volume.place.clone()));
    let elsewhere = elsewhere.iter().map(|Elsewhere { disk, volume, .. }| {
        (volume, None, Placement::of_column(Column { disk: *disk, span: volume.place.first() }))
    });
    let logical = logical.iter().map(|volume| (volume, None, volume.place.clone()));
    let mut by_fsid: BTreeMap<_, Vec<Found>> = BTreeMap::new();
    for (from, volume, place) in own.chain(elsewhere).chain(logical) {
        if let Some(device) = read(from)? {
            by_fsid.entry(device.fsid()).or_default().push(Found { volume, place, device });
        }
    }
    for (_, mut found) in by_fsid {
        found.sort_by_key(|it| it.device.number());
        let own: Vec<_> = found.iter().filter_map(|it| it.volume).collect();
        let count = found.iter().map(|it| it.device.count()).max().unwrap_or(0);
        if own.is_empty() {
            continue;
        }
        match join(disks, found, count)? {
            Ok(volume) => {
                own.iter().for_each(|index| settle(&mut volumes[*index], count, &volume));
                volumes.push(volume);
            }
            Err(reason) => own.iter().for_each(|index| doubt(&mut volumes[*index], count, &reason)),
        }
    }
    Ok(())
}

/// The superblock of a volume that is nothing else than one of several devices.
fn read(volume: &Volume) -> Result<Option<Device>> {
    let is_held = volume.filesystem.as_ref().is_some_and(|it| it.facts().filesystem == BTRFS);
    let is_another = volume.partition.as_ref().is_some_and(|partition| partition.is_member);
    if !is_held || is_another {
        return Ok(None);
    }
    let is_disk = volume.partition.is_none() && volume.name.is_none();
    let scope = if is_disk { Scope::Disk } else { Scope::Partition };
    let is_alone = matches!(&*holder::find(&volume.source, scope)?, [only] if only.name() == BTRFS);
    if !is_alone || another(volume)?.is_some() {
        return Ok(None);
    }
    Ok(Device::read(&volume.source)?.filter(|device| device.count() > 1))
}

/// What else is in the same place. What cannot be read is something else.
fn another(volume: &Volume) -> Result<Option<String>> {
    match filesystem::another(&volume.source, BTRFS) {
        Err(error) if error.kind() != ErrorKind::Io => Ok(Some(error.to_string())),
        found => found,
    }
}

/// The volume that devices make, or why they make none.
fn join(disks: &Disks, found: Vec<Found>, count: u64) -> Result<Result<Volume, String>> {
    let missing = count.saturating_sub(found.len() as u64);
    if missing > 0 {
        let are = if missing == 1 { "1 of them is" } else { &format!("{missing} of them are") };
        return Ok(Err(format!("{are} neither on this disk nor on one named by --with")));
    }
    if found.windows(2).any(|pair| pair[0].device.number() == pair[1].device.number()) {
        return Ok(Err("another device has the same number".into()));
    }
    let (places, devices): (Vec<_>, Vec<_>) = found.into_iter().map(|it| (it.place, it.device)).unzip();
    let Joined { filesystem, source, pieces } = match btrfs::join(&devices) {
        Ok(joined) => joined,
        Err(error) if error.kind() == ErrorKind::Io => return Err(error),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let name = filesystem.facts().uuid.clone();
    let place = match place(&pieces, &places) {
        Some(place) if place.len_bytes() == source.len_bytes() && name.is_some() => place,
        _ => return Ok(Err("it lies on logical volumes that are striped, or whose parts are odd".into())),
    };
    let devices = Some(source_of(disks, &in_line(&devices, &places)));
    Ok(Ok(Volume { name, filesystem: Some(filesystem), devices, ..Volume::unknown(place, source) }))
}

/// Devices one behind the other, each as long as it says.
fn in_line(devices: &[Device], places: &[Placement]) -> Placement {
    let mut placed = Vec::new();
    for (device, place) in devices.iter().zip(places) {
        place.each_part(Span::from_zero(device.len_bytes()), |_, part| {
            placed.push((part.span.len_bytes(), vec![part]));
        });
    }
    Placement::of_pieces(placed.into_iter())
}

/// Where pieces of devices lie on the disks; `None` if that cannot be said in pieces.
fn place(pieces: &[Piece], devices: &[Placement]) -> Option<Placement> {
    if !devices.iter().all(Placement::is_straight) {
        return None;
    }
    let mut placed = Vec::new();
    for piece in pieces {
        let columns: Vec<_> = piece.columns.iter().map(|column| parts(column, devices)).collect();
        let mut ends: Vec<u64> = columns.iter().flat_map(|parts| parts.iter().map(|(_, end)| *end)).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut at = 0;
        for end in ends {
            let is_striped = columns.len() > 1;
            if is_striped && !end.is_multiple_of(piece.stripe_bytes) {
                return None;
            }
            let within: Option<Vec<_>> = columns.iter().map(|parts| part_within(parts, at, end)).collect();
            placed.push((if is_striped { piece.stripe_bytes } else { end - at }, within?));
            at = end;
        }
    }
    Some(Placement::of_pieces(placed.into_iter()))
}

/// Parts of disks that a column consists of, each with where in the column it ends.
fn parts(column: &btrfs::Column, devices: &[Placement]) -> Vec<(Column, u64)> {
    let mut parts = Vec::new();
    let span = Span::new(VolumeOffset::new(column.start_bytes), column.len_bytes);
    devices[column.device].each_part(span, |at, part| {
        parts.push((part, at.get() - column.start_bytes + part.span.len_bytes()));
    });
    parts
}

/// What of a column lies from `start` up to `end`, which no part's end lies between.
fn part_within(parts: &[(Column, u64)], start: u64, end: u64) -> Option<Column> {
    let (part, part_end) = parts.iter().find(|(_, part_end)| *part_end > start)?;
    let skip = start.checked_sub(part_end - part.span.len_bytes())?;
    let span = Span::new(part.span.start().plus(skip), end - start);
    (end <= *part_end).then_some(Column { span, ..*part })
}

/// A device has nothing left that is not the file system's.
fn settle(device: &mut Volume, count: u64, volume: &Volume) {
    let Some(held) = device.filesystem.take() else { return };
    let details =
        vec![("devices", count.to_string()), ("a device of", volume.name.clone().unwrap_or_default())];
    let facts =
        Facts { size_bytes: 0, free_bytes: Some(0), state: State::Clean, details, ..held.facts().clone() };
    device.filesystem = Some(Member::boxed(facts, [].into_iter().collect()));
    device.is_device = true;
}

fn doubt(device: &mut Volume, count: u64, reason: &str) {
    let reason = format!(
        "it is one of the {count} devices of a btrfs, which is taken whole: {reason}; if it no longer is, \
         remove the signature with wipefs"
    );
    if let Some(filesystem) = &device.filesystem {
        device.filesystem = Some(filesystem::in_doubt(&**filesystem, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::DiskIndex;
    use extent::VirtualOffset;

    fn column(disk: usize, start: u64, len: u64) -> Column {
        Column { disk: DiskIndex(disk), span: Span::new(VirtualOffset::new(start), len) }
    }

    fn straight(columns: &[Column]) -> Placement {
        Placement::of_pieces(columns.iter().map(|it| (it.span.len_bytes(), vec![*it])))
    }

    fn part(device: usize, start_bytes: u64, len_bytes: u64) -> btrfs::Column {
        btrfs::Column { device, start_bytes, len_bytes }
    }

    #[test]
    fn pieces_are_cut_where_parts_of_devices_end() {
        // One device in one part, the other in two on another disk.
        let devices = [straight(&[column(0, 100, 20)]), straight(&[column(1, 50, 8), column(1, 0, 12)])];
        let pieces = [
            Piece { stripe_bytes: 6, columns: vec![part(0, 0, 6)] },
            Piece { stripe_bytes: 2, columns: vec![part(0, 6, 8), part(1, 4, 8)] },
            Piece { stripe_bytes: 12, columns: vec![part(1, 0, 4)] },
        ];
        let expected = [
            (6, vec![column(0, 100, 6)]),
            (2, vec![column(0, 106, 4), column(1, 54, 4)]),
            (2, vec![column(0, 110, 4), column(1, 0, 4)]),
            (4, vec![column(1, 50, 4)]),
        ];
        assert_eq!(place(&pieces, &devices), Some(Placement::of_pieces(expected.into_iter())));
    }

    #[test]
    fn what_cannot_be_said_in_pieces_has_no_place() {
        // A part that ends within a stripe, a striped device, a mirrored one.
        let whole = straight(&[column(0, 0, 16)]);
        let odd = straight(&[column(1, 0, 3), column(1, 9, 13)]);
        let piece = [Piece { stripe_bytes: 2, columns: vec![part(0, 0, 16), part(1, 0, 16)] }];
        let striped = Placement::of_pieces([(2, vec![column(1, 0, 8), column(2, 0, 8)])].into_iter());
        let mirrored = Placement::of_legs(vec![straight(&[column(1, 0, 16)]), straight(&[column(2, 0, 16)])]);
        for device in [odd, striped, mirrored] {
            assert_eq!(place(&piece, &[whole.clone(), device]), None);
        }
        assert!(place(&piece, &[whole.clone(), straight(&[column(1, 0, 16)])]).is_some());
    }
}
