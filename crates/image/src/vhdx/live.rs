//! VHDX in use: blocks where the guest's addresses lead them, the BAT changed through the log.
//!
//! A commit: data, flush; one log entry with whole sectors of the BAT, flush; the BAT itself, which needs no flush of its
//! own, because the entry is replayed until the next one is written, and before that everything is flushed. So the entry's tail
//! is always itself (2.3). Entries take a third of the log at most, so that one is never written over the one before.
//!
//! Headers (2.2.2): new FileWriteGuid and DataWriteGuid before the first change; the LogGuid once the first entry
//! that bears it is on stable storage; no LogGuid again after a clean close.

use std::sync::Arc;

use block::{Error, FieldValue, LiveDisk, Occupancy, Occupant, Result, TargetFile};
use extent::{HostOffset, HostSpan, Span};
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use super::corrupt::Corrupt;
use super::layout::{
    BAT_OFFSET_MASK, BAT_STATE_MASK, Guid, HEADERS_AT, Header, LOG_DATA_SIGNATURE, LOG_ENTRY_SIGNATURE,
    LOG_SECTOR_BYTES, LOG_SECTOR_SIGNATURE, LogDataSector, LogDescriptor, LogEntryHeader, MIB,
};
use super::map::{BatShape, BlockMap};
use super::parse::{self, Headers, Metadata, Regions, checksum};
use super::{Parsed, Replayed, layout, log, read_all};
use crate::Chain;
use crate::live::{
    AllocatingDisk, Arrangement, Bases, Container, CutOff, Grid, HOST_BYTES_MAX, InUse, LiveOptions, Missed,
    Movable, Place, Shape, Snapshot, Stage, Storage, Tables, Taken, To, Unit, Votes, WriteOut, broken,
};

/// [`BAT_STATE_MASK`]: zeros (2.5.1.1).
const STATE_ZERO: u64 = 2;
/// [`BAT_STATE_MASK`]: fully present (2.5.1.1).
const STATE_FULL: u64 = 6;
/// Sectors of a log entry that are not data: the descriptors of as many sectors as a third of 256 MiB holds fit in.
const ENTRY_SHARE: u64 = 3;

/// Opens a layer for writing. A pending log is applied to the file first.
pub(crate) fn open_live(
    chain: Chain,
    files: Vec<Arc<dyn TargetFile>>,
    options: LiveOptions,
) -> Result<Box<dyn LiveDisk>> {
    let file = files.into_iter().next().ok_or_else(|| Error::invalid("VHDX without a file"))?;
    let in_use = Arc::new(InUse { file: file.clone(), name: chain.files()[0].name().to_owned() });
    apply_log(&in_use)?;
    let Some(parsed) = read_all(in_use.clone())? else {
        return Err(Error::corrupt(Corrupt::NoSignature));
    };
    let Parsed { headers, regions, metadata, file: Replayed::Clean(_), .. } = parsed else {
        return Err(Error::corrupt(Corrupt::LogAfterReplay));
    };
    if metadata.has_parent {
        return Err(Error::unsupported("writing into a differencing VHDX"));
    }
    let Some(log_span) = headers.log_span.filter(|span| span.start().get() >= MIB) else {
        return Err(Error::unsupported("writing into a VHDX without a log"));
    };
    let tables = Tables::new(file.clone());
    let container = Blocks::new(&in_use, &headers, &regions, &metadata, options.arrangement)?;
    let shape = Shape { unit_bytes: metadata.block_bytes, expander: None };
    let out = Log::new(&headers, log_span, options.reserves_nothing);
    Ok(Box::new(AllocatingDisk::new(chain, shape, tables, file, container, Box::new(out), options)))
}

/// Writes what a pending log says, then the headers without it.
fn apply_log(file: &InUse) -> Result<()> {
    let Some(_) = parse::read_creator(file)? else { return Ok(()) };
    let headers = parse::read_headers(file)?;
    let Some(place) = headers.log else { return Ok(()) };
    let pending = log::pending(file, place)?;
    // Only what the whole file, seen through the log, is accepted with.
    read_all(file)?;
    if pending.len_bytes > file.file.len_bytes() {
        file.file.set_len(pending.len_bytes)?;
    }
    for (at, bytes) in &pending.patches {
        file.file.write_at(*at, bytes)?;
    }
    file.file.flush()?;
    let mut out = HeaderPair::new(&headers);
    out.change(&*file.file, |header| header.log_guid = Guid::from_uuid(Uuid::nil()))
}

/// The blocks of an image in use.
struct Blocks {
    shape: BatShape,
    bat_at: u64,
    is_fixed: bool,
    taken: Taken,
    bases: Bases,
    /// What the last block takes, if it ends where the disk does.
    cut_off: CutOff,
    fresh_from: u64,
    data_from: u64,
}

