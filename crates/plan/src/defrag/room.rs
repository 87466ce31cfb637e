//! Room where there is none: what lies in a window moves elsewhere, so that a stream can have it in the next batch.
//!
//! Invariants:
//! - what is moved away are whole runs, to places that are free and allocated: it is in no more pieces than before;
//! - a window is cleared in full or nothing of it moves; until it is filled nobody else is given a part of it.
//!
//! Absent on purpose: making room for what makes room, but for gaps that are joined ([`super::widening`]).

use std::collections::BTreeSet;
use std::ops::Range;

use block::Result;
use extent::{ExtentSet, Span, Volume, VolumeOffset, VolumeSpan};

use super::space::Growth;
use super::spans::Spans;
use super::widening::{Misfits, widen};
use super::work::{Run, Work};

/// How many windows are tried for one stream.
const TRIED_MAX: usize = 8;

/// Beside how many of its runs, the largest first, room is looked for.
const KEPT_RUNS_MAX: usize = 4;

/// A window that is to become free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Window {
    pub(super) span: VolumeSpan,
    /// Bytes that have to leave it.
    pub(super) cost_bytes: u64,
}

/// Where a stream goes: around the run that it keeps, or as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Placement {
    pub(super) stream: usize,
    /// Extents, and the place in which they are to lie one after the other.
    pub(super) parts: Vec<(Range<usize>, VolumeSpan)>,
    /// Bytes that move, those that only make room included.
    pub(super) cost_bytes: u64,
}

impl Placement {
    /// All of the stream to `place`.
    pub(super) fn whole(work: &Work<'_>, stream: usize, place: VolumeSpan) -> Self {
        let extents = work.layout.extents_of(stream);
        Self { stream, parts: vec![(extents, place)], cost_bytes: place.len_bytes() }
    }

