//! Power cuts at every change of a run, and in the recovery after them.

use std::fmt;

use block::Error;
use engine::{RearrangeFailure, Recovery, recover};
use journal::Claim;
use sim::{EditFile, Pages, Random, SimDisk, SimMachine};

use crate::scenario::Scenario;

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many ways of losing writes are tried at each change.
    pub cuts_per_change: u64,
    /// Whether records count as whole whatever their checksum says: a mutant of the journal.
    pub forges_checksums: bool,
}

/// What was looked at.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Explored {
    /// Disks that were recovered and compared.
    pub states: u64,
    /// Those of them whose recovery was cut, too.
    pub second_cuts: u64,
    /// Those whose last batch was redone.
    pub redone: u64,
    /// Changes at which the power was cut.
    pub changes: u64,
}

impl std::ops::Add for Explored {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::ops::AddAssign for Explored {
    fn add_assign(&mut self, other: Self) {
        self.states += other.states;
        self.second_cuts += other.second_cuts;
        self.redone += other.redone;
        self.changes += other.changes;
    }
}

/// A disk that is not what it must be.
#[derive(Debug)]
pub struct Violation {
    /// The seed of the scenario.
    pub seed: u64,
    /// What was done, and what came of it.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scenario {:#x}: {}", self.seed, self.text)
    }
}

/// A machine with a disk and its journal, whose header is there already: what becomes of its file and its name, `life`
/// explores.
pub(crate) struct Pair {
    claim: Claim,
    pub(crate) machine: SimMachine,
    pub(crate) disk: SimDisk,
    pub(crate) journal: SimDisk,
}

impl Pair {
    pub(crate) fn begun(scenario: &Scenario<'_>) -> Self {
        let journal = scenario.new_journal(scenario.subject.slot_bytes);
        Self::new(scenario.disk_after(0).clone(), Pages::new(&journal), scenario.claim())
    }

    pub(crate) fn new(disk: Pages, journal: Pages, claim: Claim) -> Self {
        let machine = SimMachine::new();
        let (disk, journal) = (machine.disk("disk", 1, disk), machine.disk("journal", 2, journal));
        disk.tear_sectors(true);
        journal.tear_sectors(true);
        Self { claim, machine, disk, journal }
    }

    fn cut(&self, seed: u64) -> Self {
        Self::new(self.disk.cut_pages(seed), self.journal.cut_pages(seed), self.claim.clone())
    }

    pub(crate) fn recover(&self) -> Result<Recovery, Error> {
        recover(&EditFile(&self.disk), &self.journal, &self.claim)
    }
}

struct Explorer<'a> {
    scenario: &'a Scenario<'a>,
    options: Options,
    explored: Explored,
}

/// Cuts the power at every change of a run of `scenario`.
pub fn explore(scenario: &Scenario<'_>, options: Options) -> Result<Explored, Violation> {
    let mut explorer = Explorer { scenario, options, explored: Explored::default() };
    let mut change = 1;
    while explorer.cut_at(change).map_err(|text| Violation { seed: scenario.seed, text })? {
        change += 1;
        explorer.explored.changes += 1;
    }
    Ok(explorer.explored)
}

