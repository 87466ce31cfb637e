//! What is left, wherever a run is cut off: nothing, once another one came by. And no write of the guest's is missing from the next
//! incremental copy, of one disk or of two at one moment.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;

use block::{ErrorKind, Result};
use vm::{Freeze, MUTANTS, Mutant, RunId, Snapshot, Wanted, WantedDisk, begin, find, recover};

use crate::sim::{BLOCK_COUNT, NODES, Qemu, Shared, Trouble};

/// Seeds of what the guest writes.
const SEEDS: [u64; 3] = [0x51ed_270b, 0x2545_f491, 0x9e37_79b9];
/// More commands than any run gives.
const COMMAND_COUNT_MAX: usize = 200;

/// Bits that a bitmap begins with.
const KEPT: [usize; 3] = [5, 700, 1023];

/// One kind of run.
#[derive(Clone, Copy, Debug)]
struct Kind {
    disk_count: usize,
    has_device: bool,
    since: bool,
    freeze: Freeze,
    agent_fails: bool,
}

fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for disk_count in [2, 1] {
        for has_device in [true, false] {
            for since in [true, false] {
                for (freeze, agent_fails) in [
                    (Freeze::Never, false),
                    (Freeze::Auto, false),
                    (Freeze::Auto, true),
                    (Freeze::Always, true),
                ] {
                    // What freezes knows nothing of disks.
                    if disk_count == 1 || (freeze == Freeze::Auto && !agent_fails) {
                        kinds.push(Kind { disk_count, has_device, since, freeze, agent_fails });
                    }
                }
            }
        }
    }
    kinds
}

/// A QEMU, and the copies that are kept of its disks.
struct World {
    qemu: Rc<RefCell<Qemu>>,
    kind: Kind,
    targets: [[u64; BLOCK_COUNT]; 2],
}

impl World {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut qemu = Qemu::new(seed);
        qemu.has_device = kind.has_device;
        qemu.agent_fails = kind.agent_fails;
        // The full copies were made when the bitmaps were added.
        let targets = qemu.content;
        for _ in 0..3 {
            qemu.guest_writes();
        }
        Self { qemu: Rc::new(RefCell::new(qemu)), kind, targets }
    }

    fn shared(&self) -> Shared {
        Shared(self.qemu.clone())
    }

    fn begin(&self, run: RunId) -> Result<Snapshot> {
        let mut monitor = self.shared();
        let around = self.shared();
        let names = &NODES[..self.kind.disk_count];
        let disks = names.iter().map(|name| find(&mut monitor, Some(name))).collect::<Result<Vec<_>>>()?;
        self.qemu.borrow_mut().sockets.insert("/tmp/s".to_owned());
        // Nothing is read from it here.
        let file = std::fs::File::open("/dev/null").unwrap();
        let since = self.kind.since.then_some("daily");
        let disk = |disk| WantedDisk { disk, overlay: file.as_fd(), since };
        let wanted = Wanted {
            run,
            disks: disks.iter().map(disk).collect(),
            socket: file.as_fd(),
            socket_path: Path::new("/tmp/s"),
            freeze: self.kind.freeze,
            agent: Some(Path::new("/run/agent")),
        };
        let begun = begin(&mut monitor, &around, &wanted);
        if begun.is_err() && !self.qemu.borrow().is_dead() {
            // Whoever made the socket removes it.
            self.qemu.borrow_mut().sockets.clear();
        }
        begun
    }

    /// A whole run of a process that is killed, or refused, there.
    fn run(&mut self, run: RunId, trouble: Option<Trouble>) -> Result<()> {
        self.qemu.borrow_mut().begin_process(trouble);
        self.qemu.borrow_mut().living.insert(run);
        let result = self.copy(run);
        self.qemu.borrow_mut().living.remove(&run);
        result
    }

    fn copy(&mut self, run: RunId) -> Result<()> {
        let (mut monitor, around) = (self.shared(), self.shared());
        let snapshot = self.begin(run)?;
        if self.kind.since {
            for (disk, target) in self.targets.iter_mut().enumerate().take(self.kind.disk_count) {
                let (moment, _) = self.qemu.borrow().moments[disk].expect("it has begun");
                for block in self.qemu.borrow().dirty(disk, &snapshot.dirty_bitmap(disk)) {
                    target[block] = moment[block];
                }
            }
            let rotated =
                (0..self.kind.disk_count).try_for_each(|disk| self.rotate(&snapshot, &mut monitor, disk));
            return rotated.and(snapshot.end(&mut monitor, &around));
        }
        snapshot.end(&mut monitor, &around)
    }

    /// The disk's bitmap begins anew, with some bits set.
    fn rotate(&self, snapshot: &Snapshot, monitor: &mut Shared, disk: usize) -> Result<()> {
        let export = snapshot.offer_bits(monitor, disk, 65536 * BLOCK_COUNT as u64)?;
        KEPT.iter().for_each(|block| self.qemu.borrow_mut().client_writes(&export, *block));
        snapshot.rotate(monitor, &self.shared(), disk)
    }

    fn check_clean(&self) -> Result<(), String> {
        let left = self.qemu.borrow().left();
        if left.is_empty() { Ok(()) } else { Err(format!("left: {left:?}")) }
    }

    /// The next incremental copy makes the target what the disk is at its moment.
    fn check_next(&mut self) -> Result<(), String> {
        let kind = Kind { since: true, freeze: Freeze::Never, ..self.kind };
        self.kind = kind;
        self.run(id(9), None).map_err(|error| error.to_string())?;
        self.check_moment()?;
        for disk in 0..self.kind.disk_count {
            let (moment, _) = self.qemu.borrow().moments[disk].expect("it has begun");
            if let Some(block) = (0..BLOCK_COUNT).find(|block| self.targets[disk][*block] != moment[*block]) {
                return Err(format!("block {block} of target {disk} is not what it was at the moment"));
            }
            let dirty = self.qemu.borrow().dirty(disk, "daily");
            if !KEPT.iter().all(|block| dirty.contains(block)) {
                return Err(format!("bitmap {disk} does not begin with the bits that it was to have"));
            }
        }
        self.check_clean()
    }

    /// All disks were taken at one moment.
    fn check_moment(&self) -> Result<(), String> {
        let moments: Vec<_> =
            self.qemu.borrow().moments[..self.kind.disk_count].iter().flatten().map(|(_, at)| *at).collect();
        match moments.windows(2).all(|pair| pair[0] == pair[1]) {
            true => Ok(()),
            false => Err(format!("the disks were taken after different writes: {moments:?}")),
        }
    }
}

