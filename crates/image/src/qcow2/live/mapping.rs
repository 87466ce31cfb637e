//! The mapping of an image in use: L1 and L2 entries, checked as they are read, and tables to change.
//!
//! Invariant: no table is changed that a snapshot shares; a copy of it is.

use block::{Error, FieldValue, Result};
use extent::HostOffset;

use super::Clusters;
use crate::live::{Missed, Stage, Storage, Tables};
use crate::qcow2::corrupt::Corrupt;
use crate::qcow2::layout::{SECTOR_BYTES, compressed_offset_bits, entry};

/// [`entry::COPIED`] in an entry's first byte. In compressed entries the bit is clear.
const COPIED_IN_FIRST_BYTE: u8 = 0x80;

/// An L2 entry, and whether its table may be changed.
#[derive(Clone, Copy)]
pub(super) struct L2Entry {
    pub(super) word: u64,
    pub(super) is_owned: bool,
}

impl Clusters {
    pub(super) fn l1_entry(&self, tables: &Tables, index: u64) -> Result<u64, Missed> {
        let at = self.l1_at + index * 8;
        let word = u64::from_be_bytes(tables.get(at)?);
        let place = word & entry::OFFSET;
        if word & !(entry::OFFSET | entry::COPIED) != 0
            || place & (self.cluster_bytes() - 1) != 0
            || place >= tables.len_bytes()
        {
            let error = Error::corrupt(Corrupt::L1Entry).at(HostOffset::new(at));
            return Err(error
                .field(format!("entry {index}"), FieldValue::hex64(word), "a cluster of the file")
                .into());
        }
        Ok(word)
    }

    pub(super) fn l2_entry(&self, tables: &Tables, unit: u64) -> Result<Option<L2Entry>, Missed> {
        let l1 = self.l1_entry(tables, unit / self.l2_entry_count())?;
        let table = l1 & entry::OFFSET;
        if table == 0 {
            return Ok(None);
        }
        let at = table + unit % self.l2_entry_count() * 8;
        let word = u64::from_be_bytes(tables.get(at)?);
        self.check_l2(tables, at, unit, word)?;
        Ok(Some(L2Entry { word, is_owned: l1 & entry::COPIED != 0 && word & entry::COPIED != 0 }))
    }

    fn check_l2(&self, tables: &Tables, at: u64, unit: u64, word: u64) -> Result<(), Missed> {
        let corrupt = |expected: &str| {
            let error = Error::corrupt(Corrupt::L2Entry).at(HostOffset::new(at));
            Err(error.field(format!("entry of cluster {unit}"), FieldValue::hex64(word), expected).into())
        };
        if word & entry::COMPRESSED != 0 {
            let place = word & ((1 << compressed_offset_bits(self.cluster_bits)) - 1);
            let is_right =
                word & entry::COPIED == 0 && place >= self.cluster_bytes() && place < tables.len_bytes();
            return if is_right { Ok(()) } else { corrupt("a place within the file, and bit 63 clear") };
        }
        let zero_flag = if self.has_zero_flag { entry::ZERO } else { 0 };
        let place = word & entry::OFFSET;
        if word & !(entry::OFFSET | entry::COPIED | zero_flag) != 0
            || place & (self.cluster_bytes() - 1) != 0
            || place >= tables.len_bytes()
        {
            return corrupt("a cluster of the file, and reserved bits that are zeros");
        }
        Ok(())
    }

    pub(super) fn compressed(&self, tables: &Tables, word: u64) -> (HostOffset, u64) {
        let bits = compressed_offset_bits(self.cluster_bits);
        let at = word & ((1 << bits) - 1);
        let sectors = ((word & !entry::COMPRESSED) >> bits) + 1;
        let end = (at / SECTOR_BYTES + sectors).saturating_mul(SECTOR_BYTES).min(tables.len_bytes());
        (HostOffset::new(at), end - at)
    }

    /// What `entry` refers to, to be freed.
    pub(super) fn storage(&self, tables: &Tables, found: L2Entry) -> Option<Storage> {
        if found.word & entry::COMPRESSED != 0 {
            let (at, len_bytes) = self.compressed(tables, found.word);
            return Some(Storage::Shared { at, len_bytes });
        }
        let at = HostOffset::new(found.word & entry::OFFSET);
        match at.get() {
            0 => None,
            _ if found.is_owned => Some(Storage::Unit(at)),
            _ => Some(Storage::Shared { at, len_bytes: self.cluster_bytes() }),
        }
    }

    /// The L2 table of `unit`, its own to change: a new one where there is none, a copy where snapshots share it.
    pub(super) fn own_table(
        &mut self,
        tables: &mut Tables,
        unit: u64,
        freed: &mut Vec<Storage>,
    ) -> Result<u64> {
        let index = unit / self.l2_entry_count();
        let l1 = tables.looking(|tables| self.l1_entry(tables, index))?;
        let old = l1 & entry::OFFSET;
        if old != 0 && l1 & entry::COPIED != 0 {
            return Ok(old);
        }
        let contents = if old == 0 { None } else { Some(tables.read_vec(self.cluster(old))?) };
        let places = self.l2_tables.places(index).collect();
        let number = self.find_for_table(tables, places)?;
        let at = number << self.cluster_bits;
        tables.reserve(self.cluster(at))?;
        self.take(tables, number)?;
        tables.create(self.cluster(at), 0, Stage::Unreferenced);
        if let Some(mut contents) = contents {
            // Until it is known that nobody else refers to them.
            contents.iter_mut().step_by(8).for_each(|byte| *byte &= !COPIED_IN_FIRST_BYTE);
            tables.put(at, &contents, Stage::Unreferenced)?;
            freed.push(Storage::Shared { at: HostOffset::new(old), len_bytes: self.cluster_bytes() });
        }
        self.new_tables.insert(at);
        tables.put(self.l1_at + index * 8, &(at | entry::COPIED).to_be_bytes(), Stage::References)?;
        Ok(at)
    }
}
