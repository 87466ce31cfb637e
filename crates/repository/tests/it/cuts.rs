//! A backup that is cut off after each of its writes, and one that finds no more room at each of them.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use block::Result as BlockResult;
use repository::{Change, KeyCost, Kind, Memory, Mutant, Repository, Storage};

use crate::{PASSWORD, back_up, check};

/// A repository with one snapshot, and the changes that a second backup makes of it.
fn changes(mutant: Option<Mutant>) -> (Vec<Change>, Vec<Change>) {
    let memory = Arc::new(Memory::default());
    let repository = Repository::init_with_cost(memory.clone(), PASSWORD, KeyCost::LEAST).unwrap();
    back_up(&repository, 1).unwrap();
    let before = memory.changes();
    mutants::with(mutant, || back_up(&repository, 2)).unwrap();
    let after = memory.changes()[before.len()..].to_vec();
    (before, after)
}

/// What is wrong after the first cut that leaves something wrong.
fn explore(mutant: Option<Mutant>) -> Result<usize, String> {
    let (before, after) = changes(mutant);
    let mut counts = Vec::new();
    for cut in 0..=after.len() {
        let left = [&before[..], &after[..cut]].concat();
        let count = check(Arc::new(Memory::after(&left))).map_err(|error| format!("after {cut}: {error}"))?;
        counts.push(count);
    }
    assert_eq!((counts.first(), counts.last()), (Some(&1), Some(&2)), "{counts:?}");
    Ok(after.len())
}

/// Takes packs from several threads, and has none of them before there is a snapshot: if who makes that does not wait for them.
struct Late {
    memory: Memory,
    has_snapshot: Mutex<bool>,
    is_made: Condvar,
}

/// How long a pack waits for a snapshot that comes too early.
const LATE: Duration = Duration::from_millis(200);

impl Storage for Late {
    fn place(&self) -> String {
        self.memory.place()
    }

    fn prepare(&self) -> BlockResult<()> {
        self.memory.prepare()
    }

    fn names(&self, kind: Kind) -> BlockResult<Vec<String>> {
        self.memory.names(kind)
    }

    fn read(&self, kind: Kind, name: &str) -> BlockResult<Vec<u8>> {
        self.memory.read(kind, name)
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> BlockResult<Vec<u8>> {
        self.memory.read_part(kind, name, offset, len)
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> BlockResult<()> {
        let mut has_snapshot = self.has_snapshot.lock().unwrap();
        match kind {
            Kind::Pack => {
                let waited = self.is_made.wait_timeout_while(has_snapshot, LATE, |is_there| !*is_there);
                drop(waited);
            }
            Kind::Snapshot => {
                *has_snapshot = true;
                drop(has_snapshot);
                self.is_made.notify_all();
            }
            _ => drop(has_snapshot),
        }
        self.memory.create(kind, name, contents)
    }

    fn remove(&self, kind: Kind, name: &str) -> BlockResult<()> {
        self.memory.remove(kind, name)
    }

    fn connection_count(&self) -> usize {
        5
    }
}

/// The order in which files of a backup come that has room for so many.
fn late_kinds(mutant: Option<Mutant>, room: usize) -> (BlockResult<()>, Vec<Kind>) {
    let memory = Memory::failing(&[], room);
    let late = Arc::new(Late { memory, has_snapshot: Mutex::new(false), is_made: Condvar::new() });
    let made = Repository::init_with_cost(late.clone(), PASSWORD, KeyCost::LEAST)
        .and_then(|repository| mutants::with(mutant, || back_up(&repository, 1)).map(drop));
    let kinds = late.memory.changes().into_iter().filter_map(|change| match change {
        Change::Created(kind @ (Kind::Pack | Kind::Index | Kind::Snapshot), ..) => Some(kind),
        Change::Created(..) | Change::Removed(..) => None,
    });
    (made, kinds.collect())
}

#[test]
fn packs_that_are_on_their_way_are_waited_for() {
    let (made, kinds) = late_kinds(None, 100);
    made.unwrap();
    assert_eq!(kinds, [Kind::Pack, Kind::Pack, Kind::Pack, Kind::Index, Kind::Snapshot]);
    let (_, kinds) = late_kinds(Some(Mutant::IndexBeforeUploads), 100);
    assert_ne!(kinds.last(), Some(&Kind::Snapshot), "the mutant was not found: {kinds:?}");
    // A key, the configuration and a lock; then there is no room for the last pack.
    let (made, kinds) = late_kinds(None, 5);
    assert!(made.unwrap_err().is_full());
    assert_eq!(kinds, [Kind::Pack, Kind::Pack]);
}

#[test]
fn no_cut_leaves_a_snapshot_without_its_blobs() {
    // Two packs of data and one of trees, an index, the snapshot.
    assert!(explore(None).unwrap() >= 4);
}

#[test]
fn each_mutant_is_found() {
    for mutant in [Mutant::SnapshotBeforePacks, Mutant::IndexBeforePacks] {
        let found = explore(Some(mutant));
        assert!(found.is_err(), "{mutant:?} was not found: {found:?}");
    }
}

#[test]
fn a_backup_without_room_fails_and_the_next_one_succeeds() {
    let (before, after) = changes(None);
    for room in 0..after.len() {
        // The lock of who opens it is the first to need room.
        let full = Arc::new(Memory::failing(&before, room + 1));
        let repository = Repository::open(full.clone(), PASSWORD).unwrap();
        let error = back_up(&repository, 2).unwrap_err();
        assert!(error.is_full(), "{error}");
        // With the lock of a process that did not end, which is this one.
        let left = Arc::new(Memory::after(&full.changes()));
        assert_eq!(check(left.clone()), Ok(1), "with room for {room}");
        if room % 2 == 0 {
            back_up(&Repository::open(left.clone(), PASSWORD).unwrap(), 2).unwrap();
            assert_eq!(check(left), Ok(2), "with room for {room}");
        }
    }
}

#[test]
fn what_is_there_is_not_stored_again() {
    let (before, after) = changes(None);
    let bytes = |changes: &[Change]| -> usize {
        let packs = changes.iter().filter_map(|change| match change {
            Change::Created(Kind::Pack, _, contents) => Some(contents.len()),
            Change::Created(..) | Change::Removed(..) => None,
        });
        packs.sum()
    };
    // A quarter of 20 MiB is new.
    assert!((20 << 20..21 << 20).contains(&bytes(&before)), "{}", bytes(&before));
    assert!((5 << 20..6 << 20).contains(&bytes(&after)), "{}", bytes(&after));
}
