//! How fast a storage is to read from, found by reading from it.
//!
//! Invariants:
//! - nothing is written, created or changed: the file is open for reading only;
//! - every read goes past this machine's page cache, or the probe fails;
//! - no read begins once the time is over, and none that would exceed the bytes.
//!
//! Caches below (a controller's, an array's, a hypervisor's) cannot be passed by. What helps: places are random, new in
//! each probe and spread over the file; medians hide the few that a cache answers; answers faster than flash are
//! reported as what they are. Holes are not read: they say nothing about the storage.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::{Duration, Instant};

use block::{AlignedBuffer, Error, HostState, ReadAt, Result};
use extent::{HostOffset, Offset};

use crate::source::SourceFile;

const PAGE: u64 = AlignedBuffer::PAGE_BYTES as u64;

/// Lengths of random reads.
const RANDOM_BYTES: [u64; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Lengths of reads that go on where the last ended, with how many of them a round has after the first, whose way
/// there is not theirs.
const SEQUENTIAL: [(u64, u64); 2] = [(64 << 10, 4), (1 << 20, 2)];

/// How far from the one before a near read is at most.
const NEAR_BYTES: u64 = 16 << 20;

/// Small reads of a kind in one round: they are cheap, and vary the most.
const SMALL_READS: usize = 6;

/// The fewest rounds whose median means something.
const ROUNDS_MIN: usize = 3;

/// Rounds beyond which a probe learns nothing new.
const ROUNDS_MAX: usize = 64;

/// How often a place is looked for that is not in a hole.
const TRIES_MAX: usize = 64;

/// A read that is answered sooner was not read from a disk or from flash: reading a page of NAND flash takes tens of
/// microseconds.
const CACHE_SECONDS: f64 = 20e-6;

/// Where the mean is so many times the median, some reads waited for something else than the storage.
const BUSY_FACTOR: f64 = 3.0;

/// How much a probe may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingBudget {
    /// How long it may take. The last read may go beyond.
    pub time: Duration,
    /// How much it may read.
    pub bytes: u64,
}

impl Default for TimingBudget {
    /// Two seconds and 64 MiB.
    fn default() -> Self {
        Self { time: Duration::from_secs(2), bytes: 64 << 20 }
    }
}

/// What a probe measured: medians, in pairs of a read's length in bytes and its seconds, one read at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct StorageTiming {
    /// Reads that go on where the one before ended.
    pub sequential: Vec<(u64, f64)>,
    /// Reads at random places.
    pub random: Vec<(u64, f64)>,
    /// Reads within 16 MiB of the one before.
    pub near: Vec<(u64, f64)>,
    /// The fastest and the slowest random read of 4 KiB, in seconds: how far the medians can be relied on.
    pub random_range_seconds: (f64, f64),
    /// All that was measured, as a multiple of what it had taken had each read taken its median: 1 where nothing else goes on.
    pub mean_ratio: f64,
    /// The length of the file or device.
    pub span_bytes: u64,
    /// How often everything was measured.
    pub rounds: usize,
    /// How much was read.
    pub read_bytes: u64,
    /// How long it took.
    pub elapsed_seconds: f64,
    /// Why the figures may not be those of the storage: for people.
    pub doubts: Vec<String>,
}

/// Measures the storage on which the file or device at `path` lies. `Unsupported` where there is no direct I/O;
/// `Invalid` if the file or the budget is too small to tell anything.
pub fn time_storage(path: impl AsRef<Path>, budget: TimingBudget) -> Result<StorageTiming> {
    let file = SourceFile::open_direct(path)?;
    if file.len_bytes() < PAGE {
        return Err(too_small(&file));
    }
    let mut prober = Prober::new(&file, budget);
    let mut rounds = 0;
    while rounds < ROUNDS_MAX && prober.round()? {
        rounds += 1;
    }
    if rounds < ROUNDS_MIN {
        return Err(Error::invalid(format!(
            "only {rounds} of at least {ROUNDS_MIN} rounds of measurements fit into {:?} and {} bytes",
            budget.time, budget.bytes
        ))
        .path(block::HostFile::name(&*file))
        .hint("choose a profile by name"));
    }
    Ok(prober.finish(rounds))
}

