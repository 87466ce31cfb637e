//! Streams for which others have to make room, rolled into windows that are chosen for all of them at once.
//!
//! A window costs what has to leave it for good. What the streams have there themselves leaves anyhow, and costs nothing:
//! 1. each stream, the largest first, gets the cheapest window that is left, or the place around one of its runs;
//! 2. what belongs to others moves from the windows to where it fits most tightly outside of all of them;
//! 3. batch by batch each run moves to its place as soon as that is free: into what another stream left, or its own did;
//! 4. where runs wait for each other in a circle, some step outside first.
//!
//! Where free space does not suffice for that, the most expensive windows are given up.
//!
//! Invariants: a window belongs to one stream until that lies in it, or it is given up; a run moves at most twice.

use std::collections::BTreeSet;

use block::Result;
use extent::{Span, VolumeOffset, VolumeSpan};

use super::aside::{Misfits, free_within, runs_within, step_outside};
use super::widen::widen;
use crate::defrag::state::{Cells, Effort, Growth, Purpose, Run, Spans, Work, lookup_effort};

/// So many streams roll at once.
const STREAMS_MAX: usize = 64;

/// All windows together are about this many times as large as what is free: what leaves them needs gaps outside.
const WINDOWS_MAX: u64 = 2;

/// Beside how many of its runs, the largest first, a stream may come together.
const KEPT_RUNS_MAX: usize = 4;

/// As much of what waits in circles steps outside before the rest is looked at again: one part in so many.
const CIRCLES_PART: u64 = 32;

/// Gaps are joined for windows out of which one part in so many of what is free has to go.
const CLEARED_PART: u64 = 2;

/// No more than one part in so many of all windows moves to join gaps for what leaves them.
const WIDENING_PART: u64 = 4;

/// A stream on its way.
struct Rolling {
    stream: usize,
    window: VolumeSpan,
    cost_bytes: u64,
    /// What is not in its place yet, and that place.
    waiting: Vec<(Run, VolumeSpan)>,
    /// Whether nothing of others is in the window.
    is_cleared: bool,
    moved_bytes: u64,
}

/// Rolls the streams of `left` together, as far as that is possible. Whether that became fewer.
pub(crate) fn roll(work: &mut Work<'_>, left: &mut Vec<usize>, effort: &mut Effort) -> Result<bool> {
    let mut all = All::choose(work, left, effort);
    all.rolling.iter().for_each(|each| drop(work.reserve(each.window)));
    while !all.rolling.is_empty() {
        work.close()?;
        if all.move_in(work)? {
            all.has_widened = Widened::default();
            continue;
        }
        if all.clear(work, effort)? || all.break_circles(work, effort)? {
            all.look_again(work);
            continue;
        }
        let is_done = |each: &Rolling| each.is_cleared && each.waiting.is_empty();
        let Some(given_up) = all
            .rolling
            .iter()
            .rposition(|each| !each.is_cleared)
            .or_else(|| all.rolling.iter().rposition(|each| !is_done(each)))
        else {
            break;
        };
        let given_up = all.rolling.remove(given_up);
        all.streams.remove(&given_up.stream);
        all.has_widened = Widened::default();
        // It moves again as a whole.
        work.made_room_bytes += given_up.moved_bytes;
        let free = free_within(work, given_up.window);
        work.unreserve(given_up.window, &free);
    }
    all.rolling.iter().for_each(|each| work.claim(each.window));
    left.retain(|stream| !all.streams.contains(stream));
    Ok(!all.rolling.is_empty())
}

/// All streams on their way, the cheapest window first.
struct All {
    rolling: Vec<Rolling>,
    streams: BTreeSet<usize>,
    has_widened: Widened,
    /// How much may still move to join gaps.
    widening_bytes_left: u64,
}

/// For what gaps were joined since something moved in.
#[derive(Default)]
struct Widened {
    for_windows: bool,
    for_circles: bool,
}

