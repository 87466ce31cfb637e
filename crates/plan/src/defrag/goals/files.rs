//! No fragmented file, with the fewest bytes moved.
//!
//! In this order, the largest streams first:
//! 1. a stream keeps a run of it, the largest that free space beside it allows, and the rest comes next to it; of large streams also
//!    if a little has to move out of the way first;
//! 2. it goes as a whole to the free extent that fits it most tightly;
//! 3. once what others left is free: again;
//! 4. others make room for it: for all at once, so that one can have what another leaves; then for one alone; or they slide together;
//! 5. it is brought into fewer runs.

use block::Result;
use extent::{VolumeOffset, VolumeSpan};

use crate::defrag::moves::{Away, Placement, clear, fill, roll, shift_together, slide, ways};
use crate::defrag::state::{Cells, Effort, Growth, Purpose, Run, Work};

/// A stream of at most this is put near its home.
const SMALL_BYTES: u64 = 64 << 10;

/// Streams from here on are worth clearing room beside a part of them even if they would fit elsewhere.
const WORTH_CLEARING_BYTES: u64 = 1 << 20;

/// Others slide for a stream if they are at most this many times as large: at 95 % full, twenty times as much lies among the gaps
/// that it needs.
const SLIDING_COST_MAX: u64 = 24;

/// As [`EFFORT_MAX`], for that.
const SLIDING_EFFORT_MAX: u64 = 60_000_000;

/// After this many streams in a row for which no room can be made, what was cleared is filled first.
const FAILURES_MAX: usize = 8;

/// Cells and extents that are looked at to make room: about a second.
const EFFORT_MAX: u64 = 300_000_000;

