//! What the workers of a copy share: the writer and all that grows in the order in which chunks are placed.
//!
//! It passes the turnstile, so one worker at a time has it, in the plan's order: what it says when a chunk has passed is the same
//! whatever the threads do, and a checkpoint stores it.

use std::time::{Duration, Instant};

use extent::VirtualOffset;
use image::{AnyWriter, TargetWrite};
use verify::DigestsBuilder;

use super::CopyJob;
use super::room::Room;
use crate::checkpoint::Checkpoint;
use crate::put::write_span;
use crate::totals::CopyTotals;

/// The least time between two checkpoints, and from the start to the first.
pub(super) const CHECKPOINT_PAUSE_MIN: Duration = Duration::from_secs(1);

/// What passes the turnstile.
pub(super) struct Ordered<'a> {
    pub(super) writer: AnyWriter,
    pub(super) totals: CopyTotals,
    pub(super) digests: Option<DigestsBuilder>,
    /// All of the virtual disk before this was placed.
    pub(super) next: VirtualOffset,
    /// Where what was placed ends in the target.
    end_bytes: u64,
    pub(super) began: Instant,
    last_checkpoint: Instant,
    /// Whether the last checkpoint is of this very state, or of the start.
    pub(super) is_kept: bool,
    /// What the host found for what comes next.
    pub(super) room: Room<'a>,
}

impl<'a> Ordered<'a> {
    /// The state of a copy whose target's start, `puts`, is written.
    pub(super) fn start(job: &CopyJob<'a>, totals: CopyTotals, puts: &[TargetWrite]) -> Self {
        let end_bytes = end_of(puts);
        Self::new(job, job.writer.clone(), totals, job.digests.then(DigestsBuilder::default), end_bytes)
    }

    fn new(
        job: &CopyJob<'a>,
        writer: AnyWriter,
        totals: CopyTotals,
        digests: Option<DigestsBuilder>,
        end_bytes: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            writer,
            totals,
            digests,
            next: VirtualOffset::ZERO,
            end_bytes,
            began: now,
            last_checkpoint: now,
            is_kept: true,
            room: Room::new(job, end_bytes),
        }
    }

    /// The state that `checkpoint` stored.
    pub(super) fn resume(job: &CopyJob<'a>, checkpoint: Checkpoint) -> Self {
        let Checkpoint { next_bytes, end_bytes, writer, totals, digests } = checkpoint;
        let next = VirtualOffset::new(next_bytes);
        Self { next, ..Self::new(job, writer, totals, digests, end_bytes) }
    }

    /// What a later copy goes on with, if everything placed is stored.
    pub(super) fn checkpoint(&self) -> Checkpoint {
        let Self { writer, totals, digests, next, end_bytes, .. } = self;
        Checkpoint {
            next_bytes: next.get(),
            end_bytes: *end_bytes,
            writer: writer.clone(),
            totals: *totals,
            digests: digests.clone(),
        }
    }

    /// Notes that the state was kept, as it is.
    pub(super) fn kept(&mut self) {
        self.last_checkpoint = Instant::now();
        self.is_kept = true;
    }

    pub(super) fn note(&mut self, puts: &[TargetWrite]) {
        self.end_bytes = self.end_bytes.max(end_of(puts));
    }

    /// Notes that what was cloned ends here.
    pub(super) fn note_clones(&mut self, end_bytes: u64) {
        self.end_bytes = self.end_bytes.max(end_bytes);
    }

    pub(super) fn is_checkpoint_due(&self, interval_max: Option<Duration>) -> bool {
        let Some(interval_max) = interval_max else { return false };
        let grown = CHECKPOINT_PAUSE_MIN.max(self.last_checkpoint.duration_since(self.began));
        self.last_checkpoint.elapsed() >= interval_max.min(grown)
    }
}

/// Where all of `puts` end.
fn end_of(puts: &[TargetWrite]) -> u64 {
    puts.iter().map(|put| write_span(put).end().get()).max().unwrap_or(0)
}
