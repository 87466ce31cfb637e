//! A disk in use that is being filled from another one, which is only read: what its guest writes goes to the target, what is not there yet is
//! read from the source, and fillers bring the rest.
//!
//! The disk is cut into units. A unit has arrived, or not; whoever brings it (a filler, or a write of the guest's to a part of it) has it for
//! itself meanwhile, and others wait.
//!
//! Invariants:
//! - once a unit has arrived, nothing but the guest's own requests changes it: a filler never writes over what a guest wrote;
//! - a record says that a unit has arrived only when what is in the target is on stable storage;
//! - a flush that returns has stored that of every unit that a write before it brought.
//!
//! Absent on purpose: names and locks of files, and when fillers run, which are the caller's.

mod life;
mod record;
mod units;

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use block::{Disk, EditDisk, Error, LiveDisk, ReadAt, Result, Run, RunState, TargetFile, push_run};
use extent::{Host, Span, Virtual, VirtualOffset, VirtualSpan};
use mutants::broken;

pub use life::{FillPlan, is_filled, publish_fill};
pub use record::{FillIdentity, fill_unit_bytes};
use record::{new_record, read_record, store_units};
use units::Units;

/// What is brought at a time: so many bytes and so many units, or one unit.
const PIECE_BYTES: u64 = 1 << 20;
const PIECE_UNITS: u64 = 16;
/// A filler lets requests of the guest go first, but not for ever.
const PATIENCE: Duration = Duration::from_millis(20);
/// After so many bytes what fillers brought is stored.
const STORED_AFTER_BYTES: u64 = 64 << 20;

/// A disk that is being filled. See the module's page.
pub struct FillingDisk {
    target: Arc<dyn LiveDisk>,
    source: Arc<dyn Disk>,
    unit_bytes: u64,
    state: Mutex<State>,
    /// A unit arrived, or was let go; or no request is at work.
    changed: Condvar,
    record: Mutex<Record>,
}

struct State {
    arrived: Units,
    missing: u64,
    /// Being brought by somebody.
    busy: HashSet<u64>,
    /// Requests of the guest that are at work.
    requests: u64,
    /// Arrived, and the record does not say so yet.
    unstored: u64,
    /// Fillers go on looking from here.
    next: u64,
    /// What fillers brought since the last store.
    brought_bytes: u64,
    is_stopped: bool,
}

struct Record {
    file: Box<dyn TargetFile>,
    stored: Units,
}

/// The contents of the record of a new target, which is empty and reads as zeros: units that are zeros in the source have arrived.
pub fn begin_fill(identity: &FillIdentity, source: &dyn Disk) -> Result<Vec<u8>> {
    let mut arrived = Units::none(identity.unit_count());
    let all = Span::from_zero(identity.virtual_bytes);
    for window in all.split(1 << 30) {
        let inside = window.intersect(&Span::from_zero(source.len_bytes()));
        let runs = inside.map_or(Ok(Vec::new()), |inside| source.map(inside))?;
        let is_zero = |run: &Run| matches!(run.state, RunState::Hole | RunState::Zero);
        let mut data = runs.iter().filter(|run| !is_zero(run)).map(|run| run.span).peekable();
        for unit in window.split(identity.unit_bytes) {
            while data.peek().is_some_and(|data| data.end() <= unit.start()) {
                data.next();
            }
            if data.peek().is_none_or(|data| data.start() >= unit.end()) {
                arrived.add(unit.start().get() / identity.unit_bytes);
            }
        }
    }
    new_record(identity, &arrived)
}

/// What a record is of; `None` if it is not whole, or is none.
pub fn fill_identity(record: &(impl ReadAt<Host> + ?Sized)) -> Result<Option<FillIdentity>> {
    Ok(read_record(record)?.map(|(identity, _)| identity))
}

