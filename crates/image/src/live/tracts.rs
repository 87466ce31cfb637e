//! Where new units go if the file is to stay about as long as what it holds: tracts of the virtual disk get places one behind
//! the other, in the order of their first writes.
//!
//! A tract is as large as the growth so far allows: while most of what was given is used, or little was given, it is large, so that
//! a disk that is written all over in any order is in few pieces; a disk of which little is written, here and there, gets smaller ones.
//! Within a tract a unit's place follows from its number. What of an image that is taken into use lies so already is found again, and its gaps
//! are filled.
//!
//! Invariant: two tracts never have a place in common, and all of them lie behind what the file held. What lies in the gaps of a
//! file that was there may be anybody's: whether a place is free is for the format to say.
//!
//! Absent on purpose: bringing what lies in tracts that stayed nearly empty together, which is `plan::shorten`'s.

use std::collections::HashMap;
use std::ops::Range;

/// Of what is given at first: a chunk is one part of so many, and the least that is given later.
const CHUNK_SHARE: u64 = 64;
/// Chunks that a disk has at most; they are larger for larger disks.
const CHUNK_COUNT_MAX: u64 = 1 << 16;
/// Room for tables is taken from between tracts in pieces of this many bytes.
const TABLE_ROOM_BYTES: u64 = 1 << 20;

/// What a format says of its units.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Grid {
    /// Bytes of the disk that a unit holds.
    pub(crate) unit_bytes: u64,
    /// Units of the disk.
    pub(crate) unit_count: u64,
    /// From one unit's place to the next one's.
    pub(crate) stride_bytes: u64,
    /// What new places are multiples of.
    pub(crate) align_bytes: u64,
    /// What lies right before each place and goes with it.
    pub(crate) head_bytes: u64,
}

/// Where the first unit of a chunk would lie, and what speaks for it.
struct Candidate {
    start: u64,
    count: u64,
}

/// See the module's page.
pub(crate) struct Tracts {
    grid: Grid,
    first_bytes: u64,
    chunk_units: u64,
    /// Where the first units of chunks lie or would lie, of which some were found.
    found: HashMap<u64, Candidate>,
    /// The same of chunks that were given a place.
    given: HashMap<u64, u64>,
    /// Nothing of the file lies behind this, and no tract.
    end: u64,
    limit: u64,
    tables: Range<u64>,
    given_bytes: u64,
    used_bytes: u64,
}

impl Tracts {
    /// None yet; the first are to be of `first_bytes`.
    pub(crate) fn new(grid: Grid, first_bytes: u64) -> Self {
        let least_units = first_bytes / CHUNK_SHARE / grid.unit_bytes;
        let chunk_units = least_units.max(grid.unit_count.div_ceil(CHUNK_COUNT_MAX)).max(1);
        Self {
            grid,
            first_bytes,
            chunk_units,
            found: HashMap::new(),
            given: HashMap::new(),
            end: u64::MAX,
            limit: 0,
            tables: 0..0,
            given_bytes: 0,
            used_bytes: 0,
        }
    }

    /// Counts the unit `unit`, which lies at `at`. The place that most units of a chunk speak for stays, if more than half of them do.
    pub(crate) fn count(&mut self, unit: u64, at: u64) {
        let distance = unit % self.chunk_units * self.grid.stride_bytes;
        let Some(start) = at.checked_sub(distance) else { return };
        let candidate = self.found.entry(unit / self.chunk_units).or_insert(Candidate { start, count: 0 });
        match candidate.start == start {
            true => candidate.count += 1,
            false if candidate.count == 0 => *candidate = Candidate { start, count: 1 },
            false => candidate.count -= 1,
        }
    }

    /// Without what was found elsewhere than at multiples of `align_bytes`.
    pub(crate) fn aligned_to(mut self, align_bytes: u64) -> Self {
        self.found.retain(|_, found| found.start.is_multiple_of(align_bytes));
        self
    }

    /// The file, which held nothing behind `from`, may grow to `limit`.
    pub(crate) fn grow_from(&mut self, from: u64, limit: u64) {
        let room_bytes = self.chunk_units.saturating_mul(self.grid.stride_bytes);
        self.found.retain(|_, found| found.start < from);
        // What the file ends within goes on.
        let ends = self.found.values().map(|found| found.start.saturating_add(room_bytes));
        let ends = ends.filter(|end| *end <= limit);
        self.end = ends.max().unwrap_or(from).max(from);
        self.limit = limit;
    }

