//! Free space, and what writing to it costs the container.
//!
//! Invariants:
//! - what the container holds for others is never in it;
//! - what is not stored is taken by whole units of the container, or blocks of the host where that has holes, and only within the limit;
//! - what moves and is not stored takes nothing where it goes: what is stored there goes back;
//! - what was taken is made good once a batch is closed, by giving back free units, the smallest free extents first; in few pieces where
//!   units are as small as the host's blocks. Where holes were filled, parts of units go back as well.

use block::HOST_BLOCK_BYTES;
use extent::{VolumeOffset, VolumeSpan};

use super::layout::{Layout, span_at};
use super::spans::Spans;
use super::unstored::{Unstored, UnstoredByPlace};
use crate::defrag::plan::DefragOptions;

/// How many free extents are looked at where one choice differs from another in what it costs.
const LOOKED_AT_MAX: usize = 64;

/// Few files are smaller than this: a free extent of less is of little use.
const SLIVER_BYTES: u64 = 16 << 10;

/// What the container may grow by, as a part of all that it may, for one of many gaps.
const LITTLE_PART: u64 = 16;

/// What is given back at once comes in about so many pieces at the most, as far as free space is in pieces that large: the host is asked
/// for each by itself, and works for as long on a block as on many.
const GIVEN_PIECES: u64 = 16;

/// Whether the container may grow for a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// It must not.
    Never,
    /// As far as the limit goes.
    Limited,
}

/// Whether it counts what the container does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Storage {
    /// Writing there makes the container larger.
    Counted,
    /// It is planned as if the container held all of the volume.
    Ignored,
    /// The same, but what moves at once is no larger than what the container may grow by.
    InSteps,
}

/// A window that is being emptied.
#[derive(Clone, Debug)]
struct Aside {
    window: VolumeSpan,
    /// What of it is free, and what of that is allocated.
    free: Spans,
    held: Option<Spans>,
}

/// The space that a change in place may use.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// All that is free.
    free: Spans,
    /// What of it is allocated in the container. `None` if that is all.
    held: Option<Spans>,
    /// What is not stored, free or not.
    thin: Unstored,
    aside: Option<Aside>,
    /// What was borrowed and not written yet. Nothing is given back while something is borrowed.
    loan: Option<Spans>,
    /// How much more the container takes by now.
    growth_bytes: u64,
    /// How much of that are holes of the host's file that were filled: so much can go back in parts of a unit.
    filled_bytes: u64,
    /// How many bytes more than it had taken were given back, since it gives back whole units.
    spare_bytes: u64,
    /// The most that it took.
    peak_bytes: u64,
    growth_bytes_max: u64,
    unit_bytes: u64,
    /// What is larger does not move.
    step_bytes_max: u64,
}

impl Space {
    pub(crate) fn new(layout: &Layout, options: &DefragOptions) -> Self {
        Self::with_storage(layout, options, Storage::Counted)
    }

    pub(crate) fn with_storage(layout: &Layout, options: &DefragOptions, storage: Storage) -> Self {
        let (writable, allocated) = layout.writable();
        let thin = match storage {
            Storage::Counted => Unstored::new(layout, options),
            Storage::Ignored | Storage::InSteps => Unstored::nothing(options),
        };
        let free = layout.room().intersect(&writable);
        let held = (!thin.is_empty()).then(|| free.intersect(&allocated).iter().collect());
        Self {
            free: free.iter().collect(),
            held,
            thin,
            aside: None,
            loan: None,
            growth_bytes: 0,
            filled_bytes: 0,
            spare_bytes: 0,
            peak_bytes: 0,
            growth_bytes_max: options.growth_bytes_max,
            unit_bytes: options.unit_bytes.max(1),
            step_bytes_max: match storage {
                Storage::Counted | Storage::Ignored => u64::MAX,
                Storage::InSteps => step_bytes_max(options),
            },
        }
    }

    /// Whether so much can move at once.
    pub(crate) fn is_a_step(&self, len_bytes: u64) -> bool {
        len_bytes <= self.step_bytes_max
    }

    /// All that is free.
    pub(crate) fn free(&self) -> &Spans {
        &self.free
    }

