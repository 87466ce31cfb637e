//! Disks in use that allocate in units: what the formats share.
//!
//! - [`container`]: what is a format's own, and in its folder; [`write_out`]: how its tables reach the storage;
//! - [`read`], [`mod@write`], [`free`]: what clients ask for, region by region;
//! - [`commit`]: stable storage, and giving back what was freed;
//! - [`relocate`]: units go elsewhere;
//! - [`marks`]: what changed, for images that keep a record of it.
//!
//! Locks, outermost first:
//! - a region of the disk: shared for reading, and for writing where all units have their places; alone for whatever
//!   changes where a unit lies. So no I/O is under way to storage that is being freed;
//! - the commit: one at a time;
//! - the state (tables and container): shared to look, alone to change; never held while the guest's data is read or written.
//!
//! Order of what reaches the storage: data and counts, flush, what refers to them, flush. A new unit is in the tables only
//! after its data was written, so a snapshot of the tables followed by a flush has the data of all it refers to.
//!
//! Absent on purpose: threads and queues of its own. Whoever calls does the work.

mod commit;
mod container;
mod free;
mod marks;
mod read;
mod relocate;
mod write;
mod write_out;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use block::{EditDisk, Error, LiveDisk, Occupancy, ReadAt, Result, Take, TargetFile, UnitMove, check_bounds};
use extent::{ExtentSet, HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};

use super::tables::index;
use super::{LiveOptions, Tables, Watched, broken};
use crate::Chain;

use commit::Committer;
pub(crate) use container::{Container, Expand, Place, Shape, Storage, To, Unit};
pub(crate) use marks::Marks;
pub(crate) use relocate::{Movable, Tidy};
pub(crate) use write_out::WriteOut;

/// Locks for regions, used again and again over the disk.
const REGION_LOCK_COUNT: u64 = 1024;
/// The least that one lock covers, and the most that one request to the host writes.
const REGION_BYTES_MIN: u64 = 1 << 20;

/// What many look at, and one at a time changes.
struct State<C> {
    tables: Tables,
    container: C,
    /// Freed units by number: these may have their place back.
    freed_units: HashMap<u64, HostOffset>,
    freed: Vec<Storage>,
}

/// See the module's page.
pub(crate) struct AllocatingDisk<C> {
    shape: Shape,
    virtual_bytes: u64,
    has_parent: bool,
    chain: Chain,
    file: Watched,
    options: LiveOptions,
    /// What changed, if the image keeps a record of that.
    marks: Option<Marks>,
    regions: Vec<RwLock<()>>,
    region_bytes: u64,
    state: RwLock<State<C>>,
    committer: Mutex<Committer>,
    flush_count: AtomicU64,
    has_begun: AtomicBool,
    is_closed: AtomicBool,
    has_failed: AtomicBool,
}

impl<C: Container> AllocatingDisk<C> {
    pub(crate) fn new(
        chain: Chain,
        shape: Shape,
        tables: Tables,
        file: Arc<dyn TargetFile>,
        container: C,
        out: Box<dyn WriteOut>,
        options: LiveOptions,
    ) -> Self {
        let marks = container.noted_granularity_bits().map(|bits| Marks::new(chain.len_bytes(), bits));
        let state = State { tables, container, freed_units: HashMap::new(), freed: Vec::new() };
        Self {
            region_bytes: shape.unit_bytes.max(REGION_BYTES_MIN),
            shape,
            virtual_bytes: chain.len_bytes(),
            has_parent: chain.links().len() > 1,
            chain,
            file: Watched::new(file),
            options,
            marks,
            regions: (0..REGION_LOCK_COUNT).map(|_| RwLock::default()).collect(),
            state: RwLock::new(state),
            committer: Mutex::new(Committer::new(out)),
            flush_count: AtomicU64::new(0),
            has_begun: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    fn region(&self, piece: VirtualSpan) -> &RwLock<()> {
        &self.regions[index(piece.start().get() / self.region_bytes % REGION_LOCK_COUNT)]
    }

    fn look(&self) -> RwLockReadGuard<'_, State<C>> {
        self.state.read().expect("no writer panicked")
    }

    fn change(&self) -> RwLockWriteGuard<'_, State<C>> {
        self.state.write().expect("no writer panicked")
    }