fn too_small(file: &SourceFile) -> Error {
    Error::invalid("too little of the file is allocated to measure its storage")
        .path(block::HostFile::name(file))
        .hint("choose a profile by name")
}

/// The times of reads of one length.
struct Times {
    len_bytes: u64,
    seconds: Vec<f64>,
}

impl Times {
    fn of(len_bytes: u64) -> Self {
        Self { len_bytes, seconds: Vec::new() }
    }

    fn median(&mut self) -> Option<(u64, f64)> {
        self.seconds.sort_by(f64::total_cmp);
        self.seconds.get(self.seconds.len() / 2).map(|seconds| (self.len_bytes, *seconds))
    }
}

struct Prober<'a> {
    file: &'a SourceFile,
    budget: TimingBudget,
    started: Instant,
    read_bytes: u64,
    buffer: AlignedBuffer,
    random: [Times; 4],
    sequential: [Times; 2],
    near: Times,
    places: RandomState,
    place_count: u64,
}

impl<'a> Prober<'a> {
    fn new(file: &'a SourceFile, budget: TimingBudget) -> Self {
        Self {
            file,
            budget,
            started: Instant::now(),
            read_bytes: 0,
            buffer: AlignedBuffer::new(1 << 20),
            random: RANDOM_BYTES.map(Times::of),
            sequential: SEQUENTIAL.map(|(len_bytes, _)| Times::of(len_bytes)),
            near: Times::of(PAGE),
            places: RandomState::new(),
            place_count: 0,
        }
    }

    /// Measures everything once. `false` if the budget ended before.
    fn round(&mut self) -> Result<bool> {
        for (index, len_bytes) in RANDOM_BYTES.into_iter().enumerate() {
            let count = if len_bytes == PAGE { SMALL_READS } else { 1 };
            for _ in 0..count {
                // What is allocated may be in pieces that are all shorter than the longest reads.
                let Some(at) = self.place(0, self.file.len_bytes(), len_bytes)? else { continue };
                let Some(seconds) = self.read(at, len_bytes)? else { return Ok(false) };
                self.random[index].seconds.push(seconds);
            }
        }
        let mut last = None;
        for _ in 0..SMALL_READS {
            let around: u64 = last.map_or(0, |last: HostOffset| last.get());
            let (start, end) = match last {
                Some(_) => (around.saturating_sub(NEAR_BYTES), around.saturating_add(NEAR_BYTES)),
                None => (0, self.file.len_bytes()),
            };
            let Some(at) = self.place(start, end, PAGE)? else { break };
            let Some(seconds) = self.read(at, PAGE)? else { return Ok(false) };
            if last.is_some() {
                self.near.seconds.push(seconds);
            }
            last = Some(at);
        }
        for (index, (len_bytes, count)) in SEQUENTIAL.into_iter().enumerate() {
            let Some(at) = self.place(0, self.file.len_bytes(), len_bytes * (count + 1))? else { continue };
            for read in 0..=count {
                let next = Offset::new(at.get() + read * len_bytes);
                let Some(seconds) = self.read(next, len_bytes)? else { return Ok(false) };
                if read > 0 {
                    self.sequential[index].seconds.push(seconds);
                }
            }
        }
        match self.random[0].seconds.is_empty() || self.sequential[0].seconds.is_empty() {
            true => Err(too_small(self.file)),
            false => Ok(true),
        }
    }

