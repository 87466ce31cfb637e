//! VMDK in use: flat disks as they lie, grains of a monolithic sparse one where the guest's addresses lead them.
//!
//! Both grain directories' tables are changed together; each entry is right by itself, so their order does not matter. Before
//! the first change the content ID becomes another one, which children compare, and the header says that the disk is open.

use std::sync::Arc;

use block::{Error, FileIndex, LiveDisk, Occupancy, Occupant, Result, TargetFile, read_struct, read_vec};
use extent::{HostOffset, HostSpan, Span};

use super::corrupt::Corrupt;
use super::layout::*;
use super::map::{Compression, Encoding, Grain, Tables as GrainTables};
use super::open::{LivePart, live_parts};
use crate::Chain;
use crate::live::{
    AllocatingDisk, Arrangement, Bases, Container, CutOff, Flat, Grid, InUse, LiveOptions, Missed, Movable,
    Part, Place, Shape, Stage, Storage, Tables, Taken, To, Unit, Votes, WriteOut,
};

/// Tables count sectors in 32 bits.
const HOST_BYTES_MAX: u64 = u32::MAX as u64 * SECTOR_BYTES;
/// The file grows by this, so that not every grain asks the host.
const GROWTH_BYTES: u64 = 1 << 20;
/// What a host file system allocates, at least.
const HOST_BLOCK_BYTES: u64 = 4096;
/// Digits of a content ID.
const CID_DIGITS: usize = 8;
/// How much of a descriptor is searched for the content ID.
const DESCRIPTOR_BYTES_MAX: u64 = 1 << 20;

/// Opens a layer for writing.
pub(crate) fn open_live(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    let first = files.first().cloned().ok_or_else(|| Error::invalid("VMDK without a file"))?;
    let in_use = InUse { file: first.clone(), name: chain.files()[0].name().to_owned() };
    if in_use.file.len_bytes() >= SECTOR_BYTES && is_hosted(&in_use)? {
        return open_sparse(chain, in_use, options);
    }
    let len_bytes = first.len_bytes().min(DESCRIPTOR_BYTES_MAX);
    let cid = find_cid(&in_use, Span::from_zero(len_bytes))?;
    let parts = flat_parts(&chain)?;
    let change = move || cid.iter().try_for_each(|at| write_cid(&*first, *at));
    Ok(Box::new(Flat::new(chain, files, parts, Some(Box::new(change)), options)))
}

fn is_hosted(file: &InUse) -> Result<bool> {
    let header: SparseHeader = read_struct(file, HostOffset::ZERO, "VMDK header")?;
    Ok(header.magic.get() == SPARSE_MAGIC)
}

/// The parts of a disk that is flat throughout.
fn flat_parts(chain: &Chain) -> Result<Vec<Part>> {
    let layer = &chain.links()[0].layer;
    let mut parts = Vec::new();
    for run in layer.map(Span::from_zero(layer.facts().virtual_bytes))? {
        let block::RunState::Data { file, offset } = run.state else {
            return Err(Error::unsupported("writing into a VMDK that is neither flat nor monolithicSparse"));
        };
        parts.push(Part { span: run.span, file, at: offset });
    }
    let is_flat = layer.facts().cluster_bytes.is_none() && parts.iter().all(|part| part.file != FileIndex(0));
    if is_flat { Ok(parts) } else { Err(Error::unsupported("writing into a VMDK of split sparse extents")) }
}

/// Where the digits of the descriptor's content ID are.
fn find_cid(file: &InUse, place: HostSpan) -> Result<Option<HostOffset>> {
    let bytes = read_vec(file, place.start(), place.len_bytes(), "VMDK descriptor")?;
    let mut at = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let digits = line.strip_prefix(b"CID=").and_then(|rest| rest.get(..CID_DIGITS));
        if digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Ok(Some(place.start().plus(at + 4)));
        }
        at += line.len() as u64;
    }
    Ok(None)
}

/// Another content ID, never the one that stands for no parent.
fn write_cid(file: &dyn TargetFile, at: HostOffset) -> Result<()> {
    let [a, b, c, d, ..] = *uuid::Uuid::new_v4().as_bytes();
    let cid = u32::from_le_bytes([a, b, c, d]) & 0x7fff_ffff;
    file.write_at(at, format!("{cid:08x}").as_bytes())?;
    file.flush()
}

