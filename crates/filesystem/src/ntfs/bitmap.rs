//! `$Bitmap`: a bit for each cluster, set where it is used; and the same of `$MFT` for its records.

use block::{Cached, ReadAt, Result};
use extent::Offset;

use super::boot::{FileBytes, Geometry};
use super::layout::ATTR_BITMAP;
use super::mft::Mft;
use super::record::RecordNumber;
use super::stream::Stream;
use super::volume;

/// Up to this size the whole bitmap is kept in memory: a volume of 512 GiB with clusters of 4 KiB.
const WHOLE_BYTES_MAX: u64 = 16 << 20;

/// What a larger one is cached with.
const CACHE_BYTES: u64 = 16 << 20;

/// Bits are read in pieces of so many bytes.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// A bitmap in a file, addressed by bit.
pub(super) struct Bitmap {
    bits: Bits,
    pub(super) bit_count: u64,
}

enum Bits {
    Whole(Vec<u8>),
    Windowed(Box<Cached<FileBytes, Stream>>),
}

impl Bitmap {
    /// `$Bitmap` of the volume, not yet read.
    pub(super) fn of_clusters(mft: &Mft) -> Result<Self> {
        Self::of(volume::clusters(mft)?, mft.geometry.cluster_count)
    }

    /// `$MFT`'s bitmap: a bit for each record, set where it is in use.
    pub(super) fn of_records(mft: &Mft) -> Result<Self> {
        let base = mft.system_record(RecordNumber::MFT)?;
        let missing = || base.view().error().field("attribute 0xb0", "missing", "the record bitmap");
        let records = mft.stream(&base.view(), ATTR_BITMAP, "")?.ok_or_else(missing)?;
        Self::of(records, mft.record_count())?.loaded()
    }

    /// The first `bit_count` bits of `stream`.
    fn of(stream: Stream, bit_count: u64) -> Result<Self> {
        stream.require_plain(bit_count.div_ceil(8))?;
        Ok(Self { bits: Bits::Windowed(Box::new(Cached::new(stream, CACHE_BYTES))), bit_count })
    }

    /// Reads it into memory if it is small enough.
    pub(super) fn loaded(self) -> Result<Self> {
        let len_bytes = self.bit_count.div_ceil(8);
        match self.bits {
            Bits::Windowed(_) if len_bytes <= WHOLE_BYTES_MAX => {
                let whole = self.bytes(0, len_bytes)?;
                Ok(Self { bits: Bits::Whole(whole), bit_count: self.bit_count })
            }
            bits => Ok(Self { bits, bit_count: self.bit_count }),
        }
    }

    /// `len_bytes` bytes from byte `from`.
    pub(super) fn bytes(&self, from: u64, len_bytes: u64) -> Result<Vec<u8>> {
        let len = usize::try_from(len_bytes).expect("a piece that fits memory");
        let mut piece = vec![0; len];
        match &self.bits {
            Bits::Whole(whole) => {
                let start = usize::try_from(from).expect("within memory");
                piece.copy_from_slice(&whole[start..start + len]);
            }
            Bits::Windowed(cached) => cached.read_at(Offset::new(from), &mut piece)?,
        }
        Ok(piece)
    }

    /// How many of its bits are clear.
    pub(super) fn clear_count(&self) -> Result<u64> {
        let mut set_count = 0u64;
        for start in (0..self.bit_count).step_by(usize::try_from(PIECE_BYTES * 8).expect("small")) {
            let bits = (self.bit_count - start).min(PIECE_BYTES * 8);
            let mut piece = self.bytes(start / 8, bits.div_ceil(8))?;
            if let (Some(last), used @ 1..) = (piece.last_mut(), bits % 8) {
                *last &= (1 << used) - 1;
            }
            set_count += piece.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        }
        Ok(self.bit_count - set_count)
    }

