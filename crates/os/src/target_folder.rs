//! The host's folder in which a copy's target is made, under the names of [`TargetNames`].
//!
//! A partial target is told from others by its inode's number, by when it was made, and by a random mark beside its contents (an
//! extended attribute). A file system that keeps no such marks leaves the former two; that these are not enough matters only
//! where the order of `engine`'s transfer is not kept.
//!
//! In a process that is confined the broker does what goes by names, and what makes a file whole. Contents are written here.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use block::{Error, FolderFile, HostFile, ReadAt, Result, TargetFile, TargetFolder, TargetName};
use extent::Host;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::LiveFile;
use crate::direct::Direct;
use crate::new_file::{NewFile, Place};
use crate::raw_file::RawFile;
use crate::requests::{Client, OfTarget, Request, client};
use crate::target_names::{MARK, MARK_LEN, TargetNames};
use crate::target_options::{Cloning, FolderOptions, TargetSpace};

/// A folder with the names of one target.
pub struct HostFolder {
    names: TargetNames,
    /// Who changes the names, if this process cannot.
    broker: Option<&'static Client>,
}

impl HostFolder {
    /// The folder of `target`. A link is followed: what it points to is replaced, not the link.
    ///
    /// `Refused` if the target exists and may not be replaced, or is no regular file.
    pub fn new(target: &Path, options: FolderOptions) -> Result<Self> {
        let broker = client();
        let names = match broker {
            None => TargetNames::find(target, options)?,
            Some(broker) => {
                let told = broker.ask(&of(OfTarget::Begin { path: target.into(), options }))?;
                TargetNames { place: Place::from_told(told, options.replace), options }
            }
        };
        Ok(Self { names, broker })
    }

    /// Where the file of that name lies.
    pub fn path(&self, name: TargetName) -> PathBuf {
        self.names.path(name)
    }

    /// Fails as the making of a file of this length would, and answers what is free. No name changes.
    pub fn check_room(&self, len_bytes: u64) -> Result<TargetSpace> {
        match self.broker {
            None => self.names.check_room(len_bytes),
            Some(broker) => broker.ask(&of(OfTarget::Room(len_bytes))),
        }
    }

    /// Whether the target could share storage with `source`: tried with a file that has no name, so that no name changes. What of the
    /// file system's metadata that changes is as before once this returns.
    pub fn check_cloning(&self, source: &dyn HostFile) -> Result<Cloning> {
        match (source.descriptor(), self.broker) {
            (None, _) => Ok(Cloning::no("the source is no open file of this host")),
            (Some(source), None) => self.names.check_cloning(source),
            (Some(source), Some(broker)) => broker.ask_about(&of(OfTarget::Cloning), source),
        }
    }

    /// Gives a target that is in use the permissions of a whole one, and the mark of its storage. For a process that is not confined.
    pub fn complete(&self, file: &LiveFile) -> Result<()> {
        self.names.complete(file.std_file())?;
        TargetFile::flush(file)
    }

    fn held(&self, raw: RawFile) -> Box<dyn FolderFile + '_> {
        let path = raw.path.clone();
        let mut file = NewFile::staying(raw, &path);
        if self.names.options.direct {
            file.raw.direct = Direct::open(&file.raw.file, OFlags::RDWR);
        }
        Box::new(HeldFile { file, folder: self })
    }
}

fn of(request: OfTarget) -> Request {
    Request::OfTarget(request)
}

impl TargetFolder for HostFolder {
    fn open(&self, name: TargetName) -> Result<Option<Box<dyn FolderFile + '_>>> {
        let raw = match self.broker {
            None => self.names.open(name)?,
            Some(broker) => {
                let found = broker.find(&of(OfTarget::Open(name)))?;
                found.map(|fd| RawFile::adopt(fd, &self.path(name))).transpose()?
            }
        };
        Ok(raw.map(|raw| self.held(raw)))
    }

    fn create(&self, name: TargetName) -> Result<Box<dyn FolderFile + '_>> {
        let raw = match self.broker {
            None => self.names.create(name)?,
            Some(broker) => {
                let ((), fd) = broker.open(&of(OfTarget::Create(name)))?;
                RawFile::adopt(fd, &self.path(name))?
            }
        };
        Ok(self.held(raw))
    }

    fn remove(&self, name: TargetName) -> Result<bool> {
        match self.broker {
            None => self.names.remove(name),
            Some(broker) => broker.ask(&of(OfTarget::Remove(name))),
        }
    }

    fn rename(&self, from: TargetName, to: TargetName) -> Result<()> {
        match self.broker {
            None => self.names.rename(from, to),
            Some(broker) => broker.ask(&of(OfTarget::Rename { from, to })),
        }
    }

    fn sync(&self) -> Result<()> {
        match self.broker {
            None => self.names.sync(),
            Some(broker) => broker.ask(&of(OfTarget::Sync)),
        }
    }
}

/// A file with one of the names, held by its lock.
struct HeldFile<'a> {
    file: NewFile,
    folder: &'a HostFolder,
}

impl HeldFile<'_> {
    fn failed(&self, what: &str, error: Errno) -> Error {
        Error::io(what, error.into()).path(&self.file.raw.name)
    }
}

impl ReadAt<Host> for HeldFile<'_> {
    block::forward!(self, self.file => len_bytes, read_at);
}

impl TargetFile for HeldFile<'_> {
    block::forward!(self, self.file => write_at, set_len, reserve, reserve_ahead, prepare_memory, zero, flush, clone_range, forget);
}

impl FolderFile for HeldFile<'_> {
    fn identity(&self) -> Result<Option<String>> {
        let file = &self.file.raw.file;
        let stat = self.file.raw.stat()?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Ok(None);
        }
        let mut mark = [0; MARK_LEN];
        // Without a mark it is zeros, which no mark is.
        let _ = rustix::fs::fgetxattr(file, MARK, &mut mark[..]);
        let born = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
            .ok()
            .filter(|statx| statx.stx_mask & StatxFlags::BTIME.bits() != 0)
            .map_or((0, 0), |statx| (statx.stx_btime.tv_sec, statx.stx_btime.tv_nsec));
        let mark = u128::from_le_bytes(mark);
        Ok(Some(format!("inode {} born {}.{:09} mark {mark:032x}", stat.st_ino, born.0, born.1)))
    }

    fn flush_all(&self) -> Result<()> {
        rustix::fs::fsync(&self.file.raw.file).map_err(|error| self.failed("flush", error))
    }

    fn complete(&self) -> Result<()> {
        let file = &self.file.raw.file;
        match self.folder.broker {
            None => self.folder.names.complete(file)?,
            Some(broker) => broker.ask_about(&of(OfTarget::Complete), file.as_fd())?,
        }
        self.flush_all()
    }
}