fn open_sparse(chain: Chain, file: InUse, options: LiveOptions) -> Result<Box<dyn LiveDisk>> {
    let LivePart { tables: grain_tables, descriptor, redundant_at, is_first } = live_parts(&file)?;
    if grain_tables.compression != Compression::None {
        return Err(Error::unsupported("writing into a VMDK with compressed grains")
            .hint("copy it to another subformat first: -o subformat=monolithicSparse"));
    }
    if !is_first {
        return Err(Error::refused("writing into a VMDK whose grain directory is broken"));
    }
    let cid = match descriptor {
        Some(place) => find_cid(&file, place)?,
        None => None,
    };
    let shape = Shape { unit_bytes: grain_tables.grain_bytes, expander: None };
    let container = Grains::new(grain_tables, redundant_at, &file, options.arrangement)?;
    let tables = Tables::new(file.file.clone());
    let out = Out { cid };
    Ok(Box::new(AllocatingDisk::new(chain, shape, tables, file.file, container, Box::new(out), options)))
}

struct Out {
    cid: Option<HostOffset>,
}

impl Out {
    fn mark_open(file: &dyn TargetFile, is_open: bool) -> Result<()> {
        let at = HostOffset::new(std::mem::offset_of!(SparseHeader, unclean_shutdown) as u64);
        file.write_at(at, &[u8::from(is_open)])?;
        file.flush()
    }
}

impl WriteOut for Out {
    fn begin(&mut self, file: &dyn TargetFile) -> Result<()> {
        Self::mark_open(file, true)?;
        self.cid.iter().try_for_each(|at| write_cid(file, *at))
    }

    fn end(&mut self, file: &dyn TargetFile) -> Result<()> {
        Self::mark_open(file, false)
    }
}

/// The grains of an extent in use.
struct Grains {
    grain_bytes: u64,
    unit_count: u64,
    gtes_per_gt: u64,
    zeroed_grains: bool,
    /// The grain directory, and its redundant copy.
    directories: Vec<u64>,
    taken: Taken,
    bases: Bases,
    /// What the last grain takes, if it ends where the disk does.
    cut_off: CutOff,
    fresh_from: u64,
    data_from: u64,
    /// The file does not end before this.
    metadata_end: u64,
}

impl Grains {
    fn new(
        tables: GrainTables,
        redundant_at: Option<HostOffset>,
        file: &InUse,
        arrangement: Arrangement,
    ) -> Result<Self> {
        let Encoding::Hosted { zeroed_grains } = tables.encoding else {
            return Err(Error::unsupported("writing into a VMDK of this kind"));
        };
        let grain_bytes = tables.grain_bytes;
        let fresh_from = file.file.len_bytes().next_multiple_of(grain_bytes);
        let mut taken = Taken::default();
        // QEMU refuses a file that ends before what the header calls overhead.
        let header: SparseHeader = read_struct(file, HostOffset::ZERO, "VMDK header")?;
        let overhead = header.overhead.get().saturating_mul(SECTOR_BYTES).min(file.file.len_bytes());
        let metadata_end = tables.metadata_end.max(overhead);
        taken.take(Span::from_zero(tables.metadata_end));
        let directory_bytes = (tables.directory_entry_count() * 4).next_multiple_of(SECTOR_BYTES);
        let table_bytes = (tables.gtes_per_gt * 4).next_multiple_of(SECTOR_BYTES);
        let mut directories = vec![tables.directory_at];
        directories.extend(redundant_at);
        let mut data_from = metadata_end;
        for at in &directories {
            let copy = GrainTables { directory_at: *at, ..tables.clone() };
            copy.check_directory(file)?;
            taken.take(Span::new(*at, directory_bytes));
            data_from = data_from.max(at.get() + directory_bytes);
            copy.each_table(file, |table_at| {
                taken.take(Span::new(table_at, table_bytes));
                data_from = data_from.max(table_at.get() + table_bytes);
            })?;
        }
        let grid = Grid {
            unit_bytes: grain_bytes,
            unit_count: tables.capacity_bytes.div_ceil(grain_bytes),
            stride_bytes: grain_bytes,
            align_bytes: grain_bytes,
            head_bytes: 0,
        };
        let mut votes = Votes::new(arrangement, grid);
        let mut result = Ok(());
        let mut cut_off = None;
        let whole = Span::from_zero(tables.capacity_bytes);
        tables.for_each(file, whole, |part, grain| {
            let Grain::At(at) = grain else { return };
            let unit = part.start().get() / grain_bytes;
            votes.count(unit, at.get());
            let stored = Span::new(at, part.len_bytes().next_multiple_of(SECTOR_BYTES));
            if stored.len_bytes() < grain_bytes {
                cut_off = Some(stored);
            }
            if !taken.take(stored) && result.is_ok() {
                result = Err(Error::corrupt(Corrupt::SharedGrain { grain: unit }).at(at));
            }
            taken.bound(fresh_from);
        })?;
        result?;
        let mut bases = votes.into_bases(SECTOR_BYTES);
        bases.grow_from(fresh_from, HOST_BYTES_MAX);
        Ok(Self {
            grain_bytes,
            unit_count: grid.unit_count,
            gtes_per_gt: tables.gtes_per_gt,
            zeroed_grains,
            directories: directories.into_iter().map(HostOffset::get).collect(),
            taken,
            bases,
            cut_off: CutOff(cut_off),
            fresh_from,
            data_from,
            metadata_end,
        })
    }

