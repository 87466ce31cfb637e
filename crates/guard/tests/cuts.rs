//! The guard on a simulated file system, killed at every step: nothing stays over-allocated, nothing of others is freed, contents never
//! change, and no time of modification is older than the last write.

// Tests by themselves: what fails ends the test.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use block::{Error, Result};
use extent::FileOffset;
use guard::{
    Allowance, DeviceSpan, EXT4, Extent, Facts, FileId, Gathered, GoesOn, Guard, Held, Join, Limit, MUTANTS,
    Machine, Mutant, Options, Owned, Policy, Record, Refusal, Reserved, Room, SPACE_MUTANTS, SpaceMap, Stamp,
    Told, XFS, claims,
};
use predict::cost::Piece;
use predict::profile::HDD;

const MIB: u64 = 1 << 20;
const FILES: usize = 3;
const SMALL_BYTES: u64 = 3 << 30;

/// xorshift64*, enough to choose what happens.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

#[derive(Clone, Default)]
struct SimFile {
    exists: bool,
    size: u64,
    allocated_end: u64,
    others_end: u64,
    is_open: bool,
    is_held: bool,
    is_shared: bool,
    /// Whoever has it open stores to it through a mapping as well.
    is_mapped: bool,
    /// Nothing may be reserved of it any more, nor may it move.
    is_program: bool,
    /// Behind its first piece.
    has_hole: bool,
    pieces: u64,
    stamp: i64,
    true_stamp: i64,
    /// The guard cannot know when the last write was.
    is_late: bool,
    damage: Option<&'static str>,
}

struct World {
    random: Random,
    files: Vec<SimFile>,
    events: VecDeque<(usize, bool, bool)>,
    ledger: String,
    time: i64,
    shows: bool,
    is_exact: bool,
    /// Steps until the guard is killed.
    left: u64,
    steps: u64,
    was_killed: bool,
    writers: bool,
    nobody_reserves: bool,
    /// Somebody opens what is moved next, and it is let go.
    opens_next: bool,
    is_wanted: bool,
    piece_bytes: u64,
    /// Places can be asked for.
    joins: bool,
    /// One call of so many fails, without the guard being killed; none if zero.
    fails_one_in: u64,
    /// The call that takes a file after so many others fails.
    fails_after: Option<u64>,
    /// Somebody stores through a mapping in the midst of the next reservation.
    stores_next: bool,
    /// The next reservation fails.
    fails_to_reserve: bool,
    is_short_of_room: bool,
    /// On a file system of [`SMALL_BYTES`]: what is free.
    small_free_bytes: Option<u64>,
    /// And no block group has, as on Btrfs.
    is_undecided: bool,
    is_snapshotted: bool,
    /// Files whose room did not go back at the end, though nobody has them open.
    kept_count: usize,
}

fn id(file: usize) -> FileId {
    FileId::new(&[7, u8::try_from(file).unwrap()]).unwrap()
}

fn index(id: &FileId) -> usize {
    usize::from(id.bytes()[1])
}

impl World {
    fn new(seed: u64, left: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let kind = random.below(3);
        Self {
            random,
            files: vec![SimFile::default(); FILES],
            events: VecDeque::new(),
            ledger: String::new(),
            time: 1,
            shows: kind != 0,
            is_exact: kind != 1,
            left,
            steps: 0,
            was_killed: false,
            writers: true,
            nobody_reserves: false,
            opens_next: false,
            is_wanted: false,
            piece_bytes: 65536,
            joins: false,
            fails_one_in: 0,
            fails_after: None,
            stores_next: false,
            fails_to_reserve: false,
            is_short_of_room: false,
            small_free_bytes: None,
            is_undecided: false,
            is_snapshotted: false,
            kept_count: 0,
        }
    }

