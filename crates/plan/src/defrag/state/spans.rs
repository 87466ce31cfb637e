//! Disjoint spans that change: found by place, and by length.
//!
//! Invariant: sorted, disjoint, coalesced, and both indices tell the same.

use std::collections::btree_map::Iter;
use std::collections::{BTreeMap, BTreeSet};

use extent::{VolumeOffset, VolumeSpan};

use super::layout::span_at;

/// A set of spans of the volume.
#[derive(Clone, Default, Debug)]
pub(crate) struct Spans {
    /// Lengths by start.
    by_start: BTreeMap<u64, u64>,
    /// Lengths with starts.
    by_len: BTreeSet<(u64, u64)>,
    total_bytes: u64,
}

/// Spans, ascending.
pub(crate) struct Ascending<'a>(Iter<'a, u64, u64>);

impl Iterator for Ascending<'_> {
    type Item = VolumeSpan;

    fn next(&mut self) -> Option<VolumeSpan> {
        self.0.next().map(|(start, len)| span_at(*start, *len))
    }
}

impl FromIterator<VolumeSpan> for Spans {
    fn from_iter<I: IntoIterator<Item = VolumeSpan>>(spans: I) -> Self {
        let mut all = Self::default();
        spans.into_iter().for_each(|span| all.insert(span));
        all
    }
}

