//! What extraction asks of a host.

use std::io;

use crate::kept::{Kept, SpecialFile};

/// What tells a file from every other one: its device, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId {
    /// The device of its file system.
    pub device: u64,
    /// Its number in the file system.
    pub inode: u64,
}

/// What kind of file something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One with contents.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A device, a pipe or a socket.
    Special,
}

/// What a name stands for, or what is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which file.
    pub id: FileId,
    /// Of which kind.
    pub kind: Kind,
    /// How many names it has.
    pub link_count: u64,
}

/// Whether a name that stands for a symbolic link is taken for what that leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// It is, as with the path that a user gives.
    Followed,
    /// It is not: a link is no folder.
    Refused,
}

/// A host's folders, and the files in them. Each operation is of one name in one open folder, and follows no link unless told to.
///
/// What a name stands for, and what is in a file, is on stable storage once [`Self::flush_all`] returned; before that a power cut may
/// leave any of what it was since, but for the contents of files that were flushed by themselves.
///
/// Errors are the host's own; those that are told apart here have the kinds `AlreadyExists`, `NotFound`, `NotADirectory` and
/// `Unsupported`.
pub trait Folders {
    /// An open file or folder, or what is only pointed at: it stays the same file whatever becomes of its names.
    type Open;

    /// A number that no other process has which extracts at the same time.
    fn process_number(&self) -> u32;

    /// Whether files can be given to other users.
    fn sets_owners(&self) -> bool;

    /// The same open file or folder once more.
    fn again(&self, open: &Self::Open) -> io::Result<Self::Open>;

    /// Makes a folder for this user alone. Without a folder to be in, the name is a path as users give it.
    fn make_folder(&self, folder: Option<&Self::Open>, name: &[u8]) -> io::Result<()>;

    /// Opens a folder; what is none, a link that is not followed among it, is `NotADirectory`.
    fn open_folder(&self, folder: Option<&Self::Open>, name: &[u8], links: Links) -> io::Result<Self::Open>;

    /// Makes an empty file for this user alone, and opens it for reading and writing. `AlreadyExists` if the name stands for anything.
    fn create(&self, folder: &Self::Open, name: &[u8]) -> io::Result<Self::Open>;

    /// Makes a symbolic link. `AlreadyExists` if the name stands for anything.
    fn symlink(&self, folder: &Self::Open, name: &[u8], target: &[u8]) -> io::Result<()>;

    /// Makes a device, a pipe or a socket for this user alone. `AlreadyExists` if the name stands for anything.
    fn special(&self, folder: &Self::Open, name: &[u8], special: SpecialFile) -> io::Result<()>;

    /// Gives what `first` stands for in `from` another name. `AlreadyExists` if that stands for anything.
    fn link(&self, from: &Self::Open, first: &[u8], folder: &Self::Open, name: &[u8]) -> io::Result<()>;

    /// Gives what `from` stands for the name `to` instead. What has that is replaced if `replaces`, or is the reason for `AlreadyExists`;
    /// `Unsupported` where a host cannot rename without replacing.
    fn rename(&self, folder: &Self::Open, from: &[u8], to: &[u8], replaces: bool) -> io::Result<()>;

    /// Removes a name of anything but a folder.
    fn remove(&self, folder: &Self::Open, name: &[u8]) -> io::Result<()>;

    /// What a name stands for, if for anything.
    fn look(&self, folder: &Self::Open, name: &[u8]) -> io::Result<Option<Found>>;

    /// Points at what a name stands for, without opening it: a device is not told.
    fn point_at(&self, folder: &Self::Open, name: &[u8]) -> io::Result<Self::Open>;

    /// What is open, or pointed at.
    fn found(&self, open: &Self::Open) -> io::Result<Found>;

    /// Sets owner and group.
    fn set_owner(&self, open: &Self::Open, uid: u32, gid: u32) -> io::Result<()>;

    /// Sets permissions, 12 bits. Not of links, which have none.
    fn set_mode(&self, open: &Self::Open, mode: u16) -> io::Result<()>;

    /// Sets those times that are kept.
    fn set_times(&self, open: &Self::Open, kept: &Kept) -> io::Result<()>;

    /// Sets an extended attribute of a file or folder.
    fn set_attribute(&self, open: &Self::Open, name: &[u8], value: &[u8]) -> io::Result<()>;

    /// Whether [`Self::flush_all`] may return though contents of a file in this folder were lost or are not stored: then each file is
    /// flushed by itself.
    fn flushes_each(&self, folder: &Self::Open) -> bool;

    /// Returns when a file's contents, and what is kept of it, are on stable storage.
    fn flush(&self, file: &Self::Open) -> io::Result<()>;

    /// Returns when everything in the folder's file system is on stable storage. Fails if something written since the folder was opened
    /// was lost.
    fn flush_all(&self, folder: &Self::Open) -> io::Result<()>;
}
