//! Kills, power cuts and errors in `copy` as the program runs it, from the first look at the source to the last check: in a first
//! attempt, in a second one, which may be of another source or have other options, and then an attempt that finishes.
//!
//! What must hold at any moment: the target's own name means what it meant before, or a whole copy; and what the last attempt makes
//! is the source as it is then, in the format that was asked for, with nothing beside it. What is refused changes nothing.
//!
//! The engine's part of it is explored in more depth by [`crate::resume`].

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{ErrorKind, Memory, ReadAt, Result, TargetFile, TargetName};
use extent::{HostOffset, VirtualOffset};
use image::{Chain, Format, NoFiles, OpenOptions};
use leandisk::{Cancel, Observer, Progress, Unwatched, Waiting, copy};
use sim::{FileMarks, Pages, Random};

use crate::explore::{Explored, Violation};
use crate::host::{SimHost, TARGET};
use crate::resume::{RESUME_KINDS, ResumeKind};

const SOURCE: &str = "/disks/disk";

/// What the engine handles at a time; a checkpoint comes between two of them.
const CHUNK_BYTES: usize = 2 << 20;
/// Chunks of the disk.
const CHUNK_COUNT: usize = 3;
/// Bytes of each that hold data.
const DATA_BYTES: usize = 16 << 10;

/// What the target held before the first attempt.
const BEFORE: &[u8] = b"what was there before";

/// A disk in two states, and what its copies are told.
pub struct CopySubject {
    seed: u64,
    sources: [Pages; 2],
    marks: FileMarks,
}

/// One attempt.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// Which state of the source is copied.
    state: usize,
    kind: ResumeKind,
    resumes: bool,
    verifies: bool,
}

impl Attempt {
    fn random(random: &mut Random) -> Self {
        let kind = RESUME_KINDS[usize::try_from(random.below(8)).expect("small").saturating_sub(4)];
        let state = usize::from(random.below(4) == 0);
        Self { state, kind, resumes: random.below(4) != 0, verifies: random.below(8) == 0 }
    }

    /// One that goes on with this one, if it can; or any other.
    fn next(self, random: &mut Random) -> Self {
        if random.coin() { Self { resumes: true, ..self } } else { Self::random(random) }
    }

    fn options(self, replaces: bool) -> copy::Options {
        let option = |(key, value): &(&str, &str)| format!("{key}={value}");
        copy::Options {
            source: SOURCE.into(),
            target: TARGET.into(),
            open: leandisk::OpenOptions { format: Some(Format::Raw), ..leandisk::OpenOptions::default() },
            target_format: Some(self.kind.format),
            target_option: self.kind.options.iter().map(option).collect(),
            compress: self.kind.is_compressed,
            verify: self.verifies,
            resume: self.resumes,
            force: replaces,
            threads: Some(1),
            ..copy::Options::default()
        }
    }
}

impl CopySubject {
    /// A disk whose contents follow from a seed, copied to a folder that tells files apart by these marks.
    pub fn new(seed: u64, marks: FileMarks) -> Self {
        let mut random = Random::new(seed);
        let mut bytes = vec![0; CHUNK_BYTES * CHUNK_COUNT];
        for chunk in bytes.chunks_exact_mut(CHUNK_BYTES) {
            let at = usize::try_from(random.below(400)).expect("small") * 4096;
            for sector in chunk[at..at + DATA_BYTES].chunks_exact_mut(512) {
                sector.fill(random.next_u64().to_le_bytes()[0] | 1);
            }
        }
        let other: Vec<_> = bytes.iter().map(|byte| if *byte == 0 { 0 } else { *byte ^ 0x80 }).collect();
        Self { seed, sources: [Pages::new(&bytes), Pages::new(&other)], marks }
    }

    fn host(&self, has_target: bool) -> SimHost {
        let host = SimHost::new(SOURCE, self.sources[0].clone()).for_copies(self.seed, self.marks);
        let host = host.with_clones(self.seed % 3 == 1);
        if has_target {
            host.target.put(TargetName::Target, BEFORE);
        }
        host
    }

    /// One attempt at the source in its state, which another file has if it is not the first; says whether it went on with something.
    fn attempt(&self, host: SimHost, attempt: Attempt) -> (SimHost, Result<bool>) {
        let is_there = host.pages(SOURCE) == self.sources[attempt.state];
        let host = if is_there { host } else { host.with_file(SOURCE, self.sources[attempt.state].clone()) };
        let replaces = host.target.file(TargetName::Target).is_some();
        let watch = Watch::default();
        let result = copy::run_on(&host, &attempt.options(replaces), &watch);
        (host, result.map(|_| watch.goes_on.into_inner()))
    }

