//! Turns arrivals and completions into histograms. Knows no clock, no lock and no thread.
//!
//! Invariant: for each completion there was one arrival; a completion too many changes no count below zero.

use hdrhistogram::Histogram as Hdr;

use super::bins::BLOCK_BYTES;
use super::snapshot::{Latencies, Snapshot, Split};

/// How many earlier I/Os a seek is measured against.
const WINDOW_COUNT: usize = 16;
/// Longer latencies count as this one: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Digits of latencies that are kept.
const LATENCY_DIGITS: u8 = 2;

/// Whether an I/O reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// An I/O as it arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// Reads or writes.
    pub direction: Direction,
    /// Where, in bytes.
    pub offset: u64,
    /// How much.
    pub len_bytes: u64,
}

/// An I/O as it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Reads or writes.
    pub direction: Direction,
    /// From arrival to now, in nanoseconds.
    pub latency_ns: u64,
    /// Whether it did what was asked.
    pub is_ok: bool,
}

/// What the next I/O of a kind is compared with.
#[derive(Default)]
struct Track {
    /// The last blocks of the last I/Os; the oldest is overwritten next.
    last_blocks: [i64; WINDOW_COUNT],
    known: usize,
    next: usize,
    arrived_ns: Option<u64>,
    outstanding: i64,
}

/// What one arrival tells.
struct Arrival {
    /// To the I/O before, and to the closest of the last 16.
    distances: Option<(i64, i64)>,
    interarrival_us: Option<i64>,
    outstanding: i64,
}

impl Track {
    fn arrive(&mut self, first_block: i64, last_block: i64, at_ns: u64) -> Arrival {
        let distances = (self.known > 0).then(|| {
            let previous = self.last_blocks[(self.next + WINDOW_COUNT - 1) % WINDOW_COUNT];
            let known = &self.last_blocks[..self.known];
            let to = |block: i64| first_block.saturating_sub(block);
            let closest = known
                .iter()
                .map(|block| to(*block))
                .min_by_key(|distance| distance.unsigned_abs())
                .unwrap_or(0);
            (to(previous), closest)
        });
        self.last_blocks[self.next] = last_block;
        self.next = (self.next + 1) % WINDOW_COUNT;
        self.known = (self.known + 1).min(WINDOW_COUNT);
        let interarrival_us = self.arrived_ns.map(|before| microseconds(at_ns.saturating_sub(before)));
        self.arrived_ns = Some(at_ns);
        self.outstanding += 1;
        Arrival { distances, interarrival_us, outstanding: self.outstanding }
    }

    fn complete(&mut self) {
        self.outstanding = (self.outstanding - 1).max(0);
    }
}

/// Everything that is counted of a disk.
pub struct Recorder {
    counted: Snapshot,
    all: Track,
    reads: Track,
    writes: Track,
    read_latency: Hdr<u64>,
    write_latency: Hdr<u64>,
    /// Where the last I/O ended, in bytes.
    last_end: Option<u64>,
}

impl Default for Recorder {
    fn default() -> Self {
        let latencies = || {
            Hdr::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS).expect("bounds that hdrhistogram takes")
        };
        Self {
            counted: Snapshot::default(),
            all: Track::default(),
            reads: Track::default(),
            writes: Track::default(),
            read_latency: latencies(),
            write_latency: latencies(),
            last_end: None,
        }
    }
}

