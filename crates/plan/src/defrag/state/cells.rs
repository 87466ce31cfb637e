//! What is free and what may move away, side by side, and the windows of a length that would cost the least to clear.
//!
//! Cells are of a moment: what moved since is seen when a window is looked at closely.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use extent::{ExtentSet, Span, Volume, VolumeSpan};

use super::effort::{EXTENT_EFFORT, Effort};
use super::spans::Spans;
use super::work::Work;

/// How many windows are tried for one stream.
pub(crate) const TRIED_MAX: usize = 8;

/// Sorting a window among others takes as long as looking at this many cells.
const SORT_EFFORT: u64 = 8;

/// How much more it costs to move away what hardly fits anywhere.
const HEAVY_COST: u64 = 16;

/// For streams that roll gaps are joined: as many times as large as the largest is what may get out of their way.
const JOINED_MAX: u64 = 4;

/// A window that is to become free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) span: VolumeSpan,
    /// Bytes that have to leave it.
    pub(crate) cost_bytes: u64,
}

/// What is free, and what may move away, in the order in which they lie.
#[derive(Debug)]
pub(crate) struct Cells {
    cells: Vec<Cell>,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    span: VolumeSpan,
    /// Bytes that move if it has to leave: its own, or all of a stream that moves together. None if it is free, or leaves anyhow.
    leaving_bytes: u64,
    /// Whether it is somebody's by now.
    is_struck: bool,
}

impl Cell {
    /// What moving it away costs.
    fn cost_bytes(&self, heavy_bytes: u64) -> u64 {
        let is_heavy = self.leaving_bytes > heavy_bytes;
        if is_heavy { self.leaving_bytes.saturating_mul(HEAVY_COST) } else { self.leaving_bytes }
    }
}

/// What counts as free, and as movable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To be written: only what is allocated.
    Fill,
    /// To be written little by little: gaps may be without storage, if that is little.
    Roll,
    /// To be free.
    Free,
    /// To be free, if the container had storage for all of it.
    FreeAtBest,
}

impl Cells {
    /// Those of the volume as it is by now. What could go nowhere stays: for a run that is larger than every free extent there is no
    /// place, and for one that is larger than what a thin container may grow by there is no storage.
    pub(crate) fn of(work: &Work<'_>, purpose: Purpose, effort: &mut Effort) -> Self {
        Self::without(work, purpose, |_| false, effort)
    }

