//! What is kept of a file that is extracted, and of what a broker is told which file it is.

use serde::{Deserialize, Serialize};

/// Names from the folder on: of folders, and of what is meant in the last one.
pub type Names = Vec<Vec<u8>>;

/// What is kept of a file beside its contents, as far as its file system had it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// Permissions, 12 bits.
    pub mode: Option<u16>,
    /// Owner and group: set by root alone.
    pub owner: Option<(u32, u32)>,
    /// When its contents changed: seconds since 1970, and nanoseconds.
    pub modified: Option<(i64, u32)>,
    /// When it was read.
    pub accessed: Option<(i64, u32)>,
}

/// A file without contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SpecialFile {
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device, by its numbers.
    Character(u32, u32),
    /// A block device, by its numbers.
    Block(u32, u32),
}

/// Of which file an attribute is set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Of {
    /// Of a new file that has no name of its own yet.
    New(usize),
    /// Of a folder.
    Folder(Names),
}
