//! A disk that is served: what may be asked of it, and how that ends. Front ends, NBD the first of them, stand on this.
//!
//! Invariant: after a flush that failed nothing is answered but the failure: what was written before may be lost, and
//! nobody may go on as if it were not. A flush for which the host had no room is no such one where the disk says so
//! ([`LiveDisk::has_failed`]): it is answered as that, and may be asked for again.
//!
//! Also the way to use a disk without a network: the methods of [`Export`] are the commands.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use block::{Disk, EditDisk, Error, ErrorKind, LiveDisk, ReadAt, Result as BlockResult, Run, RunState, Take};
use extent::{Virtual, VirtualOffset, VirtualSpan};

use crate::moment::{Keep, Moment, Moments};
use crate::monitor::{Completion, Direction, Io, Monitor};
use crate::trace::TraceWriter;

/// Why a request failed.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What kind of failure.
    pub kind: FaultKind,
    /// What happened, for people.
    pub message: String,
}

/// Kinds of failure that clients tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The storage failed.
    Io,
    /// No space is left.
    NoSpace,
    /// The export is read-only.
    ReadOnly,
    /// The request makes no sense.
    Invalid,
    /// It would not be fast.
    NotFast,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    fn of(error: &Error) -> Self {
        let kind = match error.kind() {
            _ if error.is_full() => FaultKind::NoSpace,
            ErrorKind::Invalid => FaultKind::Invalid,
            _ => FaultKind::Io,
        };
        Self::new(kind, error.to_string())
    }
}

/// A stretch of a disk and whether it is allocated and reads as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Where.
    pub span: VirtualSpan,
    /// Nothing is allocated.
    pub is_hole: bool,
    /// It reads as zeros.
    pub is_zero: bool,
}

/// The most stretches told at once.
const ALLOCATION_COUNT_MAX: usize = 4096;
/// What is mapped at first; more while little was found.
const MAP_BYTES: u64 = 64 << 20;
/// What is mapped at once at the most, and how often for one answer: a question may be about a whole disk.
const MAP_BYTES_MAX: u64 = 2 << 30;
const MAP_COUNT_MAX: usize = 256;

/// Longer requests are worth another thread, even if nothing waits for the storage. These are seldom stopped within, so one that is
/// slow was waiting for the backend, and the next would wait behind it: it counts for four, which is enough to make the backend slow.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Whether the backend is as quick as memory: how many of the last requests took longer than copying takes.
///
/// Counted rather than averaged: on a busy machine a thread is stopped for milliseconds now and then, which says nothing of the backend
/// and would spoil a mean for a hundred requests.
#[derive(Default)]
pub(crate) struct Speed(AtomicU32);

impl Speed {
    /// Below this, handing a request to another thread takes longer than the request.
    const FAST_NS: u64 = 40_000;
    /// What is copied in a nanosecond at least.
    const BYTES_PER_NS: u64 = 1;
    /// All requests are slow. A request counts for a sixteenth.
    const ONE: u32 = 1 << 16;

    pub(crate) fn is_fast(&self) -> bool {
        self.0.load(Relaxed) < Self::ONE / 8
    }

    /// A request for `len_bytes` took so long.
    pub(crate) fn add(&self, took: Duration, len_bytes: u64) {
        let fast_ns = Self::FAST_NS + len_bytes / Self::BYTES_PER_NS;
        let is_slow = took.as_nanos() > u128::from(fast_ns);
        let share = self.0.load(Relaxed);
        let weight = if len_bytes <= SMALL_BYTES_MAX { 4 } else { 1 };
        let added = if is_slow { Self::ONE / 16 * weight } else { 0 };
        let next = (share - share / 16 + added).min(Self::ONE);
        // Races lose a sample, which does not matter; most of the time nothing changes, and nothing is written.
        if next != share {
            self.0.store(next, Relaxed);
        }
    }
}

/// Told why an export failed.
type Watcher = Box<dyn Fn(&str) + Send + Sync>;

/// A disk that is served.
pub struct Export {
    name: String,
    description: String,
    disk: Moments,
    is_read_only: bool,
    writes_zeros: bool,
    monitor: Option<Arc<Monitor>>,
    trace: Option<Arc<TraceWriter>>,
    began: Instant,
    failure: OnceLock<String>,
    watcher: OnceLock<Watcher>,
    pub(crate) read_speed: Speed,
    pub(crate) write_speed: Speed,
}

