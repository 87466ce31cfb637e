//! VHD in use: fixed disks as they lie, blocks of dynamic ones where the guest's addresses lead them.
//!
//! The footer is the end of the file, so a file that grows moves it: behind all room that was given to blocks, which is sparse, whenever
//! some was; closing puts it behind the last block that there is. A footer never has to make way for a block that is being written.
//!
//! A block's sector bitmap is set as a whole, as QEMU does: what was not written reads as zeros. The bitmap of a block that
//! was there before is set when the block is first written, because a program that goes by it would not see the write.

use std::sync::Arc;

use block::{Error, FileIndex, HostFile, LiveDisk, Occupancy, Occupant, Result, TargetFile, read_vec};
use extent::{ExtentSet, Host, HostOffset, HostSpan, Span};

use super::corrupt::Corrupt;
use super::layout::{BAT_UNUSED, FOOTER_BYTES, SECTOR_BYTES};
use super::map::BlockMap;
use super::parse::{self, Footers, Kind};
use crate::Chain;
use crate::live::{
    AllocatingDisk, Arrangement, Bases, Container, CutOff, Flat, Grid, InUse, LiveOptions, Missed, Movable,
    Part, Place, Shape, Stage, Storage, Tables, Taken, To, Unit, Votes, WriteOut,
};

/// What blocks are aligned to: the least that a host file system allocates.
const ALIGN_BYTES: u64 = 4096;
/// The BAT counts sectors in 32 bits, of which one value means that there is no block.
const HOST_BYTES_MAX: u64 = BAT_UNUSED as u64 * SECTOR_BYTES;

/// Opens a layer for writing.
pub(crate) fn open_live(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    let file = files.first().cloned().ok_or_else(|| Error::invalid("VHD without a file"))?;
    let in_use = Arc::new(InUse { file: file.clone(), name: chain.files()[0].name().to_owned() });
    let Some(footers) = parse::read_footers(&*in_use)? else {
        return Err(Error::corrupt(Corrupt::NoFooter));
    };
    match footers.footer.kind {
        Kind::Fixed => {
            let span = Span::from_zero(footers.footer.virtual_bytes());
            let part = Part { span, file: FileIndex(0), at: HostOffset::ZERO };
            Ok(Box::new(Flat::new(chain, files, vec![part], None, options)))
        }
        Kind::Differencing => Err(Error::unsupported("writing into a differencing VHD")),
        Kind::Dynamic => {
            let container = Blocks::new(&in_use, &footers, options.arrangement)?;
            let shape = Shape { unit_bytes: container.block_bytes, expander: None };
            let tables = Tables::new(file.clone());
            Ok(Box::new(AllocatingDisk::new(
                chain,
                shape,
                tables,
                file,
                container,
                Box::new(InOrder),
                options,
            )))
        }
    }
}

struct InOrder;

impl WriteOut for InOrder {}

/// The blocks of a dynamic disk in use. Places are those of a block's data; its bitmap lies before it.
struct Blocks {
    block_bytes: u64,
    block_count: u64,
    bitmap_bytes: u64,
    bat_at: u64,
    /// From one block's data to the next one's.
    stride_bytes: u64,
    footer: Vec<u8>,
    /// Where the footer lies at the end of the file, once it was moved.
    footer_at: Option<u64>,
    /// Where footers lay, which are not used for anything else until the disk is closed.
    old_footers: Vec<HostSpan>,
    /// What the last block takes, if something else lies where the rest of it would be, behind the disk's end.
    cut_off: CutOff,
    /// Blocks whose bitmaps may have gaps where they lie or lay, by number.
    unmarked: Vec<bool>,
    taken: Taken,
    bases: Bases,
    fresh_from: u64,
    data_from: u64,
}

