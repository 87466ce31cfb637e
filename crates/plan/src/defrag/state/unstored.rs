//! What of the volume is not stored, and the pieces in which storage is taken.
//!
//! Two layers allocate: the container in units of its own, and the host's file system, for which a place in the container may be a hole.
//!
//! Invariant: no byte is in both.

use std::iter::Peekable;

use block::HOST_BLOCK_BYTES;
use extent::{VolumeOffset, VolumeSpan};

use super::layout::Layout;
use super::spans::{Ascending, Spans};
use crate::defrag::plan::DefragOptions;

/// What is not stored, free or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unstored {
    /// What the container has no place for. It is taken by whole units.
    absent: Spans,
    /// What the container has a place for, and the host's file is a hole there. It is taken as it is written, by blocks of the host.
    holes: Spans,
    /// What the container once had no place for, whether it has one by now or not.
    in_units: Spans,
    unit_bytes: u64,
    unit_skew_bytes: u64,
    moves_holes: bool,
}

impl Unstored {
    pub(crate) fn new(layout: &Layout, options: &DefragOptions) -> Self {
        let (writable, placed, allocated) = layout.backed_clusters();
        let absent: Spans = writable.subtract(&placed).iter().collect();
        Self {
            in_units: absent.clone(),
            absent,
            holes: placed.subtract(&allocated).iter().collect(),
            ..Self::nothing(options)
        }
    }

    /// As if all were stored.
    pub(crate) fn nothing(options: &DefragOptions) -> Self {
        Self {
            unit_bytes: options.unit_bytes.max(1),
            unit_skew_bytes: options.unit_skew_bytes,
            moves_holes: options.moves_holes,
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.absent.is_empty() && self.holes.is_empty()
    }

    /// What of `window` is not stored, in order.
    pub(crate) fn within(&self, window: VolumeSpan) -> Vec<VolumeSpan> {
        let mut all: Vec<_> = self.absent.within(window).chain(self.holes.within(window)).collect();
        all.sort_unstable_by_key(VolumeSpan::start);
        all
    }

    /// Whether a part of `window` is not stored.
    pub(crate) fn touches(&self, window: VolumeSpan) -> bool {
        self.absent.touches(window) || self.holes.touches(window)
    }

    /// [`Self::touches`], asked of spans that ascend, one behind the other.
    pub(crate) fn by_place(&self) -> UnstoredByPlace<'_> {
        UnstoredByPlace { parts: [&self.absent, &self.holes].map(|spans| spans.iter().peekable()) }
    }