    /// What is free and allocated.
    pub(crate) fn held(&self) -> &Spans {
        self.held.as_ref().unwrap_or(&self.free)
    }

    /// Half of what is free is in gaps of at least this size.
    pub(crate) fn gap_bytes(&self) -> u64 {
        let mut rest = self.free.total_bytes() / 2;
        let half = self.free.lengths_down().find(|gap| {
            let is_half = *gap >= rest;
            rest = rest.saturating_sub(*gap);
            is_half
        });
        half.unwrap_or(0)
    }

    /// How many bytes more than before the container takes by now.
    pub(crate) fn growth_bytes(&self) -> u64 {
        self.growth_bytes
    }

    /// How many more it took at the most.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Whether there is any choice to be made about growth.
    pub(crate) fn may_grow(&self) -> bool {
        self.growth_bytes < self.growth_bytes_max && !self.thin.is_empty()
    }

    /// Whether all of `span` is free, and may be written.
    pub(crate) fn offers(&self, span: VolumeSpan, growth: Growth) -> bool {
        match growth {
            Growth::Never => self.held().covers(span),
            Growth::Limited => self.free.covers(span) && self.affords(self.growth_of(span)),
        }
    }

    /// Whether all of the disjoint `spans` are free, and may be written.
    pub(crate) fn offers_all(&self, spans: impl Iterator<Item = VolumeSpan> + Clone, growth: Growth) -> bool {
        spans.clone().all(|span| self.offers(span, growth))
            && (growth == Growth::Never || self.affords(spans.map(|span| self.growth_of(span)).sum()))
    }

    /// Whether a part of `span` is not allocated, free or not.
    pub(crate) fn is_thin(&self, span: VolumeSpan) -> bool {
        self.thin.touches(span)
    }

