//! QCOW2 in use: clusters allocated where the guest's addresses lead them, refcounts before references.
//!
//! What is written in which stage (see `live::tables`):
//! - with the data: refcounts, refcount blocks that nothing refers to yet, new L2 tables;
//! - then: entries of the refcount table, and the header where the table moved;
//! - then: entries of L1 and L2 tables.
//!
//! A refcount falls only after the commit in which the last reference went. So a cut leaves leaked clusters at worst, and the
//! dirty bit is never needed.

mod allocation;
mod mapping;
mod notes;
mod refcounts;
mod relocate;

use std::collections::{BTreeSet, HashSet};
use std::mem::offset_of;
use std::sync::Arc;

use block::{Error, FieldValue, LiveDisk, Occupancy, Occupant, Result, TargetFile};
use extent::{ExtentSet, HostOffset, HostSpan, Span, Virtual};

use super::bitmaps::{Directory, Entry};
use super::compress::Decompressor;
use super::layout::{self, autoclear, bitmap_flag, entry};
use super::parse::{self, Header};
use crate::Chain;
use crate::live::{
    AllocatingDisk, Bases, Container, Expand, InUse, LiveOptions, Marks, Missed, Place, Shape, Stage,
    Storage, Tables, Tidy, To, Unit, WriteOut,
};
use crate::qcow2::corrupt::Corrupt;

pub(crate) use allocation::end_max;

/// Opens a layer for writing.
pub(crate) fn open_live(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    let file = files.into_iter().next().ok_or_else(|| Error::invalid("QCOW2 without a file"))?;
    let in_use = InUse { file: file.clone(), name: chain.files()[0].name().to_owned() };
    let header = parse::read_header(&in_use)?;
    check_writable(&header)?;
    let directory = Directory::read(&header, &in_use)?;
    directory.check_notable()?;
    let recording: Vec<_> = directory.entries.into_iter().filter(Entry::is_recording).collect();
    let out = Out::new(&header, &recording);
    let mut tables = Tables::new(file.clone());
    tables.grow(file.len_bytes().next_multiple_of(header.cluster_bytes()))?;
    let has_parent = chain.links().len() > 1;
    let mut container = Clusters::new(&header, has_parent, &tables)?;
    container.recording = recording;
    container.check_metadata(&mut tables)?;
    container.find_bases(&in_use, options.arrangement)?;
    let shape = Shape {
        unit_bytes: header.cluster_bytes(),
        expander: Some(Box::new(Expander(Decompressor::new(header.compression)))),
    };
    Ok(Box::new(AllocatingDisk::new(chain, shape, tables, file, container, Box::new(out), options)))
}

fn check_writable(header: &Header) -> Result<()> {
    if header.is_dirty {
        let error = Error::refused("writing into a QCOW2 image whose refcounts may be wrong (dirty bit)");
        return Err(error.hint("run 'qemu-img check -r all' on it first"));
    }
    if header.data_file.is_some() {
        return Err(Error::unsupported("writing into a QCOW2 image with an external data file"));
    }
    if header.extended_l2 {
        return Err(Error::unsupported("writing into a QCOW2 image with extended L2 entries"));
    }
    Ok(())
}

/// What the image is to say before the first change.
struct Out {
    writes: Vec<(HostOffset, Vec<u8>)>,
}

impl Out {
    /// Bitmaps in which changes are noted are in use (Bitmap directory, `flags`), and bits for what is not kept up to date are cleared
    /// (Header, `autoclear_features`).
    fn new(header: &Header, recording: &[Entry]) -> Self {
        let in_use = |entry: &Entry| {
            let flags = entry.flags | bitmap_flag::IN_USE;
            (entry.flags_at, flags.to_be_bytes().to_vec())
        };
        let mut writes: Vec<_> = recording.iter().map(in_use).collect();
        let kept = header.autoclear_features & autoclear::BITMAPS;
        if kept != header.autoclear_features {
            let at = HostOffset::new(offset_of!(layout::Header, autoclear_features) as u64);
            writes.push((at, kept.to_be_bytes().to_vec()));
        }
        Self { writes }
    }
}

