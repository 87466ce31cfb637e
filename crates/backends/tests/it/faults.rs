//! A REST server that fails: what may pass is tried again, what was half done is done again, and what is there is whole.

use std::sync::Arc;
use std::time::Duration;

use backends::{Limits, Mutant, Options};
use block::ErrorKind;
use repository::{BlobKind, Id, KeyCost, Kind, Node, Repository, Session, Snapshot, Storage, Tree};
use testkit::{RestFault, RestServer};

use crate::{limits, noise, open, options};

/// All that may pass, and leaves no more than it says.
const PASSING: [RestFault; 6] = [
    RestFault::Busy,
    RestFault::Reset,
    RestFault::LostAnswer,
    RestFault::CutAnswer,
    RestFault::HalfKept,
    RestFault::Lie,
];

fn at(server: &RestServer) -> Arc<dyn Storage> {
    let storage = open(&server.repo(), &options(&[]), &[]).unwrap();
    // It has answered for the first time.
    storage.names(Kind::Key).unwrap();
    storage
}

#[test]
fn each_fault_that_may_pass_passes() {
    let server = RestServer::start(1, None);
    let storage = at(&server);
    for (seed, fault) in (1..).zip(PASSING.into_iter().chain([RestFault::Silence(Duration::ZERO)])) {
        let contents = noise(seed, 5000);
        let name = Id::of(&contents).to_string();
        server.fail_next(2, fault);
        storage.create(Kind::Pack, &name, &contents).unwrap();
        server.calm();
        assert_eq!(server.files()[&format!("data/{name}")], contents, "{fault:?}");
        if fault != RestFault::Lie {
            server.fail_next(2, fault);
            assert_eq!(storage.read(Kind::Pack, &name).unwrap(), contents, "{fault:?}");
            server.fail_next(2, fault);
            assert_eq!(
                storage.read_part(Kind::Pack, &name, 100, 50).unwrap(),
                contents[100..150],
                "{fault:?}"
            );
        }
        server.fail_next(1, fault);
        storage.remove(Kind::Pack, &name).unwrap();
        server.calm();
        assert!(server.files().is_empty());
    }
}

/// What is on the server after a write that a fault met.
fn left(fault: RestFault, count: u64, mutant: Mutant) -> bool {
    let server = RestServer::start(2, None);
    let storage = at(&server);
    let contents = noise(9, 5000);
    let name = Id::of(&contents).to_string();
    server.fail_next(count, fault);
    let made = mutants::with(Some(mutant), || storage.create(Kind::Index, &name, &contents));
    made.is_ok() && server.files().get(&format!("index/{name}")) == Some(&contents)
}

#[test]
fn each_mutant_is_found() {
    assert!(!left(RestFault::Lie, 1, Mutant::AnswerIsBelieved), "a half file was taken for a whole one");
    // A file of the right length with other contents is made anew.
    for mutant in [None, Some(Mutant::LengthIsBelieved)] {
        let server = RestServer::start(3, None);
        let storage = at(&server);
        let contents = noise(9, 5000);
        let name = Id::of(&contents).to_string();
        server.put(&format!("index/{name}"), &noise(10, 5000));
        server.fail_next(1, RestFault::Reset);
        let made = mutants::with(mutant, || storage.create(Kind::Index, &name, &contents));
        made.unwrap();
        let is_whole = server.files()[&format!("index/{name}")] == contents;
        assert_eq!(is_whole, mutant.is_none(), "{mutant:?}");
    }
}