fn id(number: u64) -> RunId {
    RunId::parse(&format!("leandisk-aaaaaaaaaaaaaaa{}", char::from(b'a' + u8::try_from(number).unwrap())))
        .unwrap()
        .0
}

/// A run in trouble, another in trouble that recovers, then one that recovers; what is wrong then.
fn explore(kind: Kind, seed: u64, trouble: Trouble, second: Option<usize>) -> Result<bool, String> {
    let mut world = World::new(kind, seed);
    let result = world.run(id(1), Some(trouble));
    let is_past = world.qemu.borrow().given() <= number_of(trouble);
    let was_killed = world.qemu.borrow().is_dead();
    if !was_killed {
        match (&result, kind.freeze == Freeze::Always && kind.agent_fails) {
            (Ok(()), true) => return Err("a guest that was to be frozen was not".to_owned()),
            (Err(error), false) if is_past => return Err(format!("nothing was wrong, but: {error}")),
            _ => {}
        }
        // A refused removal is told, and done by the next.
        if !matches!(trouble, Trouble::Refused(_)) || is_past {
            world.check_clean()?;
        }
    }
    for trouble in [second.map(Trouble::KilledAfter), None] {
        world.qemu.borrow_mut().begin_process(trouble);
        let recovered = recover(&mut world.shared(), &world.shared());
        if trouble.is_none() {
            recovered.map_err(|error| error.to_string())?;
        }
    }
    // The socket of a run whose record QEMU never had is a file that nobody knows of.
    if was_killed && !world.qemu.borrow().has_record {
        world.qemu.borrow_mut().sockets.clear();
    }
    world.check_clean()?;
    world.check_next()?;
    Ok(is_past)
}

fn number_of(trouble: Trouble) -> usize {
    let (Trouble::KilledBefore(number) | Trouble::KilledAfter(number) | Trouble::Refused(number)) = trouble;
    number
}

/// Every cut of every kind of run; the first that leaves something.
fn first_fault() -> Option<String> {
    for kind in kinds() {
        for of in [Trouble::KilledBefore, Trouble::KilledAfter, Trouble::Refused] {
            for number in 0..COMMAND_COUNT_MAX {
                let seed = SEEDS[number % SEEDS.len()];
                let second = (number % 3 != 0).then_some(number % 17);
                match explore(kind, seed, of(number), second) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(why) => {
                        return Some(format!(
                            "{kind:?}, seed {seed:#x}, {:?}, {second:?}: {why}",
                            of(number)
                        ));
                    }
                }
                assert!(number + 1 < COMMAND_COUNT_MAX, "a run does not end");
            }
        }
    }
    None
}

#[test]
fn nothing_is_left_and_no_write_is_lost_wherever_a_run_is_cut() {
    if let Some(fault) = first_fault() {
        panic!("{fault}");
    }
}