impl WriteOut for Out {
    fn begin(&mut self, file: &dyn TargetFile) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        self.writes.iter().try_for_each(|(at, bytes)| file.write_at(*at, bytes))?;
        file.flush()?;
        self.writes.clear();
        Ok(())
    }
}

struct Expander(Decompressor);

impl Expand for Expander {
    fn expand(&self, data: &[u8], unit: &mut [u8]) -> Result<()> {
        let expected = format!("data that gives {} bytes", unit.len());
        self.0
            .decompress(data, unit)
            .map_err(|reason| Error::corrupt(Corrupt::CompressedCluster).field("data", reason, expected))
    }
}

/// The clusters of an image in use. Numbers of host clusters are called `number` here, those of the guest `unit`.
pub(super) struct Clusters {
    cluster_bits: u32,
    has_zero_flag: bool,
    has_parent: bool,
    /// Something refers to clusters that is not looked at here.
    may_have_more: bool,
    l1_at: u64,
    unit_count: u64,
    refcount_bits: u64,
    /// The refcount table: where it lies, and how many entries it has.
    table_at: u64,
    table_count: u64,
    /// The refcount table moved since the last commit.
    table_is_new: bool,
    /// L2 tables and refcount blocks that nothing on the storage refers to yet.
    new_tables: HashSet<u64>,
    data: Bases,
    l2_tables: Bases,
    refcount_blocks: Bases,
    /// Where a refcount table that has to move goes if that is free, unless there is room among what units are given.
    table_place: u64,
    /// From here on the file had nothing when it was opened.
    fresh_from: u64,
    /// No cluster below this is free.
    first_free: u64,
    /// Refcount tables that moved, to be freed.
    outgrown: Vec<Storage>,
    /// Clusters about to be counted.
    claimed: Vec<u64>,
    /// L2 tables that may have become empty, and refcount blocks, by number.
    emptied: BTreeSet<u64>,
    lowered: BTreeSet<u64>,
    /// Bitmaps in which changes are noted.
    recording: Vec<Entry>,
    /// All L2 tables were looked at.
    is_tidied: bool,
    /// The refcount table moved, and what it takes is not counted: for want of room.
    is_torn: bool,
}

impl Clusters {
    fn new(header: &Header, has_parent: bool, tables: &Tables) -> Result<Self> {
        let cluster_bytes = header.cluster_bytes();
        let table_bytes = u64::from(header.refcount_table_clusters) * cluster_bytes;
        let table_at = header.refcount_table_at.get();
        if table_at == 0 || table_at.checked_add(table_bytes).is_none_or(|end| end > tables.len_bytes()) {
            return Err(Error::corrupt(Corrupt::Header).field(
                "refcount_table_offset",
                FieldValue::hex(table_at),
                format!("a table of {table_bytes} bytes within the file"),
            ));
        }
        Ok(Self {
            cluster_bits: header.cluster_bits,
            has_zero_flag: header.version >= 3,
            has_parent,
            may_have_more: header.snapshot_count > 0 || header.bitmaps.is_some(),
            l1_at: header.l1_at.get(),
            unit_count: header.virtual_bytes.div_ceil(cluster_bytes),
            refcount_bits: u64::from(header.refcount_bits),
            table_at,
            table_count: table_bytes / 8,
            table_is_new: false,
            new_tables: HashSet::new(),
            data: Bases::default(),
            l2_tables: Bases::default(),
            refcount_blocks: Bases::default(),
            table_place: 0,
            fresh_from: tables.len_bytes(),
            first_free: 1,
            outgrown: Vec::new(),
            claimed: Vec::new(),
            emptied: BTreeSet::new(),
            lowered: BTreeSet::new(),
            recording: Vec::new(),
            is_tidied: false,
            is_torn: false,
        })
    }

    fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    fn cluster(&self, at: u64) -> HostSpan {
        Span::new(HostOffset::new(at), self.cluster_bytes())
    }

    fn l2_entry_count(&self) -> u64 {
        self.cluster_bytes() / 8
    }

