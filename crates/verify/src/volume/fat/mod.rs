//! FAT12, FAT16 and FAT32, checked from the root directory on, and what of them stays.
//!
//! Source: Microsoft, "FAT: General Overview of On-Disk Format", version 1.03.

mod corrupt;
mod geometry;
pub(super) mod snapshot;

use block::{Error, Result, read_vec};
use extent::VolumeOffset;

use super::bits::Bits;
use super::{Source, VolumeReport};
pub use corrupt::CorruptFat;
use geometry::{Geometry, Piece};

/// The most bytes of a directory: 65536 entries.
const DIRECTORY_BYTES_MAX: u64 = 65536 * 32;
const ENTRY_BYTES: u64 = 32;
/// How much of the tables is compared at once.
const COMPARED_BYTES: u64 = 1 << 20;

/// A file or directory: where its entry lies (0 of the root), the entry, what precedes it of its long name, and its clusters.
struct Node {
    entry_at: u64,
    parent_at: u64,
    entry: Vec<u8>,
    long_name: Vec<u8>,
    pieces: Vec<Piece>,
}

pub(super) fn is_fat(source: &Source) -> Result<bool> {
    Ok(Geometry::open(source)?.is_some())
}

fn geometry(source: &Source) -> Result<Geometry<'_>> {
    Geometry::open(source)?.ok_or_else(|| Error::corrupt(CorruptFat::Boot))
}

/// Checks the tables, every chain, and that nothing in use is without an owner. Both scopes of a check look at the same.
pub(super) fn check(source: &Source) -> Result<VolumeReport> {
    let mut geometry = geometry(source)?;
    check_tables(&geometry)?;
    let mut report = VolumeReport { filesystem: "fat", ..VolumeReport::default() };
    let owned = walk(&mut geometry, &mut |geometry, node| {
        let is_directory = node.entry_at == 0 || node.entry[11] & 0x10 != 0;
        *if is_directory { &mut report.directories } else { &mut report.files } += 1;
        report.names += u64::from(node.entry_at != 0);
        let clusters: u64 = node.pieces.iter().map(|(_, count)| u64::from(*count)).sum();
        report.used_bytes += clusters * geometry.cluster_bytes;
        let size = if is_directory { None } else { Some(u64::from(le32(&node.entry, 28))) };
        match size.is_none_or(|size| size.div_ceil(geometry.cluster_bytes) == clusters) {
            true => Ok(()),
            false => Err(Error::corrupt(CorruptFat::Length(node.entry_at))),
        }
    })?;
    let mut orphans = 0;
    for cluster in 2..geometry.cluster_end {
        let is_in_use = geometry.entry(cluster)? != 0;
        orphans += u64::from(is_in_use && !owned.has(cluster.into()));
    }
    match orphans {
        0 => Ok(report),
        _ => Err(Error::corrupt(CorruptFat::Orphans(orphans))),
    }
}

fn check_tables(geometry: &Geometry<'_>) -> Result<()> {
    let table = |number: u64, at: u64| {
        let at = VolumeOffset::new(geometry.table_at + number * geometry.table_bytes + at);
        let left = geometry.table_at + (number + 1) * geometry.table_bytes - at.get();
        read_vec(geometry.source, at, COMPARED_BYTES.min(left), "FAT")
    };
    for at in (0..geometry.table_bytes).step_by(1 << 20) {
        let first = table(0, at)?;
        for number in 1..geometry.table_count {
            if table(number, at)? != first {
                return Err(
                    Error::corrupt(CorruptFat::TablesDiffer).at(VolumeOffset::new(geometry.table_at + at))
                );
            }
        }
    }
    Ok(())
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Shows `each` the root and whatever is below it, and says which clusters their chains have.
fn walk(
    geometry: &mut Geometry<'_>,
    each: &mut impl FnMut(&Geometry<'_>, &Node) -> Result<()>,
) -> Result<Bits> {
    let mut owned = Bits::none(0..geometry.cluster_end.into());
    let mut chain = |geometry: &mut Geometry<'_>, first: u32| match first {
        0 => Ok(Vec::new()),
        first => geometry.chain(first, |cluster| match owned.add(cluster.into()..u64::from(cluster) + 1) {
            None => Ok(()),
            Some(_) => Err(Error::corrupt(CorruptFat::Shared(cluster))),
        }),
    };
    let (entry, long_name) = (Vec::new(), Vec::new());
    let pieces = chain(geometry, geometry.root_cluster)?;
    let mut waiting = vec![Node { entry_at: 0, parent_at: 0, entry, long_name, pieces }];
    while let Some(directory) = waiting.pop() {
        each(geometry, &directory)?;
        let mut long_name: Vec<u8> = Vec::new();
        for (at, entry) in entries(geometry, &directory)? {
            let is_dot = directory.entry_at != 0 && entry[0] == b'.';
            if entry[0] == 0xe5 || is_dot {
                long_name.clear();
                continue;
            }
            if entry[11] & 0x3f == 0x0f {
                long_name.extend(&entry);
                continue;
            }
            let long_name = std::mem::take(&mut long_name);
            let is_label = entry[11] & 0x08 != 0;
            let high = if geometry.root_cluster == 0 { 0 } else { le32(&entry, 20) << 16 };
            let first = if is_label { 0 } else { high | le32(&entry, 24) >> 16 };
            let is_directory = !is_label && entry[11] & 0x10 != 0;
            let pieces = chain(geometry, first)?;
            let node = Node { entry_at: at, parent_at: directory.entry_at, entry, long_name, pieces };
            if is_directory {
                waiting.push(node);
            } else {
                each(geometry, &node)?;
            }
        }
    }
    Ok(owned)
}

/// The entries of a directory up to its end, with their places.
fn entries(geometry: &Geometry<'_>, directory: &Node) -> Result<Vec<(u64, Vec<u8>)>> {
    let span = |(first, count): &Piece| {
        (geometry.place_of(*first).get(), u64::from(*count) * geometry.cluster_bytes)
    };
    let mut spans: Vec<_> = directory.pieces.iter().map(span).collect();
    if directory.entry_at == 0 && geometry.root_cluster == 0 {
        spans.push(geometry.root);
    }
    if spans.iter().map(|(_, len)| len).sum::<u64>() > DIRECTORY_BYTES_MAX {
        return Err(Error::corrupt(CorruptFat::Length(directory.entry_at)));
    }
    let mut found = Vec::new();
    for (start, len) in spans {
        let bytes = read_vec(geometry.source, VolumeOffset::new(start), len, "FAT directory")?;
        for (at, entry) in (start..).step_by(32).zip(bytes.chunks_exact(32)) {
            if entry[0] == 0 {
                return Ok(found);
            }
            found.push((at, entry.to_vec()));
        }
    }
    Ok(found)
}
