//! Reads a disk in use: what its tables say of a span, and the bytes.
//!
//! Invariant: a span's region is locked, if only shared, from before its units are looked up until its bytes were read; so no unit
//! is freed or laid elsewhere meanwhile.
//!
//! Absent on purpose: a cache of the guest's data, which the host has.

use block::{
    Disk, Error, FileIndex, ReadAt, Result, Run, RunState, Take, TargetFile, check_bounds, push_run,
};
use extent::{HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};

use super::{AllocatingDisk, Container, Unit};
use crate::BrokenTables;
use crate::live::Missed;
use crate::live::tables::index;
use crate::live::watched::ReadFile;

impl<C: Container> AllocatingDisk<C> {
    /// The units of `span`, whose region is locked.
    pub(super) fn units(&self, span: VirtualSpan) -> Result<Vec<Unit>> {
        let range = self.unit_range(span);
        let mut units = Vec::with_capacity(index(range.end - range.start));
        loop {
            let missed = {
                let state = self.look();
                let mut missed = None;
                while range.start + (units.len() as u64) < range.end {
                    match state.container.lookup(&state.tables, range.start + units.len() as u64) {
                        Ok(unit) => units.push(unit),
                        Err(Missed::Page(page)) => {
                            missed = Some(page);
                            break;
                        }
                        Err(Missed::Failed(error)) => return Err(error),
                    }
                }
                missed
            };
            match missed {
                None => return Ok(units),
                Some(page) => self.change().tables.load(page)?,
            }
        }
    }

    /// The runs of the top layer over `span`, whose region is locked.
    fn runs(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        let units = self.units(span)?;
        for (part, unit) in span.split(self.shape.unit_bytes).zip(units) {
            let data = |at: HostOffset| RunState::Data {
                file: FileIndex(0),
                offset: at.plus(self.skip_bytes(part.start())),
            };
            let state = match unit {
                Unit::Absent => RunState::Hole,
                Unit::Zero(_) => RunState::Zero,
                Unit::Data(at) | Unit::Unmarked(at) | Unit::Shared(at) => data(at),
                Unit::Compressed { at, len_bytes } => {
                    RunState::Compressed { file: FileIndex(0), offset: at, len_bytes }
                }
            };
            push_run(&mut runs, Run::new(part, state));
        }
        Ok(runs)
    }

    /// See [`block::LiveDisk::lend`]. The region is locked while it is read.
    pub(super) fn lend_region(&self, span: VirtualSpan, take: Take<'_>) -> Result<bool> {
        self.check_span(span)?;
        self.check_whole()?;
        if span.is_empty() || span.split(self.region_bytes).nth(1).is_some() {
            return Ok(false);
        }
        let _shared = self.region(span).read().expect("no writer panicked");
        match self.runs(span)?[..] {
            [Run { span: whole, state: RunState::Data { offset, .. }, .. }] if whole == span => {
                self.file.lend(Span::new(offset, span.len_bytes()), take)
            }
            _ => Ok(false),
        }
    }

    /// Reads from the file; zeros past its end.
    pub(super) fn read_file(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.read_file_by(at, buf, ReadAt::read_at)
    }

    fn read_file_by(&self, at: HostOffset, buf: &mut [u8], read: ReadFile) -> Result<()> {
        let there = self.look().tables.len_bytes().saturating_sub(at.get()).min(buf.len() as u64);
        let (inside, outside) = buf.split_at_mut(index(there));
        outside.fill(0);
        if inside.is_empty() { Ok(()) } else { read(&self.file, at, inside) }
    }

    fn read_run(&self, run: &Run, buf: &mut [u8], read: ReadFile) -> Result<()> {
        match run.state {
            RunState::Hole if self.has_parent => {
                self.chain.read_parents(run.span.start(), buf)?;
            }
            RunState::Hole | RunState::Zero => buf.fill(0),
            RunState::Data { offset, .. } => self.read_file_by(offset, buf, read)?,
            RunState::Compressed { offset, len_bytes, .. } => {
                let unit = self.expanded(offset, len_bytes)?;
                let skip = index(self.skip_bytes(run.span.start()));
                buf.copy_from_slice(&unit[skip..skip + buf.len()]);
            }
        }
        Ok(())
    }

    pub(super) fn expanded(&self, at: HostOffset, len_bytes: u64) -> Result<Vec<u8>> {
        let Some(expander) = &self.shape.expander else {
            return Err(Error::corrupt(BrokenTables::UnexpectedCompression).at(at));
        };
        let mut data = vec![0; index(len_bytes)];
        self.read_file(at, &mut data)?;
        let mut unit = vec![0; index(self.shape.unit_bytes)];
        expander.expand(&data, &mut unit).map_err(|error| error.at(at))?;
        Ok(unit)
    }
}

impl<C: Container> ReadAt<Virtual> for AllocatingDisk<C> {
    fn len_bytes(&self) -> u64 {
        self.virtual_bytes
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_by(at, buf, ReadAt::read_at)
    }
}

impl<C: Container> AllocatingDisk<C> {
    pub(super) fn read_by(&self, at: VirtualOffset, buf: &mut [u8], read: ReadFile) -> Result<()> {
        check_bounds(at, buf.len(), self.virtual_bytes)?;
        self.check_whole()?;
        let mut rest = buf;
        for piece in Span::new(at, rest.len() as u64).split(self.region_bytes) {
            let _shared = self.region(piece).read().expect("no writer panicked");
            for run in self.runs(piece)? {
                let (part, after) = rest.split_at_mut(index(run.span.len_bytes()));
                self.read_run(&run, part, read)?;
                rest = after;
            }
        }
        Ok(())
    }
}

impl<C: Container> Disk for AllocatingDisk<C> {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        if span.end().get() > self.virtual_bytes {
            return Err(Error::invalid("map past the disk's end").at(span.end()));
        }
        let mut runs = Vec::new();
        for piece in span.split(self.region_bytes) {
            let _shared = self.region(piece).read().expect("no writer panicked");
            for run in self.runs(piece)? {
                match run.state {
                    RunState::Hole if self.has_parent => {
                        for below in self.chain.map_parents(run.span)? {
                            push_run(&mut runs, below);
                        }
                    }
                    _ => push_run(&mut runs, run),
                }
            }
        }
        Ok(runs)
    }

    fn sector_bytes(&self) -> u32 {
        self.chain.sector_bytes()
    }
}