impl Blocks {
    fn new(
        file: &Arc<InUse>,
        headers: &Headers,
        regions: &Regions,
        metadata: &Metadata,
        arrangement: Arrangement,
    ) -> Result<Self> {
        let block_bytes = metadata.block_bytes;
        let fresh_from = file.file.len_bytes().next_multiple_of(MIB);
        let mut taken = Taken::default();
        let reserved: Vec<HostSpan> = [Some(Span::from_zero(MIB)), headers.log_span]
            .into_iter()
            .flatten()
            .chain(regions.all.clone())
            .collect();
        for span in &reserved {
            taken.take(*span);
        }
        let data_from = taken.end();
        let host: Arc<dyn block::HostFile> = file.clone();
        let map = BlockMap::new(host, metadata, regions.bat, reserved.into_iter().collect())?;
        let shape = BatShape::new(metadata.virtual_bytes, block_bytes, metadata.logical_sector_bytes);
        let grid = Grid {
            unit_bytes: block_bytes,
            unit_count: shape.block_count,
            stride_bytes: block_bytes,
            align_bytes: MIB,
            head_bytes: 0,
        };
        let mut votes = Votes::new(arrangement, grid);
        let mut cut_off = None;
        map.placed(|block, at, stored_bytes| {
            votes.count(block, at.get());
            let stored = Span::new(at, stored_bytes.next_multiple_of(MIB));
            let is_free = taken.take(stored);
            if stored.len_bytes() < block_bytes {
                cut_off = Some(stored);
            }
            taken.bound(fresh_from);
            if is_free {
                return Ok(());
            }
            Err(Error::corrupt(Corrupt::SharedBlock { block }).at(at))
        })?;
        let mut bases = votes.into_bases(MIB);
        bases.grow_from(fresh_from, HOST_BYTES_MAX);
        let is_fixed = metadata.leaves_blocks_allocated;
        let bat_at = regions.bat.start().get();
        Ok(Self { shape, bat_at, is_fixed, taken, bases, cut_off: CutOff(cut_off), fresh_from, data_from })
    }

    fn entry_at(&self, unit: u64) -> u64 {
        self.bat_at + self.shape.entry_of_block(unit) * 8
    }

    fn block(&self, at: HostOffset) -> HostSpan {
        Span::new(at, self.shape.block_bytes)
    }

    /// What the block at `at` takes of the file.
    fn stored(&self, at: HostOffset) -> HostSpan {
        self.cut_off.stored(self.block(at))
    }

    fn state(&self, unit: u64, entry: u64, len_bytes: u64) -> Result<Unit> {
        let place = HostOffset::new(entry & BAT_OFFSET_MASK);
        match entry & BAT_STATE_MASK {
            0 => Ok(Unit::Absent),
            1..=3 => Ok(Unit::Zero(None)),
            STATE_FULL if place.get() >= MIB && place.get() < len_bytes => Ok(Unit::Data(place)),
            _ => Err(Error::corrupt(Corrupt::Bat).at(HostOffset::new(self.entry_at(unit))).field(
                format!("entry of block {unit}"),
                FieldValue::hex(entry),
                "a state of a disk without a parent, and a place in the file",
            )),
        }
    }
}

impl Container for Blocks {
    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed> {
        let entry = u64::from_le_bytes(tables.get(self.entry_at(unit))?);
        Ok(self.state(unit, entry, tables.len_bytes())?)
    }

    fn allocate(&mut self, tables: &mut Tables, unit: u64) -> Result<Place> {
        let Self { taken, bases, data_from, .. } = self;
        let block_bytes = self.shape.block_bytes;
        let is_free = |at| at >= MIB && taken.is_free(Span::new(HostOffset::new(at), block_bytes));
        let fitting = bases.find(unit, is_free).map(HostOffset::new);
        let fit = || taken.first_fit(*data_from, block_bytes, MIB, 0, HOST_BYTES_MAX);
        let at = fitting.or_else(fit).ok_or_else(|| Error::unsupported("VHDX file of more than 15 TiB"))?;
        tables.grow(self.block(at).end().get())?;
        self.taken.take(self.block(at));
        Ok(Place { at, is_clean: at.get() >= self.fresh_from })
    }

    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()> {
        let old = tables.looking(|tables| self.lookup(tables, unit))?;
        let entry = match to {
            To::Data(at) => at.get() | STATE_FULL,
            To::Zero => STATE_ZERO,
            To::Absent => 0,
        };
        tables.put(self.entry_at(unit), &entry.to_le_bytes(), Stage::References)?;
        match old {
            Unit::Data(at) if to != To::Data(at) => freed.push(Storage::Unit(at)),
            _ => {}
        }
        Ok(())
    }

