//! The ways in which a stream could come together once others moved away. Nothing moves here.

use std::ops::Range;

use extent::{Span, VolumeOffset, VolumeSpan};

use crate::defrag::state::{Cells, EXTENT_EFFORT, Effort, Run, TRIED_MAX, Work};

/// Beside how many of its runs, the largest first, room is looked for.
const KEPT_RUNS_MAX: usize = 4;

/// Where a stream goes: around the run that it keeps, or as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    pub(crate) stream: usize,
    /// Extents, and the place in which they are to lie one after the other.
    pub(crate) parts: Vec<(Range<usize>, VolumeSpan)>,
    /// Bytes that move, those that only make room included.
    pub(crate) cost_bytes: u64,
}

impl Placement {
    /// All of the stream to `place`.
    pub(crate) fn whole(work: &Work<'_>, stream: usize, place: VolumeSpan) -> Self {
        let extents = work.layout.extents_of(stream);
        Self { stream, parts: vec![(extents, place)], cost_bytes: place.len_bytes() }
    }

    /// What is before `kept` to before it, what is after it to after it. `None` if the volume begins or ends too soon.
    pub(crate) fn around(work: &Work<'_>, stream: usize, kept: &Run) -> Option<Self> {
        let all = work.layout.extents_of(stream);
        let (before, after) = (all.start..kept.extents.start, kept.extents.end..all.end);
        let bounds = work.bounds(kept);
        let (before_bytes, after_bytes) =
            (work.layout.bytes_of(before.clone()), work.layout.bytes_of(after.clone()));
        let start = bounds.start().get().checked_sub(before_bytes)?;
        let parts = [
            (before, Span::new(VolumeOffset::new(start), before_bytes)),
            (after, Span::checked(bounds.end(), after_bytes)?),
        ];
        let parts = parts.into_iter().filter(|(extents, _)| !extents.is_empty()).collect();
        Some(Self { stream, parts, cost_bytes: before_bytes.saturating_add(after_bytes) })
    }
}

/// Ways to place a stream in one piece once others moved away, the cheapest first, for which no more than `cost_bytes_max` has to
/// move away: beside a run of it that stays, and in windows of `cells`, which may be a little out of date.
pub(crate) fn ways(
    work: &Work<'_>,
    stream: usize,
    cells: Option<&Cells>,
    cost_bytes_max: u64,
    effort: &mut Effort,
) -> Vec<Placement> {
    let mut runs = work.runs(stream);
    runs.sort_by_key(|run| std::cmp::Reverse(run.bytes));
    let mut all = Vec::new();
    let kept_count = if work.layout.moves_together(stream) { 0 } else { KEPT_RUNS_MAX };
    for run in runs.iter().take(kept_count) {
        all.extend(Placement::around(work, stream, run));
    }
    let bytes = work.layout.bytes_of(work.layout.extents_of(stream));
    let windows = cells.map(|cells| cells.windows(bytes, effort)).unwrap_or_default();
    all.extend(windows.into_iter().map(|window| Placement::whole(work, stream, window.span)));
    all.retain_mut(|placement| {
        let clearing =
            |(_, span): &(_, VolumeSpan)| clearing_cost(work, *span, stream, cost_bytes_max, effort);
        let cost = placement.parts.iter().map(clearing).sum::<Option<u64>>();
        placement.cost_bytes = placement.cost_bytes.saturating_add(cost.unwrap_or(0));
        cost.is_some()
    });
    all.sort_by_key(|placement| placement.cost_bytes);
    all.truncate(TRIED_MAX);
    all
}

/// Whether all that lies in `span` could leave it.
pub(crate) fn can_clear(work: &Work<'_>, span: VolumeSpan, stream: usize, effort: &mut Effort) -> bool {
    clearing_cost(work, span, stream, u64::MAX, effort).is_some()
}

/// Bytes that have to leave `span` before it is free; `None` if something in it stays, or if they are more than `cost_max`.
fn clearing_cost(
    work: &Work<'_>,
    span: VolumeSpan,
    stream: usize,
    cost_max: u64,
    effort: &mut Effort,
) -> Option<u64> {
    if work.space.is_thin(span) {
        return None;
    }
    let (mut covered, mut cost) = (0, 0u64);
    for extent in work.extents_within(span) {
        let owner = work.owner(extent);
        covered += work.span(extent).intersect(&span).map_or(0, |part| part.len_bytes());
        cost = cost.saturating_add(work.layout.len_bytes(extent));
        let stays = work.is_in_batch(extent) || (work.is_locked(owner) && owner != stream);
        if !effort.spend(EXTENT_EFFORT) || cost > cost_max || stays {
            return None;
        }
    }
    (covered + work.space.held().bytes_within(span) == span.len_bytes()).then_some(cost)
}
