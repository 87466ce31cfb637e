//! No fragmented file where next to nothing is free: streams that lie among each other exchange places.
//!
//! Where little is free, or little may be written, no window can be had at once for what has to leave it. But streams that were written
//! in turns fill a region among themselves, and need no more room than they have:
//! 1. a region is what belongs to such streams or is free, without a gap; it is filled from its start;
//! 2. next comes the stream that has the most where it would come to lie, or in what was borrowed;
//! 3. what lies there goes to what is free elsewhere, as much at once as fits, and the stream's runs take its place;
//! 4. what they leave is what the next one's others go to.
//!
//! Where files in one piece lie among them, and each gap that is left would cost a unit of the container, these are packed along with them: one that
//! comes to lie where the next begins stays, and one that had to go to what was borrowed comes next.
//!
//! A container that lacks storage for free space takes some in one piece for as long as that lasts, and has it back in the end
//! ([`Space::borrow`](crate::defrag::state::Space::borrow)).
//!
//! Invariant: runs move as a whole, to what is free and allocated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use block::Result;
use extent::{VolumeOffset, VolumeSpan};

use super::files;
use crate::defrag::moves::{
    Misfits, clear_what_fits, free_within, give_back, runs_within, tidy, waiting, widen,
};
use crate::defrag::plan::DefragOptions;
use crate::defrag::state::{Cells, EXTENT_EFFORT, Effort, Growth, Purpose, Run, Spans, Work, lookup_effort};

/// Cells and extents that are looked at: about a second.
const EFFORT_MAX: u64 = 300_000_000;

/// So many times nothing may come to its place although something was cleared: what moved away may have become one with its neighbour.
const STALLS_MAX: usize = 2;

/// After so many streams in a row that cannot be placed, the rest of a region is left.
const FAILURES_MAX: usize = 8;

/// So many times in a row what lies next in a region is left where it is because nothing can be placed before it.
const SKIPS_MAX: usize = 8;

/// What is tried each time.
const WAYS: [Way; 6] = [
    Way { exchanges: true, packs: false, stays: false, part: 1 },
    Way { exchanges: true, packs: false, stays: true, part: 1 },
    Way { exchanges: false, packs: false, stays: true, part: 1 },
    Way { exchanges: true, packs: true, stays: false, part: 1 },
    Way { exchanges: true, packs: false, stays: false, part: 4 },
    Way { exchanges: true, packs: false, stays: true, part: 4 },
];

/// So many times storage is borrowed, and so many windows are emptied to give it back.
const LOANS_MAX: usize = 8;

/// The windows that are tried, as parts of what is to be given back.
const WINDOW_PARTS: [u64; 3] = [1, 2, 6];

/// So many windows of each size are tried.
const WINDOWS_MAX: usize = 3;

/// So many times what the container may be larger by in the end it may be if the host has back what is free within units.
const TRIMMED_MAX: u64 = 4;

/// Whole streams of one part in so many of what is free may be in the way, where those in pieces do not suffice.
const SMALL_PART: u64 = 16;

/// The same where these are packed along with those in pieces.
const PACKED_PART: u64 = 4;

/// How streams come together.
#[derive(Clone, Copy)]
struct Way {
    /// Whether they exchange places.
    exchanges: bool,
    /// Whether what is in one piece among them is packed along with them.
    packs: bool,
    /// Whether they may stay in what is borrowed; something else is given back then.
    stays: bool,
    /// What part of the growth is borrowed: one in so many.
    part: u64,
}

/// What may be packed along with fragmented streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Packing {
    /// Nothing else, which moves the least.
    Never,
    /// What is in one piece and among them, if nothing else helps.
    Allowed,
}

/// Brings the fragmented streams together. What the container grew by has gone back in the end, but for what may stay.
pub(crate) fn gather(work: &mut Work<'_>, options: &DefragOptions, packing: Packing) -> Result<()> {
    work.close()?;
    let mut effort = Effort::new(EFFORT_MAX);
    let mut left = work.fragmented().len();
    for _ in 0..LOANS_MAX {
        let mut best: Option<Work<'_>> = None;
        let mut rank = (left, 0);
        for way in WAYS.into_iter().filter(|way| !way.packs || packing == Packing::Allowed) {
            if rank.0 == 0 || (way.part > 1 && rank.0 < left && rank.1 <= options.growth_left_bytes_max) {
                continue;
            }
            let mut trial = work.clone();
            let loan = trial.space.borrow(options.growth_bytes_max / way.part);
            effort = gather_once(&mut trial, options, &loan, way, effort)?;
            let trial_rank = (trial.fragmented().len(), trial.space.growth_bytes());
            if fits(&trial, options) && trial_rank < rank {
                rank = trial_rank;
                best = Some(trial);
            }
        }
        let Some(best) = best else { break };
        *work = best;
        left = rank.0;
        if left == 0 {
            break;
        }
    }
    files::place_left(work, Growth::Never)?;
    trim(work, options);
    Ok(())
}