impl FillingDisk {
    /// Goes on with what `record` says. `Refused` if that is of something else.
    pub fn open(
        target: Arc<dyn LiveDisk>,
        source: Arc<dyn Disk>,
        record: Box<dyn TargetFile>,
        identity: &FillIdentity,
    ) -> Result<Self> {
        if !broken!(FoundRecordNotFlushed) {
            // Who was killed may have left bits in the host's cache alone. From here on they count as stored.
            record.flush()?;
        }
        let stored = read_record(&*record)?.filter(|(found, _)| found == identity).map(|(_, units)| units);
        let stored =
            stored.ok_or_else(|| Error::refused("the record of what was filled is of another disk"))?;
        if target.len_bytes() < identity.virtual_bytes {
            return Err(Error::refused("the target is smaller than the disk that it is filled from"));
        }
        let state = State {
            missing: stored.count() - stored.total(),
            arrived: stored.clone(),
            busy: HashSet::new(),
            requests: 0,
            unstored: 0,
            next: 0,
            brought_bytes: 0,
            is_stopped: false,
        };
        Ok(Self {
            target,
            source,
            unit_bytes: identity.unit_bytes,
            state: Mutex::new(state),
            changed: Condvar::new(),
            record: Mutex::new(Record { file: record, stored }),
        })
    }

    /// Brings units until all have arrived, or [`Self::stop`] is called, or one cannot be brought. Any number of threads may. Answers
    /// whether all have arrived and the record says so: to one of them at least.
    pub fn fill(&self) -> Result<bool> {
        let mut piece = Vec::new();
        while let Some(claim) = self.next_claim() {
            piece.resize(length(claim.span.len_bytes()), 0);
            self.read_source(claim.span.start(), &mut piece)?;
            self.bring(claim, &piece)?;
            if self.is_store_due() {
                self.flush()?;
            }
        }
        let is_whole = self.state().missing == 0;
        if is_whole {
            self.flush()?;
        }
        Ok(is_whole)
    }