    /// A step of the guard: others act, or it is killed.
    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        self.time += 1;
        if self.left == 0 {
            self.was_killed = true;
            return Err(Error::io("step", std::io::Error::other("killed")));
        }
        self.left -= 1;
        while self.writers && self.random.below(3) == 0 {
            self.others_act();
        }
        Ok(())
    }

    /// The device, say, has a bad moment.
    fn may_fail(&mut self) -> Result<()> {
        if self.fails_one_in > 0 && self.random.below(self.fails_one_in) == 0 {
            return Err(Error::io("ask", std::io::Error::other("a bad moment")));
        }
        Ok(())
    }

    fn others_act(&mut self) {
        let at = usize::try_from(self.random.below(FILES as u64)).unwrap();
        let what = self.random.below(16);
        let by = (1 + self.random.below(4)) * 65536;
        self.time += 1;
        let (time, claimed) = (self.time, claims(&self.ledger).get(&id(at)).copied().unwrap_or(0));
        let file = &mut self.files[at];
        if file.is_held {
            // Whoever opens it waits.
            return;
        }
        let mut event = |written, closed| self.events.push_back((at, written, closed));
        match what {
            0 if file.exists && !file.is_open => *file = SimFile::default(),
            1 | 2 if file.is_open => {
                (file.is_open, file.is_mapped) = (false, false);
                event(false, true);
            }
            3 if file.is_open => {
                (file.stamp, file.true_stamp, file.is_late) = (time, time, false);
                event(true, false);
            }
            // Nobody announces that.
            7 | 8 if file.is_mapped => {
                (file.stamp, file.true_stamp, file.is_late) = (time, time, false);
            }
            9 if file.is_open => file.is_mapped = true,
            // Somebody reserves, beyond what the guard may have.
            4 if file.is_open && !self.nobody_reserves && file.allocated_end.max(claimed) < 1 << 40 => {
                file.allocated_end = file.allocated_end.max(claimed).max(file.size) + 8 * by;
                file.others_end = file.allocated_end;
                (file.stamp, file.true_stamp, file.is_late) = (time, time, false);
                event(true, false);
            }
            5 if file.exists => file.is_shared = true,
            6 if file.exists && by > 65536 => file.is_program = true,
            _ if !file.exists => {
                *file =
                    SimFile { exists: true, is_open: true, has_hole: by > 3 * 65536, ..SimFile::default() };
            }
            _ if !file.is_open => file.is_open = true,
            _ => {
                file.size += by;
                file.pieces += 1;
                file.allocated_end = file.allocated_end.max(file.size);
                (file.stamp, file.true_stamp, file.is_late) = (time, time, false);
                event(true, false);
            }
        }
    }

    fn facts(&self, at: usize) -> Facts {
        let file = &self.files[at];
        Facts {
            size_bytes: file.size,
            allocated_bytes: file.allocated_end,
            modified: Stamp { seconds: file.stamp, nanoseconds: 0 },
        }
    }
}

struct Sim(Rc<RefCell<World>>);

impl Machine for Sim {
    fn append(&mut self, records: &[Record]) -> Result<()> {
        let lines: String = records.iter().map(Record::line).collect();
        let mut world = self.0.borrow_mut();
        let result = world.step();
        let len = match result {
            Ok(()) => lines.len(),
            // Cut off anywhere.
            Err(_) => usize::try_from(world.random.below(lines.len() as u64 + 1)).unwrap(),
        };
        world.ledger.push_str(&lines[..len]);
        result
    }

    fn replace(&mut self, records: &[Record]) -> Result<()> {
        let mut world = self.0.borrow_mut();
        let result = world.step();
        if result.is_ok() || world.random.below(2) == 0 {
            world.ledger = records.iter().map(Record::line).collect();
        }
        result
    }

    fn room(&mut self) -> Result<Room> {
        let free_bytes = if self.0.borrow().is_short_of_room { 0 } else { 1 << 40 };
        let world = self.0.borrow();
        let (free_bytes, all_bytes) =
            world.small_free_bytes.map_or((free_bytes, 1 << 41), |free_bytes| (free_bytes, SMALL_BYTES));
        let undecided_bytes = if world.is_undecided { free_bytes } else { 0 };
        Ok(Room { free_bytes, all_bytes, undecided_bytes, is_snapshotted: world.is_snapshotted })
    }

    fn shows_in_stamps(&self) -> bool {
        self.0.borrow().shows
    }

    fn refuses(&mut self, id: &FileId, from: u64) -> Result<Option<Refusal>> {
        let at = index(id);
        let mut world = self.0.borrow_mut();
        world.step()?;
        // What somebody reserves between this and the ledger's line is the one thing that can be lost, and no contents.
        world.nobody_reserves = true;
        let file = &world.files[at];
        let refusal = if !file.exists {
            Some(Refusal::NoFile)
        } else if file.is_program {
            Some(Refusal::Executable)
        } else {
            (file.allocated_end > from.max(file.size)).then_some(Refusal::OwnLayout)
        };
        Ok(refusal)
    }

