//! Kills and power cuts in a disk that is filled while guests use it, and in the sessions that go on with it: what guests flushed is there, all else is
//! as in the source, and the target's own name means nothing before the target is whole.
//!
//! Two guests write, zero, discard and flush, each its own sectors, several of which share a unit; a filler brings the rest and gives the target its name. Threads are
//! real ones, so a seed need not find again what it found.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{
    Disk, FileIndex, HostFile, LiveDisk, Memory, ReadAt, Result, Run, RunState, TargetFile, TargetName,
    push_run,
};
use engine::{CreateJob, FillIdentity, FillPlan, FillingDisk, JobMonitor, Provision, publish_fill};
use extent::{Host, HostOffset, HostSpan, Offset, Span, Virtual, VirtualOffset, VirtualSpan};
use image::live::LiveOptions;
use image::{Chain, CreateOptions, Format, NoFiles, OpenOptions};
use sim::{FileMarks, FolderDisk, Random, SimFolder, SimMachine};

use crate::{InThread, Violation};

const SECTOR_BYTES: u64 = 512;
const UNIT_BYTES: u64 = 4096;
/// Not whole units.
const SECTOR_COUNT: u64 = 40 * UNIT_BYTES / SECTOR_BYTES + 3;
const GUEST_COUNT: u64 = 2;
/// Sectors of one guest that follow each other: less than a unit.
const STRIPE_SECTORS: u64 = 3;
const STEP_COUNT: u64 = 40;
/// Sessions that die, at most, before one that does not.
const SESSION_COUNT: u64 = 4;

/// Formats of targets: one whose bytes have their places, and one that allocates.
pub const FILL_FORMATS: [Format; 2] = [Format::Raw, Format::Qcow2];

/// How much was looked at.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Sessions that died.
    pub deaths: u64,
    /// Sessions that went on with what was filled before.
    pub resumed: u64,
    /// Targets that got their name in a session that died.
    pub named: u64,
}

/// What a sector may hold, oldest first: a value, and whether nothing older can be there once it is stable.
#[derive(Clone, Debug)]
struct Sector(Vec<(u64, bool)>);

impl Sector {
    fn write(&mut self, value: u64, is_sure: bool) {
        self.0.push((value, is_sure));
    }

    /// All until now is stable.
    fn settle(&mut self) {
        let last = self.0.iter().rposition(|(_, is_sure)| *is_sure).unwrap_or(0);
        self.0.drain(..last);
    }

    fn allows(&self, value: u64) -> bool {
        self.0.iter().any(|(known, _)| *known == value)
    }
}

/// A sector's contents by its value: 0 is zeros.
fn contents(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(64)
}

fn values(bytes: &[u8]) -> Vec<u64> {
    let value = |sector: &[u8]| u64::from_le_bytes(sector[..8].try_into().unwrap());
    let sectors = bytes.chunks(512);
    sectors.map(|sector| if sector == contents(value(sector)) { value(sector) } else { u64::MAX }).collect()
}

/// A disk that lets others go first in the middle of reads.
struct Slow(Memory);

impl ReadAt<Virtual> for Slow {
    fn len_bytes(&self) -> u64 {
        ReadAt::<Virtual>::len_bytes(&self.0)
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(at, buf)?;
        (0..at.get() / 512 % 30).for_each(|_| std::thread::yield_now());
        Ok(())
    }
}

impl Disk for Slow {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for part in span.split(SECTOR_BYTES) {
            let mut sector = vec![0; usize::try_from(part.len_bytes()).unwrap()];
            self.0.read_at(part.start(), &mut sector)?;
            let data = RunState::Data { file: FileIndex(0), offset: HostOffset::new(part.start().get()) };
            let state = if sector.iter().all(|byte| *byte == 0) { RunState::Zero } else { data };
            push_run(&mut runs, Run::new(part, state));
        }
        Ok(runs)
    }
}

/// A file of the folder, for who keeps it.
struct Kept(FolderDisk);

impl ReadAt<Host> for Kept {
    fn len_bytes(&self) -> u64 {
        ReadAt::<Host>::len_bytes(&*self.0)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(at, buf)
    }
}

impl HostFile for Kept {
    fn name(&self) -> &str {
        "target"
    }

    fn path(&self) -> &Path {
        Path::new("target")
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(ReadAt::<Host>::len_bytes(self))
    }
}

