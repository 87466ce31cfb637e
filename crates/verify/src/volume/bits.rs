//! Sets of numbers, one bit each, over a window of all numbers: memory stays bounded however many there are.

use std::ops::Range;

/// The most numbers of one set: 64 MiB.
pub(super) const WINDOW_MAX: u64 = 1 << 29;

const WORD: u64 = 64;

/// Numbers of a window.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    window: Range<u64>,
    words: Vec<u64>,
}

impl Bits {
    /// None of the numbers of `window`, of which there are at most [`WINDOW_MAX`].
    pub(super) fn none(window: Range<u64>) -> Self {
        let count = window.end.saturating_sub(window.start);
        assert!(count <= WINDOW_MAX, "a bounded window");
        Self { window, words: vec![0; index(count.div_ceil(WORD))] }
    }

    /// The numbers whose bits are set in `bytes`, of which the lowest bit is the window's first.
    pub(super) fn of_bytes(window: Range<u64>, bytes: &[u8]) -> Self {
        let mut bits = Self::none(window);
        for (word, chunk) in bits.words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(padded);
        }
        bits.clear_beyond();
        bits
    }

    fn clear_beyond(&mut self) {
        let count = self.window.end - self.window.start;
        let tail = count % WORD;
        if let Some(last) = self.words.last_mut().filter(|_| tail > 0) {
            *last &= (1 << tail) - 1;
        }
    }

    /// The window.
    pub(super) fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// Whether `number` is in the set; not if it is outside the window.
    pub(super) fn has(&self, number: u64) -> bool {
        self.window.contains(&number) && {
            let at = number - self.window.start;
            self.words[index(at / WORD)] >> (at % WORD) & 1 != 0
        }
    }

    /// Adds what of `range` is in the window. Answers the first number that was there before; the ones from it on are
    /// then not added.
    pub(super) fn add(&mut self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start.max(self.window.start);
        let end = range.end.min(self.window.end);
        while at < end {
            let (word, mask, next) = self.step(at, end);
            let taken = self.words[word] & mask;
            if taken != 0 {
                return Some(self.window.start + word as u64 * WORD + u64::from(taken.trailing_zeros()));
            }
            self.words[word] |= mask;
            at = next;
        }
        None
    }

    /// Adds what of `range` is in the window, whether or not it was there before.
    pub(super) fn join(&mut self, range: Range<u64>) {
        let mut at = range.start.max(self.window.start);
        let end = range.end.min(self.window.end);
        while at < end {
            let (word, mask, next) = self.step(at, end);
            self.words[word] |= mask;
            at = next;
        }
    }

    /// Adds what of `other` is in the window.
    pub(super) fn join_from(&mut self, other: &Self) {
        let mut at = self.window.start.max(other.window.start);
        let end = self.window.end.min(other.window.end);
        while at < end {
            let (from, mask, next) = other.step(at, end);
            let low = (at - other.window.start) % WORD;
            let found = (other.words[from] & mask) >> low;
            self.put(at, next, found);
            at = next;
        }
    }

    /// Adds the numbers from `at` up to `end`, fewer than 65, whose bits are set in `found`.
    fn put(&mut self, at: u64, end: u64, found: u64) {
        let (word, mask, next) = self.step(at, end);
        let low = (at - self.window.start) % WORD;
        self.words[word] |= (found << low) & mask;
        if next < end {
            self.put(next, end, found >> (next - at));
        }
    }

    /// How many numbers of `range` are in the set.
    pub(super) fn count(&self, range: Range<u64>) -> u64 {
        let mut at = range.start.max(self.window.start);
        let end = range.end.min(self.window.end);
        let mut count = 0;
        while at < end {
            let (word, mask, next) = self.step(at, end);
            count += u64::from((self.words[word] & mask).count_ones());
            at = next;
        }
        count
    }

    /// The first number in exactly one of two sets with the same window.
    pub(super) fn first_difference(&self, other: &Self) -> Option<u64> {
        assert_eq!(self.window, other.window, "sets of one window");
        let differing = self.words.iter().zip(&other.words).position(|(one, other)| one != other)?;
        let bit = (self.words[differing] ^ other.words[differing]).trailing_zeros();
        Some(self.window.start + differing as u64 * WORD + u64::from(bit))
    }

    /// The word that holds `at`, the bits of it up to `end`, and the number after them.
    fn step(&self, at: u64, end: u64) -> (usize, u64, u64) {
        let from = at - self.window.start;
        let (word, low) = (from / WORD, from % WORD);
        let next = (self.window.start + (word + 1) * WORD).min(end);
        let count = next - at;
        let mask = if count == WORD { u64::MAX } else { ((1 << count) - 1) << low };
        (index(word), mask, next)
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("an index of memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn equals_a_naive_set(
            start in 0..200u64, len in 0..300u64,
            ranges in prop::collection::vec((0..600u64, 0..90u64), 0..8), asked in (0..600u64, 0..200u64),
        ) {
            let window = start..start + len;
            let mut bits = Bits::none(window.clone());
            let mut joined = Bits::none(window.clone());
            let (mut naive, mut naive_joined) = (BTreeSet::new(), BTreeSet::new());
            for (from, count) in ranges {
                let inside: Vec<_> = (from..from + count).filter(|number| window.contains(number)).collect();
                let taken = inside.iter().copied().find(|number| naive.contains(number));
                prop_assert_eq!(bits.add(from..from + count), taken);
                // A collision leaves a part of the range, as it does in use: the check ends there.
                naive.extend((from..from + count).filter(|number| bits.has(*number)));
                joined.join(from..from + count);
                naive_joined.extend(inside);
            }
            for number in 0..700 {
                prop_assert_eq!(bits.has(number), naive.contains(&number));
                prop_assert_eq!(joined.has(number), naive_joined.contains(&number));
            }
            let mut part = Bits::none(asked.0..asked.0 + asked.1);
            part.join_from(&joined);
            for number in 0..900 {
                prop_assert_eq!(part.has(number), part.window().contains(&number) && joined.has(number));
            }
            let range = asked.0..asked.0 + asked.1;
            prop_assert_eq!(joined.count(range.clone()), naive_joined.range(range).count() as u64);
            let difference = naive.symmetric_difference(&naive_joined).min().copied();
            prop_assert_eq!(bits.first_difference(&joined), difference);
        }
    }

    #[test]
    fn bits_of_bytes_end_with_the_window() {
        let bits = Bits::of_bytes(8..18, &[0x81, 0xff, 0xff]);
        assert_eq!((0..40).filter(|number| bits.has(*number)).collect::<Vec<_>>(), [8, 15, 16, 17]);
    }
}
