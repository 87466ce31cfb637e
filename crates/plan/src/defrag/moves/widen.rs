//! Gaps that are joined, for what is larger than any of them.
//!
//! Much can be free, and all of it in gaps that are a little too small. Then the least of what lies between gaps moves to others.
//!
//! Invariants: whole runs move, to places that are free and allocated; what a window is cleared for gets it.

use block::Result;
use extent::VolumeSpan;

use super::aside::{Misfits, free_within, runs_within, step_outside};
use crate::defrag::state::{Cells, Effort, Purpose, Work};

/// For each misfit so many places are tried.
const TRIED_PART: usize = 4;

/// Joins free extents outside of `windows` by moving away what lies between them, so that misfits find a place. Whether anything moved.
pub(crate) fn widen(
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
