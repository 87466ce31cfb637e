//! Gaps that are joined, for what is larger than any of them.
//!
//! Much can be free, and all of it in gaps that are a little too small. Then the least of what lies between gaps moves to others.
//!
//! Invariants are those of [`super::room`]: whole runs move, to places that are free and allocated; what a window is cleared for gets it.

use block::Result;
use extent::{Span, VolumeSpan};

use super::room::{Cells, Effort, Purpose, runs_within};
use super::work::{Run, Work};

/// For each misfit so many places are tried.
const TRIED_PART: usize = 4;

/// Runs that fit nowhere.
#[derive(Default)]
pub(super) struct Misfits {
    pub(super) count: usize,
    largest_bytes: u64,
    /// Where the others would go.
    taken: Vec<VolumeSpan>,
}

impl Misfits {
    /// Counts a run that fits nowhere.
    pub(super) fn count(&mut self, run: &Run) {
        self.count += 1;
        self.largest_bytes = self.largest_bytes.max(run.bytes);
    }

    /// Gives back what was taken to see how many fit.
    pub(super) fn give_back(&mut self, work: &mut Work<'_>) {
        self.taken.drain(..).for_each(|place| work.space.give(place));
    }
}

/// Moves runs to where they fit most tightly without leaving slivers, all or none of them. Whether they did. What did not fit is counted.
pub(super) fn step_outside(work: &mut Work<'_>, runs: Vec<Run>, misfits: &mut Misfits) -> Result<bool> {
    let mut places = Vec::new();
    let before = misfits.count;
    for run in &runs {
        if let Some(place) = work.space.find_without_sliver(run.bytes) {
            work.space.take(place);
            places.push(place);
        } else {
            misfits.count(run);
        }
    }
    if misfits.count > before {
        misfits.taken.extend(places);
        return Ok(false);
    }
    for (run, place) in runs.into_iter().zip(places) {
        work.made_room_bytes += run.bytes;
        work.move_to_taken(run.extents, place.start())?;
    }
    Ok(true)
}

/// Joins free extents outside of `windows` by moving away what lies between them, so that misfits find a place. Whether anything moved.
pub(super) fn widen(
    work: &mut Work<'_>,
    misfits: &Misfits,
    windows: &[VolumeSpan],
    heavy_bytes: u64,
    effort: &mut Effort,
) -> Result<bool> {
    if misfits.count == 0 {
        return Ok(false);
    }
    work.close()?;
    let mut cells = Cells::of(work, Purpose::Fill, effort);
    windows.iter().for_each(|window| cells.strike(*window));
    let tried_max = misfits.count.saturating_mul(TRIED_PART);
    let candidates = cells.cheapest(misfits.largest_bytes, heavy_bytes, tried_max, effort);
    let mut joined = Vec::new();
    let moved_bytes = work.moved_bytes();
    for span in candidates {
        let runs = runs_within(work, &[span], |_| true);
        let is_busy = runs.iter().any(|run| run.extents.clone().any(|extent| work.is_in_batch(extent)));
        if is_busy || runs.is_empty() {
            continue;
        }
        let free = work.reserve(span);
        let mut within = Misfits::default();
        if step_outside(work, runs, &mut within)? {
            joined.push(span);
        } else {
            within.give_back(work);
            work.unreserve(span, &free);
        }
        if joined.len() >= misfits.count {
            break;
        }
    }
    work.close()?;
    for span in joined {
        let free = free_within(work, span);
        work.unreserve(span, &free);
    }
    Ok(work.moved_bytes() > moved_bytes)
}

/// What no extent has of a window in which nothing stays.
pub(super) fn free_within(work: &Work<'_>, window: VolumeSpan) -> Vec<VolumeSpan> {
    let mut free = Vec::new();
    let mut at = window.start();
    for extent in work.extents_within(window) {
        let span = work.span(extent);
        if span.start() > at {
            free.push(Span::between(at, span.start()));
        }
        at = at.max(span.end());
    }
    if at < window.end() {
        free.push(Span::between(at, window.end()));
    }
    free
}
