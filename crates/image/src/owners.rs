//! Which units of a file already belong to something: how two owners of one place are found.
//!
//! A place is only overwritten if nothing else lies there. Images of which that is not so exist: damaged, or made to
//! have a program overwrite a table.

use block::{Error, Result};
use extent::{HostOffset, HostSpan};

/// The most memory that the units of a file take: 64 MiB, which are 32 TiB in clusters of 64 KiB.
const BYTES_MAX: u64 = 64 << 20;

/// A bit for each unit of a file.
#[derive(Clone)]
pub(crate) struct Owners {
    unit_bytes: u64,
    words: Vec<u64>,
}

impl Owners {
    /// Nothing of a file of `file_bytes` is taken yet. `Unsupported` if it has too many units.
    pub(crate) fn new(file_bytes: u64, unit_bytes: u64) -> Result<Self> {
        let bytes = file_bytes.div_ceil(unit_bytes).div_ceil(64).saturating_mul(8);
        if bytes > BYTES_MAX {
            return Err(Error::unsupported("change in place of an image of this size")
                .field(
                    "units of its file",
                    file_bytes.div_ceil(unit_bytes),
                    format!("at most {}", BYTES_MAX * 8),
                )
                .hint("copy it to a new image with larger clusters"));
        }
        let words = usize::try_from(bytes / 8).expect("bounded above");
        Ok(Self { unit_bytes, words: vec![0; words] })
    }

    /// Takes the units that `span` touches, all of them within the file. Fails with one that is taken already.
    pub(crate) fn take(&mut self, span: HostSpan) -> Result<(), HostOffset> {
        self.each_word(span, |word, bits| {
            let taken = *word & bits;
            *word |= bits;
            if taken == 0 { Ok(()) } else { Err(taken) }
        })
    }

    /// Like [`Self::take`], of what several may have together.
    pub(crate) fn share(&mut self, span: HostSpan) {
        let shared = self.each_word(span, |word, bits| {
            *word |= bits;
            Ok(())
        });
        shared.expect("nothing fails");
    }

    /// A unit that both hold.
    pub(crate) fn common(&self, other: &Self) -> Option<HostOffset> {
        let mut both = (0..).zip(self.words.iter().zip(&other.words));
        let (index, (mine, theirs)) = both.find(|(_, (mine, theirs))| *mine & *theirs != 0)?;
        Some(self.offset(index, mine & theirs))
    }

    /// Whether the unit at `at` is held. None past the file's end is.
    pub(crate) fn has(&self, at: HostOffset) -> bool {
        let unit = at.get() / self.unit_bytes;
        let word = usize::try_from(unit / 64).ok().and_then(|index| self.words.get(index));
        word.is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    fn offset(&self, index: u64, bits: u64) -> HostOffset {
        HostOffset::new((index * 64 + u64::from(bits.trailing_zeros())) * self.unit_bytes)
    }

    fn each_word(
        &mut self,
        span: HostSpan,
        mut each: impl FnMut(&mut u64, u64) -> Result<(), u64>,
    ) -> Result<(), HostOffset> {
        let mut unit = span.start().get() / self.unit_bytes;
        let end = if span.is_empty() { unit } else { span.end().get().div_ceil(self.unit_bytes) };
        while unit < end {
            let count = (64 - unit % 64).min(end - unit);
            let bits = (u64::MAX >> (64 - count)) << (unit % 64);
            let word = usize::try_from(unit / 64).ok().and_then(|index| self.words.get_mut(index));
            let word = word.expect("only what lies within the file is taken");
            each(word, bits).map_err(|bits| self.offset(unit / 64, bits))?;
            unit += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::Span;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn two_owners_are_found_where_a_naive_model_finds_them(
            spans in prop::collection::vec((0..4000u64, 0..600u64), 0..20), unit in 1..9u64,
        ) {
            let mut owners = Owners::new(5000, unit).unwrap();
            let mut model = vec![false; 5000];
            for (start, len) in spans {
                let units = start / unit..if len == 0 { start / unit } else { (start + len).div_ceil(unit) };
                let taken = units.clone().find(|at| model[usize::try_from(*at).unwrap()]);
                let found = owners.take(Span::new(HostOffset::new(start), len));
                prop_assert_eq!(found.err().is_some(), taken.is_some());
                if taken.is_some() {
                    break;
                }
                units.for_each(|at| model[usize::try_from(at).unwrap()] = true);
            }
        }
    }

    #[test]
    fn what_is_shared_is_told_apart() {
        let span = |start, len| Span::new(HostOffset::new(start), len);
        let (mut own, mut shared) = (Owners::new(1 << 20, 512).unwrap(), Owners::new(1 << 20, 512).unwrap());
        own.take(span(0, 70_000)).unwrap();
        shared.share(span(80_000, 10));
        shared.share(span(80_001, 600));
        assert_eq!(own.common(&shared), None);
        shared.share(span(69_999, 1));
        assert_eq!(own.common(&shared), Some(HostOffset::new(69_632)));
        let held = [0, 69_999, 70_143, 70_144, 80_000, 1 << 30].map(|at| own.has(HostOffset::new(at)));
        assert_eq!(held, [true, true, true, false, false, false]);
        assert_eq!(own.take(span(69_000, 5000)), Err(HostOffset::new(68_608)));
        assert!(Owners::new(u64::MAX, 512).is_err());
    }
}
