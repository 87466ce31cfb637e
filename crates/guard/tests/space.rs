//! Free space is brought together on a simulated file system, with others at work, and killed at every step: contents never change, no file
//! gets into more pieces, nothing of others moves, nothing stays kept, and a day has its bound.

// Tests by themselves: what fails ends the test.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Error, Result};
use extent::FileOffset;
use guard::{
    Allowance, DeviceSpan, EXT4, Extent, Facts, FileId, Gathered, GoesOn, Guard, Held, Join, Machine, Mutant,
    Options, Owned, Record, Refusal, Reserved, Room, SPACE_MUTANTS, SpaceMap, Stamp, Told, Use, bytes_a_day,
    goal, moved_for_space, place, space_plan,
};
use predict::cost::Piece;
use predict::profile::HDD;

/// One block here.
const BLOCK: u64 = 1 << 20;
const BLOCKS: usize = 1024;
/// What is said of the size of the device: a sixteenth may move in a day.
const SAID_BLOCKS: u64 = 160;
/// Of the one that writes beside the guard.
const STRANGER: u8 = 200;
const TABLE: u8 = 201;
/// Somebody's who is not below the guarded folders.
const UNKNOWN: u8 = 202;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// A device of blocks, each free or somebody's, with what stands in it.
struct World {
    random: Random,
    owner: Vec<Option<u8>>,
    contents: Vec<u64>,
    /// Where each file's blocks lie.
    files: BTreeMap<u8, Vec<usize>>,
    expected: BTreeMap<u8, Vec<u64>>,
    open: Option<u8>,
    held: Option<u8>,
    kept: Vec<usize>,
    /// What the stranger's longest file takes.
    crowd: Vec<usize>,
    ledger: String,
    left: u64,
    steps: u64,
    others: bool,
    moved_blocks: u64,
    damage: Option<&'static str>,
}

fn id(file: u8) -> FileId {
    FileId::new(&[9, file]).unwrap()
}

fn number(id: &FileId) -> u8 {
    id.bytes()[1]
}

impl World {
    /// Short files all over the device, tables and strangers among them.
    fn new(seed: u64, left: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut world = Self {
            owner: vec![None; BLOCKS],
            contents: vec![0; BLOCKS],
            files: BTreeMap::new(),
            expected: BTreeMap::new(),
            open: None,
            held: None,
            kept: Vec::new(),
            crowd: Vec::new(),
            ledger: String::new(),
            left,
            steps: 0,
            others: true,
            moved_blocks: 0,
            damage: None,
            random: Random(random.below(u64::MAX >> 34) | 1),
        };
        let mut at = 0;
        for file in 0..STRANGER {
            at += usize::try_from(4 + random.below(20)).unwrap();
            let owner = match random.below(14) {
                0 => TABLE,
                1 => UNKNOWN,
                _ => file,
            };
            let len = usize::try_from(1 + random.below(2)).unwrap();
            if at + len >= BLOCKS {
                break;
            }
            for block in at..at + len {
                world.owner[block] = Some(owner);
                world.contents[block] = random.below(1 << 30);
            }
            if owner == file {
                world.files.insert(file, (at..at + len).collect());
                world.expected.insert(file, world.contents[at..at + len].to_vec());
            }
            at += len;
        }
        world
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        if self.left == 0 {
            return Err(Error::io("step", std::io::Error::other("killed")));
        }
        self.left -= 1;
        if self.others && self.random.below(6) == 0 {
            self.others_act();
        }
        Ok(())
    }

