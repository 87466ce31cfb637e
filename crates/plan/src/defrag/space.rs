//! Free space, and what writing to it costs the container.
//!
//! Invariants:
//! - what the container holds for others is never in it;
//! - what is not allocated is taken only within the limit, counted once a place and never given back: what was
//!   written stays allocated, as far as a planner can know.

use extent::VolumeSpan;

use super::DefragOptions;
use super::layout::{Layout, span_at};
use super::spans::Spans;

/// How many free extents are looked at where one choice differs from another in what it costs.
const LOOKED_AT_MAX: usize = 64;

/// Whether the container may grow for a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// It must not.
    Never,
    /// As far as the limit goes.
    Limited,
}

/// The space that a change in place may use.
#[derive(Debug)]
pub(super) struct Space {
    /// All that is free.
    free: Spans,
    /// What of it is allocated in the container. `None` if that is all.
    held: Option<Spans>,
    /// What is not allocated, free or not.
    thin: Spans,
    growth_bytes: u64,
    growth_bytes_max: u64,
}

impl Space {
    pub(super) fn new(layout: &Layout, options: &DefragOptions) -> Self {
        let (writable, allocated) = layout.writable();
        let thin = writable.subtract(&allocated);
        let free = layout.room().intersect(&writable);
        let held = (!thin.is_empty()).then(|| free.subtract(&thin).iter().collect());
        Self {
            free: free.iter().collect(),
            held,
            thin: thin.iter().collect(),
            growth_bytes: 0,
            growth_bytes_max: options.growth_bytes_max,
        }
    }

    /// All that is free.
    pub(super) fn free(&self) -> &Spans {
        &self.free
    }

    /// What is free and allocated.
    pub(super) fn held(&self) -> &Spans {
        self.held.as_ref().unwrap_or(&self.free)
    }

    /// Bytes that were, or will be, written to what is not allocated.
    pub(super) fn growth_bytes(&self) -> u64 {
        self.growth_bytes
    }

    /// Whether there is any choice to be made about growth.
    pub(super) fn may_grow(&self) -> bool {
        self.growth_bytes < self.growth_bytes_max && !self.thin.is_empty()
    }

    /// Whether all of `span` is free, and may be written.
    pub(super) fn offers(&self, span: VolumeSpan, growth: Growth) -> bool {
        match growth {
            Growth::Never => self.held().covers(span),
            Growth::Limited => self.free.covers(span) && self.affords(self.growth_of(span)),
        }
    }

    /// Whether all of the disjoint `spans` are free, and may be written.
    pub(super) fn offers_all(&self, spans: impl Iterator<Item = VolumeSpan> + Clone, growth: Growth) -> bool {
        spans.clone().all(|span| self.offers(span, growth))
            && (growth == Growth::Never || self.affords(spans.map(|span| self.growth_of(span)).sum()))
    }

    /// Whether a part of `span` is not allocated, free or not.
    pub(super) fn is_thin(&self, span: VolumeSpan) -> bool {
        self.thin.within(span).next().is_some()
    }

    /// The place in the tightest free extent for `len_bytes`.
    pub(super) fn find(&self, len_bytes: u64, growth: Growth) -> Option<VolumeSpan> {
        let held = self.held().best_fit(len_bytes).map(|span| span_at(span.start().get(), len_bytes));
        match growth {
            Growth::Never => held,
            Growth::Limited => held.or_else(|| self.find_growing(len_bytes)),
        }
    }

    /// As [`Self::find`], within `home`, without growth.
    pub(super) fn find_within(&self, len_bytes: u64, home: VolumeSpan) -> Option<VolumeSpan> {
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

    fn affords(&self, growth_bytes: u64) -> bool {
        self.growth_bytes.checked_add(growth_bytes).is_some_and(|sum| sum <= self.growth_bytes_max)
    }

    fn growth_of(&self, span: VolumeSpan) -> u64 {
        self.thin.bytes_within(span)
    }

    /// Takes what is free of `span`, to keep others from it. It must not be written unless it is allocated.
    pub(super) fn hold(&mut self, span: VolumeSpan) -> Vec<VolumeSpan> {
        let parts = self.free.remove_within(span);
        if let Some(held) = &mut self.held {
            held.remove_within(span);
        }
        parts
    }

    /// Takes a free `span` to be written.
    pub(super) fn take(&mut self, span: VolumeSpan) {
        self.free.remove(span);
        if let Some(held) = &mut self.held {
            held.remove_within(span);
            self.growth_bytes += self.thin.remove_within(span).iter().map(VolumeSpan::len_bytes).sum::<u64>();
        }
    }

    /// Gives back what is free again.
    pub(super) fn give(&mut self, span: VolumeSpan) {
        self.free.insert(span);
        let Some(held) = &mut self.held else { return };
        let mut at = span.start();
        for thin in self.thin.within(span).collect::<Vec<_>>() {
            held.insert(VolumeSpan::between(at, thin.start()));
            at = thin.end();
        }
        held.insert(VolumeSpan::between(at, span.end()));
    }
}
