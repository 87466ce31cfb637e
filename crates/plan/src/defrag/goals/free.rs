//! The free space in one piece, as far as what stays allows.
//!
//! *Movable free space* is what could be in one piece: all that is free, or the longest stretch of the volume without anything
//! that stays, if that is less. Until [`ENOUGH_PERCENT`] of it is one free extent:
//! 1. the window of that size with the least in it is emptied into the gaps elsewhere, what is largest first, each to the gap
//!    that it fits most tightly, as far as they fit; then gaps are joined for what does not;
//! 2. what lies beside the largest free extent slides away from it: to the gap where sliding began if it fits in there,
//!    otherwise to the extent's other end.
//!
//! No run is broken, so fragments never grow. Each step is taken a bounded number of times.

use block::Result;

use super::files;
use crate::defrag::moves::clear_what_fits;
use crate::defrag::moves::slide::{largest_free, slide};
use crate::defrag::plan::{DefragPlan, Goal};
use crate::defrag::state::{Cells, Effort, Growth, Purpose, Work};

/// The goal is reached when this much of the movable free space is in one piece.
const ENOUGH_PERCENT: u64 = 95;

/// What is aimed at. Above the goal, since edges are whole files.
const WINDOW_PERCENT: u64 = 97;

/// The windows that are tried to be emptied, as shares of what could be free in one piece.
const WINDOW_PERCENTS: [u64; 8] = [WINDOW_PERCENT, 96, ENOUGH_PERCENT, 93, 88, 75, 55, 30];

/// Emptying is worth it if the goal is reached, or the largest free extent grows by a part of so many: what is nearly as good stays.
const GAIN_PART: u64 = 8;

/// Emptying and sliding take turns this often.
const ROUNDS_MAX: usize = 6;

/// How often what was left is tried again. Each time what is free came together once more.
const TRIALS_MAX: usize = 4;

/// Cells that are looked at: under a second.
const EFFORT_MAX: u64 = 60_000_000;

/// Brings the free space together; and streams that were left, which it may hold now, and it together again.
pub(crate) fn consolidate_and_gather(work: &mut Work<'_>) -> Result<()> {
    consolidate(work)?;
    let mut left = work.fragmented().len();
    for _ in 0..TRIALS_MAX {
        if left == 0 {
            break;
        }
        files::place_left(work, Growth::Limited)?;
        consolidate(work)?;
        let before = std::mem::replace(&mut left, work.fragmented().len());
        if left == before {
            break;
        }
    }
    Ok(())
}

/// Brings the free space together: by the largest window alone if that suffices, else by whatever leaves more of it in one piece; if
/// that is enough, or much more than before.
fn consolidate(work: &mut Work<'_>) -> Result<()> {
    let is_done = |work: &Work<'_>| is_enough(work, &mut Effort::new(EFFORT_MAX));
    if is_done(work) {
        return Ok(());
    }
    let mut best = work.clone();
    for shares in [&WINDOW_PERCENTS[..1], &WINDOW_PERCENTS] {
        let mut trial = work.clone();
        consolidate_by(&mut trial, shares)?;
        if largest_free(&trial).len_bytes() > largest_free(&best).len_bytes() {
            best = trial;
        }
        if is_done(&best) {
            break;
        }
    }
    let (before, after) = (largest_free(work).len_bytes(), largest_free(&best).len_bytes());
    if after > before && (after >= before.saturating_add(before / GAIN_PART) || is_done(&best)) {
        *work = best;
    }
    Ok(())
}

fn consolidate_by(work: &mut Work<'_>, shares: &[u64]) -> Result<()> {
    let made_room_bytes = work.made_room_bytes;
    let mut effort = Effort::new(EFFORT_MAX);
    for _ in 0..ROUNDS_MAX {
        let before = largest_free(work).len_bytes();
        empty_window(work, shares, &mut effort)?;
        let cells = Cells::of(work, Purpose::Free, &mut effort);
        let goal = percent(movable_free_bytes(work, &cells), WINDOW_PERCENT);
        slide(work, goal, u64::MAX, &mut effort)?;
        if is_enough(work, &mut effort) || largest_free(work).len_bytes() <= before || effort.is_spent() {
            break;
        }
    }
    work.made_room_bytes = made_room_bytes;
    Ok(())
}

/// The same where everything is sorted, which leaves gaps: room for files that grow, and what is in its order already where it lies.
const SORTED_PERCENT: u64 = 85;

/// Whether a plan does what its goal says: no more fragments than before, and the free space in one piece.
pub(crate) fn serves(plan: &DefragPlan, goal: Goal) -> bool {
    let enough = if goal == Goal::Pack { SORTED_PERCENT } else { ENOUGH_PERCENT };
    plan.after.fragments <= plan.before.fragments
        && plan.after.largest_free_extent_bytes >= percent(plan.movable_free_bytes, enough)
}

/// Whether a plan leaves what could be free in one piece so, nearly.
pub(crate) fn is_together(plan: &DefragPlan) -> bool {
    plan.after.largest_free_extent_bytes >= percent(plan.movable_free_bytes, ENOUGH_PERCENT)
}

fn percent(bytes: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// What of the free space could be in one piece by now, however little the container may grow by.
pub(crate) fn movable_bytes(work: &Work<'_>) -> u64 {
    let cells = Cells::of(work, Purpose::FreeAtBest, &mut Effort::new(EFFORT_MAX));
    movable_free_bytes(work, &cells)
}

fn movable_free_bytes(work: &Work<'_>, cells: &Cells) -> u64 {
    let longest = cells.regions().iter().map(|region| region.len_bytes()).max().unwrap_or(0);
    longest.min(work.space.free().total_bytes())
}

fn is_enough(work: &Work<'_>, effort: &mut Effort) -> bool {
    let cells = Cells::of(work, Purpose::Free, effort);
    largest_free(work).len_bytes() >= percent(movable_free_bytes(work, &cells), ENOUGH_PERCENT)
}

/// Empties the window of the size of the goal with the least in it, as far as that fits into the gaps elsewhere; then smaller ones,
/// since what the first left may fit into what is free in the rest of it. A window is left alone unless that gains something.
fn empty_window(work: &mut Work<'_>, shares: &[u64], effort: &mut Effort) -> Result<()> {
    let mut cells = Cells::of(work, Purpose::Free, effort);
    for share in shares {
        let movable_free = movable_free_bytes(work, &cells);
        let now = largest_free(work).len_bytes();
        let bytes = window_bytes(work, movable_free, *share);
        if now >= percent(movable_free, ENOUGH_PERCENT).min(bytes) {
            break;
        }
        let windows = cells.windows_by(bytes, work.space.gap_bytes(), effort);
        let Some(window) = windows.first() else { continue };
        let mut trial = work.clone();
        clear_what_fits(&mut trial, window.span, effort)?;
        if largest_free(&trial).len_bytes() > now {
            *work = trial;
            cells = Cells::of(work, Purpose::Free, effort);
        }
    }
    Ok(())
}

/// So many percent of what could be free in one piece, in clusters.
fn window_bytes(work: &Work<'_>, movable_free: u64, share: u64) -> u64 {
    let cluster = work.layout.cluster_bytes();
    percent(movable_free, share).div_ceil(cluster).saturating_mul(cluster).min(movable_free)
}
