//! Kills and power cuts in a small copy, in the attempt after it, and the attempt after that: whatever was kept of the first two, what
//! the third makes is the source, byte for byte.
//!
//! Attempts go on with what was kept or start over, of the same source or of one that changed meanwhile; they are killed (all that was
//! written is there), lose power (what was not flushed may be lost, names too), or are told to stop. Where the first attempt and the
//! second end, is each of their changes in turn: writes, flushes, and what is done to names.
//!
//! What must hold in between: the target's own name means nothing, what it meant before, or a whole copy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use block::{FileIndex, Memory, ReadAt, Result, RunState, TargetName};
use engine::{CloneSource, CopyJob, JobIdentity, JobMonitor, Left, Provision, Transfer};
use extent::{HostOffset, Span, VirtualOffset};
use image::{AnyWriter, Chain, CreateOptions, Format, OpenOptions};
use plan::{CopyOptions, CopyPlan, CopyPlanner, Fact, Role};
use sim::{FileMarks, Pages, Random, SimFolder, SimMachine};
use testkit::TestResolver;

use crate::explore::{Explored, Violation};

/// What the engine handles at a time; a checkpoint comes between two of them.
const CHUNK_BYTES: u64 = 2 << 20;
/// Chunks of the disk.
const CHUNK_COUNT: u64 = 4;
/// Bytes of each that hold data.
const DATA_BYTES: u64 = 16 << 10;

/// The chunk that holds data throughout, of a kind that has one.
const LONG_CHUNK: u64 = 1;

/// What the target held before the first attempt.
const BEFORE: &[u8] = b"what was there before";

/// A kind of target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeKind {
    /// What it is called.
    pub name: &'static str,
    pub(crate) format: Format,
    pub(crate) options: &'static [(&'static str, &'static str)],
    pub(crate) is_compressed: bool,
    /// Whether a chunk holds data throughout, but for a few zeros: room is found for it where it lies.
    has_long: bool,
    /// Whether the target shares storage with the source. What is read of that begins within a block, and ends there every other time;
    /// what is not read holds other bytes.
    clones: bool,
}

const fn kind(
    name: &'static str,
    format: Format,
    options: &'static [(&'static str, &'static str)],
    is_compressed: bool,
) -> ResumeKind {
    ResumeKind { name, format, options, is_compressed, has_long: false, clones: false }
}

/// Kinds that place data in each way that there is: where they lie on the disk, written or cloned, one behind the other, and in pieces of
/// any length.
pub const RESUME_KINDS: [ResumeKind; 5] = [
    kind("raw", Format::Raw, &[], false),
    ResumeKind { has_long: true, ..kind("raw-long", Format::Raw, &[], false) },
    ResumeKind { clones: true, ..kind("raw-cloned", Format::Raw, &[], false) },
    kind("qcow2", Format::Qcow2, &[("cluster_size", "4096")], false),
    kind("qcow2-zlib", Format::Qcow2, &[("cluster_size", "4096"), ("compression", "zlib")], true),
];

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct ResumeOptions {
    /// The first attempt ends at every so manieth change.
    pub first_stride: u64,
    /// The second attempt does.
    pub second_stride: u64,
    /// How often each pair of changes is tried, with other losses, sources and options.
    pub tries: u64,
    /// What the folder's file system tells files apart by.
    pub marks: FileMarks,
}

/// How an attempt ends before its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Killed,
    PowerCut,
}

/// One of the two states of the source: the one with the other's data in half of its chunks.
type State = usize;

/// A small disk, and how it is copied.
pub struct ResumeSubject {
    kind: ResumeKind,
    sources: [Memory; 2],
    contents: [Vec<u8>; 2],
    plan: CopyPlan,
    /// Targets that read as the source in one state or the other: they are the same, byte for byte, mostly.
    known: Mutex<[Option<Pages>; 2]>,
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("small")
}

/// Has old data where none are read: a target that holds some of it is no copy.
fn fill_what_is_not_read(source: &mut [u8], plan: &CopyPlan) {
    let mut at = 0;
    for read in plan.reads.iter() {
        source[at..index(read.start().get())].fill(0xee);
        at = index(read.end().get());
    }
    source[at..].fill(0xee);
}

