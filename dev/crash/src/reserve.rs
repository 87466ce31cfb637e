//! Explores a file whose storage is reserved ahead: threads write, zero, punch and cut it by turns, on a host that has
//! little room, fails, and carries out what it was asked for late; what is unused goes back meanwhile.
//!
//! Each thread has stripes of the file of its own, so that it knows what a reader must see there. What failed for want of room may have
//! happened in part.
//!
//! Invariants that are checked: every answered write reads as written, then and at the end; once all that was not used went back, only
//! what somebody asked for has storage.
//!
//! Absent on purpose: power cuts, which take from a file in use what they take from any other.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::{ReadAt, Result, TargetFile};
use extent::{ExtentSet, HostOffset, HostSpan, Span};
use preallocate::Preallocated;
use sim::{Random, SimRoom, Turns};

use crate::Violation;

/// Calls what it is given, on the thread that it is called on: where mutants are chosen.
pub type InThread = dyn Fn(&mut dyn FnMut()) + Sync;

const THREAD_COUNT: u64 = 4;
const SECTOR_BYTES: u64 = 512;
const SECTOR_LEN: usize = 512;
/// Where the file ends at first, and what it may grow to.
const LEN_BYTES: u64 = 40 << 20;
const LIMIT_BYTES: u64 = 48 << 20;
/// More than the file needs, so that windows find room.
const CAPACITY_BYTES: u64 = 200 << 20;
/// Sectors of one request at most.
const SECTORS_MAX: u64 = 24;
/// The parts of the file that are used: few, so that threads meet.
const SPOTS: [u64; 5] = [0, 1 << 20, 17 << 20, 30 << 20, 39 << 20];
const SPOT_BYTES: u64 = 256 << 10;

/// How much was looked at.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// Requests.
    pub requests: u64,
    /// Those of them that failed for want of room.
    pub full: u64,
    /// Requests that found their storage reserved.
    pub continued: u64,
}

impl std::ops::AddAssign for Reserved {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.full += other.full;
        self.continued += other.continued;
    }
}

/// Has threads take `step_count` steps each, in an order that `seed` decides.
pub fn explore_reserving(seed: u64, step_count: u64, in_thread: &InThread) -> Result<Reserved, Violation> {
    let violation = |text: String| Violation { seed, text };
    let turns = Arc::new(Turns::new(seed));
    let room = SimRoom::new(turns.clone(), seed, LEN_BYTES, CAPACITY_BYTES);
    // Half of them begin on a full host: what is written then is written without knowing the file.
    room.fail_one_in(seed / 3 % 2 * 2);
    let continued = Arc::new(Mutex::new(0));
    let counter = continued.clone();
    let on_continued = Box::new(move || *counter.lock().unwrap() += 1);
    let file = Preallocated::new(room, LIMIT_BYTES, on_continued);
    let stripe_bytes = [1 << 10, 4 << 10, 20 << 10][usize::try_from(seed % 3).expect("a small number")];
    let results = turns.run(usize::try_from(THREAD_COUNT).expect("few threads"), |thread| {
        let mut worker = Worker::new(&file, thread as u64, seed, stripe_bytes);
        let mut result = Ok(());
        in_thread(&mut || result = worker.steps(step_count));
        result.map(|()| worker)
    });
    let workers = results.into_iter().collect::<Result<Vec<_>, _>>().map_err(violation)?;
    let mut used = Reserved { continued: *continued.lock().unwrap(), ..Reserved::default() };
    let mut asked = ExtentSet::new();
    file.machine().fail_one_in(0);
    file.give_back().map_err(|error| violation(error.to_string()))?;
    for worker in &workers {
        worker.check_all().map_err(|text| violation(format!("at the end: {text}")))?;
        used += worker.used;
        asked = asked.union(&worker.asked.iter().copied().collect());
    }
    let left = file.machine().storage().subtract(&asked);
    match left.is_empty() && file.unused_bytes() == 0 {
        true => Ok(used),
        false => Err(violation(format!("at the end nobody asked for {:?}", left.iter().collect::<Vec<_>>()))),
    }
}