/// Gives the host back what is free within units, where the container would be larger than it may be.
pub(crate) fn trim(work: &mut Work<'_>, options: &DefragOptions) {
    if work.space.growth_bytes() > options.growth_left_bytes_max {
        work.trim();
    }
}

/// Whether the container is no larger than it may be in the end: in whole units, or in a few more of which the host has the free parts back.
pub(crate) fn fits(work: &Work<'_>, options: &DefragOptions) -> bool {
    let most = options.growth_left_bytes_max;
    let growth_bytes = work.space.growth_bytes();
    growth_bytes <= most
        || (growth_bytes <= most.saturating_mul(TRIMMED_MAX) && work.growth_without_gaps() <= most)
}

fn gather_once(
    work: &mut Work<'_>,
    options: &DefragOptions,
    loan: &[VolumeSpan],
    way: Way,
    effort: Effort,
) -> Result<Effort> {
    let parking = loan.first().copied();
    let mut exchange = Exchange { parking, packs: way.packs, left: BTreeMap::new(), effort };
    let part_of_free = |part| work.space.held().total_bytes() / part;
    let whole_bytes_maxima = match way {
        Way { exchanges: false, .. } => vec![],
        Way { packs: true, .. } => vec![part_of_free(PACKED_PART)],
        _ => vec![0, part_of_free(SMALL_PART)],
    };
    for whole_bytes_max in whole_bytes_maxima {
        exchange.fill_regions(work, whole_bytes_max)?;
    }
    if way.stays {
        files::gather(work)?;
    }
    work.space.end_loan();
    work.give_back();
    if !loan.is_empty() {
        give_back_windows(work, loan, options, &mut exchange.effort)?;
        give_back(work, options)?;
        tidy(work, options)?;
    }
    Ok(exchange.effort)
}

/// Empties windows, whichever has the container give back most, until it is as small as it has to be.
fn give_back_windows(
    work: &mut Work<'_>,
    loan: &[VolumeSpan],
    options: &DefragOptions,
    effort: &mut Effort,
) -> Result<()> {
    for _ in 0..LOANS_MAX {
        let growth_bytes = work.space.growth_bytes();
        if growth_bytes <= options.growth_left_bytes_max {
            break;
        }
        let cells = Cells::of(work, Purpose::Fill, effort);
        let mut windows: Vec<_> = loan.iter().copied().take(WINDOWS_MAX).collect();
        for part in WINDOW_PARTS {
            let units = (growth_bytes / part).div_ceil(options.unit_bytes).saturating_add(1);
            let found =
                cells.windows_by(units.saturating_mul(options.unit_bytes), work.space.gap_bytes(), effort);
            windows.extend(found.into_iter().take(WINDOWS_MAX).map(|window| window.span));
        }
        let mut best: Option<Work<'_>> = None;
        for window in windows {
            if !effort.spend(lookup_effort(work.layout.extent_count())) {
                break;
            }
            let mut trial = work.clone();
            clear_what_fits(&mut trial, window, effort)?;
            trial.give_back();
            let least = best.as_ref().map_or(growth_bytes, |best| best.space.growth_bytes());
            if trial.space.growth_bytes() < least {
                best = Some(trial);
            }
        }
        match best {
            Some(best) => *work = best,
            None => break,
        }
    }
    Ok(())
}

struct Exchange {
    /// Where others go meanwhile: the largest of what is borrowed.
    parking: Option<VolumeSpan>,
    /// Whether what is in one piece is packed as well.
    packs: bool,
    /// Fragmented streams, and their bytes.
    left: BTreeMap<usize, u64>,
    effort: Effort,
}

impl Exchange {
    /// Fills regions, the largest first. Whole streams of so many bytes may be in them.
    fn fill_regions(&mut self, work: &mut Work<'_>, whole_bytes_max: u64) -> Result<()> {
        let fragmented = work.fragmented().into_iter().filter(|stream| !work.layout.moves_together(*stream));
        self.left = fragmented.map(|stream| (stream, bytes_of(work, stream))).collect();
        let mut regions = self.regions(work, whole_bytes_max);
        regions.sort_by_key(|region| (Reverse(region.len_bytes()), region.start()));
        for region in regions {
            self.fill_region(work, region)?;
        }
        Ok(())
    }

