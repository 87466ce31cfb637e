//! What was measured, as plain values that can be kept, merged and subtracted.

use serde::{Deserialize, Serialize};

use super::bins::{Histogram, IO_LENGTH, MICROSECONDS, OUTSTANDING, SEEK_DISTANCE};

/// The name and version of a snapshot's JSON.
pub const SCHEMA: &str = "leandisk.io/1";

/// One histogram for all I/Os, one for reads, one for writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Split {
    /// Reads and writes together. Not always their sum: a distance is to the last I/O of the same kind.
    pub all: Histogram,
    /// Reads.
    pub reads: Histogram,
    /// Writes.
    pub writes: Histogram,
}

impl Split {
    pub(crate) fn new(limits: &[i64]) -> Self {
        let empty = Histogram::new(limits);
        Self { all: empty.clone(), reads: empty.clone(), writes: empty }
    }

    fn merge(&mut self, other: &Self) {
        self.all.merge(&other.all);
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            all: self.all.since(&earlier.all),
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
        }
    }
}

/// Counts of operations and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// How many reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// How many writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl Counts {
    fn each(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            reads: with(self.reads, other.reads),
            read_bytes: with(self.read_bytes, other.read_bytes),
            writes: with(self.writes, other.writes),
            written_bytes: with(self.written_bytes, other.written_bytes),
        }
    }

    /// Reads and writes.
    pub fn operations(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }
}

/// Latencies, finely: how many I/Os took up to so many nanoseconds, to two digits, ascending.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// Upper limits in nanoseconds, with counts. Empty bins are left out.
    pub bins: Vec<(u64, u64)>,
}

impl Latencies {
    /// The latency, in nanoseconds, that `share` (0 to 1) of the I/Os did not exceed. `None` without I/Os.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let total: u64 = self.bins.iter().map(|(_, count)| count).sum();
        // A share of a count: the places that a float lacks do not matter.
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        self.bins.iter().find_map(|(limit, count)| {
            seen += count;
            (seen >= rank).then_some(*limit)
        })
    }

    fn each(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
        let mut bins = std::collections::BTreeMap::<u64, u64>::new();
        for (limit, count) in &self.bins {
            bins.insert(*limit, *count);
        }
        for (limit, count) in &other.bins {
            let now = bins.entry(*limit).or_default();
            *now = with(*now, *count);
        }
        Self { bins: bins.into_iter().filter(|(_, count)| *count > 0).collect() }
    }
}

/// Everything measured of one disk up to a moment, or between two.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: String,
    /// Nanoseconds that it covers.
    pub elapsed_ns: u64,
    /// Lengths of I/Os in bytes.
    pub io_length: Split,
    /// From the last block of the I/O before to the first of this, in blocks of 512 bytes: 1 is sequential.
    pub seek_distance: Split,
    /// The same to the closest of the last 16 I/Os.
    pub seek_distance_last16: Split,
    /// From arrival to completion, in microseconds.
    pub latency: Split,
    /// From one arrival to the next, in microseconds.
    pub interarrival: Split,
    /// How many are under way when one arrives, itself included.
    pub outstanding: Split,
    /// Latencies of reads.
    pub read_latency: Latencies,
    /// Latencies of writes.
    pub write_latency: Latencies,
    /// What was asked of the disk.
    pub logical: Counts,
    /// What was asked of the host for it.
    pub physical: Counts,
    /// I/Os that began exactly where the I/O before ended.
    pub sequential: u64,
    /// Flushes.
    pub flushes: u64,
    /// Ranges zeroed or discarded.
    pub zeroed: u64,
    /// Reads and writes that failed.
    pub failed: u64,
    /// Allocations that would have begun a new run without allocation by the guest's addresses.
    pub fragments_prevented: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            schema: SCHEMA.into(),
            elapsed_ns: 0,
            io_length: Split::new(IO_LENGTH),
            seek_distance: Split::new(SEEK_DISTANCE),
            seek_distance_last16: Split::new(SEEK_DISTANCE),
            latency: Split::new(MICROSECONDS),
            interarrival: Split::new(MICROSECONDS),
            outstanding: Split::new(OUTSTANDING),
            read_latency: Latencies::default(),
            write_latency: Latencies::default(),
            logical: Counts::default(),
            physical: Counts::default(),
            sequential: 0,
            flushes: 0,
            zeroed: 0,
            failed: 0,
            fragments_prevented: 0,
        }
    }
}