/// What a sector may hold: the number of the write that filled it, 0 for zeros.
type Words = Vec<u64>;

struct Worker<'a> {
    file: &'a Preallocated<SimRoom>,
    thread: u64,
    random: Random,
    /// The sectors of the file that are this thread's, in order.
    own: Vec<u64>,
    /// What each of them may hold.
    words: Vec<Words>,
    /// What was asked for, in whole blocks.
    asked: Vec<HostSpan>,
    last_write: u64,
    /// The end of the file, if this thread is the one that moves it.
    end: Option<u64>,
    used: Reserved,
}

fn sectors_of(spot: u64) -> Range<u64> {
    spot / SECTOR_BYTES..(spot + SPOT_BYTES) / SECTOR_BYTES
}

fn blocks(span: HostSpan) -> HostSpan {
    let start = span.start().get() / sim::BLOCK_BYTES * sim::BLOCK_BYTES;
    let end = span.end().get().next_multiple_of(sim::BLOCK_BYTES);
    Span::between(HostOffset::new(start), HostOffset::new(end))
}

impl<'a> Worker<'a> {
    fn new(file: &'a Preallocated<SimRoom>, thread: u64, seed: u64, stripe_bytes: u64) -> Self {
        let is_own = |sector: &u64| sector * SECTOR_BYTES / stripe_bytes % THREAD_COUNT == thread;
        let mut own: Vec<u64> = SPOTS.into_iter().flat_map(sectors_of).filter(is_own).collect();
        let is_last = thread == 0;
        if is_last {
            // What lies past the end at first.
            own.extend(sectors_of(LEN_BYTES));
        }
        let words = vec![vec![0]; own.len()];
        let random = Random::new(seed ^ (thread + 1).rotate_left(32));
        let end = is_last.then_some(LEN_BYTES);
        Self {
            file,
            thread,
            random,
            own,
            words,
            asked: Vec::new(),
            last_write: 0,
            end,
            used: Reserved::default(),
        }
    }

    fn steps(&mut self, count: u64) -> Result<(), String> {
        (0..count).try_for_each(|step| {
            self.step().map_err(|text| format!("thread {}, step {step}: {text}", self.thread))
        })
    }

    fn step(&mut self) -> Result<(), String> {
        let machine = self.file.machine();
        match self.random.below(40) {
            0..=21 => self.write(),
            22..=23 => self.zero(),
            24..=27 => self.punch(),
            28 => self.reserve(),
            29..=30 if self.end.is_some() => self.move_end(),
            31..=32 => {
                machine.sleep(Duration::from_millis(self.random.below(3000)));
                Ok(())
            }
            33..=34 => {
                machine.sleep(Duration::from_secs(11));
                Ok(())
            }
            35..=36 => {
                let capacity_bytes = machine.storage().total_bytes() + self.random.below(3) * (64 << 20);
                machine.set_capacity(capacity_bytes.min(CAPACITY_BYTES));
                machine.fail_one_in([0, 0, 3, 20][usize::try_from(self.random.below(4)).expect("an index")]);
                Ok(())
            }
            // What the host does not take back now it takes back later.
            37 => {
                let _ = self.file.give_back_idle();
                Ok(())
            }
            _ => self.check_all(),
        }
    }

    /// Some of the thread's sectors that lie together in the file, by their numbers here, and where.
    fn any_span(&mut self) -> (Range<usize>, HostSpan) {
        let first = usize::try_from(self.random.below(self.own.len() as u64)).expect("an index");
        let count_max = 1 + self.random.below(SECTORS_MAX);
        let follows = |index: &usize| self.own[*index] - self.own[first] == (*index - first) as u64;
        let last = (first..self.own.len()).take(usize::try_from(count_max).expect("a few"));
        let count = last.take_while(follows).count();
        let start = HostOffset::new(self.own[first] * SECTOR_BYTES);
        (first..first + count, Span::new(start, count as u64 * SECTOR_BYTES))
    }