    /// What of `window` the container has no place for, as far as it is whole units, in order.
    pub(crate) fn absent_units_within(&self, window: VolumeSpan) -> impl Iterator<Item = VolumeSpan> + '_ {
        self.absent.within(window).map(|absent| self.units_within(absent))
    }

    /// By how much more is stored if `span` is written.
    pub(crate) fn growth_of(&self, span: VolumeSpan) -> u64 {
        let absent_bytes = self.absent.bytes_within(self.units_around(span));
        absent_bytes + self.holes.bytes_within(self.blocks_around(span))
    }

    /// Stores what is written with `span`. Answers what the container had no place for, and what were holes of the host's file.
    pub(crate) fn store(&mut self, span: VolumeSpan) -> (Vec<VolumeSpan>, Vec<VolumeSpan>) {
        let (units, blocks) = (self.units_around(span), self.blocks_around(span));
        (self.absent.remove_within(units), self.holes.remove_within(blocks))
    }

    /// The container has no place any more for whole `units` that were stored.
    pub(crate) fn remove_units(&mut self, units: VolumeSpan) {
        self.absent.insert(units);
        self.in_units.remove_within(units);
        self.in_units.insert(units);
    }

    /// Nothing of whole `units` is stored any more. Answers how many bytes of them were.
    pub(crate) fn empty_units(&mut self, units: VolumeSpan) -> u64 {
        let unstored_bytes: u64 = self.within(units).iter().map(VolumeSpan::len_bytes).sum();
        for spans in [&mut self.absent, &mut self.holes] {
            spans.remove_within(units);
        }
        self.remove_units(units);
        units.len_bytes() - unstored_bytes
    }

    /// Whole `blocks` that were stored are holes of the host's file now.
    pub(crate) fn remove_blocks(&mut self, blocks: VolumeSpan) {
        self.holes.insert(blocks);
    }

    /// The units that `span` touches.
    pub(crate) fn units_around(&self, span: VolumeSpan) -> VolumeSpan {
        self.around(span, self.unit_bytes)
    }

    /// The units that lie in `span` in full.
    pub(crate) fn units_within(&self, span: VolumeSpan) -> VolumeSpan {
        self.inside(span, self.unit_bytes)
    }

    /// Blocks of the host that lie in a free and stored `span` in full, and can go back without the rest of their unit: no whole unit, and
    /// nothing of what was taken as a unit. Of that a part may be stored only by what is written later.
    pub(crate) fn blocks_within(&self, span: VolumeSpan) -> Option<VolumeSpan> {
        let mut at = span.start();
        let bounds = self.in_units.within(span).map(|part| (part.start(), part.end()));
        for (start, end) in bounds.chain([(span.end(), span.end())]) {
            let part = VolumeSpan::between(at, start);
            let blocks = self.inside(part, HOST_BLOCK_BYTES);
            if !blocks.is_empty() && self.units_within(part).is_empty() {
                return Some(blocks);
            }
            at = end;
        }
        None
    }

    /// Where nothing is stored once all of `moves` went from there to there: whole blocks of the host, ascending.
    pub(crate) fn holes_of(
        &self,
        moves: impl Iterator<Item = (VolumeSpan, VolumeOffset)>,
    ) -> Vec<VolumeSpan> {
        let mut holes: Vec<VolumeSpan> = Vec::new();
        for (from, to) in moves.filter(|_| self.moves_holes) {
            for part in self.within(from) {
                let skipped = part.start().get() - from.start().get();
                let hole = VolumeSpan::new(to.plus(skipped), part.len_bytes());
                match holes.last_mut().filter(|last| last.end() == hole.start()) {
                    Some(last) => *last = VolumeSpan::between(last.start(), hole.end()),
                    None => holes.push(hole),
                }
            }
        }
        let whole = holes.into_iter().map(|hole| self.inside(hole, HOST_BLOCK_BYTES));
        whole.filter(|hole| !hole.is_empty()).collect()
    }

    fn blocks_around(&self, span: VolumeSpan) -> VolumeSpan {
        self.around(span, HOST_BLOCK_BYTES)
    }

    fn around(&self, span: VolumeSpan, piece_bytes: u64) -> VolumeSpan {
        let start = self.skewed(span.start()) / piece_bytes * piece_bytes;
        let end = self.skewed(span.end()).div_ceil(piece_bytes).saturating_mul(piece_bytes);
        self.unskewed(start, end)
    }

    fn inside(&self, span: VolumeSpan, piece_bytes: u64) -> VolumeSpan {
        let start = self.skewed(span.start()).div_ceil(piece_bytes).saturating_mul(piece_bytes);
        let end = self.skewed(span.end()) / piece_bytes * piece_bytes;
        self.unskewed(start, end.max(start))
    }

    fn skewed(&self, at: VolumeOffset) -> u64 {
        at.get().saturating_add(self.unit_skew_bytes)
    }

    fn unskewed(&self, start: u64, end: u64) -> VolumeSpan {
        let at = |at: u64| VolumeOffset::new(at.saturating_sub(self.unit_skew_bytes));
        VolumeSpan::between(at(start), at(end))
    }
}

/// What is not stored, walked along once with what is asked for.
pub(crate) struct UnstoredByPlace<'a> {
    parts: [Peekable<Ascending<'a>>; 2],
}

impl UnstoredByPlace<'_> {
    /// Whether a part of `span` is not stored. It begins no earlier than the one that was asked for before.
    pub(crate) fn touches(&mut self, span: VolumeSpan) -> bool {
        self.parts.iter_mut().any(|part| {
            while part.next_if(|unstored| unstored.end() <= span.start()).is_some() {}
            part.peek().is_some_and(|unstored| unstored.start() < span.end()) && !span.is_empty()
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::layout::span_at;
    use super::*;

    proptest! {
        #[test]
        fn walked_along_it_says_the_same(
            absent in prop::collection::vec((0..200u64, 1..9u64), 0..20),
            holes in prop::collection::vec((0..200u64, 1..9u64), 0..20),
            mut asked in prop::collection::vec((0..220u64, 0..9u64), 0..60),
        ) {
            let mut unstored = Unstored::default();
            let apart = |spans: &mut Spans, of: Vec<(u64, u64)>| {
                for (start, len) in of {
                    spans.remove_within(span_at(start, len));
                    spans.insert(span_at(start, len));
                }
            };
            apart(&mut unstored.absent, absent);
            apart(&mut unstored.holes, holes);
            asked.sort_unstable();
            let mut along = unstored.by_place();
            for (start, len) in asked {
                let span = span_at(start, len);
                prop_assert_eq!(along.touches(span), !unstored.within(span).is_empty());
                prop_assert_eq!(along.touches(span), unstored.touches(span));
            }
        }
    }
}