impl Snapshot {
    /// Adds what was measured of another disk, over the same time.
    pub fn merge(&mut self, other: &Self) {
        for (one, more) in self.splits_mut().into_iter().zip(other.splits()) {
            one.merge(more);
        }
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.read_latency = self.read_latency.each(&other.read_latency, u64::saturating_add);
        self.write_latency = self.write_latency.each(&other.write_latency, u64::saturating_add);
        self.logical = self.logical.each(&other.logical, u64::saturating_add);
        self.physical = self.physical.each(&other.physical, u64::saturating_add);
        for (one, more) in self.counters_mut().into_iter().zip(other.counters()) {
            *one = one.saturating_add(more);
        }
    }

    /// What was measured since `earlier`, an older snapshot of the same disk.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for (one, (now, then)) in
            difference.splits_mut().into_iter().zip(self.splits().into_iter().zip(earlier.splits()))
        {
            *one = now.since(then);
        }
        difference.elapsed_ns = self.elapsed_ns.saturating_sub(earlier.elapsed_ns);
        difference.read_latency = self.read_latency.each(&earlier.read_latency, u64::saturating_sub);
        difference.write_latency = self.write_latency.each(&earlier.write_latency, u64::saturating_sub);
        difference.logical = self.logical.each(&earlier.logical, u64::saturating_sub);
        difference.physical = self.physical.each(&earlier.physical, u64::saturating_sub);
        for (one, then) in difference.counters_mut().into_iter().zip(earlier.counters()) {
            *one = one.saturating_sub(then);
        }
        difference
    }

    /// Latencies of reads and writes together.
    pub fn all_latency(&self) -> Latencies {
        self.read_latency.each(&self.write_latency, u64::saturating_add)
    }

    /// Physical I/Os for each logical one. `None` while nothing was asked, or where nobody counts physical ones.
    pub fn split_ratio(&self) -> Option<f64> {
        ratio(self.physical.operations(), self.logical.operations())
            .filter(|_| self.physical.operations() > 0)
    }

    /// Bytes of each physical I/O on average.
    pub fn bytes_per_transfer(&self) -> Option<f64> {
        ratio(self.physical.bytes(), self.physical.operations())
    }

    /// The share of I/Os that began where the I/O before ended.
    pub fn sequential_share(&self) -> Option<f64> {
        ratio(self.sequential, self.logical.operations())
    }

    fn splits(&self) -> [&Split; 6] {
        [
            &self.io_length,
            &self.seek_distance,
            &self.seek_distance_last16,
            &self.latency,
            &self.interarrival,
            &self.outstanding,
        ]
    }

    fn splits_mut(&mut self) -> [&mut Split; 6] {
        [
            &mut self.io_length,
            &mut self.seek_distance,
            &mut self.seek_distance_last16,
            &mut self.latency,
            &mut self.interarrival,
            &mut self.outstanding,
        ]
    }

    fn counters(&self) -> [u64; 5] {
        [self.sequential, self.flushes, self.zeroed, self.failed, self.fragments_prevented]
    }

    fn counters_mut(&mut self) -> [&mut u64; 5] {
        [
            &mut self.sequential,
            &mut self.flushes,
            &mut self.zeroed,
            &mut self.failed,
            &mut self.fragments_prevented,
        ]
    }
}

#[allow(clippy::cast_precision_loss)] // A ratio for people.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