impl TargetFile for Kept {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.0.write_at(at, buf)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.0.set_len(len_bytes)
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.0.reserve(span)
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.0.zero(span)
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
}

struct Quiet;

impl JobMonitor for Quiet {
    fn advanced(&self, _read_bytes: u64, _written_bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

struct Explorer<'a> {
    format: Format,
    in_thread: &'a InThread,
    random: Random,
    source: Vec<u64>,
    sectors: Vec<Sector>,
    next_value: u64,
    /// Names that the last death left.
    left: Vec<TargetName>,
    filled: Filled,
}

/// Lives through a few sessions that end early, and one that does not, in `rounds` rounds. Whatever changes the disk runs `in_thread`.
pub fn explore_fill(
    format: Format,
    seed: u64,
    rounds: u64,
    marks: FileMarks,
    in_thread: &InThread,
) -> std::result::Result<Filled, Violation> {
    let mut all = Filled::default();
    for seed in seed..seed + rounds {
        let mut explorer = Explorer::new(format, seed, in_thread);
        explorer.round(seed, marks).map_err(|text| Violation { seed, text })?;
        let Filled { deaths, resumed, named } = explorer.filled;
        all.deaths += deaths;
        all.resumed += resumed;
        all.named += named;
    }
    Ok(all)
}

/// Kills a guest's flush at each of its changes, has the next session write the same place and flush, and cuts the power: what was flushed is
/// there.
pub fn explore_killed_flush(format: Format, in_thread: &InThread) -> std::result::Result<u64, Violation> {
    let violation = |seed: u64, text: String| Violation { seed, text };
    for change in 1..100 {
        let mut explorer = Explorer::new(format, change, in_thread);
        let machine = Arc::new(SimMachine::new());
        let folder = SimFolder::new(machine.clone(), change, FileMarks::Marks);
        let disk = explorer.open(&folder).map_err(|error| violation(change, error.to_string()))?;
        machine.die_at_change(machine.changes() + change);
        let write = |disk: &FillingDisk, value: u64| {
            let mut done = Ok(());
            in_thread(&mut || {
                let written = block::EditDisk::write_at(disk, VirtualOffset::ZERO, &contents(value));
                done = written.and_then(|()| block::EditDisk::flush(disk));
            });
            done
        };
        let is_over = write(&disk, 1).is_ok();
        let folder = folder.after_kill(Arc::new(SimMachine::new()));
        let mut second = None;
        in_thread(&mut || second = Some(explorer.open(&folder)));
        let second = second.expect("it ran").map_err(|error| violation(change, error.to_string()))?;
        write(&second, 2).map_err(|error| violation(change, error.to_string()))?;
        for seed in 0..16 {
            let folder = folder.after_cut(Arc::new(SimMachine::new()), seed);
            let disk = explorer.open(&folder).map_err(|error| violation(change, error.to_string()))?;
            let mut sector = [0; 512];
            disk.read_at(VirtualOffset::ZERO, &mut sector)
                .map_err(|error| violation(change, error.to_string()))?;
            if sector[..] != contents(2) {
                return Err(violation(change, format!("it holds {:x?}", values(&sector))));
            }
        }
        if is_over {
            return Ok(change);
        }
    }
    Err(violation(0, "a flush never ends".into()))
}

impl<'a> Explorer<'a> {
    fn new(format: Format, seed: u64, in_thread: &'a InThread) -> Self {
        let mut random = Random::new(seed);
        // Some units are zeros, and some sectors of others.
        let mut source = Vec::new();
        for sector in 0..SECTOR_COUNT {
            let is_zero = sector / 8 % 5 == 3 || random.below(9) == 0;
            source.push(if is_zero { 0 } else { 1 << 40 | sector });
        }
        let sectors = source.iter().map(|value| Sector(vec![(*value, true)])).collect();
        Self {
            format,
            in_thread,
            random,
            source,
            sectors,
            next_value: 1,
            left: Vec::new(),
            filled: Filled::default(),
        }
    }

