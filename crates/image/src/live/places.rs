//! Where new units go: so that neighbours on the virtual disk are neighbours in the file, whatever the order of
//! their first writes.
//!
//! A unit's place is a base plus its own distance from the disk's start. The bases are those that the image's units already
//! follow, and last one past the end of the file, whose space is sparse until it is used. Only where all of
//! these places are taken does a unit go elsewhere.

use std::collections::{BTreeMap, HashMap};

use extent::{HostOffset, HostSpan, Span};

/// No place lies past this: the largest file of ext4 in blocks of 4 KiB, less room for tables.
pub(crate) const HOST_BYTES_MAX: u64 = 15 << 40;
/// Bases of an existing image that are followed.
const BASE_COUNT_MAX: usize = 4;
/// Different bases counted at most.
const VOTE_COUNT_MAX: usize = 1 << 16;

/// Which bases an image's units follow.
#[derive(Default)]
pub(crate) struct Votes(HashMap<u64, u64>);

impl Votes {
    /// Counts the unit `unit` at `at`, where units are `stride_bytes` apart.
    pub(crate) fn count(&mut self, unit: u64, at: u64, stride_bytes: u64) {
        let base = unit.checked_mul(stride_bytes).and_then(|distance| at.checked_sub(distance));
        if let Some(base) = base
            && (self.0.len() < VOTE_COUNT_MAX || self.0.contains_key(&base))
        {
            *self.0.entry(base).or_default() += 1;
        }
    }

    /// The bases with the most units.
    pub(crate) fn into_bases(self, stride_bytes: u64, align_bytes: u64) -> Bases {
        let mut all: Vec<_> = self.0.into_iter().filter(|(base, _)| base % align_bytes == 0).collect();
        all.sort_unstable_by_key(|(base, count)| (std::cmp::Reverse(*count), *base));
        let bases = all.into_iter().take(BASE_COUNT_MAX).map(|(base, _)| base).collect();
        Bases { stride_bytes, bases }
    }
}

/// The places a unit may have, the best first.
pub(crate) struct Bases {
    stride_bytes: u64,
    bases: Vec<u64>,
}

impl Bases {
    /// Adds a base after those there are.
    pub(crate) fn push(&mut self, base: u64) {
        self.bases.push(base);
    }

    /// The places of `unit`.
    pub(crate) fn places(&self, unit: u64) -> impl Iterator<Item = u64> {
        let distance = unit.checked_mul(self.stride_bytes);
        self.bases.iter().filter_map(move |base| base.checked_add(distance?))
    }
}

/// Pieces of the file that are in use, where the format does not count them itself.
#[derive(Default)]
pub(crate) struct Taken {
    /// Disjoint, coalesced: start to end.
    spans: BTreeMap<u64, u64>,
}

/// Runs remembered at most, about 64 MiB. An image in more pieces is taken as one.
const RUN_COUNT_MAX: usize = 1 << 20;

impl Taken {
    /// Whether no byte of `span` is in use.
    pub(crate) fn is_free(&self, span: HostSpan) -> bool {
        let before = self.spans.range(..span.end().get()).next_back();
        before.is_none_or(|(_, end)| *end <= span.start().get())
    }

    /// Takes `span`; says whether it was free.
    pub(crate) fn take(&mut self, span: HostSpan) -> bool {
        if span.is_empty() {
            return true;
        }
        let is_free = self.is_free(span);
        let (mut start, mut end) = (span.start().get(), span.end().get());
        while let Some((&near, &near_end)) =
            self.spans.range(..=end).next_back().filter(|(_, near_end)| **near_end >= start)
        {
            self.spans.remove(&near);
            (start, end) = (start.min(near), end.max(near_end));
        }
        self.spans.insert(start, end);
        is_free
    }

    /// Gives `span` back.
    pub(crate) fn release(&mut self, span: HostSpan) {
        let (start, end) = (span.start().get(), span.end().get());
        while let Some((&near, &near_end)) =
            self.spans.range(..end).next_back().filter(|(_, near_end)| **near_end > start)
        {
            self.spans.remove(&near);
            if near < start {
                self.spans.insert(near, start);
            }
            if near_end > end {
                self.spans.insert(end, near_end);
            }
        }
    }