impl Blocks {
    fn new(file: &Arc<InUse>, footers: &Footers, arrangement: Arrangement) -> Result<Self> {
        let dynamic = parse::read_dynamic(&**file, footers)?;
        let (block_bytes, bitmap_bytes) = (dynamic.block_bytes, dynamic.bitmap_bytes);
        let block_count = dynamic.block_count;
        let stride_bytes = (bitmap_bytes + block_bytes).next_multiple_of(ALIGN_BYTES);
        let mut taken = Taken::default();
        let bat = dynamic.whole_bat();
        for span in [Span::from_zero(FOOTER_BYTES), dynamic.header, bat] {
            taken.take(span);
        }
        // Where the next block would go without holes: behind the BAT as it is, with all of its entries.
        let data_from = taken.end().next_multiple_of(SECTOR_BYTES);
        let len_bytes = file.file.len_bytes();
        let old_footer = Span::between(HostOffset::new(footers.data_end), HostOffset::new(len_bytes));
        taken.take(old_footer);
        let host: Arc<dyn HostFile> = file.clone();
        let virtual_bytes = footers.footer.virtual_bytes();
        let map = BlockMap::new(host, dynamic, virtual_bytes, footers.data_end, false);
        let grid = Grid {
            unit_bytes: block_bytes,
            unit_count: block_count,
            stride_bytes,
            align_bytes: ALIGN_BYTES,
            head_bytes: bitmap_bytes,
        };
        let mut votes = Votes::new(arrangement, grid);
        let mut cut_off = None;
        let mut unmarked = Vec::new();
        let fresh_from = len_bytes.next_multiple_of(SECTOR_BYTES);
        map.placed(|unit, span| {
            votes.count(unit, span.start().get() + bitmap_bytes);
            let index = usize::try_from(unit).map_err(|_| Error::unsupported("VHD of so many blocks"))?;
            unmarked.resize(unmarked.len().max(index + 1), false);
            unmarked[index] = true;
            let is_free = taken.take(span);
            if span.len_bytes() < bitmap_bytes + block_bytes {
                cut_off = Some(span);
            }
            taken.bound(fresh_from);
            if is_free {
                return Ok(());
            }
            Err(Error::corrupt(Corrupt::SharedBlock { block: unit }).at(span.start()))
        })?;
        // The rest of it is not the disk's, but would be if the disk were made larger.
        let whole = cut_off.map(|cut_off| Span::new(cut_off.start(), bitmap_bytes + block_bytes));
        let fresh_from = whole.map_or(fresh_from, |whole| fresh_from.max(whole.end().get()));
        let cut_off = cut_off.zip(whole).and_then(|(cut_off, whole)| {
            let end = taken.free_up_to(cut_off.end(), whole.end());
            taken.take(Span::between(cut_off.end(), end));
            (end < whole.end()).then(|| Span::between(whole.start(), end))
        });
        let mut bases = votes.into_bases(SECTOR_BYTES);
        bases.grow_from(fresh_from, HOST_BYTES_MAX - FOOTER_BYTES);
        Ok(Self {
            block_bytes,
            block_count,
            bitmap_bytes,
            bat_at: bat.start().get(),
            stride_bytes,
            footer: read_vec(&**file, HostOffset::ZERO, FOOTER_BYTES, "VHD footer")?,
            footer_at: None,
            old_footers: vec![old_footer],
            cut_off: CutOff(cut_off),
            unmarked,
            taken,
            bases,
            fresh_from,
            data_from,
        })
    }

    /// A block with its bitmap, by where its data lies.
    fn block(&self, at: u64) -> HostSpan {
        Span::new(HostOffset::new(at.saturating_sub(self.bitmap_bytes)), self.bitmap_bytes + self.block_bytes)
    }

    /// What the block whose data lies at `at` takes of the file.
    fn stored(&self, at: HostOffset) -> HostSpan {
        self.cut_off.stored(self.block(at.get()))
    }

    /// Puts the footer at `at`, which becomes the end of the file, and keeps its old place from being used.
    fn move_footer(&mut self, tables: &mut Tables, at: u64) -> Result<()> {
        let place = Span::new(HostOffset::new(at), FOOTER_BYTES);
        tables.reserve(place)?;
        tables.create(place, 0, Stage::Unreferenced);
        tables.put(at, &self.footer, Stage::Unreferenced)?;
        self.taken.take(place);
        self.old_footers.push(place);
        self.footer_at = Some(at);
        self.bases.skip_to(at + FOOTER_BYTES);
        Ok(())
    }

