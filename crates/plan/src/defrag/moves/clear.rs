//! Room where there is none: what lies in a window moves elsewhere, so that a stream can have it in the next batch.
//!
//! Invariants:
//! - what is moved away are whole runs, to places that are free and allocated: it is in no more pieces than before;
//! - a window is cleared in full or nothing of it moves; until it is filled nobody else is given a part of it.
//!
//! Absent on purpose: making room for what makes room, but for gaps that are joined ([`mod@super::widen`]).

use block::Result;
use extent::{VolumeOffset, VolumeSpan};

use super::aside::{Misfits, runs_within};
use super::ways::Placement;
use super::widen::widen;
use crate::defrag::state::{Effort, Growth, Run, Work};

/// All runs that lie in `spans`, or partly so, largest first. `None` if one of them stays, or does so until the batch is closed.
fn victims(work: &Work<'_>, spans: &[VolumeSpan]) -> Option<Vec<Run>> {
    let mut extents = spans.iter().flat_map(|span| work.extents_within(*span));
    if extents.any(|extent| work.is_locked(work.owner(extent)) || work.is_in_batch(extent)) {
        return None;
    }
    let runs = runs_within(work, spans, |_| true);
    runs.iter().all(|run| work.space.is_a_step(run.bytes)).then_some(runs)
}

/// Where what is moved away goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Away<'a> {
    /// Where it fits most tightly.
    BestFit,
    /// To where its stream is to lie in the end, as this says by stream, or as far back as may be: a later step is least
    /// likely to want it gone from there.
    Back(&'a [Option<VolumeOffset>]),
}

/// Moves all that lies in `spans` away, and keeps them for the caller, who is to fill them after the batch was closed. `false`,
/// and nothing moved, if that cannot be done.
pub(crate) fn clear(work: &mut Work<'_>, spans: &[VolumeSpan], away: Away<'_>) -> Result<bool> {
    let Some(victims) = victims(work, spans) else { return Ok(false) };
    let kept: Vec<_> = spans.iter().map(|span| (*span, work.reserve(*span))).collect();
    let places = find_places(work, &victims, away);
    // What left it may have taken no storage.
    if places.len() < victims.len() || !work.space.write_all_kept(spans) {
        places.into_iter().for_each(|(place, _)| work.space.give(place));
        kept.into_iter().for_each(|(span, parts)| work.unreserve(span, &parts));
        return Ok(false);
    }
    for (run, (place, holes)) in victims.into_iter().zip(places) {
        work.made_room_bytes += run.bytes;
        work.move_to_taken(run.extents, place.start(), &holes)?;
    }
    Ok(true)
}

/// Moves of what lies in `window` what fits into gaps elsewhere, largest first. Where gaps are too small, some are joined.
pub(crate) fn clear_what_fits(work: &mut Work<'_>, window: VolumeSpan, effort: &mut Effort) -> Result<()> {
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

/// Takes a place for each run, with its holes; fewer places than runs if one does not fit.
fn find_places(work: &mut Work<'_>, runs: &[Run], away: Away<'_>) -> Vec<(VolumeSpan, Vec<VolumeSpan>)> {
    let mut places = Vec::with_capacity(runs.len());
    for run in runs {
        let place = match away {
            Away::BestFit => work.space.find(run.bytes, Growth::Never),
            Away::Back(targets) => find_target(work, run, targets).or_else(|| find_back(work, run.bytes)),
        };
        let Some(place) = place else { break };
        let holes = work.take(run.extents.clone(), place);
        places.push((place, holes));
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
pub(crate) fn fill(work: &mut Work<'_>, placements: Vec<Placement>) -> Result<()> {
    work.close()?;
    placements.iter().flat_map(|placement| &placement.parts).for_each(|(_, span)| work.claim(*span));
    for placement in placements {
        for (extents, place) in placement.parts {
            work.move_to_taken(extents, place.start(), &[])?;
        }
    }
    work.close()
}
