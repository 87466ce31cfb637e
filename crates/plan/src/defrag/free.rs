//! The free space in one piece, as far as what stays allows.
//!
//! *Movable free space* is what could be in one piece: all that is free, or the longest stretch of the volume without anything
//! that stays, if that is less. Until [`ENOUGH_PERCENT`] of it is one free extent:
//! 1. the window of that size with the least in it is emptied into the gaps elsewhere, what is largest first, each to the gap
//!    that it fits most tightly, as far as they fit;
//! 2. what lies beside the largest free extent slides away from it: to the gap where sliding began if it fits in there,
//!    otherwise to the extent's other end.
//!
//! No run is broken, so fragments never grow. Each step is taken a bounded number of times.

use block::Result;
use extent::{Span, VolumeOffset, VolumeSpan};

use super::room::{Cells, Effort, Purpose, clear_what_fits};
use super::space::Growth;
use super::work::Work;

/// The goal is reached when this much of the movable free space is in one piece.
const ENOUGH_PERCENT: u64 = 95;

/// What is aimed at. Above the goal, since edges are whole files.
const WINDOW_PERCENT: u64 = 97;

/// Emptying and sliding take turns this often.
const ROUNDS_MAX: usize = 3;

/// Cells that are looked at: under a second.
const EFFORT_MAX: u64 = 60_000_000;

/// Brings the free space together.
pub(super) fn consolidate(work: &mut Work<'_>) -> Result<()> {
    let made_room_bytes = work.made_room_bytes;
    let mut effort = Effort::new(EFFORT_MAX);
    for _ in 0..ROUNDS_MAX {
        let before = largest(work).len_bytes();
        empty_window(work, &mut effort)?;
        let cells = Cells::of(work, Purpose::ToFree, &mut effort);
        let goal = percent(movable_free_bytes(work, &cells), WINDOW_PERCENT);
        slide(work, goal, u64::MAX, &mut effort)?;
        if is_enough(work, &mut effort) || largest(work).len_bytes() <= before || effort.is_spent() {
            break;
        }
    }
    work.made_room_bytes = made_room_bytes;
    Ok(())
}

fn largest(work: &Work<'_>) -> VolumeSpan {
    work.space.free().largest().unwrap_or(VolumeSpan::from_zero(0))
}

fn percent(bytes: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

fn movable_free_bytes(work: &Work<'_>, cells: &Cells) -> u64 {
    let longest = cells.regions().iter().map(|region| region.len_bytes()).max().unwrap_or(0);
    longest.min(work.space.free().total_bytes())
}

fn is_enough(work: &Work<'_>, effort: &mut Effort) -> bool {
    let cells = Cells::of(work, Purpose::ToFree, effort);
    largest(work).len_bytes() >= percent(movable_free_bytes(work, &cells), ENOUGH_PERCENT)
}

/// Empties the window of the size of the goal with the least in it, as far as that fits into the gaps elsewhere.
fn empty_window(work: &mut Work<'_>, effort: &mut Effort) -> Result<()> {
    let cells = Cells::of(work, Purpose::ToFree, effort);
    let movable_free = movable_free_bytes(work, &cells);
    let now = largest(work);
    if now.len_bytes() >= percent(movable_free, ENOUGH_PERCENT) {
        return Ok(());
    }
    let cluster = work.layout.cluster_bytes();
    let bytes =
        percent(movable_free, WINDOW_PERCENT).div_ceil(cluster).saturating_mul(cluster).min(movable_free);
    match cells.windows(bytes, effort).first() {
        Some(window) => clear_what_fits(work, window.span, now),
        None => Ok(()),
    }
}

/// A side of the largest free extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Before,
    After,
}

/// Makes the largest free extent at least `goal_bytes` long, if for that no more than `cost_bytes_max` has to slide. Whether it is then.
pub(super) fn extend(
    work: &mut Work<'_>,
    goal_bytes: u64,
    cost_bytes_max: u64,
    effort: &mut Effort,
) -> Result<bool> {
    if effort.is_spent() {
        return Ok(false);
    }
    slide(work, goal_bytes, cost_bytes_max, effort)?;
    Ok(work.space.find(goal_bytes, Growth::Never).is_some())
}