impl ResumeSubject {
    /// A disk whose contents follow from a seed.
    pub fn new(kind: ResumeKind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let len = index(CHUNK_BYTES * CHUNK_COUNT);
        let mut contents = [vec![0; len], vec![0; len]];
        let mut planner = CopyPlanner::new(CopyOptions::default(), 0);
        let mut add = |start: u64, end: u64, is_data: bool| {
            let state = if is_data {
                RunState::Data { file: FileIndex(0), offset: HostOffset::new(start) }
            } else {
                RunState::Hole
            };
            let span = Span::between(VirtualOffset::new(start), VirtualOffset::new(end));
            planner.add(&[Fact { span, state, role: Role::Outside }]);
        };
        for chunk in 0..CHUNK_COUNT {
            let start = chunk * CHUNK_BYTES;
            let place = start + random.below((CHUNK_BYTES - DATA_BYTES) / 4096) * 4096;
            let is_long = kind.has_long && chunk == LONG_CHUNK;
            let (at, end) = match kind {
                ResumeKind { clones: true, .. } => (place + 512, place + DATA_BYTES - (chunk % 2) * 1024),
                _ if is_long => (start, start + CHUNK_BYTES),
                _ => (place, place + DATA_BYTES),
            };
            for (number, sector) in (index(at)..index(end)).step_by(512).enumerate() {
                let byte = random.next_u64().to_le_bytes()[0] | 1;
                let other = if chunk % 2 == 0 { byte ^ 0x80 } else { byte };
                // A granule of zeros, which is not written.
                let is_zero = number / 8 == 1;
                contents[0][sector..sector + 512].fill(if is_zero { 0 } else { byte });
                contents[1][sector..sector + 512].fill(if is_zero { 0 } else { other });
            }
            add(start, at, false);
            add(at, end, true);
            add(end, start + CHUNK_BYTES, false);
        }
        let mut plan = planner.finish();
        let mut sources = contents.clone();
        if kind.clones {
            plan.clone_block_bytes = Some(4096);
            sources.iter_mut().for_each(|source| fill_what_is_not_read(source, &plan));
        }
        Self { kind, sources: sources.map(Memory::new), contents, plan, known: Mutex::default() }
    }

    fn writer(&self) -> Result<AnyWriter> {
        let text = |pair: &(&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
        let options = CreateOptions {
            virtual_bytes: CHUNK_BYTES * CHUNK_COUNT,
            sector_bytes: 512,
            compress: self.kind.is_compressed,
            keys: self.kind.options.iter().map(text).collect::<BTreeMap<_, _>>(),
            identity_seed: 1,
            created_unix_seconds: 0,
            file_name: "target".into(),
            target_is_dirty: false,
        };
        image::create(self.kind.format, options)
    }

    /// One attempt to copy the source as it is in this state; answers whether it went on with what another had kept.
    fn attempt(&self, folder: &SimFolder, state: State, resumes: bool, stop_bytes: u64) -> Result<bool> {
        let job = JobIdentity { source: Some(state.to_string()), how: "copied".into() };
        let (transfer, left) = Transfer::begin(folder, job, resumes)?;
        let resume = match left {
            Left::Usable(checkpoint) if resumes => Some(*checkpoint),
            _ => None,
        };
        let goes_on = resume.is_some();
        let watch = Watch { read_bytes: AtomicU64::new(0), stop_bytes };
        let copy = CopyJob {
            source: &self.sources[state],
            plan: &self.plan,
            clones: self.kind.clones.then_some(CloneSource { file: &self.sources[state], is_required: true }),
            writer: self.writer()?,
            target: transfer.partial(),
            provision: Provision::Thin,
            thread_count: 1,
            digests: false,
            checkpoint_interval: Some(std::time::Duration::ZERO),
            resume,
        };
        let result = copy.run(&transfer.watched_by(&watch));
        match result {
            Ok(_) => transfer.publish().map(|()| goes_on),
            Err(error) => {
                transfer.give_up(true);
                Err(error)
            }
        }
    }

    /// What the target reads as.
    fn read(&self, pages: &Pages) -> Result<Vec<u8>> {
        let file = Arc::new(Memory::new(pages.to_vec()));
        let options = OpenOptions { format: Some(self.kind.format) };
        let chain = Chain::open(file, options, &TestResolver::default())?;
        let mut bytes = vec![0; index(chain.len_bytes())];
        chain.read_at(VirtualOffset::ZERO, &mut bytes)?;
        Ok(bytes)
    }

    /// The target is a whole copy of the source in one of these states.
    fn check_whole(&self, folder: &SimFolder, states: &[State]) -> Result<(), String> {
        let pages = folder.pages(TargetName::Target).ok_or("there is no target")?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if states.iter().any(|state| known[*state].as_ref() == Some(&pages)) {
            return Ok(());
        }
        let found = self.read(&pages).map_err(|error| format!("the target: {error:?}"))?;
        if let Some(state) = states.iter().find(|state| found == self.contents[**state]) {
            known[*state] = Some(pages);
            return Ok(());
        }
        let wanted = &self.contents[states[0]];
        let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
        Err(format!("the target differs from the source at {at:#x?}"))
    }

    /// Under the target's name is what was there before, or a whole copy.
    fn check_name(&self, folder: &SimFolder) -> Result<(), String> {
        match folder.pages(TargetName::Target) {
            None => Err("what was there before is lost".into()),
            Some(pages) if pages.to_vec() == BEFORE => Ok(()),
            Some(_) => self.check_whole(folder, &[0, 1]),
        }
    }
}

/// Stops a copy once it has read so much.
struct Watch {
    read_bytes: AtomicU64,
    stop_bytes: u64,
}

impl JobMonitor for Watch {
    fn advanced(&self, read_bytes: u64, _written_bytes: u64) {
        self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.read_bytes.load(Ordering::Relaxed) >= self.stop_bytes
    }
}

/// Ends a first and a second attempt at changes, and has a third one finish.
pub fn explore_resume(
    subject: &ResumeSubject,
    seed: u64,
    options: ResumeOptions,
) -> Result<Explored, Violation> {
    let mut explorer = Explorer { subject, seed, options, explored: Explored::default() };
    explorer.all().map_err(|text| Violation { seed, text })?;
    Ok(explorer.explored)
}

struct Explorer<'a> {
    subject: &'a ResumeSubject,
    seed: u64,
    options: ResumeOptions,
    explored: Explored,
}

