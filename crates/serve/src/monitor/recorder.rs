//! Turns arrivals and completions into histograms. Knows no clock, no lock and no thread.
//!
//! Invariant: for each completion there was one arrival; a completion too many changes no count below zero.

use hdrhistogram::Histogram as Hdr;

use super::bins::{
    BLOCK_BYTES, IO_LENGTH_BINS, MICROSECONDS_BINS, OUTSTANDING_BINS, SEEK_DISTANCE_BINS, Tally,
};
use super::snapshot::{Counts, Latencies, Snapshot, Split};

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
    Read = 0,
    /// It writes.
    Write = 1,
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

/// What is counted of reads, of writes, or of both, and what their next I/O is compared with.
struct Kind {
    /// The last blocks of the last I/Os; the oldest is overwritten next. As many as are known hold it.
    last_blocks: [i64; WINDOW_COUNT],
    next: usize,
    previous: Option<i64>,
    arrived_ns: Option<u64>,
    under_way: i64,
    seek_distance: Tally,
    seek_distance_last16: Tally,
    interarrival: Tally,
    outstanding: Tally,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            last_blocks: [0; WINDOW_COUNT],
            next: 0,
            previous: None,
            arrived_ns: None,
            under_way: 0,
            seek_distance: Tally::new(&SEEK_DISTANCE_BINS),
            seek_distance_last16: Tally::new(&SEEK_DISTANCE_BINS),
            interarrival: Tally::new(&MICROSECONDS_BINS),
            outstanding: Tally::new(&OUTSTANDING_BINS),
        }
    }
}

/// The distance to `block` from the closest of `from`; of two as close, forwards. Blocks are so small that nothing wraps but what is
/// meant to: a distance in the other direction, to be larger than any.
fn closest(block: i64, from: &[i64]) -> i64 {
    let (mut forwards, mut backwards) = (u64::MAX, u64::MAX);
    for from in from {
        forwards = forwards.min(block.wrapping_sub(*from).cast_unsigned());
        backwards = backwards.min(from.wrapping_sub(block).cast_unsigned());
    }
    if forwards <= backwards { signed(forwards) } else { -signed(backwards) }
}

impl Kind {
    /// Blocks are offsets in bytes divided by 512, so that no distance overflows.
    fn arrive(&mut self, first_block: i64, last_block: i64, at_ns: u64) {
        if let Some(previous) = self.previous {
            self.seek_distance.record(first_block - previous);
            self.seek_distance_last16.record(closest(first_block, &self.last_blocks));
        } else {
            // Until there are 16, the first stands for those that are missing.
            self.last_blocks = [last_block; WINDOW_COUNT];
        }
        self.last_blocks[self.next] = last_block;
        self.next = (self.next + 1) % WINDOW_COUNT;
        self.previous = Some(last_block);
        if let Some(before_ns) = self.arrived_ns.replace(at_ns) {
            self.interarrival.record(microseconds(at_ns.saturating_sub(before_ns)));
        }
        self.under_way += 1;
        self.outstanding.record(self.under_way);
    }

    fn complete(&mut self) {
        self.under_way = (self.under_way - 1).max(0);
    }
}

/// What of a direction is not counted for both together: the sum of both is.
struct Direct {
    io_length: Tally,
    latency: Tally,
    latency_fine: Hdr<u64>,
    count: u64,
    bytes: u64,
}

impl Default for Direct {
    fn default() -> Self {
        Self {
            io_length: Tally::new(&IO_LENGTH_BINS),
            latency: Tally::new(&MICROSECONDS_BINS),
            latency_fine: Hdr::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS)
                .expect("bounds that hdrhistogram takes"),
            count: 0,
            bytes: 0,
        }
    }
}

/// Everything that is counted of a disk.
#[derive(Default)]
pub struct Recorder {
    all: Kind,
    /// Reads, then writes.
    kinds: [Kind; 2],
    directs: [Direct; 2],
    /// Where the last I/O ended, in bytes.
    last_end: Option<u64>,
    sequential: u64,
    flushes: u64,
    zeroed: u64,
    failed: u64,
}