    /// Whether the target is a whole copy in this format of the source in this state.
    fn is_copy(&self, pages: &Pages, kind: ResumeKind, state: usize) -> bool {
        let read = || -> Result<Vec<u8>> {
            let file = Arc::new(Memory::new(pages.to_vec()));
            let chain = Chain::open(file, OpenOptions { format: Some(kind.format) }, &NoFiles)?;
            let mut bytes = vec![0; usize::try_from(chain.len_bytes()).expect("small")];
            chain.read_at(VirtualOffset::ZERO, &mut bytes)?;
            Ok(bytes)
        };
        read().is_ok_and(|bytes| Pages::new(&bytes) == self.sources[state])
    }

    /// Under the target's name is what was there before, or a whole copy that one of these attempts made.
    fn check_name(&self, host: &SimHost, has_target: bool, attempts: &[Attempt]) -> Result<(), String> {
        let is_right = match host.target.pages(TargetName::Target) {
            None => !has_target,
            Some(pages) if has_target && pages.to_vec() == BEFORE => true,
            Some(pages) => attempts.iter().any(|made| self.is_copy(&pages, made.kind, made.state)),
        };
        if is_right { Ok(()) } else { Err("the target is neither what it was nor a copy".into()) }
    }

    /// The attempt is over, and so is everything else.
    fn check_whole(&self, host: &SimHost, attempt: Attempt) -> Result<(), String> {
        let names = host.target.names();
        if names != [TargetName::Target] {
            return Err(format!("it leaves {names:?}"));
        }
        match host.target.pages(TargetName::Target) {
            Some(pages) if self.is_copy(&pages, attempt.kind, attempt.state) => Ok(()),
            _ => Err("the target is no copy of the source".into()),
        }
    }

    /// Finishes after `before`, on a machine that no longer fails.
    fn finish(
        &self,
        left: &SimHost,
        before: Attempt,
        random: &mut Random,
        explored: &mut Explored,
    ) -> Result<(), String> {
        let last = Attempt { resumes: true, ..before.next(random) };
        let (host, result) = self.attempt(left.killed(), last);
        let told = |text: String| format!("the last attempt {last:?}: {text}");
        let goes_on = result.map_err(|error| told(format!("{error:?}")))?;
        explored.states += 1;
        explored.redone += u64::from(goes_on);
        self.check_whole(&host, last).map_err(told)?;
        let cut = host.cut(random.next_u64());
        self.check_whole(&cut, last).map_err(|text| told(format!("after a power cut: {text}")))
    }
}

/// Ends a first attempt at every so manieth change, and a second one at one of its changes, and has a last one finish.
pub fn explore_copies(subject: &CopySubject, stride: u64) -> Result<Explored, Violation> {
    let mut explored = Explored::default();
    let mut change = 1 + subject.seed % stride;
    loop {
        let mut random = Random::new(subject.seed ^ change.rotate_left(32));
        let told = |text| Violation { seed: subject.seed, text: format!("cut at change {change}: {text}") };
        if !cut_twice(subject, change, &mut random, &mut explored).map_err(told)? {
            return Ok(explored);
        }
        explored.changes += 1;
        change += stride;
    }
}

/// `false` if the first attempt was over before this change.
fn cut_twice(
    subject: &CopySubject,
    change: u64,
    random: &mut Random,
    explored: &mut Explored,
) -> Result<bool, String> {
    let has_target = random.coin();
    let first = Attempt { state: 0, resumes: false, ..Attempt::random(random) };
    let host = subject.host(has_target);
    host.machine.die_at_change(change);
    let (host, result) = subject.attempt(host, first);
    if result.is_err() && host.machine.changes() < change {
        return Err(format!("{first:?} fails by itself: {result:?}"));
    }
    let left = ended(&host, random);
    let told = |text| format!("{first:?}: {text}");
    subject.check_name(&left, has_target, &[first]).map_err(told)?;
    subject.finish(&left, first, random, explored).map_err(told)?;

    let second = first.next(random);
    let host = left.killed();
    host.machine.die_at_change(1 + random.below(change + 8));
    let (host, second_result) = subject.attempt(host, second);
    let is_cut = second_result.is_err();
    let left = ended(&host, random);
    let told = |text| format!("{first:?}, then {second:?}: {text}");
    subject.check_name(&left, has_target, &[first, second]).map_err(told)?;
    subject.finish(&left, second, random, explored).map_err(told)?;
    explored.second_cuts += u64::from(is_cut);
    Ok(result.is_err())
}

