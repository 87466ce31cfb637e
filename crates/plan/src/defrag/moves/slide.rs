//! What lies beside the largest free extent slides away from it, so that this gets larger.
//!
//! Invariant: no run is broken, and each goes to a place that is free and allocated.

use block::Result;
use extent::{Span, VolumeOffset, VolumeSpan};

use crate::defrag::state::{Cells, Effort, Growth, Purpose, Run, Work};

/// A side of the largest free extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Before,
    After,
}

/// The largest free extent.
pub(crate) fn largest_free(work: &Work<'_>) -> VolumeSpan {
    work.space.free().largest().unwrap_or(VolumeSpan::from_zero(0))
}

/// Makes the largest free extent at least `goal_bytes` long, if for that no more than `cost_bytes_max` has to slide. Whether it is then.
pub(crate) fn extend(
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
pub(crate) fn slide(
    work: &mut Work<'_>,
    goal_bytes: u64,
    cost_bytes_max: u64,
    effort: &mut Effort,
) -> Result<()> {
    for side in [Side::Before, Side::After] {
        let extent = largest_free(work);
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
                && work.space.is_a_step(run.bytes)
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
