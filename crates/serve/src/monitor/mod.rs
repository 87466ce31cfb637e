//! Measures what is asked of a disk: the histograms of vscsiStats and what else tells how lean it runs.
//!
//! [`Monitor`] is told of I/Os; [`Monitored`] is a disk that tells one, [`Counted`] a file beneath a disk. The server tells its own: it knows how
//! many requests wait on the wire, which a disk does not.
//!
//! Overhead: two readings of the clock, two short locks and some additions for an I/O; the lock is taken once for all
//! requests that came together.

mod bins;
mod counted;
mod recorder;
mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use block::{Disk, EditDisk, LiveDisk, ReadAt, Result, Run};
use extent::{Virtual, VirtualOffset, VirtualSpan};

#[cfg(test)]
pub(crate) use bins::Tally;
pub use bins::{BLOCK_BYTES, Histogram, IO_LENGTH, MICROSECONDS, OUTSTANDING, SEEK_DISTANCE};
pub use counted::Counted;
pub use recorder::{Completion, Direction, Io, Recorder};
pub use snapshot::{Counts, Latencies, SCHEMA, Snapshot, Split};

/// Counters of what a backend does, which it adds to from any thread.
#[derive(Default)]
struct Physical {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    fragments_prevented: AtomicU64,
}

/// What is measured of one disk.
pub struct Monitor {
    began: Instant,
    recorder: Mutex<Recorder>,
    physical: Physical,
}

impl Default for Monitor {
    fn default() -> Self {
        Self { began: Instant::now(), recorder: Mutex::default(), physical: Physical::default() }
    }
}

impl Monitor {
    /// One that has measured nothing.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the monitor began.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// I/Os arrived together at `at_ns`.
    pub fn arrived(&self, ios: impl IntoIterator<Item = Io>, at_ns: u64) {
        let mut ios = ios.into_iter();
        let Some(first) = ios.next() else { return };
        let mut recorder = self.recorder();
        recorder.arrive(&first, at_ns);
        ios.for_each(|io| recorder.arrive(&io, at_ns));
    }

    /// I/Os ended.
    pub fn completed(&self, completions: impl IntoIterator<Item = Completion>) {
        let mut completions = completions.into_iter();
        let Some(first) = completions.next() else { return };
        let mut recorder = self.recorder();
        recorder.complete(&first);
        completions.for_each(|completion| recorder.complete(&completion));
    }

    /// An I/O that arrived will not end.
    pub fn abandoned(&self, direction: Direction) {
        self.recorder().abandon(direction);
    }

    /// A flush was asked.
    pub fn flushed(&self) {
        self.recorder().flush();
    }

    /// Zeroing or discarding was asked.
    pub fn zeroed(&self) {
        self.recorder().zero();
    }

    /// The backend asked the host for `len_bytes` at once. For backends to call.
    pub fn transferred(&self, direction: Direction, len_bytes: u64) {
        let (count, bytes) = match direction {
            Direction::Read => (&self.physical.reads, &self.physical.read_bytes),
            Direction::Write => (&self.physical.writes, &self.physical.written_bytes),
        };
        count.fetch_add(1, Relaxed);
        bytes.fetch_add(len_bytes, Relaxed);
    }

    /// An allocation continued a run where it would have begun a new one. For backends to call.
    pub fn prevented_fragment(&self) {
        self.physical.fragments_prevented.fetch_add(1, Relaxed);
    }

    /// All that was measured so far.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.recorder().snapshot();
        snapshot.elapsed_ns = self.now_ns();
        let physical = &self.physical;
        snapshot.physical = Counts {
            reads: physical.reads.load(Relaxed),
            read_bytes: physical.read_bytes.load(Relaxed),
            writes: physical.writes.load(Relaxed),
            written_bytes: physical.written_bytes.load(Relaxed),
        };
        snapshot.fragments_prevented = physical.fragments_prevented.load(Relaxed);
        snapshot
    }

    /// Measures one I/O from here to where it ends.
    fn measure<T>(
        &self,
        direction: Direction,
        at: VirtualOffset,
        len: usize,
        io: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let began_ns = self.now_ns();
        self.arrived([Io { direction, offset: at.get(), len_bytes: len as u64 }], began_ns);
        let result = io();
        let latency_ns = self.now_ns().saturating_sub(began_ns);
        self.completed([Completion { direction, latency_ns, is_ok: result.is_ok() }]);
        result
    }
}

/// A disk whose reads and writes are measured.
pub struct Monitored {
    disk: Arc<dyn LiveDisk>,
    monitor: Arc<Monitor>,
}

impl Monitored {
    /// `disk`, measured by `monitor`.
    pub fn new(disk: Arc<dyn LiveDisk>, monitor: Arc<Monitor>) -> Self {
        Self { disk, monitor }
    }
}

impl ReadAt<Virtual> for Monitored {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        self.monitor.measure(Direction::Read, at, len, || self.disk.read_at(at, buf))
    }
}

impl EditDisk for Monitored {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        self.monitor.measure(Direction::Write, at, buf.len(), || self.disk.write_at(at, buf))
    }

    fn flush(&self) -> Result<()> {
        self.monitor.flushed();
        self.disk.flush()
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.disk.read_stored(at, buf)
    }
}

impl Disk for Monitored {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        self.disk.map(span)
    }

    fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }
}

impl LiveDisk for Monitored {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.monitor.zeroed();
        self.disk.zero(span, may_free)
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        self.monitor.zeroed();
        self.disk.discard(span)
    }
}
