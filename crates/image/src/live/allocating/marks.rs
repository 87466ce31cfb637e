//! Which parts of a disk in use changed, for images that keep a record of that: marked by every change, noted when the disk is closed.
//!
//! Invariant: what changed is marked before a change of it ends; what is marked need not have changed.

use std::sync::atomic::{AtomicU64, Ordering};

use extent::{Span, VirtualOffset, VirtualSpan};

use crate::live::index;

/// The most memory that marks take: beyond it a mark stands for more of the disk.
const BYTES_MAX: u64 = 64 << 20;

/// A mark for each part of a disk.
pub(crate) struct Marks {
    virtual_bytes: u64,
    granularity_bits: u32,
    words: Vec<AtomicU64>,
}

impl Marks {
    /// Nothing of a disk of `virtual_bytes` is marked. A mark stands for 2^`granularity_bits` bytes, or for more on a large disk.
    pub(crate) fn new(virtual_bytes: u64, granularity_bits: u32) -> Self {
        let parts = |bits: u32| virtual_bytes.div_ceil(1 << bits);
        let granularity_bits = (granularity_bits..63)
            .find(|bits| parts(*bits) <= BYTES_MAX * 8)
            .expect("2^63 bytes are no disk");
        let word_count = index(parts(granularity_bits).div_ceil(64));
        Self { virtual_bytes, granularity_bits, words: (0..word_count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Marks all parts that `span`, which lies within the disk, touches.
    pub(crate) fn mark(&self, span: VirtualSpan) {
        if span.is_empty() {
            return;
        }
        let (first, last) =
            (span.start().get() >> self.granularity_bits, (span.end().get() - 1) >> self.granularity_bits);
        for word in first / 64..=last / 64 {
            let from = if word == first / 64 { first % 64 } else { 0 };
            let to = if word == last / 64 { last % 64 } else { 63 };
            let bits = u64::MAX << from & u64::MAX >> (63 - to);
            self.words[index(word)].fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// The marked parts within `window`, in order. Nobody marks meanwhile.
    pub(crate) fn within(&self, window: VirtualSpan) -> impl Iterator<Item = VirtualSpan> + '_ {
        let granularity = 1u64 << self.granularity_bits;
        let parts = window.start().get() / granularity
            ..window.end().get().min(self.virtual_bytes).div_ceil(granularity);
        let words = parts.start / 64..parts.end.div_ceil(64);
        let of_word = move |word: u64| {
            let bits = self.words[index(word)].load(Ordering::Relaxed);
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit)
        };
        words.flat_map(of_word).filter(move |part| parts.contains(part)).filter_map(move |part| {
            let len_bytes = granularity.min(self.virtual_bytes - part * granularity);
            Span::new(VirtualOffset::new(part * granularity), len_bytes).intersect(&window)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, len_bytes: u64) -> VirtualSpan {
        Span::new(VirtualOffset::new(start), len_bytes)
    }

    #[test]
    fn every_part_that_a_change_touches_is_marked() {
        let marks = Marks::new(1_000_000, 12);
        marks.mark(span(4095, 2));
        marks.mark(span(64 * 4096 - 1, 130 * 4096));
        marks.mark(span(999_999, 1));
        marks.mark(span(500, 0));
        let found: Vec<_> = marks.within(span(0, 1_000_000)).collect();
        let mut expected = vec![span(0, 4096), span(4096, 4096)];
        expected.extend((63..=193).map(|part| span(part * 4096, 4096)));
        expected.push(span(244 * 4096, 1_000_000 - 244 * 4096));
        assert_eq!(found, expected);
        assert_eq!(marks.within(span(4096, 100)).collect::<Vec<_>>(), [span(4096, 100)]);
        assert_eq!(marks.within(span(8192, 4096)).next(), None);
    }

    #[test]
    fn marks_of_a_huge_disk_stand_for_more() {
        let marks = Marks::new(1 << 46, 9);
        assert!(marks.words.len() as u64 * 8 <= BYTES_MAX);
        marks.mark(span((1 << 46) - 1, 1));
        let found: Vec<_> = marks.within(span(0, 1 << 46)).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].end().get(), 1 << 46);
    }
}