    /// Has fillers end.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        self.changed.notify_all();
    }

    /// Bytes that are yet to arrive.
    pub fn missing_bytes(&self) -> u64 {
        self.state().missing * self.unit_bytes
    }

    /// Writes a piece of the source that was claimed.
    fn bring(&self, claim: Claim<'_>, piece: &[u8]) -> Result<()> {
        let span = claim.span;
        if block::is_zero(piece) {
            self.target.zero(span, true)?;
        } else {
            self.target.write_at(span.start(), piece)?;
        }
        claim.arrived();
        self.state().brought_bytes += span.len_bytes();
        Ok(())
    }

    fn is_store_due(&self) -> bool {
        let mut state = self.state();
        let is_due = state.brought_bytes >= STORED_AFTER_BYTES;
        if is_due {
            state.brought_bytes = 0;
        }
        is_due
    }

    /// The next units to be brought, once the guest's requests let a filler go on; `None` if there are none any more.
    fn next_claim(&self) -> Option<Claim<'_>> {
        let mut state = self.state();
        if state.requests > 0 {
            state = self.changed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        loop {
            if state.missing == 0 || state.is_stopped {
                return None;
            }
            if let Some(unit) = state.find_next() {
                let units = self.claim_from(&mut state, unit, unit + self.piece_units());
                return Some(Claim { disk: self, span: self.span_of(units), is_arrived: false });
            }
            // What is left is being brought.
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Claims units from `first` on, which is missing and nobody's, up to `end` or one that is not.
    fn claim_from(&self, state: &mut State, first: u64, end: u64) -> std::ops::Range<u64> {
        let end = end.min(state.arrived.count());
        let mut to = first;
        while to < end && !state.arrived.has(to) && (to == first || !state.busy.contains(&to)) {
            state.busy.insert(to);
            to += 1;
        }
        state.next = if to >= state.arrived.count() { 0 } else { to };
        first..to
    }

    fn piece_units(&self) -> u64 {
        (PIECE_BYTES / self.unit_bytes).clamp(1, PIECE_UNITS)
    }

    fn span_of(&self, units: std::ops::Range<u64>) -> VirtualSpan {
        let at = |unit: u64| VirtualOffset::new((unit * self.unit_bytes).min(self.target.len_bytes()));
        Span::between(at(units.start), at(units.end))
    }

    /// What can be done at `span`'s start in one go, and how much of it that is.
    fn part(&self, span: VirtualSpan) -> Part<'_> {
        let unit = span.start().get() / self.unit_bytes;
        let end = span.end().get().div_ceil(self.unit_bytes).min(unit + self.piece_units());
        let mut state = self.state();
        while !state.has(unit) && state.busy.contains(&unit) && !broken!(FillOverGuestWrite) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.has(unit) {
            let to = (unit..end).find(|unit| !state.has(*unit)).unwrap_or(end);
            let there = self.span_of(unit..to).intersect(&span).unwrap_or(span);
            // Past the last unit a target may go on.
            return Part::There(if to >= state.arrived.count() { span } else { there });
        }
        let units = self.claim_from(&mut state, unit, end);
        let whole = self.span_of(units);
        let part = whole.intersect(&span).expect("it begins in the first unit");
        Part::Missing { claim: Claim { disk: self, span: whole, is_arrived: false }, part }
    }

    /// Carries out a change of `span`, part by part. `change` does it where units have arrived; `merge` puts it into the contents of units
    /// that have not.
    fn change(
        &self,
        span: VirtualSpan,
        change: impl Fn(VirtualSpan) -> Result<()>,
        merge: impl Fn(VirtualSpan, &mut [u8]),
    ) -> Result<()> {
        let _request = Request::begin(self);
        let mut rest = span;
        while !rest.is_empty() {
            let done = match self.part(rest) {
                Part::There(part) => {
                    change(part)?;
                    part
                }
                Part::Missing { claim, part } if claim.span == part => {
                    change(part)?;
                    claim.arrived();
                    part
                }
                Part::Missing { claim, part } => {
                    let whole = claim.span;
                    let mut contents = vec![0; length(whole.len_bytes())];
                    self.read_source(whole.start(), &mut contents)?;
                    let from = length(part.start().get() - whole.start().get());
                    merge(part, &mut contents[from..from + length(part.len_bytes())]);
                    self.target.write_at(whole.start(), &contents)?;
                    claim.arrived();
                    part
                }
            };
            rest = Span::between(done.end(), rest.end());
        }
        Ok(())
    }

    /// The source may be shorter: it ends within the last sector.
    fn read_source(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        let there = length(self.source.len_bytes().saturating_sub(at.get()).min(buf.len() as u64));
        let (inside, behind) = buf.split_at_mut(there);
        behind.fill(0);
        if inside.is_empty() { Ok(()) } else { self.source.read_at(at, inside) }
    }

    /// The parts of `span` one after the other: whether they have arrived.
    fn parts(&self, span: VirtualSpan) -> Vec<(VirtualSpan, bool)> {
        let state = self.state();
        let mut parts: Vec<(VirtualSpan, bool)> = Vec::new();
        for part in span.split(self.unit_bytes) {
            let has = state.has(part.start().get() / self.unit_bytes);
            match parts.last_mut() {
                Some((last, had)) if *had == has => *last = Span::between(last.start(), part.end()),
                _ => parts.push((part, has)),
            }
        }
        parts
    }

    /// Stores which units have arrived, after what is in them.
    fn store(&self) -> Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if broken!(MarkFilledTooSoon) {
            let early = self.state().arrived.clone();
            store_units(&*record.file, &early, &record.stored)?;
        }
        // What arrives from here on need not be on stable storage when the target was flushed.
        let (arrived, unstored) = {
            let state = self.state();
            (state.arrived.clone(), state.unstored)
        };
        self.target.flush()?;
        let late = broken!(MarkFilledTooSoon).then(|| self.state().arrived.clone());
        let arrived = late.unwrap_or(arrived);
        store_units(&*record.file, &arrived, &record.stored)?;
        record.stored = arrived;
        let mut state = self.state();
        state.unstored = state.unstored.saturating_sub(unstored);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has(&self, unit: u64) -> bool {
        unit >= self.arrived.count() || self.arrived.has(unit)
    }

    /// A unit that is missing and that nobody brings.
    fn find_next(&self) -> Option<u64> {
        let from = |start: u64| {
            let mut unit = self.arrived.first_missing(start)?;
            while self.busy.contains(&unit) {
                unit = self.arrived.first_missing(unit + 1)?;
            }
            Some(unit)
        };
        from(self.next).or_else(|| from(0))
    }
}

/// What a request meets at its start.
enum Part<'a> {
    /// It has arrived.
    There(VirtualSpan),
    /// It is this request's to bring.
    Missing { claim: Claim<'a>, part: VirtualSpan },
}