/// Has `gather` bring the fragmented streams together, with what moves beyond them counted: it makes room, and if it is a run that
/// moves a second time.
pub(crate) fn counting_room(
    work: &mut Work<'_>,
    gather: impl FnOnce(&mut Work<'_>) -> Result<()>,
) -> Result<()> {
    let fragmented_bytes: u64 = work.fragmented().iter().map(|stream| stream_bytes(work, *stream)).sum();
    gather(work)?;
    work.made_room_bytes = work.made_room_bytes.max(work.moved_bytes().saturating_sub(fragmented_bytes));
    Ok(())
}

/// Brings the fragmented streams together.
pub(crate) fn gather(work: &mut Work<'_>) -> Result<()> {
    let left = &mut largest_first(work);
    let mut effort = Effort::new(EFFORT_MAX);
    let mut sliding_effort = Effort::new(SLIDING_EFFORT_MAX);
    place_together(work, left)?;
    place_cheaply(work, left, &mut effort)?;
    loop {
        let before = left.len();
        place_directly(work, left, Growth::Limited)?;
        work.close()?;
        if left.is_empty() {
            return Ok(());
        }
        let is_stuck =
            left.len() == before && !roll(work, left, &mut effort)? && !make_room(work, left, &mut effort)?;
        if is_stuck && !extend_free(work, left, &mut sliding_effort)? {
            break;
        }
    }
    for &stream in left.iter() {
        reduce(work, stream)?;
    }
    work.close()?;
    // What that left may hold one of them after all.
    place_again(work, Growth::Limited)
}

/// Places the fragmented streams that fit into what is free by now. They may have moved before, so what moves is counted as what makes room is.
pub(crate) fn place_again(work: &mut Work<'_>, growth: Growth) -> Result<()> {
    let moved_bytes = work.moved_bytes();
    place_left(work, growth)?;
    work.made_room_bytes += work.moved_bytes() - moved_bytes;
    Ok(())
}

/// Places the fragmented streams that fit into what is free, with what others leave.
pub(crate) fn place_left(work: &mut Work<'_>, growth: Growth) -> Result<()> {
    place_what_fits(work, &mut largest_first(work), growth)
}

/// Places streams that fit into what is free, though not into what the container may grow by at once: run by run, and what they leave goes back to the
/// container in between.
pub(crate) fn place_in_steps(work: &mut Work<'_>) -> Result<()> {
    for stream in largest_first(work) {
        let place = work.space.free().best_fit(stream_bytes(work, stream));
        let Some(place) = place.filter(|_| !work.layout.moves_together(stream)) else { continue };
        let mut trial = work.clone();
        if move_in_steps(&mut trial, stream, place.start())? {
            *work = trial;
        }
    }
    Ok(())
}

/// Shifts others together for each stream that is left, and places it in what is free then.
pub(crate) fn shift_for_left(work: &mut Work<'_>) -> Result<()> {
    for stream in largest_first(work).into_iter().rev() {
        let bytes = stream_bytes(work, stream);
        let mut trial = work.clone();
        if shift_together(&mut trial, bytes, bytes.saturating_mul(SLIDING_COST_MAX))? {
            let before = trial.fragmented().len();
            place_in_steps(&mut trial)?;
            if trial.fragmented().len() < before {
                *work = trial;
            }
        }
    }
    Ok(())
}

fn move_in_steps(work: &mut Work<'_>, stream: usize, mut at: VolumeOffset) -> Result<bool> {
    for run in work.runs(stream) {
        let place = VolumeSpan::new(at, run.bytes);
        if !work.space.offers(place, Growth::Limited) {
            work.close()?;
            work.give_back();
        }
        if !work.space.is_a_step(run.bytes) || !work.space.offers(place, Growth::Limited) {
            return Ok(false);
        }
        work.move_to(run.extents, place)?;
        at = place.end();
    }
    work.close()?;
    work.give_back();
    Ok(true)
}

fn place_what_fits(work: &mut Work<'_>, left: &mut Vec<usize>, growth: Growth) -> Result<()> {
    let mut before = usize::MAX;
    while left.len() < before {
        before = left.len();
        place_directly(work, left, growth)?;
        work.close()?;
    }
    Ok(())
}

/// Fragmented streams in the order in which they are placed: of all, those that move together have the fewest places to go.
fn largest_first(work: &Work<'_>) -> Vec<usize> {
    let mut streams = work.fragmented();
    streams.sort_by_key(|stream| {
        (!work.layout.moves_together(*stream), std::cmp::Reverse(stream_bytes(work, *stream)))
    });
    streams
}

fn stream_bytes(work: &Work<'_>, stream: usize) -> u64 {
    work.layout.bytes_of(work.layout.extents_of(stream))
}

/// Places streams that move together before others take the few places that are large enough: as long as they lie in pieces, these are in the
/// way of everything and cannot move aside.
fn place_together(work: &mut Work<'_>, left: &mut Vec<usize>) -> Result<()> {
    let rest = left.split_off(left.partition_point(|stream| work.layout.moves_together(*stream)));
    place_what_fits(work, left, Growth::Limited)?;
    left.extend(rest);
    Ok(())
}

/// Places streams that can keep most of themselves where it is.
fn place_cheaply(work: &mut Work<'_>, left: &mut Vec<usize>, effort: &mut Effort) -> Result<()> {
    let mut cleared = Vec::new();
    let mut rest = Vec::new();
    for &stream in left.iter() {
        let bytes = stream_bytes(work, stream);
        if keep_one(work, stream, Growth::Never)? {
            continue;
        }
        let is_worth = |way: &Placement| way.cost_bytes <= bytes / 2;
        let ways = if bytes >= WORTH_CLEARING_BYTES {
            ways(work, stream, None, bytes / 2, effort)
        } else {
            Vec::new()
        };
        if !place_by_clearing(work, ways.into_iter().filter(is_worth), &mut cleared)? {
            rest.push(stream);
        }
    }
    *left = rest;
    finish_clearing(work, cleared)
}

/// Clears the first of `ways` that can be cleared.
fn place_by_clearing(
    work: &mut Work<'_>,
    ways: impl Iterator<Item = Placement>,
    cleared: &mut Vec<Placement>,
) -> Result<bool> {
    for way in ways {
        let spans: Vec<_> = way.parts.iter().map(|(_, span)| *span).collect();
        // What it keeps is beside the window, and what lies within moves twice.
        if clear(work, &spans, Away::BestFit)? {
            work.set_locked(way.stream, true);
            cleared.push(way);
            return Ok(true);
        }
    }
    Ok(false)
}

fn finish_clearing(work: &mut Work<'_>, cleared: Vec<Placement>) -> Result<()> {
    let streams: Vec<_> = cleared.iter().map(|way| way.stream).collect();
    fill(work, cleared)?;
    streams.into_iter().for_each(|stream| work.set_locked(stream, false));
    Ok(())
}

/// Places what fits into what is free.
fn place_directly(work: &mut Work<'_>, left: &mut Vec<usize>, growth: Growth) -> Result<()> {
    let growths = [Growth::Never, Growth::Limited];
    let may_grow = growth == Growth::Limited && work.space.may_grow();
    let growths = if may_grow { &growths[..] } else { &growths[..1] };
    let mut rest = Vec::new();
    for &stream in left.iter() {
        let mut is_placed = false;
        for &growth in growths {
            is_placed = is_placed || keep_one(work, stream, growth)? || place_whole(work, stream, growth)?;
        }
        if !is_placed {
            rest.push(stream);
        }
    }
    *left = rest;
    Ok(())
}

/// Leaves the largest run that can be kept, and brings the others next to it.
fn keep_one(work: &mut Work<'_>, stream: usize, growth: Growth) -> Result<bool> {
    if work.layout.moves_together(stream) {
        return Ok(false);
    }
    let mut runs = work.runs(stream);
    let too_large_count = runs.iter().filter(|run| !work.space.is_a_step(run.bytes)).count();
    runs.retain(|run| {
        let others = too_large_count - usize::from(!work.space.is_a_step(run.bytes));
        others == 0 && has_free_beside(work, stream, run, growth)
    });
    runs.sort_by_key(|run| std::cmp::Reverse(run.bytes));
    for run in &runs {
        let Some(placement) = Placement::around(work, stream, run) else { continue };
        if work.space.offers_all(placement.parts.iter().map(|(_, span)| *span), growth) {
            for (extents, place) in placement.parts {
                work.move_to(extents, place)?;
            }
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a stream could come to lie around this run of it, as far as the bytes next to the run tell: what goes before it needs the last one before
/// it free, what goes behind it the first one behind. Most runs of a file in many pieces are told apart by that.
fn has_free_beside(work: &Work<'_>, stream: usize, run: &Run, growth: Growth) -> bool {
    let all = work.layout.extents_of(stream);
    let bounds = work.bounds(run);
    let free = match growth {
        Growth::Never => work.space.held(),
        Growth::Limited => work.space.free(),
    };
    let is_free = |at: Option<u64>| at.is_some_and(|at| free.around(VolumeOffset::new(at)).is_some());
    (run.extents.start == all.start || is_free(bounds.start().get().checked_sub(1)))
        && (run.extents.end == all.end || is_free(Some(bounds.end().get())))
}

fn place_whole(work: &mut Work<'_>, stream: usize, growth: Growth) -> Result<bool> {
    let bytes = stream_bytes(work, stream);
    if !work.moves_in_steps(stream) {
        return Ok(false);
    }
    let home = work.hints.home.filter(|_| bytes <= SMALL_BYTES);
    let home = home.and_then(|home| home(work.layout.file(stream)));
    let near = home.and_then(|home| work.space.find_within(bytes, home));
    let Some(place) = near.or_else(|| work.space.find(bytes, growth)) else { return Ok(false) };
    work.move_to(work.layout.extents_of(stream), place)?;
    Ok(true)
}

/// Moves others away for what fits nowhere, the smallest first: what these leave is where those go that are in the way of larger
/// ones. Whether any stream was placed.
fn make_room(work: &mut Work<'_>, left: &mut Vec<usize>, effort: &mut Effort) -> Result<bool> {
    let mut cleared = Vec::new();
    let mut rest = Vec::new();
    let mut cells = Cells::of(work, Purpose::Fill, effort);
    let mut failures = 0;
    while let Some(stream) = left.pop() {
        let ways = ways(work, stream, Some(&cells), u64::MAX, effort);
        if !place_by_clearing(work, ways.into_iter(), &mut cleared)? {
            rest.push(stream);
            failures += 1;
            if failures >= FAILURES_MAX && !cleared.is_empty() {
                break;
            }
            continue;
        }
        failures = 0;
        // The others look elsewhere. What else changed is seen when a window is looked at closely, or in the next round.
        let parts = cleared.last().map(|way| way.parts.as_slice()).unwrap_or_default();
        parts.iter().for_each(|(_, span)| cells.strike(*span));
    }
    left.extend(rest.into_iter().rev());
    let has_placed = !cleared.is_empty();
    finish_clearing(work, cleared)?;
    Ok(has_placed)
}

/// Slides others together until the smallest of `left` fits. Whether it does.
fn extend_free(work: &mut Work<'_>, left: &[usize], effort: &mut Effort) -> Result<bool> {
    let Some(bytes) = left.iter().map(|stream| stream_bytes(work, *stream)).min() else { return Ok(false) };
    let moved_bytes = work.moved_bytes();
    let fits = slide::extend(work, bytes, bytes.saturating_mul(SLIDING_COST_MAX), effort)?;
    work.made_room_bytes += work.moved_bytes() - moved_bytes;
    Ok(fits)
}

/// Brings a stream that cannot be whole into fewer runs: each that fits behind the one before it goes there, and as many of a row as
/// fit go to one free extent. No run moves twice.
fn reduce(work: &mut Work<'_>, stream: usize) -> Result<()> {
    if work.layout.moves_together(stream) {
        return Ok(());
    }
    let runs = work.runs(stream);
    let mut index = 0;
    while index < runs.len() {
        let row = row_that_fits(work, &runs[index..]);
        let mut end = work.bounds(&runs[index]).end();
        let mut next = index + 1;
        if row > 1 {
            let extents = runs[index].extents.start..runs[index + row - 1].extents.end;
            let bytes = work.layout.bytes_of(extents.clone());
            if let Some(place) = work.space.find(bytes, Growth::Never) {
                work.move_to(extents, place)?;
                end = place.end();
                next = index + row;
            }
        }
        while let Some(run) = runs.get(next) {
            let Some(behind) = VolumeSpan::checked(end, run.bytes) else { break };
            if !work.space.offers(behind, Growth::Never) {
                break;
            }
            work.move_to(run.extents.clone(), behind)?;
            end = behind.end();
            next += 1;
        }
        index = next;
    }
    Ok(())
}

/// How many of the first runs fit into one free extent, or none if the first can have the second behind it where it is.
fn row_that_fits(work: &Work<'_>, runs: &[Run]) -> usize {
    let end = work.bounds(&runs[0]).end();
    let behind = runs.get(1).and_then(|second| VolumeSpan::checked(end, second.bytes));
    if behind.is_some_and(|behind| work.space.offers(behind, Growth::Never)) {
        return 0;
    }
    let largest = work.space.held().largest().map_or(0, |span| span.len_bytes());
    let mut rest = largest;
    let fits = |run: &&Run| {
        let left = rest.checked_sub(run.bytes);
        rest = left.unwrap_or(0);
        left.is_some()
    };
    runs.iter().take_while(fits).count()
}