/// A run that goes on is left alone, and another one does not begin beside it. Both hold of what `LivingTornDown` breaks.
fn living_fault() -> Option<String> {
    let kind =
        Kind { disk_count: 1, has_device: true, since: false, freeze: Freeze::Never, agent_fails: false };
    let world = World::new(kind, 1);
    world.qemu.borrow_mut().begin_process(None);
    world.qemu.borrow_mut().living.insert(id(1));
    let snapshot = world.begin(id(1)).unwrap();
    let before = world.qemu.borrow().left();
    let recovered = recover(&mut world.shared(), &world.shared()).unwrap();
    if recovered.living != [id(1)] || world.qemu.borrow().left() != before {
        return Some("a run that goes on was removed".to_owned());
    }
    let refused = begin_second(&world);
    if refused != Some(ErrorKind::Refused) || world.qemu.borrow().exports.is_empty() {
        return Some("a second run began".to_owned());
    }
    snapshot.end(&mut world.shared(), &world.shared()).unwrap();
    world.check_clean().err()
}

fn begin_second(world: &World) -> Option<ErrorKind> {
    let sockets = world.qemu.borrow().sockets.clone();
    let refused = world.begin(id(2)).err().map(|error| error.kind());
    world.qemu.borrow_mut().sockets = sockets;
    refused
}

/// Another program's server is not stopped: neither one that ran before, nor one that others came to use.
fn foreign_fault() -> Option<String> {
    let kind =
        Kind { disk_count: 1, has_device: true, since: false, freeze: Freeze::Never, agent_fails: false };
    let world = World::new(kind, 1);
    {
        let mut qemu = world.qemu.borrow_mut();
        qemu.begin_process(None);
        qemu.server_runs = true;
        qemu.exports.insert("backup".to_owned(), "#block123".to_owned());
    }
    let refused = world.begin(id(1)).err().map(|error| error.kind());
    if refused != Some(ErrorKind::Refused) || !world.qemu.borrow().server_runs {
        return Some("a server of others was stopped".to_owned());
    }
    if let Err(why) = world.check_clean() {
        return Some(why);
    }
    let world = World::new(kind, 1);
    world.qemu.borrow_mut().begin_process(None);
    let snapshot = world.begin(id(1)).unwrap();
    world.qemu.borrow_mut().exports.insert("backup".to_owned(), "#block123".to_owned());
    snapshot.end(&mut world.shared(), &world.shared()).unwrap();
    let kept = world.qemu.borrow().exports.contains_key("backup");
    if kept { world.check_clean().err() } else { Some("an export of others is gone".to_owned()) }
}

/// A QEMU that a reader of the disk would end is not asked to export it, and others are.
fn thread_fault() -> Option<String> {
    let (none, thread) = (Some(""), Some("/objects/thread"));
    for (has_device, version, of_devices, refused) in [
        (true, (7, 2), [thread, none], true),
        (true, (7, 2), [none, thread], false),
        (true, (7, 2), [None, none], true),
        (false, (7, 2), [none, none], true),
        (true, (8, 2), [thread, none], true),
        (true, (9, 0), [thread, none], false),
    ] {
        let kind =
            Kind { disk_count: 1, has_device, since: false, freeze: Freeze::Never, agent_fails: false };
        let world = World::new(kind, 1);
        {
            let mut qemu = world.qemu.borrow_mut();
            (qemu.version, qemu.threads) = (version, Some(of_devices));
            qemu.begin_process(None);
        }
        let begun = world.begin(id(1));
        let kind = begun.as_ref().err().map(block::Error::kind);
        if kind != refused.then_some(ErrorKind::Unsupported) {
            return Some(format!("{version:?} {of_devices:?} {has_device}: {kind:?}"));
        }
        if let Ok(snapshot) = begun {
            snapshot.end(&mut world.shared(), &world.shared()).unwrap();
        }
        if let Err(why) = world.check_clean() {
            return Some(why);
        }
    }
    None
}

#[test]
fn a_disk_whose_readers_end_its_qemu_is_refused() {
    assert_eq!(thread_fault(), None);
}

#[test]
fn a_run_that_goes_on_is_left_alone() {
    assert_eq!(living_fault(), None);
}

#[test]
fn what_others_export_stays() {
    assert_eq!(foreign_fault(), None);
}

#[test]
fn every_way_to_break_the_order_is_found() {
    for mutant in MUTANTS {
        let found = mutants::with(Some(mutant), || {
            first_fault().or_else(living_fault).or_else(foreign_fault).or_else(thread_fault)
        });
        assert!(found.is_some(), "{mutant:?} was not found");
    }
    assert_eq!(mutants::with(None::<Mutant>, living_fault), None);
}

#[test]
fn the_moment_is_what_the_guest_had_when_it_was_frozen() {
    let kind =
        Kind { disk_count: 1, has_device: true, since: false, freeze: Freeze::Always, agent_fails: false };
    let world = World::new(kind, 7);
    world.qemu.borrow_mut().begin_process(None);
    let snapshot = world.begin(id(1)).unwrap();
    assert_eq!(snapshot.frozen(), Some(1));
    assert!(!world.qemu.borrow().frozen);
    let (moment, _) = world.qemu.borrow().moments[0].unwrap();
    assert_ne!(moment, world.qemu.borrow().content[0], "the guest goes on writing");
}