/// What the next attempt finds.
fn ended(host: &SimHost, random: &mut Random) -> SimHost {
    if random.coin() { host.killed() } else { host.cut(random.next_u64()) }
}

/// Makes every so manieth operation of a copy fail once, reads included, with an I/O error or for lack of space.
pub fn explore_copy_faults(subject: &CopySubject, stride: u64) -> Result<Explored, Violation> {
    let mut explored = Explored::default();
    for kind in [io::ErrorKind::Other, io::ErrorKind::StorageFull] {
        let mut number = 1 + subject.seed % stride;
        while fail_at(subject, number, kind, &mut explored).map_err(|text| Violation {
            seed: subject.seed,
            text: format!("{kind} at operation {number}: {text}"),
        })? {
            number += stride;
        }
    }
    Ok(explored)
}

/// `false` if the copy was over before.
fn fail_at(
    subject: &CopySubject,
    number: u64,
    kind: io::ErrorKind,
    explored: &mut Explored,
) -> Result<bool, String> {
    let mut random = Random::new(subject.seed ^ number.rotate_left(32));
    let has_target = random.coin();
    let first = Attempt { state: 0, ..Attempt::random(&mut random) };
    let host = subject.host(has_target);
    host.machine.fail_operation(number, kind);
    let (host, result) = subject.attempt(host, first);
    let is_over = host.machine.operations() < number;
    host.machine.heal();
    match result {
        Err(error) if is_over => return Err(format!("{first:?} fails by itself: {error:?}")),
        Err(_) => subject.check_name(&host, has_target, &[first])?,
        Ok(_) => subject.check_whole(&host, first)?,
    }
    subject.finish(&ended(&host, &mut random), first, &mut random, explored)?;
    Ok(!is_over)
}

/// What is refused, or fails because the source changes meanwhile, leaves every name and every byte of the target's folder.
pub fn refuse_copies(subject: &CopySubject) -> Result<(), String> {
    let attempt = Attempt { state: 0, kind: RESUME_KINDS[0], resumes: true, verifies: false };
    let journal = format!("{TARGET}.leandisk-journal");
    let with_journal = subject.host(true).with_file(&journal, Pages::new(b"a change of the target"));
    let into_source = copy::Options { target: SOURCE.into(), ..attempt.options(true) };
    let tried: [(&str, SimHost, copy::Options, ErrorKind); 4] = [
        ("without --force", subject.host(true), attempt.options(false), ErrorKind::Refused),
        ("over a disk that was interrupted", with_journal, attempt.options(true), ErrorKind::Refused),
        ("over its source", subject.host(true), into_source, ErrorKind::Refused),
        ("of a source that changes", subject.host(true), attempt.options(true), ErrorKind::Mismatch),
    ];
    for (what, host, options, kind) in tried {
        let watch = Watch { writes: (kind == ErrorKind::Mismatch).then_some(&host), ..Watch::default() };
        match copy::run_on(&host, &options, &watch) {
            Err(error) if error.kind() == kind => {}
            other => return Err(format!("a copy {what} ends with {:?}", other.map(drop))),
        }
        let is_as_it_was =
            host.target.pages(TargetName::Target).is_some_and(|pages| pages.to_vec() == BEFORE);
        if host.target.names() != [TargetName::Target] || !is_as_it_was {
            return Err(format!("a copy {what} leaves {:?}", host.target.names()));
        }
    }
    Ok(())
}

/// Sees whether a copy goes on with something, and may write to the source as soon as that is copied.
#[derive(Default)]
struct Watch<'a> {
    goes_on: AtomicBool,
    writes: Option<&'a SimHost>,
}

impl Observer for Watch<'_> {
    fn waiting(&self, what: &'static str) -> Box<dyn Waiting> {
        Unwatched.waiting(what)
    }

    fn progress(&self, phase: &'static str, total_bytes: u64, cancel: Cancel) -> Box<dyn Progress> {
        if let Some(host) = self.writes {
            let source = host.folders.file(Path::new(SOURCE)).expect("it keeps its name");
            source.write_at(HostOffset::ZERO, &[7; 512]).expect("nothing fails here");
        }
        Unwatched.progress(phase, total_bytes, cancel)
    }

    fn note(&self, text: &str) {
        self.goes_on.fetch_or(text.starts_with("going on after"), Ordering::Relaxed);
    }

    fn cancel(&self) -> Result<Cancel> {
        Unwatched.cancel()
    }
}
