//! A journal's file and names: power cuts from before they are made until they are gone, and strangers in their place.

use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, ReadAt, Result};
use engine::recover;
use extent::HostOffset;
use journal::{DiskName, JournalFile, Places, check_free, find};
use sim::{EditFile, Pages, Random, SimFile, SimFolders, SimMachine};

use crate::explore::{Explored, Options, Violation};
use crate::scenario::Scenario;

const DISK: &str = "/disks/disk";
const BESIDE: &str = "/disks/.disk.leandisk-journal";
const ELSEWHERE: &str = "/other/journal";

/// As what a stranger is refused: by its contents, by its version, or because nothing is where a journal is said to be.
const REFUSALS: [ErrorKind; 3] = [ErrorKind::Refused, ErrorKind::Unsupported, ErrorKind::Io];

/// A machine with a disk in a folder.
struct World {
    machine: SimMachine,
    folders: SimFolders,
}

/// What a run left.
struct Left {
    /// Batches that are done for sure.
    done: usize,
    is_over: bool,
}

impl World {
    fn new(scenario: &Scenario<'_>) -> Self {
        let machine = SimMachine::new();
        let folders = SimFolders::new(&machine).with_file(&machine, DISK, scenario.disk_after(0).clone());
        Self { machine, folders }
    }

    fn cut(&self, seed: u64) -> Self {
        let machine = SimMachine::new();
        let folders = self.folders.cut(&machine, seed);
        Self { machine, folders }
    }

    /// The process is gone, the machine goes on.
    fn killed(&self) -> Self {
        let machine = SimMachine::new();
        let folders = self.folders.copy_to(&machine);
        Self { machine, folders }
    }

    fn disk(&self) -> SimFile {
        self.folders.file(DISK).expect("the disk keeps its name")
    }

    /// A change from its beginning to its end, as the program makes it.
    fn change(&self, scenario: &Scenario<'_>, places: &Places) -> (Left, Result<()>) {
        let nothing = Left { done: 0, is_over: false };
        let header = scenario.header(scenario.subject.slot_bytes);
        let disk = scenario.claim().disk;
        let journal = match JournalFile::create(&self.folders, places, disk, header) {
            Ok(journal) => journal,
            Err(error) => return (nothing, Err(error)),
        };
        match scenario.run_on(&EditFile(&*self.disk()), journal.file()) {
            Ok(_) => {
                let removed = journal.remove();
                (Left { done: scenario.batch_count(), is_over: removed.is_ok() }, removed)
            }
            Err(failure) => {
                if !failure.needs_recovery {
                    _ = journal.remove();
                }
                let done = usize::try_from(failure.outcome.batches_done).expect("few");
                (Left { done, is_over: false }, Err(failure.error))
            }
        }
    }

    /// What `recover` does; says whether there was a journal.
    fn recover(&self, name: DiskName, places: &Places) -> Result<bool> {
        let Some(found) = find(&self.folders, places)? else { return Ok(false) };
        let disk = self.disk();
        let disk = EditFile(&*disk);
        let (journal, claim) = found.prove(name, &disk)?;
        recover(&disk, journal.file(), &claim)?;
        journal.remove()?;
        Ok(true)
    }
}

/// Cuts the power at every change of a run of `scenario` with its journal beside the disk, or elsewhere with a link to it.
pub fn explore_life(
    scenario: &Scenario<'_>,
    options: Options,
    is_elsewhere: bool,
) -> Result<Explored, Violation> {
    let stated = is_elsewhere.then(|| PathBuf::from(ELSEWHERE));
    let places = Places::new(BESIDE.into(), stated);
    let mut explorer = Explorer { scenario, options, places, explored: Explored::default() };
    let mut change = 1;
    while explorer.cut_at(change).map_err(|text| Violation { seed: scenario.seed, text })? {
        change += 1;
        explorer.explored.changes += 1;
    }
    Ok(explorer.explored)
}

struct Explorer<'a> {
    scenario: &'a Scenario<'a>,
    options: Options,
    places: Places,
    explored: Explored,
}