    /// A place for the data of `unit`, before the footer.
    fn find(&mut self, tables: &mut Tables, unit: u64) -> Result<u64> {
        let Self { bases, taken, bitmap_bytes, block_bytes, .. } = self;
        let (head_bytes, slot_bytes) = (*bitmap_bytes, *bitmap_bytes + *block_bytes);
        let is_free = |at: u64| {
            let start = at.checked_sub(head_bytes);
            start.is_some_and(|start| taken.is_free(Span::new(HostOffset::new(start), slot_bytes)))
        };
        let found = bases.find(unit, is_free);
        let behind = bases.end().max(self.fresh_from);
        if self.footer_at.is_none_or(|at| at + FOOTER_BYTES < behind) {
            self.move_footer(tables, behind)?;
        }
        let end = self.footer_at.unwrap_or(0);
        if let Some(at) = found.filter(|at| self.block(*at).end().get() <= end).or_else(|| self.fit(end)) {
            return Ok(at);
        }
        let further = end.saturating_add(FOOTER_BYTES + 2 * self.stride_bytes);
        if further + FOOTER_BYTES > HOST_BYTES_MAX {
            return Err(Error::unsupported("VHD file of more than 2 TiB"));
        }
        self.move_footer(tables, further)?;
        self.fit(further).ok_or_else(|| Error::unsupported("VHD file of more than 2 TiB"))
    }

    /// The first place below `limit`.
    fn fit(&self, limit: u64) -> Option<u64> {
        let phase = (ALIGN_BYTES - self.bitmap_bytes % ALIGN_BYTES) % ALIGN_BYTES;
        let len_bytes = self.bitmap_bytes + self.block_bytes;
        let start = self.taken.first_fit(self.data_from, len_bytes, ALIGN_BYTES, phase, limit)?;
        Some(start.get() + self.bitmap_bytes)
    }
}

impl Container for Blocks {
    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed> {
        let sector = u32::from_be_bytes(tables.get(self.bat_at + unit * 4)?);
        if sector == BAT_UNUSED {
            return Ok(Unit::Absent);
        }
        let at = u64::from(sector) * SECTOR_BYTES + self.bitmap_bytes;
        if at >= tables.len_bytes() {
            let error = Error::corrupt(Corrupt::Bat).at(HostOffset::new(self.bat_at + unit * 4));
            return Err(error.field(format!("entry {unit}"), sector, "a sector of the file").into());
        }
        let at = HostOffset::new(at);
        let is_unmarked = usize::try_from(unit).ok().and_then(|unit| self.unmarked.get(unit)) == Some(&true);
        Ok(if is_unmarked { Unit::Unmarked(at) } else { Unit::Data(at) })
    }

    fn allocate(&mut self, tables: &mut Tables, unit: u64) -> Result<Place> {
        let at = self.find(tables, unit)?;
        let block = self.block(at);
        let bitmap = Span::new(block.start(), self.bitmap_bytes);
        tables.reserve(bitmap)?;
        tables.create(bitmap, 0xff, Stage::Unreferenced);
        self.taken.take(block);
        Ok(Place { at: HostOffset::new(at), is_clean: block.start().get() >= self.fresh_from })
    }

    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()> {
        let old = tables.looking(|tables| self.lookup(tables, unit))?;
        if let To::Data(at) = to
            && let Some(unmarked) = usize::try_from(unit).ok().and_then(|unit| self.unmarked.get_mut(unit))
            && std::mem::take(unmarked)
        {
            // Where it lay, be it that it was freed in between, or in a new place.
            tables.create(
                Span::new(self.block(at.get()).start(), self.bitmap_bytes),
                0xff,
                Stage::Unreferenced,
            );
        }
        let entry = match to {
            To::Data(at) => (at.get() - self.bitmap_bytes) / SECTOR_BYTES,
            To::Zero | To::Absent => u64::from(BAT_UNUSED),
        };
        let entry = u32::try_from(entry).map_err(|_| Error::unsupported("VHD file of more than 2 TiB"))?;
        tables.put(self.bat_at + unit * 4, &entry.to_be_bytes(), Stage::References)?;
        match old {
            Unit::Data(at) | Unit::Unmarked(at) if to != To::Data(at) => freed.push(Storage::Unit(at)),
            _ => {}
        }
        Ok(())
    }

    fn zeros(&self, _unit: Unit, _has_parent: bool) -> Option<To> {
        Some(To::Absent)
    }

