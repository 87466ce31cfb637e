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
/// Classes of magnitudes: each below 16 is one, from there on eight lie between a power of two and the next.
const CLASS_COUNT: usize = 512;

/// A set of bins, prepared so that a value's is found without searching and without branches, which a processor could not
/// foresee: its sign and class tell it but for one limit.
pub(crate) struct Bins {
    limits: &'static [i64],
    /// The limits, and then what no value is above.
    padded: [i64; BIN_COUNT_MAX],
    /// By class, how many limits are below all values in it: those from zero on, and those below zero.
    starts: [[u8; CLASS_COUNT]; 2],
}

/// See [`IO_LENGTH`].
pub(crate) static IO_LENGTH_BINS: Bins = Bins::new(IO_LENGTH);
/// See [`SEEK_DISTANCE`].
pub(crate) static SEEK_DISTANCE_BINS: Bins = Bins::new(SEEK_DISTANCE);
/// See [`MICROSECONDS`].
pub(crate) static MICROSECONDS_BINS: Bins = Bins::new(MICROSECONDS);
/// See [`OUTSTANDING`].
pub(crate) static OUTSTANDING_BINS: Bins = Bins::new(OUTSTANDING);

impl Bins {
    const fn new(limits: &'static [i64]) -> Self {
        assert!(!limits.is_empty() && limits.len() < BIN_COUNT_MAX, "one of the sets of bins above");
        let mut bins = Self { limits, padded: [i64::MAX; BIN_COUNT_MAX], starts: [[0; CLASS_COUNT]; 2] };
        let mut index = 0;
        while index < limits.len() {
            bins.padded[index] = limits[index];
            index += 1;
        }
        let mut class = 0;
        while class < CLASS_COUNT {
            let (first, last) = (magnitude(class), magnitude(class + 1) - 1);
            bins.starts[0][class] = start(limits, first, last);
            bins.starts[1][class] = start(limits, -last, -first);
            class += 1;
        }
        bins
    }

    /// How many limits are below `value`.
    #[inline]
    fn bin(&self, value: i64) -> usize {
        let starts = &self.starts[usize::from(value < 0)];
        let start = usize::from(starts[class(value.unsigned_abs())]);
        start + usize::from(self.padded[start] < value)
    }
}

/// How many of `limits` are below `smallest`. From there to below `largest` is one more at most.
const fn start(limits: &[i64], smallest: i128, largest: i128) -> u8 {
    let (mut below, mut within, mut index) = (0u8, 0u8, 0usize);
    while index < limits.len() {
        // Widening, which `from` is for but cannot be had here.
        let limit = limits[index] as i128;
        below += (limit < smallest) as u8;
        within += (limit >= smallest && limit < largest) as u8;
        index += 1;
    }
    assert!(within <= 1, "limits that lie too close");
    below
}

/// The smallest magnitude of a class.
const fn magnitude(class: usize) -> i128 {
    let class = class as i128;
    if class < 16 { class } else { (8 + class % 8) << (class / 8 - 1) }
}

#[inline]
fn class(magnitude: u64) -> usize {
    let power = (magnitude | 8).ilog2() - 3;
    // The first four bits, the first of which counts for the power as well.
    power as usize * 8 + usize::try_from(magnitude >> power).unwrap_or(0)
}

/// Values that wait to be counted together: finding the bin of each is a chain of loads, and many chains go on beside each other.
const WAITING_COUNT: usize = 32;

/// A histogram that is being counted: as quick as can be, because it is in the way of every I/O.
#[derive(Clone)]
pub(crate) struct Tally {
    bins: &'static Bins,
    waiting: [i64; WAITING_COUNT],
    waiting_count: usize,
    totals: Totals,
}

/// What a [`Tally`] counted.
#[derive(Clone)]
struct Totals {
    counts: [u64; BIN_COUNT_MAX],
    min: i64,
    max: i64,
    sum: i64,
}

impl Totals {
    #[inline]
    fn add(&mut self, bins: &Bins, values: &[i64]) {
        let mut places = [0; WAITING_COUNT];
        let (mut min, mut max, mut sum) = (self.min, self.max, i128::from(self.sum));
        for (place, value) in places.iter_mut().zip(values) {
            *place = bins.bin(*value);
            min = min.min(*value);
            max = max.max(*value);
            sum += i128::from(*value);
        }
        for place in &places[..values.len()] {
            self.counts[*place] += 1;
        }
        let bound = if sum < 0 { i64::MIN } else { i64::MAX };
        (self.min, self.max, self.sum) = (min, max, i64::try_from(sum).unwrap_or(bound));
    }
}

impl Tally {
    pub(crate) const fn new(bins: &'static Bins) -> Self {
        let totals = Totals { counts: [0; BIN_COUNT_MAX], min: i64::MAX, max: i64::MIN, sum: 0 };
        Self { bins, waiting: [0; WAITING_COUNT], waiting_count: 0, totals }
    }

    /// Counts `value`.
    #[inline]
    pub(crate) fn record(&mut self, value: i64) {
        let index = self.waiting_count % WAITING_COUNT;
        self.waiting[index] = value;
        self.waiting_count = index + 1;
        if self.waiting_count == WAITING_COUNT {
            self.waiting_count = 0;
            self.totals.add(self.bins, &self.waiting);
        }
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let mut totals = self.totals.clone();
        totals.add(self.bins, &self.waiting[..self.waiting_count]);
        let is_empty = totals.min > totals.max;
        let limits = self.bins.limits;
        Histogram {
            limits: limits.to_vec(),
            counts: totals.counts[..=limits.len()].to_vec(),
            min: (!is_empty).then_some(totals.min),
            max: (!is_empty).then_some(totals.max),
            sum: totals.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [&Bins; 4] = [&IO_LENGTH_BINS, &SEEK_DISTANCE_BINS, &MICROSECONDS_BINS, &OUTSTANDING_BINS];

    fn check(bins: &Bins, value: i64) {
        let expected = bins.limits.iter().filter(|limit| **limit < value).count();
        assert_eq!(bins.bin(value), expected, "{value} among {:?}", bins.limits);
    }

    #[test]
    fn values_around_limits_and_ends_fall_where_counting_says() {
        for bins in ALL {
            for limit in bins.limits.iter().chain(&[0, i64::MAX - 9, i64::MIN + 9]) {
                (limit - 9..=limit + 9).for_each(|value| check(bins, value));
            }
            for power in 0..63 {
                (-2..=2).for_each(|more| check(bins, (1i64 << power).wrapping_add(more)));
                (-2..=2).for_each(|more| check(bins, (-1i64 << power).wrapping_add(more)));
            }
        }
    }

    proptest! {
        #[test]
        fn any_value_falls_where_counting_says(value: i64, shift in 0u32..64) {
            ALL.into_iter().for_each(|bins| check(bins, value >> shift));
        }
    }
}
