//! Disks in use that allocate in units: what the formats share.
//!
//! Locks, outermost first:
//! - a region of the disk: shared for reading, and for writing where all units have their places; alone for whatever
//!   changes where a unit lies. So no I/O is under way to storage that is being freed;
//! - the commit: one at a time;
//! - the state (tables and container): shared to look, alone to change; never held while the guest's data is read or written.
//!
//! Order of what reaches the storage: data and counts, flush, what refers to them, flush. A new unit is in the tables only
//! after its data was written, so a snapshot of the tables followed by a flush has the data of all it refers to.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use block::{
    Disk, EditDisk, Error, FileIndex, LiveDisk, Occupancy, Occupant, ReadAt, Result, Run, RunState,
    TargetFile, UnitMove, check_bounds, push_run,
};
use extent::{HostOffset, HostSpan, Span, Virtual, VirtualOffset, VirtualSpan};

use super::settle::Tidy;
use super::tables::index;
use super::{LiveOptions, Missed, STAGES, Snapshot, Stage, Tables};
use crate::Chain;

/// Locks for regions, used again and again over the disk.
const REGION_LOCK_COUNT: u64 = 1024;
/// The least that one lock covers, and the most that one request to the host writes.
const REGION_BYTES_MIN: u64 = 1 << 20;
/// Holes of the host smaller than this are not worth a request.
const PUNCH_BYTES_MIN: u64 = 4096;

/// What the tables say of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// The parents answer.
    Absent,
    /// Zeros; the place is kept for it if there is one.
    Zero(Option<HostOffset>),
    /// Lies here, and may be overwritten.
    Data(HostOffset),
    /// Lies here, and may be overwritten once the tables are told.
    Unmarked(HostOffset),
    /// Lies here, and something else refers to it: to be copied before it is changed.
    Shared(HostOffset),
    /// Lies compressed.
    Compressed { at: HostOffset, len_bytes: u64 },
}

/// What an entry is to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum To {
    /// The unit lies here.
    Data(HostOffset),
    /// Zeros without a place.
    Zero,
    /// The parents answer.
    Absent,
}

/// A place for a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Where its data goes.
    pub(crate) at: HostOffset,
    /// Whether it reads as zeros.
    pub(crate) is_clean: bool,
}

/// What a freed entry referred to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Storage {
    /// The data of a unit, which it alone had.
    Unit(HostOffset),
    /// What others may refer to as well: compressed data, a unit's or a table of snapshots.
    Shared { at: HostOffset, len_bytes: u64 },
}

