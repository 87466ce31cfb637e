//! Two lists of facts that must be the same, told in any order, in memory that does not grow with them.
//!
//! Each fact is added to one of some thousand sums by its hash; two lists that are the same have the same sums, and of two
//! that are not some sum differs (but for one chance in 2^128). What differs is named by telling all facts once more
//! and keeping those of one such sum.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_128;

const BUCKETS: u64 = 4096;

/// Who tells a fact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The file.
    File,
    /// The directory.
    Directory,
}

/// See the module.
pub(super) enum Tally {
    /// The sums of both sides.
    Sums(Vec<[u128; 2]>),
    /// The facts of one sum: how often the file tells it more than the directory does.
    Facts {
        /// Which sum.
        bucket: u64,
        /// By fact.
        balance: BTreeMap<Vec<u8>, i64>,
    },
    /// None at all.
    Ignored,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self::Sums(vec![[0; 2]; usize::try_from(BUCKETS).expect("few")])
    }

    /// One that keeps the facts of `bucket`.
    pub(super) fn of_bucket(bucket: u64) -> Self {
        Self::Facts { bucket, balance: BTreeMap::new() }
    }

    /// Takes a fact about the file `number`, told `times` times.
    pub(super) fn tell(&mut self, side: Side, number: u64, fact: &[u8], times: u32) {
        match self {
            Self::Sums(sums) => {
                let sum = &mut sums[usize::try_from(number % BUCKETS).expect("few")]
                    [usize::from(side == Side::Directory)];
                *sum = sum.wrapping_add(xxh3_128(fact).wrapping_mul(u128::from(times)));
            }
            Self::Facts { bucket, balance } if *bucket == number % BUCKETS => {
                let times = i64::from(times);
                *balance.entry(fact.to_vec()).or_default() += if side == Side::File { times } else { -times };
            }
            Self::Facts { .. } | Self::Ignored => {}
        }
    }

    /// A sum that is not the same on both sides.
    pub(super) fn differing_bucket(&self) -> Option<u64> {
        let Self::Sums(sums) = self else { return None };
        sums.iter().position(|[file, directory]| file != directory).map(|bucket| bucket as u64)
    }

    /// The facts that one side told more often than the other, and how much more the file did.
    pub(super) fn differing_facts(&self) -> Vec<(&[u8], i64)> {
        let Self::Facts { balance, .. } = self else { return Vec::new() };
        balance
            .iter()
            .filter(|(_, balance)| **balance != 0)
            .map(|(fact, balance)| (&fact[..], *balance))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_tells_more_often_is_found() {
        let tell = |tally: &mut Tally| {
            for number in 0..10_000u64 {
                tally.tell(Side::File, number, &number.to_le_bytes(), 2);
                tally.tell(Side::Directory, number, &number.to_le_bytes(), 1);
            }
            for number in (0..10_000u64).rev().filter(|number| *number != 5000) {
                tally.tell(Side::Directory, number, &number.to_le_bytes(), 1);
            }
        };
        let mut sums = Tally::new();
        tell(&mut sums);
        let bucket = sums.differing_bucket().unwrap();
        let mut facts = Tally::of_bucket(bucket);
        tell(&mut facts);
        assert_eq!(facts.differing_facts(), [(&5000u64.to_le_bytes()[..], 1)]);
        sums.tell(Side::Directory, 5000, &5000u64.to_le_bytes(), 1);
        assert_eq!(sums.differing_bucket(), None);
    }
}