/// Units that one alone brings. They are let go of when this goes.
struct Claim<'a> {
    disk: &'a FillingDisk,
    span: VirtualSpan,
    is_arrived: bool,
}

impl Claim<'_> {
    /// All of it is in the target.
    fn arrived(mut self) {
        self.is_arrived = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let unit_bytes = self.disk.unit_bytes;
        let units = self.span.start().get() / unit_bytes..self.span.end().get().div_ceil(unit_bytes);
        let mut state = self.disk.state();
        for unit in units {
            state.busy.remove(&unit);
            if self.is_arrived && !state.arrived.has(unit) {
                state.arrived.add(unit);
                state.missing -= 1;
                state.unstored += 1;
            }
        }
        drop(state);
        self.disk.changed.notify_all();
    }
}

/// A request of the guest's at work.
struct Request<'a>(&'a FillingDisk);

impl<'a> Request<'a> {
    fn begin(disk: &'a FillingDisk) -> Self {
        disk.state().requests += 1;
        Self(disk)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.requests -= 1;
        let is_last = state.requests == 0;
        drop(state);
        if is_last {
            self.0.changed.notify_all();
        }
    }
}

/// A length bounded by a request or a piece.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("bounded by a request")
}

impl ReadAt<Virtual> for FillingDisk {
    fn len_bytes(&self) -> u64 {
        self.target.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        block::check_bounds(at, buf.len(), self.len_bytes())?;
        let _request = Request::begin(self);
        let mut rest = buf;
        for (part, has_arrived) in self.parts(Span::new(at, rest.len() as u64)) {
            let (piece, after) = rest.split_at_mut(length(part.len_bytes()));
            match has_arrived {
                true => self.target.read_at(part.start(), piece)?,
                false => self.read_source(part.start(), piece)?,
            }
            rest = after;
        }
        Ok(())
    }
}

impl EditDisk for FillingDisk {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        block::check_bounds(at, buf.len(), self.len_bytes())?;
        let bytes = |part: VirtualSpan| {
            let from = length(part.start().get() - at.get());
            &buf[from..from + length(part.len_bytes())]
        };
        self.change(
            Span::new(at, buf.len() as u64),
            |part| self.target.write_at(part.start(), bytes(part)),
            |part, contents| contents.copy_from_slice(bytes(part)),
        )
    }

    fn flush(&self) -> Result<()> {
        if self.state().unstored == 0 { self.target.flush() } else { self.store() }
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }
}

impl Disk for FillingDisk {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for (part, has_arrived) in self.parts(span) {
            let inside = part.intersect(&Span::from_zero(self.source.len_bytes()));
            let found = match (has_arrived, inside) {
                (true, _) => self.target.map(part)?,
                (false, Some(inside)) => self.source.map(inside)?,
                (false, None) => Vec::new(),
            };
            let end = found.last().map_or(part.start(), |run| run.span.end());
            found.into_iter().for_each(|run| push_run(&mut runs, run));
            push_run(&mut runs, Run::new(Span::between(end, part.end()), RunState::Hole));
        }
        Ok(runs)
    }

    fn sector_bytes(&self) -> u32 {
        self.target.sector_bytes()
    }
}

impl LiveDisk for FillingDisk {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.change(span, |part| self.target.zero(part, may_free), |_, contents| contents.fill(0))
    }

    /// What has not arrived need not any more: it is zeros.
    fn discard(&self, span: VirtualSpan) -> Result<()> {
        let _request = Request::begin(self);
        for (part, has_arrived) in self.parts(span) {
            if has_arrived {
                self.target.discard(part)?;
                continue;
            }
            let (from, to) = (part.start().get().next_multiple_of(self.unit_bytes), part.end().get());
            let to = if to == self.len_bytes() { to } else { to / self.unit_bytes * self.unit_bytes };
            if from < to {
                self.zero(Span::between(VirtualOffset::new(from), VirtualOffset::new(to)), true)?;
            }
        }
        Ok(())
    }

    fn is_changed(&self) -> bool {
        self.target.is_changed()
    }

    fn has_failed(&self) -> bool {
        self.target.has_failed()
    }

    fn close(&self) -> Result<()> {
        self.stop();
        let stored = self.flush();
        let closed = self.target.close();
        stored.and(closed)
    }
}
