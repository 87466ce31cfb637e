//! Bits in memory: which blocks or clusters are used, or owned.

use std::ops::Range;

/// Bits in a row: set is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bits {
    words: Vec<u64>,
    len: u32,
}

const WORD_BITS: u32 = u64::BITS;

impl Bits {
    /// `len` bits, all clear.
    pub(crate) fn clear(len: u32) -> Self {
        Self { words: vec![0; index(len.div_ceil(WORD_BITS))], len }
    }

    /// The first `len` bits of `bytes`, least significant first.
    pub(crate) fn from_bytes(bytes: &[u8], len: u32) -> Self {
        let mut bits = Self::clear(len);
        for (word, chunk) in bits.words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(padded);
        }
        if !len.is_multiple_of(WORD_BITS)
            && let Some(last) = bits.words.last_mut()
        {
            *last &= (1 << (len % WORD_BITS)) - 1;
        }
        bits
    }

    /// As a block on the disk; the bits past the last are set.
    pub(crate) fn to_block(&self, block_bytes: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(index(block_bytes), 0);
        set_range(&mut bytes, self.len, block_bytes * 8, true);
        bytes
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn get(&self, bit: u32) -> bool {
        self.words[index(bit / WORD_BITS)] >> (bit % WORD_BITS) & 1 == 1
    }

    pub(crate) fn count_set(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The first bit from `from` on, below `end`, that is `set`; `end` if there is none.
    pub(crate) fn next(&self, from: u32, end: u32, set: bool) -> u32 {
        let end = end.min(self.len);
        let mut at = from;
        while at < end {
            let word = self.words[index(at / WORD_BITS)];
            let rest = (if set { word } else { !word }) >> (at % WORD_BITS);
            if rest != 0 {
                return (at + rest.trailing_zeros()).min(end);
            }
            at = (at / WORD_BITS + 1) * WORD_BITS;
        }
        end
    }

    /// The runs of bits from `from` on, below `end`, that are all `set`.
    pub(crate) fn runs(&self, from: u32, end: u32, set: bool) -> impl Iterator<Item = Range<u32>> {
        let end = end.min(self.len);
        let mut at = from;
        std::iter::from_fn(move || {
            let start = self.next(at, end, set);
            at = self.next(start, end, !set);
            (start < at).then_some(start..at)
        })
    }

    /// Sets the bits from `from` up to, not including, `end`; those past the last are left out.
    pub(crate) fn set(&mut self, from: u32, end: u32) {
        let end = end.min(self.len);
        let mut at = from;
        while at < end {
            let word_end = ((at / WORD_BITS + 1) * WORD_BITS).min(end);
            let mask = (u64::MAX >> (WORD_BITS - (word_end - at))) << (at % WORD_BITS);
            self.words[index(at / WORD_BITS)] |= mask;
            at = word_end;
        }
    }
}

/// Sets or clears the bits of `bytes` from `from` up to, not including, `end`; answers whether all of them were the other
/// way. All of them lie within.
pub(crate) fn set_range(bytes: &mut [u8], from: u32, end: u32, set: bool) -> bool {
    let mut all_changed = true;
    let mut at = from;
    while at < end {
        let byte_end = ((at / 8 + 1) * 8).min(end);
        let mask = (0xff >> (8 - (byte_end - at))) << (at % 8);
        let mask = u8::try_from(mask).expect("a mask of a byte");
        let byte = &mut bytes[index(at / 8)];
        all_changed &= *byte & mask == if set { 0 } else { mask };
        *byte = if set { *byte | mask } else { *byte & !mask };
        at = byte_end;
    }
    all_changed
}

fn index(word: u32) -> usize {
    usize::try_from(word).expect("a bitmap fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_list_of_flags(
            len in 1..300u32,
            spans in prop::collection::vec((0..300u32, 0..300u32), 0..6),
            from in 0..300u32,
            end in 0..300u32,
        ) {
            let mut bits = Bits::clear(len);
            let mut naive = vec![false; len as usize];
            for (start, end) in spans {
                bits.set(start, end);
                naive.iter_mut().take(end as usize).skip(start as usize).for_each(|flag| *flag = true);
            }
            prop_assert_eq!(bits.count_set() as usize, naive.iter().filter(|flag| **flag).count());
            for set in [false, true] {
                let end = end.min(len);
                let expected = (from..end).find(|bit| naive[*bit as usize] == set).unwrap_or(end);
                prop_assert_eq!(bits.next(from, end, set), expected);
                let runs: Vec<_> = bits.runs(from, end, set).collect();
                prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
                let expected: Vec<_> = (from..end).filter(|bit| naive[*bit as usize] == set).collect();
                prop_assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), expected);
            }
            for bit in 0..len {
                prop_assert_eq!(bits.get(bit), naive[bit as usize]);
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_of_bytes_equal_a_list_of_flags(
            spans in prop::collection::vec((0..200u32, 0..60u32, any::<bool>()), 0..8),
        ) {
            let mut bytes = [0; 33];
            let mut naive = [false; 33 * 8];
            for (from, len, set) in spans {
                let range = from as usize..(from + len) as usize;
                let expected = naive[range.clone()].iter().all(|flag| *flag != set);
                prop_assert_eq!(set_range(&mut bytes, from, from + len, set), expected);
                naive[range].fill(set);
            }
            let bits = Bits::from_bytes(&bytes, 33 * 8);
            for (bit, flag) in (0..).zip(naive) {
                prop_assert_eq!(bits.get(bit), flag);
            }
            prop_assert_eq!(&bits.to_block(64)[..33], &bytes);
            prop_assert_eq!(&bits.to_block(64)[33..], &[0xff; 31]);
        }
    }

    #[test]
    fn bits_past_the_length_are_dropped() {
        let bits = Bits::from_bytes(&[0xff; 16], 70);
        assert_eq!((bits.count_set(), bits.next(0, 100, false)), (70, 70));
    }
}
