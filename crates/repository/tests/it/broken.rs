//! What others broke, or hold.

use std::sync::Arc;

use block::ErrorKind;
use repository::{Change, KeyCost, Kind, Memory, Repository, Storage};

use crate::{PASSWORD, back_up, check};

fn fresh() -> Vec<Change> {
    let memory = Arc::new(Memory::default());
    back_up(&Repository::init_with_cost(memory.clone(), PASSWORD, KeyCost::LEAST).unwrap(), 1).unwrap();
    memory.changes()
}

/// The files of a kind, with their names and contents.
fn files(memory: &Memory, kind: Kind) -> Vec<(String, Vec<u8>)> {
    let names = memory.names(kind).unwrap();
    names.into_iter().map(|name| (name.clone(), memory.read(kind, &name).unwrap())).collect()
}

#[test]
fn a_wrong_password_and_no_repository_are_refused() {
    let memory = Arc::new(Memory::default());
    assert_eq!(Repository::open(memory, PASSWORD).unwrap_err().kind(), ErrorKind::Refused);
    let memory = Arc::new(Memory::after(&fresh()));
    let error = Repository::open(memory.clone(), b"wrong").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("password"), "{error}");
    assert_eq!(Repository::init(memory, PASSWORD).unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn a_bit_anywhere_is_noticed() {
    let changes = fresh();
    for kind in [Kind::Config, Kind::Key, Kind::Snapshot, Kind::Index, Kind::Pack] {
        let memory = Memory::after(&changes);
        for (name, mut contents) in files(&memory, kind) {
            let at = contents.len() / 3;
            contents[at] ^= 4;
            let memory = Arc::new(Memory::after(&changes));
            memory.create(kind, &name, &contents).unwrap();
            let found = check(memory.clone());
            assert!(found.is_err(), "{kind:?} {name}: {found:?}");
            if kind == Kind::Config {
                assert_eq!(Repository::open(memory, PASSWORD).unwrap_err().kind(), ErrorKind::Corrupt);
            }
        }
    }
}

#[test]
fn a_pack_that_is_gone_or_short_is_noticed() {
    let changes = fresh();
    let (name, contents) = files(&Memory::after(&changes), Kind::Pack).remove(0);
    let memory = Arc::new(Memory::after(&changes));
    memory.remove(Kind::Pack, &name).unwrap();
    assert!(check(memory).unwrap_err().contains("is not there"));
    let memory = Arc::new(Memory::after(&changes));
    memory.create(Kind::Pack, &name, &contents[..contents.len() / 2]).unwrap();
    assert!(check(memory).is_err());
}

#[test]
fn a_lock_lasts_as_long_as_its_holder() {
    let memory = Arc::new(Memory::after(&fresh()));
    assert!(memory.names(Kind::Lock).unwrap().is_empty(), "who made it took the lock away");
    let one = Repository::open(memory.clone(), PASSWORD).unwrap();
    let another = Repository::open(memory.clone(), PASSWORD).unwrap();
    assert_eq!(memory.names(Kind::Lock).unwrap().len(), 2);
    drop((one, another));
    assert!(memory.names(Kind::Lock).unwrap().is_empty());
}