    fn round(&mut self, seed: u64, marks: FileMarks) -> std::result::Result<(), String> {
        let mut machine = Arc::new(SimMachine::new());
        let mut folder = SimFolder::new(machine.clone(), seed, marks);
        for _ in 0..self.random.below(SESSION_COUNT + 1) {
            machine.die_at_change(1 + self.random.below(120));
            self.session(&folder, true)?;
            self.filled.deaths += 1;
            let is_cut = self.random.below(2) > 0;
            machine = Arc::new(SimMachine::new());
            folder = match is_cut {
                true => folder.after_cut(machine.clone(), self.random.next_u64()),
                false => folder.after_kill(machine.clone()),
            };
            self.left = folder.names();
            if folder.names() == [TargetName::Filled] {
                // A file system whose renames are not one step may leave the target under none of its names.
                return match self.session(&folder, false) {
                    Err(_) => Ok(()),
                    Ok(()) => Err("it started over, and the guest's writes with it".into()),
                };
            }
            if folder.file(TargetName::Target).is_some() {
                self.filled.named += 1;
                return self.check(&self.read(&folder, TargetName::Target)?, "the target");
            }
        }
        self.session(&folder, false)?;
        let read = self.read(&folder, TargetName::Target)?;
        self.check(&read, "the target in the end")?;
        match folder.names() == [TargetName::Target] {
            true => Ok(()),
            false => Err(format!("it left {:?}", folder.names())),
        }
    }

    fn read(&self, folder: &SimFolder, name: TargetName) -> std::result::Result<Vec<u64>, String> {
        let file = folder.file(name).ok_or_else(|| format!("there is no {name:?}"))?;
        let chain = self.chain(Arc::new(Kept(file))).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; usize::try_from(SECTOR_COUNT * SECTOR_BYTES).unwrap()];
        chain.read_at(Offset::ZERO, &mut bytes).map_err(|error| error.to_string())?;
        Ok(values(&bytes))
    }

    fn chain(&self, file: Arc<Kept>) -> Result<Chain> {
        Chain::open(file, OpenOptions { format: Some(self.format) }, &NoFiles)
    }

    fn check(&self, found: &[u64], what: &str) -> std::result::Result<(), String> {
        let wrong = found.iter().zip(&self.sectors).position(|(found, known)| !known.allows(*found));
        wrong.map_or(Ok(()), |at| {
            let (found, known, left) = (found[at], &self.sectors[at].0, &self.left);
            Err(format!("{what}: sector {at} holds {found:#x}, not {known:x?}; the last cut left {left:?}"))
        })
    }

    /// Opens, uses and fills the disk. `dies` says that the machine may be gone at any moment.
    fn session(&mut self, folder: &SimFolder, dies: bool) -> std::result::Result<(), String> {
        let or_dead = |error: block::Error| if dies { Ok(()) } else { Err(error.to_string()) };
        let disk = match self.open(folder) {
            Ok(disk) => disk,
            Err(error) => return or_dead(error),
        };
        let mut bytes = vec![0; usize::try_from(SECTOR_COUNT * SECTOR_BYTES).unwrap()];
        if let Err(error) = disk.read_at(Offset::ZERO, &mut bytes) {
            return or_dead(error);
        }
        let found = values(&bytes);
        self.check(&found, "what guests read at first")?;
        // That is what a flush makes stable; until then a cut may leave what was there before.
        self.sectors.iter_mut().zip(found).for_each(|(sector, found)| sector.write(found, true));
        let guests: Vec<_> = (0..GUEST_COUNT).map(|guest| self.guest(guest)).collect();
        let (in_thread, is_named) = (self.in_thread, AtomicBool::new(false));
        let done: Vec<Guest> = std::thread::scope(|scope| {
            let disk = &disk;
            let running: Vec<_> = guests
                .into_iter()
                .map(|mut guest| {
                    scope.spawn(move || {
                        in_thread(&mut || guest.run(disk));
                        guest
                    })
                })
                .collect();
            in_thread(&mut || {
                // Names change by its hand while guests go on.
                let is_whole = matches!(disk.fill(), Ok(true));
                is_named.store(is_whole && publish_fill(folder).is_ok(), Ordering::Relaxed);
            });
            running.into_iter().map(|guest| guest.join().unwrap()).collect()
        });
        let alive = done.iter().all(|guest| guest.is_alive);
        for guest in done {
            for (sector, known) in guest.sectors {
                self.sectors[sector] = known;
            }
        }
        if !alive {
            return if dies { Ok(()) } else { Err("a request failed".into()) };
        }
        let read = disk.read_at(Offset::ZERO, &mut bytes);
        if read.is_ok() {
            // Nothing is lost as long as nothing dies.
            let mut now = self.sectors.clone();
            now.iter_mut().for_each(Sector::settle);
            let before = std::mem::replace(&mut self.sectors, now);
            let checked = self.check(&values(&bytes), "what guests read at last");
            self.sectors = before;
            checked?;
        }
        let closed = disk.close();
        if closed.is_ok() {
            self.sectors.iter_mut().for_each(Sector::settle);
        }
        if !dies && !is_named.load(Ordering::Relaxed) {
            return Err(format!("it was not filled: {closed:?}"));
        }
        Ok(())
    }

