//! Adding to a repository: blobs into packs, packs into an index, and the snapshot last.
//!
//! Invariants:
//! - an index names packs that are there for good, and no others;
//! - a snapshot is stored once every blob that it needs is in a pack that an index names. So whatever is cut off leaves a repository
//!   that is whole, with packs that nobody needs at most.

use std::collections::HashSet;
use std::sync::Mutex;

use block::{Error, Result};
use mutants::broken;

use crate::Id;
use crate::index::Index;
use crate::pack::{BlobKind, Filling};
use crate::record::{self, Record};
use crate::repository::Repository;
use crate::snapshot::{Node, Snapshot, Tree};
use crate::storage::Kind;
use crate::unlocked::ZSTD_LEVEL;
use crate::uploads::Uploads;

/// A pack is closed once it is as long as this, restic's default.
const PACK_BYTES: usize = 16 << 20;

/// What is being added.
pub struct Session<'r> {
    repository: &'r Repository,
    known: &'r Index,
    /// Blobs that this session has taken to be stored, in packs that may not be closed yet.
    taken: Mutex<HashSet<(BlobKind, Id)>>,
    uploads: Uploads,
}

/// One thread's packs. Nothing of it is of use before [`Session::finish`].
pub struct Packer<'s, 'r> {
    session: &'s Session<'r>,
    filling: Filling,
    compressor: zstd::bulk::Compressor<'static>,
}

impl<'r> Session<'r> {
    /// A session in which what `known` lists is not stored again. `Refused` if the repository can only be read.
    pub fn begin(repository: &'r Repository, known: &'r Index) -> Result<Self> {
        if repository.is_read_only() {
            return Err(Error::refused("the repository cannot be written").path(repository.place()));
        }
        repository.inner.storage().clear_partial()?;
        Ok(Self {
            repository,
            known,
            taken: Mutex::new(HashSet::new()),
            uploads: Uploads::begin(repository.inner.clone()),
        })
    }

    /// A thread's own.
    pub fn packer(&self) -> Result<Packer<'_, 'r>> {
        let compressor =
            zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(|error| Error::io("start zstd", error))?;
        Ok(Packer { session: self, filling: Filling::default(), compressor })
    }

    /// Bytes of all files that were made, until now.
    pub fn stored_bytes(&self) -> u64 {
        self.uploads.stored_bytes()
    }

    /// Adds the records of disks, each with the name of its disk's file: the folder that holds them, unless it would be empty.
    fn add_records(
        &self,
        records: &[(String, Record)],
        data: &mut Packer<'_, 'r>,
        trees: &mut Packer<'_, 'r>,
    ) -> Result<Option<Node>> {
        let mut nodes = Vec::new();
        for (name, record) in records {
            let Some(bytes) = record.to_bytes()? else { continue };
            let blob = data.add(BlobKind::Data, &bytes)?.id;
            nodes.push(Node::file(record::file_name(name), bytes.len() as u64, vec![blob]));
        }
        if nodes.is_empty() {
            return Ok(None);
        }
        let folder = trees.add(BlobKind::Tree, &Tree { nodes }.to_bytes()?)?.id;
        Ok(Some(Node::folder(record::FOLDER.into(), folder)))
    }

    /// Stores what the packers still hold, the tree with a folder of `records` (each with the name of its disk's file), an index of all, and
    /// then the snapshot that `describe` makes of the tree's ID.
    pub fn finish<'s>(
        &'s self,
        mut packers: Vec<Packer<'s, 'r>>,
        mut tree: Tree,
        records: &[(String, Record)],
        describe: impl FnOnce(Id) -> Snapshot,
    ) -> Result<Id> {
        let (mut trees, mut data) = (self.packer()?, self.packer()?);
        tree.nodes.extend(self.add_records(records, &mut data, &mut trees)?);
        packers.push(data);
        let tree = trees.add(BlobKind::Tree, &tree.to_bytes()?)?.id;
        let mut snapshot = None;
        let mut describe = Some(describe);
        let mut save = || -> Result<Id> {
            let describe = describe.take().expect("called once");
            self.uploads.save(Kind::Snapshot, &describe(tree))
        };
        if broken!(SnapshotBeforePacks) {
            snapshot = Some(save()?);
        }
        let mut last = Filling::default();
        for packer in packers {
            if last.len_bytes() + packer.filling.len_bytes() > PACK_BYTES {
                self.uploads.put(std::mem::take(&mut last))?;
            }
            last.append(packer.filling);
        }
        let close = || -> Result<()> {
            self.uploads.put(last)?;
            // Trees lie in packs of their own, as restic has them.
            self.uploads.put(trees.filling)?;
            if broken!(IndexBeforeUploads) { Ok(()) } else { self.uploads.wait() }
        };
        let index_first = broken!(IndexBeforePacks);
        if index_first {
            // What it names by then is a part; the rest follows.
            self.uploads.save_index()?;
            snapshot = Some(save()?);
        }
        close()?;
        self.uploads.save_index()?;
        match snapshot {
            Some(early) => Ok(early),
            None => save(),
        }
    }
}

/// What became of a blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Added {
    /// Its ID.
    pub id: Id,
    /// Whether it was not there before.
    pub is_new: bool,
}

impl Packer<'_, '_> {
    /// Adds a blob, unless the repository has it.
    pub fn add(&mut self, kind: BlobKind, contents: &[u8]) -> Result<Added> {
        let id = Id::of(contents);
        let session = self.session;
        if session.known.find(kind, id).is_some() {
            return Ok(Added { id, is_new: false });
        }
        if !session.taken.lock().expect("nobody panics with it").insert((kind, id)) {
            return Ok(Added { id, is_new: false });
        }
        let inner = &session.repository.inner;
        let compressed = match inner.compresses() {
            true => Some(self.compressor.compress(contents).map_err(|error| Error::io("compress", error))?),
            false => None,
        };
        match compressed.filter(|compressed| compressed.len() < contents.len()) {
            Some(compressed) => {
                let len_bytes = u32::try_from(contents.len())
                    .map_err(|_| Error::unsupported("a blob of more than 4 GiB"))?;
                self.filling.push(&inner.key, (id, kind), &compressed, Some(len_bytes))?;
            }
            None => self.filling.push(&inner.key, (id, kind), contents, None)?,
        }
        if self.filling.len_bytes() >= PACK_BYTES {
            session.uploads.put(std::mem::take(&mut self.filling))?;
        }
        Ok(Added { id, is_new: true })
    }
}
