//! A plan in the making: where everything lies by now, what is free, and the batches so far.
//!
//! Invariants:
//! - what a batch leaves becomes free when the batch is closed, and not before; nothing moves twice in one batch;
//! - a run moves as a whole, and lies in one piece afterwards: no stream is ever in more runs than it was.
//!
//! Absent on purpose: what to move, which each goal decides.

use std::collections::BTreeMap;
use std::ops::Range;

use block::Result;
use extent::{ExtentSet, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::{Relocation, Relocations};

use super::figures::{bound, changed_block_bytes, figures, left};
use super::layout::Layout;
use super::space::{Space, Storage};
use super::spans::Spans;
use crate::defrag::plan::{DefragOptions, DefragPlan, Emptied, Hints};

/// Why a stream is pinned that the file system would let move.
const FIXED_BELOW: &str = "the image holds a part of it compressed, shared, or only as zeros";

/// Consecutive extents of a stream that count as one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) extents: Range<usize>,
    pub(crate) bytes: u64,
}

#[derive(Clone)]
pub(crate) struct Work<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) hints: &'a Hints<'a>,
    pub(crate) space: Space,
    /// Where each extent lies by now.
    at: Vec<VolumeOffset>,
    /// Whose each extent is.
    owners: Vec<u32>,
    /// The extents that may move, by where they lie by now.
    by_place: BTreeMap<u64, u32>,
    /// Streams that stay, for now or for good.
    locked: Vec<bool>,
    fixed_below: Vec<bool>,
    moves_anchored: bool,
    batch: Batch,
    batch_bytes_max: u64,
    growth_bytes_max: u64,
    batches: Vec<Relocations>,
    releases: Vec<Vec<VolumeSpan>>,
    holes: Vec<Vec<VolumeSpan>>,
    /// The batch in which an extent moved last, counted from one.
    moved_in: Vec<u32>,
    /// What nobody gets when it becomes free.
    reserved: Spans,
    moved_bytes: u64,
    pub(crate) made_room_bytes: u64,
    pub(crate) emptied: Emptied,
    /// Whether what is free within units goes back after the last batch.
    trims: bool,
}

#[derive(Clone, Default)]
struct Batch {
    relocations: Vec<Relocation>,
    /// The extent that was added last.
    last: Option<usize>,
    bytes: u64,
    vacated: Vec<VolumeSpan>,
    /// What of the destinations is not stored.
    holes: Vec<VolumeSpan>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(
        layout: &'a Layout,
        options: &DefragOptions,
        hints: &'a Hints<'a>,
        storage: Storage,
    ) -> Self {
        let (writable, _) = layout.writable();
        let fixed_below: Vec<bool> = (0..layout.stream_count())
            .map(|stream| !layout.extents_of(stream).all(|extent| is_covered(&writable, layout.span(extent))))
            .collect();
        let mut work = Self {
            layout,
            hints,
            space: Space::with_storage(layout, options, storage),
            at: layout.places(),
            owners: owners(layout),
            by_place: BTreeMap::new(),
            locked: Vec::new(),
            fixed_below,
            moves_anchored: options.moves_anchored,
            batch: Batch::default(),
            batch_bytes_max: options.batch_bytes_max,
            growth_bytes_max: options.growth_bytes_max,
            batches: Vec::new(),
            releases: Vec::new(),
            holes: Vec::new(),
            moved_in: vec![0; layout.extent_count()],
            reserved: Spans::default(),
            moved_bytes: 0,
            made_room_bytes: 0,
            emptied: Emptied::default(),
            trims: false,
        };
        work.unlock();
        let movable = (0..layout.stream_count()).filter(|stream| !work.locked[*stream]);
        let mut by_place: Vec<_> = movable
            .flat_map(|stream| layout.extents_of(stream))
            .map(|extent| (work.at[extent].get(), u32::try_from(extent).expect("fewer than 2^32 extents")))
            .collect();
        by_place.sort_unstable();
        work.by_place = by_place.into_iter().collect();
        work
    }