    fn guest(&mut self, guest: u64) -> Guest {
        let own = |sector: &usize| *sector as u64 / STRIPE_SECTORS % GUEST_COUNT == guest;
        let sectors = (0..self.sectors.len()).filter(own).map(|at| (at, self.sectors[at].clone())).collect();
        let first_value = self.next_value;
        self.next_value += STEP_COUNT;
        Guest { random: Random::new(self.random.next_u64()), sectors, first_value, is_alive: true }
    }

    fn open(&mut self, folder: &SimFolder) -> Result<Arc<FillingDisk>> {
        let bytes: Vec<u8> = self.source.iter().flat_map(|value| contents(*value)).collect();
        let virtual_bytes = bytes.len() as u64;
        let source = Arc::new(Slow(Memory::new(bytes)));
        let identity = FillIdentity {
            source: "source".into(),
            target: String::new(),
            format: self.format.name().into(),
            virtual_bytes,
            unit_bytes: UNIT_BYTES,
        };
        let plan = FillPlan { folder, identity, source: &*source };
        let (identity, resumed) = plan.prepare(|file| {
            let keys = (self.format == Format::Qcow2).then(|| ("cluster_size".to_owned(), "4096".to_owned()));
            let create = CreateOptions {
                virtual_bytes,
                sector_bytes: 512,
                compress: false,
                keys: keys.into_iter().collect(),
                identity_seed: 1,
                created_unix_seconds: 0,
                file_name: "target".into(),
                target_is_dirty: false,
            };
            let writer = image::create(self.format, create)?;
            let provision = Provision::Thin;
            CreateJob { writer, target: file, virtual_bytes, provision, thread_count: 1 }
                .run(&Quiet)
                .map(drop)
        })?;
        self.filled.resumed += u64::from(resumed);
        let file = |name| folder.file(name).map(Kept).expect("it was prepared");
        let target = Arc::new(file(TargetName::Filling));
        let live = image::live::open(self.chain(target.clone())?, vec![target], LiveOptions::default())?;
        let record = Box::new(file(TargetName::Filled));
        Ok(Arc::new(FillingDisk::open(Arc::from(live), source, record, &identity)?))
    }
}

/// One who uses the disk, with what is known of its own sectors.
struct Guest {
    random: Random,
    sectors: std::collections::BTreeMap<usize, Sector>,
    first_value: u64,
    is_alive: bool,
}

impl Guest {
    fn run(&mut self, disk: &FillingDisk) {
        for step in 0..STEP_COUNT {
            self.is_alive = self.step(disk, self.first_value + step).is_ok();
            if !self.is_alive {
                return;
            }
        }
    }

    fn step(&mut self, disk: &FillingDisk, value: u64) -> Result<()> {
        if self.random.below(6) == 0 {
            block::EditDisk::flush(disk)?;
            self.sectors.values_mut().for_each(Sector::settle);
            return Ok(());
        }
        let numbers: Vec<usize> = self.sectors.keys().copied().collect();
        let at = numbers[usize::try_from(self.random.below(numbers.len() as u64)).unwrap()];
        let left = STRIPE_SECTORS - at as u64 % STRIPE_SECTORS;
        let count = 1 + self.random.below(left.min(SECTOR_COUNT - at as u64));
        let span = Span::new(VirtualOffset::new(at as u64 * SECTOR_BYTES), count * SECTOR_BYTES);
        let (value, is_sure) = match self.random.below(6) {
            0 => (0, false),
            1 => (0, true),
            _ => (value, true),
        };
        for sector in at..at + usize::try_from(count).unwrap() {
            self.sectors.get_mut(&sector).expect("its own").write(value, is_sure);
        }
        match (value, is_sure) {
            (0, false) => disk.discard(span),
            (0, true) => disk.zero(span, value == 0),
            _ => block::EditDisk::write_at(
                disk,
                span.start(),
                &contents(value).repeat(usize::try_from(count).unwrap()),
            ),
        }
    }
}
