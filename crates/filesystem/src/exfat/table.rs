//! The FAT (section 4), the allocation bitmap (section 7.1), and who owns which clusters.

use block::{Error, Result, read_vec};
use extent::VolumeOffset;

use super::boot::Geometry;
use super::corrupt::Corrupt;
use super::layout::END_OF_CHAIN;
use crate::Source;
use crate::bits::Bits;
use crate::clusters::{self, Cluster, FIRST_CLUSTER, Run};

/// The FAT is read in pieces of so many bytes.
const PIECE_BYTES: u64 = 1 << 16;
/// The bitmap is read in pieces of so many clusters.
const PIECE_CLUSTERS: u32 = 1 << 23;

/// The FAT, a piece of it in memory.
pub(super) struct Table<'a> {
    source: &'a Source,
    geometry: &'a Geometry,
    piece_at: u64,
    piece: Vec<u8>,
}

impl<'a> Table<'a> {
    pub(super) fn new(source: &'a Source, geometry: &'a Geometry) -> Self {
        Self { source, geometry, piece_at: 0, piece: Vec::new() }
    }

    /// The entry of a cluster below [`crate::clusters::Clusters::end`].
    pub(super) fn entry(&mut self, cluster: Cluster) -> Result<u32> {
        let at = u64::from(cluster) * 4;
        let start = at / PIECE_BYTES * PIECE_BYTES;
        if self.piece.is_empty() || self.piece_at != start {
            let len = PIECE_BYTES.min(u64::from(self.geometry.clusters.end()) * 4 - start);
            let from = VolumeOffset::new(self.geometry.fat_at + start);
            self.piece = read_vec(self.source, from, len, "exFAT FAT")?;
            self.piece_at = start;
        }
        let index = usize::try_from((at - start) / 4).expect("within a piece");
        let (entries, _) = self.piece.as_chunks::<4>();
        let entry = entries.get(index).copied().map(u32::from_le_bytes);
        entry.ok_or_else(|| Error::corrupt(Corrupt::Entry { cluster }))
    }
}

/// Calls `each` with the runs of clusters from `from` up to, not including, `end` that are free or are not, as the bitmap that lies
/// at `bitmap_at` in one piece says.
pub(super) fn each_run(
    source: &Source,
    bitmap_at: VolumeOffset,
    clusters: std::ops::Range<Cluster>,
    mut each: impl FnMut(bool, Cluster, u32),
) -> Result<()> {
    let (mut index, end) = (clusters.start - FIRST_CLUSTER, clusters.end - FIRST_CLUSTER);
    let mut last: Option<(bool, Cluster, u32)> = None;
    while index < end {
        let piece = index / 8 * 8;
        let piece_end = end.min(piece + PIECE_CLUSTERS);
        let len = u64::from((piece_end - piece).div_ceil(8));
        let bytes = read_vec(source, bitmap_at.plus(u64::from(piece / 8)), len, "exFAT allocation bitmap")?;
        let bits = Bits::from_bytes(&bytes, piece_end - piece);
        while index < piece_end {
            let is_used = bits.get(index - piece);
            let next = piece + bits.next(index - piece, piece_end - piece, !is_used);
            match &mut last {
                Some((is_free, _, count)) if *is_free != is_used => *count += next - index,
                _ => {
                    if let Some((is_free, first, count)) =
                        last.replace((!is_used, index + FIRST_CLUSTER, next - index))
                    {
                        each(is_free, first, count);
                    }
                }
            }
            index = next;
        }
    }
    if let Some((is_free, first, count)) = last {
        each(is_free, first, count);
    }
    Ok(())
}

/// Follows chains, each cluster of the volume once.
pub(super) struct Chains<'a> {
    table: Table<'a>,
    geometry: &'a Geometry,
    claimed: Bits,
    /// The bitmap, once it is known where it lies.
    allocated: Option<Bits>,
}

impl<'a> Chains<'a> {
    pub(super) fn new(source: &'a Source, geometry: &'a Geometry) -> Self {
        let claimed = Bits::clear(geometry.clusters.end());
        Self { table: Table::new(source, geometry), geometry, claimed, allocated: None }
    }

    /// As [`Self::new`], which fails at clusters that are free in the bitmap.
    pub(super) fn within(
        source: &'a Source,
        geometry: &'a Geometry,
        bitmap_at: VolumeOffset,
    ) -> Result<Self> {
        let mut allocated = Bits::clear(geometry.clusters.end());
        each_run(source, bitmap_at, geometry.clusters.numbers(), |is_free, first, count| {
            if !is_free {
                allocated.set(first, first + count);
            }
        })?;
        Ok(Self { allocated: Some(allocated), ..Self::new(source, geometry) })
    }

    /// The chain that begins at `first`, to its end, of at most `count_max` clusters. `entry` is where its stream entry lies. Fails,
    /// with the runs up to there, at what is free, bad, not on the volume, or owned; so also where a chain runs in a circle.
    pub(super) fn follow(&mut self, first: Cluster, count_max: u64, entry: u64) -> (Vec<Run>, Result<()>) {
        let mut runs: Vec<Run> = Vec::new();
        let followed = self.follow_into(first, count_max, entry, &mut runs);
        (runs, followed)
    }

    fn follow_into(&mut self, first: Cluster, max: u64, entry: u64, runs: &mut Vec<Run>) -> Result<()> {
        let (mut cluster, mut count) = (first, 0);
        loop {
            count += 1;
            if count > max {
                return Err(wrong(entry, "clusters in its chain", count, &format!("at most {max}")));
            }
            self.claim(Run { first: cluster, count: 1 }, entry)?;
            clusters::push(runs, cluster);
            match self.table.entry(cluster)? {
                END_OF_CHAIN => return Ok(()),
                next => cluster = next,
            }
        }
    }

    /// Takes clusters in a row. Fails, and takes none, unless all are on the volume, allocated, and not owned.
    pub(super) fn claim(&mut self, run: Run, entry: u64) -> Result<()> {
        let end = run.first.checked_add(run.count).filter(|end| *end <= self.geometry.clusters.end());
        let Some(end) = end.filter(|_| run.first >= FIRST_CLUSTER) else {
            return Err(wrong(entry, "cluster", run.first.into(), "clusters of the volume"));
        };
        let owned = self.claimed.next(run.first, end, true);
        if owned < end {
            return Err(Error::corrupt(Corrupt::OwnedTwice { cluster: owned, entry }));
        }
        let free = self.allocated.as_ref().map_or(end, |allocated| allocated.next(run.first, end, false));
        if free < end {
            return Err(Error::corrupt(Corrupt::OwnedAndFree { cluster: free, entry }));
        }
        self.claimed.set(run.first, end);
        Ok(())
    }
}

fn wrong(entry: u64, name: &str, found: u64, expected: &str) -> Error {
    Error::corrupt(Corrupt::DirectoryEntry { entry }).field(name, found, expected)
}