    /// What belongs to streams that may exchange places or is free, in pieces that could hold one of them.
    fn regions(&mut self, work: &Work<'_>, whole_bytes_max: u64) -> Vec<VolumeSpan> {
        let Some(least_bytes) = self.left.values().min().copied() else { return Vec::new() };
        let mut all: Spans = work.space.held().iter().collect();
        for extent in work.extents_by_place() {
            let stream = work.owner(extent);
            let span = work.span(extent);
            let takes_part = |stream: usize| {
                self.left.contains_key(&stream)
                    || (work.layout.len_bytes(extent) <= whole_bytes_max
                        && !work.layout.moves_together(stream))
            };
            if !work.is_locked(stream) && takes_part(stream) && !work.space.is_thin(span) {
                all.insert(span);
            }
        }
        if let Some(parking) = self.parking {
            all.remove_within(parking);
        }
        self.effort.spend(lookup_effort(work.layout.extent_count()));
        all.iter().filter(|region| region.len_bytes() >= least_bytes).collect()
    }

    fn fill_region(&mut self, work: &mut Work<'_>, region: VolumeSpan) -> Result<()> {
        let mut rest = region;
        let (mut failed, mut skips) = (BTreeSet::new(), 0);
        while !self.effort.is_spent() && skips <= SKIPS_MAX {
            if let Some(end) = self.end_of_whole_at(work, rest) {
                rest = VolumeSpan::between(end, rest.end());
                failed.clear();
                continue;
            }
            let next = if failed.len() < FAILURES_MAX { self.next(work, rest, &failed) } else { None };
            let Some((stream, bytes)) = next else {
                let Some(next) = self.behind_next(work, rest) else { break };
                rest = VolumeSpan::between(next, rest.end());
                failed.clear();
                skips += 1;
                continue;
            };
            let window = VolumeSpan::new(rest.start(), bytes);
            if self.place(work, stream, window)? {
                self.left.remove(&stream);
                rest = VolumeSpan::between(window.end(), rest.end());
                failed.clear();
                skips = 0;
            } else {
                failed.insert(stream);
            }
        }
        Ok(())
    }

    /// Where a stream ends that lies at the start of `rest` in one piece, and stays there.
    fn end_of_whole_at(&self, work: &Work<'_>, rest: VolumeSpan) -> Option<VolumeOffset> {
        let extent = work.extents_within(rest).next().filter(|_| self.packs)?;
        let bounds = work.bounds(&whole(work, extent)?);
        (bounds.start() == rest.start() && rest.covers(&bounds)).then_some(bounds.end())
    }

    /// Where what lies first in `rest` ends: the next place to go on from, where nothing could be placed before it.
    fn behind_next(&self, work: &Work<'_>, rest: VolumeSpan) -> Option<VolumeOffset> {
        let extent = work.extents_within(rest).next().filter(|_| self.packs && !self.left.is_empty())?;
        Some(work.span(extent).end()).filter(|end| *end > rest.start() && *end < rest.end())
    }

    /// What comes to the start of `rest`, and its bytes: what has the most there already, or where it cannot stay; of equals the largest.
    fn next(&mut self, work: &Work<'_>, rest: VolumeSpan, failed: &BTreeSet<usize>) -> Option<(usize, u64)> {
        let fits = |stream: usize, bytes: u64| bytes <= rest.len_bytes() && !failed.contains(&stream);
        let mut fitting: BTreeMap<usize, Fitting> = (self.left.iter())
            .filter(|(stream, bytes)| fits(**stream, **bytes))
            .map(|(stream, bytes)| (*stream, Fitting { bytes: *bytes, own_bytes: 0 }))
            .collect();
        let mut count = fitting.len();
        if let Some(longest) = fitting.values().map(|fitting| fitting.bytes).max() {
            for extent in work.extents_within(VolumeSpan::new(rest.start(), longest)) {
                count += 1;
                let end = work.span(extent).end();
                let Some(fitting) = fitting.get_mut(&work.owner(extent)) else { continue };
                if end.get() - rest.start().get() <= fitting.bytes {
                    fitting.own_bytes += work.layout.len_bytes(extent);
                }
            }
        }
        for extent in self.parking.into_iter().flat_map(|parking| work.extents_within(parking)) {
            count += 1;
            let stream = work.owner(extent);
            if let Some(fitting) = fitting.get_mut(&stream) {
                fitting.own_bytes += work.layout.len_bytes(extent);
            } else if let Some(run) = whole(work, extent).filter(|run| self.packs && fits(stream, run.bytes))
            {
                fitting.insert(stream, Fitting { bytes: run.bytes, own_bytes: run.bytes });
            }
        }
        self.effort.spend(count as u64 * EXTENT_EFFORT);
        let rank = |(stream, fitting): &(usize, Fitting)| {
            let part = (u128::from(fitting.own_bytes) << 32) / u128::from(fitting.bytes.max(1));
            (part, fitting.bytes, Reverse(*stream))
        };
        fitting.into_iter().max_by_key(rank).map(|(stream, fitting)| (stream, fitting.bytes))
    }