impl Recorder {
    /// Counts an arrival at `at_ns`, by any clock that does not go back.
    pub fn arrive(&mut self, io: &Io, at_ns: u64) {
        let first_block = signed(io.offset / BLOCK_BYTES);
        let end = io.offset.saturating_add(io.len_bytes);
        let last_block = signed(end.saturating_sub(1) / BLOCK_BYTES).max(first_block);
        let counted = &mut self.counted;
        let is_read = io.direction == Direction::Read;

        let of_all = self.all.arrive(first_block, last_block, at_ns);
        record_arrival(counted, &of_all, |split| &mut split.all);
        let of_kind = if is_read { &mut self.reads } else { &mut self.writes };
        let of_kind = of_kind.arrive(first_block, last_block, at_ns);
        record_arrival(
            counted,
            &of_kind,
            if is_read { |split| &mut split.reads } else { |split| &mut split.writes },
        );

        let len = signed(io.len_bytes);
        counted.sequential += u64::from(self.last_end == Some(io.offset));
        self.last_end = Some(end);
        if is_read {
            counted.io_length.reads.record(len);
            counted.logical.reads += 1;
            counted.logical.read_bytes = counted.logical.read_bytes.saturating_add(io.len_bytes);
        } else {
            counted.io_length.writes.record(len);
            counted.logical.writes += 1;
            counted.logical.written_bytes = counted.logical.written_bytes.saturating_add(io.len_bytes);
        }
    }

    /// Counts a completion.
    pub fn complete(&mut self, completion: &Completion) {
        self.all.complete();
        let (track, split, latencies) = match completion.direction {
            Direction::Read => (&mut self.reads, &mut self.counted.latency.reads, &mut self.read_latency),
            Direction::Write => (&mut self.writes, &mut self.counted.latency.writes, &mut self.write_latency),
        };
        track.complete();
        split.record(microseconds(completion.latency_ns));
        latencies.saturating_record(completion.latency_ns);
        self.counted.failed += u64::from(!completion.is_ok);
    }

    /// An I/O that arrived will not complete: its client is gone.
    pub fn abandon(&mut self, direction: Direction) {
        self.all.complete();
        match direction {
            Direction::Read => self.reads.complete(),
            Direction::Write => self.writes.complete(),
        }
    }

    /// Counts a flush.
    pub fn flush(&mut self) {
        self.counted.flushes += 1;
    }

    /// Counts a range zeroed or discarded.
    pub fn zero(&mut self) {
        self.counted.zeroed += 1;
    }

    /// What was counted so far. Physical I/Os and the time are the caller's to add.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.counted.clone();
        // What is the same for all as for both kinds together is not counted twice while it happens.
        for split in [&mut snapshot.io_length, &mut snapshot.latency] {
            split.all = split.reads.clone();
            split.all.merge(&split.writes);
        }
        snapshot.read_latency = sparse(&self.read_latency);
        snapshot.write_latency = sparse(&self.write_latency);
        snapshot
    }
}

fn record_arrival(
    counted: &mut Snapshot,
    arrival: &Arrival,
    of: fn(&mut Split) -> &mut super::bins::Histogram,
) {
    if let Some((previous, closest)) = arrival.distances {
        of(&mut counted.seek_distance).record(previous);
        of(&mut counted.seek_distance_last16).record(closest);
    }
    if let Some(interarrival_us) = arrival.interarrival_us {
        of(&mut counted.interarrival).record(interarrival_us);
    }
    of(&mut counted.outstanding).record(arrival.outstanding);
}

fn sparse(latencies: &Hdr<u64>) -> Latencies {
    Latencies {
        bins: latencies
            .iter_recorded()
            .map(|bin| (bin.value_iterated_to(), bin.count_since_last_iteration()))
            .collect(),
    }
}

