//! Where a repository's files lie: a trait that a folder implements, and memory for tests.
//!
//! Invariant: what [`Storage::create`] made is there as a whole, or not at all, whatever happens; when it returns, it is for good.

use std::fmt;
use std::sync::Mutex;

use block::{Error, Result};

/// The longest file that is read as a whole: an index or a snapshot. restic begins a new index after some ten megabytes.
pub const WHOLE_BYTES_MAX: u64 = 1 << 30;

/// The cause of an error: whoever holds the repository does not let this user do it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied(pub String);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Denied {}

/// The kinds of files in a repository.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// The one configuration, whose name is empty.
    Config,
    /// A master key, sealed by a password.
    Key,
    /// Who uses the repository.
    Lock,
    /// A snapshot.
    Snapshot,
    /// What lies in which pack.
    Index,
    /// Blobs.
    Pack,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [Self::Config, Self::Key, Self::Lock, Self::Snapshot, Self::Index, Self::Pack];

    /// The folder that restic has them in; `None` for the configuration, which is the file `config` beside the folders.
    pub fn folder(self) -> Option<&'static str> {
        match self {
            Self::Config => None,
            Self::Key => Some("keys"),
            Self::Lock => Some("locks"),
            Self::Snapshot => Some("snapshots"),
            Self::Index => Some("index"),
            Self::Pack => Some("data"),
        }
    }

    /// For messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Config => "configuration",
            Self::Key => "key",
            Self::Lock => "lock",
            Self::Snapshot => "snapshot",
            Self::Index => "index",
            Self::Pack => "pack",
        }
    }
}

/// A place that holds the files of a repository. Callable from any thread.
pub trait Storage: Send + Sync {
    /// Its name for messages.
    fn place(&self) -> String;

    /// Makes what a new repository needs before its first file.
    fn prepare(&self) -> Result<()>;

    /// The names of all files of a kind, in any order. Nothing if there is no repository.
    fn names(&self, kind: Kind) -> Result<Vec<String>>;

    /// A whole file. [`Error::io_source`] is of the kind `NotFound` if there is none.
    fn read(&self, kind: Kind, name: &str) -> Result<Vec<u8>>;

    /// `len` bytes of a file from `offset` on. An error if it ends before.
    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Result<Vec<u8>>;

    /// Makes a file. It has its name, for good, when this returns. A file of that name that is there already has the same contents.
    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Result<()>;

    /// Removes a file; one that is not there is no error.
    fn remove(&self, kind: Kind, name: &str) -> Result<()>;

    /// How many files may be written at the same time, by threads of their own; 0 where who makes a file had better write it at once.
    fn connection_count(&self) -> usize {
        0
    }

    /// Removes what a process that was killed left behind half-written.
    fn clear_partial(&self) -> Result<()> {
        Ok(())
    }
}

/// A change of a [`Memory`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A file was made.
    Created(Kind, String, Vec<u8>),
    /// A file was removed.
    Removed(Kind, String),
}

/// A repository in memory, which remembers every change in its order, so that it can be looked at as it was after each of them.
#[derive(Default, Debug)]
pub struct Memory {
    changes: Mutex<Vec<Change>>,
    /// From which change on every further one fails.
    fails_after: Option<usize>,
}

impl Memory {
    /// As it is after these changes.
    pub fn after(changes: &[Change]) -> Self {
        Self { changes: Mutex::new(changes.to_vec()), fails_after: None }
    }

    /// As it is after these changes, with room for so many more.
    pub fn failing(changes: &[Change], more: usize) -> Self {
        Self { changes: Mutex::new(changes.to_vec()), fails_after: Some(changes.len() + more) }
    }

    /// All changes until now.
    pub fn changes(&self) -> Vec<Change> {
        self.changes.lock().expect("nobody panics with it").clone()
    }

    fn change(&self, change: Change) -> Result<()> {
        let mut changes = self.changes.lock().expect("nobody panics with it");
        if self.fails_after.is_some_and(|count| changes.len() >= count) {
            return Err(Error::io("write", std::io::ErrorKind::StorageFull.into()));
        }
        changes.push(change);
        Ok(())
    }
}

impl Storage for Memory {
    fn place(&self) -> String {
        "memory".into()
    }

    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    fn names(&self, kind: Kind) -> Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        for change in &*self.changes.lock().expect("nobody panics with it") {
            match change {
                Change::Created(of, name, _) if *of == kind && !names.contains(name) => {
                    names.push(name.clone());
                }
                Change::Removed(of, name) if *of == kind => names.retain(|other| other != name),
                Change::Created(..) | Change::Removed(..) => {}
            }
        }
        Ok(names)
    }

    fn read(&self, kind: Kind, name: &str) -> Result<Vec<u8>> {
        let changes = self.changes.lock().expect("nobody panics with it");
        let last = changes.iter().rev().find_map(|change| match change {
            Change::Created(of, other, contents) if *of == kind && other == name => {
                Some(Some(contents.clone()))
            }
            Change::Removed(of, other) if *of == kind && other == name => Some(None),
            Change::Created(..) | Change::Removed(..) => None,
        });
        last.flatten().ok_or_else(|| Error::io("read", std::io::ErrorKind::NotFound.into()))
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let all = self.read(kind, name)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = start.checked_add(len).and_then(|end| all.get(start..end));
        part.map(<[u8]>::to_vec).ok_or_else(|| Error::io("read", std::io::ErrorKind::UnexpectedEof.into()))
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Result<()> {
        self.change(Change::Created(kind, name.to_owned(), contents.to_vec()))
    }

    fn remove(&self, kind: Kind, name: &str) -> Result<()> {
        self.change(Change::Removed(kind, name.to_owned()))
    }
}
