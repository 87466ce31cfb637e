//! Refcounts of an image in use: the table, its blocks, and the counts in them.
//!
//! Invariant: a block counts itself before anything relies on it; where one cannot be counted, for want of room, it is as if it had
//! never been.

use std::mem::offset_of;

use block::{Error, FieldValue, Result};
use extent::{HostOffset, Span};
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U32, U64};

use super::Clusters;
use crate::live::{Stage, Storage, Tables};
use crate::qcow2::corrupt::Corrupt;
use crate::qcow2::layout::{self, REFCOUNT_TABLE_BYTES_MAX, entry};

/// L1 entries whose tables' refcounts are checked when the image is opened.
const CHECKED_L1_COUNT_MAX: u64 = 1 << 16;

impl Clusters {
    /// Everything that leads to clusters must be counted itself: else new clusters could overwrite it.
    pub(super) fn check_metadata(&mut self, tables: &mut Tables) -> Result<()> {
        let l1_clusters = (self.l1_count() * 8).div_ceil(self.cluster_bytes());
        let table_clusters = (self.table_count * 8).div_ceil(self.cluster_bytes());
        let mut spans = vec![(0, 1), (self.l1_at, l1_clusters), (self.table_at, table_clusters)];
        for index in 0..self.table_count {
            let at = self.block_at(tables, index)?;
            spans.extend((at != 0).then_some((at, 1)));
        }
        for index in 0..self.l1_count().min(CHECKED_L1_COUNT_MAX) {
            let word = tables.looking(|tables| self.l1_entry(tables, index))?;
            spans.extend((word & entry::OFFSET != 0).then_some((word & entry::OFFSET, 1)));
        }
        for (at, count) in spans {
            for number in (at >> self.cluster_bits)..(at >> self.cluster_bits) + count {
                if self.refcount(tables, number)? == 0 {
                    let error =
                        Error::corrupt(Corrupt::Metadata).at(HostOffset::new(number << self.cluster_bits));
                    let error = error.field("refcount of its cluster", 0, "1 or more");
                    return Err(error.hint("run 'qemu-img check -r all' on it first"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn block_at(&self, tables: &mut Tables, index: u64) -> Result<u64> {
        if index >= self.table_count {
            return Ok(0);
        }
        let at = self.table_at + index * 8;
        let word = u64::from_be_bytes(tables.read(at)?);
        if word & (self.cluster_bytes() - 1) != 0 || word >= tables.len_bytes() {
            let error = Error::corrupt(Corrupt::RefcountTable).at(HostOffset::new(at));
            return Err(error.field(
                format!("entry {index}"),
                FieldValue::hex(word),
                "whole clusters of the file",
            ));
        }
        Ok(word)
    }

    /// Where the refcount of `number` lies in its block: byte, shift within it, bytes.
    pub(super) fn refcount_place(&self, number: u64) -> (u64, u64, u64) {
        let bit = number % self.block_count() * self.refcount_bits;
        (bit / 8, bit % 8, self.refcount_bits.div_ceil(8))
    }

    pub(super) fn refcount(&self, tables: &mut Tables, number: u64) -> Result<u64> {
        let block = self.block_at(tables, number / self.block_count())?;
        if block == 0 {
            return Ok(0);
        }
        let (byte, shift, len_bytes) = self.refcount_place(number);
        let at = block + byte;
        let word = match len_bytes {
            1 => u8::from_be_bytes(tables.read(at)?).into(),
            2 => u16::from_be_bytes(tables.read(at)?).into(),
            4 => u32::from_be_bytes(tables.read(at)?).into(),
            _ => u64::from_be_bytes(tables.read(at)?),
        };
        Ok(if self.refcount_bits < 8 { word >> shift & ((1 << self.refcount_bits) - 1) } else { word })
    }

    /// Sets a refcount, whose block is there.
    pub(super) fn put_refcount(&self, tables: &mut Tables, number: u64, count: u64) -> Result<()> {
        let block = self.block_at(tables, number / self.block_count())?;
        let (byte, shift, len_bytes) = self.refcount_place(number);
        let at = block + byte;
        if self.refcount_bits < 8 {
            let mask = ((1u64 << self.refcount_bits) - 1) << shift;
            let [old] = tables.read::<1>(at)?;
            let new = u64::from(old) & !mask | count << shift;
            return tables.put(at, &new.to_le_bytes()[..1], Stage::Unreferenced);
        }
        let bytes = count.to_be_bytes();
        let skip = bytes.len() - usize::try_from(len_bytes).expect("at most 8");
        tables.put(at, &bytes[skip..], Stage::Unreferenced)
    }

    /// Makes sure that the refcount block `index` is there.
    pub(super) fn ensure_block(&mut self, tables: &mut Tables, index: u64) -> Result<()> {
        if index >= self.table_count {
            self.grow_table(tables, index)?;
        }
        if self.block_at(tables, index)? != 0 {
            return Ok(());
        }
        let places = self.refcount_blocks.places(index).collect();
        let number = self.find_for_table(tables, places)?;
        let at = number << self.cluster_bits;
        tables.reserve(self.cluster(at))?;
        tables.create(self.cluster(at), 0, Stage::Unreferenced);
        let stage = if self.table_is_new { Stage::Unreferenced } else { Stage::Root };
        // Before it counts itself, or is counted by a block that it counts.
        let entry_at = self.table_at + index * 8;
        tables.put(entry_at, &at.to_be_bytes(), stage)?;
        let taken = self.take(tables, number);
        if taken.is_err() {
            // Nothing is counted in it yet: what could have been was refused with it.
            tables.put(entry_at, &[0; 8], stage)?;
            tables.forget(self.cluster(at));
        }
        taken
    }

    /// Moves the refcount table to where it has room for entry `index`.
    fn grow_table(&mut self, tables: &mut Tables, index: u64) -> Result<()> {
        let entries_max = REFCOUNT_TABLE_BYTES_MAX / 8;
        if index >= entries_max {
            return Err(Error::unsupported("QCOW2 file beyond what its refcounts can count"));
        }
        let count = (index + 1).max(self.table_count * 2).min(entries_max);
        let new_bytes = (count * 8).next_multiple_of(self.cluster_bytes());
        let clusters = new_bytes >> self.cluster_bits;
        let number = self.place_for_table(tables, clusters)?;
        let old = Span::new(HostOffset::new(self.table_at), self.table_count * 8);
        let at = number << self.cluster_bits;
        let place = Span::new(HostOffset::new(at), new_bytes);
        tables.reserve(place)?;
        tables.create(place, 0, Stage::Unreferenced);
        let entries = tables.read_vec(old)?;
        tables.put(at, &entries, Stage::Unreferenced)?;
        let clusters = u32::try_from(clusters).map_err(|_| Error::unsupported("QCOW2 refcount table"))?;
        (self.table_at, self.table_count, self.table_is_new) = (at, new_bytes / 8, true);
        tables.put(
            offset_of!(layout::Header, refcount_table_offset) as u64,
            U64::new(at).as_bytes(),
            Stage::Root,
        )?;
        let at = offset_of!(layout::Header, refcount_table_clusters) as u64;
        tables.put(at, U32::new(clusters).as_bytes(), Stage::Root)?;
        self.is_torn = true;
        for number in number..number + u64::from(clusters) {
            self.take(tables, number)?;
        }
        self.is_torn = false;
        self.outgrown.push(Storage::Shared { at: old.start(), len_bytes: old.len_bytes() });
        Ok(())
    }

    fn place_for_table(&mut self, tables: &mut Tables, clusters: u64) -> Result<u64> {
        let room = self.data.room(clusters << self.cluster_bits);
        let first = room.unwrap_or(self.table_place) >> self.cluster_bits;
        for number in first..first + clusters {
            if !self.is_free(tables, number)? {
                return self.first_fit(tables, clusters);
            }
        }
        Ok(first)
    }
}