impl All {
    fn choose(work: &Work<'_>, left: &[usize], effort: &mut Effort) -> Self {
        let streams = left.iter().copied().filter(|stream| !work.layout.moves_together(*stream));
        let streams: Vec<_> = streams.take(STREAMS_MAX).collect();
        let leaving: BTreeSet<_> = streams.iter().copied().collect();
        let mut cells = Cells::without(work, Purpose::Roll, |stream| leaving.contains(&stream), effort);
        let mut rolling = Vec::new();
        let mut choices: Vec<_> = streams
            .iter()
            .filter_map(|stream| Some((*stream, cheapest_window(work, *stream, &cells, effort)?)))
            .collect();
        // Of what several want, who gains the most by it gets it.
        let gain = |(stream, (cost_bytes, _)): &(usize, (u64, VolumeSpan))| {
            i128::from(*cost_bytes) - i128::from(work.layout.bytes_of(work.layout.extents_of(*stream)))
        };
        while let Some(index) = (0..choices.len()).min_by_key(|index| gain(&choices[*index])) {
            let (stream, (cost_bytes, window)) = choices.swap_remove(index);
            if cells.is_struck(window) {
                choices.extend(cheapest_window(work, stream, &cells, effort).map(|choice| (stream, choice)));
                continue;
            }
            cells.strike(window);
            let waiting = waiting(work, stream, window);
            rolling.push(Rolling { stream, window, cost_bytes, waiting, is_cleared: false, moved_bytes: 0 });
        }
        rolling.sort_by_key(|each: &Rolling| each.cost_bytes);
        let mut rest = work.space.held().total_bytes().saturating_mul(WINDOWS_MAX);
        rolling.retain(|each| {
            let is_one_more = rest > 0;
            rest = rest.saturating_sub(each.window.len_bytes());
            is_one_more
        });
        Self {
            streams: rolling.iter().map(|each| each.stream).collect(),
            widening_bytes_left: rolling.iter().map(|each| each.window.len_bytes()).sum::<u64>()
                / WIDENING_PART,
            rolling,
            has_widened: Widened::default(),
        }
    }

    /// What is in the way steps aside as a run, and may take along what was in its place and became one with it.
    fn look_again(&mut self, work: &Work<'_>) {
        for each in &mut self.rolling {
            each.waiting = waiting(work, each.stream, each.window);
        }
    }

    /// Moves each run whose place is free, and answers whether there was one.
    fn move_in(&mut self, work: &mut Work<'_>) -> Result<bool> {
        let mut vacated = Spans::default();
        let mut has_moved = false;
        for each in self.rolling.iter_mut().filter(|each| each.is_cleared) {
            for (run, place) in std::mem::take(&mut each.waiting) {
                let is_free =
                    work.extents_within(place).next().is_none() && vacated.within(place).next().is_none();
                let holes = if is_free { work.take_reserved(run.extents.clone(), place) } else { None };
                let Some(holes) = holes else {
                    each.waiting.push((run, place));
                    continue;
                };
                run.extents.clone().for_each(|extent| vacated.insert(work.span(extent)));
                each.moved_bytes += run.bytes;
                has_moved = true;
                work.move_to_taken(run.extents, place.start(), &holes)?;
            }
        }
        Ok(has_moved)
    }

    /// Moves what belongs to others out of windows, as many as can be cleared. Whether there was one.
    fn clear(&mut self, work: &mut Work<'_>, effort: &mut Effort) -> Result<bool> {
        let mut has_cleared = false;
        let mut misfits = Misfits::default();
        let mut bytes = work.space.held().total_bytes() / CLEARED_PART;
        for each in self.rolling.iter_mut().filter(|each| !each.is_cleared) {
            let others = runs_within(work, &[each.window], |stream| !self.streams.contains(&stream));
            let others_bytes = others.iter().map(|run| run.bytes).sum();
            // Joining gaps is of no use.
            if others_bytes > work.space.held().total_bytes() {
                continue;
            }
            bytes = bytes.saturating_sub(others_bytes);
            if !effort.spend(lookup_effort(others.len())) || (bytes == 0 && misfits.count > 0) {
                break;
            }
            each.is_cleared = step_outside(work, others, &mut misfits)?;
            has_cleared |= each.is_cleared;
        }
        misfits.give_back(work);
        if has_cleared || misfits.count == 0 || std::mem::replace(&mut self.has_widened.for_windows, true) {
            return Ok(has_cleared);
        }
        self.widen(work, &misfits, effort)
    }