    fn reserve(&mut self, id: &FileId, from: u64, to: u64) -> Result<Reserved> {
        let at = index(id);
        let mut world = self.0.borrow_mut();
        world.step()?;
        world.nobody_reserves = false;
        world.may_fail()?;
        if std::mem::take(&mut world.fails_to_reserve) {
            return Err(Error::io("reserve", std::io::Error::other("a bad moment")));
        }
        if !world.files[at].exists {
            return Ok(Reserved::No(Refusal::NoFile));
        }
        if world.files[at].is_program {
            return Ok(Reserved::No(Refusal::Executable));
        }
        let from = from.max(world.files[at].size);
        if world.files[at].allocated_end > from {
            return Ok(Reserved::No(Refusal::OwnLayout));
        }
        let mut is_mapped = world.files[at].is_mapped;
        let is_unseen = world.events.iter().any(|(file, ..)| *file == at);
        let before = world.facts(at);
        // Half of it, while others write.
        let true_before = world.files[at].true_stamp;
        for part in [from + to.saturating_sub(from) / 2, to] {
            world.step()?;
            let (shows, time, is_stored) = (world.shows, world.time, part < to && world.stores_next);
            let file = &mut world.files[at];
            if is_stored {
                (file.stamp, file.true_stamp) = (time, time);
            }
            if !file.exists {
                return Ok(Reserved::NoRoom);
            }
            let before_bytes = file.allocated_end.max(from);
            file.allocated_end = file.allocated_end.max(part);
            if shows {
                file.stamp = time;
            }
            let taken = world.files[at].allocated_end - before_bytes;
            world.small_free_bytes = world.small_free_bytes.map(|bytes| bytes.saturating_sub(taken));
        }
        is_mapped |= world.files[at].is_mapped;
        let is_late = is_unseen || is_mapped || world.files[at].true_stamp != true_before;
        let file = &mut world.files[at];
        file.is_late |= is_late;
        if world.random.below(20) == 0 {
            world.files[at].is_late = true;
            return Ok(Reserved::NoRoom);
        }
        Ok(Reserved::Yes { before, after: world.facts(at), is_mapped })
    }

    fn hold(&mut self, id: &FileId) -> Result<Held> {
        if self.0.borrow().files[index(id)].is_program {
            return Ok(Held::No(Refusal::Executable));
        }
        self.hold_to_cut(id)
    }

    fn hold_to_cut(&mut self, id: &FileId) -> Result<Held> {
        let at = index(id);
        let mut world = self.0.borrow_mut();
        world.step()?;
        world.may_fail()?;
        world.fails_after = world.fails_after.map(|after| after.wrapping_sub(1));
        if world.fails_after == Some(u64::MAX) {
            world.fails_after = None;
            return Err(Error::io("take", std::io::Error::other("a bad moment")));
        }
        if !world.files[at].exists {
            return Ok(Held::Gone);
        }
        if world.files[at].is_open {
            return Ok(Held::Busy);
        }
        world.files[at].is_held = true;
        Ok(Held::Yes(world.facts(at)))
    }

    fn cut(&mut self, id: &FileId, to: u64) -> Result<bool> {
        let at = index(id);
        let mut world = self.0.borrow_mut();
        world.step()?;
        let (shows, time, is_exact) = (world.shows, world.time, world.is_exact);
        let is_lost = world.writers && world.random.below(8) == 0;
        let file = &mut world.files[at];
        if !file.is_held {
            file.damage = Some("cut while others may write");
            return Ok(true);
        }
        if is_lost {
            return Ok(false);
        }
        if !is_exact && file.allocated_end > to {
            return Ok(true);
        }
        if file.allocated_end <= to || is_exact && file.others_end <= to {
            file.allocated_end = file.size;
        }
        if shows {
            file.stamp = time;
        }
        Ok(true)
    }