impl Explorer<'_> {
    fn all(&mut self) -> Result<(), String> {
        let mut change = 1 + self.seed % self.options.first_stride;
        while self.first(change)? {
            change += self.options.first_stride;
            self.explored.changes += 1;
        }
        Ok(())
    }

    /// The first attempt ends at this change; `false` if it was over before.
    fn first(&mut self, change: u64) -> Result<bool, String> {
        let machine: Arc<SimMachine> = Arc::default();
        let folder = SimFolder::new(machine.clone(), self.seed, self.options.marks);
        folder.put(TargetName::Target, BEFORE);
        machine.die_at_change(change);
        let result = self.subject.attempt(&folder, 0, false, u64::MAX);
        if let Err(error) = &result
            && machine.changes() < change
        {
            return Err(format!("the copy fails by itself: {error:?}"));
        }
        for number in 0..self.options.tries {
            let mut random = Random::new(self.seed ^ change.rotate_left(32) ^ number.rotate_left(48));
            let end = if random.coin() { End::Killed } else { End::PowerCut };
            let left = after(&folder, end, &mut random);
            let told = |text| format!("first attempt {end:?} at change {change}, try {number}: {text}");
            self.subject.check_name(&left).map_err(told)?;
            self.second(&left, &mut random).map_err(told)?;
        }
        Ok(result.is_err())
    }

    fn second(&mut self, left: &SimFolder, random: &mut Random) -> Result<(), String> {
        let (state, resumes) = (index(random.below(4) / 3), random.coin());
        let mut change = 1 + random.below(self.options.second_stride);
        loop {
            let machine: Arc<SimMachine> = Arc::default();
            let folder = left.after_kill(machine.clone());
            machine.die_at_change(change);
            // Now and then it is told to stop, and may still be killed while it does.
            let stop_bytes =
                if random.below(4) == 0 { DATA_BYTES * (1 + random.below(CHUNK_COUNT)) } else { u64::MAX };
            let result = self.subject.attempt(&folder, state, resumes, stop_bytes);
            if let Err(error) = &result
                && machine.changes() < change
                && stop_bytes == u64::MAX
            {
                return Err(format!("the second attempt fails by itself: {error:?}"));
            }
            let end = if random.coin() { End::Killed } else { End::PowerCut };
            let told = |text| {
                format!(
                    "second attempt (source {state}, --resume {resumes}) {end:?} at change {change}: {text}"
                )
            };
            let second_left = after(&folder, end, random);
            self.subject.check_name(&second_left).map_err(told)?;
            self.third(&second_left, random).map_err(told)?;
            self.explored.states += 1;
            self.explored.second_cuts += u64::from(result.is_err());
            if result.is_ok() || machine.changes() < change {
                return Ok(());
            }
            change += self.options.second_stride;
        }
    }

    /// Finishes, and compares.
    fn third(&mut self, left: &SimFolder, random: &mut Random) -> Result<(), String> {
        let state = index(random.below(4) / 3);
        let folder = left.after_kill(Arc::default());
        let goes_on = self
            .subject
            .attempt(&folder, state, true, u64::MAX)
            .map_err(|error| format!("the third attempt (source {state}) fails: {error:?}"))?;
        self.explored.redone += u64::from(goes_on);
        let told = |text| format!("third attempt (source {state}, went on: {goes_on}): {text}");
        self.subject.check_whole(&folder, &[state]).map_err(told)?;
        if folder.names() != [TargetName::Target] {
            return Err(told(format!("it leaves {:?}", folder.names())));
        }
        let cut = folder.after_cut(Arc::default(), random.next_u64());
        self.subject.check_whole(&cut, &[state]).map_err(|text| told(format!("after a power cut: {text}")))
    }
}

/// What the next attempt finds.
fn after(folder: &SimFolder, end: End, random: &mut Random) -> SimFolder {
    match end {
        End::Killed => folder.after_kill(Arc::default()),
        End::PowerCut => folder.after_cut(Arc::default(), random.next_u64()),
    }
}
