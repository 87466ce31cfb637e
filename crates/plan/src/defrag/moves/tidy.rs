//! What lies between two gaps moves to the ends of others, so that one gap is left of the two.
//!
//! Once files are together there are gaps between them, and at each end of a gap a unit of which only a part is needed. The fewer gaps,
//! the smaller the container.
//!
//! Invariant: runs move as a whole, and only where the container is to be smaller for it.

use std::collections::BTreeMap;

use block::Result;
use extent::VolumeSpan;

use super::aside::{free_within, runs_within};
use crate::defrag::plan::DefragOptions;
use crate::defrag::state::{EXTENT_EFFORT, Effort, Growth, Run, Work};

/// Cells and extents that are looked at.
const EFFORT_MAX: u64 = 30_000_000;

/// So many times something moves.
const ROUNDS_MAX: usize = 256;

/// So many times the container may be no smaller for it.
const FAILURES_MAX: usize = 4;

/// So many runs may lie between two gaps.
const RUNS_MAX: usize = 64;

/// What lies between two gaps.
struct Chain {
    /// With the gaps.
    window: VolumeSpan,
    runs: Vec<Run>,
    bytes: u64,
    /// By how much the container is smaller without it, as far as can be told before.
    gain_bytes: u64,
}

/// Moves runs until the container is no larger than it may be in the end, or nothing makes it smaller.
pub(crate) fn tidy(work: &mut Work<'_>, options: &DefragOptions) -> Result<()> {
    let mut effort = Effort::new(EFFORT_MAX);
    let mut failures = 0;
    for _ in 0..ROUNDS_MAX {
        let before = work.space.growth_bytes();
        if before <= options.growth_left_bytes_max {
            return Ok(());
        }
        let Some(chain) = best(work, &mut effort) else { return Ok(()) };
        empty(work, chain)?;
        failures += usize::from(work.space.growth_bytes() >= before);
        if failures > FAILURES_MAX {
            return Ok(());
        }
    }
    Ok(())
}

/// What makes the container smaller by most for each byte that moves.
fn best(work: &Work<'_>, effort: &mut Effort) -> Option<Chain> {
    let gaps = || work.space.free().iter();
    let mut best: Option<Chain> = None;
    let mut places = Places { work, known: BTreeMap::new() };
    let between = gaps().zip(gaps().skip(1)).map(|(before, after)| (before.start(), after.end()));
    let beside = gaps().flat_map(|gap| {
        let bounds = |extent| work.bounds(&work.run_of(extent));
        let before = work.extent_until(gap.start()).map(|extent| (bounds(extent).start(), gap.end()));
        let after = work.extent_from(gap.end()).map(|extent| (gap.start(), bounds(extent).end()));
        before.into_iter().chain(after)
    });
    for (start, end) in between.chain(beside) {
        let Some(chain) = chain(&mut places, VolumeSpan::between(start, end), effort) else { continue };
        let gain = |one: &Chain, other: &Chain| u128::from(one.gain_bytes) * u128::from(other.bytes);
        if best.as_ref().is_none_or(|best| gain(&chain, best) > gain(best, &chain)) {
            best = Some(chain);
        }
    }
    best
}

/// What lies in `window`, if all of it may move, and the container is smaller then.
fn chain(places: &mut Places<'_, '_>, window: VolumeSpan, effort: &mut Effort) -> Option<Chain> {
    let work = places.work;
    let count = work.extents_within(window).take(RUNS_MAX + 1).count();
    if count > RUNS_MAX || !effort.spend(EXTENT_EFFORT * (count as u64 + 1)) {
        return None;
    }
    let runs = runs_within(work, &[window], |_| true);
    let start = runs.iter().map(|run| work.bounds(run).start()).min()?;
    let between = VolumeSpan::between(start, runs.iter().map(|run| work.bounds(run).end()).max()?);
    let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
    let moves_together = |run: &Run| work.layout.moves_together(work.owner(run.extents.start));
    let may_move = |run: &Run| !moves_together(run) && window.covers(&work.bounds(run));
    if bytes.saturating_add(work.space.free().bytes_within(window)) != window.len_bytes()
        || !runs.iter().all(may_move)
    {
        return None;
    }
    let mut needed_bytes = 0;
    for run in &runs {
        needed_bytes += places.least_growth(run.bytes, window)?;
    }
    let gain_bytes = work.space.units_left_by(between).checked_sub(needed_bytes).filter(|gain| *gain > 0)?;
    Some(Chain { window, runs, bytes, gain_bytes })
}

/// Where runs of a length could go, which is asked again and again for the same few lengths.
struct Places<'a, 'b> {
    work: &'a Work<'b>,
    /// For each length its places, with the growth that each costs, the least first.
    known: BTreeMap<u64, Vec<(u64, VolumeSpan)>>,
}

impl Places<'_, '_> {
    /// The least by which the container grows if `len_bytes` are written outside of `window`; `None` if there is no place.
    fn least_growth(&mut self, len_bytes: u64, window: VolumeSpan) -> Option<u64> {
        let space = &self.work.space;
        let places = self.known.entry(len_bytes).or_insert_with(|| {
            let places = space.places_for(len_bytes).map(|place| (space.growth_of(place), place));
            let mut places: Vec<_> = places.collect();
            places.sort_unstable_by_key(|(growth_bytes, _)| *growth_bytes);
            places
        });
        let outside = places.iter().find(|(_, place)| place.intersect(&window).is_none());
        outside.map(|(growth_bytes, _)| *growth_bytes)
    }
}

/// Moves all of it elsewhere, or as much as fits.
fn empty(work: &mut Work<'_>, chain: Chain) -> Result<()> {
    work.reserve(chain.window);
    for run in chain.runs {
        let Some(place) = work.space.find(run.bytes, Growth::Limited) else { break };
        work.made_room_bytes += run.bytes;
        work.move_to(run.extents, place)?;
    }
    work.close()?;
    let free = free_within(work, chain.window);
    work.unreserve(chain.window, &free);
    work.give_back();
    Ok(())
}