    /// As [`Self::of`], where what belongs to streams that are `leaving` counts as free, since it goes anyhow.
    pub(crate) fn without(
        work: &Work<'_>,
        purpose: Purpose,
        is_leaving: impl Fn(usize) -> bool,
        effort: &mut Effort,
    ) -> Self {
        let largest = work.space.held().largest().map_or(0, |span| span.len_bytes());
        let fits = |cell: &Cell, most: u64| cell.leaving_bytes <= most;
        let joined = largest.saturating_mul(JOINED_MAX);
        let is_a_step = |cell: &Cell| cell.leaving_bytes == 0 || work.space.is_a_step(cell.leaving_bytes);
        let mut thin = work.space.thin_by_place();
        let may_move = |cell: &Cell| {
            is_a_step(cell)
                && match purpose {
                    Purpose::Fill => fits(cell, largest) && !thin.touches(cell.span),
                    Purpose::Roll => fits(cell, joined) && work.space.is_little_growth(cell.span),
                    Purpose::Free => work.space.has_storage_for(cell.span.len_bytes()),
                    Purpose::FreeAtBest => true,
                }
        };
        let mut free = free_spans(work, purpose)
            .map(|span| Cell { span, leaving_bytes: 0, is_struck: false })
            .peekable();
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

    /// Whether a part of `span` is somebody's by now.
    pub(crate) fn is_struck(&self, span: VolumeSpan) -> bool {
        self.within(span).any(|cell| cell.is_struck)
    }

    fn within(&self, span: VolumeSpan) -> impl Iterator<Item = &Cell> {
        let first = self.cells.partition_point(|cell| cell.span.end() <= span.start());
        self.cells[first..].iter().take_while(move |cell| cell.span.start() < span.end())
    }

    /// Bytes of what has to move out of `span`, as in [`Self::windows_by`]; `None` if something in it stays.
    pub(crate) fn cost_of(&self, span: VolumeSpan, heavy_bytes: u64) -> Option<u64> {
        let (mut covered, mut cost) = (0, 0u64);
        for cell in self.within(span) {
            covered += cell.span.intersect(&span).filter(|_| !cell.is_struck)?.len_bytes();
            cost = cost.saturating_add(cell.cost_bytes(heavy_bytes));
        }
        (covered == span.len_bytes()).then_some(cost)
    }

    /// Leaves what lies in `span`, or partly so, out of windows from now on.
    pub(crate) fn strike(&mut self, span: VolumeSpan) {
        let first = self.cells.partition_point(|cell| cell.span.end() <= span.start());
        let within = self.cells[first..].iter_mut().take_while(|cell| cell.span.start() < span.end());
        within.for_each(|cell| cell.is_struck = true);
    }

    /// What lies between things that stay, in order.
    pub(crate) fn regions(&self) -> ExtentSet<Volume> {
        let mut regions = ExtentSet::new();
        self.cells.iter().for_each(|cell| regions.push(cell.span));
        regions
    }

    /// The cheapest windows of `bytes`, disjoint; each begins where a cell does.
    pub(crate) fn windows(&self, bytes: u64, effort: &mut Effort) -> Vec<Window> {
        self.windows_by(bytes, u64::MAX, effort)
    }

    /// As [`Self::windows`], where what is larger than `heavy_bytes` costs [`HEAVY_COST`] times its bytes.
    pub(crate) fn windows_by(&self, bytes: u64, heavy_bytes: u64, effort: &mut Effort) -> Vec<Window> {
        let mut best: Vec<Window> = Vec::new();
        self.each_window(bytes, heavy_bytes, effort, |window| keep_best(&mut best, window));
        best
    }

    /// So many disjoint windows of `bytes`, the cheapest as in [`Self::windows_by`] first.
    pub(crate) fn cheapest(
        &self,
        bytes: u64,
        heavy_bytes: u64,
        count: usize,
        effort: &mut Effort,
    ) -> Vec<VolumeSpan> {
        let mut all = Vec::new();
        self.each_window(bytes, heavy_bytes, effort, |window| {
            all.push(Reverse((window.cost_bytes, window.span)));
        });
        effort.spend(all.len() as u64 * SORT_EFFORT);
        // Few of them are looked at: those behind need not be in order.
        let mut all = BinaryHeap::from(all);
        let mut chosen = Spans::default();
        let is_apart = |span: &VolumeSpan| {
            let is_apart = chosen.within(*span).next().is_none();
            if is_apart {
                chosen.insert(*span);
            }
            is_apart
        };
        let ascending = std::iter::from_fn(|| all.pop()).map(|Reverse((_, span))| span);
        ascending.filter(is_apart).take(count).collect()
    }

    /// Shows every window of `bytes`, ascending.
    fn each_window(&self, bytes: u64, heavy_bytes: u64, effort: &mut Effort, mut each: impl FnMut(Window)) {
        let (mut next, mut sum, mut cost) = (0, 0u64, 0u64);
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
                cost += cell.cost_bytes(heavy_bytes);
                next += 1;
            }
            if sum >= bytes {
                each(Window { span: VolumeSpan::new(first.span.start(), bytes), cost_bytes: cost });
            }
            if next > index {
                sum -= first.span.len_bytes();
                cost -= first.cost_bytes(heavy_bytes);
            }
        }
    }
}

/// What counts as free, ascending.
fn free_spans<'a>(work: &'a Work<'_>, purpose: Purpose) -> Box<dyn Iterator<Item = VolumeSpan> + 'a> {
    let space = &work.space;
    match purpose {
        Purpose::Fill => Box::new(space.held().iter()),
        Purpose::Free | Purpose::FreeAtBest => Box::new(space.free().iter()),
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
        let leaving_bytes = match work.layout.moves_together(owner) {
            _ if is_leaving(owner) => 0,
            true => work.layout.bytes_of(work.layout.extents_of(owner)),
            false => span.len_bytes(),
        };
        Some(Cell { span, leaving_bytes, is_struck: false })
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