impl Explorer<'_> {
    /// Cuts at one change; `false` if the run was over before.
    fn cut_at(&mut self, change: u64) -> Result<bool, String> {
        let world = World::new(self.scenario);
        world.machine.die_at_change(change);
        let (left, result) = world.change(self.scenario, &self.places);
        if let Err(error) = &result
            && world.machine.changes() < change
        {
            return Err(format!("the run fails by itself: {error:?}"));
        }
        let mut random = Random::new(self.scenario.seed ^ change.rotate_left(32));
        for _ in 0..self.options.cuts_per_change {
            let seed = random.next_u64();
            let found = if random.below(4) == 0 { world.killed() } else { world.cut(seed) };
            self.recovered(&found, &left, seed, random.coin())
                .map_err(|text| format!("power cut at change {change}, cut {seed:#x}: {text}"))?;
            self.explored.states += 1;
        }
        Ok(result.is_err())
    }

    fn recovered(&mut self, world: &World, left: &Left, seed: u64, again: bool) -> Result<(), String> {
        let before = world.killed();
        let changes = self.recover(world, left, seed)?;
        self.expect(world, left, seed)?;
        if !again || changes == 0 {
            return Ok(());
        }
        self.explored.second_cuts += 1;
        let mut random = Random::new(seed);
        let at = 1 + random.below(changes);
        before.machine.die_at_change(at);
        _ = before.recover(self.scenario.claim().disk, &self.as_found());
        let seed = random.next_u64();
        let second = before.cut(seed);
        self.recover(&second, left, seed)
            .and_then(|_| self.expect(&second, left, seed))
            .map_err(|text| format!("second cut at change {at} of the recovery: {text}"))
    }

    /// As whoever opens the disk looks for it, without having been told where it is.
    fn as_found(&self) -> Places {
        Places::new(self.places.beside.clone(), None)
    }

    /// Recovers, and says how many changes that made.
    fn recover(&mut self, world: &World, left: &Left, seed: u64) -> Result<u64, String> {
        let failed = |error: Error| format!("the recovery fails: {error}");
        let name = || self.scenario.claim().disk;
        let was_there = world.recover(name(), &self.as_found()).map_err(failed)?;
        if was_there && left.is_over {
            return Err("the journal is there after the change is over".into());
        }
        self.explored.redone += u64::from(was_there);
        self.expect_disk(world, left, seed)?;
        // Whoever is told where it is can remove one that nothing leads to.
        world.recover(name(), &self.places).map_err(failed)?;
        Ok(world.machine.changes())
    }

    /// Expects the disk before or after the batch, and no journal, on stable storage.
    fn expect(&self, world: &World, left: &Left, seed: u64) -> Result<(), String> {
        let names = world.cut(seed).folders.names();
        if names != [Path::new(DISK)] {
            return Err(format!("the recovery leaves {names:?}"));
        }
        self.expect_disk(world, left, seed)
    }

    fn expect_disk(&self, world: &World, left: &Left, seed: u64) -> Result<(), String> {
        let more = usize::from(!left.is_over);
        let disk = world.disk().cut_pages(seed);
        match self.scenario.batches_in(&disk) {
            Some(found) if (left.done..=left.done + more).contains(&found) => Ok(()),
            Some(found) => Err(format!("the disk after {found} batches, of which {} were done", left.done)),
            None => Err(format!("neither old nor new: {}", self.scenario.difference(&disk, left.done))),
        }
    }
}

/// Puts files that are no journal of the disk, of many lengths, where a journal would be: every change and every recovery must
/// refuse, and leave them as they are.
pub fn meet_strangers(scenario: &Scenario<'_>) -> Result<(), Violation> {
    let header = scenario.new_journal(scenario.subject.slot_bytes);
    let mut strangers: Vec<Vec<u8>> = Vec::new();
    for len in [0, 1, 9, 96, 500, 4096, 16_383, 16_384, 16_385, 100_000] {
        strangers.push(vec![0; len]);
        strangers.push(vec![b'k'; len]);
        // A journal whose end is missing, and one with one byte that is wrong.
        strangers.extend(header.get(..len).filter(|_| len < header.len()).map(<[u8]>::to_vec));
        if let Some(byte) = header.get(len).filter(|_| len < 100) {
            let mut damaged = header.clone();
            damaged[len] = !byte;
            strangers.push(damaged);
        }
    }
    for stranger in &strangers {
        for place in [BESIDE, ELSEWHERE] {
            meet(scenario, stranger, place).map_err(|text| Violation {
                seed: scenario.seed,
                text: format!("{} bytes at {place}: {text}", stranger.len()),
            })?;
        }
    }
    Ok(())
}

fn meet(scenario: &Scenario<'_>, stranger: &[u8], place: &str) -> Result<(), String> {
    let mut world = World::new(scenario);
    world.folders = world.folders.with_file(&world.machine, place, Pages::new(stranger));
    let stated = Places::new(BESIDE.into(), Some(ELSEWHERE.into()));
    let beside = Places::new(BESIDE.into(), None);
    if place == ELSEWHERE {
        refuses(scenario, &world, &stated, stranger, place)?;
        world.folders = world.folders.with_link(BESIDE, ELSEWHERE);
    }
    refuses(scenario, &world, &beside, stranger, place)?;
    refuses(scenario, &world, &stated, stranger, place)
}

fn refuses(
    scenario: &Scenario<'_>,
    world: &World,
    places: &Places,
    stranger: &[u8],
    place: &str,
) -> Result<(), String> {
    let names = world.folders.names();
    let changed = world.change(scenario, places).1;
    // Where nothing is where it was said to be, nothing was interrupted there.
    let recovered = world.recover(scenario.claim().disk, places).map(drop);
    for result in [check_free(&&world.folders, places), changed, recovered] {
        match result {
            Err(error) if REFUSALS.contains(&error.kind()) => {}
            Err(error) => return Err(format!("it fails otherwise: {error:?}")),
            Ok(()) => return Err("it is taken for a journal".into()),
        }
    }
    if world.folders.names() != names {
        return Err(format!("of {names:?} it leaves {:?}", world.folders.names()));
    }
    let Some(file) = world.folders.file(place) else { return Err("it is removed".into()) };
    let mut found = vec![0; stranger.len()];
    let is_same = file.len_bytes() == stranger.len() as u64
        && file.read_at(HostOffset::ZERO, &mut found).is_ok()
        && found == stranger;
    let disk = scenario.batches_in(&world.disk().to_pages());
    match (is_same, disk) {
        (true, Some(0)) => Ok(()),
        (false, _) => Err("it is written over".into()),
        (true, disk) => Err(format!("the disk changed: {disk:?}")),
    }
}