    /// Within the file as it is.
    fn any_span_inside(&mut self) -> Option<(Range<usize>, HostSpan)> {
        let (range, span) = self.any_span();
        (span.end().get() <= self.file.len_bytes()).then_some((range, span))
    }

    /// The sectors now hold what `word` says; if the change failed, that or what they held.
    fn changed(&mut self, range: Range<usize>, word: u64, result: Result<()>) -> Result<(), String> {
        self.used.requests += 1;
        let failed = match result {
            Ok(()) => false,
            Err(error) if error.is_full() => true,
            Err(error) => return Err(error.to_string()),
        };
        self.used.full += u64::from(failed);
        for words in &mut self.words[range] {
            if !failed {
                words.clear();
            }
            words.push(word);
        }
        Ok(())
    }

    fn grown_to(&mut self, end: u64) {
        if let Some(known) = &mut self.end {
            *known = (*known).max(end);
        }
    }

    fn write(&mut self) -> Result<(), String> {
        let (range, span) = self.any_span();
        self.last_write += THREAD_COUNT;
        let word = self.last_write + self.thread;
        let mut bytes = vec![0; range.len() * SECTOR_LEN];
        bytes.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
        self.asked.push(blocks(span));
        let result = self.file.write_at(span.start(), &bytes);
        self.grown_to(span.end().get());
        self.changed(range.clone(), word, result)?;
        self.check(range)
    }

    fn zero(&mut self) -> Result<(), String> {
        let Some((range, span)) = self.any_span_inside() else { return Ok(()) };
        self.asked.push(blocks(span));
        let result = self.file.zero(span);
        self.changed(range, 0, result)
    }

    fn punch(&mut self) -> Result<(), String> {
        let Some((range, span)) = self.any_span_inside() else { return Ok(()) };
        let result = self.file.punch(span);
        self.changed(range, 0, result)
    }

    fn reserve(&mut self) -> Result<(), String> {
        let Some((range, span)) = self.any_span_inside() else { return Ok(()) };
        self.asked.push(blocks(span));
        let reserved = self.file.reserve(span);
        self.used.full += u64::from(reserved.is_err());
        self.check(range)
    }

    /// Makes the file longer or shorter, where nobody else writes.
    fn move_end(&mut self) -> Result<(), String> {
        let end = LEN_BYTES + self.random.below(SPOT_BYTES / SECTOR_BYTES) * SECTOR_BYTES;
        self.file.set_len(end).map_err(|error| error.to_string())?;
        self.end = Some(end);
        for (sector, words) in self.own.iter().zip(&mut self.words) {
            if sector * SECTOR_BYTES >= end {
                *words = vec![0];
            }
        }
        Ok(())
    }

    fn check_all(&self) -> Result<(), String> {
        self.check(0..self.own.len())
    }

    fn check(&self, range: Range<usize>) -> Result<(), String> {
        let len_bytes = self.file.len_bytes();
        for (sector, words) in self.own[range.clone()].iter().zip(&self.words[range]) {
            let at = sector * SECTOR_BYTES;
            if at + SECTOR_BYTES > len_bytes {
                continue;
            }
            let mut bytes = [0; SECTOR_LEN];
            self.file.read_at(HostOffset::new(at), &mut bytes).map_err(|error| error.to_string())?;
            let all = bytes.as_chunks::<8>().0;
            let word = u64::from_le_bytes(all[0]);
            if !words.contains(&word) || all.iter().any(|other| *other != all[0]) {
                return Err(format!("at {at:#x} there is {word}, not one of {words:?}"));
            }
        }
        Ok(())
    }
}