    /// Somebody opens or closes a file, takes a free block, has a file written anew elsewhere, or writes a file that leaves hardly
    /// anything free, and removes it.
    fn others_act(&mut self) {
        if self.random.below(30) == 0 {
            return self.crowd_or_leave();
        }
        let files: Vec<u8> = self.files.keys().copied().collect();
        let file = files[usize::try_from(self.random.below(files.len() as u64)).unwrap()];
        match self.random.below(5) {
            0 if self.held != Some(file) => self.open = Some(file),
            1 => self.open = None,
            2 => {
                if let Some(block) = self.free_run(1, 0) {
                    self.owner[block] = Some(STRANGER);
                }
            }
            3 if self.held != Some(file) => {
                let len = self.files[&file].len();
                if let Some(to) = self.free_run(len, 0) {
                    self.replace(file, to);
                }
            }
            _ => {}
        }
    }

    fn crowd_or_leave(&mut self) {
        for block in std::mem::take(&mut self.crowd) {
            self.owner[block] = None;
        }
        if self.random.below(2) == 0 {
            return;
        }
        // It has the last blocks first: what the guard frees lies anywhere.
        let free: Vec<usize> = (0..BLOCKS).rev().filter(|block| self.owner[*block].is_none()).collect();
        self.crowd = free[..free.len() * 9 / 10].to_vec();
        for block in &self.crowd {
            self.owner[*block] = Some(STRANGER);
        }
    }

    fn free_run(&mut self, len: usize, skip: usize) -> Option<usize> {
        let from = usize::try_from(self.random.below(BLOCKS as u64)).unwrap();
        let free = |at: &usize| (*at..at + len).all(|block| block < BLOCKS && self.owner[block].is_none());
        (from..BLOCKS).chain(0..from).filter(free).nth(skip)
    }

    fn replace(&mut self, file: u8, to: usize) {
        let from = self.files[&file].clone();
        for (index, block) in from.iter().enumerate() {
            self.contents[to + index] = self.contents[*block];
            self.owner[to + index] = Some(file);
            self.owner[*block] = None;
            self.contents[*block] = 0;
        }
        self.files.insert(file, (to..to + from.len()).collect());
    }

    fn largest(&self) -> usize {
        let mut largest = 0;
        let mut run = 0;
        for owner in &self.owner {
            run = if owner.is_none() { run + 1 } else { 0 };
            largest = largest.max(run);
        }
        largest
    }

    fn map(&self, within: std::ops::Range<usize>) -> SpaceMap {
        let mut map = SpaceMap::default();
        for block in within {
            let used = match self.owner[block] {
                None => Use::Free,
                Some(TABLE) => Use::Fixed,
                Some(_) => Use::Taken,
            };
            assert!(map.push(place(block as u64 * BLOCK, BLOCK).unwrap(), used));
        }
        map
    }
}

fn blocks(span: DeviceSpan) -> std::ops::Range<usize> {
    let block = |bytes: u64| usize::try_from(bytes / BLOCK).unwrap();
    block(span.start().get())..block(span.end().get())
}

struct Sim(Rc<RefCell<World>>);