    fn l1_count(&self) -> u64 {
        self.unit_count.div_ceil(self.l2_entry_count())
    }

    /// Clusters that one refcount block counts.
    fn block_count(&self) -> u64 {
        self.cluster_bytes() * 8 / self.refcount_bits
    }

    /// The clusters that `storage` touches.
    fn numbers(&self, storage: &Storage) -> std::ops::Range<u64> {
        let (at, len_bytes) = match *storage {
            Storage::Unit(at) => (at.get(), self.cluster_bytes()),
            Storage::Shared { at, len_bytes } => (at.get(), len_bytes),
        };
        at >> self.cluster_bits..(at + len_bytes).div_ceil(self.cluster_bytes())
    }
}

impl Container for Clusters {
    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed> {
        let Some(found) = self.l2_entry(tables, unit)? else { return Ok(Unit::Absent) };
        if found.word & entry::COMPRESSED != 0 {
            let (at, len_bytes) = self.compressed(tables, found.word);
            return Ok(Unit::Compressed { at, len_bytes });
        }
        let at = Some(HostOffset::new(found.word & entry::OFFSET)).filter(|at| at.get() != 0);
        Ok(match at {
            _ if found.word & entry::ZERO != 0 => Unit::Zero(at.filter(|_| found.is_owned)),
            None => Unit::Absent,
            Some(at) if found.is_owned => Unit::Data(at),
            Some(at) => Unit::Shared(at),
        })
    }

    fn allocate(&mut self, tables: &mut Tables, unit: u64) -> Result<Place> {
        let number = self.find_for_unit(tables, unit)?;
        self.take(tables, number)?;
        let at = number << self.cluster_bits;
        Ok(Place { at: HostOffset::new(at), is_clean: at >= self.fresh_from })
    }

    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()> {
        let old = tables.looking(|tables| self.l2_entry(tables, unit))?;
        if old.is_none() && to == To::Absent {
            return Ok(());
        }
        let mut replaced = Vec::new();
        let table = self.own_table(tables, unit, &mut replaced)?;
        let word = match to {
            To::Data(at) => at.get() | entry::COPIED,
            To::Zero => entry::ZERO,
            To::Absent => 0,
        };
        let stage = if self.new_tables.contains(&table) { Stage::Unreferenced } else { Stage::References };
        let old = old.and_then(|old| self.storage(tables, old));
        freed.append(&mut replaced);
        freed.append(&mut self.outgrown);
        tables.put(table + unit % self.l2_entry_count() * 8, &word.to_be_bytes(), stage)?;
        if to == To::Absent {
            self.emptied.insert(unit / self.l2_entry_count());
        }
        let is_kept = matches!((to, old), (To::Data(at), Some(Storage::Unit(old))) if at == old);
        freed.extend(old.filter(|_| !is_kept));
        Ok(())
    }

    fn zeros(&self, _unit: Unit, has_parent: bool) -> Option<To> {
        match (has_parent, self.has_zero_flag) {
            (false, _) => Some(To::Absent),
            (true, true) => Some(To::Zero),
            (true, false) => None,
        }
    }

