//! What lies where in a QCOW2 in use, and how its tables refer to what moved.
//!
//! An L2 table that moved is written as a new one is: nothing refers to it until its L1 entry does. A refcount block that moved
//! is written with the data; until the refcount table's entry follows, the former one has every count that anything on the
//! storage relies on, because references come last.

use std::mem::offset_of;
use std::ops::Range;

use block::{Error, Occupancy, Occupant, Result};
use extent::{ExtentSet, Host, HostOffset, Span};

use super::Clusters;
use crate::live::{Movable, Stage, Storage, Tables};
use crate::qcow2::corrupt::Corrupt;
use crate::qcow2::layout::{self, entry};

/// `l1_size` (specification: Header).
const L1_SIZE_AT: u64 = offset_of!(layout::Header, l1_size) as u64;
/// References remembered at most, and leaks: 64 MiB.
const REFERENCE_COUNT_MAX: usize = 1 << 22;

/// Clusters that are referred to, each run as often as it is.
#[derive(Default)]
struct References(Vec<Range<u64>>);

impl References {
    fn push(&mut self, first: u64, count: u64) -> Result<()> {
        let is_full = self.0.len() >= REFERENCE_COUNT_MAX;
        match self.0.last_mut() {
            _ if count == 0 => {}
            Some(last) if last.end == first => last.end += count,
            _ if is_full => {
                let error =
                    Error::unsupported("a QCOW2 image in so many pieces, whose leaks are to be found");
                return Err(error.hint("'qemu-img check -r leaks' finds them"));
            }
            _ => self.0.push(first..first + count),
        }
        Ok(())
    }

    fn finish(mut self) -> Vec<Range<u64>> {
        self.0.sort_unstable_by_key(|range| range.start);
        self.0
    }
}

/// The clusters of the file by how often they are counted.
struct Counted {
    once_or_more: ExtentSet<Host>,
    more_often: ExtentSet<Host>,
    /// Without a refcount block.
    uncounted: ExtentSet<Host>,
}

impl Clusters {
    pub(super) fn find_occupancy(&self, tables: &mut Tables) -> Result<Option<Occupancy>> {
        let counted = self.counted(tables)?;
        let is_alone = |at: u64| {
            let at = HostOffset::new(at);
            counted.once_or_more.contains(at) && !counted.more_often.contains(at)
        };
        let mut movable = Movable::new(self.cluster_bytes());
        for index in 0..self.table_count {
            let at = self.block_at(tables, index)?;
            if at != 0 && is_alone(at) {
                movable.push(Occupant::Counts(index), HostOffset::new(at));
            }
        }
        for index in 0..self.l1_count() {
            let word = tables.looking(|tables| self.l1_entry(tables, index))?;
            let at = word & entry::OFFSET;
            if at == 0 || word & entry::COPIED == 0 || !is_alone(at) {
                continue;
            }
            let mut can_empty = true;
            for (unit, word) in (index * self.l2_entry_count()..self.unit_count).zip(self.words(tables, at)?)
            {
                let place = word & entry::OFFSET;
                if word & entry::COMPRESSED != 0 || place == 0 {
                    continue;
                }
                if !counted.once_or_more.contains(HostOffset::new(place)) {
                    // It would be taken for free.
                    return Ok(None);
                }
                if word & entry::COPIED == 0
                    || word & !(entry::OFFSET | entry::COPIED) != 0
                    || !is_alone(place)
                {
                    can_empty = false;
                    continue;
                }
                movable.push(Occupant::Unit(unit), HostOffset::new(place));
            }
            if can_empty {
                movable.push(Occupant::Map(index), HostOffset::new(at));
            }
        }
        let cluster_bytes = self.cluster_bytes();
        Ok(movable.occupancy(counted.once_or_more, None, tables.len_bytes()).map(|found| Occupancy {
            align_bytes: cluster_bytes,
            slots_from: HostOffset::new(cluster_bytes),
            unusable: counted.uncounted,
            units_per_map: Some(self.l2_entry_count()),
            bytes_per_counts: Some(self.block_count() * cluster_bytes),
            length_multiple_bytes: cluster_bytes,
            ..found
        }))
    }

