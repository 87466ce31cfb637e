//! The machine that a change in place, or a copy, works on: its files by their names, the journals of its disks, and where a copy goes.
//!
//! [`ThisHost`] is the machine that the program runs on. What explores power cuts has one that loses power, so that the very order in
//! which a use case checks, writes and removes is explored, and not a copy of it.
//!
//! Absent on purpose: sockets, but for those of exports, which are files here.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::remote::{self, is_address};
use block::{Error, HostFile, ReadAt, Result, TargetFile, TargetFolder, TargetName};
use extent::Virtual;
use image::{EditTarget, Purpose, Resolver};
use journal::{Claim, DiskName, Header, Names, Standing};
use os::{
    Cloning, DeviceTarget, FolderOptions, Granted, HostFolder, LiveFile, OutputStream, SourceFile,
    StoragePromise, TargetSpace,
};

/// How bulk data is read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Past the page cache, where the file system can do that.
    Direct,
    /// Through it.
    PageCache,
    /// Through it, and no more than is asked for.
    Metadata,
}

/// A file that nobody else can change, open to be changed.
pub trait HeldFile: EditTarget {
    /// `Unsupported` if its file system cannot give storage back.
    fn check_gives_back(&self) -> Result<()>;
}

/// The journal of a disk, held by this process alone: as [`journal::JournalFile`].
pub trait HeldJournal {
    /// The file, to be written.
    fn file(&self) -> &dyn TargetFile;

    /// Removes it, for good when this returns.
    fn remove(self: Box<Self>) -> Result<()>;
}

/// What has the name of a disk's journal: as [`journal::FoundFile`].
pub trait FoundJournal {
    /// Its header. `Refused` if it has none.
    fn header(&self) -> Result<Header>;

    /// The journal that it is, and what both are claimed to be. `Refused` if it is none of this disk's.
    fn prove<'a>(
        self: Box<Self>,
        name: DiskName,
        disk: &dyn ReadAt<Virtual>,
    ) -> Result<(Box<dyn HeldJournal + 'a>, Claim)>
    where
        Self: 'a;
}

/// Where the target of a copy is made, under the names that it has until it is whole: as [`os::HostFolder`].
pub trait CopyFolder: TargetFolder {
    /// Where the file of that name lies.
    fn path(&self, name: TargetName) -> PathBuf;

    /// Fails as the making of a file of this length would, and answers what is free. No name changes.
    fn check_room(&self, len_bytes: u64) -> Result<TargetSpace>;

    /// Whether the target could share storage with `source`. No name changes.
    fn check_cloning(&self, source: &dyn HostFile) -> Result<Cloning>;
}

/// What a name stands for, whatever links lead there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// Nothing that can be looked at.
    Nothing,
    /// A file.
    File,
    /// A block device.
    BlockDevice,
    /// An export of a server: an address in place of a path.
    Export,
    /// `-`: standard output.
    Stream,
    /// Something else.
    Other,
}

impl Named {
    /// Whether a copy is written over what is there, which has its size already.
    pub fn is_written_over(self) -> bool {
        matches!(self, Self::BlockDevice | Self::Export)
    }
}

/// Files by their names.
pub trait Machine: Send + Sync {
    /// How many threads copy and compare at once.
    fn thread_count(&self) -> usize {
        4
    }

    /// The most time between the checkpoints of a copy: far enough apart to cost nothing, near enough to lose little.
    fn checkpoint_interval(&self) -> Duration {
        Duration::from_secs(15)
    }

    /// What the name stands for.
    fn named(&self, path: &Path) -> Named;

    /// What the file or block device at `path` lies on, itself first, each as [`HostFile::identity`] answers; nothing if there is none.
    fn storage_of(&self, path: &Path) -> Result<Vec<(u64, u64)>>;

    /// The permissions that a copy of what is at `path` may have.
    fn copied_mode(&self, path: &Path) -> u32;

