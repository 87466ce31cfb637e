//! What the workers of a copy share: the writer and all that grows in the order in which chunks are placed.
//!
//! It passes the turnstile, so one worker at a time has it, in the plan's order: what it says when a chunk has passed is the same
//! whatever the threads do, and a checkpoint stores it.

use std::time::{Duration, Instant};

use extent::{HostOffset, Span, VirtualOffset};
use image::{AnyWriter, TargetWrite};
use verify::DigestsBuilder;

use super::checkpoint::Checkpoint;
use super::totals::CopyTotals;
use super::{CHUNK_BYTES, CopyJob};
use crate::provision::Provision;
use crate::put::{write_end, write_len};

/// Room asked for ahead of a file that grows: direct writes into it run beside each other, and the host
/// finds it in one piece. See docs/decisions/direct-io.md.
const AHEAD_BYTES: u64 = 256 << 20;

/// The least time between two checkpoints, and from the start to the first.
pub(super) const CHECKPOINT_PAUSE_MIN: Duration = Duration::from_secs(1);

/// What passes the turnstile.
pub(super) struct Ordered {
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
    /// Room was asked for up to here.
    ahead_end: u64,
}

impl Ordered {
    pub(super) fn new(writer: AnyWriter, totals: CopyTotals, digests: Option<DigestsBuilder>) -> Self {
        let now = Instant::now();
        Self {
            writer,
            totals,
            digests,
            next: VirtualOffset::ZERO,
            end_bytes: 0,
            began: now,
            last_checkpoint: now,
            is_kept: true,
            ahead_end: 0,
        }
    }

    /// The state that `checkpoint` stored.
    pub(super) fn resume(checkpoint: Checkpoint) -> Self {
        let Checkpoint { next_bytes, end_bytes, writer, totals, digests } = checkpoint;
        let next = VirtualOffset::new(next_bytes);
        Self { next, end_bytes, ..Self::new(writer, totals, digests) }
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
        self.end_bytes = puts.iter().map(write_end).fold(self.end_bytes, u64::max);
    }

    pub(super) fn is_checkpoint_due(&self, interval_max: Duration) -> bool {
        let grown = CHECKPOINT_PAUSE_MIN.max(self.last_checkpoint.duration_since(self.began));
        self.last_checkpoint.elapsed() >= interval_max.min(grown)
    }

    /// Asks for room before what was just placed reaches the end of the room asked for.
    pub(super) fn reserve_ahead(&mut self, job: &CopyJob<'_>, puts: &[TargetWrite]) {
        let end = puts.iter().map(|put| put.at.get() + write_len(put)).max().unwrap_or(0);
        if job.provision == Provision::Thin && self.writer.appends() && end > self.ahead_end {
            let start = self.ahead_end.max(end.saturating_sub(CHUNK_BYTES));
            let ahead_bytes = AHEAD_BYTES.min(job.plan.reads.total_bytes().next_multiple_of(CHUNK_BYTES));
            self.ahead_end = end + ahead_bytes;
            job.target.reserve_ahead(Span::between(HostOffset::new(start), HostOffset::new(self.ahead_end)));
        }
    }
}