impl Export {
    /// `disk` under `name`.
    pub fn new(name: impl Into<String>, disk: Arc<dyn LiveDisk>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            disk: Moments::new(disk),
            is_read_only: false,
            writes_zeros: false,
            monitor: None,
            trace: None,
            began: Instant::now(),
            failure: OnceLock::new(),
            watcher: OnceLock::new(),
            read_speed: Speed::default(),
            write_speed: Speed::default(),
        }
    }

    /// With a description for lists.
    #[must_use]
    pub fn described(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Never to be written.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Of a disk that writes its zeros: they are never fast.
    #[must_use]
    pub fn writing_zeros(mut self) -> Self {
        self.writes_zeros = true;
        self
    }

    /// Measured by `monitor`.
    #[must_use]
    pub fn monitored(mut self, monitor: Arc<Monitor>) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// With all requests recorded by `trace`.
    #[must_use]
    pub fn traced(mut self, trace: Arc<TraceWriter>) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a list says of it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether it cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    /// The disk's sector size in bytes.
    pub fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }

    /// What measures it.
    pub fn monitor(&self) -> Option<&Arc<Monitor>> {
        self.monitor.as_ref()
    }

    /// What records it.
    pub fn trace(&self) -> Option<&Arc<TraceWriter>> {
        self.trace.as_ref()
    }

    /// Why it failed for good, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Has `watcher` told should it fail for good. The first watcher stays.
    pub(crate) fn watch(&self, watcher: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.watcher.set(Box::new(watcher));
    }

    /// The disk as it is now, to be read under `name` while it changes, until [`Self::end_moment`].
    pub(crate) fn begin_moment(&self, name: &str, keep: Box<dyn Keep>) -> BlockResult<(Self, Arc<Moment>)> {
        let moment = self.disk.begin(keep)?;
        let description = format!("{} as it was at one moment", self.name);
        Ok((Self::new(name, moment.clone()).described(description).read_only(), moment))
    }

    /// Keeps nothing more for the moment.
    pub(crate) fn end_moment(&self, moment: &Arc<Moment>) {
        self.disk.end(moment);
    }

    /// Nanoseconds since it is served.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn fail(&self, why: String) -> Fault {
        let is_first = self.failure.set(why).is_ok();
        let failure = self.failure().unwrap_or_default();
        if is_first {
            tracing::error!(export = ?self.name, failure, "export failed");
        }
        if is_first && let Some(watcher) = self.watcher.get() {
            watcher(failure);
        }
        Fault::new(FaultKind::Io, failure)
    }

    /// Runs what touches the disk. A panic of a backend fails the export: who knows what state it left.
    fn guarded<T>(&self, run: impl FnOnce() -> BlockResult<T>) -> Result<T, Fault> {
        if let Some(failure) = self.failure() {
            return Err(Fault::new(FaultKind::Io, failure));
        }
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result.map_err(|error| Fault::of(&error)),
            Err(_) => Err(self.fail("the export failed: its backend panicked".into())),
        }
    }

    fn writable(&self) -> Result<(), Fault> {
        if self.is_read_only {
            return Err(Fault::new(FaultKind::ReadOnly, "the export is read-only"));
        }
        Ok(())
    }

    pub(crate) fn do_read(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<(), Fault> {
        self.guarded(|| self.disk.read_at(at, buf))
    }

    /// Has `take` read `span` from where it lies, if that can be done.
    pub(crate) fn do_lend(&self, span: VirtualSpan, take: Take<'_>) -> Result<bool, Fault> {
        self.guarded(|| self.disk.lend(span, take))
    }

    pub(crate) fn do_write(&self, at: VirtualOffset, buf: &[u8], fua: bool) -> Result<(), Fault> {
        self.writable()?;
        self.guarded(|| self.disk.write_at(at, buf))?;
        self.flush_if(fua)
    }

    fn flush_if(&self, fua: bool) -> Result<(), Fault> {
        if fua { self.do_flush() } else { Ok(()) }
    }

    pub(crate) fn do_flush(&self) -> Result<(), Fault> {
        if self.is_read_only {
            return self.guarded(|| Ok(()));
        }
        let flushed = self.guarded(|| self.disk.flush());
        flushed.map_err(|fault| match self.failure() {
            Some(failure) => Fault::new(FaultKind::Io, failure),
            // Nothing is lost: what was written goes with the next flush.
            None if fault.kind == FaultKind::NoSpace && !self.disk.has_failed() => {
                tracing::warn!(export = ?self.name, why = fault.message, "flush failed for want of room");
                fault
            }
            None => self.fail(format!("the export failed: what was written may be lost: {}", fault.message)),
        })
    }

    /// Reads `buf` from `at`.
    pub fn read(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<(), Fault> {
        let len = buf.len();
        self.measured(Direction::Read, at, len, || self.do_read(at, buf))
    }

    /// Writes `buf` at `at`; with `fua`, it is stable on return.
    pub fn write(&self, at: VirtualOffset, buf: &[u8], fua: bool) -> Result<(), Fault> {
        self.measured(Direction::Write, at, buf.len(), || self.do_write(at, buf, fua))
    }

    fn measured(
        &self,
        direction: Direction,
        at: VirtualOffset,
        len: usize,
        run: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(monitor) = &self.monitor else { return run() };
        let began_ns = monitor.now_ns();
        monitor.arrived([Io { direction, offset: at.get(), len_bytes: len as u64 }], began_ns);
        let result = run();
        let latency_ns = monitor.now_ns().saturating_sub(began_ns);
        monitor.completed([Completion { direction, latency_ns, is_ok: result.is_ok() }]);
        result
    }

    /// Makes stable what was written by anyone.
    pub fn flush(&self) -> Result<(), Fault> {
        if let Some(monitor) = &self.monitor {
            monitor.flushed();
        }
        self.do_flush()
    }

    /// Forgets the contents of `span`.
    pub fn trim(&self, span: VirtualSpan, fua: bool) -> Result<(), Fault> {
        self.writable()?;
        self.count_zeroed();
        if !span.is_empty() {
            self.guarded(|| self.disk.discard(span))?;
        }
        self.flush_if(fua)
    }

    /// Makes `span` read as zeros. What `must_be_fast` and may not free storage is refused: keeping storage may mean
    /// writing all of it.
    pub fn write_zeroes(
        &self,
        span: VirtualSpan,
        fua: bool,
        may_free: bool,
        must_be_fast: bool,
    ) -> Result<(), Fault> {
        self.writable()?;
        if must_be_fast && (!may_free || self.writes_zeros) {
            return Err(Fault::new(FaultKind::NotFast, "zeros that keep their storage may be slow"));
        }
        self.count_zeroed();
        if !span.is_empty() {
            self.guarded(|| self.disk.zero(span, may_free))?;
        }
        self.flush_if(fua)
    }

    fn count_zeroed(&self) {
        if let Some(monitor) = &self.monitor {
            monitor.zeroed();
        }
    }

    /// What is allocated from the start of `span`: consecutive stretches, at least one, that need not reach its end.
    pub fn allocation(&self, span: VirtualSpan) -> Result<Vec<Allocation>, Fault> {
        let mut found: Vec<Allocation> = Vec::new();
        let mut at = span.start();
        let mut step_bytes = MAP_BYTES;
        for _ in 0..MAP_COUNT_MAX {
            if at >= span.end() || found.len() >= ALLOCATION_COUNT_MAX {
                break;
            }
            let end = VirtualOffset::new(at.get().saturating_add(step_bytes)).min(span.end());
            let window = VirtualSpan::between(at, end);
            for run in self.guarded(|| self.disk.map(window))? {
                push_allocation(&mut found, &run, &window);
            }
            at = end;
            step_bytes = step_bytes.saturating_mul(2).min(MAP_BYTES_MAX);
        }
        found.truncate(ALLOCATION_COUNT_MAX);
        Ok(found)
    }
}

fn push_allocation(found: &mut Vec<Allocation>, run: &Run, window: &VirtualSpan) {
    let Some(run) = run.clipped(window) else { return };
    let (is_hole, is_zero) = match run.state {
        RunState::Hole => (true, true),
        RunState::Zero => (false, true),
        RunState::Data { .. } | RunState::Compressed { .. } => (false, false),
    };
    match found.last_mut() {
        Some(last)
            if (last.is_hole, last.is_zero) == (is_hole, is_zero) && last.span.end() == run.span.start() =>
        {
            last.span = extent::Span::<Virtual>::between(last.span.start(), run.span.end());
        }
        _ => found.push(Allocation { span: run.span, is_hole, is_zero }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_small_slow_request_is_enough_and_a_large_one_is_not() {
        let (slow, quick) = (Duration::from_millis(9), Duration::from_micros(1));
        let speed = Speed::default();
        for _ in 0..2 {
            speed.add(slow, 1 << 20);
            assert!(speed.is_fast());
        }
        speed.add(slow, 1 << 20);
        assert!(!speed.is_fast(), "three of the last");
        let speed = Speed::default();
        speed.add(slow, SMALL_BYTES_MAX);
        assert!(!speed.is_fast());
        for _ in 0..16 {
            speed.add(quick, 4096);
        }
        assert!(speed.is_fast(), "it is forgotten");
        for _ in 0..1000 {
            speed.add(slow, 4096);
        }
        for _ in 0..40 {
            speed.add(quick, 4096);
        }
        assert!(speed.is_fast(), "so are many");
    }
}
