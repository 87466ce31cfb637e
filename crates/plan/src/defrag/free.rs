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
use extent::{Span, VolumeOffset, VolumeSpan};

use super::files;
use super::room::{Cells, Effort, Purpose, clear_what_fits};
use super::space::Growth;
use super::work::{Run, Work};

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
pub(super) fn consolidate_and_gather(work: &mut Work<'_>) -> Result<()> {
    consolidate(work)?;
    let mut left = work.fragmented().len();
    for _ in 0..TRIALS_MAX {
        if left == 0 {
            break;
        }
        files::place_left(work)?;
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
        if largest(&trial).len_bytes() > largest(&best).len_bytes() {
            best = trial;
        }
        if is_done(&best) {
            break;
        }
    }
    let (before, after) = (largest(work).len_bytes(), largest(&best).len_bytes());
    if after > before && (after >= before.saturating_add(before / GAIN_PART) || is_done(&best)) {
        *work = best;
    }
    Ok(())
}

fn consolidate_by(work: &mut Work<'_>, shares: &[u64]) -> Result<()> {
    let made_room_bytes = work.made_room_bytes;
    let mut effort = Effort::new(EFFORT_MAX);
    for _ in 0..ROUNDS_MAX {
        let before = largest(work).len_bytes();
        empty_window(work, shares, &mut effort)?;
        let cells = Cells::of(work, Purpose::Free, &mut effort);
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

/// What of the free space could be in one piece by now.
pub(super) fn movable_bytes(work: &Work<'_>) -> u64 {
    let cells = Cells::of(work, Purpose::Free, &mut Effort::new(EFFORT_MAX));
    movable_free_bytes(work, &cells)
}

fn movable_free_bytes(work: &Work<'_>, cells: &Cells) -> u64 {
    let longest = cells.regions().iter().map(|region| region.len_bytes()).max().unwrap_or(0);
    longest.min(work.space.free().total_bytes())
}

fn is_enough(work: &Work<'_>, effort: &mut Effort) -> bool {
    let cells = Cells::of(work, Purpose::Free, effort);
    largest(work).len_bytes() >= percent(movable_free_bytes(work, &cells), ENOUGH_PERCENT)
}

/// Empties the window of the size of the goal with the least in it, as far as that fits into the gaps elsewhere; then smaller ones,
/// since what the first left may fit into what is free in the rest of it. A window is left alone unless that gains something.
fn empty_window(work: &mut Work<'_>, shares: &[u64], effort: &mut Effort) -> Result<()> {
    let mut cells = Cells::of(work, Purpose::Free, effort);
    for share in shares {
        let movable_free = movable_free_bytes(work, &cells);
        let now = largest(work).len_bytes();
        let bytes = window_bytes(work, movable_free, *share);
        if now >= percent(movable_free, ENOUGH_PERCENT).min(bytes) {
            break;
        }
        let windows = cells.windows_by(bytes, work.space.gap_bytes(), effort);
        let Some(window) = windows.first() else { continue };
        let mut trial = work.clone();
        clear_what_fits(&mut trial, window.span, effort)?;
        if largest(&trial).len_bytes() > now {
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
        let regions = Cells::of(work, Purpose::Free, effort).regions();
        let region = regions.iter().find(|region| region.covers(&extent)).filter(|_| need > 0);
        let gap = region.and_then(|region| nearest_gap(work, side, region, extent, need));
        let sliding = gap.map(|gap| Sliding::of(work, side, gap, extent));
        if let Some(sliding) = sliding.filter(|sliding| sliding.cost <= cost_bytes_max) {
            perform(work, side, &sliding, extent)?;
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

/// The extent at `at` or next on the way to `extent`.
fn next_beside(work: &Work<'_>, side: Side, at: VolumeOffset, extent: VolumeSpan) -> Option<usize> {
    match side {
        Side::Before => work.extent_from(at).filter(|next| work.span(*next).start() < extent.start()),
        Side::After => work.extent_until(at).filter(|next| work.span(*next).start() >= extent.end()),
    }
}

/// Where a run goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goes {
    /// To where the gap begins.
    Near,
    /// To the other end of the extent.
    Far,
}

/// What slides, decided before anything does: from a start on, so that nothing gets stuck on the way to the extent.
struct Sliding {
    start: VolumeOffset,
    steps: Vec<(Run, Goes)>,
    /// Free where the next goes to.
    near: u64,
    /// Free behind that once the batch is closed.
    pending: u64,
    /// Free at the other end of the extent.
    far: u64,
    /// Bytes that move.
    cost: u64,
}

impl Sliding {
    /// Begins anew at `start`, with `far` bytes free at the other end.
    fn new(start: VolumeOffset, far: u64) -> Self {
        Self { start, steps: Vec::new(), near: 0, pending: 0, far, cost: 0 }
    }

    /// Slides what lies from `start` up to `extent`; if something cannot, only what is behind it.
    fn of(work: &Work<'_>, side: Side, start: VolumeOffset, extent: VolumeSpan) -> Self {
        let held = work.space.held();
        let far = match side {
            Side::Before => held.within(extent).last().filter(|span| span.end() == extent.end()),
            Side::After => held.within(extent).next().filter(|span| span.start() == extent.start()),
        };
        let far = far.map_or(0, |span| span.len_bytes());
        let mut sliding = Self::new(start, far);
        let mut at = start;
        while let Some(next) = next_beside(work, side, at, extent) {
            let run = work.run_of(next);
            let bounds = work.bounds(&run);
            let (gap, end) = match side {
                Side::Before => (Span::between(at, bounds.start()), bounds.end().max(work.span(next).end())),
                Side::After => (Span::between(bounds.end(), at), bounds.start().min(work.span(next).start())),
            };
            // What it leaves is written by the next.
            let is_plain = work.moves_alone(&run)
                && bounds.len_bytes() == run.bytes
                && held.covers(gap)
                && !work.space.is_thin(bounds);
            if !is_plain || !sliding.takes(gap.len_bytes(), run) {
                sliding = Self::new(end, far);
            }
            at = end;
        }
        let last = match side {
            Side::Before => Span::between(at, extent.start()),
            Side::After => Span::between(extent.end(), at),
        };
        if held.covers(last) { sliding } else { Self::new(at, far) }
    }

    /// Takes the next run, in front of which there is a gap. Whether it can go.
    fn takes(&mut self, gap_bytes: u64, run: Run) -> bool {
        let bytes = run.bytes;
        if self.pending > 0 {
            self.pending += gap_bytes;
        } else {
            self.near += gap_bytes;
        }
        if self.near + self.pending == 0 {
            return false;
        }
        if bytes > self.near.max(self.far) {
            self.near += std::mem::take(&mut self.pending);
        }
        let goes = if bytes <= self.near { Goes::Near } else { Goes::Far };
        let rest = if goes == Goes::Near { &mut self.near } else { &mut self.far };
        let Some(left) = rest.checked_sub(bytes) else { return false };
        *rest = left;
        self.pending += bytes;
        self.cost += bytes;
        self.steps.push((run, goes));
        true
    }
}

/// Moves what slides. A batch is closed where the next place is not free before.
fn perform(work: &mut Work<'_>, side: Side, sliding: &Sliding, extent: VolumeSpan) -> Result<()> {
    let (mut near, mut far) = match side {
        Side::Before => (sliding.start, extent.end()),
        Side::After => (sliding.start, extent.start()),
    };
    for (run, goes) in &sliding.steps {
        let edge = if *goes == Goes::Near { &mut near } else { &mut far };
        // From the start on things come one behind the other, from the far end on one before the other; or vice versa.
        let goes_up = (side == Side::Before) == (*goes == Goes::Near);
        let place = if goes_up {
            Span::new(*edge, run.bytes)
        } else {
            Span::new(VolumeOffset::new(edge.get().saturating_sub(run.bytes)), run.bytes)
        };
        *edge = if goes_up { place.end() } else { place.start() };
        if !work.space.offers(place, Growth::Never) {
            work.close()?;
        }
        // What was given back to a thin container when the batch was closed is not written again.
        if !work.space.offers(place, Growth::Never) {
            break;
        }
        work.move_to(run.extents.clone(), place)?;
    }
    Ok(())
}
