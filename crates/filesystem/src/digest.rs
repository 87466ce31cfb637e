//! Sets of records that are compared without being kept.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// A set of records, each as often as it was added, whatever their order: two numbers and how many they are. Two sets that differ
/// have the same ones by chance alone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Digest {
    sums: [u64; 2],
    count: u64,
}

impl Digest {
    pub(crate) fn add(&mut self, record: impl Hash) {
        self.add_times(record, 1);
    }

    pub(crate) fn add_times(&mut self, record: impl Hash, times: u64) {
        for (sum, salt) in self.sums.iter_mut().zip([0_u8, 1]) {
            let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((salt, &record));
            *sum = sum.wrapping_add(hash.wrapping_mul(times));
        }
        self.count = self.count.wrapping_add(times);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_and_how_often_counts() {
        let of = |records: &[u32]| {
            let mut digest = Digest::default();
            records.iter().for_each(|record| digest.add(record));
            digest
        };
        let mut times = Digest::default();
        times.add_times(3_u32, 2);
        times.add(1_u32);
        assert_eq!(times, of(&[3, 1, 3]));
        assert_eq!(times.count(), 3);
        assert_ne!(of(&[1, 2]), of(&[1, 3]));
        assert_ne!(of(&[1, 1]), of(&[1]));
    }
}