    fn stamp(&mut self, id: &FileId, modified: Stamp) -> Result<()> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        world.files[index(id)].stamp = modified.seconds;
        Ok(())
    }

    fn is_wanted(&mut self, _id: &FileId) -> bool {
        let mut world = self.0.borrow_mut();
        world.is_wanted || world.writers && world.random.below(8) == 0
    }

    fn release(&mut self, id: &FileId) {
        let mut world = self.0.borrow_mut();
        world.files[index(id)].is_held = false;
        world.is_wanted = false;
    }

    fn extents(&mut self, id: &FileId) -> Result<Vec<Extent>> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        let (file, len_bytes) = (&world.files[index(id)], world.piece_bytes);
        let hole = |at: u64| u64::from(at > 0 && file.has_hole);
        let extent = |at: u64| Extent {
            piece: Piece {
                logical: (at + hole(at)) * len_bytes,
                physical: at * (len_bytes + MIB),
                len_bytes,
            },
            is_shared: file.is_shared && at == 0,
            is_plain: true,
        };
        Ok((0..file.pieces).map(extent).collect())
    }

    fn moves_whole_files(&self) -> bool {
        self.0.borrow().is_exact
    }

    fn joins(&self) -> bool {
        let world = self.0.borrow();
        world.joins && !world.is_exact
    }

    fn join(&mut self, id: &FileId, join: &Join, goes_on: &mut GoesOn<'_>) -> Result<Gathered> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        let has_room = world.random.below(2) == 0;
        let file = &mut world.files[index(id)];
        if !file.is_held || file.is_shared && join.start_bytes == 0 {
            file.damage = Some("put beside another piece what it must not");
        }
        if has_room {
            goes_on(join.len_bytes);
            file.pieces = file.pieces.min(1 + u64::from(file.is_shared));
        }
        Ok(if has_room { Gathered::Yes } else { Gathered::No })
    }

    fn space(&mut self, _within: Option<DeviceSpan>, _goes_on: &mut GoesOn<'_>) -> Result<Told<SpaceMap>> {
        Ok(Told::Nothing)
    }

    fn owners(&mut self, _within: &[DeviceSpan], _goes_on: &mut GoesOn<'_>) -> Result<Told<Vec<Owned>>> {
        Ok(Told::Nothing)
    }

    fn move_out(
        &mut self,
        _id: &FileId,
        _start: FileOffset,
        _len: u64,
        _stretch: DeviceSpan,
        _goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered> {
        Ok(Gathered::No)
    }

    fn let_go(&mut self) {}

    fn gather(&mut self, id: &FileId, start: u64, len: u64, goes_on: &mut GoesOn<'_>) -> Result<Gathered> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        if std::mem::take(&mut world.opens_next) {
            world.is_wanted = true;
            return Ok(Gathered::No);
        }
        let whole_files = world.is_exact;
        let file = &mut world.files[index(id)];
        if !file.is_held || file.is_shared && start == 0 {
            file.damage = Some("moved what it must not");
        }
        if start == 0 && file.has_hole && whole_files {
            file.damage = Some("filled a hole");
        }
        // In two steps.
        if !goes_on(len / 2) {
            if !whole_files {
                file.pieces = file.pieces.div_ceil(2);
            }
            return Ok(Gathered::Stopped);
        }
        goes_on(len - len / 2);
        file.pieces = file.pieces.min(1 + u64::from(file.is_shared));
        Ok(Gathered::Yes)
    }
}

fn options(policy: Policy) -> Options {
    Options { prevents: true, repairs: true, consolidates: false, dry_run: false, policy, profile: HDD }
}

fn guard_of(world: &Rc<RefCell<World>>) -> Result<Guard<Sim>> {
    let found = claims(&world.borrow().ledger);
    let mut machine = Sim(world.clone());
    let records: Vec<_> =
        found.iter().map(|(file, end)| Record::Claim { file: file.clone(), end_bytes: *end }).collect();
    machine.replace(&records)?;
    let policy = if world.borrow().is_exact { XFS } else { EXT4 };
    Ok(Guard::new(machine, options(policy), found))
}

fn drain(world: &Rc<RefCell<World>>, guard: &mut Guard<Sim>, now: u64) {
    let events: BTreeMap<usize, (bool, bool)> =
        world.borrow_mut().events.drain(..).fold(BTreeMap::new(), |mut merged, (file, written, closed)| {
            let event = merged.entry(file).or_insert((false, false));
            *event = (event.0 | written, event.1 | closed);
            merged
        });
    for (file, (written, closed)) in events {
        let facts = world.borrow().facts(file);
        if world.borrow().files[file].exists {
            guard.seen(now, id(file), &facts, written, closed);
        }
    }
}

fn unless_killed(world: &Rc<RefCell<World>>, result: Result<()>) -> Result<()> {
    if world.borrow().was_killed { result } else { Ok(()) }
}

