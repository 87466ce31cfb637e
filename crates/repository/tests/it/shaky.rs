//! A storage that fails, answers late, answers garbage or stops half-way: the repository stays whole, and the next backup succeeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{io, process::Command};

use block::{Error, Result};
use repository::{
    BlobKind, Folder, Id, KeyCost, Kind, Memory, Node, Repository, Session, Snapshot, Storage, Tree,
};

use crate::{PASSWORD, noise};

/// In the gate; `LEANDISK_STORAGE_FAULTS` asks for more.
const SEED_COUNT: u64 = 20;

/// Another storage, as long as all goes well.
struct Shaky {
    memory: Memory,
    is_shaking: AtomicBool,
    state: AtomicU64,
    faults: AtomicU64,
}

impl Shaky {
    fn new(seed: u64) -> Self {
        let state = AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self {
            memory: Memory::default(),
            is_shaking: AtomicBool::new(false),
            state,
            faults: AtomicU64::new(0),
        }
    }

    fn below(&self, count: u64) -> u64 {
        let mut state = self.state.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.state.store(state, Ordering::Relaxed);
        (state >> 20) % count
    }

    /// Whether something goes wrong now; who asks says how.
    fn fails(&self) -> bool {
        let fails = self.is_shaking.load(Ordering::Relaxed) && self.below(9) == 0;
        self.faults.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }

    fn error(&self) -> Error {
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset, io::ErrorKind::StorageFull];
        Error::io("reach the storage", kinds[usize::try_from(self.below(3)).unwrap()].into())
    }

    /// Something like what was asked for, but not that; or an error.
    fn garbled(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let at = usize::try_from(self.below(bytes.len().max(1) as u64)).unwrap();
        match self.below(4) {
            0 => return Err(self.error()),
            1 => bytes.truncate(at),
            2 => bytes.clear(),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 0x41),
        }
        Ok(bytes)
    }

    fn changed(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.fails() {
            return change();
        }
        // It was done, and the answer is lost; or it was not.
        if self.below(2) == 0 {
            change()?;
        }
        Err(self.error())
    }
}

impl Storage for Shaky {
    fn place(&self) -> String {
        "far away".into()
    }

    fn prepare(&self) -> Result<()> {
        self.memory.prepare()
    }

    fn names(&self, kind: Kind) -> Result<Vec<String>> {
        let names = self.memory.names(kind)?;
        if !self.fails() {
            return Ok(names);
        }
        // What others see already is not listed everywhere at once. Keys and the configuration were there long before.
        match self.below(2) {
            0 if kind == Kind::Index => Ok(names.into_iter().skip(1).collect()),
            _ => Err(self.error()),
        }
    }

    fn read(&self, kind: Kind, name: &str) -> Result<Vec<u8>> {
        let bytes = self.memory.read(kind, name)?;
        if self.fails() { self.garbled(bytes) } else { Ok(bytes) }
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let bytes = self.memory.read_part(kind, name, offset, len)?;
        if self.fails() { self.garbled(bytes) } else { Ok(bytes) }
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Result<()> {
        self.changed(|| self.memory.create(kind, name, contents))
    }

    fn remove(&self, kind: Kind, name: &str) -> Result<()> {
        self.changed(|| self.memory.remove(kind, name))
    }
}

/// A disk of a few small blobs, of which some are as in the generation before.
fn back_up(repository: &Repository, generation: u64) -> Result<Id> {
    let index = repository.index()?;
    let session = Session::begin(repository, &index)?;
    let mut packer = session.packer()?;
    let blobs = (0..8).map(|at| noise(if at % 3 == 0 { generation * 100 + at } else { at }, 3000));
    let content = blobs.map(|blob| Ok(packer.add(BlobKind::Data, &blob)?.id)).collect::<Result<_>>()?;
    let tree = Tree { nodes: vec![Node::file("disk".into(), 8 * 3000, content)] };
    session.finish(vec![packer], tree, &[], Snapshot::now)
}

/// Reads all that every snapshot needs; answers how many there are.
fn read_all(repository: &Repository) -> Result<usize> {
    let index = repository.index()?;
    let snapshots = repository.snapshots()?;
    for (_, snapshot) in &snapshots {
        for blob in repository
            .tree(&index, snapshot.tree)?
            .nodes
            .iter()
            .flat_map(|node| node.content.iter().flatten())
        {
            let place =
                index.find(BlobKind::Data, *blob).ok_or_else(|| Error::corrupt("a blob is in no index"))?;
            // What is answered is what was stored, or an error.
            assert_eq!(Id::of(&repository.blob(&place)?), *blob);
        }
    }
    Ok(snapshots.len())
}

/// Puts all files into a folder, and has restic look at it.
fn judge(memory: &Memory) {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::new(&dir.path().join("repository"));
    folder.prepare().unwrap();
    for kind in [Kind::Key, Kind::Config, Kind::Pack, Kind::Index, Kind::Snapshot] {
        for name in memory.names(kind).unwrap() {
            folder.create(kind, &name, &memory.read(kind, &name).unwrap()).unwrap();
        }
    }
    let password = dir.path().join("password");
    std::fs::write(&password, PASSWORD).unwrap();
    let output = Command::new("restic")
        .args(["--no-cache", "--quiet", "check", "--read-data", "--repo"])
        .arg(dir.path().join("repository"))
        .arg("--password-file")
        .arg(&password)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_storage_that_fails_at_random_leaves_a_whole_repository() {
    let asked = std::env::var("LEANDISK_STORAGE_FAULTS").ok().and_then(|count| count.parse().ok());
    let count: u64 = asked.unwrap_or(SEED_COUNT);
    let shaky = Arc::new(Shaky::new(1));
    let repository = Repository::init_with_cost(shaky.clone(), PASSWORD, KeyCost::LEAST).unwrap();
    back_up(&repository, 0).unwrap();
    let (mut stored, mut failed) = (1, 0);
    for generation in 1..=count {
        shaky.is_shaking.store(true, Ordering::Relaxed);
        let shaken = back_up(&repository, 2 * generation);
        // Readers get what was stored, or an error.
        let _ = read_all(&repository);
        shaky.is_shaking.store(false, Ordering::Relaxed);
        let there = read_all(&repository).unwrap();
        // The answer to the last write may be lost: then it is there all the same.
        assert!(
            there == stored + 1 || (shaken.is_err() && there == stored),
            "{there} of {stored}: {shaken:?}"
        );
        failed += u64::from(shaken.is_err());
        back_up(&repository, 2 * generation + 1).unwrap();
        stored = read_all(&repository).unwrap();
        assert_eq!(stored, there + 1);
        if generation % 10 == 0 {
            judge(&shaky.memory);
        }
    }
    assert!(failed * 3 > count, "{failed} of {count}");
    assert!(shaky.faults.load(Ordering::Relaxed) > count);
}

#[test]
fn a_storage_that_fails_while_a_repository_is_opened_leaves_it_as_it_was() {
    for seed in 0..4 {
        let shaky = Arc::new(Shaky::new(seed + 1));
        back_up(&Repository::init_with_cost(shaky.clone(), PASSWORD, KeyCost::LEAST).unwrap(), 1).unwrap();
        shaky.is_shaking.store(true, Ordering::Relaxed);
        let opened = Repository::open(shaky.clone(), PASSWORD);
        shaky.is_shaking.store(false, Ordering::Relaxed);
        drop(opened);
        let repository = Repository::open(shaky, PASSWORD).unwrap();
        assert_eq!(read_all(&repository).unwrap(), 1);
    }
}
