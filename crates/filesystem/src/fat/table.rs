//! The file allocation table: its entries (page 15 and following), and the chains that they make.

use std::ops::Range;

use block::{Error, Result, read_vec};
use extent::{Offset, VolumeOffset};

use super::boot::{Geometry, Kind};
use super::corrupt::Corrupt;
use crate::Source;
use crate::bits::Bits;
use crate::clusters::{self, Cluster, Run};

/// Entries are read in pieces of so many bytes: a multiple of 3, so that FAT12's entries do not straddle them.
const PIECE_BYTES: u64 = 3 << 16;

/// What an entry says of its cluster (page 16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Free,
    /// The chain goes on there. Not checked to be on the volume.
    Next(Cluster),
    /// The chain ends.
    End,
    /// Not to be used.
    Bad,
}

impl Entry {
    fn of(kind: Kind, value: u32) -> Self {
        // Numbers that end in these mean the same in all three.
        let high = match kind {
            Kind::Fat12 => 0xff0,
            Kind::Fat16 => 0xfff0,
            Kind::Fat32 => 0x0fff_fff0,
        };
        match value {
            0 => Self::Free,
            _ if value >= high + 8 => Self::End,
            _ if value == high + 7 => Self::Bad,
            _ => Self::Next(value),
        }
    }
}

/// The first FAT, a piece of it in memory.
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

    fn byte(&mut self, at: u64) -> Result<u32> {
        if at < self.piece_at || at >= self.piece_at + self.piece.len() as u64 {
            let start = at / PIECE_BYTES * PIECE_BYTES;
            let len = PIECE_BYTES.min(self.geometry.fat_bytes.saturating_sub(start));
            let from = VolumeOffset::new(self.geometry.fat_at + start);
            self.piece = read_vec(self.source, from, len, "FAT")?;
            self.piece_at = start;
        }
        let index = usize::try_from(at - self.piece_at).expect("within a piece");
        let byte = self.piece.get(index).copied();
        byte.map(u32::from).ok_or_else(|| Error::corrupt(Corrupt::BootSector).field("FATSz", at, "more"))
    }

    /// The entry's number, without the bits that FAT32 reserves.
    pub(super) fn value(&mut self, cluster: Cluster) -> Result<u32> {
        let number = u64::from(cluster);
        match self.geometry.kind {
            Kind::Fat12 => {
                let at = number + number / 2;
                let both = self.byte(at)? | self.byte(at + 1)? << 8;
                Ok(if number.is_multiple_of(2) { both & 0xfff } else { both >> 4 })
            }
            Kind::Fat16 => Ok(self.byte(number * 2)? | self.byte(number * 2 + 1)? << 8),
            Kind::Fat32 => {
                let at = number * 4;
                let low = self.byte(at)? | self.byte(at + 1)? << 8 | self.byte(at + 2)? << 16;
                Ok(low | (self.byte(at + 3)? & 0x0f) << 24)
            }
        }
    }

    pub(super) fn entry(&mut self, cluster: Cluster) -> Result<Entry> {
        Ok(Entry::of(self.geometry.kind, self.value(cluster)?))
    }

    /// Calls `each` with the runs of `clusters` that are free or are not.
    pub(super) fn each_run(
        &mut self,
        clusters: Range<Cluster>,
        mut each: impl FnMut(bool, Cluster, u32),
    ) -> Result<()> {
        let (mut start, end) = (clusters.start, clusters.end);
        let mut last = None;
        for cluster in clusters {
            let is_free = self.entry(cluster)? == Entry::Free;
            if let Some(last) = last
                && last != is_free
            {
                each(last, start, cluster - start);
                start = cluster;
            }
            last = Some(is_free);
        }
        if let Some(last) = last {
            each(last, start, end - start);
        }
        Ok(())
    }

    /// How many clusters are free.
    pub(super) fn free_count(&mut self) -> Result<u64> {
        let mut count = 0;
        self.each_run(self.geometry.clusters.numbers(), |is_free, _, run| {
            count += if is_free { u64::from(run) } else { 0 };
        })?;
        Ok(count)
    }

    /// Fails if an entry is none that can be.
    pub(super) fn check_entries(&mut self) -> Result<()> {
        for cluster in self.geometry.clusters.numbers() {
            if let Entry::Next(next) = self.entry(cluster)?
                && !self.geometry.clusters.holds(next)
            {
                return Err(wrong(cluster, next, self.geometry));
            }
        }
        Ok(())
    }
}

