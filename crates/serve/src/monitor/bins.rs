//! The bins of vscsiStats, and a tally over them.
//!
//! A bin holds the values up to and including its limit and above the limit before; one more holds the rest.

use serde::{Deserialize, Serialize};

/// I/O lengths, in bytes.
pub const IO_LENGTH: &[i64] = &[
    512, 1024, 2048, 4095, 4096, 8191, 8192, 16383, 16384, 32768, 49152, 65535, 65536, 81920, 131_072,
    262_144, 524_288,
];

/// Seek distances, in blocks of 512 bytes. Negative is backwards.
pub const SEEK_DISTANCE: &[i64] = &[
    -500_000, -100_000, -50_000, -10_000, -5000, -1000, -500, -128, -64, -32, -16, -8, -6, -4, -2, -1, 0, 1,
    2, 4, 6, 8, 16, 32, 64, 128, 500, 1000, 5000, 10_000, 50_000, 100_000, 500_000,
];

/// Latencies and times between arrivals, in microseconds.
pub const MICROSECONDS: &[i64] = &[1, 10, 100, 500, 1000, 5000, 15_000, 30_000, 50_000, 100_000];

/// I/Os outstanding when one arrives, itself included.
pub const OUTSTANDING: &[i64] = &[1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 64];

/// The unit of seek distances, in bytes.
pub const BLOCK_BYTES: u64 = 512;

/// A histogram: counts by bin, and what bins do not tell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Histogram {
    /// The upper limits of the bins, ascending.
    pub limits: Vec<i64>,
    /// How many values fell into each; one more than there are limits.
    pub counts: Vec<u64>,
    /// The smallest value; `None` if there is none, or if it is not known of a difference.
    pub min: Option<i64>,
    /// The largest value.
    pub max: Option<i64>,
    /// All values added up, saturating.
    pub sum: i64,
}

impl Histogram {
    /// An empty one with those limits.
    pub fn new(limits: &[i64]) -> Self {
        Self { limits: limits.to_vec(), counts: vec![0; limits.len() + 1], min: None, max: None, sum: 0 }
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The mean, rounded towards zero; 0 if there is no value.
    pub fn mean(&self) -> i64 {
        i64::try_from(self.count()).ok().and_then(|count| self.sum.checked_div(count)).unwrap_or(0)
    }

    /// Adds what `other`, which has the same limits, counted. What has others is left out.
    pub fn merge(&mut self, other: &Self) {
        if self.limits != other.limits || self.counts.len() != other.counts.len() {
            return;
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.min = [self.min, other.min].into_iter().flatten().min();
        self.max = [self.max, other.max].into_iter().flatten().max();
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// What was counted since `earlier`, an older state of the same histogram. Its smallest and largest values are
    /// not known unless `earlier` is empty.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if earlier.count() == 0 || self.limits != earlier.limits {
            return self.clone();
        }
        let counts =
            self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then)).collect();
        Self {
            limits: self.limits.clone(),
            counts,
            min: None,
            max: None,
            sum: self.sum.saturating_sub(earlier.sum),
        }
    }
}

/// The most bins of a histogram.
const BIN_COUNT_MAX: usize = 34;

/// A histogram that is being counted: as quick as can be, because it is in the way of every I/O.
#[derive(Clone)]
pub(crate) struct Tally {
    limits: &'static [i64],
    counts: [u64; BIN_COUNT_MAX],
    min: i64,
    max: i64,
    sum: i64,
}

impl Tally {
    pub(crate) const fn new(limits: &'static [i64]) -> Self {
        assert!(!limits.is_empty() && limits.len() < BIN_COUNT_MAX, "one of the sets of bins above");
        Self { limits, counts: [0; BIN_COUNT_MAX], min: i64::MAX, max: i64::MIN, sum: 0 }
    }

    /// Counts `value`.
    pub(crate) fn record(&mut self, value: i64) {
        self.counts[self.bin(value)] += 1;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum = self.sum.saturating_add(value);
    }

    /// How many limits are below `value`. A binary search without branches, which a processor could not foresee.
    fn bin(&self, value: i64) -> usize {
        let mut base = 0;
        let mut len = self.limits.len();
        while len > 1 {
            let half = len / 2;
            base += usize::from(self.limits[base + half - 1] < value) * half;
            len -= half;
        }
        base + usize::from(self.limits[base] < value)
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let is_empty = self.min > self.max;
        Histogram {
            limits: self.limits.to_vec(),
            counts: self.counts[..=self.limits.len()].to_vec(),
            min: (!is_empty).then_some(self.min),
            max: (!is_empty).then_some(self.max),
            sum: self.sum,
        }
    }
}