impl Machine for Sim {
    fn append(&mut self, records: &[Record]) -> Result<()> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        world.ledger.extend(records.iter().map(Record::line));
        Ok(())
    }

    fn replace(&mut self, records: &[Record]) -> Result<()> {
        self.0.borrow_mut().ledger = records.iter().map(Record::line).collect();
        Ok(())
    }

    fn room(&mut self) -> Result<Room> {
        let free = self.0.borrow().owner.iter().filter(|owner| owner.is_none()).count() as u64;
        Ok(Room {
            free_bytes: free * BLOCK,
            all_bytes: SAID_BLOCKS * BLOCK,
            undecided_bytes: 0,
            is_snapshotted: false,
        })
    }

    fn shows_in_stamps(&self) -> bool {
        false
    }

    fn refuses(&mut self, _file: &FileId, _from: u64) -> Result<Option<Refusal>> {
        Ok(Some(Refusal::OwnLayout))
    }

    fn reserve(&mut self, _file: &FileId, _from: u64, _to: u64) -> Result<Reserved> {
        Ok(Reserved::NoRoom)
    }

    fn hold_to_cut(&mut self, file: &FileId) -> Result<Held> {
        self.hold(file)
    }

    fn hold(&mut self, file: &FileId) -> Result<Held> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        if world.open == Some(number(file)) {
            return Ok(Held::Busy);
        }
        world.held = Some(number(file));
        Ok(Held::Yes(Facts::default()))
    }

    fn cut(&mut self, _file: &FileId, _to: u64) -> Result<bool> {
        Ok(true)
    }

    fn stamp(&mut self, _file: &FileId, _modified: Stamp) -> Result<()> {
        Ok(())
    }

    fn is_wanted(&mut self, _file: &FileId) -> bool {
        false
    }

    fn release(&mut self, _file: &FileId) {
        self.0.borrow_mut().held = None;
    }

    fn extents(&mut self, file: &FileId) -> Result<Vec<Extent>> {
        let world = self.0.borrow();
        let extent = |(index, block): (usize, &usize)| Extent {
            piece: Piece { logical: index as u64 * BLOCK, physical: *block as u64 * BLOCK, len_bytes: BLOCK },
            is_shared: false,
            is_plain: true,
        };
        Ok(world.files[&number(file)].iter().enumerate().map(extent).collect())
    }

    fn moves_whole_files(&self) -> bool {
        false
    }

    fn joins(&self) -> bool {
        false
    }

    fn join(&mut self, _file: &FileId, _join: &Join, _goes_on: &mut GoesOn<'_>) -> Result<Gathered> {
        Ok(Gathered::No)
    }

    fn gather(
        &mut self,
        _file: &FileId,
        _start: u64,
        _len: u64,
        _goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered> {
        Ok(Gathered::No)
    }

    fn space(&mut self, within: Option<DeviceSpan>, goes_on: &mut GoesOn<'_>) -> Result<Told<SpaceMap>> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        if !goes_on(0) {
            return Ok(Told::NotYet);
        }
        Ok(Told::All(world.map(within.map_or(0..BLOCKS, blocks))))
    }

    fn owners(&mut self, within: &[DeviceSpan], _goes_on: &mut GoesOn<'_>) -> Result<Told<Vec<Owned>>> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        let is_sought = |block: &usize| within.iter().any(|span| blocks(*span).contains(block));
        let sought = world.files.iter().filter(|(_, places)| places.iter().any(is_sought));
        let owned = |(file, places): (&u8, &Vec<usize>)| Owned {
            place: place(places[0] as u64 * BLOCK, places.len() as u64 * BLOCK).unwrap(),
            file: id(*file),
            start: FileOffset::ZERO,
            is_movable: true,
        };
        Ok(Told::All(sought.map(owned).collect()))
    }

    fn move_out(
        &mut self,
        file: &FileId,
        _start: FileOffset,
        len_bytes: u64,
        stretch: DeviceSpan,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered> {
        let mut world = self.0.borrow_mut();
        let free = world.owner.iter().filter(|owner| owner.is_none()).count();
        if blocks(stretch).len() > free / 4 {
            world.damage = Some("kept from others what little was free");
        }
        world.step()?;
        let file = number(file);
        let len = world.files[&file].len();
        if world.held != Some(file) || len_bytes != len as u64 * BLOCK {
            world.damage = Some("moved what is not held");
        }
        if !world.files[&file].iter().all(|block| blocks(stretch).contains(block)) {
            world.damage = Some("moved what does not lie there");
        }
        // The allocator offers what it likes; what lies in the stretch is kept.
        for _ in 0..200 {
            let Some(to) = world.free_run(len, 0) else { return Ok(Gathered::No) };
            let is_outside = (to..to + len).all(|block| !blocks(stretch).contains(&block));
            if is_outside {
                world.replace(file, to);
                world.moved_blocks += len as u64;
                goes_on(len_bytes);
                return Ok(Gathered::Yes);
            }
            for block in to..to + len {
                world.owner[block] = Some(STRANGER);
                world.kept.push(block);
            }
        }
        Ok(Gathered::No)
    }

    fn let_go(&mut self) {
        let mut world = self.0.borrow_mut();
        for block in std::mem::take(&mut world.kept) {
            world.owner[block] = None;
        }
    }
}

