//! Snapshots, and the trees that they name, as JSON. What is not needed of others' is left out.

use block::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::Id;
use crate::lock;
use crate::time;

/// A snapshot.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Snapshot {
    /// When it was begun, as RFC 3339.
    pub time: String,
    /// The snapshot before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Id>,
    /// Its root.
    pub tree: Id,
    /// What was backed up.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Of which host.
    #[serde(default)]
    pub hostname: String,
    /// By whom.
    #[serde(default)]
    pub username: String,
    /// Whose process it was.
    #[serde(default)]
    pub uid: u32,
    /// Its group.
    #[serde(default)]
    pub gid: u32,
    /// What the user calls it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_version: Option<String>,
}

impl Snapshot {
    /// One of this moment, by this process.
    pub fn now(tree: Id) -> Self {
        Self {
            time: time::now(),
            parent: None,
            tree,
            paths: Vec::new(),
            hostname: lock::host_name(),
            username: lock::user_name(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            tags: Vec::new(),
            program_version: Some(format!("leandisk {}", env!("CARGO_PKG_VERSION"))),
        }
    }

    /// For putting them in order: nanoseconds since 1970.
    pub fn nanoseconds(&self) -> i128 {
        time::parse(&self.time).unwrap_or(0)
    }
}

/// A directory.
#[derive(Clone, Default, Serialize, Deserialize, Debug)]
pub struct Tree {
    /// Its entries, by name.
    pub nodes: Vec<Node>,
}

/// An entry of a directory.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Node {
    /// Its name: of restic's own backups with escapes as in Go.
    pub name: String,
    /// `file`, `dir` and others.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    mode: u32,
    #[serde(default)]
    mtime: String,
    #[serde(default)]
    atime: String,
    #[serde(default)]
    ctime: String,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
    /// Length of a file.
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    links: u64,
    /// The blobs of a file, in order.
    #[serde(default)]
    pub content: Option<Vec<Id>>,
    /// The tree of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtree: Option<Id>,
}

impl Node {
    /// A regular file of this moment, for its owner alone.
    pub fn file(name: String, size: u64, content: Vec<Id>) -> Self {
        let now = time::now();
        Self {
            name,
            kind: "file".into(),
            mode: 0o600,
            mtime: now.clone(),
            atime: now.clone(),
            ctime: now,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            size,
            links: 1,
            content: Some(content),
            subtree: None,
        }
    }

    /// A folder of this moment, for its owner alone.
    pub(crate) fn folder(name: String, tree: Id) -> Self {
        // As Go has it: the highest bit says that it is a folder.
        let (kind, mode) = ("dir".into(), 1 << 31 | 0o700);
        Self { kind, mode, links: 0, content: None, subtree: Some(tree), ..Self::file(name, 0, Vec::new()) }
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == "file"
    }
}

impl Tree {
    /// As it is stored. Entries get their order.
    pub fn to_bytes(mut self) -> Result<Vec<u8>> {
        self.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut bytes =
            serde_json::to_vec(&self).map_err(|error| Error::invalid(format!("a tree as JSON: {error}")))?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}
