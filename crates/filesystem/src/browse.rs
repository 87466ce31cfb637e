//! Files by their directories: what an `ls` or a `cat` of a mount would show, without a mount.
//!
//! A [`Browse`] reads the directory, the file or the attribute that it is asked for and nothing else, so that a folder of a large volume
//! is listed at once. Also of volumes in doubt, as far as their structures hold: nothing is left out or moved by what this finds.
//!
//! Absent on purpose: paths, links that are followed, and what becomes of names that no host could have.

use block::{Error, ReadAt, Result};
use extent::{File, FileOffset, Span};

use crate::files::{FileId, StreamName};

/// The longest target of a symbolic link that is read: no system has longer ones.
pub(crate) const TARGET_BYTES_MAX: u64 = 64 << 10;
/// The longest value of an extended attribute that is read (`XATTR_SIZE_MAX`).
pub(crate) const VALUE_BYTES_MAX: u64 = 64 << 10;

/// What is in a file, as its guest reads it.
pub trait Contents: ReadAt<File> {
    /// The first stretch that ends behind `at` and may hold anything but zeros, without what of it lies before `at`. `None` if all that
    /// follows reads as zeros.
    fn next_data(&self, at: FileOffset) -> Result<Option<Span<File>>>;
}

/// A moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Time {
    /// Since 1970, in UTC; of FAT, which knows no zones, since then by the guest's clock.
    pub seconds: i64,
    /// Of the second.
    pub nanoseconds: u32,
}

/// What is no file with contents, no directory and no link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device.
    Character {
        /// Its driver.
        major: u32,
        /// Which of the driver's.
        minor: u32,
    },
    /// A block device.
    Block {
        /// Its driver.
        major: u32,
        /// Which of the driver's.
        minor: u32,
    },
    /// Something else, such as a door that no other system has.
    Other,
}

/// What a file is to who lists its directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A file with contents.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, or what stands for another place as such.
    Link,
    /// Anything else.
    Special(Special),
}

/// What Unix keeps of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unix {
    /// Permissions, with the bits of set-user-ID, set-group-ID and sticky: 12 bits.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Another stream of a file than the one that reading it gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedStream {
    /// Untrusted bytes, as [`FileName::name`](crate::FileName::name).
    pub name: Vec<u8>,
    /// How long it is.
    pub size_bytes: u64,
}

/// A file, as its inode or its record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number.
    pub file: FileId,
    /// What it is.
    pub kind: NodeKind,
    /// How long its contents are; 0 of what has none.
    pub size_bytes: u64,
    /// What Unix keeps of it; `None` where the file system keeps nothing of that.
    pub unix: Option<Unix>,
    /// When its contents changed.
    pub modified: Option<Time>,
    /// When it was read.
    pub accessed: Option<Time>,
    /// How many names it has.
    pub link_count: u64,
    /// Its other streams.
    pub streams: Vec<NamedStream>,
    /// Why its contents are not to be had, if they are not: they are encrypted, or are kept elsewhere.
    pub sealed: Option<&'static str>,
}

impl Node {
    /// One with nothing but a kind and a size.
    pub(crate) fn new(file: FileId, kind: NodeKind, size_bytes: u64) -> Self {
        Self {
            file,
            kind,
            size_bytes,
            unix: None,
            modified: None,
            accessed: None,
            link_count: 1,
            streams: Vec::new(),
            sealed: None,
        }
    }
}

/// Where a link leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// As its guest would show it. Untrusted bytes.
    pub text: Vec<u8>,
    /// The same as a path with slashes, from the link's directory or, with a slash in front, from the root of the volume. `None` if it
    /// names another volume, or may.
    pub path: Option<Vec<u8>>,
}

impl Target {
    /// As Unix has it.
    pub(crate) fn of_unix(text: Vec<u8>) -> Self {
        Self { path: Some(text.clone()), text }
    }
}

/// An extended attribute as Linux names it (`user.mime_type`), with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// With its namespace in front. Untrusted bytes without a NUL.
    pub name: Vec<u8>,
    /// Access-control lists of POSIX are as Linux gives them out.
    pub value: Vec<u8>,
}