    /// The runs of equal bits that cover `start..end` in order: the bits' value and where they end.
    pub(super) fn each_run(&self, start: u64, end: u64, mut each: impl FnMut(bool, u64)) -> Result<()> {
        assert!(start <= end && end <= self.bit_count, "bits of the bitmap");
        let mut at = start;
        while at < end {
            let piece_end = ((at / 8 + PIECE_BYTES) * 8).min(end);
            let first = at / 8 * 8;
            let piece = Words::new(&self.bytes(first / 8, piece_end.div_ceil(8) - first / 8)?, first);
            while at < piece_end {
                let is_set = piece.get(at);
                at = piece.run_end(at, piece_end, is_set);
                each(is_set, at);
            }
        }
        Ok(())
    }
}

/// A window of bits in memory, by word.
pub(super) struct Words {
    words: Vec<u64>,
    first: u64,
}

impl Words {
    /// The bits of `bytes`, whose first is number `first`.
    pub(super) fn new(bytes: &[u8], first: u64) -> Self {
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        Self { words: words.collect(), first }
    }

    /// `bit_count` clear bits from number `first` on.
    pub(super) fn clear(first: u64, bit_count: u64) -> Self {
        Self { words: vec![0; index(bit_count.div_ceil(64))], first }
    }

    /// One bit.
    pub(super) fn get(&self, at: u64) -> bool {
        let at = at - self.first;
        self.words[index(at / 64)] >> (at % 64) & 1 != 0
    }

    /// Where the bits from `at` stop being `value`, or `end`.
    pub(super) fn run_end(&self, at: u64, end: u64, value: bool) -> u64 {
        let (mut at, end) = (at - self.first, end - self.first);
        let flip = if value { u64::MAX } else { 0 };
        while at < end {
            // Bits that differ from `value` are ones now.
            let differing = (self.words[index(at / 64)] ^ flip) >> (at % 64);
            if differing != 0 {
                return self.first + (at + u64::from(differing.trailing_zeros())).min(end);
            }
            at = (at / 64 + 1) * 64;
        }
        self.first + end
    }

    /// The first bit below `end` that is not as in `other`, a window of the same bits.
    pub(super) fn first_difference(&self, other: &Self, end: u64) -> Option<u64> {
        assert!(self.first == other.first && self.words.len() == other.words.len(), "the same bits");
        let words = self.words.iter().zip(&other.words).map(|(one, other)| one ^ other);
        let (at, word) = words.enumerate().find(|(_, word)| *word != 0)?;
        let bit = self.first + at as u64 * 64 + u64::from(word.trailing_zeros());
        (bit < end).then_some(bit)
    }

    /// Sets the bits `start..end`; tells the first that was set already.
    pub(super) fn set(&mut self, start: u64, end: u64) -> Result<(), u64> {
        match self.run_end(start, end, false) {
            taken if taken < end => return Err(taken),
            _ => {}
        }
        let (mut at, end) = (start - self.first, end - self.first);
        while at < end {
            let stop = ((at / 64 + 1) * 64).min(end);
            let ones = u64::MAX >> (64 - (stop - at));
            self.words[index(at / 64)] |= ones << (at % 64);
            at = stop;
        }
        Ok(())
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("within memory")
}

impl Geometry {
    /// Bytes of the bitmap that speak of the volume's clusters.
    pub(super) fn bitmap_bytes(&self) -> u64 {
        self.cluster_count.div_ceil(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_answer_as_single_bits_would(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 1..40),
            first in 0..1000u64, from in 0..320u64, len in 0..320u64,
        ) {
            let bit = |at: u64| bytes[usize::try_from(at / 8).unwrap()] >> (at % 8) & 1 != 0;
            let count = bytes.len() as u64 * 8;
            let (from, end) = (from.min(count), (from + len).min(count));
            let mut words = Words::new(&bytes, first);
            for value in [false, true] {
                let naive = (from..end).find(|at| bit(*at) != value).unwrap_or(end);
                prop_assert_eq!(words.run_end(first + from, first + end, value), first + naive);
            }
            let taken = (from..end).find(|at| bit(*at));
            let set = words.set(first + from, first + end);
            prop_assert_eq!(set, taken.map_or(Ok(()), |at| Err(first + at)));
            for at in 0..count {
                let expected = bit(at) || (taken.is_none() && from <= at && at < end);
                prop_assert_eq!(words.get(first + at), expected);
            }
        }
    }
}