/// Slides what lies beside the largest free extent away from it, beginning as near as the goal allows.
fn slide(work: &mut Work<'_>, goal_bytes: u64, cost_bytes_max: u64, effort: &mut Effort) -> Result<()> {
    for side in [Side::Before, Side::After] {
        let extent = largest(work);
        let need = goal_bytes.saturating_sub(extent.len_bytes());
        let regions = Cells::of(work, Purpose::ToFree, effort).regions();
        let region = regions.iter().find(|region| region.covers(&extent)).filter(|_| need > 0);
        let gap = region.and_then(|region| nearest_gap(work, side, region, extent, need));
        let start = gap.and_then(|gap| sliding_start(work, side, gap, extent, cost_bytes_max));
        match (side, start) {
            (Side::Before, Some(start)) => slide_down(work, start, extent)?,
            (Side::After, Some(start)) => slide_up(work, start, extent)?,
            (_, None) => {}
        }
        work.close()?;
    }
    Ok(())
}

/// Where the gap ends, away from `extent`, up to which gaps sum up to `need`; or the farthest there is.
fn nearest_gap(
    work: &Work<'_>,
    side: Side,
    region: VolumeSpan,
    extent: VolumeSpan,
    need: u64,
) -> Option<VolumeOffset> {
    let held = work.space.held();
    let window = match side {
        Side::Before => Span::between(region.start(), extent.start()),
        Side::After => Span::between(extent.end(), region.end()),
    };
    let mut gaps: Vec<_> = held.within(window).collect();
    if side == Side::Before {
        gaps.reverse();
    }
    let mut sum = 0;
    let enough = gaps.iter().position(|gap| {
        sum += gap.len_bytes();
        sum >= need
    });
    let gap = enough.map_or_else(|| gaps.last(), |index| gaps.get(index))?;
    Some(match side {
        Side::Before => gap.start(),
        Side::After => gap.end(),
    })
}

/// Where sliding can begin, at or after `start` on the way to `extent`, and does not get stuck before it is there; `None` if that
/// gains nothing. Counts as [`slide_down`] and [`slide_up`] move.
fn sliding_start(
    work: &Work<'_>,
    side: Side,
    start: VolumeOffset,
    extent: VolumeSpan,
    cost_bytes_max: u64,
) -> Option<VolumeOffset> {
    let held = work.space.held();
    let far = match side {
        Side::Before => held.within(extent).last().filter(|span| span.end() == extent.end()),
        Side::After => held.within(extent).next().filter(|span| span.start() == extent.start()),
    };
    let far_bytes = far.map_or(0, |span| span.len_bytes());
    let mut slide = Sliding { start, near: 0, pending: 0, far: far_bytes, cost: 0 };
    let mut at = start;
    while let Some(next) = next_beside(work, side, at, extent) {
        let run = work.run_of(next);
        let bounds = work.bounds(&run);
        let (gap, end) = match side {
            Side::Before => (Span::between(at, bounds.start()), bounds.end().max(work.span(next).end())),
            Side::After => (Span::between(bounds.end(), at), bounds.start().min(work.span(next).start())),
        };
        let can_go = work.moves_alone(&run)
            && bounds.len_bytes() == run.bytes
            && held.covers(gap)
            && slide.takes(gap.len_bytes(), run.bytes);
        if !can_go {
            slide = Sliding { start: end, near: 0, pending: 0, far: far_bytes, cost: 0 };
        }
        at = end;
    }
    let last = match side {
        Side::Before => Span::between(at, extent.start()),
        Side::After => Span::between(extent.end(), at),
    };
    let gains = slide.near + slide.pending + last.len_bytes() > 0 && held.covers(last);
    (gains && slide.cost <= cost_bytes_max).then_some(slide.start)
}