    /// Clusters that are counted more often than something refers to them.
    pub(super) fn find_leaks(&self, tables: &mut Tables) -> Result<Vec<Storage>> {
        let [l1_entry_count] = tables.read::<4>(L1_SIZE_AT).map(|bytes| [u32::from_be_bytes(bytes)])?;
        if self.may_have_more || u64::from(l1_entry_count) > self.l1_count() {
            return Ok(Vec::new());
        }
        let mut references = References::default();
        let clusters = |bytes: u64| bytes.div_ceil(self.cluster_bytes());
        references.push(0, 1)?;
        references.push(self.l1_at >> self.cluster_bits, clusters(self.l1_count() * 8))?;
        references.push(self.table_at >> self.cluster_bits, clusters(self.table_count * 8))?;
        for index in 0..self.table_count {
            let at = self.block_at(tables, index)?;
            references.push(at >> self.cluster_bits, u64::from(at != 0))?;
        }
        for index in 0..self.l1_count() {
            let table = tables.looking(|tables| self.l1_entry(tables, index))? & entry::OFFSET;
            if table == 0 {
                continue;
            }
            references.push(table >> self.cluster_bits, 1)?;
            for word in self.words(tables, table)? {
                if word & entry::COMPRESSED != 0 {
                    let (at, len_bytes) = self.compressed(tables, word);
                    let first = at.get() >> self.cluster_bits;
                    references.push(first, clusters(at.get() + len_bytes) - first)?;
                } else {
                    let at = word & entry::OFFSET;
                    references.push(at >> self.cluster_bits, u64::from(at != 0))?;
                }
            }
        }
        self.counted_more_often(tables, references.finish())
    }

    /// `references` as often as there are, in order.
    fn counted_more_often(&self, tables: &mut Tables, references: Vec<Range<u64>>) -> Result<Vec<Storage>> {
        let mut leaks = Vec::new();
        let mut rest = references.into_iter().peekable();
        // Ends of those that have begun.
        let mut ends: Vec<u64> = Vec::new();
        for number in 0..tables.len_bytes().div_ceil(self.cluster_bytes()) {
            ends.retain(|end| *end > number);
            while let Some(range) = rest.next_if(|range| range.start <= number) {
                ends.push(range.end);
            }
            let (count, expected) = (self.refcount(tables, number)?, ends.len() as u64);
            if count < expected {
                let error = Error::corrupt(Corrupt::Refcount).at(self.at(number));
                let error = error.field("of a cluster", count, format!("{expected} or more"));
                return Err(error.hint("run 'qemu-img check -r all' on it first"));
            }
            let cluster = Storage::Shared { at: self.at(number), len_bytes: self.cluster_bytes() };
            for _ in expected..count {
                if leaks.len() >= REFERENCE_COUNT_MAX {
                    return Ok(leaks);
                }
                leaks.push(cluster);
            }
        }
        Ok(leaks)
    }

    fn words(&self, tables: &mut Tables, at: u64) -> Result<Vec<u64>> {
        let bytes = tables.read_vec(self.cluster(at))?;
        Ok(bytes.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect())
    }

    fn counted(&self, tables: &mut Tables) -> Result<Counted> {
        let end = tables.len_bytes().div_ceil(self.cluster_bytes());
        let (mut once_or_more, mut more_often, mut uncounted) =
            (ExtentSet::new(), ExtentSet::new(), ExtentSet::new());
        let mut number = 0;
        while number < end {
            let block = number / self.block_count();
            let block_end = ((block + 1) * self.block_count()).min(end);
            if self.block_at(tables, block)? == 0 {
                let span = Span::new(self.at(number), (block_end - number) * self.cluster_bytes());
                uncounted.push(span);
                number = block_end;
                continue;
            }
            for number in number..block_end {
                let count = self.refcount(tables, number)?;
                let cluster = Span::new(self.at(number), self.cluster_bytes());
                if count > 0 {
                    once_or_more.push(cluster);
                }
                if count > 1 {
                    more_often.push(cluster);
                }
            }
            number = block_end;
        }
        Ok(Counted { once_or_more, more_often, uncounted })
    }

