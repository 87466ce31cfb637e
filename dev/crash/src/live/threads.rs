//! Many threads at once, and a flush of any that covers all.

use std::sync::atomic::{AtomicU64, Ordering};

use extent::{Offset, Span, VirtualSpan};
use serve::Export;
use sim::{Random, SimMachine};

use super::known::{Change, SECTOR_LEN, Word, sectors, word, word_of};
use super::step::ask;
use super::subject::LiveSubject;
use super::{Used, violation};
use crate::Violation;

/// What a thread has of the disk at a time: less than most units, so that threads share these.
const STRIPE_BYTES: u64 = 10 << 10;

/// What one thread did to a sector, step after step: what it may hold since which step.
type History = Vec<(u64, Vec<Word>)>;

/// What a thread knows, and others may ask.
#[derive(Default)]
struct Progress {
    /// Steps that were answered.
    done: AtomicU64,
    /// Steps that are stable.
    stable: AtomicU64,
}

/// Has up to `thread_count` threads write and flush until the machine dies at one change or another, in `rounds` rounds.
pub fn explore_threads(
    subject: &LiveSubject,
    seed: u64,
    thread_count: u64,
    rounds: u64,
) -> Result<Used, Violation> {
    let stripes = subject.kind.len_bytes.div_ceil(STRIPE_BYTES);
    let thread_count = thread_count.min(stripes);
    let mut used = Used::default();
    for round in 0..rounds {
        let seed = seed.wrapping_add(round);
        used += one_round(subject, seed, thread_count).map_err(|text| violation(seed, text))?;
    }
    Ok(used)
}

fn one_round(subject: &LiveSubject, seed: u64, thread_count: u64) -> Result<Used, String> {
    let machine = SimMachine::new();
    let (image, contents) = subject.start(seed);
    let disk = subject.disk(&machine, seed, image.clone());
    let live = subject.open(&disk, seed).map_err(|error| error.to_string())?;
    let export = Export::new("disk", live.clone());
    let mut random = Random::new(seed);
    let death = machine.changes() + 1 + random.below(2000);
    machine.die_at_change(death);
    let progress: Vec<Progress> = (0..thread_count).map(|_| Progress::default()).collect();
    let operations = AtomicU64::new(0);
    let flushes = AtomicU64::new(0);
    let histories: Vec<Vec<History>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..thread_count)
            .map(|thread| {
                let (export, progress, machine) = (&export, &progress, &machine);
                let mut worker = Worker {
                    thread,
                    thread_count,
                    export,
                    progress,
                    random: Random::new(seed ^ (thread + 1).rotate_left(32)),
                    histories: contents.chunks(SECTOR_LEN).map(first).collect(),
                };
                let (operations, flushes) = (&operations, &flushes);
                scope.spawn(move || {
                    while machine.changes() < death && worker.step(flushes) {
                        operations.fetch_add(1, Ordering::Relaxed);
                    }
                    worker.histories
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panicked")).collect()
    });
    if let Some(failure) = export.failure()
        && machine.changes() < death
    {
        return Err(failure.to_owned());
    }
    for cut in 0..4 {
        let left = subject.disk(&SimMachine::new(), 1, disk.cut_pages(seed ^ cut));
        let image = left.to_pages();
        let keep = |text: String| text + &subject.keep(&image);
        let bytes = subject.read_only(left).map_err(|error| keep(error.to_string()))?;
        check(&bytes, &histories, &progress).map_err(|text| keep(format!("cut {cut}: {text}")))?;
        if cut == 0 {
            subject.judge(&image, &bytes).map_err(keep)?;
        }
    }
    let (operations, flushes) = (operations.into_inner(), flushes.into_inner());
    Ok(Used { operations, flushes, cuts: 4, judged: 1, ..Used::default() })
}

fn first(sector: &[u8]) -> History {
    vec![(0, vec![word_of(sector).expect("a fresh disk holds words")])]
}

fn owner(number: usize, thread_count: u64) -> usize {
    let stripe = (number * SECTOR_LEN) as u64 / STRIPE_BYTES;
    usize::try_from(stripe % thread_count).expect("few threads")
}

/// Each sector holds what its owner left there with its last stable step, or later.
fn check(bytes: &[u8], histories: &[Vec<History>], progress: &[Progress]) -> Result<(), String> {
    for (number, found) in bytes.chunks(SECTOR_LEN).enumerate() {
        let owner = owner(number, histories.len() as u64);
        let history = &histories[owner][number];
        let stable = progress[owner].stable.load(Ordering::Acquire);
        let from = history.iter().rposition(|(step, _)| *step <= stable).unwrap_or(0);
        let mut any = history[from..].iter().flat_map(|(_, words)| words);
        let fits = match word_of(found) {
            Some(word) => any.any(|known| *known == word),
            // Torn: between two versions.
            None => history.len() > from + 1,
        };
        if !fits {
            let may = &history[from..];
            return Err(format!(
                "sector {number} of thread {owner} holds {:x?}, not {may:x?}",
                word_of(found)
            ));
        }
    }
    Ok(())
}

struct Worker<'a> {
    thread: u64,
    thread_count: u64,
    export: &'a Export,
    progress: &'a [Progress],
    random: Random,
    histories: Vec<History>,
}

impl Worker<'_> {
    /// One request; `false` once they fail.
    fn step(&mut self, flushes: &AtomicU64) -> bool {
        if self.random.below(12) == 0 {
            flushes.fetch_add(1, Ordering::Relaxed);
            return self.flush();
        }
        let own = &self.progress[usize::try_from(self.thread).expect("few threads")];
        let number = own.done.load(Ordering::Acquire) + 1;
        let span = self.span();
        let change = match self.random.below(8) {
            0 => Change::Discard,
            1 => Change::Zero,
            _ => Change::Write(number * self.thread_count + self.thread),
        };
        for sector in sectors(span) {
            let history = &mut self.histories[sector];
            let words = match change {
                Change::Write(write) => vec![word(write, sector)],
                Change::Zero => vec![0],
                Change::Discard => {
                    let before = history.last().map(|(_, words)| words.clone()).unwrap_or_default();
                    [before, vec![0]].concat()
                }
            };
            history.push((number, words));
        }
        let is_done = ask(self.export, span, change, true, false).is_ok();
        if is_done {
            own.done.store(number, Ordering::Release);
        }
        is_done
    }

    fn flush(&self) -> bool {
        let done: Vec<u64> = self.progress.iter().map(|one| one.done.load(Ordering::Acquire)).collect();
        let is_done = self.export.flush().is_ok();
        for (one, done) in self.progress.iter().zip(done).filter(|_| is_done) {
            one.stable.fetch_max(done, Ordering::AcqRel);
        }
        is_done
    }

    /// A part of one of the thread's stripes.
    fn span(&mut self) -> VirtualSpan {
        let len_bytes = (self.histories.len() * SECTOR_LEN) as u64;
        let stripes = len_bytes.div_ceil(STRIPE_BYTES);
        let own = stripes / self.thread_count + u64::from(self.thread < stripes % self.thread_count);
        let stripe = self.random.below(own) * self.thread_count + self.thread;
        let start = stripe * STRIPE_BYTES;
        let sectors = (len_bytes - start).min(STRIPE_BYTES) / SECTOR_LEN as u64;
        let from = self.random.below(sectors);
        let count = 1 + self.random.below(sectors - from);
        Span::new(Offset::new(start + from * SECTOR_LEN as u64), count * SECTOR_LEN as u64)
    }
}