fn live(world: &Rc<RefCell<World>>, turns: u64) -> Result<()> {
    let mut guard = guard_of(world)?;
    for turn in 0..turns {
        let now = turn * 400;
        world.borrow_mut().others_act();
        drain(world, &mut guard, now);
        // What fails is tried again later, unless it was killed.
        unless_killed(world, guard.act(now))?;
        unless_killed(world, guard.repair_next(now).map(|_| ()))?;
    }
    world.borrow_mut().fails_one_in = 0;
    // Everybody goes home.
    world.borrow_mut().writers = false;
    for at in 0..FILES {
        if world.borrow().files[at].is_open {
            world.borrow_mut().files[at].is_open = false;
            world.borrow_mut().files[at].is_mapped = false;
            world.borrow_mut().events.push_back((at, false, true));
        }
    }
    drain(world, &mut guard, turns * 400);
    guard.act(turns * 400)?;
    let kept_count = guard.give_back_all(turns * 400)?;
    world.borrow_mut().kept_count = kept_count;
    if kept_count > 0 {
        return Ok(());
    }
    // What somebody waited for comes again.
    let mut later = turns * 400;
    while guard.has_suspects() {
        later += 10_000;
        while guard.repair_next(later)? {}
    }
    Ok(())
}

fn check(world: &World) -> std::result::Result<(), String> {
    if world.kept_count > 0 {
        return Err(format!("{} files keep their room", world.kept_count));
    }
    if !claims(&world.ledger).is_empty() {
        // The next guard would take what somebody reserves from now on for its own.
        return Err("the ledger still claims something".to_owned());
    }
    for (at, file) in world.files.iter().enumerate().filter(|(_, file)| file.exists) {
        let fail = |what: &str| {
            Err(format!(
                "file {at}: {what}: size {} allocated {} others {} stamp {} true {} late {}",
                file.size, file.allocated_end, file.others_end, file.stamp, file.true_stamp, file.is_late
            ))
        };
        if let Some(damage) = file.damage {
            return fail(damage);
        }
        if file.allocated_end > file.size.max(file.others_end) {
            return fail("room stayed");
        }
        if file.allocated_end < file.others_end {
            return fail("others' room went");
        }
        if file.stamp < file.true_stamp {
            return fail("its time is older than its last write");
        }
        if file.stamp != file.true_stamp && !file.is_late && !world.was_killed {
            return fail("its time tells of the guard");
        }
    }
    Ok(())
}

/// One life, and one after it if it was killed. How many steps it took, and what is wrong.
fn life(seed: u64, left: u64) -> (u64, std::result::Result<(), String>) {
    let world = Rc::new(RefCell::new(World::new(seed, left)));
    world.borrow_mut().joins = true;
    world.borrow_mut().fails_one_in = if seed.is_multiple_of(2) { 0 } else { 12 };
    let first = live(&world, 12);
    let steps = world.borrow().steps;
    if first.is_err() {
        {
            let mut world = world.borrow_mut();
            world.left = u64::MAX;
            world.writers = false;
            for file in &mut world.files {
                // With the process goes what it held.
                (file.is_held, file.is_open, file.is_mapped) = (false, false, false);
            }
            world.events.clear();
        }
        live(&world, 0).unwrap();
    }
    let checked = check(&world.borrow());
    (steps, checked)
}

fn explore(seeds: std::ops::Range<u64>) -> std::result::Result<u64, String> {
    let mut cuts = 0;
    for seed in seeds {
        let (steps, whole) = life(seed, u64::MAX);
        whole.map_err(|what| format!("seed {seed}, not killed: {what}"))?;
        for left in 0..steps {
            life(seed, left).1.map_err(|what| format!("seed {seed}, killed at step {left}: {what}"))?;
            cuts += 1;
        }
    }
    Ok(cuts)
}

#[test]
fn nothing_stays_behind_wherever_the_guard_is_killed() {
    let cuts = explore(0..60).unwrap_or_else(|what| panic!("{what}"));
    assert!(cuts > 1000, "{cuts}");
}

#[test]
fn a_file_that_somebody_opened_while_it_was_moved_comes_again() {
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        (world.writers, world.opens_next) = (false, true);
        world.files[0] = SimFile { exists: true, pieces: 40, size: 40 << 16, ..SimFile::default() };
        world.events.push_back((0, true, true));
    }
    let mut guard = guard_of(&world).unwrap();
    drain(&world, &mut guard, 0);
    assert!(guard.repair_next(10_000).unwrap());
    assert_eq!((world.borrow().files[0].pieces, guard.suspect_count()), (40, 1));
    assert!(guard.repair_next(20_000).unwrap());
    assert_eq!((world.borrow().files[0].pieces, guard.suspect_count()), (1, 0));
    assert_eq!(guard.counters().repaired, 39);
}

