//! What a target in a folder shall be, and what it finds there.

use serde::{Deserialize, Serialize};

use crate::StoragePromise;

/// What a target in a folder shall be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FolderOptions {
    /// Whether a file that has the name is replaced.
    pub replace: bool,
    /// The permissions of what is copied: the target has no others. The process's umask takes its part from a new file's; a file
    /// that replaces another has none that that one had not.
    pub mode: u32,
    /// What is promised of the target's storage: marked on it where its file system keeps marks.
    pub kept: StoragePromise,
    /// Whether what is aligned is written past the page cache.
    pub direct: bool,
}

/// What a folder's file system has free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetSpace {
    /// Bytes that this user can write.
    pub free_bytes: u64,
}

/// Whether a target can share storage with a source, so that what is copied need be neither read nor written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cloning {
    /// In whole blocks.
    Blocks {
        /// How many bytes each has: a power of two, 1 MiB at the most.
        block_bytes: u64,
    },
    /// It cannot.
    Impossible {
        /// Why, in words that stand by themselves.
        why: String,
    },
}

impl Cloning {
    /// It cannot.
    pub fn no(why: &str) -> Self {
        Self::Impossible { why: why.to_owned() }
    }
}