    /// A fixed disk keeps its blocks.
    fn zeros(&self, _unit: Unit, _has_parent: bool) -> Option<To> {
        (!self.is_fixed).then_some(To::Zero)
    }

    fn dying(&mut self, tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>> {
        let Storage::Unit(at) = *storage else { return Ok(Vec::new()) };
        let end = self.stored(at).end().min(HostOffset::new(tables.len_bytes()));
        Ok(vec![Span::between(at, end)])
    }

    fn release(&mut self, _tables: &mut Tables, storage: &Storage) -> Result<()> {
        if let Storage::Unit(at) = *storage {
            let whole = self.block(at);
            self.cut_off.release(&mut self.taken, whole);
            self.bases.released();
        }
        Ok(())
    }

    fn occupancy(&mut self, tables: &mut Tables) -> Result<Option<Occupancy>> {
        if self.is_fixed {
            return Ok(None);
        }
        let mut movable = Movable::new(self.shape.block_bytes);
        for unit in 0..self.shape.block_count {
            if let Unit::Data(at) = tables.looking(|tables| self.lookup(tables, unit))? {
                movable.push(Occupant::Unit(unit), at);
            }
        }
        let taken = self.taken.pieces().collect();
        Ok(movable.occupancy(taken, self.cut_off.0, tables.len_bytes()).map(|found| Occupancy {
            align_bytes: MIB,
            slots_from: HostOffset::new(self.data_from),
            length_multiple_bytes: MIB,
            ..found
        }))
    }

    fn claim(&mut self, _tables: &mut Tables, at: HostOffset) -> Result<bool> {
        let block = self.block(at);
        let is_place = at.get() >= self.data_from && at.get().is_multiple_of(MIB);
        Ok(is_place && self.taken.is_free(block) && self.taken.take(block))
    }

    fn finish(&mut self, _tables: &mut Tables) -> Result<u64> {
        Ok(self.taken.end())
    }
}

/// Both headers, of which the newer counts.
struct HeaderPair {
    current: Header,
    is_first: bool,
}

impl HeaderPair {
    fn new(headers: &Headers) -> Self {
        Self { current: headers.raw, is_first: headers.is_first }
    }

    /// Makes a change in both headers, the older one first (2.2.2.1).
    fn change(&mut self, file: &dyn TargetFile, change: impl Fn(&mut Header)) -> Result<()> {
        for _ in HEADERS_AT {
            let mut header = self.current;
            change(&mut header);
            let sequence = header.sequence_number.get().checked_add(1);
            header
                .sequence_number
                .set(sequence.ok_or_else(|| Error::unsupported("VHDX header's last number"))?);
            header.checksum.set(0);
            header.checksum.set(checksum(header.as_bytes()));
            file.write_at(HostOffset::new(HEADERS_AT[usize::from(self.is_first)]), header.as_bytes())?;
            file.flush()?;
            (self.current, self.is_first) = (header, !self.is_first);
        }
        Ok(())
    }
}

/// What the headers say of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    /// Neither names it.
    No,
    /// One of them may: naming it failed, and is tried again.
    Perhaps,
    /// Both do.
    Yes,
}

/// The log being written.
struct Log {
    headers: HeaderPair,
    span: HostSpan,
    /// See [`LiveOptions::reserves_nothing`].
    reserves_nothing: bool,
    guid: Uuid,
    named: Named,
    /// Where the next entry goes, from the log's start.
    next_at: u64,
    sequence: u64,
}

impl Log {
    fn new(headers: &Headers, span: HostSpan, reserves_nothing: bool) -> Self {
        let headers = HeaderPair::new(headers);
        Self {
            headers,
            span,
            reserves_nothing,
            guid: Uuid::new_v4(),
            named: Named::No,
            next_at: 0,
            sequence: 1,
        }
    }

    /// Sectors of data that one entry may hold.
    fn data_count_max(&self) -> usize {
        let sectors = self.span.len_bytes() / LOG_SECTOR_BYTES / ENTRY_SHARE;
        // A sector of descriptors for at most every 126 of data.
        let count = sectors - sectors.div_ceil(126) - 1;
        usize::try_from(count).unwrap_or(usize::MAX).max(1)
    }