    /// Why a stream stays; `None` if it may move.
    pub(crate) fn pinned(&self, stream: usize) -> Option<&'static str> {
        let reason =
            self.layout.pinned(stream).filter(|_| !(self.moves_anchored && self.layout.is_anchored(stream)));
        reason.or_else(|| self.fixed_below[stream].then_some(FIXED_BELOW))
    }

    /// Whether each run of a stream can move at once.
    pub(crate) fn moves_in_steps(&self, stream: usize) -> bool {
        self.runs(stream).iter().all(|run| self.space.is_a_step(self.moving_with(run.extents.start).bytes))
    }

    /// Has every stream move again that may.
    pub(crate) fn unlock(&mut self) {
        let stays = |stream| {
            self.layout.is_anchored(stream) || self.pinned(stream).is_some() || !self.moves_in_steps(stream)
        };
        self.locked = (0..self.layout.stream_count()).map(stays).collect();
    }

    /// Whether a stream is one whose first extent stays, and the others are to come behind it.
    pub(crate) fn is_anchored(&self, stream: usize) -> bool {
        self.layout.is_anchored(stream) && self.pinned(stream).is_none()
    }

    /// Whether a stream stays, for now or for good.
    pub(crate) fn is_locked(&self, stream: usize) -> bool {
        self.locked[stream]
    }

    /// Keeps what makes room for others from moving a stream, or no longer.
    pub(crate) fn set_locked(&mut self, stream: usize, is_locked: bool) {
        self.locked[stream] = is_locked;
    }

    /// Whose an extent is.
    pub(crate) fn owner(&self, extent: usize) -> usize {
        self.owners[extent] as usize
    }

    /// Where an extent lies by now.
    pub(crate) fn span(&self, extent: usize) -> VolumeSpan {
        Span::new(self.at[extent], self.layout.len_bytes(extent))
    }

    /// From where the run begins to where it ends, holes that it spans included.
    pub(crate) fn bounds(&self, run: &Run) -> VolumeSpan {
        Span::between(self.span(run.extents.start).start(), self.span(run.extents.end - 1).end())
    }

    /// Whether an extent moved in this batch, and so cannot move on before the next.
    pub(crate) fn is_in_batch(&self, extent: usize) -> bool {
        self.moved_in[extent] == self.batch_number()
    }

    fn batch_number(&self) -> u32 {
        u32::try_from(self.batches.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    pub(crate) fn batch_bytes_max(&self) -> u64 {
        self.batch_bytes_max
    }

    fn follows(&self, extent: usize) -> bool {
        self.layout.follows(extent, self.at[extent - 1], self.at[extent])
    }

    /// The runs of a stream, in its order.
    pub(crate) fn runs(&self, stream: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let extents = self.layout.extents_of(stream);
        for extent in extents.clone() {
            let bytes = self.layout.len_bytes(extent);
            match runs.last_mut().filter(|_| extent > extents.start && self.follows(extent)) {
                Some(run) => {
                    run.extents.end = extent + 1;
                    run.bytes += bytes;
                }
                None => runs.push(Run { extents: extent..extent + 1, bytes }),
            }
        }
        runs
    }

    /// The run that an extent is of.
    pub(crate) fn run_of(&self, extent: usize) -> Run {
        let all = self.layout.extents_of(self.owner(extent));
        let (mut start, mut end) = (extent, extent + 1);
        while start > all.start && self.follows(start) {
            start -= 1;
        }
        while end < all.end && self.follows(end) {
            end += 1;
        }
        Run { extents: start..end, bytes: self.layout.bytes_of(start..end) }
    }

    /// Whether a run may move while the rest of its stream stays, or is all of it.
    pub(crate) fn moves_alone(&self, run: &Run) -> bool {
        let stream = self.owner(run.extents.start);
        !self.layout.moves_together(stream) || self.layout.extents_of(stream) == run.extents
    }

    /// The run that an extent is of, or all of a stream that moves together.
    pub(crate) fn moving_with(&self, extent: usize) -> Run {
        let stream = self.owner(extent);
        if !self.layout.moves_together(stream) {
            return self.run_of(extent);
        }
        let extents = self.layout.extents_of(stream);
        Run { bytes: self.layout.bytes_of(extents.clone()), extents }
    }

    /// Streams that may move and are in more than one run.
    pub(crate) fn fragmented(&self) -> Vec<usize> {
        let is_fragmented = |stream: &usize| {
            let extents = self.layout.extents_of(*stream);
            extents.len() > 1
                && self.pinned(*stream).is_none()
                && !self.layout.is_anchored(*stream)
                && self.layout.run_count(&self.at, extents) > 1
        };
        (0..self.layout.stream_count()).filter(is_fragmented).collect()
    }

    /// Extents that may move and lie in `span`, or partly so, ascending.
    pub(crate) fn extents_within(&self, span: VolumeSpan) -> impl Iterator<Item = usize> + '_ {
        let before =
            self.by_place.range(..span.start().get()).next_back().map(|(_, extent)| *extent as usize);
        let before = before.filter(|extent| self.span(*extent).end() > span.start());
        let rest =
            self.by_place.range(span.start().get()..span.end().get()).map(|(_, extent)| *extent as usize);
        before.into_iter().chain(rest)
    }

    /// All extents that may move, ascending.
    pub(crate) fn extents_by_place(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_place.values().map(|extent| *extent as usize)
    }

    /// Moves extents to a place that was found free, where they lie one after the other.
    pub(crate) fn move_to(&mut self, extents: Range<usize>, to: VolumeSpan) -> Result<()> {
        let holes = self.take(extents.clone(), to);
        self.move_to_taken(extents, to.start(), &holes)
    }

    /// Takes a place that was found free for extents. Answers what of it is not stored once they lie there.
    pub(crate) fn take(&mut self, extents: Range<usize>, to: VolumeSpan) -> Vec<VolumeSpan> {
        let holes = self.holes_at(extents, to.start());
        self.space.take(to, &holes);
        holes
    }

    /// As [`Self::take`], of what was reserved. `None`, and nothing happened, if the container must not grow by that.
    pub(crate) fn take_reserved(&mut self, extents: Range<usize>, to: VolumeSpan) -> Option<Vec<VolumeSpan>> {
        let holes = self.holes_at(extents, to.start());
        self.space.write_kept(to, &holes).then_some(holes)
    }

    /// What of the place from `to` on is not stored once extents lie there.
    fn holes_at(&self, extents: Range<usize>, to: VolumeOffset) -> Vec<VolumeSpan> {
        let mut at = to;
        self.space.holes_of(extents.map(|extent| {
            let from = self.span(extent);
            let to = at;
            at = to.plus(from.len_bytes());
            (from, to)
        }))
    }

    /// As [`Self::move_to`], to a place that was taken, of which `holes` are not written. What was reserved is stored, and has none: it stays so
    /// for what else comes there.
    pub(crate) fn move_to_taken(
        &mut self,
        extents: Range<usize>,
        to: VolumeOffset,
        holes: &[VolumeSpan],
    ) -> Result<()> {
        let mut to = to;
        if extents.clone().any(|extent| self.is_in_batch(extent)) {
            self.close()?;
        }
        // What moves together moves in one batch.
        let together =
            extents.clone().next().is_some_and(|first| self.layout.moves_together(self.owner(first)));
        if together {
            self.close_if_full(self.layout.bytes_of(extents.clone()))?;
        }
        for extent in extents {
            if !together {
                self.close_if_full(self.layout.len_bytes(extent))?;
            }
            self.relocate(extent, to, holes);
            to = to.plus(self.layout.len_bytes(extent));
        }
        Ok(())
    }

    fn close_if_full(&mut self, more_bytes: u64) -> Result<()> {
        let is_full = self.batch.bytes.saturating_add(more_bytes) > self.batch_bytes_max;
        if is_full && !self.batch.relocations.is_empty() { self.close() } else { Ok(()) }
    }

    fn relocate(&mut self, extent: usize, to: VolumeOffset, holes: &[VolumeSpan]) {
        let from = self.span(extent);
        let place = Span::new(to, from.len_bytes());
        let first = holes.partition_point(|hole| hole.end() <= place.start());
        let holes: Vec<_> = holes[first..].iter().map_while(|hole| hole.intersect(&place)).collect();
        debug_assert!(self.space.counts(place, &holes), "what is written is counted");
        self.space.written(place, &holes);
        for hole in holes {
            match self.batch.holes.last_mut().filter(|last| last.end() == hole.start()) {
                Some(last) => *last = Span::between(last.start(), hole.end()),
                None => self.batch.holes.push(hole),
            }
        }
        let file = self.layout.file(self.owner(extent));
        let follows = self.batch.last.is_some_and(|last| {
            last + 1 == extent && self.layout.extents_of(self.owner(extent)).start != extent
        });
        let last = self.batch.relocations.last_mut();
        let last =
            last.filter(|last| follows && last.from.end() == from.start() && last.to_span().end() == to);
        match last {
            Some(last) => last.from = Span::between(last.from.start(), from.end()),
            None => self.batch.relocations.push(Relocation { from, to, file }),
        }
        self.batch.last = Some(extent);
        self.batch.bytes += from.len_bytes();
        self.batch.vacated.push(from);
        self.moved_bytes += from.len_bytes();
        self.moved_in[extent] = self.batch_number();
        self.at[extent] = to;
        self.by_place.remove(&from.start().get());
        self.by_place.insert(to.get(), u32::try_from(extent).expect("fewer than 2^32 extents"));
    }

    /// Ends the batch: what it left is free from now on.
    pub(crate) fn close(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let has_moved = !batch.relocations.is_empty();
        if has_moved {
            self.batches.push(Relocations::new(batch.relocations)?);
        }
        for span in batch.vacated {
            let mut at = span.start();
            for kept in self.reserved.within(span).collect::<Vec<_>>() {
                self.give(Span::between(at, kept.start()));
                at = kept.end();
            }
            self.give(Span::between(at, span.end()));
        }
        if has_moved {
            self.releases.push(self.space.shrink(&batch.holes));
            self.holes.push(batch.holes);
        }
        Ok(())
    }

    fn give(&mut self, span: VolumeSpan) {
        if !span.is_empty() {
            self.space.give(span);
        }
    }

    /// Gives the container what is free as of the last batch, as far as it took more than it had.
    pub(crate) fn give_back(&mut self) {
        let more = self.space.shrink(&[]);
        if let Some(release) = self.releases.last_mut() {
            release.extend(more);
        }
    }

    /// Keeps `span` for something: what is free of it is taken, and what becomes free of it is given to nobody.
    /// Answers what was free.
    pub(crate) fn reserve(&mut self, span: VolumeSpan) -> Vec<VolumeSpan> {
        self.reserved.insert(span);
        self.space.hold(span)
    }

    /// Gives up a reservation of which `parts` were free.
    pub(crate) fn unreserve(&mut self, span: VolumeSpan, parts: &[VolumeSpan]) {
        self.reserved.remove(span);
        parts.iter().for_each(|part| self.give(*part));
    }

    /// Makes a reservation a taken place: all of it is free by now.
    pub(crate) fn claim(&mut self, span: VolumeSpan) {
        self.reserved.remove(span);
    }

    /// Bytes that move so far.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// The extent that may move and begins at `at` or next after it.
    pub(crate) fn extent_from(&self, at: VolumeOffset) -> Option<usize> {
        self.by_place.range(at.get()..).next().map(|(_, extent)| *extent as usize)
    }

    /// The extent that may move and ends at `at` or next before it.
    pub(crate) fn extent_until(&self, at: VolumeOffset) -> Option<usize> {
        self.by_place.range(..at.get()).next_back().map(|(_, extent)| *extent as usize)
    }

    /// How many bytes more than before are needed by now, if what is free within units could go back as well.
    pub(crate) fn growth_without_gaps(&self) -> u64 {
        let gaps_bytes: u64 = self.gaps().iter().map(|gap| gap.len_bytes()).sum();
        self.space.growth_bytes().saturating_sub(gaps_bytes)
    }

    /// What is free and held by now, and was not so before.
    fn gaps(&self) -> ExtentSet<Volume> {
        let (_, allocated) = self.layout.writable();
        let held: ExtentSet<Volume> = self.space.held().iter().collect();
        held.subtract(&self.layout.room().intersect(&allocated))
    }

    /// Has what is free within units given back after the last batch.
    pub(crate) fn trim(&mut self) {
        self.trims = true;
    }

    /// The plan, after the last batch was closed, of which so much free space could be in one piece.
    pub(crate) fn finish(self, movable_free_bytes: u64) -> DefragPlan {
        assert!(self.batch.relocations.is_empty(), "the last batch was closed");
        let now = self.layout.places();
        let bound = bound(self.layout, &self.at, self.growth_bytes_max);
        let trimmed: Vec<_> = if self.trims { self.gaps().iter().collect() } else { Vec::new() };
        let trimmed_bytes = trimmed.iter().map(VolumeSpan::len_bytes).sum();
        let destinations = self.batches.iter().flat_map(Relocations::by_source).map(|each| each.to_span());
        DefragPlan {
            before: figures(self.layout, &now),
            after: figures(self.layout, &self.at),
            moved_bytes: self.moved_bytes,
            made_room_bytes: self.made_room_bytes,
            growth_bytes: self.space.peak_bytes(),
            growth_left_bytes: self.space.growth_bytes().saturating_sub(trimmed_bytes),
            more_places_bytes: 0,
            movable_free_bytes,
            changed_block_bytes: changed_block_bytes(destinations),
            emptied: self.emptied,
            unmet: None,
            left: left(self.layout, &self.at, |stream| self.pinned(stream), bound),
            trimmed,
            batches: self.batches,
            releases: self.releases,
            holes: self.holes,
        }
    }
}

fn owners(layout: &Layout) -> Vec<u32> {
    let mut owners = Vec::with_capacity(layout.extent_count());
    for stream in 0..layout.stream_count() {
        let owner = u32::try_from(stream).expect("fewer than 2^32 extents");
        owners.extend(layout.extents_of(stream).map(|_| owner));
    }
    owners
}

fn is_covered(set: &ExtentSet<Volume>, span: VolumeSpan) -> bool {
    let mut held = set.within(span);
    held.next().is_some_and(|held| held.covers(&span))
}
