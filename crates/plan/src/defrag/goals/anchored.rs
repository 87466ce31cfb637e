//! Streams of which the first extent stays: the others come behind it, or together elsewhere.
//!
//! Invariant: it is the last batch, and nothing else moves in it. What a file system has its records in cannot move while they
//! change.

use std::ops::Range;

use block::Result;
use extent::VolumeSpan;

use crate::defrag::moves::{Away, Placement, can_clear, clear};
use crate::defrag::state::{Cells, Effort, Growth, Purpose, Work};

/// Extents that are looked at.
const EFFORT_MAX: u64 = 60_000_000;

/// Brings the anchored stream together, if there is one in pieces and there is, or can be made, room for it.
pub(crate) fn gather(work: &mut Work<'_>) -> Result<()> {
    let Some(stream) = (0..work.layout.stream_count()).find(|stream| work.is_anchored(*stream)) else {
        return Ok(());
    };
    let runs = work.runs(stream);
    let Some(first) = runs.first().filter(|_| runs.len() > 1) else { return Ok(()) };
    work.close()?;
    let mut effort = Effort::new(EFFORT_MAX);
    let rest = first.extents.end..work.layout.extents_of(stream).end;
    let behind = Placement::around(work, stream, first).and_then(|behind| Some(behind.parts.first()?.1));
    let places = behind.into_iter().chain(elsewhere(work, rest.clone(), runs.len(), &mut effort));
    for place in places {
        if can_clear(work, place, stream, &mut effort) && clear(work, &[place], Away::BestFit)? {
            work.close()?;
            work.claim(place);
            work.move_to_taken(rest, place.start(), &[])?;
            return work.close();
        }
    }
    Ok(())
}

/// Where all but the first run could lie in one, if they are more than one now.
fn elsewhere(work: &Work<'_>, rest: Range<usize>, run_count: usize, effort: &mut Effort) -> Vec<VolumeSpan> {
    if run_count <= 2 {
        return Vec::new();
    }
    let bytes = work.layout.bytes_of(rest);
    let free = work.space.find(bytes, Growth::Never);
    let windows = Cells::of(work, Purpose::Fill, effort).windows(bytes, effort);
    free.into_iter().chain(windows.into_iter().map(|window| window.span)).collect()
}