    fn unit_range(&self, span: VirtualSpan) -> Range<u64> {
        span.start().get() / self.shape.unit_bytes..span.end().get().div_ceil(self.shape.unit_bytes)
    }

    /// The part of the disk that a unit is; the last one may end early.
    fn unit_span(&self, unit: u64) -> VirtualSpan {
        let start = VirtualOffset::new(unit * self.shape.unit_bytes);
        Span::new(start, (self.virtual_bytes - start.get()).min(self.shape.unit_bytes))
    }

    fn skip_bytes(&self, at: VirtualOffset) -> u64 {
        at.get() % self.shape.unit_bytes
    }

    fn check_whole(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) || self.file.is_lost() {
            return Err(Error::refused("a flush of this disk failed before; what it holds is not known"));
        }
        Ok(())
    }

    /// Before every change.
    fn begin(&self) -> Result<()> {
        self.check_whole()?;
        if self.has_begun.load(Ordering::Acquire) {
            return self.check_not_closed();
        }
        let mut committer = self.committer.lock().expect("no writer panicked");
        if !self.has_begun.load(Ordering::Acquire) {
            self.check_not_closed()?;
            // What a program that was killed left in the host's cache is built upon from here on.
            self.file.flush()?;
            if let Err(error) = committer.out.begin(&self.file) {
                // Half begun is not begun.
                let _ = committer.out.end(&self.file);
                return Err(error);
            }
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.begin(tables)?;
            self.has_begun.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Before the guest's data change.
    fn mark(&self, span: VirtualSpan) {
        if let Some(marks) = &self.marks {
            marks.mark(span);
        }
    }

    fn check_not_closed(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::refused("the disk was closed")),
            false => Ok(()),
        }
    }

    fn check_span(&self, span: VirtualSpan) -> Result<()> {
        match span.end().get() > self.virtual_bytes {
            true => Err(Error::invalid("access past the disk's end").at(span.end())),
            false => Ok(()),
        }
    }
}

impl<C: Container> EditDisk for AllocatingDisk<C> {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.virtual_bytes)?;
        self.begin()?;
        self.mark(Span::new(at, buf.len() as u64));
        let mut rest = buf;
        for piece in Span::new(at, rest.len() as u64).split(self.region_bytes) {
            let (part, after) = rest.split_at(index(piece.len_bytes()));
            self.write_region(piece, part)?;
            rest = after;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flush_all()
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

impl<C: Container> LiveDisk for AllocatingDisk<C> {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.check_span(span)?;
        self.begin()?;
        self.mark(span);
        let may_free = may_free && !self.options.keeps_places;
        span.split(self.region_bytes).try_for_each(|piece| self.zero_region(piece, may_free))
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        self.check_span(span)?;
        self.begin()?;
        if self.options.keeps_places {
            return Ok(());
        }
        if !broken!(DiscardNotNoted) {
            self.mark(span);
        }
        span.split(self.region_bytes).try_for_each(|piece| self.discard_region(piece))
    }

    fn occupancy(&self) -> Result<Option<Occupancy>> {
        self.find_occupancy()
    }

    fn relocate(&self, moves: &[UnitMove]) -> Result<()> {
        self.move_units(moves)
    }

    fn lend(&self, span: VirtualSpan, take: Take<'_>) -> Result<bool> {
        self.lend_region(span, take)
    }

    fn is_changed(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    fn reclaim(&self) -> Result<u64> {
        self.free_leaks()
    }

    fn restart_bitmap(&self, name: &str, kept: &ExtentSet<Virtual>) -> Result<()> {
        self.begin()?;
        let mut state = self.change();
        let State { tables, container, freed, .. } = &mut *state;
        container.restart_record(tables, name, kept, freed)?;
        drop(state);
        self.flush_all()
    }

    fn has_failed(&self) -> bool {
        self.check_whole().is_err()
    }

    fn close(&self) -> Result<()> {
        self.close_for_good()
    }
}
