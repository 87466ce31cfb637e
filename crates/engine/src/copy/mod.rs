//! The copy pipeline: workers read, look for zeros and encode in parallel, place in order, store in parallel.
//!
//! A target that is not thin gets a place for everything, and all of its storage, before anything is copied into it. Then what is
//! zeros is left as the host keeps it (lazy), or written (eager).

mod dispatch;
mod progress;
mod room;
mod share;
mod worker;

use std::sync::Mutex;
use std::time::Duration;

use block::{Error, ReadAt, Result, TargetFile};
use extent::Virtual;
use image::AnyWriter;
use plan::CopyPlan;
use verify::{Digests, DigestsBuilder, WINDOW_BYTES};

use crate::checkpoint::Checkpoint;
use crate::monitor::JobMonitor;
use crate::order::Turnstile;
use crate::provision::{Provision, check_provision, reserve_all};
use crate::put::write_all;
use crate::totals::CopyTotals;
use dispatch::dispatcher;
use progress::{CHECKPOINT_PAUSE_MIN, Ordered};
pub use share::CloneSource;
use share::Cloner;
use worker::Worker;

/// A worker's share at a time: one window of the digests, and the largest granularity a writer may have.
const CHUNK_BYTES: u64 = WINDOW_BYTES;

/// The end of a copy.
#[derive(Debug)]
pub struct CopyOutcome {
    /// What was done.
    pub totals: CopyTotals,
    /// What the target must read as, if asked for.
    pub digests: Option<Digests>,
}

/// A copy to be run.
pub struct CopyJob<'a> {
    /// The disk that was planned for.
    pub source: &'a dyn ReadAt<Virtual>,
    /// What to read.
    pub plan: &'a CopyPlan,
    /// What is cloned from, if the plan says that something is.
    pub clones: Option<CloneSource<'a>>,
    /// The new image's layout.
    pub writer: AnyWriter,
    /// Where it goes.
    pub target: &'a dyn TargetFile,
    /// When the target's storage is found. What is not thin goes to a new file, and is not compressed.
    pub provision: Provision,
    /// Number of workers.
    pub thread_count: usize,
    /// Whether to compute digests of what was read.
    pub digests: bool,
    /// The most time between checkpoints; `None` if nobody goes on from one, so that none is stored. The first ones come earlier: as long
    /// after the last as that came after the start, so that no more than half of the time is ever lost.
    pub checkpoint_interval: Option<Duration>,
    /// Where to go on, if not from the start.
    pub resume: Option<Checkpoint>,
}

impl<'a> CopyJob<'a> {
    /// Runs it to its end: when it returns without an error, the target is complete and on stable storage.
    pub fn run(mut self, monitor: &dyn JobMonitor) -> Result<CopyOutcome> {
        let resume = self.resume.take();
        check_provision(&self.writer, self.provision)?;
        let is_as_it_was = matches!(self.writer, AnyWriter::Raw(_)) && self.provision == Provision::Thin;
        assert!(self.clones.is_none() || is_as_it_was, "only a raw target that is thin shares storage");
        if let Some(Checkpoint { end_bytes, totals, .. }) = &resume {
            // What lies behind may be of a longer attempt, and is not written again where there are zeros.
            self.target.set_len(*end_bytes)?;
            monitor.resumed(totals.done_bytes(), totals.written_bytes);
        }
        if self.provision != Provision::Thin {
            reserve_all(self.writer.clone(), self.plan.virtual_bytes, self.target)?;
        }
        let mut ordered = match resume {
            Some(checkpoint) => Ordered::resume(&self, checkpoint),
            None => self.start(monitor)?,
        };
        let granularity = usize::try_from(ordered.writer.granularity_bytes()).expect("at most a chunk");
        assert!(granularity as u64 <= CHUNK_BYTES && granularity.is_power_of_two(), "a granule fits a chunk");
        let encoders: Vec<_> = (0..self.thread_count.max(1)).map(|_| ordered.writer.encoder()).collect();
        let is_whole = self.provision != Provision::Thin;
        let leaves_zeros = self.provision != Provision::Eager && !ordered.writer.target_is_dirty();
        let dispatcher = Mutex::new(dispatcher(self.plan, ordered.next, is_whole));
        let turnstile = Turnstile::new(ordered);
        let cloner = Cloner::new(self.clones, self.plan, self.target, granularity);
        // Asked here: a mutant is one on its own thread alone.
        let notes_clones = !mutants::broken!(ClonesNotNoted);
        let flushes = !mutants::broken!(CheckpointBeforeFlush);
        std::thread::scope(|scope| {
            for encoder in encoders {
                let worker = Worker {
                    job: &self,
                    monitor,
                    turnstile: &turnstile,
                    granularity,
                    encoder,
                    leaves_zeros,
                    cloner,
                    notes_clones,
                    flushes,
                };
                let dispatcher = &dispatcher;
                scope.spawn(move || worker.run(|| dispatcher.lock().expect("no worker panicked").next()));
            }
        });
        ordered = turnstile.finish()?;
        // Workers that were told to stop have stored all that they had begun.
        let is_cancelled = monitor.is_cancelled();
        let is_read_back = self.digests && ordered.began.elapsed() >= CHECKPOINT_PAUSE_MIN;
        if (is_cancelled || is_read_back) && !ordered.is_kept && self.checkpoint_interval.is_some() {
            self.checkpoint(&mut ordered, monitor, flushes)?;
        }
        if is_cancelled {
            return Err(Error::interrupted());
        }
        self.finish(ordered, monitor)
    }

    fn start(&mut self, monitor: &dyn JobMonitor) -> Result<Ordered<'a>> {
        let puts = self.writer.start()?;
        let mut ordered = Ordered::start(self, CopyTotals::default(), &puts);
        ordered.totals.written_bytes = write_all(self.target, &[], puts)?;
        monitor.advanced(0, ordered.totals.written_bytes);
        Ok(ordered)
    }

    /// Keeps the state, of which everything placed is stored, after a flush of it: a checkpoint must not name what a power cut
    /// could take away.
    fn checkpoint(&self, ordered: &mut Ordered<'_>, monitor: &dyn JobMonitor, flushes: bool) -> Result<()> {
        ordered.room.give_back()?;
        if flushes {
            self.target.flush()?;
        }
        monitor.checkpoint(&ordered.checkpoint())?;
        ordered.kept();
        Ok(())
    }

    /// Tables, flush, headers, flush: at no moment is there a valid header over missing contents.
    fn finish(&self, mut ordered: Ordered<'_>, monitor: &dyn JobMonitor) -> Result<CopyOutcome> {
        ordered.room.finish()?;
        let end = ordered.writer.finish()?;
        let before = ordered.totals.written_bytes;
        ordered.totals.written_bytes += write_all(self.target, &[], end.tables)?;
        self.target.set_len(end.len_bytes)?;
        self.target.flush()?;
        if !end.headers.is_empty() {
            ordered.totals.written_bytes += write_all(self.target, &[], end.headers)?;
            self.target.flush()?;
        }
        monitor.advanced(0, ordered.totals.written_bytes - before);
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        Ok(CopyOutcome { totals: ordered.totals, digests: ordered.digests.map(DigestsBuilder::finish) })
    }
}