    /// Writes one entry with the whole sectors of `pages`.
    fn write_entry(&mut self, file: &dyn TargetFile, pages: &[Sector<'_>], len_bytes: u64) -> Result<()> {
        let heads = size_of::<LogEntryHeader>() + pages.len() * size_of::<LogDescriptor>();
        let heads_bytes = (heads as u64).next_multiple_of(LOG_SECTOR_BYTES);
        let entry_bytes = heads_bytes + pages.len() as u64 * LOG_SECTOR_BYTES;
        if self.next_at + entry_bytes > self.span.len_bytes() {
            self.next_at = 0;
        }
        let bytes = self.entry(pages, heads_bytes, entry_bytes, len_bytes)?;
        file.write_at(self.span.start().plus(self.next_at), &bytes)?;
        if !broken!(NoFlushOfTables) {
            file.flush()?;
        }
        self.next_at += entry_bytes;
        self.sequence += 1;
        Ok(())
    }

    fn entry(
        &self,
        pages: &[Sector<'_>],
        heads_bytes: u64,
        entry_bytes: u64,
        len_bytes: u64,
    ) -> Result<Vec<u8>> {
        let narrow =
            |value: u64| u32::try_from(value).map_err(|_| Error::unsupported("VHDX log of more than 4 GiB"));
        let mut header = LogEntryHeader::new_zeroed();
        header.signature = LOG_ENTRY_SIGNATURE;
        header.entry_length.set(narrow(entry_bytes)?);
        header.tail.set(narrow(self.next_at)?);
        header.sequence_number.set(self.sequence);
        header.descriptor_count.set(narrow(pages.len() as u64)?);
        header.log_guid = Guid::from_uuid(self.guid);
        header.flushed_file_offset.set(len_bytes);
        header.last_file_offset.set(len_bytes);
        let mut bytes = header.as_bytes().to_vec();
        for (at, sector) in pages {
            let mut descriptor = LogDescriptor::new_zeroed();
            descriptor.signature = LOG_DATA_SIGNATURE;
            descriptor.leading_bytes.copy_from_slice(&sector[..8]);
            descriptor.trailing_bytes.copy_from_slice(&sector[4092..]);
            descriptor.file_offset.set(at.get());
            descriptor.sequence_number.set(self.sequence);
            bytes.extend(descriptor.as_bytes());
        }
        bytes.resize(usize::try_from(heads_bytes).expect("below the log's length"), 0);
        let [high, low] = [self.sequence >> 32, self.sequence & u64::from(u32::MAX)];
        for (_, sector) in pages {
            let mut data = LogDataSector::new_zeroed();
            data.signature = LOG_SECTOR_SIGNATURE;
            data.sequence_high.set(narrow(high)?);
            data.data.copy_from_slice(&sector[8..4092]);
            data.sequence_low.set(narrow(low)?);
            bytes.extend(data.as_bytes());
        }
        let sum = checksum(&bytes);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }
}

/// A sector of the file and where it lies.
type Sector<'a> = (HostOffset, &'a [u8]);

impl WriteOut for Log {
    fn begin(&mut self, file: &dyn TargetFile) -> Result<()> {
        // So that no flush fails for want of it.
        if !self.reserves_nothing {
            file.reserve(self.span)?;
        }
        let [file_id, data_id] = [Uuid::new_v4(), Uuid::new_v4()].map(Guid::from_uuid);
        self.headers.change(file, |header| {
            header.file_write_guid = file_id;
            header.data_write_guid = data_id;
            header.log_version.set(layout::LOG_VERSION);
        })
    }

    fn write_out(&mut self, file: &dyn TargetFile, snapshot: &mut Snapshot) -> Result<()> {
        let pages: Vec<Sector<'_>> = snapshot.pages.iter().map(|page| (page.at, &page.bytes[..])).collect();
        for pages in pages.chunks(self.data_count_max()) {
            // The data, and what the entry before this one says.
            if !broken!(NoFlushOfData) && !broken!(TablesBeforeData) {
                file.flush()?;
            }
            self.write_entry(file, pages, snapshot.len_bytes)?;
            if self.named != Named::Yes {
                let guid = Guid::from_uuid(self.guid);
                if !broken!(HalfNamedIsUnnamed) {
                    self.named = Named::Perhaps;
                }
                self.headers.change(file, |header| header.log_guid = guid)?;
                self.named = Named::Yes;
            }
            for (at, sector) in pages {
                file.write_at(*at, sector)?;
            }
        }
        // Before, it all comes again: a later entry brings the same sectors, or newer ones.
        snapshot.all_written();
        Ok(())
    }

    fn end(&mut self, file: &dyn TargetFile) -> Result<()> {
        file.flush()?;
        if self.named != Named::No {
            self.headers.change(file, |header| header.log_guid = Guid::from_uuid(Uuid::nil()))?;
            self.named = Named::No;
        }
        if !self.reserves_nothing {
            // Both headers are on stable storage, and neither names the log: what is in it means nothing. That it takes no room is
            // worth an attempt, no more.
            let _ = file.punch(self.span);
        }
        Ok(())
    }
}