    fn dying(&mut self, _tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>> {
        let Storage::Unit(at) = *storage else { return Ok(Vec::new()) };
        Ok(vec![self.stored(at)])
    }

    fn release(&mut self, tables: &mut Tables, storage: &Storage) -> Result<()> {
        if let Storage::Unit(at) = *storage {
            let whole = self.block(at.get());
            tables.forget(Span::new(whole.start(), self.bitmap_bytes));
            self.cut_off.release(&mut self.taken, whole);
            self.bases.released();
        }
        Ok(())
    }

    fn room_bytes(&self, at: HostOffset, _unit_bytes: u64) -> u64 {
        self.stored(at).len_bytes() - self.bitmap_bytes
    }

    fn head_bytes(&self) -> u64 {
        self.bitmap_bytes
    }

    fn occupancy(&mut self, tables: &mut Tables) -> Result<Option<Occupancy>> {
        let slot_bytes = self.bitmap_bytes + self.block_bytes;
        let mut movable = Movable::new(slot_bytes);
        let mut is_aligned = true;
        for unit in 0..self.block_count {
            if let Unit::Data(at) | Unit::Unmarked(at) = tables.looking(|tables| self.lookup(tables, unit))? {
                is_aligned &= at.get().is_multiple_of(ALIGN_BYTES);
                movable.push(Occupant::Unit(unit), self.block(at.get()).start());
            }
        }
        let footers: ExtentSet<Host> = self.old_footers.iter().copied().collect();
        let taken = self.taken.pieces().collect::<ExtentSet<Host>>().subtract(&footers);
        let align_bytes = if is_aligned { ALIGN_BYTES } else { SECTOR_BYTES };
        Ok(movable.occupancy(taken, self.cut_off.0, tables.len_bytes()).map(|found| Occupancy {
            unit_bytes: self.block_bytes,
            head_bytes: self.bitmap_bytes,
            align_bytes,
            phase_bytes: (align_bytes - self.bitmap_bytes % align_bytes) % align_bytes,
            slots_from: HostOffset::new(self.data_from),
            unusable: footers,
            // The file does not end before the whole of it.
            cut_off: None,
            length_multiple_bytes: SECTOR_BYTES,
            tail_bytes: FOOTER_BYTES,
            ..found
        }))
    }

    fn claim(&mut self, _tables: &mut Tables, at: HostOffset) -> Result<bool> {
        let block = self.block(at.get() + self.bitmap_bytes);
        let is_place = at.get() >= self.data_from && at.get().is_multiple_of(SECTOR_BYTES);
        Ok(is_place && self.taken.is_free(block) && self.taken.take(block))
    }

    /// The bitmap moved with the data, as it is.
    fn refer(&mut self, tables: &mut Tables, who: Occupant, _from: HostOffset, to: HostOffset) -> Result<()> {
        let Occupant::Unit(unit) = who else { return Err(Error::invalid("VHD has no such tables")) };
        let sector = u32::try_from(to.get() / SECTOR_BYTES)
            .map_err(|_| Error::unsupported("VHD file of more than 2 TiB"))?;
        tables.put(self.bat_at + unit * 4, &sector.to_be_bytes(), Stage::References)
    }

    /// The footer behind the last block.
    fn finish(&mut self, tables: &mut Tables) -> Result<u64> {
        let first = self.old_footers.first().map_or(0, |footer| footer.start().get());
        let footer_at = self.footer_at.take().unwrap_or(first);
        for footer in std::mem::take(&mut self.old_footers) {
            self.taken.release(footer);
        }
        // QEMU takes every block for a whole one, and refuses a file that ends before it.
        let whole_end =
            self.cut_off.0.map_or(0, |cut_off| cut_off.start().get() + self.bitmap_bytes + self.block_bytes);
        let at = self.taken.end().max(whole_end).next_multiple_of(SECTOR_BYTES);
        // The footer that counts until the file is cut off is never written over.
        if at + FOOTER_BYTES > footer_at {
            return Ok(tables.len_bytes());
        }
        let place = Span::new(HostOffset::new(at), FOOTER_BYTES);
        match tables.reserve(place) {
            // The file stays as long as it is, up to the footer that it has.
            Err(error) if error.is_full() => return Ok(tables.len_bytes()),
            reserved => reserved?,
        }
        tables.create(place, 0, Stage::Unreferenced);
        tables.put(at, &self.footer, Stage::Unreferenced)?;
        Ok(at + FOOTER_BYTES)
    }
}
