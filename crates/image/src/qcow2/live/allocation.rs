//! Where new clusters go: behind those that the guest's addresses lead them after, else the first that are free.
//!
//! New L2 tables and refcount blocks lie together, so that the guest's clusters follow each other without a gap: in rooms of
//! their own among tracts, or where clusters mirror the disk in places by their number, ahead of all of them.

use block::{Error, Result, read_vec};
use extent::HostOffset;

use super::Clusters;
use crate::live::{Arrangement, Grid, HOST_BYTES_MAX, InUse, Tables, Votes, broken};
use crate::qcow2::layout::{REFCOUNT_TABLE_BYTES_MAX, entry};

/// L2 tables looked at for the bases that clusters follow: these many bytes, spread over the disk.
const VOTING_BYTES_MAX: u64 = 16 << 20;
/// The file grows by this, so that not every cluster asks the host.
const GROWTH_BYTES: u64 = 1 << 20;
/// The width of a refcount in nearly every image.
const USUAL_REFCOUNT_BITS: u64 = 16;

/// Where the file grows, with room behind its end for all that may come: L2 tables, refcount blocks, a larger refcount table, the guest's clusters.
struct Growth {
    blocks_at: u64,
    table_at: u64,
    data_at: u64,
    end: u64,
}

impl Growth {
    fn new(from: u64, unit_count: u64, cluster_bits: u32, refcount_bits: u64) -> Self {
        let cluster_bytes = 1u64 << cluster_bits;
        let data_bytes = unit_count.saturating_mul(cluster_bytes);
        let l2_bytes = unit_count.div_ceil(cluster_bytes / 8).saturating_mul(cluster_bytes);
        let blocks_at = from.saturating_add(l2_bytes);
        let counted = |bytes: u64| (bytes >> cluster_bits).div_ceil(cluster_bytes * 8 / refcount_bits);
        // What the blocks and the table take has to be counted itself: twice as many is more than enough.
        let block_count = 2 * counted(blocks_at.saturating_add(data_bytes)) + 2;
        let table_at = blocks_at.saturating_add(block_count.saturating_mul(cluster_bytes));
        let table_bytes = (block_count * 8).next_multiple_of(cluster_bytes);
        let data_at = table_at.saturating_add(table_bytes);
        Self { blocks_at, table_at, data_at, end: data_at.saturating_add(data_bytes) }
    }
}

/// Where a file of `len_bytes` ends at most once all units of its disk are written.
pub(crate) fn end_max(len_bytes: u64, unit_count: u64, cluster_bytes: u64) -> u64 {
    let from = len_bytes.checked_next_multiple_of(cluster_bytes).unwrap_or(u64::MAX);
    Growth::new(from, unit_count, cluster_bytes.ilog2(), USUAL_REFCOUNT_BITS).end
}

impl Clusters {
    /// The end of what the largest refcount table can count, and of what hosts can hold.
    fn limit(&self) -> u64 {
        let countable = (REFCOUNT_TABLE_BYTES_MAX / 8).saturating_mul(self.block_count());
        countable.saturating_mul(self.cluster_bytes()).min(HOST_BYTES_MAX)
    }

