//! exFAT, checked from the root directory on, and what of it stays.
//!
//! Source: Microsoft, "exFAT file system specification", revision 1.00.

mod corrupt;
mod geometry;
pub(super) mod snapshot;

use block::{Error, Result, read_vec};

use super::bits::Bits;
use super::{Source, VolumeReport};
pub use corrupt::CorruptExFat;
pub(super) use geometry::is_exfat;
use geometry::{Geometry, Piece, number};

/// How much of a directory or of the bitmap is read at once.
const READ_BYTES: u64 = 1 << 20;
const DIRECTORY_BYTES_MAX: u64 = 256 << 20;

/// A file or directory: where its set of entries begins (0 of the root), the set, and its clusters.
struct Node {
    at: u64,
    parent_at: u64,
    set: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Node {
    fn is_directory(&self) -> bool {
        self.set.is_empty() || self.set[4] & 0x10 != 0
    }
}

/// The entries of the root directory that name the bitmap and the up-case table.
#[derive(Default)]
struct Tables {
    bitmap: Option<Vec<u8>>,
    upcase: Option<Vec<u8>>,
}

/// Checks boot regions, every chain, and that what is in use is what has an owner. Both scopes of a check look at the same.
pub(super) fn check(source: &Source) -> Result<VolumeReport> {
    let mut geometry = Geometry::open(source)?;
    let mut report = VolumeReport { filesystem: "exfat", ..VolumeReport::default() };
    let tables = walk(&mut geometry, &mut |_, node| {
        *if node.is_directory() { &mut report.directories } else { &mut report.files } += 1;
        report.names += u64::from(node.at != 0);
        Ok(())
    })?;
    check_bitmap(&mut geometry, &tables)?;
    report.used_bytes = geometry.owned.count(0..geometry.cluster_end.into()) * geometry.cluster_bytes;
    Ok(report)
}

/// The bitmap has exactly those clusters in use that have an owner, itself among them.
fn check_bitmap(geometry: &mut Geometry<'_>, tables: &Tables) -> Result<()> {
    let (Some(bitmap), Some(upcase)) = (&tables.bitmap, &tables.upcase) else {
        return Err(Error::corrupt(CorruptExFat::Tables));
    };
    let (count, mut first) = (u64::from(geometry.cluster_end) - 2, 0);
    for (table, least) in [(upcase, 2), (bitmap, count.div_ceil(8))] {
        let len = number(table, 24, 8);
        first = u32::try_from(number(table, 20, 4)).unwrap_or(0);
        let pieces = geometry.take(first, Some(len.div_ceil(geometry.cluster_bytes)), false)?;
        if len < least || pieces.len() != 1 {
            return Err(Error::corrupt(CorruptExFat::Tables));
        }
    }
    let start = geometry.place_of(first);
    for from in (0..count).step_by(1 << 23) {
        let end = count.min(from + READ_BYTES * 8);
        let bytes = read_vec(geometry.source, start.plus(from / 8), (end - from).div_ceil(8), "bitmap")?;
        let recorded = Bits::of_bytes(from + 2..end + 2, &bytes);
        let mut owned = Bits::none(recorded.window());
        owned.join_from(&geometry.owned);
        if let Some(cluster) = owned.first_difference(&recorded) {
            return Err(Error::corrupt(CorruptExFat::Bitmap(cluster)));
        }
    }
    Ok(())
}

/// Shows `each` the root and whatever is below it, and answers what the root directory alone has.
fn walk(
    geometry: &mut Geometry<'_>,
    each: &mut impl FnMut(&Geometry<'_>, &Node) -> Result<()>,
) -> Result<Tables> {
    let pieces = geometry.take(geometry.root, None, false)?;
    let mut waiting = vec![Node { at: 0, parent_at: 0, set: Vec::new(), pieces }];
    let mut tables = Tables::default();
    while let Some(directory) = waiting.pop() {
        each(geometry, &directory)?;
        for (at, set) in sets(geometry, &directory)? {
            let place = match set[0] {
                0x85 => {
                    let node = node(geometry, directory.at, at, set)?;
                    if node.is_directory() {
                        waiting.push(node);
                    } else {
                        each(geometry, &node)?;
                    }
                    continue;
                }
                0x83 | 0xa0 if directory.at == 0 => continue,
                0x81 if directory.at == 0 && set[1] == 0 => &mut tables.bitmap,
                0x82 if directory.at == 0 => &mut tables.upcase,
                _ => return Err(Error::corrupt(CorruptExFat::Set(at))),
            };
            if place.replace(set).is_some() {
                return Err(Error::corrupt(CorruptExFat::Tables));
            }
        }
    }
    Ok(tables)
}

/// A file's or directory's set, held against itself, and its clusters.
fn node(geometry: &mut Geometry<'_>, parent_at: u64, at: u64, set: Vec<u8>) -> Result<Node> {
    let wrong = || Error::corrupt(CorruptExFat::Set(at));
    let mut sum = 0_u16;
    for (_, byte) in set.iter().enumerate().filter(|(index, _)| !(2..4).contains(index)) {
        sum = sum.rotate_right(1).wrapping_add(u16::from(*byte));
    }
    let is_sound = set.len() >= 96
        && u64::from(sum) == number(&set, 2, 2)
        && set[32] == 0xc0
        && matches!(set[33], 1 | 3)
        && set.len() == 64 + usize::from(set[35]).div_ceil(15) * 32
        && set.chunks(32).skip(2).all(|entry| entry[0] == 0xc1);
    if !is_sound {
        return Err(wrong());
    }
    let (valid, len) = (number(&set, 40, 8), number(&set, 56, 8));
    let is_directory = set[4] & 0x10 != 0;
    let is_whole = len.is_multiple_of(geometry.cluster_bytes) && valid == len && len <= DIRECTORY_BYTES_MAX;
    if valid > len || (is_directory && !is_whole) {
        return Err(wrong());
    }
    let first = u32::try_from(number(&set, 52, 4)).unwrap_or(0);
    let pieces = geometry.take(first, Some(len.div_ceil(geometry.cluster_bytes)), set[33] & 2 != 0)?;
    Ok(Node { at, parent_at, set, pieces })
}

/// The entries in use of a directory up to its end, those that belong together as one, with the place of the first.
fn sets(geometry: &Geometry<'_>, directory: &Node) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut missing = 0;
    let wrong = |at: u64| Error::corrupt(CorruptExFat::Set(at));
    for (first, count) in &directory.pieces {
        let len = u64::from(*count) * geometry.cluster_bytes;
        for from in (0..len).step_by(1 << 20) {
            let start = geometry.place_of(*first).plus(from);
            let bytes = read_vec(geometry.source, start, READ_BYTES.min(len - from), "exFAT directory")?;
            for (at, entry) in (start.get()..).step_by(32).zip(bytes.chunks_exact(32)) {
                let is_secondary = entry[0] & 0xc0 == 0xc0;
                match found.last_mut() {
                    Some((_, set)) if missing > 0 && is_secondary => {
                        set.extend_from_slice(entry);
                        missing -= 1;
                    }
                    _ if missing > 0 || is_secondary => return Err(wrong(at)),
                    _ if entry[0] == 0 => return Ok(found),
                    _ if entry[0] & 0x80 == 0 => {}
                    _ => {
                        missing = if entry[0] == 0x85 { entry[1] } else { 0 };
                        found.push((at, entry.to_vec()));
                    }
                }
            }
        }
    }
    if missing > 0 { Err(wrong(directory.at)) } else { Ok(found) }
}