    /// What is before `kept` to before it, what is after it to after it. `None` if the volume begins or ends too soon.
    pub(super) fn around(work: &Work<'_>, stream: usize, kept: &Run) -> Option<Self> {
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
pub(super) fn ways(
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

/// Looking an extent up takes as long as looking at this many cells.
const EXTENT_EFFORT: u64 = 4;

/// What looking so many extents up takes.
pub(super) fn lookup_effort(extent_count: usize) -> u64 {
    extent_count as u64 * EXTENT_EFFORT
}

/// Sorting a window among others takes as long as looking at this many cells.
const SORT_EFFORT: u64 = 8;

/// How much planning may still look at, so that no volume, however it looks, makes it take forever.
#[derive(Debug)]
pub(super) struct Effort(u64);

impl Effort {
    pub(super) fn new(steps_max: u64) -> Self {
        Self(steps_max)
    }

    /// Whether `steps` more may be spent; they are then.
    pub(super) fn spend(&mut self, steps: u64) -> bool {
        let rest = self.0.checked_sub(steps);
        self.0 = rest.unwrap_or(0);
        rest.is_some()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// Whether all that lies in `span` could leave it.
pub(super) fn can_clear(work: &Work<'_>, span: VolumeSpan, stream: usize, effort: &mut Effort) -> bool {
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

/// The runs that lie in `spans`, or partly so, of streams that `is_meant` says; largest first.
pub(super) fn runs_within(
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

/// All runs that lie in `spans`, or partly so, largest first. `None` if one of them stays.
fn victims(work: &Work<'_>, spans: &[VolumeSpan]) -> Option<Vec<Run>> {
    let mut extents = spans.iter().flat_map(|span| work.extents_within(*span));
    if extents.any(|extent| work.is_locked(work.owner(extent))) {
        return None;
    }
    Some(runs_within(work, spans, |_| true))
}

/// Where what is moved away goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Away<'a> {
    /// Where it fits most tightly.
    BestFit,
    /// To where its stream is to lie in the end, as this says by stream, or as far back as may be: a later step is least
    /// likely to want it gone from there.
    Back(&'a [Option<VolumeOffset>]),
}

/// Moves all that lies in `spans` away, and keeps them for the caller, who is to fill them after the batch was closed. `false`,
/// and nothing moved, if that cannot be done.
pub(super) fn clear(work: &mut Work<'_>, spans: &[VolumeSpan], away: Away<'_>) -> Result<bool> {
    let Some(victims) = victims(work, spans) else { return Ok(false) };
    let kept: Vec<_> = spans.iter().map(|span| (*span, work.reserve(*span))).collect();
    let places = find_places(work, &victims, away);
    if places.len() < victims.len() {
        places.into_iter().for_each(|place| work.space.give(place));
        kept.into_iter().for_each(|(span, parts)| work.unreserve(span, &parts));
        return Ok(false);
    }
    for (run, place) in victims.into_iter().zip(places) {
        work.made_room_bytes += run.bytes;
        work.move_to_taken(run.extents, place.start())?;
    }
    Ok(true)
}

/// Moves of what lies in `window` what fits into gaps elsewhere, largest first. Where gaps are too small, some are joined.
pub(super) fn clear_what_fits(work: &mut Work<'_>, window: VolumeSpan, effort: &mut Effort) -> Result<()> {
    work.space.set_aside(window);
    let mut count_before = usize::MAX;
    while let Some(victims) = victims(work, &[window]) {
        let mut misfits = Misfits::default();
        for run in victims {
            if work.space.find(run.bytes, Growth::Limited).is_none() && work.space.would_find(run.bytes) {
                work.close()?;
            }
            match work.space.find(run.bytes, Growth::Limited) {
                Some(place) => work.move_to(run.extents, place)?,
                None => misfits.count(&run),
            }
        }
        work.close()?;
        let heavy_bytes = work.space.gap_bytes();
        if misfits.count >= count_before || !widen(work, &misfits, &[window], heavy_bytes, effort)? {
            break;
        }
        count_before = misfits.count;
    }
    work.space.end_aside();
    Ok(())
}

/// Takes a place for each run; fewer places than runs if one does not fit.
fn find_places(work: &mut Work<'_>, runs: &[Run], away: Away<'_>) -> Vec<VolumeSpan> {
    let mut places = Vec::with_capacity(runs.len());
    for run in runs {
        let place = match away {
            Away::BestFit => work.space.find(run.bytes, Growth::Never),
            Away::Back(targets) => find_target(work, run, targets).or_else(|| find_back(work, run.bytes)),
        };
        let Some(place) = place else { break };
        work.space.take(place);
        places.push(place);
    }
    places
}

fn find_target(work: &Work<'_>, run: &Run, targets: &[Option<VolumeOffset>]) -> Option<VolumeSpan> {
    let stream = work.owner(run.extents.start);
    let target = targets[stream].filter(|_| work.layout.extents_of(stream) == run.extents)?;
    let place = VolumeSpan::new(target, run.bytes);
    work.space.offers(place, Growth::Never).then_some(place)
}

/// How many of the last free extents are looked at for a place at the back.
const BACK_MAX: usize = 64;

fn find_back(work: &Work<'_>, bytes: u64) -> Option<VolumeSpan> {
    let mut last = work.space.held().iter_down().take(BACK_MAX);
    let last = last.find(|span| span.len_bytes() >= bytes);
    let at_end = last.map(|span| VolumeSpan::new(VolumeOffset::new(span.end().get() - bytes), bytes));
    at_end.or_else(|| work.space.find(bytes, Growth::Never))
}

/// Moves streams into the places that were cleared for them.
pub(super) fn fill(work: &mut Work<'_>, placements: Vec<Placement>) -> Result<()> {
    work.close()?;
    placements.iter().flat_map(|placement| &placement.parts).for_each(|(_, span)| work.claim(*span));
    for placement in placements {
        for (extents, place) in placement.parts {
            work.move_to_taken(extents, place.start())?;
        }
    }
    work.close()
}

/// How much more it costs to move away what hardly fits anywhere.
const HEAVY_COST: u64 = 16;

/// What is free, and what may move away, in the order in which they lie.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Vec<Cell>,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    span: VolumeSpan,
    /// Whether it has to move away.
    is_used: bool,
    /// Whether it is somebody's by now.
    is_struck: bool,
}

/// For streams that roll gaps are joined: as many times as large as the largest is what may get out of their way.
const JOINED_MAX: u64 = 4;

/// What counts as free, and as movable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To be written: only what is allocated.
    Fill,
    /// To be written little by little: gaps may be without storage, if that is little.
    Roll,
    /// To be free.
    Free,
}

impl Cells {
    /// Those of the volume as it is by now. What could go nowhere stays: for a run that is larger than every free extent there is no
    /// place, and for one that is larger than what a thin container may grow by there is no storage.
    pub(super) fn of(work: &Work<'_>, purpose: Purpose, effort: &mut Effort) -> Self {
        Self::without(work, purpose, |_| false, effort)
    }

    /// As [`Self::of`], where what belongs to streams that are `leaving` counts as free, since it goes anyhow.
    pub(super) fn without(
        work: &Work<'_>,
        purpose: Purpose,
        is_leaving: impl Fn(usize) -> bool,
        effort: &mut Effort,
    ) -> Self {
        let largest = work.space.held().largest().map_or(0, |span| span.len_bytes());
        let fits = |cell: &Cell, most: u64| !cell.is_used || cell.span.len_bytes() <= most;
        let joined = largest.saturating_mul(JOINED_MAX);
        let may_move = |cell: &Cell| match purpose {
            Purpose::Fill => fits(cell, largest) && !work.space.is_thin(cell.span),
            Purpose::Roll => fits(cell, joined) && work.space.is_little_growth(cell.span),
            Purpose::Free => work.space.has_storage_for(cell.span.len_bytes()),
        };
        let mut free =
            free_spans(work, purpose).map(|span| Cell { span, is_used: false, is_struck: false }).peekable();
        let mut cells = Vec::new();
        for used in runs_by_place(work, is_leaving).filter(may_move) {
            while let Some(cell) = free.next_if(|cell| cell.span.start() < used.span.start()) {
                cells.push(cell);
            }
            cells.push(used);
        }
        cells.extend(free);
        effort.spend(cells.len() as u64 * EXTENT_EFFORT);
        Self { cells }
    }

    /// Bytes of what has to move out of `span`; `None` if something in it stays.
    pub(super) fn cost_of(&self, span: VolumeSpan) -> Option<u64> {
        let first = self.cells.partition_point(|cell| cell.span.end() <= span.start());
        let (mut covered, mut cost) = (0, 0u64);
        for cell in self.cells[first..].iter().take_while(|cell| cell.span.start() < span.end()) {
            covered += cell.span.intersect(&span).filter(|_| !cell.is_struck)?.len_bytes();
            cost += if cell.is_used { cell.span.len_bytes() } else { 0 };
        }
        (covered == span.len_bytes()).then_some(cost)
    }

    /// Leaves what lies in `span`, or partly so, out of windows from now on.
    pub(super) fn strike(&mut self, span: VolumeSpan) {
        let first = self.cells.partition_point(|cell| cell.span.end() <= span.start());
        let within = self.cells[first..].iter_mut().take_while(|cell| cell.span.start() < span.end());
        within.for_each(|cell| cell.is_struck = true);
    }

    /// What lies between things that stay, in order.
    pub(super) fn regions(&self) -> ExtentSet<Volume> {
        let mut regions = ExtentSet::new();
        self.cells.iter().for_each(|cell| regions.push(cell.span));
        regions
    }

    /// The cheapest windows of `bytes`, disjoint; each begins where a cell does.
    pub(super) fn windows(&self, bytes: u64, effort: &mut Effort) -> Vec<Window> {
        self.windows_by(bytes, u64::MAX, effort)
    }

    /// As [`Self::windows`], where what is larger than `heavy_bytes` costs [`HEAVY_COST`] times its bytes.
    pub(super) fn windows_by(&self, bytes: u64, heavy_bytes: u64, effort: &mut Effort) -> Vec<Window> {
        let mut best: Vec<Window> = Vec::new();
        self.each_window(bytes, heavy_bytes, effort, |window| keep_best(&mut best, window));
        best
    }

    /// So many disjoint windows of `bytes`, the cheapest as in [`Self::windows_by`] first.
    pub(super) fn cheapest(
        &self,
        bytes: u64,
        heavy_bytes: u64,
        count: usize,
        effort: &mut Effort,
    ) -> Vec<VolumeSpan> {
        let mut all = Vec::new();
        self.each_window(bytes, heavy_bytes, effort, |window| all.push((window.cost_bytes, window.span)));
        effort.spend(all.len() as u64 * SORT_EFFORT);
        all.sort_unstable();
        let mut chosen = Spans::default();
        let is_apart = |span: &VolumeSpan| {
            let is_apart = chosen.within(*span).next().is_none();
            if is_apart {
                chosen.insert(*span);
            }
            is_apart
        };
        all.into_iter().map(|(_, span)| span).filter(is_apart).take(count).collect()
    }

    /// Shows every window of `bytes`, ascending.
    fn each_window(&self, bytes: u64, heavy_bytes: u64, effort: &mut Effort, mut each: impl FnMut(Window)) {
        let (mut next, mut sum, mut cost) = (0, 0u64, 0u64);
        let used = |cell: &Cell| match cell.span.len_bytes() {
            _ if !cell.is_used => 0,
            bytes if bytes > heavy_bytes => bytes.saturating_mul(HEAVY_COST),
            bytes => bytes,
        };
        if !effort.spend(self.cells.len() as u64 * 2) {
            return;
        }
        for (index, first) in self.cells.iter().enumerate() {
            if next <= index {
                (next, sum, cost) = (index, 0, 0);
            }
            while let Some(cell) = self.cells.get(next).filter(|cell| sum < bytes && !cell.is_struck) {
                if next > index && self.cells[next - 1].span.end() != cell.span.start() {
                    break;
                }
                sum += cell.span.len_bytes();
                cost += used(cell);
                next += 1;
            }
            if sum >= bytes {
                each(Window { span: VolumeSpan::new(first.span.start(), bytes), cost_bytes: cost });
            }
            if next > index {
                sum -= first.span.len_bytes();
                cost -= used(first);
            }
        }
    }
}

/// What counts as free, ascending.
fn free_spans<'a>(work: &'a Work<'_>, purpose: Purpose) -> Box<dyn Iterator<Item = VolumeSpan> + 'a> {
    let space = &work.space;
    match purpose {
        Purpose::Fill => Box::new(space.held().iter()),
        Purpose::Free => Box::new(space.free().iter()),
        Purpose::Roll => Box::new(space.free().iter().flat_map(|span| {
            let whole = space.is_little_growth(span).then_some(span);
            let parts = whole.is_none().then(|| space.held().within(span));
            whole.into_iter().chain(parts.into_iter().flatten())
        })),
    }
}

/// Runs that may move, by where they lie: neighbours of one stream are one cell.
fn runs_by_place<'a>(
    work: &'a Work<'_>,
    is_leaving: impl Fn(usize) -> bool + 'a,
) -> impl Iterator<Item = Cell> + 'a {
    let mut extents =
        work.extents_by_place().filter(|extent| !work.is_locked(work.owner(*extent))).peekable();
    std::iter::from_fn(move || {
        let mut last = extents.next()?;
        let owner = work.owner(last);
        let mut span = work.span(last);
        let follows = |last: usize, span: VolumeSpan, next: usize| {
            next == last + 1 && work.owner(next) == owner && work.span(next).start() == span.end()
        };
        while let Some(next) = extents.next_if(|next| follows(last, span, *next)) {
            span = Span::between(span.start(), work.span(next).end());
            last = next;
        }
        Some(Cell { span, is_used: !is_leaving(owner), is_struck: false })
    })
}

/// Keeps the cheapest disjoint windows, sorted by cost.
fn keep_best(best: &mut Vec<Window>, window: Window) {
    let is_full = best.len() >= TRIED_MAX;
    if is_full && best.last().is_some_and(|last| last.cost_bytes <= window.cost_bytes) {
        return;
    }
    let overlaps = |other: &Window| other.span.intersect(&window.span).is_some();
    if best.iter().any(|other| overlaps(other) && other.cost_bytes <= window.cost_bytes) {
        return;
    }
    best.retain(|other| !overlaps(other));
    let at = best.partition_point(|other| other.cost_bytes <= window.cost_bytes);
    best.insert(at, window);
    best.truncate(TRIED_MAX);
}