#[test]
fn no_more_moves_than_is_allowed() {
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        world.writers = false;
        world.files[0] = SimFile { exists: true, pieces: 40, size: 40 << 16, ..SimFile::default() };
        world.events.push_back((0, true, true));
    }
    let mut guard = guard_of(&world).unwrap();
    drain(&world, &mut guard, 0);
    for (bytes, goes_on, now) in [((40 << 16) - 1, true, 10_000), (1 << 30, false, 20_000)] {
        let mut allowance = Allowance { bytes, goes_on: &mut |_| goes_on };
        assert!(guard.has_work(now) && guard.repair_next_within(now, &mut allowance).unwrap());
        assert_eq!((world.borrow().files[0].pieces, guard.suspect_count(), allowance.bytes), (40, 1, bytes));
    }
    let mut allowance = Allowance { bytes: 40 << 16, goes_on: &mut |_| true };
    assert!(guard.repair_next_within(30_000, &mut allowance).unwrap());
    assert_eq!((world.borrow().files[0].pieces, guard.suspect_count(), allowance.bytes), (1, 0, 0));
}

/// Others come in the midst of a file: it stops there, keeps what can be kept, and goes on later.
fn stops_in_the_midst(whole_files: bool) -> std::result::Result<(), String> {
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        (world.writers, world.is_exact) = (false, whole_files);
        world.files[0] = SimFile { exists: true, pieces: 40, size: 40 << 16, ..SimFile::default() };
        world.events.push_back((0, true, true));
    }
    let mut guard = guard_of(&world).unwrap();
    drain(&world, &mut guard, 0);
    let mut allowance = Allowance { bytes: u64::MAX, goes_on: &mut |bytes| bytes == 0 };
    guard.repair_next_within(10_000, &mut allowance).unwrap();
    let left = (world.borrow().files[0].pieces, guard.counters().moved_bytes, guard.has_work(10_000));
    if left != (if whole_files { 40 } else { 20 }, 20 << 16, !whole_files) {
        return Err(format!("{left:?}"));
    }
    while guard.repair_next(20_000).unwrap() {}
    (world.borrow().files[0].pieces == 1).then_some(()).ok_or_else(|| "it does not go on".to_owned())
}

#[test]
fn what_is_to_stop_stops_in_the_midst_of_a_file_and_goes_on_later() {
    for whole_files in [false, true] {
        stops_in_the_midst(whole_files).unwrap_or_else(|what| panic!("{whole_files}: {what}"));
    }
}

/// A small file is put together whatever that gains, but not each time it was closed.
fn small_now_and_then() -> std::result::Result<(), String> {
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        // Pieces that are long enough to stay otherwise.
        (world.writers, world.is_exact, world.piece_bytes) = (false, false, 4 * MIB);
    }
    let mut guard = guard_of(&world).unwrap();
    for (now, pieces) in [(0, 1), (60_000, 2), (4_000_000, 1)] {
        {
            let mut world = world.borrow_mut();
            world.files[0] = SimFile { exists: true, pieces: 2, size: 8 * MIB, ..SimFile::default() };
            world.events.push_back((0, true, true));
        }
        drain(&world, &mut guard, now);
        while guard.repair_next(now + 1000).unwrap() {}
        if world.borrow().files[0].pieces != pieces {
            return Err(format!("at {now}: {} pieces", world.borrow().files[0].pieces));
        }
    }
    Ok(())
}

#[test]
fn a_small_file_is_put_together_now_and_then() {
    small_now_and_then().unwrap();
}

/// A file that was closed keeps its room for a while, but not where others run short of it.
fn gives_back_where_others_run_short() -> std::result::Result<(), String> {
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        world.writers = false;
        let size = 64 * MIB;
        world.files[0] = SimFile { exists: true, size, allocated_end: size, ..SimFile::default() };
        world.events.push_back((0, true, false));
    }
    let mut guard = guard_of(&world).unwrap();
    let room = || world.borrow().files[0].allocated_end - world.borrow().files[0].size;
    drain(&world, &mut guard, 0);
    guard.act(0).unwrap();
    guard.act(200).unwrap();
    assert!(room() > 0, "it has room, and keeps it for a while");
    world.borrow_mut().is_short_of_room = true;
    guard.act(300).unwrap();
    if room() == 0 { Ok(()) } else { Err("its room stays".to_owned()) }
}

#[test]
fn room_goes_back_at_once_where_others_run_short() {
    gives_back_where_others_run_short().unwrap();
}