    /// What the grain at `at` takes of the file.
    fn stored(&self, at: HostOffset) -> HostSpan {
        self.cut_off.stored(Span::new(at, self.grain_bytes))
    }

    /// Where the entry of `unit` lies by the directory at `directory_at`, if there is a table for it.
    fn entry_at(&self, tables: &Tables, directory_at: u64, unit: u64) -> Result<Option<u64>, Missed> {
        let sector = u32::from_le_bytes(tables.get(directory_at + unit / self.gtes_per_gt * 4)?);
        let at = u64::from(sector) * SECTOR_BYTES + unit % self.gtes_per_gt * 4;
        Ok((sector != 0).then_some(at))
    }

    fn take(&mut self, tables: &mut Tables, at: HostOffset, len_bytes: u64) -> Result<()> {
        let span = Span::new(at, len_bytes);
        if span.end().get() > tables.len_bytes() {
            tables.grow(span.end().get().next_multiple_of(GROWTH_BYTES))?;
        }
        self.taken.take(span);
        Ok(())
    }

    fn fit(&self, len_bytes: u64, align_bytes: u64) -> Result<HostOffset> {
        let fit = self.taken.first_fit(self.data_from, len_bytes, align_bytes, 0, HOST_BYTES_MAX);
        fit.ok_or_else(|| Error::unsupported("VMDK file of more than 2 TiB"))
    }

    /// Where the entry of `unit` lies by the directory at `directory_at`, in a new table if there is none.
    fn own_entry(&mut self, tables: &mut Tables, directory_at: u64, unit: u64) -> Result<u64> {
        if let Some(at) = tables.looking(|tables| self.entry_at(tables, directory_at, unit))? {
            return Ok(at);
        }
        let table_bytes = (self.gtes_per_gt * 4).next_multiple_of(SECTOR_BYTES);
        let at = self.fit(table_bytes, SECTOR_BYTES)?;
        let span = Span::new(at, table_bytes);
        tables.reserve(span)?;
        self.take(tables, at, table_bytes)?;
        tables.create(span, 0, Stage::Unreferenced);
        let sector = sector_of(at)?;
        tables.put(directory_at + unit / self.gtes_per_gt * 4, &sector.to_le_bytes(), Stage::References)?;
        Ok(at.get() + unit % self.gtes_per_gt * 4)
    }
}

fn sector_of(at: HostOffset) -> Result<u32> {
    u32::try_from(at.get() / SECTOR_BYTES).map_err(|_| Error::unsupported("VMDK file of more than 2 TiB"))
}

impl Container for Grains {
    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed> {
        let Some(at) = self.entry_at(tables, self.directories[0], unit)? else { return Ok(Unit::Absent) };
        let sector = u32::from_le_bytes(tables.get(at)?);
        let place = u64::from(sector) * SECTOR_BYTES;
        Ok(match sector {
            GTE_ABSENT => Unit::Absent,
            GTE_ZEROED if self.zeroed_grains => Unit::Zero(None),
            _ if place < tables.len_bytes() => Unit::Data(HostOffset::new(place)),
            _ => {
                let error = Error::corrupt(Corrupt::GrainTable).at(HostOffset::new(at));
                let error = error.field(format!("entry of grain {unit}"), sector, "a sector of the file");
                return Err(error.into());
            }
        })
    }

