//! Sets of spans and their algebra.

use crate::{Offset, Space, Span};

/// A set of bytes of one space: sorted, disjoint, coalesced spans.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtentSet<S: Space> {
    spans: Vec<Span<S>>,
}

impl<S: Space> Default for ExtentSet<S> {
    fn default() -> Self {
        Self { spans: Vec::new() }
    }
}

impl<S: Space> FromIterator<Span<S>> for ExtentSet<S> {
    /// The union of spans in any order, overlapping or not.
    fn from_iter<I: IntoIterator<Item = Span<S>>>(spans: I) -> Self {
        let mut sorted: Vec<_> = spans.into_iter().collect();
        sorted.sort_unstable();
        let mut set = Self::default();
        for span in sorted {
            set.push(span);
        }
        set
    }
}

impl<S: Space> ExtentSet<S> {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a span that starts at or after the last one's start. Panics otherwise.
    pub fn push(&mut self, span: Span<S>) {
        if span.is_empty() {
            return;
        }
        match self.spans.last_mut() {
            Some(last) if span.start() <= last.end() => {
                assert!(last.start() <= span.start(), "spans are pushed in order");
                *last = Span::between(last.start(), last.end().max(span.end()));
            }
            _ => self.spans.push(span),
        }
    }

    /// The spans in order.
    pub fn iter(&self) -> impl Iterator<Item = Span<S>> + '_ {
        self.spans.iter().copied()
    }

    /// Number of spans.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes held.
    pub fn total_bytes(&self) -> u64 {
        self.spans.iter().map(Span::len_bytes).sum()
    }

    /// Whether `at` is held.
    pub fn contains(&self, at: Offset<S>) -> bool {
        self.spans.get(self.first_ending_after(at)).is_some_and(|span| span.contains(at))
    }

    /// The parts of the set within `window`, clipped to it, in order.
    pub fn within(&self, window: Span<S>) -> impl Iterator<Item = Span<S>> + '_ {
        let first = self.first_ending_after(window.start());
        self.spans[first..].iter().map_while(move |span| span.intersect(&window))
    }

    /// Bytes in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// Bytes in both sets.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let mut both = Self::new();
        for span in self.iter() {
            for part in other.within(span) {
                both.push(part);
            }
        }
        both
    }

    /// Bytes of `window` that the set does not hold.
    #[must_use]
    pub fn invert(&self, window: Span<S>) -> Self {
        let mut rest = Self::new();
        let mut at = window.start();
        for span in self.within(window) {
            rest.push(Span::between(at, span.start()));
            at = span.end();
        }
        rest.push(Span::between(at, window.end()));
        rest
    }

    /// Bytes of this set that `other` does not hold.
    #[must_use]
    pub fn subtract(&self, other: &Self) -> Self {
        let mut rest = Self::new();
        for span in self.iter() {
            for part in other.invert(span).iter() {
                rest.push(part);
            }
        }
        rest
    }

    fn first_ending_after(&self, at: Offset<S>) -> usize {
        self.spans.partition_point(|span| span.end() <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;
    use proptest::prelude::*;

    const SPACE: u64 = 64;

    fn model(set: &ExtentSet<Host>) -> Vec<bool> {
        (0..SPACE).map(|at| set.iter().any(|span| span.contains(Offset::new(at)))).collect()
    }

    fn any_set() -> impl Strategy<Value = ExtentSet<Host>> {
        prop::collection::vec((0..SPACE, 0..16u64), 0..12).prop_map(|spans| {
            spans
                .into_iter()
                .map(|(start, len)| Span::new(Offset::new(start), len.min(SPACE - start)))
                .collect()
        })
    }

    fn is_canonical(set: &ExtentSet<Host>) -> bool {
        let spans: Vec<_> = set.iter().collect();
        spans.iter().all(|span| !span.is_empty())
            && spans.windows(2).all(|pair| pair[0].end() < pair[1].start())
    }

    proptest! {
        #[test]
        fn algebra_equals_the_naive_model(a in any_set(), b in any_set(), start in 0..SPACE, len in 0..SPACE) {
            let window = Span::new(Offset::new(start), len.min(SPACE - start));
            let (naive_a, naive_b) = (model(&a), model(&b));
            let cases = [
                (a.union(&b), Box::new(|x: bool, y: bool| x || y) as Box<dyn Fn(bool, bool) -> bool>),
                (a.intersect(&b), Box::new(|x, y| x && y)),
                (a.subtract(&b), Box::new(|x, y| x && !y)),
            ];
            for (set, expected) in &cases {
                prop_assert!(is_canonical(set));
                let expected: Vec<_> = naive_a.iter().zip(&naive_b).map(|(x, y)| expected(*x, *y)).collect();
                prop_assert_eq!(model(set), expected);
            }
            let inverted = a.invert(window);
            prop_assert!(is_canonical(&inverted));
            for at in 0..SPACE {
                let within = window.contains(Offset::new(at));
                prop_assert_eq!(inverted.contains(Offset::new(at)), within && !naive_a[usize::try_from(at).unwrap()]);
            }
            let clipped: ExtentSet<Host> = a.within(window).collect();
            prop_assert_eq!(clipped.total_bytes() + inverted.total_bytes(), window.len_bytes());
        }
    }
}