/// Where what is reserved becomes room for files for good, tables can still grow afterwards.
fn leaves_tables_their_room() -> std::result::Result<(), String> {
    const TABLES_BYTES: u64 = 1 << 30;
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    world.borrow_mut().writers = false;
    world.borrow_mut().small_free_bytes = Some(SMALL_BYTES);
    world.borrow_mut().is_undecided = true;
    let mut guard = guard_of(&world).unwrap();
    for now in 0..50 {
        {
            let mut world = world.borrow_mut();
            for at in 0..FILES {
                let size = world.files[at].allocated_end + 64 * MIB;
                world.files[at] =
                    SimFile { exists: true, is_open: true, size, allocated_end: size, ..SimFile::default() };
                world.events.push_back((at, true, false));
            }
        }
        drain(&world, &mut guard, now);
        guard.act(now).unwrap();
    }
    let left = world.borrow().small_free_bytes.unwrap();
    assert!(left < SMALL_BYTES - (256 * MIB), "it reserves where there is enough: {left}");
    if left >= TABLES_BYTES { Ok(()) } else { Err(format!("{left} bytes are left for tables")) }
}

/// Many files that are found wanting in one look, as after a moment in which the guard did not run, get no more than half of what is free.
fn leaves_half_to_others() -> std::result::Result<(), String> {
    const MANY: usize = 60;
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        (world.writers, world.is_exact) = (false, true);
        world.small_free_bytes = Some(SMALL_BYTES);
        let size = 64 * MIB;
        world.files =
            vec![
                SimFile { exists: true, is_open: true, size, allocated_end: size, ..SimFile::default() };
                MANY
            ];
        world.events.extend((0..MANY).map(|at| (at, true, false)));
    }
    let mut guard = guard_of(&world).unwrap();
    drain(&world, &mut guard, 0);
    guard.act(0).unwrap();
    let left = world.borrow().small_free_bytes.unwrap();
    assert!(left < SMALL_BYTES - (256 * MIB), "it reserves where there is enough: {left}");
    if left >= SMALL_BYTES / 2 { Ok(()) } else { Err(format!("{left} bytes are left to others")) }
}

/// Files that grow as long as they may have little room where snapshots keep it.
fn leaves_little_to_snapshots() -> std::result::Result<(), String> {
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        (world.writers, world.is_exact) = (false, true);
        world.small_free_bytes = Some(SMALL_BYTES);
        world.is_undecided = true;
    }
    let mut guard = guard_of(&world).unwrap();
    let reserved = || -> u64 {
        world.borrow().files.iter().map(|file| file.allocated_end.saturating_sub(file.size)).sum()
    };
    let grow = |guard: &mut Guard<Sim>, now| {
        {
            let mut world = world.borrow_mut();
            for at in 0..FILES {
                let size = world.files[at].allocated_end.max(64 * MIB) + MIB;
                world.files[at] =
                    SimFile { exists: true, is_open: true, size, allocated_end: size, ..SimFile::default() };
                world.events.push_back((at, true, false));
            }
        }
        drain(&world, guard, now);
        guard.act(now).unwrap();
    };
    grow(&mut guard, 0);
    assert!(reserved() > SMALL_BYTES / 64, "much is reserved where no snapshot keeps it: {}", reserved());
    {
        let mut world = world.borrow_mut();
        world.is_snapshotted = true;
        world.files.iter_mut().for_each(|file| file.is_open = false);
    }
    guard.act(2000).unwrap();
    assert_eq!(reserved(), 0, "all are closed");
    let mut most_bytes = 0;
    for now in 3..30 {
        grow(&mut guard, now * 1000);
        most_bytes = most_bytes.max(reserved());
        if most_bytes > SMALL_BYTES / 256 {
            return Err(format!("{most_bytes} bytes are reserved"));
        }
    }
    assert!(most_bytes > 0, "a little is reserved all the same");
    if guard.limited() != Some(Limit::Snapshots) {
        return Err(format!("the bound is told as {:?}", guard.limited()));
    }
    Ok(())
}

#[test]
fn little_is_left_to_snapshots() {
    leaves_little_to_snapshots().unwrap();
}

/// What is put together lies there twice for a while: not where that would take the last free bytes.
fn moves_where_there_is_room() -> std::result::Result<(), String> {
    for whole_files in [false, true] {
        let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
        {
            let mut world = world.borrow_mut();
            (world.writers, world.is_exact) = (false, whole_files);
            world.small_free_bytes = Some(4 * (40 << 16) - 1);
            world.files[0] = SimFile { exists: true, pieces: 40, size: 40 << 16, ..SimFile::default() };
            world.events.push_back((0, true, true));
        }
        let mut guard = guard_of(&world).unwrap();
        drain(&world, &mut guard, 0);
        while guard.repair_next(10_000).unwrap() {}
        if world.borrow().files[0].pieces != 40 {
            return Err("it moved with hardly any room".to_owned());
        }
        world.borrow_mut().small_free_bytes = Some(4 * (40 << 16));
        while guard.repair_next(80_000).unwrap() {}
        assert_eq!(world.borrow().files[0].pieces, 1, "once there is room");
    }
    Ok(())
}