/// Whole microseconds, rounded up: what took any time took at least one.
fn microseconds(ns: u64) -> i64 {
    signed(ns.div_ceil(1000))
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bins::{Histogram, IO_LENGTH, MICROSECONDS, OUTSTANDING, SEEK_DISTANCE};
    use super::*;

    /// The bin of a value by looking at each limit in turn.
    fn naive(limits: &[i64], values: &[i64]) -> Vec<u64> {
        let mut counts = vec![0; limits.len() + 1];
        for value in values {
            let mut bin = 0;
            while bin < limits.len() && *value > limits[bin] {
                bin += 1;
            }
            counts[bin] += 1;
        }
        counts
    }

    fn check(name: &str, histogram: &Histogram, limits: &[i64], values: &[i64]) {
        assert_eq!(histogram.counts, naive(limits, values), "{name} of {values:?}");
        assert_eq!(histogram.min, values.iter().min().copied(), "{name}");
        assert_eq!(histogram.max, values.iter().max().copied(), "{name}");
        assert_eq!(histogram.sum, values.iter().sum::<i64>(), "{name}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive { is_read: bool, block: u64, blocks: u64, after_ns: u64 },
        Complete { latency_ns: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let block = prop_oneof![0u64..40, 0u64..2_000_000];
        let arrive = (any::<bool>(), block, 1u64..1100, prop_oneof![0u64..3000, 0u64..200_000_000])
            .prop_map(|(is_read, block, blocks, after_ns)| Step::Arrive { is_read, block, blocks, after_ns });
        let complete =
            prop_oneof![0u64..20_000, 0u64..300_000_000].prop_map(|latency_ns| Step::Complete { latency_ns });
        prop_oneof![3 => arrive, 2 => complete]
    }

    /// What happened, kept whole: the model computes each histogram's values from it.
    #[derive(Clone, Copy)]
    struct Seen {
        is_read: bool,
        block: i64,
        blocks: i64,
        at_ns: u64,
        outstanding: i64,
        outstanding_of_kind: i64,
    }

    fn check_kind(
        name: &str,
        seen: &[Seen],
        outstanding: impl Fn(&Seen) -> i64,
        of: impl Fn(&Split) -> Histogram,
        snapshot: &Snapshot,
    ) {
        let previous: Vec<i64> =
            seen.windows(2).map(|pair| pair[1].block - (pair[0].block + pair[0].blocks - 1)).collect();
        let closest: Vec<i64> = (1..seen.len())
            .map(|index| {
                let earlier = &seen[index.saturating_sub(16)..index];
                earlier
                    .iter()
                    .map(|before| seen[index].block - (before.block + before.blocks - 1))
                    .min_by_key(|distance| distance.abs())
                    .unwrap()
            })
            .collect();
        let interarrival: Vec<i64> =
            seen.windows(2).map(|pair| microseconds(pair[1].at_ns - pair[0].at_ns)).collect();
        let lengths: Vec<i64> = seen.iter().map(|io| io.blocks * 512).collect();
        check(name, &of(&snapshot.seek_distance), SEEK_DISTANCE, &previous);
        // Two at the same distance on both sides are both closest.
        assert_eq!(of(&snapshot.seek_distance_last16).count(), closest.len() as u64);
        let absolute = |values: &[i64]| values.iter().map(|value| value.abs()).max();
        let last16 = of(&snapshot.seek_distance_last16);
        assert_eq!(
            last16.min.into_iter().chain(last16.max).map(i64::abs).max(),
            absolute(&closest),
            "{name}"
        );
        check(name, &of(&snapshot.interarrival), MICROSECONDS, &interarrival);
        check(name, &of(&snapshot.io_length), IO_LENGTH, &lengths);
        check(
            name,
            &of(&snapshot.outstanding),
            OUTSTANDING,
            &seen.iter().map(outstanding).collect::<Vec<_>>(),
        );
    }

    proptest! {
        #[test]
        fn histograms_are_those_of_the_naive_model(steps in proptest::collection::vec(step(), 1..120)) {
            let mut recorder = Recorder::default();
            let mut seen: Vec<Seen> = Vec::new();
            let mut open: Vec<bool> = Vec::new();
            let mut latencies: [Vec<i64>; 2] = [Vec::new(), Vec::new()];
            let mut now = 5u64;
            for step in steps {
                match step {
                    Step::Arrive { is_read, block, blocks, after_ns } => {
                        now += after_ns;
                        let direction = if is_read { Direction::Read } else { Direction::Write };
                        recorder.arrive(&Io { direction, offset: block * 512, len_bytes: blocks * 512 }, now);
                        open.push(is_read);
                        seen.push(Seen {
                            is_read,
                            block: signed(block),
                            blocks: signed(blocks),
                            at_ns: now,
                            outstanding: signed(open.len() as u64),
                            outstanding_of_kind: signed(open.iter().filter(|kind| **kind == is_read).count() as u64),
                        });
                    }
                    Step::Complete { latency_ns } => {
                        let Some(is_read) = open.pop() else { continue };
                        let direction = if is_read { Direction::Read } else { Direction::Write };
                        recorder.complete(&Completion { direction, latency_ns, is_ok: true });
                        latencies[usize::from(is_read)].push(microseconds(latency_ns));
                    }
                }
            }
            let snapshot = recorder.snapshot();
            let kind = |is_read| seen.iter().copied().filter(|io: &Seen| io.is_read == is_read).collect::<Vec<_>>();
            check_kind("all", &seen, |io| io.outstanding, |split| split.all.clone(), &snapshot);
            check_kind("reads", &kind(true), |io| io.outstanding_of_kind, |split| split.reads.clone(), &snapshot);
            check_kind("writes", &kind(false), |io| io.outstanding_of_kind, |split| split.writes.clone(), &snapshot);
            check("read latency", &snapshot.latency.reads, MICROSECONDS, &latencies[1]);
            check("write latency", &snapshot.latency.writes, MICROSECONDS, &latencies[0]);
            check("latency", &snapshot.latency.all, MICROSECONDS, &latencies.concat());
            let sequential = seen.windows(2).filter(|pair| pair[1].block == pair[0].block + pair[0].blocks).count();
            prop_assert_eq!(snapshot.sequential, sequential as u64);
            prop_assert_eq!(snapshot.logical.operations(), seen.len() as u64);

            // Merging with nothing and subtracting nothing change nothing; a difference and its start make the end.
            let mut merged = Snapshot::default();
            merged.merge(&snapshot);
            prop_assert_eq!(&merged, &snapshot);
            prop_assert_eq!(&snapshot.since(&Snapshot::default()), &snapshot);
            let json = serde_json::to_string(&snapshot).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Snapshot>(&json).unwrap(), &snapshot);
        }

        #[test]
        fn an_interval_and_what_was_before_make_the_whole(lens in proptest::collection::vec(1u64..2_000_000, 2..40), cut in 0usize..40) {
            let cut = cut % lens.len();
            let mut recorder = Recorder::default();
            let mut earlier = recorder.snapshot();
            for (index, len_bytes) in lens.iter().enumerate() {
                if index == cut {
                    earlier = recorder.snapshot();
                }
                recorder.arrive(&Io { direction: Direction::Write, offset: *len_bytes, len_bytes: *len_bytes }, index as u64);
                recorder.complete(&Completion { direction: Direction::Write, latency_ns: *len_bytes, is_ok: index % 2 == 0 });
            }
            let end = recorder.snapshot();
            let interval = end.since(&earlier);
            prop_assert_eq!(interval.io_length.all.count(), (lens.len() - cut) as u64);
            prop_assert_eq!(interval.logical.written_bytes, lens[cut..].iter().sum::<u64>());
            let mut again = earlier.clone();
            again.merge(&interval);
            prop_assert_eq!(&again.io_length.all.counts, &end.io_length.all.counts);
            prop_assert_eq!(&again.write_latency, &end.write_latency);
            prop_assert_eq!(again.failed, end.failed);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut recorder = Recorder::default();
        for latency_ns in 1..=1000 {
            recorder.complete(&Completion {
                direction: Direction::Read,
                latency_ns: latency_ns * 1000,
                is_ok: true,
            });
        }
        let latencies = recorder.snapshot().all_latency();
        for (share, expected) in
            [(0.5, 500_000), (0.99, 990_000), (0.999, 999_000), (0.0, 1000), (1.0, 1_000_000)]
        {
            let found = latencies.quantile_ns(share).unwrap();
            assert!(found.abs_diff(expected) * 100 <= expected, "{share}: {found}, expected {expected}");
        }
        assert_eq!(Latencies::default().quantile_ns(0.5), None);
    }
}
