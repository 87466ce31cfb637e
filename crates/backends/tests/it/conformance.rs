//! What every place has to do, asked of each.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use repository::{Folder, Id, Kind, Storage};
use testkit::{RestServer, scratch};

use crate::{noise, open, options};

const KINDS: [Kind; 5] = [Kind::Key, Kind::Lock, Kind::Snapshot, Kind::Index, Kind::Pack];

fn names(storage: &dyn Storage, kind: Kind) -> BTreeSet<String> {
    storage.names(kind).unwrap().into_iter().collect()
}

#[track_caller]
fn assert_missing(storage: &dyn Storage, kind: Kind, name: &str) {
    for error in [storage.read(kind, name).unwrap_err(), storage.read_part(kind, name, 0, 10).unwrap_err()] {
        assert_eq!(error.io_source().map(std::io::Error::kind), Some(ErrorKind::NotFound), "{error}");
        assert!(error.path_text().is_some(), "{error}");
    }
}

/// A file that is made, read in whole and in part, made again, and, unless it is the configuration, removed.
fn check_file(storage: &dyn Storage, kind: Kind, contents: &[u8]) {
    let name = if kind == Kind::Config { String::new() } else { Id::of(contents).to_string() };
    assert_missing(storage, kind, &name);
    storage.create(kind, &name, contents).unwrap();
    assert!(names(storage, kind).contains(&name), "{kind:?}");
    assert_eq!(storage.read(kind, &name).unwrap(), contents);
    let len = contents.len();
    for (from, to) in [(0, len), (len / 3, len / 2), (len - 1, len), (len / 2, len / 2)] {
        let part = storage.read_part(kind, &name, from as u64, to - from).unwrap();
        assert_eq!(part, contents[from..to], "{from} to {to} of {len} of {kind:?}");
    }
    for (from, part_len) in [(len - 1, 2), (len, 1), (len + 70_000, 5)] {
        let error = storage.read_part(kind, &name, from as u64, part_len).unwrap_err();
        assert_eq!(error.io_source().map(std::io::Error::kind), Some(ErrorKind::UnexpectedEof), "{error}");
    }
}

fn check_removal(storage: &dyn Storage, kind: Kind, contents: &[u8]) {
    let name = Id::of(contents).to_string();
    storage.remove(kind, &name).unwrap();
    assert_missing(storage, kind, &name);
    assert!(!names(storage, kind).contains(&name));
    storage.remove(kind, &name).unwrap();
}

/// The suite. Leaves files of every kind but locks.
pub(crate) fn conform(storage: &dyn Storage) {
    for kind in Kind::ALL {
        assert_eq!(names(storage, kind), BTreeSet::new(), "{kind:?}: there is nothing yet");
    }
    storage.prepare().unwrap();
    storage.prepare().unwrap();
    storage.clear_partial().unwrap();
    check_file(storage, Kind::Config, &noise(1, 155));
    for (seed, kind) in (2..).zip(KINDS) {
        let (small, large) = (noise(seed, 1 + usize::from(kind == Kind::Pack)), noise(seed * 100, 100_001));
        check_file(storage, kind, &small);
        check_file(storage, kind, &large);
        assert_eq!(names(storage, kind).len(), 2);
        check_removal(storage, kind, &small);
        if kind == Kind::Lock {
            check_removal(storage, kind, &large);
        }
    }
    check_threads(storage);
}

/// Packs of megabytes, from several threads at a time.
fn check_threads(storage: &dyn Storage) {
    std::thread::scope(|scope| {
        for seed in 1000..1006 {
            scope.spawn(move || {
                let contents = noise(seed, (3 << 20) + 17);
                let name = Id::of(&contents).to_string();
                storage.create(Kind::Pack, &name, &contents).unwrap();
                let part = storage.read_part(Kind::Pack, &name, 1 << 20, 1 << 20).unwrap();
                assert_eq!(part, contents[1 << 20..2 << 20]);
                assert_eq!(Id::of(&storage.read(Kind::Pack, &name).unwrap()).to_string(), name);
            });
        }
    });
    assert_eq!(names(storage, Kind::Pack).len(), 7);
}

/// Both hold the same files.
pub(crate) fn assert_same(one: &dyn Storage, other: &dyn Storage) {
    for kind in Kind::ALL {
        assert_eq!(names(one, kind), names(other, kind), "{kind:?}");
        for name in names(one, kind) {
            assert!(one.read(kind, &name).unwrap() == other.read(kind, &name).unwrap(), "{kind:?} {name}");
        }
    }
}

#[test]
fn a_folder_conforms() {
    let dir = scratch();
    conform(&Folder::new(&dir.path().join("a/repository")));
}

#[test]
fn a_rest_server_conforms() {
    let server = RestServer::start(1, Some("Basic bWU6cEBzcw=="));
    let repo = server.repo();
    let variables = [("RESTIC_REST_USERNAME", "me"), ("RESTIC_REST_PASSWORD", "p@ss")];
    let storage = open(&repo, &options(&[]), &variables).unwrap();
    server.put("keys/stranger", b"what is no ID is not listed");
    conform(&*storage);
    // What the address says comes first, and is not shown.
    let named = format!("rest:http://me:p%40ss@{}/repo", server.host());
    let storage = open(&named, &options(&[]), &[("RESTIC_REST_USERNAME", "other")]).unwrap();
    assert_eq!(names(&*storage, Kind::Pack).len(), 7);
    assert!(!storage.place().contains("p%40ss"), "{}", storage.place());
}