    /// Has some of what runs wait for step outside, what is shortest first. Whether anything could.
    fn break_circles(&mut self, work: &mut Work<'_>, effort: &mut Effort) -> Result<bool> {
        let waiting = || self.rolling.iter().filter(|each| each.is_cleared).flat_map(|each| &each.waiting);
        let waiting_bytes: u64 = waiting().map(|(run, _)| run.bytes).sum();
        let in_the_way = |place: &VolumeSpan| {
            work.extents_within(*place).map(|extent| work.layout.len_bytes(extent)).sum::<u64>()
        };
        let mut places: Vec<_> = waiting().map(|(_, place)| (in_the_way(place), *place)).collect();
        if !effort.spend(lookup_effort(places.len())) {
            return Ok(false);
        }
        places.sort_unstable();
        let mut moved_bytes = 0;
        let mut shortest = Misfits::default();
        for (_, place) in places {
            let runs = runs_within(work, &[place], |_| true);
            let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
            let mut misfits = Misfits::default();
            if step_outside(work, runs, &mut misfits)? {
                moved_bytes += bytes;
            }
            misfits.give_back(work);
            if shortest.count == 0 {
                shortest = misfits;
            }
            if moved_bytes > waiting_bytes / CIRCLES_PART {
                break;
            }
        }
        if moved_bytes > 0
            || shortest.count == 0
            || std::mem::replace(&mut self.has_widened.for_circles, true)
        {
            return Ok(moved_bytes > 0);
        }
        self.widen(work, &shortest, effort)
    }

    fn widen(&mut self, work: &mut Work<'_>, misfits: &Misfits, effort: &mut Effort) -> Result<bool> {
        if self.widening_bytes_left == 0 {
            return Ok(false);
        }
        let moved_bytes = work.moved_bytes();
        let windows: Vec<_> = self.rolling.iter().map(|each| each.window).collect();
        let has_widened = widen(work, misfits, &windows, u64::MAX, effort)?;
        self.widening_bytes_left = self.widening_bytes_left.saturating_sub(work.moved_bytes() - moved_bytes);
        Ok(has_widened)
    }
}

/// The window in which a stream comes together for the fewest bytes, with these.
fn cheapest_window(
    work: &Work<'_>,
    stream: usize,
    cells: &Cells,
    effort: &mut Effort,
) -> Option<(u64, VolumeSpan)> {
    let bytes = work.layout.bytes_of(work.layout.extents_of(stream));
    let mut runs = work.runs(stream);
    runs.sort_by_key(|run| std::cmp::Reverse(run.bytes));
    let around = runs.iter().take(KEPT_RUNS_MAX).filter_map(|run| {
        let before = work.layout.extents_of(stream).start..run.extents.start;
        let start = work.bounds(run).start().get().checked_sub(work.layout.bytes_of(before))?;
        let window = VolumeSpan::checked(VolumeOffset::new(start), bytes)?;
        Some((cells.cost_of(window, heavy_bytes(work))?, window))
    });
    let windows = cells
        .windows_by(bytes, heavy_bytes(work), effort)
        .into_iter()
        .map(|window| (window.cost_bytes, window.span));
    let all = around.chain(windows).filter(|(_, window)| work.space.has_storage_at(*window));
    let with_moves =
        |(cost, window)| Some((moving_bytes(work, stream, window)?.saturating_add(cost), window));
    all.filter_map(with_moves).min_by_key(|(cost, _)| *cost)
}

/// What is larger than this fits nowhere while others roll.
fn heavy_bytes(work: &Work<'_>) -> u64 {
    work.space.held().largest().map_or(0, |span| span.len_bytes())
}

/// Bytes of a stream that move when it comes together in `window`: what is in its place does not, and what lies across its place does
/// twice. `None` if that fits nowhere in between.
fn moving_bytes(work: &Work<'_>, stream: usize, window: VolumeSpan) -> Option<u64> {
    let mut bytes = 0;
    let mut longest_across = 0;
    for (run, place) in waiting(work, stream, window) {
        if !work.space.is_a_step(run.bytes) {
            return None;
        }
        bytes += run.bytes;
        if work.bounds(&run).intersect(&place).is_some() {
            bytes += run.bytes;
            longest_across = longest_across.max(run.bytes);
        }
    }
    work.space.find(longest_across, Growth::Never).map(|_| bytes)
}

/// The runs of a stream that are not in their place in `window` yet.
pub(crate) fn waiting(work: &Work<'_>, stream: usize, window: VolumeSpan) -> Vec<(Run, VolumeSpan)> {
    let mut at = window.start();
    let mut all = Vec::new();
    for run in work.runs(stream) {
        let place = Span::new(at, run.bytes);
        at = place.end();
        if work.bounds(&run) != place {
            all.push((run, place));
        }
    }
    all
}