    fn at(&self, number: u64) -> HostOffset {
        HostOffset::new(number << self.cluster_bits)
    }

    pub(super) fn move_reference(
        &mut self,
        tables: &mut Tables,
        who: Occupant,
        from: u64,
        to: u64,
    ) -> Result<()> {
        match who {
            Occupant::Unit(unit) => {
                let l1 = tables.looking(|tables| self.l1_entry(tables, unit / self.l2_entry_count()))?;
                let table = l1 & entry::OFFSET;
                let stage =
                    if self.new_tables.contains(&table) { Stage::Unreferenced } else { Stage::References };
                let at = table + unit % self.l2_entry_count() * 8;
                tables.put(at, &(to | entry::COPIED).to_be_bytes(), stage)
            }
            Occupant::Map(index) => {
                self.copy_table(tables, from, to)?;
                self.new_tables.insert(to);
                let at = self.l1_at + index * 8;
                tables.put(at, &(to | entry::COPIED).to_be_bytes(), Stage::References)
            }
            Occupant::Counts(index) => {
                self.copy_table(tables, from, to)?;
                let stage = if self.table_is_new { Stage::Unreferenced } else { Stage::Root };
                tables.put(self.table_at + index * 8, &to.to_be_bytes(), stage)
            }
        }
    }

    fn copy_table(&self, tables: &mut Tables, from: u64, to: u64) -> Result<()> {
        let contents = tables.read_vec(self.cluster(from))?;
        tables.reserve(self.cluster(to))?;
        tables.create(self.cluster(to), 0, Stage::Unreferenced);
        tables.put(to, &contents, Stage::Unreferenced)
    }

    /// Leaves out L2 tables that say no more than their absence would.
    pub(super) fn drop_empty_tables(&mut self, tables: &mut Tables, freed: &mut Vec<Storage>) -> Result<()> {
        for index in std::mem::take(&mut self.emptied) {
            let word = tables.looking(|tables| self.l1_entry(tables, index))?;
            let at = word & entry::OFFSET;
            if at == 0 || word & entry::COPIED == 0 {
                continue;
            }
            let zeros = if self.has_parent { 0 } else { entry::ZERO };
            if self.words(tables, at)?.iter().all(|word| word & !zeros == 0) {
                tables.put(self.l1_at + index * 8, &[0; 8], Stage::References)?;
                freed.push(Storage::Unit(HostOffset::new(at)));
            }
        }
        Ok(())
    }

    /// Leaves out refcount blocks that count nothing, or themselves alone.
    pub(super) fn drop_empty_blocks(&mut self, tables: &mut Tables, freed: &mut Vec<Storage>) -> Result<()> {
        for index in std::mem::take(&mut self.lowered) {
            let at = self.block_at(tables, index)?;
            if at == 0 || !self.counts_nothing_else(tables, index, at)? {
                continue;
            }
            tables.put(self.table_at + index * 8, &[0; 8], Stage::Root)?;
            freed.push(Storage::Unit(HostOffset::new(at)));
        }
        Ok(())
    }

    fn counts_nothing_else(&self, tables: &mut Tables, index: u64, at: u64) -> Result<bool> {
        let mut bytes = tables.read_vec(self.cluster(at))?;
        let own = at >> self.cluster_bits;
        if own / self.block_count() == index {
            let (byte, shift, len_bytes) = self.refcount_place(own);
            let range = crate::live::index(byte)..crate::live::index(byte + len_bytes);
            if self.refcount_bits < 8 {
                bytes[range.start] &= !(((1u16 << self.refcount_bits) - 1) << shift).to_le_bytes()[0];
            } else {
                bytes[range].fill(0);
            }
        }
        Ok(block::is_zero(&bytes))
    }

    /// Whether no refcount block counts it: it was one that counted itself.
    pub(super) fn is_uncounted(&self, tables: &mut Tables, number: u64) -> Result<bool> {
        Ok(self.block_at(tables, number / self.block_count())? == 0)
    }
}
