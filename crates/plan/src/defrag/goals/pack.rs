//! Everything sorted: directories, then the small files of one directory together, then large files.
//!
//! First each stream is given the place where it belongs. Then, from the first place on, what lies there moves to the back of
//! the volume, and in the next batch its owner moves in; as many at once as free space allows. What cannot have its place, because
//! free space is too scarce to clear it, stays where it is.
//!
//! A stream that lies in its order already stays, if between it and the one before there is but a little free space:
//! so one file less does not shift all that follow it. Room for growth counts as such free space; and what is sorted is sorted again
//! until nothing moves: so a second time moves nothing.

use block::Result;
use extent::{ExtentSet, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::FileId;

use super::files;
use crate::defrag::moves::{Away, Placement, clear, fill};
use crate::defrag::state::{FirstFit, Work};

/// A stream of at most this lies with the others of its directory.
const SMALL_BYTES: u64 = 256 << 10;

/// A file in more runs than this grew in steps, and is likely to grow on.
const GROWING_RUNS: usize = 8;

/// Room left behind a file that grows is this part of it, and at most [`GROWTH_ROOM_BYTES_MAX`].
const GROWTH_ROOM_PART: u64 = 8;
const GROWTH_ROOM_BYTES_MAX: u64 = 16 << 20;

/// Free space up to this is left in front of a stream that lies in its order.
const GAP_BYTES_MAX: u64 = 16 << 20;

/// All such gaps, room for growth included, are at most this part of the free space: one twentieth keeps 95 % of it in one piece.
const GAPS_PART: u64 = 20;

/// Sorting moves at most this many times what there is to sort: what makes room moves more than once.
const MOVES_MAX: u64 = 4;

/// A stage that sorts less than one part in so many of what is left to be sorted, and is not full, is the last.
const STAGES_PART: u64 = 64;

/// After so many streams in a row for which no place can be cleared, those that were cleared are filled first.
const FAILURES_MAX: usize = 256;

/// Sorting is repeated at most so often.
const ROUNDS_MAX: usize = 8;

/// Sorts as far as space allows, and brings together what is left in pieces.
pub(crate) fn sort_and_gather(work: &mut Work<'_>) -> Result<()> {
    let streams = 0..work.layout.stream_count();
    let movable: Vec<_> = streams.filter(|stream| !work.is_locked(*stream)).collect();
    let total_bytes = movable.iter().map(|stream| bytes_of(work, *stream)).fold(0, u64::saturating_add);
    let bytes_max = total_bytes.saturating_mul(MOVES_MAX);
    for _ in 0..ROUNDS_MAX {
        let moved_bytes = work.moved_bytes();
        for &stream in &movable {
            // What came together may have become too large to move again.
            work.set_locked(stream, !work.moves_in_steps(stream));
        }
        sort(work, bytes_max)?;
        files::gather(work)?;
        // While the container is larger than before, each batch gives back what is free: the places of others.
        if work.moved_bytes() == moved_bytes || work.space.growth_bytes() > 0 {
            break;
        }
    }
    Ok(())
}

/// Sorts until so many bytes have moved, in stages: places are cleared for as many streams as can be, in the order in which they lie,
/// and then all of these move in.
fn sort(work: &mut Work<'_>, bytes_max: u64) -> Result<()> {
    let made_room_bytes = work.made_room_bytes;
    let targets = Targets::of(work);
    let mut waiting = targets.by_place();
    while work.moved_bytes() <= bytes_max {
        let mut stage = Stage::default();
        let mut rest = Vec::new();
        for (target, stream) in waiting {
            if is_at(work, stream, target) {
                work.set_locked(stream, true);
            } else if !work.is_locked(stream) && !stage.clear(work, stream, target, &targets)? {
                rest.push((target, stream));
            }
        }
        let is_full = stage.bytes >= work.batch_bytes_max();
        let rest_bytes: u64 = rest.iter().map(|(_, stream)| bytes_of(work, *stream)).sum();
        let is_worth_more = is_full || stage.bytes > rest_bytes / STAGES_PART;
        fill(work, stage.placements)?;
        if !is_worth_more {
            break;
        }
        waiting = rest;
    }
    // What moved out of the way made room for the order, not for one file.
    work.made_room_bytes = made_room_bytes;
    Ok(())
}

fn bytes_of(work: &Work<'_>, stream: usize) -> u64 {
    work.layout.bytes_of(work.layout.extents_of(stream))
}

/// Whether a stream lies in one piece at `place`.
fn is_at(work: &Work<'_>, stream: usize, place: VolumeOffset) -> bool {
    let mut at = place;
    work.layout.extents_of(stream).all(|extent| {
        let span = work.span(extent);
        let is_next = span.start() == at;
        at = span.end();
        is_next
    })
}

/// Places that were cleared for streams, which are to move in at once.
#[derive(Default)]
struct Stage {
    placements: Vec<Placement>,
    bytes: u64,
    failures_in_a_row: usize,
}

impl Stage {
    /// Clears the stream's place, if the stage is not full. Whether it did; what is in the way then is on its way already.
    fn clear(
        &mut self,
        work: &mut Work<'_>,
        stream: usize,
        target: VolumeOffset,
        targets: &Targets,
    ) -> Result<bool> {
        if self.bytes >= work.batch_bytes_max() || self.failures_in_a_row >= FAILURES_MAX {
            return Ok(false);
        }
        let place = Span::new(target, bytes_of(work, stream));
        if !clear(work, &[place], Away::Back(&targets.places))? {
            self.failures_in_a_row += 1;
            return Ok(false);
        }
        self.failures_in_a_row = 0;
        self.bytes = self.bytes.saturating_add(place.len_bytes());
        self.placements.push(Placement::whole(work, stream, place));
        work.set_locked(stream, true);
        Ok(true)
    }
}

/// Where streams belong.
struct Targets {
    places: Vec<Option<VolumeOffset>>,
}

impl Targets {
    fn of(work: &Work<'_>) -> Self {
        let regions = regions(work);
        let mut places = vec![None; work.layout.stream_count()];
        let mut at: Vec<_> = regions.iter().map(VolumeSpan::start).collect();
        // The first region with enough room is the first of those that lack the least.
        let mut lacks = FirstFit::new(regions.iter().map(|region| u64::MAX - region.len_bytes()));
        let mut gaps_left = work.space.free().total_bytes() / GAPS_PART;
        for stream in in_order(work) {
            let bytes = bytes_of(work, stream);
            let Some(region) = lacks.first_at_most(u64::MAX - bytes) else { continue };
            let end = regions[region].end();
            let mut place = Span::new(at[region], bytes);
            if let Some(kept) = kept_place(work, stream, place, end, gaps_left) {
                gaps_left -= Span::between(place.start(), kept.start()).len_bytes();
                place = kept;
            }
            places[stream] = Some(place.start());
            let rest = Span::between(place.end(), end).len_bytes();
            let room_bytes = growth_room(work, stream, rest.min(gaps_left));
            gaps_left -= room_bytes;
            at[region] = place.end().plus(room_bytes);
            lacks.set(region, u64::MAX - Span::between(at[region], end).len_bytes());
        }
        Self { places }
    }

    fn by_place(&self) -> Vec<(VolumeOffset, usize)> {
        let places = self.places.iter().enumerate();
        let mut all: Vec<_> = places.filter_map(|(stream, place)| Some(((*place)?, stream))).collect();
        all.sort_unstable();
        all
    }
}

/// What may be written between things that stay, ascending.
fn regions(work: &Work<'_>) -> Vec<VolumeSpan> {
    let movable = work.extents_by_place().filter(|extent| !work.is_locked(work.owner(*extent)));
    let movable = movable.map(|extent| work.span(extent)).filter(|span| !work.space.is_thin(*span));
    let movable: ExtentSet<Volume> = movable.collect();
    movable.union(&work.space.held().iter().collect()).iter().collect()
}

/// Movable streams in the order in which they are to lie.
fn in_order(work: &Work<'_>) -> Vec<usize> {
    let layout = work.layout;
    let key = |stream: usize| {
        let file = layout.file(stream);
        let folder = || work.hints.folder.and_then(|folder| folder(file)).map_or(u64::MAX, |FileId(id)| id);
        let (class, folder) = match bytes_of(work, stream) {
            _ if layout.is_directory(stream) => (0u8, folder()),
            bytes if bytes <= SMALL_BYTES => (1, folder()),
            _ => (2, 0),
        };
        (class, folder, file, stream)
    };
    let mut all: Vec<_> =
        (0..layout.stream_count()).filter(|stream| !work.is_locked(*stream)).map(key).collect();
    all.sort_unstable();
    all.into_iter().map(|(.., stream)| stream).collect()
}

/// Where the stream lies, if that is in one piece, soon enough after the start of `place`, and with nothing between.
fn kept_place(
    work: &Work<'_>,
    stream: usize,
    place: VolumeSpan,
    end: VolumeOffset,
    gaps_left: u64,
) -> Option<VolumeSpan> {
    let now = Span::new(work.span(work.layout.extents_of(stream).start).start(), place.len_bytes());
    let gap = Span::between(place.start(), now.start());
    let is_near =
        now.start() >= place.start() && now.end() <= end && gap.len_bytes() <= gaps_left.min(GAP_BYTES_MAX);
    (is_near && is_at(work, stream, now.start()) && work.space.held().covers(gap)).then_some(now)
}

/// Bytes left free behind a stream that is likely to grow.
fn growth_room(work: &Work<'_>, stream: usize, bytes_max: u64) -> u64 {
    let layout = work.layout;
    if !layout.is_counted(stream) || work.runs(stream).len() <= GROWING_RUNS {
        return 0;
    }
    let room = (bytes_of(work, stream) / GROWTH_ROOM_PART).min(GROWTH_ROOM_BYTES_MAX).min(bytes_max);
    room / layout.cluster_bytes() * layout.cluster_bytes()
}