/// What is a format's own. Every method but `lookup` and `dying` is called with the state alone.
pub(crate) trait Container: Send + Sync + 'static {
    /// Before the very first change; see also [`WriteOut::begin`], which comes before.
    fn begin(&mut self, _tables: &mut Tables) -> Result<()> {
        Ok(())
    }

    /// What the tables say of `unit`.
    fn lookup(&self, tables: &Tables, unit: u64) -> Result<Unit, Missed>;

    /// Finds a place for `unit` and counts it as taken. The file reaches to its end afterwards.
    fn allocate(&mut self, tables: &mut Tables, unit: u64) -> Result<Place>;

    /// Makes the entry of `unit` say `to`; what it referred to before, unless it is the same, goes to `freed`.
    fn set(&mut self, tables: &mut Tables, unit: u64, to: To, freed: &mut Vec<Storage>) -> Result<()>;

    /// How `unit` can read as zeros without storage of its own; `None` if the format has no way.
    fn zeros(&self, unit: Unit, has_parent: bool) -> Option<To>;

    /// What of `storage`, to which nothing refers any more, nobody else uses.
    fn dying(&mut self, tables: &mut Tables, storage: &Storage) -> Result<Vec<HostSpan>>;

    /// Makes the storage free to be used again.
    fn release(&mut self, tables: &mut Tables, storage: &Storage) -> Result<()>;

    /// The tables are about to be taken for a commit.
    fn before_commit(&mut self, _tables: &mut Tables) -> Result<()> {
        Ok(())
    }

    /// How much room the unit whose data lie, or lay, at `at` has there: less than others where the last one ends with
    /// the disk.
    fn room_bytes(&self, _at: HostOffset, unit_bytes: u64) -> u64 {
        unit_bytes
    }

    /// What lies before each unit's data and moves with it.
    fn head_bytes(&self) -> u64 {
        0
    }

    /// What lies where, if units can be laid elsewhere. All is committed.
    fn occupancy(&mut self, _tables: &mut Tables) -> Result<Option<Occupancy>> {
        Ok(None)
    }

    /// Whether the slot of `who` begins at `at`, and nothing else refers to it.
    fn lies_at(&self, _tables: &mut Tables, _who: Occupant, _at: HostOffset) -> Result<bool> {
        Ok(false)
    }

    /// Takes the slot at `at`, which is within the file; `false` if it is not free.
    fn claim(&mut self, _tables: &mut Tables, _at: HostOffset) -> Result<bool> {
        Ok(false)
    }

    /// Makes the tables refer to `who` at `to`, where its data are, instead of `from`. A table is copied, too.
    fn refer(
        &mut self,
        _tables: &mut Tables,
        _who: Occupant,
        _from: HostOffset,
        _to: HostOffset,
    ) -> Result<()> {
        Err(Error::unsupported("moving units of this format"))
    }

    /// What is counted as taken and has nothing that refers to it. All is committed.
    fn leaks(&mut self, _tables: &mut Tables) -> Result<Vec<Storage>> {
        Ok(Vec::new())
    }

    /// Leaves out tables without contents, as far as they are known: what they lay in goes to `freed`.
    fn tidy(&mut self, _tables: &mut Tables, _freed: &mut Vec<Storage>, _when: Tidy) -> Result<()> {
        Ok(())
    }

    /// Everything is committed and nobody writes any more: puts the end in order and says how long the file is to be.
    fn finish(&mut self, tables: &mut Tables) -> Result<u64>;
}

/// Brings tables to the storage.
pub(crate) trait WriteOut: Send {
    /// Before the very first change.
    fn begin(&mut self, _file: &dyn TargetFile) -> Result<()> {
        Ok(())
    }

    /// Writes a snapshot; on return all of it, and all data written before, is on stable storage.
    fn write_out(&mut self, file: &dyn TargetFile, snapshot: &Snapshot) -> Result<()> {
        if broken!(TablesBeforeData) {
            return STAGES.iter().rev().try_for_each(|stage| write_stage(file, snapshot, *stage));
        }
        if !broken!(NoFlushOfData) {
            file.flush()?;
        }
        write_stages(file, snapshot)
    }

    /// After the last change.
    fn end(&mut self, _file: &dyn TargetFile) -> Result<()> {
        Ok(())
    }
}

/// Writes a snapshot stage by stage with a flush after each. Data goes with the first stage.
pub(crate) fn write_stages(file: &dyn TargetFile, snapshot: &Snapshot) -> Result<()> {
    STAGES.iter().try_for_each(|stage| write_stage(file, snapshot, *stage))
}

fn write_stage(file: &dyn TargetFile, snapshot: &Snapshot, stage: Stage) -> Result<()> {
    let writes = snapshot.writes(stage);
    if writes.is_empty() && stage != STAGES[0] {
        return Ok(());
    }
    for (at, bytes) in writes {
        file.write_at(at, &bytes)?;
    }
    let is_last = stage == Stage::References;
    if (is_last && broken!(NoFlushOfTables)) || (!is_last && broken!(NoFlushOfData)) {
        return Ok(());
    }
    file.flush()
}

/// Decompresses.
pub(crate) trait Expand: Send + Sync {
    /// Fills `unit` from `data`, which may be longer than needed.
    fn expand(&self, data: &[u8], unit: &mut [u8]) -> Result<()>;
}

/// What an image is like.
pub(crate) struct Shape {
    pub(crate) unit_bytes: u64,
    pub(crate) expander: Option<Box<dyn Expand>>,
}

pub(super) struct State<C> {
    pub(super) tables: Tables,
    pub(super) container: C,
    /// Freed units by number: these may have their place back.
    freed_units: HashMap<u64, HostOffset>,
    pub(super) freed: Vec<Storage>,
}

