//! VDI in use.
//!
//! Other programs take the header's count of blocks for the next free place, so the blocks in the file must be
//! those from 0 up to that count: new blocks are appended in the order of their first writes, and a block keeps its
//! place. What is freed is punched out of the host's file instead, unless somebody is there to fill the gaps
//! ([`LiveOptions::leaves_gaps`]). The count is written with the data, before the map,
//! so that a cut may leave a place unused but never one used twice.

use std::mem::offset_of;
use std::sync::Arc;

use block::{Error, LiveDisk, Occupancy, Occupant, Result, TargetFile, read_vec};
use extent::{HostOffset, HostSpan, Span};
use uuid::Uuid;

use super::corrupt::Corrupt;
use super::layout::*;
use super::parse::{self, Header, Kind};
use crate::Chain;
use crate::live::{
    AllocatingDisk, Container, InUse, LiveOptions, Missed, Movable, Place, Shape, Stage, Storage, Tables, To,
    Unit, WriteOut,
};

/// Map entries read at once.
const BATCH_ENTRY_COUNT: u64 = 1 << 20;

/// Opens a layer for writing.
pub(crate) fn open_live(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    let file = files.into_iter().next().ok_or_else(|| Error::invalid("VDI without a file"))?;
    let in_use = InUse { file: file.clone(), name: chain.files()[0].name().to_owned() };
    let header = parse::header(&in_use)?;
    if !header.map_at.get().is_multiple_of(4) {
        let error =
            Error::unsupported("writing into a VDI").field("block map's place", header.map_at.get(), "words");
        return Err(error);
    }
    let shape = Shape { unit_bytes: header.block_bytes, expander: None };
    let uuid = Uuid::new_v4();
    let leaves_gaps = options.leaves_gaps && header.kind == Kind::Dynamic;
    let container = Blocks { leaves_gaps, ..Blocks::new(header, uuid, &in_use)? };
    let tables = Tables::new(file.clone());
    Ok(Box::new(AllocatingDisk::new(chain, shape, tables, file, container, Box::new(Out(uuid)), options)))
}

/// Where children find that their parent changed.
const MODIFY_AT: u64 = offset_of!(VdiHeader, uuid_modify) as u64;

struct Out(Uuid);

impl WriteOut for Out {
    fn begin(&mut self, file: &dyn TargetFile) -> Result<()> {
        file.write_at(HostOffset::new(MODIFY_AT), &self.0.to_bytes_le())?;
        file.flush()
    }
}

/// The blocks of an image in use. A place's number is that in the map.
struct Blocks {
    header: Header,
    /// The next modification's.
    uuid: Uuid,
    /// Places up to here are counted in the header.
    counted: u32,
    /// Counted places that no block has, the lowest last.
    unused: Vec<u32>,
    fresh_from: u64,
    /// What is freed loses its place.
    leaves_gaps: bool,
}

impl Blocks {
    fn new(header: Header, uuid: Uuid, file: &InUse) -> Result<Self> {
        let at = HostOffset::new(offset_of!(VdiHeader, allocated_block_count) as u64);
        let bytes = read_vec(file, at, 4, "VDI header")?;
        let counted = u32::from_le_bytes(bytes.try_into().expect("4 bytes were read"));
        let block_count = header.disk_bytes.div_ceil(header.block_bytes);
        let corrupt = |block: u64, entry: u32, expected: &str| {
            Error::corrupt(Corrupt::BlockMap).at(header.map_at.plus(block * 4)).field(
                format!("entry {block}"),
                entry,
                expected,
            )
        };
        let mut is_used: Vec<bool> = Vec::new();
        let mut first = 0;
        while first < block_count {
            let count = (block_count - first).min(BATCH_ENTRY_COUNT);
            let bytes = read_vec(file, header.map_at.plus(first * 4), count * 4, "VDI block map")?;
            for (block, entry) in (first..).zip(bytes.as_chunks::<4>().0) {
                let entry = u32::from_le_bytes(*entry);
                if entry == BLOCK_FREE || entry == BLOCK_ZERO {
                    continue;
                }
                let index = usize::try_from(entry).unwrap_or(usize::MAX);
                // More places than blocks would be a file with holes in it, which nobody writes.
                if u64::from(entry) >= 2 * block_count {
                    return Err(corrupt(block, entry, "a place below twice the number of blocks"));
                }
                is_used.resize(is_used.len().max(index + 1), false);
                if std::mem::replace(&mut is_used[index], true) {
                    let shared = Corrupt::SharedBlock { block, found: entry };
                    return Err(Error::corrupt(shared).at(header.map_at.plus(block * 4)));
                }
            }
            first += count;
        }
        let counted = u64::from(counted).min(2 * block_count).max(is_used.len() as u64);
        let counted = u32::try_from(counted).map_err(|_| Error::unsupported("VDI of so many blocks"))?;
        let is_unused = |index: &u32| !is_used.get(*index as usize).copied().unwrap_or(false);
        let unused = (0..counted).filter(is_unused).rev().collect();
        Ok(Self { header, uuid, counted, unused, fresh_from: file.file.len_bytes(), leaves_gaps: false })
    }