    /// The place of `unit`, if its tract has one.
    pub(crate) fn place(&self, unit: u64) -> Option<u64> {
        let (chunk, distance) = (unit / self.chunk_units, unit % self.chunk_units);
        let found = || self.found.get(&chunk).map(|found| found.start);
        let start = self.given.get(&chunk).copied().or_else(found)?;
        start.checked_add(distance * self.grid.stride_bytes)
    }

    /// A place for `unit`, the one that its tract had not being free, in a new one. `None` if it had a new one, or there is no more room.
    pub(crate) fn give(&mut self, unit: u64) -> Option<u64> {
        let chunk = unit / self.chunk_units;
        if self.given.contains_key(&chunk) {
            return None;
        }
        let chunks = self.around(chunk);
        let units =
            (chunks.end * self.chunk_units).min(self.grid.unit_count) - chunks.start * self.chunk_units;
        let Grid { stride_bytes, align_bytes, head_bytes, unit_bytes, .. } = self.grid;
        let start = self.end.checked_add(head_bytes)?.checked_next_multiple_of(align_bytes)?;
        let end = start.checked_add(units.checked_mul(stride_bytes)?).filter(|end| *end <= self.limit)?;
        for (index, chunk) in (0..).zip(chunks) {
            self.given.insert(chunk, start + index * self.chunk_units * stride_bytes);
        }
        self.end = end;
        self.given_bytes = self.given_bytes.saturating_add(units * unit_bytes);
        self.place(unit)
    }

    /// The chunks around `chunk` that are given a place together: none that has one.
    fn around(&self, chunk: u64) -> Range<u64> {
        let chunk_bytes = self.chunk_units * self.grid.unit_bytes;
        let count = (self.tract_bytes() / chunk_bytes).max(1);
        let first = chunk / count * count;
        let last = (first + count).min(self.grid.unit_count.div_ceil(self.chunk_units));
        let has_place = |chunk: &u64| self.given.contains_key(chunk) || self.found.contains_key(chunk);
        let start = (first..chunk).rev().find(has_place).map_or(first, |before| before + 1);
        let end = (chunk + 1..last).find(has_place).unwrap_or(last);
        start..end
    }

    /// How large a new tract is, by what is unused of those that there are.
    fn tract_bytes(&self) -> u64 {
        let unused_bytes = self.given_bytes.saturating_sub(self.used_bytes);
        let first_bytes = self.first_bytes;
        match unused_bytes {
            unused if unused < first_bytes / 4 => first_bytes,
            unused if unused < 2 * first_bytes => first_bytes / 4,
            unused if unused < 4 * first_bytes => first_bytes / 16,
            _ => first_bytes / CHUNK_SHARE,
        }
    }

    /// A unit was placed.
    pub(crate) fn used(&mut self) {
        self.used_bytes = self.used_bytes.saturating_add(self.grid.unit_bytes).min(self.given_bytes);
    }

    /// A unit's place was given back.
    pub(crate) fn released(&mut self) {
        self.used_bytes = self.used_bytes.saturating_sub(self.grid.unit_bytes);
    }