    /// Where a copy to `path` is made. `Refused` if that exists and may not be replaced, or is no file. No name changes.
    fn copy_folder(&self, path: &Path, options: FolderOptions) -> Result<Box<dyn CopyFolder + '_>>;

    /// Makes a folder for targets unless it is there: whether it was made.
    fn make_folder(&self, path: &Path) -> Result<bool> {
        Err(Error::unsupported("making a folder").path(path.display()))
    }

    /// Removes that folder again, if nothing is in it.
    fn remove_folder(&self, _path: &Path) {}

    /// A block device that a copy is written to, for nobody else; or the export at an address.
    fn copy_device(&self, path: &Path) -> Result<Box<dyn TargetFile>>;

    /// Standard output, of which nothing was written yet.
    fn output(&self) -> Result<OutputStream>;

    /// What is promised of the storage of the file at `path`.
    fn kept(&self, path: &Path) -> StoragePromise;

    /// Whether the name stands for anything.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Bytes that are free on the file system that holds the file.
    fn free_bytes(&self, path: &Path) -> Result<u64>;

    /// Opens a file for reading, or connects to the export at an address.
    fn open(&self, path: &Path, caching: Caching) -> Result<Arc<dyn HostFile>>;

    /// Opens a file to be changed. `Refused` if another process has it.
    fn hold(&self, path: &Path) -> Result<Arc<dyn HeldFile>>;

    /// What opens the files that the disk at `path` refers to, as far as that is granted.
    fn resolver(&self, path: &Path, allow_path: &[PathBuf]) -> Result<Box<dyn Resolver>>;

    /// Where the journal of the disk at `path` lies, if not elsewhere.
    fn journal_path(&self, path: &Path) -> PathBuf;

    /// What a journal knows the disk at `path` by.
    fn disk_name(&self, path: &Path) -> Result<DiskName>;

    /// What has the name of the journal of the disk at `path`.
    fn journal_standing(&self, path: &Path) -> Standing;

    /// `Refused` if [`Self::create_journal`] would refuse. Changes nothing.
    fn check_journal_place(&self, path: &Path, stated: Option<&Path>) -> Result<()>;

    /// Makes the journal of the disk at `path`. It is there, with its header and its name, when this returns.
    fn create_journal(
        &self,
        path: &Path,
        stated: Option<&Path>,
        header: Header,
    ) -> Result<Box<dyn HeldJournal + '_>>;

    /// What is where that journal would be; `None` if there is nothing.
    fn find_journal(&self, path: &Path, stated: Option<&Path>) -> Result<Option<Box<dyn FoundJournal + '_>>>;
}

/// The machine that this program runs on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ThisHost;

impl Machine for ThisHost {
    fn named(&self, path: &Path) -> Named {
        if is_address(path) {
            return Named::Export;
        }
        if path.as_os_str() == "-" {
            return Named::Stream;
        }
        match path.metadata().map(|metadata| metadata.file_type()) {
            Err(_) => Named::Nothing,
            Ok(kind) if kind.is_file() => Named::File,
            Ok(kind) if kind.is_block_device() => Named::BlockDevice,
            Ok(_) => Named::Other,
        }
    }

    fn storage_of(&self, path: &Path) -> Result<Vec<(u64, u64)>> {
        os::storage_of(path)
    }

    fn copied_mode(&self, path: &Path) -> u32 {
        os::copied_mode(path)
    }