#[test]
fn files_are_put_together_where_there_is_room() {
    moves_where_there_is_room().unwrap();
}

#[test]
fn half_of_what_is_free_stays_free() {
    leaves_half_to_others().unwrap();
}

#[test]
fn tables_keep_their_room() {
    leaves_tables_their_room().unwrap();
}

/// What somebody stores through a mapping while room is reserved, nobody announces: the time from before is never set again.
fn keeps_the_time_of_what_is_mapped() -> std::result::Result<(), String> {
    let (world, mut guard) = before_reserving();
    {
        let mut world = world.borrow_mut();
        (world.shows, world.stores_next) = (true, true);
        world.files.iter_mut().for_each(|file| (file.is_open, file.is_mapped) = (true, true));
    }
    guard.act(0).unwrap();
    {
        let mut world = world.borrow_mut();
        world.files.iter_mut().for_each(|file| (file.is_open, file.is_mapped) = (false, false));
    }
    guard.act(2000).unwrap();
    check(&world.borrow())
}

#[test]
fn a_time_before_a_store_through_a_mapping_is_not_set() {
    keeps_the_time_of_what_is_mapped().unwrap();
}

/// A guard that is about to reserve for all files, each of which nobody has open any more.
fn before_reserving() -> (Rc<RefCell<World>>, Guard<Sim>) {
    let world = Rc::new(RefCell::new(World::new(1, u64::MAX)));
    {
        let mut world = world.borrow_mut();
        world.writers = false;
        let size = 64 * MIB;
        for at in 0..FILES {
            world.files[at] = SimFile { exists: true, size, allocated_end: size, ..SimFile::default() };
            world.events.push_back((at, true, false));
        }
    }
    let mut guard = guard_of(&world).unwrap();
    drain(&world, &mut guard, 0);
    (world, guard)
}

/// Room of two files goes back, that of the third cannot now: the ledger hears of the two, and the third comes again.
fn records_what_went_back_before_an_error() -> std::result::Result<(), String> {
    let (world, mut guard) = before_reserving();
    guard.act(0).unwrap();
    if claims(&world.borrow().ledger).len() != FILES {
        return Err("not all have room".to_owned());
    }
    world.borrow_mut().fails_after = Some(2);
    if guard.act(1000).is_ok() || claims(&world.borrow().ledger).len() != 1 {
        return Err("the ledger claims what went back".to_owned());
    }
    guard.act(2000).unwrap();
    check(&world.borrow())
}

/// All are announced, and the first fails: that one may have room, the others have none.
fn takes_back_what_was_announced_before_an_error() -> std::result::Result<(), String> {
    let (world, mut guard) = before_reserving();
    world.borrow_mut().fails_to_reserve = true;
    if guard.act(0).is_ok() || claims(&world.borrow().ledger).len() != 1 {
        return Err("the ledger claims what was never reserved".to_owned());
    }
    guard.act(1000).unwrap();
    check(&world.borrow())
}

#[test]
fn what_was_announced_and_not_reserved_is_taken_back() {
    takes_back_what_was_announced_before_an_error().unwrap();
}

#[test]
fn what_went_back_before_an_error_is_recorded() {
    records_what_went_back_before_an_error().unwrap();
}

#[test]
fn each_mutant_is_found() {
    // Those of free space are found by the exploration of that.
    for mutant in MUTANTS.into_iter().filter(|mutant| !SPACE_MUTANTS.contains(mutant)) {
        let found = mutants::with(Some(mutant), || {
            explore(0..60)
                .and_then(|_| stops_in_the_midst(false))
                .and_then(|()| small_now_and_then())
                .and_then(|()| gives_back_where_others_run_short())
                .and_then(|()| leaves_tables_their_room())
                .and_then(|()| leaves_half_to_others())
                .and_then(|()| leaves_little_to_snapshots())
                .and_then(|()| moves_where_there_is_room())
                .and_then(|()| keeps_the_time_of_what_is_mapped())
                .and_then(|()| records_what_went_back_before_an_error())
                .and_then(|()| takes_back_what_was_announced_before_an_error())
        });
        assert!(found.is_err(), "{mutant:?} is not found");
    }
    assert!(mutants::with(None::<Mutant>, || explore(0..2)).is_ok());
}
