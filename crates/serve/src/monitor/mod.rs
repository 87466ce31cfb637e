//! Measures what is asked of a disk: the histograms of vscsiStats and what else tells how lean it runs.
//!
//! [`Monitor`] is told of I/Os; [`Monitored`] is a disk that tells one, [`block::Counted`] a file beneath a disk. The server tells its own: it knows how
//! many requests wait on the wire, which a disk does not.
//!
//! Overhead: two readings of the clock, two short locks and two notes for an I/O; the lock is taken once for all
//! requests that came together. Notes are counted many at a time, in the order in which they were made: then what counting needs is in
//! the processor's nearest cache, from which moving the data of each I/O would push it. Whoever asks for what was measured has all
//! notes counted before.

mod bins;
mod recorder;
mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use block::{Count, Disk, EditDisk, LiveDisk, ReadAt, Result, Run};
use extent::{HostSpan, Virtual, VirtualOffset, VirtualSpan};

pub use bins::{BLOCK_BYTES, Histogram, IO_LENGTH, MICROSECONDS, OUTSTANDING, SEEK_DISTANCE};
#[cfg(test)]
pub(crate) use bins::{IO_LENGTH_BINS, MICROSECONDS_BINS, Tally};
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

/// The most notes that wait to be counted.
const NOTE_COUNT_MAX: usize = 256;

/// What happened, to be counted.
enum Note {
    Arrived(Io, u64),
    Completed(Completion),
}

/// What was counted, and what is to be counted behind it.
struct Counting {
    recorder: Recorder,
    notes: Vec<Note>,
}

impl Counting {
    fn note(&mut self, note: Note) {
        if self.notes.len() == NOTE_COUNT_MAX {
            self.catch_up();
        }
        self.notes.push(note);
    }

    fn catch_up(&mut self) {
        for note in self.notes.drain(..) {
            match note {
                Note::Arrived(io, at_ns) => self.recorder.arrive(&io, at_ns),
                Note::Completed(completion) => self.recorder.complete(&completion),
            }
        }
    }
}

/// What is measured of one disk.
pub struct Monitor {
    began: Instant,
    counting: Mutex<Counting>,
    physical: Physical,
}

impl Default for Monitor {
    fn default() -> Self {
        let counting = Counting { recorder: Recorder::default(), notes: Vec::with_capacity(NOTE_COUNT_MAX) };
        Self { began: Instant::now(), counting: Mutex::new(counting), physical: Physical::default() }
    }
}

impl Monitor {
    /// One that has measured nothing.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the monitor began.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// I/Os arrived together at `at_ns`.
    pub fn arrived(&self, ios: impl IntoIterator<Item = Io>, at_ns: u64) {
        let mut ios = ios.into_iter();
        let Some(first) = ios.next() else { return };
        let mut counting = self.counting();
        counting.note(Note::Arrived(first, at_ns));
        ios.for_each(|io| counting.note(Note::Arrived(io, at_ns)));
    }

    /// I/Os ended.
    pub fn completed(&self, completions: impl IntoIterator<Item = Completion>) {
        let mut completions = completions.into_iter();
        let Some(first) = completions.next() else { return };
        let mut counting = self.counting();
        counting.note(Note::Completed(first));
        completions.for_each(|completion| counting.note(Note::Completed(completion)));
    }

    /// An I/O that arrived will not end.
    pub fn abandoned(&self, direction: Direction) {
        let mut counting = self.counting();
        counting.catch_up();
        counting.recorder.abandon(direction);
    }

    /// A flush was asked.
    pub fn flushed(&self) {
        self.counting().recorder.flush();
    }

    /// Zeroing or discarding was asked.
    pub fn zeroed(&self) {
        self.counting().recorder.zero();
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
        let mut counting = self.counting();
        counting.catch_up();
        let mut snapshot = counting.recorder.snapshot();
        drop(counting);
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

/// Of a file beneath a disk in use: its reads and writes are the disk's physical I/Os.
impl Count for Monitor {
    fn read(&self, len_bytes: u64) {
        self.transferred(Direction::Read, len_bytes);
    }

    fn write(&self, span: HostSpan) {
        self.transferred(Direction::Write, span.len_bytes());
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

    fn has_failed(&self) -> bool {
        self.disk.has_failed()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn direction(is_read: bool) -> Direction {
        if is_read { Direction::Read } else { Direction::Write }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// More steps than notes wait, so that they are counted at any place among the others.
        #[test]
        fn what_is_counted_later_is_counted_alike(
            steps in proptest::collection::vec((0u8..40, any::<bool>(), 0u64..1 << 40), 1..4 * NOTE_COUNT_MAX),
        ) {
            let monitor = Monitor::new();
            let mut recorder = Recorder::default();
            for (at_ns, (what, is_read, number)) in (0u64..).step_by(777).zip(steps) {
                let direction = direction(is_read);
                match what {
                    0 => {
                        monitor.abandoned(direction);
                        recorder.abandon(direction);
                    }
                    1 => {
                        monitor.flushed();
                        recorder.flush();
                    }
                    2 => prop_assert_eq!(monitor.snapshot().logical, recorder.snapshot().logical),
                    3..20 => {
                        let completion = Completion { direction, latency_ns: number, is_ok: number % 7 > 0 };
                        monitor.completed([completion; 2]);
                        recorder.complete(&completion);
                        recorder.complete(&completion);
                    }
                    _ => {
                        let io = Io { direction, offset: number, len_bytes: number % 99_999 };
                        monitor.arrived([io; 3], at_ns);
                        (0..3).for_each(|_| recorder.arrive(&io, at_ns));
                    }
                }
            }
            let found = monitor.snapshot();
            prop_assert_eq!(&found, &Snapshot { elapsed_ns: found.elapsed_ns, ..recorder.snapshot() });
        }
    }
}