impl Explorer<'_> {
    /// Cuts at one change; `false` if the run was over before.
    fn cut_at(&mut self, change: u64) -> Result<bool, String> {
        let pair = Pair::begun(self.scenario);
        pair.machine.die_at_change(change);
        let result = self.scenario.run(&pair.disk, &pair.journal);
        if let Err(failure) = &result
            && pair.machine.changes() < change
        {
            return Err(format!("the run fails by itself: {:?}", failure.error));
        }
        let mut random = Random::new(self.scenario.seed ^ change.rotate_left(32));
        for _ in 0..self.options.cuts_per_change {
            let seed = random.next_u64();
            let context = |text: String| format!("power cut at change {change}, cut {seed:#x}: {text}");
            match &result {
                Ok(_) => self.after_the_end(&pair, seed),
                Err(failure) if random.below(4) == 0 => self.killed(&pair, failure, seed),
                Err(failure) => self.after_a_cut(&pair, failure, seed),
            }
            .map_err(context)?;
            self.explored.states += 1;
        }
        Ok(result.is_err())
    }

    /// The run is over and the journal removed: nothing may be lost any more.
    fn after_the_end(&self, pair: &Pair, seed: u64) -> Result<(), String> {
        self.expect(&pair.disk.cut_pages(seed), self.scenario.batch_count(), 0)
    }

    fn after_a_cut(&mut self, pair: &Pair, failure: &RearrangeFailure, seed: u64) -> Result<(), String> {
        let done = self.batches_done(failure);
        let left = pair.cut(seed);
        if !failure.needs_recovery {
            self.expect(&left.disk.to_pages(), done, 0)
                .map_err(|text| format!("without the journal: {text}"))?;
        }
        let left = self.forged(left);
        // Every second time, once more in the recovery.
        let mut random = Random::new(seed);
        let again = random.coin().then(|| (left.disk.to_pages(), left.journal.to_pages()));
        self.recovered(&left, done, seed)?;
        let changes = left.machine.changes();
        if let Some((disk, journal)) = again.filter(|_| changes > 0) {
            let second = Pair::new(disk, journal, self.scenario.claim());
            let at = 1 + random.below(changes);
            self.cut_in_recovery(&second, at, done, random.next_u64())
                .map_err(|text| format!("second cut at change {at} of the recovery: {text}"))?;
        }
        Ok(())
    }

    /// The process is gone, but not the machine: what was written is still in its cache when the recovery begins, in which the
    /// power is cut.
    fn killed(&mut self, pair: &Pair, failure: &RearrangeFailure, seed: u64) -> Result<(), String> {
        let machine = SimMachine::new();
        let (disk, journal) = (pair.disk.copy_to(&machine), pair.journal.copy_to(&machine));
        let mut random = Random::new(seed);
        let at = 1 + random.below(8);
        self.cut_in_recovery(
            &Pair { claim: self.scenario.claim(), machine, disk, journal },
            at,
            self.batches_done(failure),
            random.next_u64(),
        )
        .map_err(|text| format!("killed, power cut at change {at} of the recovery: {text}"))
    }

    fn cut_in_recovery(&mut self, pair: &Pair, at: u64, done: usize, seed: u64) -> Result<(), String> {
        self.explored.second_cuts += 1;
        pair.machine.die_at_change(at);
        match pair.recover() {
            // It was over before, and the journal removed.
            Ok(_) => self.expect(&pair.disk.cut_pages(seed), done, 1),
            Err(_) => {
                let left = self.forged(pair.cut(seed));
                self.recovered(&left, done, seed)
            }
        }
    }

    /// Recovers, and expects the disk before or after the batch, on stable storage.
    fn recovered(&mut self, left: &Pair, done: usize, seed: u64) -> Result<(), String> {
        let recovery = left.recover().map_err(|error| format!("the recovery fails: {error}"))?;
        match recovery {
            Recovery::NothingToDo(_) => {}
            Recovery::Redone { .. } => self.explored.redone += 1,
            // Storage that keeps what was flushed never comes to this.
            Recovery::Undone { .. } => return Err("moved data were lost before the commit".into()),
        }
        self.expect(&left.disk.cut_pages(seed), done, 1).map_err(|text| format!("after {recovery:?}: {text}"))
    }

    /// Expects the disk as it is after `done` batches, or up to `more` further ones.
    fn expect(&self, disk: &Pages, done: usize, more: usize) -> Result<(), String> {
        match self.scenario.batches_in(disk) {
            Some(found) if (done..=done + more).contains(&found) => Ok(()),
            Some(found) => Err(format!("the disk after {found} batches, of which {done} were done")),
            None => Err(format!("neither old nor new: {}", self.scenario.difference(disk, done))),
        }
    }

    fn batches_done(&self, failure: &RearrangeFailure) -> usize {
        usize::try_from(failure.outcome.batches_done).expect("few")
    }

    fn forged(&self, pair: Pair) -> Pair {
        if !self.options.forges_checksums {
            return pair;
        }
        let mut journal = pair.journal.to_vec();
        let slot_len = usize::try_from(self.scenario.subject.slot_bytes).expect("small");
        let header_len = usize::try_from(journal::HEADER_BYTES).expect("small");
        for slot in [header_len, header_len + slot_len] {
            forge(journal.get_mut(slot..).unwrap_or_default());
        }
        Pair::new(pair.disk.to_pages(), Pages::new(&journal), pair.claim)
    }
}

/// Gives whatever is in a slot the checksum that it would need (`docs/formats/journal.md`).
fn forge(slot: &mut [u8]) {
    let Some(len) = slot.get(8..16).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight"))) else {
        return;
    };
    let Some(record) = usize::try_from(len).ok().filter(|len| *len >= 32).and_then(|len| slot.get_mut(..len))
    else {
        return;
    };
    record[16..32].fill(0);
    let digest = xxhash_rust::xxh3::xxh3_128(record);
    record[16..32].copy_from_slice(&digest.to_le_bytes());
}
