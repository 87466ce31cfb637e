//! The blocks of one chunk as bits.

use std::ops::Range;

/// Number of a block within its chunk.
pub(crate) type Block = usize;

/// Blocks of a chunk.
pub(crate) const BLOCK_COUNT: usize = 4096;

const WORD_COUNT: usize = BLOCK_COUNT / 64;

/// A set of blocks of one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bits([u64; WORD_COUNT]);

impl Default for Bits {
    fn default() -> Self {
        Self([0; WORD_COUNT])
    }
}

/// The words that `range` touches, each with the mask of it.
fn masks(range: &Range<Block>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let (start, end) = (range.start.min(BLOCK_COUNT), range.end.min(BLOCK_COUNT));
    let last = if start < end { end.div_ceil(64) } else { start / 64 };
    (start / 64..last).map(move |word| {
        let from = start.saturating_sub(word * 64);
        let to = (end - word * 64).min(64);
        (word, u64::MAX << from & u64::MAX >> (64 - to))
    })
}

impl Bits {
    /// Adds `range`.
    pub(crate) fn set(&mut self, range: &Range<Block>) {
        masks(range).for_each(|(word, mask)| self.0[word] |= mask);
    }

    /// Removes `range`; says how many of it there were.
    pub(crate) fn clear(&mut self, range: &Range<Block>) -> u64 {
        let mut count = 0;
        for (word, mask) in masks(range) {
            count += u64::from((self.0[word] & mask).count_ones());
            self.0[word] &= !mask;
        }
        count
    }

    /// Whether any of `range` is there.
    pub(crate) fn any(&self, range: &Range<Block>) -> bool {
        masks(range).any(|(word, mask)| self.0[word] & mask != 0)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether `block` is there.
    pub(crate) fn has(&self, block: Block) -> bool {
        self.any(&(block..block + 1))
    }

    /// Consecutive blocks, in order.
    pub(crate) fn runs(&self) -> Vec<Range<Block>> {
        let mut runs: Vec<Range<Block>> = Vec::new();
        for block in (0..BLOCK_COUNT).filter(|block| self.has(*block)) {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges by a fixed generator, against a set of numbers.
    #[test]
    fn they_are_what_the_naive_model_says() {
        let (mut bits, mut model) = (Bits::default(), std::collections::BTreeSet::new());
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..500 {
            let start = random(BLOCK_COUNT);
            let range = start..(start + random(200)).min(BLOCK_COUNT);
            assert_eq!(bits.any(&range), model.range(range.clone()).next().is_some());
            if random(2) == 0 {
                bits.set(&range);
                model.extend(range);
            } else {
                let before = model.len();
                model.retain(|block| !range.contains(block));
                assert_eq!(bits.clear(&range), (before - model.len()) as u64);
            }
            assert_eq!(bits.count(), model.len() as u64);
            assert_eq!(bits.is_empty(), model.is_empty());
        }
        let runs = bits.runs();
        assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        assert!(runs.into_iter().flatten().eq(model));
    }
}