impl Spans {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// All spans, ascending.
    pub(crate) fn iter(&self) -> Ascending<'_> {
        Ascending(self.by_start.iter())
    }

    /// The spans from the last one down.
    pub(crate) fn iter_down(&self) -> impl Iterator<Item = VolumeSpan> + '_ {
        self.by_start.iter().rev().map(|(start, len)| span_at(*start, *len))
    }

    /// The parts of the set within `window`, ascending.
    pub(crate) fn within(&self, window: VolumeSpan) -> impl Iterator<Item = VolumeSpan> + '_ {
        let before = self.by_start.range(..window.start().get()).next_back();
        let rest = self.by_start.range(window.start().get()..window.end().get().max(window.start().get()));
        before
            .into_iter()
            .chain(rest)
            .filter_map(move |(start, len)| span_at(*start, *len).intersect(&window))
    }

    /// Bytes of the set within `window`.
    pub(crate) fn bytes_within(&self, window: VolumeSpan) -> u64 {
        self.within(window).map(|span| span.len_bytes()).sum()
    }

    /// Whether a part of `window` is held.
    pub(crate) fn touches(&self, window: VolumeSpan) -> bool {
        // The last that begins before its end is the only one that can reach into it.
        let last = self.by_start.range(..window.end().get()).next_back();
        last.is_some_and(|(start, len)| start + len > window.start().get()) && !window.is_empty()
    }

    /// Whether all of `span` is held.
    pub(crate) fn covers(&self, span: VolumeSpan) -> bool {
        self.around(span.start()).is_some_and(|held| held.covers(&span)) || span.is_empty()
    }

    /// The span that `at` lies in.
    pub(crate) fn around(&self, at: VolumeOffset) -> Option<VolumeSpan> {
        let (start, len) = self.by_start.range(..=at.get()).next_back()?;
        Some(span_at(*start, *len)).filter(|span| span.contains(at))
    }

    /// The shortest span of at least `len_bytes`, the first of equal ones.
    pub(crate) fn best_fit(&self, len_bytes: u64) -> Option<VolumeSpan> {
        self.by_len.range((len_bytes, 0)..).next().map(|(len, start)| span_at(*start, *len))
    }

    /// All spans of at least `len_bytes`, the shortest first.
    pub(crate) fn fitting(&self, len_bytes: u64) -> impl DoubleEndedIterator<Item = VolumeSpan> + '_ {
        self.by_len.range((len_bytes, 0)..).map(|(len, start)| span_at(*start, *len))
    }

    /// All spans of at least `len_bytes` and less than `end_bytes`, which is no less, the shortest first.
    pub(crate) fn fitting_below(
        &self,
        len_bytes: u64,
        end_bytes: u64,
    ) -> impl DoubleEndedIterator<Item = VolumeSpan> + '_ {
        self.by_len.range((len_bytes, 0)..(end_bytes, 0)).map(|(len, start)| span_at(*start, *len))
    }

    /// The longest span.
    pub(crate) fn largest(&self) -> Option<VolumeSpan> {
        self.by_len.last().map(|(len, start)| span_at(*start, *len))
    }

    /// The lengths of all spans, the longest first.
    pub(crate) fn lengths_down(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_len.iter().rev().map(|(len, _)| *len)
    }

    /// Adds what is not held yet of `span`, all or nothing of it. Panics if a part is held.
    pub(crate) fn insert(&mut self, span: VolumeSpan) {
        if span.is_empty() {
            return;
        }
        assert!(self.within(span).next().is_none(), "what is given is held already");
        let (mut start, mut end) = (span.start().get(), span.end().get());
        let before = self.by_start.range(..start).next_back().map(|(at, len)| (*at, *len));
        if let Some((at, len)) = before.filter(|(at, len)| at + len == start) {
            self.drop_whole(at, len);
            start = at;
        }
        if let Some(len) = self.by_start.get(&end).copied() {
            self.drop_whole(end, len);
            end += len;
        }
        self.keep_whole(start, end - start);
    }

    /// Takes `span` out. Panics if it is not held in full.
    pub(crate) fn remove(&mut self, span: VolumeSpan) {
        if span.is_empty() {
            return;
        }
        let held = self.around(span.start()).filter(|held| held.covers(&span));
        let held = held.expect("what is taken is held");
        let (start, end) = (held.start().get(), held.end().get());
        self.drop_whole(start, end - start);
        self.keep_whole(start, span.start().get() - start);
        self.keep_whole(span.end().get(), end - span.end().get());
    }

    /// Takes out what is held of `span`.
    pub(crate) fn remove_within(&mut self, span: VolumeSpan) -> Vec<VolumeSpan> {
        let parts: Vec<_> = self.within(span).collect();
        parts.iter().for_each(|part| self.remove(*part));
        parts
    }

    fn keep_whole(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
            self.total_bytes += len;
        }
    }

    fn drop_whole(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
        self.total_bytes -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::{ExtentSet, Volume};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_are_those_of_a_naive_set(steps in prop::collection::vec((0..60u64, 1..12u64, any::<bool>()), 0..40)) {
            let mut spans = Spans::default();
            let mut naive = [false; 80];
            for (start, len, gives) in steps {
                let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
                if gives && naive[range.clone()].iter().all(|held| !held) {
                    spans.insert(span_at(start, len));
                    naive[range].fill(true);
                } else if !gives {
                    prop_assert_eq!(spans.covers(span_at(start, len)), naive[range.clone()].iter().all(|held| *held));
                    spans.remove_within(span_at(start, len));
                    naive[range].fill(false);
                }
            }
            let expected: ExtentSet<Volume> =
                (0..80).filter(|at| naive[*at]).map(|at| span_at(at as u64, 1)).collect();
            prop_assert!(spans.iter().eq(expected.iter()));
            prop_assert_eq!(spans.total_bytes(), expected.total_bytes());
            let mut down: Vec<_> = spans.iter_down().collect();
            down.reverse();
            prop_assert!(expected.iter().eq(down));
            for len in 0..20 {
                let best = expected.iter().filter(|span| span.len_bytes() >= len).min_by_key(|span| (span.len_bytes(), *span));
                prop_assert_eq!(spans.best_fit(len), best);
                let window = span_at(len * 3, len);
                prop_assert_eq!(spans.touches(window), expected.within(window).next().is_some());
                prop_assert_eq!(spans.bytes_within(window), expected.within(window).map(|span| span.len_bytes()).sum::<u64>());
            }
            prop_assert_eq!(spans.largest().map(|span| span.len_bytes()), expected.iter().map(|span| span.len_bytes()).max());
        }
    }
}