    fn copy_folder(&self, path: &Path, options: FolderOptions) -> Result<Box<dyn CopyFolder + '_>> {
        Ok(Box::new(HostFolder::new(path, options)?))
    }

    fn make_folder(&self, path: &Path) -> Result<bool> {
        os::make_folder(path)
    }

    fn remove_folder(&self, path: &Path) {
        os::remove_folder(path);
    }

    fn copy_device(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        if is_address(path) {
            return Ok(Box::new(remote::open_target(path)?));
        }
        Ok(Box::new(DeviceTarget::open_direct(path)?))
    }

    fn output(&self) -> Result<OutputStream> {
        OutputStream::standard()
    }

    fn kept(&self, path: &Path) -> StoragePromise {
        os::kept(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists().map_err(|error| Error::io("look for", error).path(path.display()))
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        os::free_bytes(path)
    }

    fn open(&self, path: &Path, caching: Caching) -> Result<Arc<dyn HostFile>> {
        if is_address(path) {
            return Ok(Arc::new(remote::open(path)?));
        }
        Ok(match caching {
            Caching::Direct => SourceFile::open_direct(path)?,
            Caching::PageCache => SourceFile::open(path)?,
            Caching::Metadata => SourceFile::open_for_metadata(path)?,
        })
    }

    fn hold(&self, path: &Path) -> Result<Arc<dyn HeldFile>> {
        Ok(Arc::new(LiveFile::open(path)?))
    }

    fn resolver(&self, path: &Path, allow_path: &[PathBuf]) -> Result<Box<dyn Resolver>> {
        if is_address(path) {
            return Ok(Box::new(remote::Nowhere));
        }
        Ok(Box::new(Gate { granted: Granted::new(path, allow_path)? }))
    }

    fn journal_path(&self, path: &Path) -> PathBuf {
        os::journal_path(path)
    }

    fn disk_name(&self, path: &Path) -> Result<DiskName> {
        os::disk_name(path)
    }

    fn journal_standing(&self, path: &Path) -> Standing {
        os::journal_standing(path)
    }

    fn check_journal_place(&self, path: &Path, stated: Option<&Path>) -> Result<()> {
        os::check_journal_place(path, stated)
    }

    fn create_journal(
        &self,
        path: &Path,
        stated: Option<&Path>,
        header: Header,
    ) -> Result<Box<dyn HeldJournal + '_>> {
        Ok(Box::new(os::create_journal(path, stated, header)?))
    }

    fn find_journal(&self, path: &Path, stated: Option<&Path>) -> Result<Option<Box<dyn FoundJournal + '_>>> {
        let found = os::find_journal(path, stated)?;
        Ok(found.map(|found| Box::new(found) as Box<dyn FoundJournal>))
    }
}

impl CopyFolder for HostFolder {
    fn path(&self, name: TargetName) -> PathBuf {
        self.path(name)
    }

    fn check_room(&self, len_bytes: u64) -> Result<TargetSpace> {
        self.check_room(len_bytes)
    }

    fn check_cloning(&self, source: &dyn HostFile) -> Result<Cloning> {
        self.check_cloning(source)
    }
}

impl HeldFile for LiveFile {
    fn check_gives_back(&self) -> Result<()> {
        Self::check_gives_back(self)
    }
}

impl<N: Names> HeldJournal for journal::JournalFile<N> {
    fn file(&self) -> &dyn TargetFile {
        self.file()
    }

    fn remove(self: Box<Self>) -> Result<()> {
        (*self).remove()
    }
}

impl<N: Names> FoundJournal for journal::FoundFile<N> {
    fn header(&self) -> Result<Header> {
        self.header()
    }

    fn prove<'a>(
        self: Box<Self>,
        name: DiskName,
        disk: &dyn ReadAt<Virtual>,
    ) -> Result<(Box<dyn HeldJournal + 'a>, Claim)>
    where
        Self: 'a,
    {
        let (journal, claim) = (*self).prove(name, disk)?;
        Ok((Box::new(journal), claim))
    }
}

/// An image's references go through what the user granted.
struct Gate {
    granted: Granted,
}

impl Resolver for Gate {
    fn open(&self, from: &dyn HostFile, name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        Ok(self.granted.open(from.path(), name)?)
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<OsString>> {
        let folder = from.path().parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        os::names_in(folder)
    }

    fn open_sibling(&self, from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        Ok(self.granted.open_beside(from.path(), name)?)
    }
}