    /// Reads, and says how many seconds that took. `None` if there is no budget left for it.
    fn read(&mut self, at: HostOffset, len_bytes: u64) -> Result<Option<f64>> {
        if self.started.elapsed() >= self.budget.time || self.read_bytes + len_bytes > self.budget.bytes {
            return Ok(None);
        }
        let len = usize::try_from(len_bytes).expect("at most the buffer's length");
        let started = Instant::now();
        if !self.file.read_direct(at, &mut self.buffer[..len])? {
            return Err(Error::unsupported(
                "there is no direct I/O here: only the page cache could be measured",
            )
            .path(block::HostFile::name(self.file))
            .hint("choose a profile by name"));
        }
        self.read_bytes += len_bytes;
        Ok(Some(started.elapsed().as_secs_f64()))
    }

    /// A random place for `len_bytes` between `start` and `end`, at a page's beginning and outside of holes. `None`
    /// if none was found.
    fn place(&mut self, start: u64, end: u64, len_bytes: u64) -> Result<Option<HostOffset>> {
        let end = end.min(self.file.len_bytes());
        let Some(room_bytes) = end.checked_sub(len_bytes).and_then(|last| last.checked_sub(start)) else {
            return Ok(None);
        };
        let pages = room_bytes / PAGE + 1;
        for _ in 0..TRIES_MAX {
            let at = start / PAGE * PAGE + self.random_number() % pages * PAGE;
            let found = self.file.extent_at(Offset::new(at))?;
            let (at, found) = match found.state {
                HostState::Data => (at, found),
                // What follows a hole is data: a disk with little in it is found all the same.
                _ if found.span.end().get() < end => {
                    let at = found.span.end().get().next_multiple_of(PAGE);
                    if at >= end {
                        continue;
                    }
                    (at, self.file.extent_at(Offset::new(at))?)
                }
                _ => continue,
            };
            if found.state == HostState::Data && at + len_bytes <= found.span.end().get().min(end) {
                return Ok(Some(Offset::new(at)));
            }
        }
        Ok(None)
    }

    fn random_number(&mut self) -> u64 {
        self.place_count += 1;
        self.places.hash_one(self.place_count)
    }

    fn finish(mut self, rounds: usize) -> StorageTiming {
        let random: Vec<_> = self.random.iter_mut().filter_map(Times::median).collect();
        // Sorted by the median.
        let smallest = self.random[0].seconds.clone();
        let median = smallest[smallest.len() / 2];
        let total: f64 = smallest.iter().sum();
        // The count as it is: some hundreds at most.
        let mean = total / f64::from(u32::try_from(smallest.len()).unwrap_or(u32::MAX));
        let kinds = self.random.iter_mut().chain(&mut self.sequential).chain([&mut self.near]);
        let (took, by_median) = kinds.fold((0.0, 0.0), |(took, by_median), times| {
            let median = times.median().map_or(0.0, |(_, seconds)| seconds);
            let sum: f64 = times.seconds.iter().sum();
            (
                took + sum,
                by_median + median * f64::from(u32::try_from(times.seconds.len()).unwrap_or(u32::MAX)),
            )
        });
        let cached = (median < CACHE_SECONDS).then(|| {
            format!(
                "half of the random reads of 4 KiB were answered within {:.0} µs: by a cache below this machine, or \
                 by memory",
                (median * 1e6).max(1.0)
            )
        });
        let busy = (mean > BUSY_FACTOR * median).then(|| {
            format!(
                "random reads of 4 KiB took {:.0} times as long on average as in the median: the storage or this \
                 machine is busy, and reading will take longer than predicted",
                mean / median
            )
        });
        StorageTiming {
            random,
            sequential: self.sequential.iter_mut().filter_map(Times::median).collect(),
            near: self.near.median().into_iter().collect(),
            random_range_seconds: (smallest[0], smallest[smallest.len() - 1]),
            mean_ratio: if by_median > 0.0 { took / by_median } else { 1.0 },
            span_bytes: self.file.len_bytes(),
            rounds,
            read_bytes: self.read_bytes,
            elapsed_seconds: self.started.elapsed().as_secs_f64(),
            doubts: [cached, busy].into_iter().flatten().collect(),
        }
    }
}