    fn dying(&mut self, tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>> {
        let mut dying = Vec::new();
        for number in self.numbers(storage) {
            if self.refcount(tables, number)? == 1 || self.is_uncounted(tables, number)? {
                dying.push(self.cluster(number << self.cluster_bits));
            }
        }
        Ok(dying)
    }

    fn release(&mut self, tables: &mut Tables, storage: &Storage) -> Result<()> {
        for number in self.numbers(storage) {
            if self.is_uncounted(tables, number)? {
                tables.forget(self.cluster(number << self.cluster_bits));
                self.first_free = self.first_free.min(number);
                continue;
            }
            let count = self.refcount(tables, number)?;
            let less = count.checked_sub(1).ok_or_else(|| {
                Error::corrupt(Corrupt::Refcount).at(HostOffset::new(number << self.cluster_bits)).field(
                    "of a cluster in use",
                    0,
                    "1 or more",
                )
            })?;
            self.put_refcount(tables, number, less)?;
            if less == 0 {
                self.data.released();
                self.lowered.insert(number / self.block_count());
                tables.forget(self.cluster(number << self.cluster_bits));
                self.first_free = self.first_free.min(number);
            }
        }
        Ok(())
    }

    fn before_commit(&mut self, _tables: &mut Tables) -> Result<()> {
        if self.is_torn {
            let error =
                Error::refused("the refcount table could not be made larger: there was no room on the host");
            return Err(error.hint("open the disk again: it is as the last flush left it"));
        }
        self.new_tables.clear();
        self.table_is_new = false;
        Ok(())
    }

    fn occupancy(&mut self, tables: &mut Tables) -> Result<Option<Occupancy>> {
        self.find_occupancy(tables)
    }

    fn lies_at(&self, tables: &mut Tables, who: Occupant, at: HostOffset) -> Result<bool> {
        let is_there = match who {
            Occupant::Counts(index) => self.block_at(tables, index)? == at.get(),
            Occupant::Map(index) => {
                index < self.l1_count()
                    && tables.looking(|tables| self.l1_entry(tables, index))? == at.get() | entry::COPIED
            }
            Occupant::Unit(unit) => {
                unit < self.unit_count
                    && tables.looking(|tables| self.lookup(tables, unit))? == Unit::Data(at)
            }
        };
        Ok(is_there && at.get() != 0 && self.refcount(tables, at.get() >> self.cluster_bits)? == 1)
    }

    /// Only where refcounts are there already: a new block of them could take another one's place.
    fn claim(&mut self, tables: &mut Tables, at: HostOffset) -> Result<bool> {
        let number = at.get() >> self.cluster_bits;
        let is_place = at.get() & (self.cluster_bytes() - 1) == 0
            && self.block_at(tables, number / self.block_count())? != 0
            && self.is_free(tables, number)?;
        if is_place {
            self.take(tables, number)?;
        }
        Ok(is_place)
    }

    fn refer(&mut self, tables: &mut Tables, who: Occupant, from: HostOffset, to: HostOffset) -> Result<()> {
        self.move_reference(tables, who, from.get(), to.get())
    }

    fn leaks(&mut self, tables: &mut Tables) -> Result<Vec<Storage>> {
        self.find_leaks(tables)
    }

    fn tidy(&mut self, tables: &mut Tables, freed: &mut Vec<Storage>, when: Tidy) -> Result<()> {
        match when {
            Tidy::BeforeMoves if self.is_tidied => Ok(()),
            Tidy::BeforeMoves => {
                self.is_tidied = true;
                self.emptied.extend(0..self.l1_count());
                self.drop_empty_tables(tables, freed)
            }
            Tidy::AtTheEnd => {
                self.drop_empty_tables(tables, freed)?;
                self.drop_empty_blocks(tables, freed)
            }
        }
    }

    fn noted_granularity_bits(&self) -> Option<u32> {
        self.recording.iter().map(|entry| entry.granularity_bits).min()
    }

    fn note_changes(&mut self, tables: &mut Tables, marks: &Marks, piece: u64) -> Result<bool> {
        self.note_piece(tables, marks, piece)
    }

    fn changes_noted(&mut self, tables: &mut Tables) -> Result<()> {
        self.put_out_of_use(tables)
    }

    fn restart_record(
        &mut self,
        tables: &mut Tables,
        name: &str,
        kept: &ExtentSet<Virtual>,
        freed: &mut Vec<Storage>,
    ) -> Result<()> {
        self.restart_bitmap(tables, name, kept, freed)
    }

    /// The end of the last cluster that is counted.
    fn finish(&mut self, tables: &mut Tables) -> Result<u64> {
        let mut number = tables.len_bytes().div_ceil(self.cluster_bytes());
        while number > 0 {
            let last = number - 1;
            if self.block_at(tables, last / self.block_count())? == 0 {
                number = last / self.block_count() * self.block_count();
            } else if self.refcount(tables, last)? == 0 {
                number = last;
            } else {
                break;
            }
        }
        Ok(number << self.cluster_bits)
    }
}