    /// [`Self::is_thin`], asked of spans that ascend, one behind the other.
    pub(crate) fn thin_by_place(&self) -> UnstoredByPlace<'_> {
        self.thin.by_place()
    }

    /// Whether writing `span` makes the container grow by so little that there could be many of its kind.
    pub(crate) fn is_little_growth(&self, span: VolumeSpan) -> bool {
        self.growth_of(span) <= self.growth_bytes_max / LITTLE_PART
    }

    /// Whether the container could take all of `span` at once.
    pub(crate) fn has_storage_at(&self, span: VolumeSpan) -> bool {
        self.affords(self.growth_of(span))
    }

    /// Counts that `span`, which was kept from others, is written but for `holes`. `false`, and nothing counted, if the container must not
    /// grow by that.
    pub(crate) fn write_kept(&mut self, span: VolumeSpan, holes: &[VolumeSpan]) -> bool {
        let is_affordable = self.affords(self.growth_but(span, holes));
        if is_affordable {
            self.grow_but(span, holes);
        }
        is_affordable
    }

    /// Counts that all of `spans`, which were kept from others, are written. `false`, and nothing counted, if the container must not grow by that.
    pub(crate) fn write_all_kept(&mut self, spans: &[VolumeSpan]) -> bool {
        let is_affordable = self.affords(spans.iter().map(|span| self.growth_of(*span)).sum());
        if is_affordable {
            spans.iter().for_each(|span| self.grow_but(*span, &[]));
        }
        is_affordable
    }

    /// [`Unstored::holes_of`].
    pub(crate) fn holes_of(
        &self,
        moves: impl Iterator<Item = (VolumeSpan, VolumeOffset)>,
    ) -> Vec<VolumeSpan> {
        self.thin.holes_of(moves)
    }

    /// Whether all of the disjoint places are free, and may be written but for the holes of each.
    pub(crate) fn offers_all_but(&self, places: &[(VolumeSpan, Vec<VolumeSpan>)]) -> bool {
        let growth_bytes = || places.iter().map(|(span, holes)| self.growth_but(*span, holes)).sum();
        places.iter().all(|(span, _)| self.free.covers(*span)) && self.affords(growth_bytes())
    }

    /// By how much the container grows at the most if `span` is written but for `holes`.
    fn growth_but(&self, span: VolumeSpan, holes: &[VolumeSpan]) -> u64 {
        let all = self.growth_of(span);
        match holes.is_empty() {
            true => all,
            false => all.min(parts_but(span, holes).map(|part| self.growth_of(part)).sum()),
        }
    }

    /// The place in the tightest free extent for `len_bytes`.
    pub(crate) fn find(&self, len_bytes: u64, growth: Growth) -> Option<VolumeSpan> {
        let held = self.held().best_fit(len_bytes).map(|span| span_at(span.start().get(), len_bytes));
        match growth {
            Growth::Never => held,
            Growth::Limited => held.or_else(|| self.find_growing(len_bytes)),
        }
    }

    /// A place without growth that leaves no sliver in which nothing would fit, if there is one that is not much larger than
    /// needed; otherwise the tightest.
    pub(crate) fn find_without_sliver(&self, len_bytes: u64) -> Option<VolumeSpan> {
        let held = self.held();
        let tightest = held.best_fit(len_bytes)?;
        let with_rest = || held.best_fit(len_bytes.saturating_add(SLIVER_BYTES));
        let is_near = |span: &VolumeSpan| {
            span.len_bytes() <= len_bytes.saturating_mul(2).saturating_add(2 * SLIVER_BYTES)
        };
        let leaves_none = tightest.len_bytes() == len_bytes;
        let found = if leaves_none { tightest } else { with_rest().filter(is_near).unwrap_or(tightest) };
        Some(span_at(found.start().get(), len_bytes))
    }

    /// As [`Self::find`], within `home`, without growth.
    pub(crate) fn find_within(&self, len_bytes: u64, home: VolumeSpan) -> Option<VolumeSpan> {
        let near = self.held().within(home).take(LOOKED_AT_MAX);
        let tightest = near.filter(|span| span.len_bytes() >= len_bytes).min_by_key(VolumeSpan::len_bytes)?;
        Some(span_at(tightest.start().get(), len_bytes))
    }

    fn find_growing(&self, len_bytes: u64) -> Option<VolumeSpan> {
        let places = self.free.fitting(len_bytes).take(LOOKED_AT_MAX).flat_map(|span| {
            [span.start().get(), span.end().get() - len_bytes].map(|start| span_at(start, len_bytes))
        });
        let (growth, place) =
            places.map(|place| (self.growth_of(place), place)).min_by_key(|(growth, _)| *growth)?;
        self.affords(growth).then_some(place)
    }

    /// Whether most of what is free is not allocated.
    pub(crate) fn is_mostly_thin(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.total_bytes() < self.free.total_bytes() / 2)
    }

    /// Whether `len_bytes` in one piece could be written anywhere, however much is free.
    pub(crate) fn has_storage_for(&self, len_bytes: u64) -> bool {
        let held = || self.held().largest().map_or(0, |span| span.len_bytes());
        let has_storage = self.held.is_none() || len_bytes <= self.growth_bytes_max || len_bytes <= held();
        has_storage || self.find_growing(len_bytes).is_some()
    }

    /// Whether `len_bytes` would find a place if the container took no more than before, as it will once the batch is closed.
    pub(crate) fn would_find(&self, len_bytes: u64) -> bool {
        self.growth_bytes > 0 && len_bytes <= self.growth_bytes_max && self.free.best_fit(len_bytes).is_some()
    }

    /// Gives nobody a part of `window` from now on. What becomes free in it can be given back to the container.
    pub(crate) fn set_aside(&mut self, window: VolumeSpan) {
        let parts = |spans: &mut Spans| spans.remove_within(window).into_iter().collect::<Spans>();
        let (free, held) = (parts(&mut self.free), self.held.as_mut().map(parts));
        self.aside = Some(Aside { window, free, held });
    }

    /// The window that was set aside is like any other place again.
    pub(crate) fn end_aside(&mut self) {
        let Some(aside) = self.aside.take() else { return };
        aside.free.iter().for_each(|span| self.free.insert(span));
        if let (Some(held), Some(more)) = (&mut self.held, aside.held) {
            more.iter().for_each(|span| held.insert(span));
        }
    }

    /// Places for `len_bytes` at both ends of free extents, whether the container holds them or not.
    pub(crate) fn places_for(&self, len_bytes: u64) -> impl Iterator<Item = VolumeSpan> + '_ {
        self.free.fitting(len_bytes).take(LOOKED_AT_MAX).flat_map(move |span| {
            [span.start().get(), span.end().get() - len_bytes].map(|start| span_at(start, len_bytes))
        })
    }

    /// Bytes of units in which nothing is needed once `span` was left.
    pub(crate) fn units_left_by(&self, span: VolumeSpan) -> u64 {
        let before = span.start().get().checked_sub(1).and_then(|at| self.free.around(VolumeOffset::new(at)));
        let after = self.free.around(span.end());
        let start = before.map_or(span.start(), |before| before.start());
        let end = after.map_or(span.end(), |after| after.end());
        let units = |span| self.thin.units_within(span).len_bytes();
        let before_bytes: u64 = before.into_iter().chain(after).map(units).sum();
        units(VolumeSpan::between(start, end)).saturating_sub(before_bytes)
    }

    fn affords(&self, growth_bytes: u64) -> bool {
        let more_bytes = growth_bytes.saturating_sub(self.spare_bytes);
        self.growth_bytes.checked_add(more_bytes).is_some_and(|sum| sum <= self.growth_bytes_max)
    }

    /// By how much the container grows if `span` is written.
    pub(crate) fn growth_of(&self, span: VolumeSpan) -> u64 {
        if self.held.is_some() { self.thin.growth_of(span) } else { 0 }
    }

    /// Takes storage for free space that has none, in whole units, the largest pieces first, and no more than `bytes_max` or than the
    /// container may grow by. It is as good as what is allocated until [`Self::end_loan`], and nothing is given back meanwhile. Answers
    /// the pieces.
    pub(crate) fn borrow(&mut self, bytes_max: u64) -> Vec<VolumeSpan> {
        if self.held.is_none() {
            return Vec::new();
        }
        let mut rest = self.growth_bytes_max.saturating_sub(self.growth_bytes).min(bytes_max);
        let mut pieces = Vec::new();
        for free in self.free.fitting(self.unit_bytes).rev().take(LOOKED_AT_MAX) {
            let thin = self.thin.absent_units_within(free);
            let Some(largest) = thin.max_by_key(VolumeSpan::len_bytes) else { continue };
            let len_bytes = largest.len_bytes().min(rest / self.unit_bytes * self.unit_bytes);
            if len_bytes > 0 {
                pieces.push(span_at(largest.start().get(), len_bytes));
                rest -= len_bytes;
            }
        }
        pieces.iter().for_each(|piece| self.grow(*piece));
        self.loan = Some(pieces.iter().copied().collect());
        pieces
    }

    /// Counts that `span`, which was taken, is really written but for `holes`: the container has storage for it from now on.
    pub(crate) fn written(&mut self, span: VolumeSpan, holes: &[VolumeSpan]) {
        for part in parts_but(span, holes) {
            let around = self.thin.units_around(part);
            if let Some(loan) = &mut self.loan {
                loan.remove_within(around);
            }
        }
    }

    /// What was borrowed can be given back from now on; of what was never written nothing was taken.
    pub(crate) fn end_loan(&mut self) {
        let unwritten = self.loan.take();
        for span in unwritten.iter().flat_map(Spans::iter) {
            if let Some(held) = &mut self.held {
                held.remove_within(span);
            }
            self.thin.remove_units(span);
            self.count_given(span.len_bytes());
        }
    }

    fn count_given(&mut self, len_bytes: u64) {
        self.spare_bytes += len_bytes.saturating_sub(self.growth_bytes);
        self.growth_bytes = self.growth_bytes.saturating_sub(len_bytes);
        self.filled_bytes = self.filled_bytes.min(self.growth_bytes);
    }

    /// After a batch that brought `holes`: counts what was stored there as given back. Then gives free units back to the container, and free
    /// parts of units back to the host where holes were filled, until no more is taken than before. To be called when all that is free is free on the volume, too. Answers what is given back.
    pub(crate) fn shrink(&mut self, holes: &[VolumeSpan]) -> Vec<VolumeSpan> {
        let mut given = Vec::new();
        if self.held.is_some() {
            holes.iter().for_each(|hole| self.empty(*hole));
        }
        let least_bytes = self.given_bytes_min();
        while self.growth_bytes > 0 && self.loan.is_none() {
            let next = self.next_units(least_bytes).or_else(|| self.next_blocks(least_bytes));
            let Some(span) = next else { break };
            let aside = self.aside.as_mut().and_then(|aside| aside.held.as_mut());
            for held in self.held.iter_mut().chain(aside) {
                held.remove_within(span);
            }
            self.count_given(span.len_bytes());
            given.push(span);
        }
        given
    }

    /// What is stored in a hole is given back, as far as that is whole units.
    fn empty(&mut self, hole: VolumeSpan) {
        let units = self.thin.units_within(hole);
        if !units.is_empty() {
            let given_bytes = self.thin.empty_units(units);
            self.count_given(given_bytes);
            if let Some(loan) = &mut self.loan {
                loan.remove_within(units);
            }
        }
    }

    /// How large pieces are that go back first. Of a container with larger units than the host's blocks the number of pieces is small
    /// anyhow, and large free extents are worth more.
    fn given_bytes_min(&self) -> u64 {
        if self.unit_bytes > HOST_BLOCK_BYTES { 0 } else { self.growth_bytes / GIVEN_PIECES }
    }

    /// Units that the container gives back next. It has no place for them from now on.
    fn next_units(&mut self, least_bytes: u64) -> Option<VolumeSpan> {
        let units = self.of_held(|held| self.whole_units(held, least_bytes))?;
        let wanted = self.growth_bytes.div_ceil(self.unit_bytes).saturating_mul(self.unit_bytes);
        let span = span_at(units.start().get(), units.len_bytes().min(wanted));
        self.thin.remove_units(span);
        Some(span)
    }

    /// What the host has back next. It is a hole of its file from now on.
    fn next_blocks(&mut self, least_bytes: u64) -> Option<VolumeSpan> {
        let wanted = self.filled_bytes.div_ceil(HOST_BLOCK_BYTES).saturating_mul(HOST_BLOCK_BYTES);
        let blocks = self.of_held(|held| self.whole_blocks(held, least_bytes)).filter(|_| wanted > 0)?;
        let span = span_at(blocks.start().get(), blocks.len_bytes().min(wanted));
        self.thin.remove_blocks(span);
        self.filled_bytes = self.filled_bytes.saturating_sub(span.len_bytes());
        Some(span)
    }

    /// Something of what is free and stored: of what is set aside, which is to be free in the end and need not be held, if there is any.
    fn of_held(&self, find: impl Fn(&Spans) -> Option<VolumeSpan>) -> Option<VolumeSpan> {
        let aside = self.aside.as_ref().and_then(|aside| aside.held.as_ref());
        aside.and_then(&find).or_else(|| self.held.as_ref().and_then(&find))
    }

    /// Whole units of the container in one of `held` that has some.
    fn whole_units(&self, held: &Spans, least_bytes: u64) -> Option<VolumeSpan> {
        // Twice the unit holds one for sure.
        let sure = held.fitting(self.unit_bytes.saturating_mul(2)).take(1);
        let mut fitting = to_give(held, self.unit_bytes, least_bytes).chain(sure);
        fitting.find_map(|span| Some(self.thin.units_within(span)).filter(|units| !units.is_empty()))
    }

    /// Whole blocks of the host in one of `held` that has some which can go back alone.
    fn whole_blocks(&self, held: &Spans, least_bytes: u64) -> Option<VolumeSpan> {
        to_give(held, HOST_BLOCK_BYTES, least_bytes).find_map(|span| self.thin.blocks_within(span))
    }

    /// Takes what is free of `span`, to keep others from it. It must not be written unless it is allocated.
    pub(crate) fn hold(&mut self, span: VolumeSpan) -> Vec<VolumeSpan> {
        let parts = self.free.remove_within(span);
        if let Some(held) = &mut self.held {
            held.remove_within(span);
        }
        parts
    }

    /// Takes a free `span` to be written but for `holes`.
    pub(crate) fn take(&mut self, span: VolumeSpan, holes: &[VolumeSpan]) {
        self.free.remove(span);
        if let Some(held) = &mut self.held {
            held.remove_within(span);
        }
        self.grow_but(span, holes);
    }

    /// Whether all of `span` but `holes` counts as stored.
    pub(crate) fn counts(&self, span: VolumeSpan, holes: &[VolumeSpan]) -> bool {
        parts_but(span, holes).all(|part| !self.thin.touches(part))
    }

    fn grow_but(&mut self, span: VolumeSpan, holes: &[VolumeSpan]) {
        if self.held.is_some() {
            parts_but(span, holes).for_each(|part| self.grow(part));
        }
    }

    /// Counts what the container takes for `span`. What lies beside it in the same units is allocated then, too.
    fn grow(&mut self, span: VolumeSpan) {
        let (absent, holes) = self.thin.store(span);
        self.filled_bytes += holes.iter().map(VolumeSpan::len_bytes).sum::<u64>();
        for taken in absent.into_iter().chain(holes) {
            let spare_bytes = self.spare_bytes.min(taken.len_bytes());
            self.spare_bytes -= spare_bytes;
            self.growth_bytes = self.growth_bytes.saturating_add(taken.len_bytes() - spare_bytes);
            let free: Vec<_> = self.free.within(taken).collect();
            let Some(held) = &mut self.held else { continue };
            free.into_iter().for_each(|span| held.insert(span));
            let Some(Aside { free, held: Some(held), .. }) = &mut self.aside else { continue };
            free.within(taken).for_each(|span| held.insert(span));
        }
        self.filled_bytes = self.filled_bytes.min(self.growth_bytes);
        self.peak_bytes = self.peak_bytes.max(self.growth_bytes);
    }

    /// Gives back what is free again.
    pub(crate) fn give(&mut self, span: VolumeSpan) {
        let Some(aside) = &mut self.aside else {
            return give_to(&mut self.free, self.held.as_mut(), &self.thin, span);
        };
        let window = aside.window;
        let before = VolumeSpan::between(span.start(), span.end().min(window.start()));
        let after = VolumeSpan::between(span.start().max(window.end()), span.end());
        for outside in [before, after] {
            give_to(&mut self.free, self.held.as_mut(), &self.thin, outside);
        }
        if let Some(inside) = span.intersect(&window) {
            give_to(&mut aside.free, aside.held.as_mut(), &self.thin, inside);
        }
    }
}