pub(super) struct Committer {
    out: Box<dyn WriteOut>,
    /// All flushes that had begun by then are done.
    done: u64,
}

/// See the module's page.
pub(crate) struct Thin<C> {
    pub(super) shape: Shape,
    virtual_bytes: u64,
    has_parent: bool,
    pub(super) chain: Chain,
    pub(super) file: Arc<dyn TargetFile>,
    options: LiveOptions,
    pub(super) regions: Vec<RwLock<()>>,
    region_bytes: u64,
    state: RwLock<State<C>>,
    pub(super) committer: Mutex<Committer>,
    flush_count: AtomicU64,
    has_begun: AtomicBool,
    is_closed: AtomicBool,
    pub(super) has_failed: AtomicBool,
}

/// A part of one unit, on its way to its place.
struct Target {
    unit: u64,
    part: VirtualSpan,
    old: Unit,
    place: Place,
    is_new: bool,
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl<C: Container> Thin<C> {
    pub(crate) fn new(
        chain: Chain,
        shape: Shape,
        tables: Tables,
        file: Arc<dyn TargetFile>,
        container: C,
        out: Box<dyn WriteOut>,
        options: LiveOptions,
    ) -> Self {
        let state = State { tables, container, freed_units: HashMap::new(), freed: Vec::new() };
        Self {
            region_bytes: shape.unit_bytes.max(REGION_BYTES_MIN),
            shape,
            virtual_bytes: chain.len_bytes(),
            has_parent: chain.links().len() > 1,
            chain,
            file,
            options,
            regions: (0..REGION_LOCK_COUNT).map(|_| RwLock::default()).collect(),
            state: RwLock::new(state),
            committer: Mutex::new(Committer { out, done: 0 }),
            flush_count: AtomicU64::new(0),
            has_begun: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    fn region(&self, piece: VirtualSpan) -> &RwLock<()> {
        &self.regions[index(piece.start().get() / self.region_bytes % REGION_LOCK_COUNT)]
    }

    pub(super) fn look(&self) -> RwLockReadGuard<'_, State<C>> {
        self.state.read().expect("no writer panicked")
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, State<C>> {
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

    /// The units of `span`, whose region is locked.
    fn units(&self, span: VirtualSpan) -> Result<Vec<Unit>> {
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

    /// Reads from the file; zeros past its end.
    fn read_file(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        let there = self.look().tables.len_bytes().saturating_sub(at.get()).min(buf.len() as u64);
        let (inside, outside) = buf.split_at_mut(index(there));
        outside.fill(0);
        if inside.is_empty() { Ok(()) } else { self.file.read_at(at, inside) }
    }

    fn read_run(&self, run: &Run, buf: &mut [u8]) -> Result<()> {
        match run.state {
            RunState::Hole if self.has_parent => {
                self.chain.read_parents(run.span.start(), buf)?;
            }
            RunState::Hole | RunState::Zero => buf.fill(0),
            RunState::Data { offset, .. } => self.read_file(offset, buf)?,
            RunState::Compressed { offset, len_bytes, .. } => {
                let unit = self.expanded(offset, len_bytes)?;
                let skip = index(self.skip_bytes(run.span.start()));
                buf.copy_from_slice(&unit[skip..skip + buf.len()]);
            }
        }
        Ok(())
    }

    fn expanded(&self, at: HostOffset, len_bytes: u64) -> Result<Vec<u8>> {
        let Some(expander) = &self.shape.expander else {
            return Err(Error::corrupt("compressed unit in an image without compression").at(at));
        };
        let mut data = vec![0; index(len_bytes)];
        self.read_file(at, &mut data)?;
        let mut unit = vec![0; index(self.shape.unit_bytes)];
        expander.expand(&data, &mut unit).map_err(|error| error.at(at))?;
        Ok(unit)
    }

    fn check_whole(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(Error::refused("a flush of this disk failed before; what it holds is not known"));
        }
        Ok(())
    }

    /// Before every change.
    pub(super) fn begin(&self) -> Result<()> {
        self.check_whole()?;
        if self.has_begun.load(Ordering::Acquire) {
            return self.check_not_closed();
        }
        let mut committer = self.committer.lock().expect("no writer panicked");
        if !self.has_begun.load(Ordering::Acquire) {
            self.check_not_closed()?;
            // What a program that was killed left in the host's cache is built upon from here on.
            self.file.flush()?;
            committer.out.begin(&*self.file)?;
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.begin(tables)?;
            self.has_begun.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn check_not_closed(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::refused("the disk was closed")),
            false => Ok(()),
        }
    }

    /// Writes what lies within one region.
    fn write_region(&self, span: VirtualSpan, buf: &[u8]) -> Result<()> {
        {
            let _shared = self.region(span).read().expect("no writer panicked");
            self.check_not_closed()?;
            let units = self.units(span)?;
            if units.iter().all(|unit| matches!(unit, Unit::Data(_))) {
                let targets = self.in_place(span, &units);
                return self.write_targets(span, &targets, buf);
            }
        }
        let _alone = self.region(span).write().expect("no writer panicked");
        // The disk may have been closed while this waited.
        self.check_not_closed()?;
        self.write_anywhere(span, buf)
    }

    fn in_place(&self, span: VirtualSpan, units: &[Unit]) -> Vec<Target> {
        let parts = span.split(self.shape.unit_bytes).zip(self.unit_range(span)).zip(units);
        let targets = parts.filter_map(|((part, unit), old)| {
            let Unit::Data(at) = *old else { return None };
            Some(Target { unit, part, old: *old, place: Place { at, is_clean: false }, is_new: false })
        });
        targets.collect()
    }

    /// Writes the targets' parts of `buf`, which is that of `span`: neighbours in the file together.
    fn write_targets(&self, span: VirtualSpan, targets: &[Target], buf: &[u8]) -> Result<()> {
        let place = |target: &Target| target.place.at.plus(self.skip_bytes(target.part.start()));
        let mut rest = targets;
        while let Some(first) = rest.first() {
            let at = place(first);
            let mut len_bytes = first.part.len_bytes();
            let mut count = 1;
            while let Some(next) = rest.get(count).filter(|next| place(next) == at.plus(len_bytes)) {
                len_bytes += next.part.len_bytes();
                count += 1;
            }
            let from = index(first.part.start().get() - span.start().get());
            self.file.write_at(at, &buf[from..from + index(len_bytes)])?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Writes `span`, whose region is locked alone, giving places to units that have none.
    fn write_anywhere(&self, span: VirtualSpan, buf: &[u8]) -> Result<()> {
        let targets = self.allocate(span)?;
        let written = self.fill_new(&targets).and_then(|()| self.write_targets(span, &targets, buf));
        self.settle(&targets, written)
    }

    /// Places for all units of `span`.
    fn allocate(&self, span: VirtualSpan) -> Result<Vec<Target>> {
        let units = self.units(span)?;
        let mut targets = Vec::with_capacity(units.len());
        let mut failure = Ok(());
        {
            let mut state = self.change();
            let parts = span.split(self.shape.unit_bytes).zip(self.unit_range(span)).zip(units);
            for ((part, unit), old) in parts {
                match state.place(unit, old) {
                    Ok((place, is_new)) => targets.push(Target { unit, part, old, place, is_new }),
                    Err(error) => {
                        failure = Err(error);
                        break;
                    }
                }
            }
        }
        if let Err(error) = failure {
            return self.settle(&targets, Err(error)).map(|()| Vec::new());
        }
        if let Some(placement) = &self.options.placement {
            for target in targets.iter().filter(|target| target.is_new) {
                placement.placed(FileIndex(0), Span::new(target.place.at, self.shape.unit_bytes));
            }
        }
        Ok(targets)
    }

    /// Writes what new units hold outside of the parts that are about to be written.
    fn fill_new(&self, targets: &[Target]) -> Result<()> {
        let is_filled = |target: &&Target| target.is_new && !matches!(target.old, Unit::Unmarked(_));
        for target in targets.iter().filter(is_filled) {
            let whole = self.unit_span(target.unit);
            if target.part == whole && whole.len_bytes() == self.shape.unit_bytes {
                continue;
            }
            if !target.place.is_clean {
                self.file.zero(self.room(&target.place))?;
            }
            for edge in [
                Span::between(whole.start(), target.part.start()),
                Span::between(target.part.end(), whole.end()),
            ] {
                self.copy_old(target, edge)?;
            }
        }
        Ok(())
    }

    /// All that is the unit's where it lies, behind which another may lie.
    fn room(&self, place: &Place) -> HostSpan {
        Span::new(place.at, self.look().container.room_bytes(place.at, self.shape.unit_bytes))
    }

    /// Copies `edge` of a unit from where it was to its new place, which reads as zeros.
    fn copy_old(&self, target: &Target, edge: VirtualSpan) -> Result<()> {
        let has_old = match target.old {
            Unit::Absent => self.has_parent,
            Unit::Zero(_) | Unit::Data(_) | Unit::Unmarked(_) => false,
            Unit::Shared(_) | Unit::Compressed { .. } => true,
        };
        if edge.is_empty() || !has_old {
            return Ok(());
        }
        let mut bytes = vec![0; index(edge.len_bytes())];
        let skip_bytes = self.skip_bytes(edge.start());
        match target.old {
            Unit::Absent => _ = self.chain.read_parents(edge.start(), &mut bytes)?,
            Unit::Shared(at) => self.read_file(at.plus(skip_bytes), &mut bytes)?,
            Unit::Compressed { at, len_bytes } => {
                let unit = self.expanded(at, len_bytes)?;
                let from = index(skip_bytes);
                bytes.copy_from_slice(&unit[from..from + index(edge.len_bytes())]);
            }
            Unit::Zero(_) | Unit::Data(_) | Unit::Unmarked(_) => {}
        }
        if is_zero(&bytes) { Ok(()) } else { self.file.write_at(target.place.at.plus(skip_bytes), &bytes) }
    }

    /// Makes the tables refer to new units once they are `written`; gives their places back if they are not.
    fn settle(&self, targets: &[Target], written: Result<()>) -> Result<()> {
        if !targets.iter().any(|target| target.is_new) {
            return written;
        }
        let mut state = self.change();
        let mut result = written;
        for target in targets.iter().filter(|target| target.is_new) {
            if result.is_ok() {
                result = state.refer(target.unit, To::Data(target.place.at));
            } else if !matches!(target.old, Unit::Zero(Some(_)) | Unit::Unmarked(_)) {
                // Nothing refers to it, but what was there may be what the storage still refers to: it goes the way of
                // all that is freed.
                state.freed.push(Storage::Unit(target.place.at));
            }
        }
        let is_full = state.tables.is_full();
        drop(state);
        if broken!(ReusedTooSoon) {
            self.release_now()?;
        }
        if is_full {
            self.commit(&mut self.committer.lock().expect("no writer panicked"))?;
        }
        result
    }

    /// Makes whole or partial units read as zeros. Within one region.
    fn zero_region(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        let _alone = self.region(span).write().expect("no writer panicked");
        self.check_not_closed()?;
        let units = self.units(span)?;
        for ((part, unit), old) in span.split(self.shape.unit_bytes).zip(self.unit_range(span)).zip(units) {
            let is_whole = part == self.unit_span(unit);
            let zeros = if is_whole && may_free { self.zeros_of(old) } else { None };
            match (old, zeros) {
                (Unit::Zero(None), _) if may_free => {}
                (Unit::Absent, _) if may_free && !self.has_parent => {}
                (_, Some(to)) => self.free(unit, to)?,
                (Unit::Zero(_), _) if may_free => {}
                (Unit::Data(at), _) => {
                    let place = Span::new(at.plus(self.skip_bytes(part.start())), part.len_bytes());
                    if may_free { self.file.punch(place)? } else { self.file.zero(place)? }
                }
                _ if is_whole => self.place_zeros(part)?,
                _ => self.write_anywhere(part, &vec![0; index(part.len_bytes())])?,
            }
        }
        Ok(())
    }

    /// Gives the whole unit `span` a place that reads as zeros.
    fn place_zeros(&self, span: VirtualSpan) -> Result<()> {
        let targets = self.allocate(span)?;
        let mut dirty = targets.iter().filter(|target| !target.place.is_clean);
        let zeroed = dirty.try_for_each(|target| self.file.zero(self.room(&target.place)));
        self.settle(&targets, zeroed)
    }

    fn zeros_of(&self, old: Unit) -> Option<To> {
        self.look().container.zeros(old, self.has_parent)
    }

    fn free(&self, unit: u64, to: To) -> Result<()> {
        let mut state = self.change();
        state.refer(unit, to)?;
        let is_full = state.tables.is_full();
        drop(state);
        if broken!(ReusedTooSoon) {
            self.release_now()?;
        }
        if is_full { self.commit(&mut self.committer.lock().expect("no writer panicked")) } else { Ok(()) }
    }

    fn discard_region(&self, span: VirtualSpan) -> Result<()> {
        for part in span.split(self.shape.unit_bytes) {
            let unit = part.start().get() / self.shape.unit_bytes;
            if part == self.unit_span(unit) {
                self.zero_region(part, true)?;
                continue;
            }
            let _shared = self.region(part).read().expect("no writer panicked");
            self.check_not_closed()?;
            if let [Unit::Data(at)] = self.units(part)?[..] {
                self.punch_within(Span::new(at.plus(self.skip_bytes(part.start())), part.len_bytes()))?;
            }
        }
        Ok(())
    }

    /// Punches the whole blocks of the host within `span`.
    fn punch_within(&self, span: HostSpan) -> Result<()> {
        let start = span.start().get().next_multiple_of(PUNCH_BYTES_MIN);
        let end = span.end().get() / PUNCH_BYTES_MIN * PUNCH_BYTES_MIN;
        let inner = Span::between(HostOffset::new(start), HostOffset::new(end));
        if inner.is_empty() { Ok(()) } else { self.file.punch(inner) }
    }

    /// Brings all that was done before to stable storage, and then gives back what was freed.
    pub(super) fn commit(&self, committer: &mut Committer) -> Result<()> {
        self.check_whole()?;
        self.try_commit(committer).inspect_err(|_| self.has_failed.store(true, Ordering::Release))
    }

    fn try_commit(&self, committer: &mut Committer) -> Result<()> {
        let (snapshot, freed) = {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.before_commit(tables)?;
            let snapshot = tables.snapshot();
            (snapshot, state.take_freed())
        };
        if snapshot.pages.is_empty() {
            self.file.flush()?;
        } else {
            committer.out.write_out(&*self.file, &snapshot)?;
        }
        self.change().tables.settle(&snapshot);
        self.release(&freed)
    }

    /// What a mutant does.
    fn release_now(&self) -> Result<()> {
        let freed = self.change().take_freed();
        self.release(&freed)
    }

    /// Gives back storage whose freeing is on stable storage.
    fn release(&self, freed: &[Storage]) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        let mut dying = Vec::new();
        {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            for storage in freed {
                dying.extend(container.dying(tables, storage)?);
            }
        }
        // Before anybody else can have it.
        for span in dying.into_iter().collect::<extent::ExtentSet<_>>().iter() {
            self.file.punch(span)?;
        }
        let mut state = self.change();
        let State { tables, container, .. } = &mut *state;
        freed.iter().try_for_each(|storage| container.release(tables, storage))
    }
}

impl<C: Container> State<C> {
    /// All that was freed since this was asked last.
    fn take_freed(&mut self) -> Vec<Storage> {
        let mut freed = std::mem::take(&mut self.freed);
        freed.extend(self.freed_units.drain().map(|(_, at)| Storage::Unit(at)));
        freed
    }

    /// A place for `unit`, which says `old`, and whether the tables have yet to refer to it.
    fn place(&mut self, unit: u64, old: Unit) -> Result<(Place, bool)> {
        match old {
            Unit::Data(at) => return Ok((Place { at, is_clean: false }, false)),
            Unit::Zero(Some(at)) | Unit::Unmarked(at) => {
                return Ok((Place { at, is_clean: false }, true));
            }
            Unit::Absent | Unit::Zero(None) | Unit::Shared(_) | Unit::Compressed { .. } => {}
        }
        // What the storage may still refer to for this very unit: the same bytes, whichever entry survives.
        if let Some(at) = self.freed_units.remove(&unit) {
            return Ok((Place { at, is_clean: false }, true));
        }
        Ok((self.container.allocate(&mut self.tables, unit)?, true))
    }

    fn refer(&mut self, unit: u64, to: To) -> Result<()> {
        let mut freed = Vec::new();
        let result = self.container.set(&mut self.tables, unit, to, &mut freed);
        for storage in freed {
            match storage {
                Storage::Unit(at) if !self.freed_units.contains_key(&unit) => {
                    self.freed_units.insert(unit, at);
                }
                other => self.freed.push(other),
            }
        }
        result
    }
}

impl<C: Container> ReadAt<Virtual> for Thin<C> {
    fn len_bytes(&self) -> u64 {
        self.virtual_bytes
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.virtual_bytes)?;
        self.check_whole()?;
        let mut rest = buf;
        for piece in Span::new(at, rest.len() as u64).split(self.region_bytes) {
            let _shared = self.region(piece).read().expect("no writer panicked");
            for run in self.runs(piece)? {
                let (part, after) = rest.split_at_mut(index(run.span.len_bytes()));
                self.read_run(&run, part)?;
                rest = after;
            }
        }
        Ok(())
    }
}

impl<C: Container> Disk for Thin<C> {
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

impl<C: Container> EditDisk for Thin<C> {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.virtual_bytes)?;
        self.begin()?;
        let mut rest = buf;
        for piece in Span::new(at, rest.len() as u64).split(self.region_bytes) {
            let (part, after) = rest.split_at(index(piece.len_bytes()));
            self.write_region(piece, part)?;
            rest = after;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.check_whole()?;
        let number = self.flush_count.fetch_add(1, Ordering::AcqRel) + 1;
        let mut committer = self.committer.lock().expect("no writer panicked");
        // One that began after this one did covers it.
        if committer.done >= number {
            return self.check_whole();
        }
        let begun = self.flush_count.load(Ordering::Acquire);
        self.commit(&mut committer)?;
        committer.done = begun;
        Ok(())
    }

    fn release(&self, span: VirtualSpan) -> Result<()> {
        self.discard(span)
    }
}

impl<C: Container> LiveDisk for Thin<C> {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.check_span(span)?;
        self.begin()?;
        let may_free = may_free && !self.options.keeps_places;
        span.split(self.region_bytes).try_for_each(|piece| self.zero_region(piece, may_free))
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        self.check_span(span)?;
        self.begin()?;
        if self.options.keeps_places {
            return Ok(());
        }
        span.split(self.region_bytes).try_for_each(|piece| self.discard_region(piece))
    }

    fn occupancy(&self) -> Result<Option<Occupancy>> {
        self.find_occupancy()
    }

    fn relocate(&self, moves: &[UnitMove]) -> Result<()> {
        self.move_units(moves)
    }

    fn reclaim(&self) -> Result<u64> {
        self.free_leaks()
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        // What is under way ends; what comes later sees that the disk is closed.
        for region in &self.regions {
            drop(region.write().expect("no writer panicked"));
        }
        let mut committer = self.committer.lock().expect("no writer panicked");
        // Twice: the first frees, and that is to be on the storage too.
        self.commit(&mut committer)?;
        self.commit(&mut committer)?;
        if !self.has_begun.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.finish(&mut committer).inspect_err(|_| self.has_failed.store(true, Ordering::Release))
    }
}

impl<C: Container> Thin<C> {
    fn check_span(&self, span: VirtualSpan) -> Result<()> {
        match span.end().get() > self.virtual_bytes {
            true => Err(Error::invalid("access past the disk's end").at(span.end())),
            false => Ok(()),
        }
    }

    fn finish(&self, committer: &mut Committer) -> Result<()> {
        self.tidy(committer, Tidy::AtTheEnd)?;
        let len_bytes = {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.finish(tables)?
        };
        self.try_commit(committer)?;
        // Before the file is cut off: a log that is still in force says how long it is at least.
        committer.out.end(&*self.file)?;
        self.change().tables.truncate(len_bytes)?;
        self.file.flush()
    }
}