    /// Where what is free from `at` on ends, `end` at the latest.
    pub(crate) fn free_up_to(&self, at: HostOffset, end: HostOffset) -> HostOffset {
        if !self.is_free(Span::new(at, 1)) {
            return at;
        }
        let next = self.spans.range(at.get()..).next();
        next.map_or(end, |(next, _)| end.min(HostOffset::new(*next)))
    }

    /// Takes everything below `end` if there are too many pieces to remember.
    pub(crate) fn bound(&mut self, end: u64) {
        if self.spans.len() > RUN_COUNT_MAX {
            self.take(Span::from_zero(end));
        }
    }

    /// The pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = HostSpan> {
        self.spans.iter().map(|(start, end)| Span::between(HostOffset::new(*start), HostOffset::new(*end)))
    }

    /// The end of the last piece.
    pub(crate) fn end(&self) -> u64 {
        self.spans.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// The first free place of `len_bytes` from `from` on and below `limit`, at `phase_bytes` past a multiple of `align_bytes`.
    pub(crate) fn first_fit(
        &self,
        from: u64,
        len_bytes: u64,
        align_bytes: u64,
        phase_bytes: u64,
        limit: u64,
    ) -> Option<HostOffset> {
        let aligned = |at: u64| {
            let up = at.saturating_sub(phase_bytes).checked_next_multiple_of(align_bytes)?;
            up.checked_add(phase_bytes)
        };
        let mut at = aligned(from)?;
        loop {
            let span = Span::checked(HostOffset::new(at), len_bytes)?;
            if span.end().get() > limit {
                return None;
            }
            match self.spans.range(..span.end().get()).next_back() {
                Some((_, &end)) if end > at => at = aligned(end)?,
                _ => return Some(span.start()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: u64, len_bytes: u64) -> HostSpan {
        Span::new(HostOffset::new(start), len_bytes)
    }

    proptest! {
        #[test]
        fn taken_is_what_the_naive_model_says(
            steps in prop::collection::vec((any::<bool>(), 0..200u64, 1..40u64), 1..60),
            from in 0..200u64, len in 1..30u64, align in 1..9u64
        ) {
            let mut taken = Taken::default();
            let mut model = [false; 256];
            for (takes, start, len) in steps {
                let range = index(start)..index(start + len);
                let was_free = model[range.clone()].iter().all(|taken| !taken);
                prop_assert_eq!(taken.is_free(span(start, len)), was_free);
                if takes {
                    prop_assert_eq!(taken.take(span(start, len)), was_free);
                } else {
                    taken.release(span(start, len));
                }
                model[range].fill(takes);
                let end = model.iter().rposition(|taken| *taken).map_or(0, |last| last as u64 + 1);
                prop_assert_eq!(taken.end(), end);
                let range = index(start)..index(start + len);
                let free = model[range].iter().take_while(|taken| !**taken).count() as u64;
                let end = HostOffset::new(start + len);
                prop_assert_eq!(taken.free_up_to(HostOffset::new(start), end).get(), start + free);
            }
            let fits = |at: &u64| at.is_multiple_of(align)
                && model[index(*at)..index(at + len)].iter().all(|taken| !taken);
            let naive = (from..=256 - len).find(fits);
            prop_assert_eq!(taken.first_fit(from, len, align, 0, 256).map(HostOffset::get), naive);
        }
    }

    fn index(at: u64) -> usize {
        usize::try_from(at).unwrap()
    }

    #[test]
    fn the_base_that_most_units_follow_comes_first() {
        let mut votes = Votes::default();
        for unit in 0..10 {
            votes.count(unit, 0x1000 + unit * 0x100, 0x100);
        }
        votes.count(3, 0x9000, 0x100);
        votes.count(3, 0x9001, 0x100);
        let mut bases = votes.into_bases(0x100, 0x100);
        bases.push(0x10_0000);
        let places: Vec<_> = bases.places(5).collect();
        assert_eq!(places, [0x1500, 0x9200, 0x10_0500]);
    }
}