    /// Where what was given ends.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// What lies before `end` is somebody else's.
    pub(crate) fn skip_to(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// A place for `len_bytes`, whole units, among the tracts.
    pub(crate) fn room(&mut self, len_bytes: u64) -> Option<u64> {
        let start = self.end.checked_next_multiple_of(self.grid.align_bytes)?;
        self.end = start.checked_add(len_bytes).filter(|end| *end <= self.limit)?;
        Some(start)
    }

    /// A place for a table of `len_bytes`, behind the last one as long as there is room. There are `count_max` at most.
    pub(crate) fn place_for_table(&mut self, len_bytes: u64, count_max: u64) -> Option<u64> {
        self.make_room_for_tables(len_bytes, count_max);
        let at = self.tables.start;
        let has_room = self.tables.end - at >= len_bytes;
        self.tables.start += if has_room { len_bytes } else { 0 };
        has_room.then_some(at)
    }

    /// Keeps room for the next tables, unless there is some.
    pub(crate) fn make_room_for_tables(&mut self, len_bytes: u64, count_max: u64) {
        if self.tables.end - self.tables.start >= len_bytes {
            return;
        }
        let room_bytes = count_max.saturating_mul(len_bytes).min(TABLE_ROOM_BYTES / len_bytes * len_bytes);
        let room_bytes = room_bytes.max(len_bytes);
        if let Some(start) = self.room(room_bytes) {
            self.tables = start..start + room_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Of a disk of `disk_bytes` in units of 64 KiB, in a file of 1 MiB.
    fn tracts(disk_bytes: u64) -> Tracts {
        let unit_bytes = 64 << 10;
        let grid = Grid {
            unit_bytes,
            unit_count: disk_bytes / unit_bytes,
            stride_bytes: unit_bytes,
            align_bytes: unit_bytes,
            head_bytes: 0,
        };
        let mut tracts = Tracts::new(grid, GIB);
        tracts.grow_from(MIB, 1 << 50);
        tracts
    }

    fn place(tracts: &mut Tracts, at: u64) -> u64 {
        let unit = at / tracts.grid.unit_bytes;
        let place = tracts.place(unit).or_else(|| tracts.give(unit)).expect("there is room");
        tracts.used();
        place
    }

    #[test]
    fn a_small_disk_is_one_tract() {
        let mut tracts = tracts(GIB);
        assert_eq!(place(&mut tracts, GIB - 64 * 1024), MIB + GIB - 64 * 1024);
        assert_eq!(place(&mut tracts, 0), MIB);
        assert_eq!(tracts.end(), MIB + GIB);
    }

    #[test]
    fn what_grows_in_order_follows_itself() {
        let mut tracts = tracts(16 * GIB);
        for at in (0..16 * GIB).step_by(64 << 10) {
            assert_eq!(place(&mut tracts, at), MIB + at);
        }
        assert_eq!(tracts.end(), MIB + 16 * GIB);
    }

    #[test]
    fn little_here_and_there_gets_less_and_less_room() {
        let mut tracts = tracts(1 << 40);
        let mut lengths = Vec::new();
        for index in 0..200u64 {
            let before = tracts.end();
            place(&mut tracts, (index * 7919 % 1024) * GIB);
            lengths.push((tracts.end() - before) / MIB);
        }
        lengths.dedup();
        assert_eq!(lengths, [1024, 256, 64, 16]);
        assert!(tracts.end() < 8 * GIB);
    }

    #[test]
    fn tables_lie_together_among_the_tracts() {
        let mut tracts = tracts(4 * GIB);
        let table = |tracts: &mut Tracts| tracts.place_for_table(64 << 10, 3).expect("there is room");
        assert_eq!([table(&mut tracts), table(&mut tracts)], [MIB, MIB + (64 << 10)]);
        assert_eq!(place(&mut tracts, 0), MIB + 3 * (64 << 10));
        assert_eq!(table(&mut tracts), MIB + 2 * (64 << 10));
        assert_eq!(table(&mut tracts), MIB + 3 * (64 << 10) + GIB);
    }

    #[test]
    fn what_lay_in_order_is_found_again_and_its_gaps_are_filled() {
        let unit = |at: u64| at / (64 << 10);
        let mut tracts = Tracts::new(tracts(4 * GIB).grid, GIB);
        for index in 0..10 {
            tracts.count(unit(GIB) + 2 * index, 5 * MIB + 2 * index * (64 << 10));
        }
        tracts.count(unit(GIB) + 1, 2 * MIB);
        tracts.grow_from(8 * MIB, 1 << 50);
        assert_eq!(tracts.place(unit(GIB) + 3), Some(5 * MIB + 3 * (64 << 10)));
        assert_eq!(tracts.end(), 21 * MIB, "the chunk that the file ended within goes on");
        assert_eq!(tracts.place(unit(2 * GIB)), None);
        assert_eq!(tracts.give(unit(GIB + 16 * MIB)), Some(21 * MIB));
        assert_eq!(tracts.end(), 21 * MIB + GIB - 16 * MIB, "the rest of the tract around it");
    }
}