    fn entry_at(&self, unit: u64) -> u64 {
        self.header.map_at.get() + unit * 4
    }

    fn stride_bytes(&self) -> u64 {
        self.header.block_bytes + self.header.block_extra_bytes
    }

    fn place(&self, number: u32) -> HostOffset {
        // Below 2^32 blocks of below 2^31 bytes: no overflow.
        let start = self.header.data_at + u64::from(number) * self.stride_bytes();
        HostOffset::new(start + self.header.block_extra_bytes)
    }

    /// Gives counted places that no block has, as a write that failed leaves them, to blocks that read as zeros: others say that the
    /// count is wrong if it is not the number of blocks.
    fn fill_gaps(&mut self, tables: &mut Tables) -> Result<()> {
        let is_alone = self.header.kind == Kind::Dynamic;
        let mut unit = 0;
        while let Some(&number) = self.unused.last() {
            let reads_as_zeros =
                |found: Unit| found == Unit::Zero(None) || (is_alone && found == Unit::Absent);
            let block_count = self.header.disk_bytes.div_ceil(self.header.block_bytes);
            while unit < block_count && !reads_as_zeros(tables.looking(|tables| self.lookup(tables, unit))?) {
                unit += 1;
            }
            let place = Span::new(self.place(number), self.header.block_bytes);
            let inside = place.intersect(&Span::from_zero(tables.len_bytes()));
            match inside.map_or(Ok(()), |inside| tables.clear(inside)) {
                // The count stays wrong.
                Err(error) if error.is_full() => return Ok(()),
                cleared => cleared?,
            }
            if unit == block_count {
                return Ok(());
            }
            tables.put(self.entry_at(unit), &number.to_le_bytes(), Stage::References)?;
            self.unused.pop();
        }
        Ok(())
    }

    fn number(&self, at: HostOffset) -> Result<u32> {
        let number = (at.get() - self.header.block_extra_bytes - self.header.data_at) / self.stride_bytes();
        u32::try_from(number).map_err(|_| Error::unsupported("VDI of so many blocks"))
    }
}

impl Container for Blocks {
    /// The sector may be in memory already, as part of the page in which the map begins.
    fn begin(&mut self, tables: &mut Tables) -> Result<()> {
        tables.put(MODIFY_AT, &self.uuid.to_bytes_le(), Stage::Unreferenced)
    }

    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed> {
        let entry = u32::from_le_bytes(tables.get(self.entry_at(unit))?);
        Ok(match entry {
            BLOCK_FREE => Unit::Absent,
            BLOCK_ZERO => Unit::Zero(None),
            number if self.place(number).get() < tables.len_bytes() => Unit::Data(self.place(number)),
            number => {
                let error = Error::corrupt(Corrupt::BlockMap).at(HostOffset::new(self.entry_at(unit)));
                return Err(error.field(format!("entry {unit}"), number, "a block of the file").into());
            }
        })
    }