    fn allocate(&mut self, tables: &mut Tables, unit: u64) -> Result<Place> {
        let Self { taken, bases, grain_bytes, .. } = self;
        let is_free = |at| at >= SECTOR_BYTES && taken.is_free(Span::new(HostOffset::new(at), *grain_bytes));
        let at = match bases.find(unit, is_free) {
            Some(at) => HostOffset::new(at),
            None => self.fit(self.grain_bytes, self.grain_bytes)?,
        };
        self.take(tables, at, self.grain_bytes)?;
        Ok(Place { at, is_clean: at.get() >= self.fresh_from })
    }

    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()> {
        let old = tables.looking(|tables| self.lookup(tables, unit))?;
        let sector = match to {
            To::Data(at) => sector_of(at)?,
            To::Zero => GTE_ZEROED,
            To::Absent => GTE_ABSENT,
        };
        // Both or none: of new tables only the host's room can be short.
        let directories = self.directories.clone();
        let entries = directories.into_iter().map(|directory_at| self.own_entry(tables, directory_at, unit));
        let entries = entries.collect::<Result<Vec<_>>>()?;
        entries.iter().try_for_each(|at| tables.secure(*at, 4))?;
        for at in entries {
            tables.put(at, &sector.to_le_bytes(), Stage::References)?;
        }
        match old {
            Unit::Data(at) if to != To::Data(at) => freed.push(Storage::Unit(at)),
            _ => {}
        }
        Ok(())
    }

    fn zeros(&self, _unit: Unit, has_parent: bool) -> Option<To> {
        match (self.zeroed_grains, has_parent) {
            (_, false) => Some(To::Absent),
            (true, true) => Some(To::Zero),
            (false, true) => None,
        }
    }

    fn dying(&mut self, tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>> {
        let Storage::Unit(at) = *storage else { return Ok(Vec::new()) };
        let end = self.stored(at).end().min(HostOffset::new(tables.len_bytes()));
        Ok(vec![Span::between(at, end)])
    }

    fn release(&mut self, _tables: &mut Tables, storage: &Storage) -> Result<()> {
        if let Storage::Unit(at) = *storage {
            let whole = Span::new(at, self.grain_bytes);
            self.cut_off.release(&mut self.taken, whole);
            self.bases.released();
        }
        Ok(())
    }

    fn occupancy(&mut self, tables: &mut Tables) -> Result<Option<Occupancy>> {
        let mut movable = Movable::new(self.grain_bytes);
        let mut unit = 0;
        while unit < self.unit_count {
            match tables.looking(|tables| self.entry_at(tables, self.directories[0], unit))? {
                None => unit = (unit / self.gtes_per_gt + 1) * self.gtes_per_gt,
                Some(_) => {
                    if let Unit::Data(at) = tables.looking(|tables| self.lookup(tables, unit))? {
                        movable.push(Occupant::Unit(unit), at);
                    }
                    unit += 1;
                }
            }
        }
        let taken = self.taken.pieces().chain([Span::from_zero(self.metadata_end)]).collect();
        // As the grains that are there lie among the host's blocks.
        let align_bytes = self.grain_bytes.min(HOST_BLOCK_BYTES);
        Ok(movable.occupancy(taken, self.cut_off.0, tables.len_bytes()).map(|found| Occupancy {
            align_bytes,
            phase_bytes: found.movable.first().map_or(0, |run| run.at.get() % align_bytes),
            slots_from: HostOffset::new(self.data_from),
            length_multiple_bytes: SECTOR_BYTES,
            ..found
        }))
    }

    fn claim(&mut self, _tables: &mut Tables, at: HostOffset) -> Result<bool> {
        let grain = Span::new(at, self.grain_bytes);
        let is_place = at.get() >= self.data_from && at.get().is_multiple_of(SECTOR_BYTES);
        Ok(is_place && self.taken.is_free(grain) && self.taken.take(grain))
    }

    fn finish(&mut self, _tables: &mut Tables) -> Result<u64> {
        Ok(self.taken.end().max(self.metadata_end).next_multiple_of(SECTOR_BYTES))
    }
}