    /// Finds the places that tables and clusters follow, and others behind the file's end.
    pub(super) fn find_bases(&mut self, file: &InUse, arrangement: Arrangement) -> Result<()> {
        let cluster_bytes = self.cluster_bytes();
        let words = |at: u64, count: u64, what: &str| -> Result<Vec<u64>> {
            let bytes = read_vec(file, HostOffset::new(at), count * 8, what)?;
            Ok(bytes.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect())
        };
        let offset =
            |word: u64| (word & entry::COMPRESSED == 0).then_some(word & entry::OFFSET).filter(|at| *at != 0);
        let of_tables = |count| Votes::new(Arrangement::Mirror, self.grid(count));
        let mut votes = [
            Votes::new(arrangement, self.grid(self.unit_count)),
            of_tables(self.l1_count()),
            of_tables(self.table_count),
        ];
        let [of_data, of_l2, of_blocks] = &mut votes;
        for (index, word) in (0..).zip(words(self.table_at, self.table_count, "QCOW2 refcount table")?) {
            if let Some(at) = offset(word) {
                of_blocks.count(index, at);
            }
        }
        let l1 = words(self.l1_at, self.l1_count(), "QCOW2 L1 table")?;
        let l2: Vec<(u64, u64)> =
            (0..).zip(l1).filter_map(|(index, word)| Some((index, offset(word)?))).collect();
        for (index, at) in &l2 {
            of_l2.count(*index, *at);
        }
        let step = (l2.len() as u64 * cluster_bytes).div_ceil(VOTING_BYTES_MAX).max(1);
        for (index, at) in l2.iter().step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let first = index * self.l2_entry_count();
            let there = file.file.len_bytes().saturating_sub(*at).min(cluster_bytes) / 8;
            for (unit, word) in (first..).zip(words(*at, there, "QCOW2 L2 table")?) {
                if let Some(at) = offset(word) {
                    of_data.count(unit, at);
                }
            }
        }
        let [data, l2_tables, blocks] = votes.map(|votes| votes.into_bases(cluster_bytes));
        self.data = data;
        if arrangement == Arrangement::Mirror {
            (self.l2_tables, self.refcount_blocks) = (l2_tables, blocks);
            self.grow_for_all();
        } else {
            self.data.grow_from(self.fresh_from, self.limit());
            self.data.make_room_for_tables(cluster_bytes, self.table_count_max());
        }
        Ok(())
    }

    fn grid(&self, unit_count: u64) -> Grid {
        let cluster_bytes = self.cluster_bytes();
        Grid {
            unit_bytes: cluster_bytes,
            unit_count,
            stride_bytes: cluster_bytes,
            align_bytes: cluster_bytes,
            head_bytes: 0,
        }
    }

    /// Tables of all kinds that an image of this disk has at most, about.
    fn table_count_max(&self) -> u64 {
        self.l1_count() + self.unit_count.div_ceil(self.block_count()) + 2
    }

    /// Room behind the end for all that may come, see [`Growth`].
    fn grow_for_all(&mut self) {
        let limit = self.limit();
        let growth = Growth::new(self.fresh_from, self.unit_count, self.cluster_bits, self.refcount_bits);
        self.table_place = growth.table_at;
        if growth.end <= limit {
            self.l2_tables.grow_from(self.fresh_from, limit);
            self.refcount_blocks.grow_from(growth.blocks_at, limit);
            self.data.grow_from(growth.data_at, limit);
        }
    }

    pub(super) fn is_free(&self, tables: &mut Tables, number: u64) -> Result<bool> {
        let fits = (number + 1).checked_mul(self.cluster_bytes()).is_some_and(|end| end <= self.limit());
        Ok(fits && number != 0 && !self.claimed.contains(&number) && self.refcount(tables, number)? == 0)
    }

    /// A free cluster for a table: the first of `places` that is, or the next of the room for tables.
    pub(super) fn find_for_table(&mut self, tables: &mut Tables, mut places: Vec<u64>) -> Result<u64> {
        places.extend(self.data.place_for_table(self.cluster_bytes(), self.table_count_max()));
        let found = self.first_free_of(tables, places)?;
        found.map_or_else(|| self.first_fit(tables, 1), Ok)
    }

    /// A free cluster for what `unit` holds.
    pub(super) fn find_for_unit(&mut self, tables: &mut Tables, unit: u64) -> Result<u64> {
        let mut found = self.first_free_of(tables, self.data.places(unit).collect())?;
        if found.is_none() {
            let given = self.data.give(unit);
            found = self.first_free_of(tables, given.into_iter().collect())?;
        }
        self.data.used();
        found.map_or_else(|| self.first_fit(tables, 1), Ok)
    }

    fn first_free_of(&self, tables: &mut Tables, places: Vec<u64>) -> Result<Option<u64>> {
        for at in places {
            if self.is_free(tables, at >> self.cluster_bits)? || broken!(PlaceNotAskedFor) {
                return Ok(Some(at >> self.cluster_bits));
            }
        }
        Ok(None)
    }

    /// The first of `count` free clusters in a row.
    pub(super) fn first_fit(&mut self, tables: &mut Tables, count: u64) -> Result<u64> {
        let (mut number, mut found) = (self.first_free, 0);
        let mut first_free = None;
        while found < count {
            if number > self.limit() >> self.cluster_bits {
                return Err(Error::unsupported("QCOW2 file beyond what its refcounts can count"));
            }
            found = if self.is_free(tables, number)? { found + 1 } else { 0 };
            first_free = first_free.or((found == 1).then_some(number));
            number += 1;
        }
        self.first_free = first_free.unwrap_or(self.first_free);
        Ok(number - count)
    }

    /// Counts the free cluster `number` as taken once, and makes the file reach to its end; or does nothing, if there is no room.
    pub(super) fn take(&mut self, tables: &mut Tables, number: u64) -> Result<()> {
        let end = (number + 1) << self.cluster_bits;
        if end > tables.len_bytes() {
            tables.grow(end.next_multiple_of(GROWTH_BYTES.max(self.cluster_bytes())))?;
        }
        self.claimed.push(number);
        let taken = self.ensure_block(tables, number / self.block_count());
        let taken = taken.and_then(|()| self.put_refcount(tables, number, 1));
        self.claimed.retain(|claimed| *claimed != number);
        taken
    }
}