    fn allocate(&mut self, tables: &mut Tables, _unit: u64) -> Result<Place> {
        let number = match self.unused.pop() {
            Some(number) => number,
            None => {
                let number = self.counted;
                let counted = number + 1;
                // A place that cannot be had is not counted.
                tables.grow(self.place(number).plus(self.header.block_bytes).get())?;
                let at = offset_of!(VdiHeader, allocated_block_count) as u64;
                tables.put(at, &counted.to_le_bytes(), Stage::Unreferenced)?;
                self.counted = counted;
                number
            }
        };
        let at = self.place(number);
        tables.grow(at.plus(self.header.block_bytes).get())?;
        Ok(Place { at, is_clean: at.get() >= self.fresh_from })
    }

    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()> {
        let old = tables.looking(|tables| self.lookup(tables, unit))?;
        let entry = match to {
            To::Data(at) => self.number(at)?,
            To::Zero => BLOCK_ZERO,
            To::Absent => BLOCK_FREE,
        };
        tables.put(self.entry_at(unit), &entry.to_le_bytes(), Stage::References)?;
        match old {
            Unit::Data(at) if to != To::Data(at) => freed.push(Storage::Unit(at)),
            _ => {}
        }
        Ok(())
    }

    /// Only what has no place can lose it, unless gaps are filled.
    fn zeros(&self, unit: Unit, has_parent: bool) -> Option<To> {
        match unit {
            Unit::Absent => Some(To::Zero),
            _ if self.leaves_gaps && !has_parent => Some(To::Absent),
            _ => None,
        }
    }

    fn head_bytes(&self) -> u64 {
        self.header.block_extra_bytes
    }

    fn occupancy(&mut self, tables: &mut Tables) -> Result<Option<Occupancy>> {
        if self.header.kind != Kind::Dynamic {
            return Ok(None);
        }
        let slot = |number: u32| {
            let at = self.place(number).get() - self.header.block_extra_bytes;
            HostOffset::new(at)
        };
        let mut movable = Movable::new(self.stride_bytes());
        for unit in 0..self.header.disk_bytes.div_ceil(self.header.block_bytes) {
            if let Unit::Data(at) = tables.looking(|tables| self.lookup(tables, unit))? {
                movable.push(Occupant::Unit(unit), slot(self.number(at)?));
            }
        }
        let fixed = [Span::from_zero(self.header.data_at)].into_iter().collect();
        Ok(movable.occupancy(fixed, None, tables.len_bytes()).map(|found| Occupancy {
            unit_bytes: self.header.block_bytes,
            head_bytes: self.header.block_extra_bytes,
            align_bytes: self.stride_bytes(),
            phase_bytes: self.header.data_at % self.stride_bytes(),
            slots_from: HostOffset::new(self.header.data_at),
            is_dense: true,
            ..found
        }))
    }

    fn claim(&mut self, _tables: &mut Tables, at: HostOffset) -> Result<bool> {
        let number = self.number(at.plus(self.header.block_extra_bytes))?;
        let is_place = self.place(number) == at.plus(self.header.block_extra_bytes);
        // Mostly the lowest.
        let found = self.unused.iter().rposition(|unused| *unused == number).filter(|_| is_place);
        Ok(found.map(|index| self.unused.remove(index)).is_some())
    }

    fn dying(&mut self, _tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>> {
        let Storage::Unit(at) = *storage else { return Ok(Vec::new()) };
        Ok(vec![HostSpan::new(at, self.header.block_bytes)])
    }

    fn release(&mut self, _tables: &mut Tables, storage: &Storage) -> Result<()> {
        if let Storage::Unit(at) = *storage {
            let number = self.number(at)?;
            self.unused.push(number);
        }
        Ok(())
    }

    /// Places at the end that nobody has are counted no more; others go to blocks that are zeros.
    fn finish(&mut self, tables: &mut Tables) -> Result<u64> {
        self.unused.sort_unstable();
        while self.counted > 0 && self.unused.last() == Some(&(self.counted - 1)) {
            self.unused.pop();
            self.counted -= 1;
        }
        self.fill_gaps(tables)?;
        let at = offset_of!(VdiHeader, allocated_block_count) as u64;
        tables.put(at, &self.counted.to_le_bytes(), Stage::Unreferenced)?;
        let end = self.place(self.counted).get() - self.header.block_extra_bytes;
        // The last block may have been cut off at the disk's end.
        Ok(end.min(tables.len_bytes()))
    }
}