/// What of `span` lies outside of `holes`, which ascend within it.
fn parts_but(span: VolumeSpan, holes: &[VolumeSpan]) -> impl Iterator<Item = VolumeSpan> + '_ {
    let starts = std::iter::once(span.start()).chain(holes.iter().map(VolumeSpan::end));
    let ends = holes.iter().map(VolumeSpan::start).chain(std::iter::once(span.end()));
    starts.zip(ends).map(|(start, end)| VolumeSpan::between(start, end)).filter(|part| !part.is_empty())
}

/// What can move at once wherever it goes: it may take a part of a unit at both ends.
fn step_bytes_max(options: &DefragOptions) -> u64 {
    let growth_bytes_max = options.growth_bytes_max;
    growth_bytes_max.saturating_sub(options.unit_bytes.saturating_mul(2)).max(growth_bytes_max / 2)
}

/// What of `held` is looked at to be given back: the smallest first of those of `least_bytes`, so that the largest remain for large files;
/// then the largest of the others, but for those that hold no `piece_bytes`.
fn to_give(held: &Spans, piece_bytes: u64, least_bytes: u64) -> impl Iterator<Item = VolumeSpan> + '_ {
    let least_bytes = least_bytes.max(piece_bytes);
    let small = held.fitting_below(piece_bytes, least_bytes).rev();
    held.fitting(least_bytes).take(LOOKED_AT_MAX).chain(small.take(LOOKED_AT_MAX))
}

fn give_to(free: &mut Spans, held: Option<&mut Spans>, thin: &Unstored, span: VolumeSpan) {
    free.insert(span);
    let Some(held) = held else { return };
    let mut at = span.start();
    for thin in thin.within(span) {
        held.insert(VolumeSpan::between(at, thin.start()));
        at = thin.end();
    }
    held.insert(VolumeSpan::between(at, span.end()));
}
