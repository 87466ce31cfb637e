//! Disks in use whose bytes have their places from the start: raw, fixed VHD, flat VMDK.
//!
//! There is no table to change, so nothing to lock and no order to keep: the host's file system does it all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{
    Disk, EditDisk, Error, FileIndex, LiveDisk, ReadAt, Result, Run, RunState, Take, TargetFile, check_bounds,
};
use extent::{HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};

use super::tables::index;
use super::watched::ReadFile;
use super::{LiveOptions, Watched, broken};
use crate::Chain;

/// A part of the virtual disk and where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// On the virtual disk; parts follow each other.
    pub(crate) span: VirtualSpan,
    /// The file.
    pub(crate) file: FileIndex,
    /// Where it begins there.
    pub(crate) at: HostOffset,
}

/// What is done to a file when the disk is first changed.
pub(crate) type FirstChange = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// See the module's page.
pub(crate) struct Flat {
    chain: Chain,
    files: Vec<Watched>,
    parts: Vec<Part>,
    first_change: std::sync::Mutex<Option<FirstChange>>,
    is_changed: AtomicBool,
    is_closed: AtomicBool,
    keeps_places: bool,
}

impl Flat {
    /// The disk that is its only file.
    pub(crate) fn whole(chain: Chain, files: Vec<Arc<dyn TargetFile>>, options: LiveOptions) -> Self {
        let span = Span::from_zero(chain.len_bytes());
        let part = Part { span, file: FileIndex(0), at: HostOffset::ZERO };
        Self::new(chain, files, vec![part], None, options)
    }

    /// The disk of `parts`, which cover it.
    pub(crate) fn new(
        chain: Chain,
        files: Vec<Arc<dyn TargetFile>>,
        parts: Vec<Part>,
        first_change: Option<FirstChange>,
        options: LiveOptions,
    ) -> Self {
        Self {
            keeps_places: options.keeps_places,
            chain,
            files: files.into_iter().map(Watched::new).collect(),
            parts,
            is_changed: AtomicBool::new(first_change.is_none()),
            first_change: std::sync::Mutex::new(first_change),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The parts of `span`, each with its file and its place there.
    fn within(
        &self,
        span: VirtualSpan,
    ) -> Result<impl Iterator<Item = (VirtualSpan, FileIndex, HostOffset)> + '_> {
        if span.end().get() > self.len_bytes() {
            return Err(Error::invalid("access past the disk's end").at(span.end()));
        }
        let first = self.parts.partition_point(|part| part.span.end() <= span.start());
        Ok(self.parts[first..].iter().map_while(move |part| {
            let both = part.span.intersect(&span)?;
            let skip_bytes = both.start().get() - part.span.start().get();
            Some((both, part.file, part.at.plus(skip_bytes)))
        }))
    }

    fn read_by(&self, at: VirtualOffset, buf: &mut [u8], read: ReadFile) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        let mut rest = buf;
        for (part, file, place) in self.within(Span::new(at, rest.len() as u64))? {
            let (piece, after) = rest.split_at_mut(index(part.len_bytes()));
            read(self.file(file), place, piece)?;
            rest = after;
        }
        Ok(())
    }

    fn file(&self, file: FileIndex) -> &Watched {
        &self.files[file.0 as usize]
    }

    fn check_open(&self) -> Result<()> {
        if self.files.iter().any(Watched::is_lost) {
            return Err(Error::refused("a flush of this disk failed before; what it holds is not known"));
        }
        Ok(())
    }

    fn begin(&self) -> Result<()> {
        self.check_open()?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::refused("the disk was closed"));
        }
        if self.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut first = self.first_change.lock().expect("no writer panicked");
        if let Some(change) = &*first {
            change()?;
            *first = None;
            self.is_changed.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl ReadAt<Virtual> for Flat {
    fn len_bytes(&self) -> u64 {
        self.chain.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_by(at, buf, ReadAt::read_at)
    }
}

impl Disk for Flat {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let runs = self.within(span)?;
        Ok(runs.map(|(part, file, offset)| Run::new(part, RunState::Data { file, offset })).collect())
    }

    fn sector_bytes(&self) -> u32 {
        self.chain.sector_bytes()
    }
}

impl EditDisk for Flat {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        self.begin()?;
        let mut rest = buf;
        for (part, file, place) in self.within(Span::new(at, rest.len() as u64))? {
            let (piece, after) = rest.split_at(index(part.len_bytes()));
            self.file(file).write_at(place, piece)?;
            rest = after;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.check_open()?;
        for file in self.files.iter().filter(|_| !broken!(NoFlushOfData)) {
            file.flush()?;
        }
        Ok(())
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_by(at, buf, TargetFile::read_stored)
    }

    fn write_zeros(&self, span: VirtualSpan) -> Result<()> {
        self.zero(span, true)
    }

    fn release(&self, span: VirtualSpan) -> Result<()> {
        self.discard(span)
    }
}

impl LiveDisk for Flat {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.begin()?;
        for (part, file, place) in self.within(span)? {
            let span = Span::new(place, part.len_bytes());
            if may_free && !self.keeps_places {
                self.file(file).punch_or_zero(span)?;
            } else {
                self.file(file).zero(span)?;
            }
        }
        Ok(())
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        if self.keeps_places {
            self.begin()?;
            return self.within(span).map(drop);
        }
        self.begin()?;
        for (part, file, place) in self.within(span)? {
            self.file(file).punch_if_possible(Span::new(place, part.len_bytes()))?;
        }
        Ok(())
    }

    fn lend(&self, span: VirtualSpan, take: Take<'_>) -> Result<bool> {
        match self.within(span)?.next() {
            Some((part, file, place)) if part == span => {
                self.file(file).lend(Span::new(place, part.len_bytes()), take)
            }
            _ => Ok(false),
        }
    }

    fn has_failed(&self) -> bool {
        self.check_open().is_err()
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        self.flush()
    }
}