fn guard_of(world: &Rc<RefCell<World>>) -> Guard<Sim> {
    let options = Options {
        prevents: false,
        repairs: false,
        consolidates: true,
        dry_run: false,
        policy: EXT4,
        profile: HDD,
    };
    let mut guard = Guard::new(Sim(world.clone()), options, BTreeMap::new());
    guard.remember_moved(moved_for_space(&world.borrow().ledger));
    guard
}

/// Somebody writes a file of so many blocks, and it is gone again.
fn wants(guard: &mut Guard<Sim>, blocks: u64) {
    for size_bytes in [1, blocks * BLOCK] {
        let facts = Facts { size_bytes, allocated_bytes: size_bytes, modified: Stamp::default() };
        guard.seen(0, id(250), &facts, true, size_bytes > 1);
    }
}

const DAY: u64 = 20_000;

fn live(world: &Rc<RefCell<World>>, turns: u64, wanted: u64) -> Result<Guard<Sim>> {
    let mut guard = guard_of(world);
    wants(&mut guard, wanted);
    for turn in 0..turns {
        let now = turn * 3000;
        let mut calls = 0;
        // A turn ends after some steps.
        let mut goes_on = |_: u64| {
            calls += 1;
            calls < 4
        };
        let mut allowance = Allowance { bytes: u64::MAX, goes_on: &mut goes_on };
        guard.consolidate_within(now, DAY, &mut allowance)?;
        assert_nothing_kept(world);
    }
    Ok(guard)
}

fn assert_nothing_kept(world: &Rc<RefCell<World>>) {
    let mut world = world.borrow_mut();
    if !world.kept.is_empty() {
        world.damage = Some("room stayed kept");
    }
}

fn check(world: &World) -> std::result::Result<(), String> {
    if let Some(damage) = world.damage {
        return Err(damage.to_owned());
    }
    for (file, places) in &world.files {
        let contents: Vec<u64> = places.iter().map(|block| world.contents[*block]).collect();
        if contents != world.expected[file] {
            return Err(format!("file {file} has other contents"));
        }
        if !places.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return Err(format!("file {file} is in pieces"));
        }
        if !places.iter().all(|block| world.owner[*block] == Some(*file)) {
            return Err(format!("file {file} has lost its place"));
        }
    }
    let most = bytes_a_day(SAID_BLOCKS * BLOCK) / BLOCK;
    if world.moved_blocks > most {
        return Err(format!("{} of {most} blocks moved in a day", world.moved_blocks));
    }
    Ok(())
}

/// A life that may be killed, and others after it on the same day. How many steps the first took.
fn life(seed: u64, left: u64) -> (u64, std::result::Result<(), String>) {
    let world = Rc::new(RefCell::new(World::new(seed, left)));
    let first = live(&world, 40, 40);
    let steps = world.borrow().steps;
    if first.is_err() {
        for more in 1..5 {
            {
                // With the process goes what it kept: files without names.
                let mut world = world.borrow_mut();
                for block in std::mem::take(&mut world.kept) {
                    world.owner[block] = None;
                }
                (world.left, world.held) = (u64::MAX, None);
            }
            live(&world, 40, 40 + 20 * more).unwrap();
        }
    }
    let checked = check(&world.borrow());
    (steps, checked)
}

/// What a plan leaves in its stretch, block by block, without the code that made it.
fn planned(seed: u64) -> std::result::Result<(), String> {
    let world = World::new(seed, u64::MAX);
    let map = world.map(0..BLOCKS);
    let owned = |(file, places): (&u8, &Vec<usize>)| Owned {
        place: place(places[0] as u64 * BLOCK, places.len() as u64 * BLOCK).unwrap(),
        file: id(*file),
        start: FileOffset::ZERO,
        is_movable: true,
    };
    let all: Vec<Owned> = world.files.iter().map(owned).collect();
    let Some(goal) = goal(&map.facts(), 60 * BLOCK) else { return Ok(()) };
    let Some(plan) = space_plan(&map, &all, &goal, u64::MAX) else { return Ok(()) };
    for block in blocks(plan.stretch) {
        let moves = plan.moves.iter().any(|one| Some(number(&one.file)) == world.owner[block]);
        if world.owner[block].is_some() && !moves {
            return Err(format!("block {block} would stay in the midst of a stretch"));
        }
    }
    Ok(())
}

