//! What the guard knows of a file, and why it leaves one alone.

/// Milliseconds of any clock that does not go back.
pub type Millis = u64;

/// The longest file handle there is (`MAX_HANDLE_SZ`), and its type before it.
const ID_BYTES_MAX: usize = 128 + 4;

/// What tells a file from all others that its file system has or had: its handle, in which inode and generation are. A file
/// that takes the place of one that was removed has another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(Box<[u8]>);

impl FileId {
    /// The file with this handle; `None` if none is so long, or it is empty.
    pub fn new(handle: &[u8]) -> Option<Self> {
        (1..=ID_BYTES_MAX).contains(&handle.len()).then(|| Self(handle.into()))
    }

    /// The handle.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A time of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stamp {
    /// Since 1970.
    pub seconds: i64,
    /// Of the second that has begun.
    pub nanoseconds: u32,
}

/// A file as it is at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Where it ends.
    pub size_bytes: u64,
    /// The storage that it has.
    pub allocated_bytes: u64,
    /// When its contents were last changed.
    pub modified: Stamp,
}

/// Why a file is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is no regular file, or has no name any more.
    NoFile,
    /// It has set-id bits or file capabilities, which reserving would strip.
    SetId,
    /// It is a program that may be run: while it is open for writing here, it cannot be.
    Executable,
    /// It is immutable, append-only, encrypted, compressed, verified by the file system, or lies in the real-time section.
    Attributes,
    /// It is swap space.
    Swap,
    /// It has storage past its end, which somebody else reserved, or holes within.
    OwnLayout,
    /// It shares extents with another file or a snapshot.
    Shared,
}

/// The room of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Bytes that ordinary users may still take.
    pub free_bytes: u64,
    /// Bytes that there are at all.
    pub all_bytes: u64,
    /// Of what is free, what the file system has not decided yet to use for files or for its own tables (Btrfs: what no block group has).
    /// Room that is reserved makes it room for files for good, and without a rest tables cannot grow: then programs are refused though much
    /// is free.
    pub undecided_bytes: u64,
    /// Snapshots are made here: what is reserved while one is made stays until that is deleted.
    pub is_snapshotted: bool,
}