/// Takes the name of an entry of a directory, and of which file it is.
pub type EachEntry<'a> = dyn FnMut(&[u8], FileId) -> Result<()> + 'a;

/// A file system whose directories, files and attributes are read one by one.
pub trait Browse: Send + Sync {
    /// The root directory.
    fn root(&self) -> FileId;

    /// What a file is.
    fn node(&self, file: FileId) -> Result<Node>;

    /// Calls `each` with the entries of a directory, but for the directory itself, its parent, and what the file system keeps for
    /// itself. What it can read of a broken directory comes before the error.
    fn each_entry(&self, directory: FileId, each: &mut EachEntry<'_>) -> Result<()>;

    /// The file of a name in a directory; also such that [`Self::each_entry`] leaves out. Upper and lower case differ, but where the file
    /// system takes them for the same no name is spelt so.
    fn find(&self, directory: FileId, name: &[u8]) -> Result<Option<FileId>> {
        find_exactly(self, directory, name)
    }

    /// Where a link leads.
    fn target(&self, file: FileId) -> Result<Target>;

    /// The extended attributes of a file.
    fn attributes(&self, _file: FileId) -> Result<Vec<Attribute>> {
        Ok(Vec::new())
    }

    /// A stream of a file, to be read. `Unsupported` if the bytes that are there are not what the guest reads, and cannot be made that:
    /// encrypted, kept elsewhere.
    fn open(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>>;
}

/// The first entry of this very name.
pub(crate) fn find_exactly<B: Browse + ?Sized>(
    browse: &B,
    directory: FileId,
    name: &[u8],
) -> Result<Option<FileId>> {
    let mut found = None;
    let listed = browse.each_entry(directory, &mut |entry, file| {
        if found.is_none() && entry == name {
            found = Some(file);
        }
        Ok(())
    });
    // What is found in the part of a broken directory that holds is there.
    if found.is_none() {
        listed?;
    }
    Ok(found)
}

/// The entry of this very name, or else the first that differs in nothing but upper and lower case.
pub(crate) fn find_in_any_case<B: Browse + ?Sized>(
    browse: &B,
    directory: FileId,
    name: &[u8],
) -> Result<Option<FileId>> {
    let folded = |name: &[u8]| std::str::from_utf8(name).ok().map(str::to_uppercase);
    let wanted = folded(name);
    let (mut exact, mut alike) = (None, None);
    let listed = browse.each_entry(directory, &mut |entry, file| {
        if exact.is_none() && entry == name {
            exact = Some(file);
        }
        if alike.is_none() && wanted.is_some() && folded(entry) == wanted {
            alike = Some(file);
        }
        Ok(())
    });
    let found = exact.or(alike);
    if found.is_none() {
        listed?;
    }
    Ok(found)
}

/// Bytes in memory, and zeros behind them.
pub(crate) struct Inline {
    pub(crate) bytes: Vec<u8>,
    pub(crate) size_bytes: u64,
}

impl ReadAt<File> for Inline {
    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        block::check_bounds(at, buf.len(), self.size_bytes)?;
        let from = usize::try_from(at.get()).unwrap_or(usize::MAX).min(self.bytes.len());
        let there = &self.bytes[from..];
        let len = there.len().min(buf.len());
        buf[..len].copy_from_slice(&there[..len]);
        buf[len..].fill(0);
        Ok(())
    }
}

impl Contents for Inline {
    fn next_data(&self, at: FileOffset) -> Result<Option<Span<File>>> {
        let end = self.size_bytes.min(self.bytes.len() as u64);
        Ok((at.get() < end).then(|| Span::between(at, FileOffset::new(end))))
    }
}

/// All of a short stream, of `len_max` bytes at most.
pub(crate) fn read_short(contents: &dyn ReadAt<File>, len_max: u64, what: &str) -> Result<Vec<u8>> {
    let len = contents.len_bytes();
    if len > len_max {
        return Err(Error::unsupported(format!("{what} of {len} bytes: more than {len_max}")));
    }
    let mut bytes = vec![0; usize::try_from(len).expect("some kilobytes")];
    contents.read_at(FileOffset::ZERO, &mut bytes)?;
    Ok(bytes)
}