    /// Brings a stream into `window`. Whether it lies there.
    fn place(&mut self, work: &mut Work<'_>, stream: usize, window: VolumeSpan) -> Result<bool> {
        work.reserve(window);
        let mut stalls = 0;
        loop {
            let waiting = waiting(work, stream, window);
            if waiting.is_empty() {
                work.claim(window);
                return Ok(true);
            }
            let can_go_on = self.effort.spend(lookup_effort(waiting.len()))
                && stalls <= STALLS_MAX
                && self.clear(work, window, &waiting)?;
            if !can_go_on {
                work.close()?;
                let free = free_within(work, window);
                work.unreserve(window, &free);
                return Ok(false);
            }
            stalls = if move_in(work, stream, window)? { 0 } else { stalls + 1 };
        }
    }

    /// Clears the first places that runs wait for, as many as can be at once. Whether there is one.
    fn clear(
        &mut self,
        work: &mut Work<'_>,
        window: VolumeSpan,
        waiting: &[(Run, VolumeSpan)],
    ) -> Result<bool> {
        let mut misfits = Misfits::default();
        for is_widened in [false, true] {
            if is_widened && !widen(work, &misfits, &[window], u64::MAX, &mut self.effort)? {
                break;
            }
            misfits = Misfits::default();
            let mut has_cleared = false;
            for (_, place) in waiting {
                if !step_aside(work, *place, &mut misfits)? {
                    break;
                }
                has_cleared = true;
            }
            work.close()?;
            if has_cleared {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A stream that could come next.
struct Fitting {
    bytes: u64,
    /// What of it lies where it is to be, or where it cannot stay.
    own_bytes: u64,
}

/// All of the stream that an extent is of, if that is in one piece and may move.
fn whole(work: &Work<'_>, extent: usize) -> Option<Run> {
    let stream = work.owner(extent);
    let run = work.run_of(extent);
    let is_whole =
        run.extents == work.layout.extents_of(stream) && work.bounds(&run).len_bytes() == run.bytes;
    (is_whole && !work.is_locked(stream)).then_some(run)
}

fn bytes_of(work: &Work<'_>, stream: usize) -> u64 {
    work.layout.bytes_of(work.layout.extents_of(stream))
}

/// Moves all that lies in `place` elsewhere, or nothing of it. Whether it is free once the batch is closed.
fn step_aside(work: &mut Work<'_>, place: VolumeSpan, misfits: &mut Misfits) -> Result<bool> {
    let runs = runs_within(work, &[place], |_| true);
    let mut places = Vec::new();
    for run in &runs {
        let Some(place) = work.space.find(run.bytes, Growth::Never) else {
            misfits.count(run);
            places.into_iter().for_each(|(place, _)| work.space.give(place));
            return Ok(false);
        };
        let holes = work.take(run.extents.clone(), place);
        places.push((place, holes));
    }
    for (run, (place, holes)) in runs.into_iter().zip(places) {
        work.move_to_taken(run.extents, place.start(), &holes)?;
    }
    Ok(true)
}

/// Moves each run whose place is free into it. Whether there was one.
fn move_in(work: &mut Work<'_>, stream: usize, window: VolumeSpan) -> Result<bool> {
    let mut vacated = Spans::default();
    let mut has_moved = false;
    for (run, place) in waiting(work, stream, window) {
        let is_free = work.extents_within(place).next().is_none() && vacated.within(place).next().is_none();
        // What was there may have taken no storage.
        if is_free && work.space.write_all_kept(&[place]) {
            run.extents.clone().for_each(|extent| vacated.insert(work.span(extent)));
            work.move_to_taken(run.extents, place.start(), &[])?;
            has_moved = true;
        }
    }
    work.close()?;
    Ok(has_moved)
}