impl Recorder {
    /// Counts an arrival at `at_ns`, by any clock that does not go back.
    pub fn arrive(&mut self, io: &Io, at_ns: u64) {
        let first_block = signed(io.offset / BLOCK_BYTES);
        let end = io.offset.saturating_add(io.len_bytes);
        let last_block = signed(end.saturating_sub(1) / BLOCK_BYTES).max(first_block);
        self.all.arrive(first_block, last_block, at_ns);
        self.kinds[io.direction as usize].arrive(first_block, last_block, at_ns);
        self.sequential += u64::from(self.last_end == Some(io.offset));
        self.last_end = Some(end);
        let direct = &mut self.directs[io.direction as usize];
        direct.io_length.record(signed(io.len_bytes));
        direct.count += 1;
        direct.bytes = direct.bytes.saturating_add(io.len_bytes);
    }

    /// Counts a completion.
    pub fn complete(&mut self, completion: &Completion) {
        self.abandon(completion.direction);
        let direct = &mut self.directs[completion.direction as usize];
        direct.latency.record(microseconds(completion.latency_ns));
        direct.latency_fine.saturating_record(completion.latency_ns);
        self.failed += u64::from(!completion.is_ok);
    }

    /// An I/O that arrived will not complete: its client is gone.
    pub fn abandon(&mut self, direction: Direction) {
        self.all.complete();
        self.kinds[direction as usize].complete();
    }

    /// Counts a flush.
    pub fn flush(&mut self) {
        self.flushes += 1;
    }

    /// Counts a range zeroed or discarded.
    pub fn zero(&mut self) {
        self.zeroed += 1;
    }

    /// What was counted so far. Physical I/Os and the time are the caller's to add.
    pub fn snapshot(&self) -> Snapshot {
        let [reads, writes] = &self.directs;
        Snapshot {
            io_length: self.sum(|direct| &direct.io_length),
            seek_distance: self.each(|kind| &kind.seek_distance),
            seek_distance_last16: self.each(|kind| &kind.seek_distance_last16),
            latency: self.sum(|direct| &direct.latency),
            interarrival: self.each(|kind| &kind.interarrival),
            outstanding: self.each(|kind| &kind.outstanding),
            read_latency: sparse(&reads.latency_fine),
            write_latency: sparse(&writes.latency_fine),
            logical: Counts {
                reads: reads.count,
                read_bytes: reads.bytes,
                writes: writes.count,
                written_bytes: writes.bytes,
            },
            sequential: self.sequential,
            flushes: self.flushes,
            zeroed: self.zeroed,
            failed: self.failed,
            ..Snapshot::default()
        }
    }

    fn each(&self, of: fn(&Kind) -> &Tally) -> Split {
        let [reads, writes] = &self.kinds;
        let histogram = |kind| of(kind).histogram();
        Split { all: histogram(&self.all), reads: histogram(reads), writes: histogram(writes) }
    }

    fn sum(&self, of: fn(&Direct) -> &Tally) -> Split {
        let [reads, writes] = [&self.directs[0], &self.directs[1]].map(|direct| of(direct).histogram());
        let mut all = reads.clone();
        all.merge(&writes);
        Split { all, reads, writes }
    }
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
                    .min_by_key(|distance| (distance.abs(), *distance < 0))
                    .unwrap()
            })
            .collect();
        let interarrival: Vec<i64> =
            seen.windows(2).map(|pair| microseconds(pair[1].at_ns - pair[0].at_ns)).collect();
        let lengths: Vec<i64> = seen.iter().map(|io| io.blocks * 512).collect();
        check(name, &of(&snapshot.seek_distance), SEEK_DISTANCE, &previous);
        check(name, &of(&snapshot.seek_distance_last16), SEEK_DISTANCE, &closest);
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
