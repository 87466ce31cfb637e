//! Runs that step aside, all of them that are in the way or none, and what does not fit anywhere.
//!
//! Invariant: whole runs move, to places that are free and allocated.

use std::collections::BTreeSet;

use block::Result;
use extent::{Span, VolumeSpan};

use crate::defrag::state::{Run, Work};

/// The runs that lie in `spans`, or partly so, of streams that `is_meant` says; largest first.
pub(crate) fn runs_within(
    work: &Work<'_>,
    spans: &[VolumeSpan],
    is_meant: impl Fn(usize) -> bool,
) -> Vec<Run> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for extent in spans.iter().flat_map(|span| work.extents_within(*span)) {
        if is_meant(work.owner(extent)) && !seen.contains(&extent) {
            let run = work.moving_with(extent);
            seen.extend(run.extents.clone());
            all.push(run);
        }
    }
    all.sort_by_key(|run| (std::cmp::Reverse(run.bytes), run.extents.start));
    all
}

/// Runs that fit nowhere.
#[derive(Default)]
pub(crate) struct Misfits {
    pub(crate) count: usize,
    pub(crate) largest_bytes: u64,
    /// Where the others would go.
    taken: Vec<VolumeSpan>,
}

impl Misfits {
    /// Counts a run that fits nowhere.
    pub(crate) fn count(&mut self, run: &Run) {
        self.count += 1;
        self.largest_bytes = self.largest_bytes.max(run.bytes);
    }

    /// Gives back what was taken to see how many fit.
    pub(crate) fn give_back(&mut self, work: &mut Work<'_>) {
        self.taken.drain(..).for_each(|place| work.space.give(place));
    }
}

/// Moves runs to where they fit most tightly without leaving slivers, all or none of them. Whether they did. What did not fit is counted.
pub(crate) fn step_outside(work: &mut Work<'_>, runs: Vec<Run>, misfits: &mut Misfits) -> Result<bool> {
    let mut places = Vec::new();
    let before = misfits.count;
    for run in &runs {
        let place = work.space.find_without_sliver(run.bytes).filter(|_| work.space.is_a_step(run.bytes));
        if let Some(place) = place {
            let holes = work.take(run.extents.clone(), place);
            places.push((place, holes));
        } else {
            misfits.count(run);
        }
    }
    if misfits.count > before {
        misfits.taken.extend(places.into_iter().map(|(place, _)| place));
        return Ok(false);
    }
    for (run, (place, holes)) in runs.into_iter().zip(places) {
        work.made_room_bytes += run.bytes;
        work.move_to_taken(run.extents, place.start(), &holes)?;
    }
    Ok(true)
}

/// What no extent has of a window in which nothing stays.
pub(crate) fn free_within(work: &Work<'_>, window: VolumeSpan) -> Vec<VolumeSpan> {
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