#[test]
fn what_does_not_pass_is_told_in_time() {
    let server = RestServer::start(4, None);
    let storage = at(&server);
    let contents = noise(1, 100);
    let name = Id::of(&contents).to_string();
    let before = server.request_count();
    server.fail_next(u64::MAX, RestFault::Busy);
    let error = storage.create(Kind::Key, &name, &contents).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("503"), "{error}");
    assert_eq!(error.hint_text(), Some("it was tried 12 times"));
    assert_eq!(server.request_count() - before, u64::from(limits().attempt_count));
    // It does not answer any more: who comes next waits for less.
    let before = server.request_count();
    storage.remove(Kind::Key, &name).unwrap_err();
    assert_eq!(server.request_count() - before, 3);
    for (fault, kind) in
        [(RestFault::Forbidden, ErrorKind::Refused), (RestFault::Garbage, ErrorKind::Corrupt)]
    {
        server.fail_next(u64::MAX, fault);
        let before = server.request_count();
        let error = storage.read(Kind::Key, &name).unwrap_err();
        assert_eq!((error.kind(), server.request_count() - before), (kind, 1), "{fault:?}: {error}");
    }
}

#[test]
fn silence_ends() {
    let server = RestServer::start(5, None);
    let limits = Limits { silence: Duration::from_millis(50), attempt_count: 2, ..limits() };
    let storage = open(&server.repo(), &Options { limits, ..Options::default() }, &[]).unwrap();
    storage.names(Kind::Key).unwrap();
    server.fail_next(u64::MAX, RestFault::Silence(Duration::from_secs(2)));
    let error = storage.names(Kind::Key).unwrap_err();
    assert_eq!(error.io_source().map(std::io::Error::kind), Some(std::io::ErrorKind::TimedOut), "{error}");
}

/// A disk of a few small blobs, of which some are as in the generation before.
fn back_up(storage: &Arc<dyn Storage>, generation: u64) -> block::Result<()> {
    let repository = Repository::open(storage.clone(), b"password")?;
    let index = repository.index()?;
    let session = Session::begin(&repository, &index)?;
    let mut packer = session.packer()?;
    let blobs = (0..8).map(|at| noise(if at % 3 == 0 { generation * 100 + at } else { at }, 3000));
    let content =
        blobs.map(|blob| Ok(packer.add(BlobKind::Data, &blob)?.id)).collect::<block::Result<_>>()?;
    let tree = Tree { nodes: vec![Node::file("disk".into(), 8 * 3000, content)] };
    session.finish(vec![packer], tree, &[], Snapshot::now).map(drop)
}

/// Reads all that every snapshot needs; answers how many there are.
fn read_all(storage: &Arc<dyn Storage>) -> block::Result<usize> {
    let repository = Repository::open(storage.clone(), b"password")?;
    let (index, snapshots) = (repository.index()?, repository.snapshots()?);
    for (_, snapshot) in &snapshots {
        let tree = repository.tree(&index, snapshot.tree)?;
        for blob in tree.nodes.iter().flat_map(|node| node.content.iter().flatten()) {
            let place = index.find(BlobKind::Data, *blob).unwrap();
            assert_eq!(Id::of(&repository.blob(&place)?), *blob);
        }
    }
    Ok(snapshots.len())
}

/// Whatever goes wrong, also what does not pass: snapshots are whole, and the next backup succeeds.
#[test]
fn backups_over_a_shaky_line_leave_a_whole_repository() {
    let server = RestServer::start(6, None);
    let storage = at(&server);
    Repository::init_with_cost(storage.clone(), b"password", KeyCost::LEAST).unwrap();
    let (mut stored, mut failed) = (0, 0);
    for generation in 1..=6 {
        let all =
            [&PASSING[..], &[RestFault::FlippedByte, RestFault::Garbage, RestFault::Forbidden]].concat();
        server.shake(6, if generation % 2 == 0 { &all } else { &PASSING });
        let shaken = back_up(&storage, 2 * generation);
        server.calm();
        let there = read_all(&storage).unwrap();
        assert!(
            there == stored + 1 || (shaken.is_err() && there == stored),
            "{there} of {stored}: {shaken:?}"
        );
        failed += usize::from(shaken.is_err());
        // What may pass has passed.
        assert!(generation % 2 == 0 || shaken.is_ok(), "{shaken:?}");
        back_up(&storage, 2 * generation + 1).unwrap();
        stored = there + 1;
        assert_eq!(read_all(&storage).unwrap(), stored);
    }
    assert!(failed > 0 && server.fault_count() > 10, "{failed} failed, {} faults", server.fault_count());
}