/// The extent at `at` or next on the way to `extent`.
fn next_beside(work: &Work<'_>, side: Side, at: VolumeOffset, extent: VolumeSpan) -> Option<usize> {
    match side {
        Side::Before => work.extent_from(at).filter(|next| work.span(*next).start() < extent.start()),
        Side::After => work.extent_until(at).filter(|next| work.span(*next).start() >= extent.end()),
    }
}

/// How far sliding is, in bytes.
struct Sliding {
    /// Where it began.
    start: VolumeOffset,
    /// Free where the next goes to.
    near: u64,
    /// Free behind that once the batch is closed.
    pending: u64,
    /// Free at the other end of the extent.
    far: u64,
    /// Moved.
    cost: u64,
}

impl Sliding {
    /// Takes the next run, in front of which there is a gap. Whether it can go.
    fn takes(&mut self, gap_bytes: u64, bytes: u64) -> bool {
        if self.pending > 0 {
            self.pending += gap_bytes;
        } else {
            self.near += gap_bytes;
        }
        if self.near + self.pending == 0 {
            return true;
        }
        if bytes > self.near.max(self.far) {
            self.near += std::mem::take(&mut self.pending);
        }
        if bytes <= self.near {
            self.near -= bytes;
        } else if bytes <= self.far {
            self.far -= bytes;
        } else {
            return false;
        }
        self.pending += bytes;
        self.cost += bytes;
        true
    }
}

/// Moves what lies from `start` up to `extent`, to `start` on where it fits, else to the far end of `extent`.
fn slide_down(work: &mut Work<'_>, start: VolumeOffset, extent: VolumeSpan) -> Result<()> {
    let (mut at, mut far) = (start, extent.end());
    while let Some(next) = next_beside(work, Side::Before, at, extent) {
        let run = work.run_of(next);
        let is_in_place = work.span(next).start() == at && work.bounds(&run).len_bytes() == run.bytes;
        if is_in_place {
            at = work.bounds(&run).end();
            continue;
        }
        let near = VolumeSpan::checked(at, run.bytes);
        let away =
            far.get().checked_sub(run.bytes).map(|start| Span::new(VolumeOffset::new(start), run.bytes));
        let place = if work.moves_alone(&run) { find_either(work, near, away)? } else { None };
        match place {
            Some(place) => {
                work.move_to(run.extents, place)?;
                if Some(place) == near {
                    at = place.end();
                } else {
                    far = place.start();
                }
            }
            None => at = work.span(next).end(),
        }
    }
    Ok(())
}

/// As [`slide_down`], the other way round.
fn slide_up(work: &mut Work<'_>, start: VolumeOffset, extent: VolumeSpan) -> Result<()> {
    let (mut at, mut far) = (start, extent.start());
    while let Some(next) = next_beside(work, Side::After, at, extent) {
        let run = work.run_of(next);
        let is_in_place = work.span(next).end() == at && work.bounds(&run).len_bytes() == run.bytes;
        if is_in_place {
            at = work.bounds(&run).start();
            continue;
        }
        let near =
            at.get().checked_sub(run.bytes).map(|start| Span::new(VolumeOffset::new(start), run.bytes));
        let away = VolumeSpan::checked(far, run.bytes);
        let place = if work.moves_alone(&run) { find_either(work, near, away)? } else { None };
        match place {
            Some(place) => {
                work.move_to(run.extents, place)?;
                if Some(place) == near {
                    at = place.start();
                } else {
                    far = place.end();
                }
            }
            None => at = work.span(next).start(),
        }
    }
    Ok(())
}

/// The first of two places that is free; a batch is closed for it if need be.
fn find_either(
    work: &mut Work<'_>,
    near: Option<VolumeSpan>,
    away: Option<VolumeSpan>,
) -> Result<Option<VolumeSpan>> {
    let free = |work: &Work<'_>| {
        let places = [near, away].into_iter().flatten();
        places.into_iter().find(|place| work.space.offers(*place, Growth::Never))
    };
    if let Some(place) = free(work) {
        return Ok(Some(place));
    }
    work.close()?;
    Ok(free(work))
}