fn wrong(cluster: Cluster, found: u32, geometry: &Geometry) -> Error {
    let expected = format!("free, bad, an end, or a cluster from 2 to {}", geometry.clusters.end() - 1);
    Error::corrupt(Corrupt::Entry { cluster }).field("value", found, expected)
}

/// Follows chains, each cluster of the volume once.
pub(super) struct Chains<'a> {
    pub(super) table: Table<'a>,
    geometry: &'a Geometry,
    claimed: Bits,
}

impl<'a> Chains<'a> {
    pub(super) fn new(source: &'a Source, geometry: &'a Geometry) -> Self {
        let claimed = Bits::clear(geometry.clusters.end());
        Self { table: Table::new(source, geometry), geometry, claimed }
    }

    /// Takes clusters that were followed before.
    pub(super) fn claim(&mut self, run: Run) {
        self.claimed.set(run.first, run.first + run.count);
    }

    /// The chain that begins at `first`, to its end. `entry` is where its directory entry lies. Fails, with the runs up to there,
    /// at what is free, bad, not on the volume, or in another chain; so also where a chain runs in a circle.
    pub(super) fn follow(&mut self, first: Cluster, entry: u64) -> (Vec<Run>, Result<()>) {
        let mut runs: Vec<Run> = Vec::new();
        let followed = self.follow_into(first, entry, &mut runs);
        (runs, followed)
    }

    fn follow_into(&mut self, first: Cluster, entry: u64, runs: &mut Vec<Run>) -> Result<()> {
        let wrong_field = |name: &str, found: Cluster, expected: &str| {
            Error::corrupt(Corrupt::DirectoryEntry { entry }).field(name, found, expected)
        };
        let mut cluster = first;
        loop {
            if !self.geometry.clusters.holds(cluster) {
                return Err(wrong_field("cluster of its chain", cluster, "one of the volume"));
            }
            if self.claimed.get(cluster) {
                return Err(Error::corrupt(Corrupt::OwnedTwice { cluster, entry }));
            }
            let next = self.table.entry(cluster)?;
            if matches!(next, Entry::Free | Entry::Bad) {
                return Err(wrong_field("cluster of its chain", cluster, "one that is neither free nor bad"));
            }
            self.claimed.set(cluster, cluster + 1);
            clusters::push(runs, cluster);
            match next {
                Entry::Next(next) => cluster = next,
                _ => return Ok(()),
            }
        }
    }
}

/// Fails unless all FATs are the same as far as their entries reach.
pub(super) fn check_mirrors(source: &Source, geometry: &Geometry) -> Result<()> {
    let len = geometry.entries_bytes();
    for fat in 1..geometry.fat_count {
        let other_at = geometry.fat_at + u64::from(fat) * geometry.fat_bytes;
        let mut at = 0;
        while at < len {
            let count = PIECE_BYTES.min(len - at);
            let one = read_vec(source, Offset::new(geometry.fat_at + at), count, "FAT")?;
            let other = read_vec(source, Offset::new(other_at + at), count, "FAT")?;
            if let Some(index) = one.iter().zip(&other).position(|(one, other)| one != other) {
                let bits = (at + index as u64) * 8 / geometry.kind.entry_bits();
                let cluster = u32::try_from(bits).unwrap_or(u32::MAX);
                return Err(Error::corrupt(Corrupt::FatsDiffer { fat, cluster }));
            }
            at += count;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_the_end_have_their_meaning() {
        for (kind, all) in [(Kind::Fat12, 0xfff), (Kind::Fat16, 0xffff), (Kind::Fat32, 0x0fff_ffff)] {
            assert_eq!(Entry::of(kind, all), Entry::End);
            assert_eq!(Entry::of(kind, all - 7), Entry::End);
            assert_eq!(Entry::of(kind, all - 8), Entry::Bad);
            assert_eq!(Entry::of(kind, all - 9), Entry::Next(all - 9));
            assert_eq!(Entry::of(kind, 0), Entry::Free);
            assert_eq!(Entry::of(kind, 1), Entry::Next(1));
        }
    }
}