fn explore(seeds: std::ops::Range<u64>) -> std::result::Result<u64, String> {
    let mut cuts = 0;
    for seed in seeds {
        planned(seed).map_err(|what| format!("seed {seed}: {what}"))?;
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
fn nothing_is_lost_and_nothing_stays_wherever_the_guard_is_killed() {
    let cuts = explore(0..100).unwrap_or_else(|what| panic!("{what}"));
    assert!(cuts > 500, "{cuts}");
}

#[test]
fn the_longest_free_extent_grows_to_what_is_written() {
    let (mut gained, mut moved) = (0, 0);
    for seed in 0..40 {
        let world = Rc::new(RefCell::new(World::new(seed, u64::MAX)));
        world.borrow_mut().others = false;
        let before = world.borrow().largest();
        let mut guard = live(&world, 200, 40).unwrap();
        let (after, counters) = (world.borrow().largest(), guard.counters());
        check(&world.borrow()).unwrap();
        assert!(after >= before, "seed {seed}: {before} {after}");
        if counters.space_stretches > 0 {
            gained += after - before;
            moved += counters.space_moved_bytes / BLOCK;
            assert!(guard.space_seen().before.unwrap().largest_free_bytes == before as u64 * BLOCK);
            assert!(guard.space_seen().now.unwrap().largest_free_bytes == after as u64 * BLOCK);
            let gain = guard.take_space_gain().unwrap();
            let largest = [gain.before, gain.after].map(|facts| facts.largest_free_bytes / BLOCK);
            assert_eq!(largest, [before as u64, after as u64], "seed {seed}");
        }
        assert!(
            !guard.has_space_gain(),
            "seed {seed}: it is told once, and only where a stretch became free"
        );
    }
    println!("{moved} blocks moved, longest free extents are {gained} blocks longer");
    assert!(gained > 300, "{gained}");
}

#[test]
fn a_dry_run_says_what_it_would_do_and_does_nothing() {
    let world = Rc::new(RefCell::new(World::new(3, u64::MAX)));
    world.borrow_mut().others = false;
    let files = world.borrow().files.clone();
    let options = Options {
        prevents: false,
        repairs: false,
        consolidates: true,
        dry_run: true,
        policy: EXT4,
        profile: HDD,
    };
    let mut guard = Guard::new(Sim(world.clone()), options, BTreeMap::new());
    wants(&mut guard, 40);
    for turn in 0..20 {
        let mut allowance = Allowance { bytes: u64::MAX, goes_on: &mut |_| true };
        guard.consolidate_within(turn * 7_200_000, DAY, &mut allowance).unwrap();
    }
    let (seen, counters) = (guard.space_seen(), guard.counters());
    assert!(seen.would_be_bytes.unwrap() > seen.before.unwrap().largest_free_bytes);
    assert!(counters.space_moved_bytes > 0 && counters.space_moved_bytes <= seen.would_be_bytes.unwrap() / 4);
    let world = world.borrow();
    assert_eq!((&world.files, world.ledger.as_str(), world.moved_blocks), (&files, "", 0));
}

#[test]
fn each_mutant_of_free_space_is_found() {
    for mutant in SPACE_MUTANTS {
        let found = mutants::with(Some(mutant), || explore(0..100));
        assert!(found.is_err(), "{mutant:?} is not found");
    }
    assert!(mutants::with(None::<Mutant>, || explore(0..2)).is_ok());
}
