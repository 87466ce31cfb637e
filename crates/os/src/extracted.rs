//! A folder into which a guest's files are extracted: nothing that a guest's names say leads out of it.
//!
//! Invariants:
//! - each name is checked by itself, and each folder on the way is opened from the one above it, never through a link: so no path leads
//!   beyond the folder, whatever was made in it before, and by whom;
//! - a file has a partial name until all of it is there, and then gets its own; what has that already is replaced only if that is allowed,
//!   and never if this extraction made it;
//! - in a process that is confined the broker does all of that. Contents alone are written here.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use block::{Error, Result};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::kept::{Kept, Names, Of, SpecialFile};
use crate::requests::{Client, OfExtracted, Request, client};

/// The longest name of a file.
const NAME_BYTES_MAX: usize = 255;
/// The longest path below the folder.
const PATH_BYTES_MAX: usize = 8192;
/// The most that a link may say (`PATH_MAX`).
const TARGET_BYTES_MAX: usize = 4095;
/// The most folders above a file.
const DEPTH_MAX: usize = 2048;
/// How often another partial name is tried.
const ATTEMPTS_MAX: u32 = 1000;

/// A folder that files are extracted into.
pub struct ExtractFolder(Inner);

enum Inner {
    Here(Box<Below>),
    Broker(&'static Client),
}

/// A file that is being extracted. It has no name of its own until it is finished.
pub struct ExtractedFile {
    number: usize,
    /// Its contents go here.
    pub file: File,
}

impl ExtractFolder {
    /// The folder at `path`, which is made if only its last name is missing. What is in it is replaced only if `replaces` allows that.
    pub fn begin(path: &Path, replaces: bool) -> Result<Self> {
        match client() {
            None => Ok(Self(Inner::Here(Box::new(Below::begin(path, replaces)?)))),
            Some(broker) => {
                let () = broker.ask(&of(OfExtracted::Begin { path: path.into(), replaces }))?;
                Ok(Self(Inner::Broker(broker)))
            }
        }
    }

    /// Makes a folder, unless there is one. Answers whether it was made.
    pub fn make_folder(&mut self, names: &Names) -> Result<bool> {
        match &mut self.0 {
            Inner::Here(below) => below.make_folder(names),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Folder(sent(names)?))),
        }
    }

    /// Begins a file.
    pub fn create(&mut self, names: &Names) -> Result<ExtractedFile> {
        let (number, file) = match &mut self.0 {
            Inner::Here(below) => below.create(names)?,
            Inner::Broker(broker) => broker.open(&of(OfExtracted::Create(sent(names)?)))?,
        };
        Ok(ExtractedFile { number, file: file.into() })
    }

    /// Sets an extended attribute. Answers why that cannot be done here, if so.
    pub fn set_attribute(&mut self, of_what: Of, name: &[u8], value: &[u8]) -> Result<Option<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.set_attribute(&of_what, name, value),
            Inner::Broker(broker) => {
                let value = value.iter().map(|byte| format!("{byte:02x}")).collect();
                broker.ask(&of(OfExtracted::Attribute { of: of_what, name: name.to_vec(), value }))
            }
        }
    }

    /// Of a file that was begun.
    pub fn new_of(file: &ExtractedFile) -> Of {
        Of::New(file.number)
    }

    /// Gives a file what is kept of it, and its name. Answers what cannot be kept here.
    pub fn finish(&mut self, file: ExtractedFile, kept: Kept) -> Result<Vec<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.finish(file.number, &kept),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Finish(file.number, kept))),
        }
    }

    /// Removes a file that was begun.
    pub fn discard(&mut self, file: ExtractedFile) -> Result<()> {
        match &mut self.0 {
            Inner::Here(below) => below.discard(file.number),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Discard(file.number))),
        }
    }

    /// Makes a symbolic link.
    pub fn symlink(&mut self, names: &Names, target: &[u8], kept: Kept) -> Result<Vec<String>> {
        if target.is_empty() || target.len() > TARGET_BYTES_MAX || target.contains(&0) {
            return Err(Error::refused("a link that leads where no path of this host does"));
        }
        match &mut self.0 {
            Inner::Here(below) => below.symlink(names, target, &kept),
            Inner::Broker(broker) => {
                broker.ask(&of(OfExtracted::Symlink { names: sent(names)?, target: target.to_vec(), kept }))
            }
        }
    }

    /// Makes another name of a file that was extracted before.
    pub fn link(&mut self, first: &Names, names: &Names) -> Result<()> {
        match &mut self.0 {
            Inner::Here(below) => below.link(first, names),
            Inner::Broker(broker) => {
                broker.ask(&of(OfExtracted::Link { first: sent(first)?, names: sent(names)? }))
            }
        }
    }

    /// Makes a device, a pipe or a socket.
    pub fn special(&mut self, names: &Names, special: SpecialFile, kept: Kept) -> Result<Vec<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.special(names, special, &kept),
            Inner::Broker(broker) => {
                broker.ask(&of(OfExtracted::Special { names: sent(names)?, special, kept }))
            }
        }
    }

    /// Gives a folder what is kept of it.
    pub fn settle(&mut self, names: &Names, kept: Kept) -> Result<Vec<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.settle(names, &kept),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Settle(sent(names)?, kept))),
        }
    }
}

fn of(request: OfExtracted) -> Request {
    Request::OfExtracted(request)
}

/// Names that fit into a request.
fn sent(names: &Names) -> Result<Names> {
    check(names)?;
    Ok(names.clone())
}

/// `Refused` unless each is the name of a file in a folder, and the path is one that a host can have.
fn check(names: &Names) -> Result<()> {
    let is_name = |name: &Vec<u8>| {
        !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name != b"."
            && name != b".."
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    };
    let len: usize = names.iter().map(|name| name.len() + 1).sum();
    match names.iter().all(is_name) && len <= PATH_BYTES_MAX && names.len() <= DEPTH_MAX {
        true => Ok(()),
        false => Err(Error::refused("has a name that no file of this host can have").path(shown(names))),
    }
}

fn shown(names: &Names) -> String {
    names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>().join("/")
}

/// The folder, and what was made in it.
pub(crate) struct Below {
    root: OwnedFd,
    path: PathBuf,
    replaces: bool,
    is_root: bool,
    /// The folder that was opened last: most files are in the same one as those before.
    last: Option<(Names, OwnedFd)>,
    new: HashMap<usize, New>,
    count: usize,
    /// What was made, which is not replaced by another of the same name: some file systems take names for the same that differ.
    made: HashSet<(u64, u64)>,
}

/// A file without a name of its own.
struct New {
    file: OwnedFd,
    folder: OwnedFd,
    partial: Vec<u8>,
    names: Names,
}

impl Below {
    pub(crate) fn begin(path: &Path, replaces: bool) -> Result<Self> {
        let failed = |error: Errno| Error::io("open", error.into()).path(path.display());
        match rustix::fs::mkdir(path, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::io("make the folder", error.into()).path(path.display())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        Ok(Self {
            root,
            path: path.to_owned(),
            replaces,
            is_root: rustix::process::geteuid().is_root(),
            last: None,
            new: HashMap::new(),
            count: 0,
            made: HashSet::new(),
        })
    }

    fn failed(&self, what: &'static str, names: &Names) -> impl Fn(Errno) -> Error {
        let path = self.path.join(shown(names));
        move |error| Error::io(what, error.into()).path(path.display())
    }

    /// The folder in which the last of the names is, and that name.
    fn parent<'n>(&mut self, names: &'n Names) -> Result<(OwnedFd, &'n OsStr)> {
        check(names)?;
        let (name, folders) =
            names.split_last().ok_or_else(|| Error::refused("the folder itself is no file in it"))?;
        let folders = folders.to_vec();
        let fd = self.open_folder(&folders)?;
        Ok((fd, OsStr::from_bytes(name)))
    }

    /// Opens a folder, name by name.
    fn open_folder(&mut self, folders: &Names) -> Result<OwnedFd> {
        let copied = |fd: &OwnedFd| fd.try_clone().map_err(|error| Error::io("open", error));
        if let Some((last, fd)) = &self.last
            && last == folders
        {
            return copied(fd);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut fd = copied(&self.root)?;
        for name in folders {
            fd = rustix::fs::openat(&fd, OsStr::from_bytes(name), flags, Mode::empty()).map_err(|error| {
                match error {
                    Errno::NOTDIR | Errno::LOOP => self.in_the_way(folders),
                    error => self.failed("open the folder", folders)(error),
                }
            })?;
        }
        self.last = Some((folders.clone(), copied(&fd)?));
        Ok(fd)
    }

    fn in_the_way(&self, names: &Names) -> Error {
        Error::refused("what has this name already is no folder").path(self.path.join(shown(names)).display())
    }

    pub(crate) fn make_folder(&mut self, names: &Names) -> Result<bool> {
        if names.is_empty() {
            return Ok(false);
        }
        let (folder, name) = self.parent(names)?;
        match rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let found = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(self.failed("look at", names))?;
                return match FileType::from_raw_mode(found.st_mode) {
                    // One that this extraction made is another of the guest's, which this file system takes for the same.
                    FileType::Directory if self.made.contains(&(found.st_dev, found.st_ino)) => {
                        Err(self.collides(names))
                    }
                    FileType::Directory => Ok(false),
                    _ => Err(self.in_the_way(names)),
                };
            }
            Err(error) => return Err(self.failed("make the folder", names)(error)),
        }
        self.remember(&folder, name);
        Ok(true)
    }

    fn collides(&self, names: &Names) -> Error {
        Error::refused("another file of the guest has this name here already")
            .path(self.path.join(shown(names)).display())
    }

    fn remember(&mut self, folder: &OwnedFd, name: &OsStr) {
        if let Ok(found) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.made.insert((found.st_dev, found.st_ino));
        }
    }

    /// Makes something under a partial name, which nothing has.
    fn partial<T>(
        &mut self,
        names: &Names,
        folder: &OwnedFd,
        make: impl Fn(&OwnedFd, &OsStr) -> Result<T, Errno>,
    ) -> Result<(Vec<u8>, T)> {
        for _ in 0..ATTEMPTS_MAX {
            self.count += 1;
            let name = format!(".leandisk-{}-{}.partial", std::process::id(), self.count).into_bytes();
            match make(folder, OsStr::from_bytes(&name)) {
                Ok(made) => return Ok((name, made)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(self.failed("make", names)(error)),
            }
        }
        Err(self.failed("make", names)(Errno::EXIST))
    }

    /// Gives what has a partial name its own. A failure removes it.
    fn place(&mut self, names: &Names, folder: &OwnedFd, partial: &[u8], name: &OsStr) -> Result<()> {
        let partial = OsStr::from_bytes(partial);
        let placed = self.try_place(names, folder, partial, name);
        match placed {
            Ok(()) => self.remember(folder, name),
            Err(_) => drop(rustix::fs::unlinkat(folder, partial, AtFlags::empty())),
        }
        placed
    }

    fn try_place(&self, names: &Names, folder: &OwnedFd, partial: &OsStr, name: &OsStr) -> Result<()> {
        let failed = self.failed("name", names);
        if let Ok(found) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            if self.made.contains(&(found.st_dev, found.st_ino)) {
                return Err(self.collides(names));
            }
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                let path = self.path.join(shown(names));
                return Err(Error::refused("is a folder here, and is not replaced").path(path.display()));
            }
        }
        if self.replaces {
            return rustix::fs::renameat(folder, partial, folder, name).map_err(failed);
        }
        let exists = || {
            let path = self.path.join(shown(names));
            Error::refused("exists already").hint("--force replaces it").path(path.display())
        };
        match rustix::fs::renameat_with(folder, partial, folder, name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(exists()),
            // The file system cannot rename so, but knows links.
            Err(Errno::INVAL | Errno::NOSYS) => {
                match rustix::fs::linkat(folder, partial, folder, name, AtFlags::empty()) {
                    Ok(()) => rustix::fs::unlinkat(folder, partial, AtFlags::empty()).map_err(failed),
                    Err(Errno::EXIST) => Err(exists()),
                    Err(error) => Err(failed(error)),
                }
            }
            Err(error) => Err(failed(error)),
        }
    }

    pub(crate) fn create(&mut self, names: &Names) -> Result<(usize, OwnedFd)> {
        let (folder, _) = self.parent(names)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (partial, file) = self.partial(names, &folder, |folder, name| {
            rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600))
        })?;
        let theirs = file.try_clone().map_err(|error| Error::io("open", error))?;
        let number = self.count;
        self.new.insert(number, New { file, folder, partial, names: names.clone() });
        Ok((number, theirs))
    }

    fn take(&mut self, number: usize) -> Result<New> {
        self.new.remove(&number).ok_or_else(|| Error::refused("is no new file of this process"))
    }

    pub(crate) fn finish(&mut self, number: usize, kept: &Kept) -> Result<Vec<String>> {
        let New { file, folder, partial, names } = self.take(number)?;
        let lacking = self.keep(&file, kept);
        let name = names.last().cloned().unwrap_or_default();
        self.place(&names, &folder, &partial, OsStr::from_bytes(&name))?;
        Ok(lacking)
    }

    pub(crate) fn discard(&mut self, number: usize) -> Result<()> {
        let New { folder, partial, names, .. } = self.take(number)?;
        rustix::fs::unlinkat(&folder, OsStr::from_bytes(&partial), AtFlags::empty())
            .map_err(self.failed("remove", &names))
    }

    /// Owner, permissions and times, in this order: a new owner takes some permissions away.
    fn keep(&self, file: &OwnedFd, kept: &Kept) -> Vec<String> {
        let mut lacking = Vec::new();
        let mut is_owned = false;
        if let Some((uid, gid)) = kept.owner.filter(|_| self.is_root) {
            match rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
                Ok(()) => is_owned = true,
                Err(error) => lacking.push(format!("its owner: {error}")),
            }
        }
        // Programs that run with their owner's rights must not do so with those of whoever extracts them.
        let mask = if is_owned { 0o7777 } else { 0o777 };
        let mode = kept.mode.unwrap_or(0o644) & mask;
        if let Err(error) = rustix::fs::fchmod(file, Mode::from_raw_mode(mode.into())) {
            lacking.push(format!("its permissions: {error}"));
        }
        if let Err(error) = rustix::fs::futimens(file, &times(kept)) {
            lacking.push(format!("its times: {error}"));
        }
        lacking
    }

    pub(crate) fn set_attribute(&mut self, of: &Of, name: &[u8], value: &[u8]) -> Result<Option<String>> {
        let folder;
        let file = match of {
            Of::New(number) => {
                let new = self.new.get(number);
                new.ok_or_else(|| Error::refused("is no new file of this process"))?.file.as_fd()
            }
            Of::Folder(names) => {
                check(names)?;
                folder = self.open_folder(names)?;
                folder.as_fd()
            }
        };
        let text = String::from_utf8_lossy(name).into_owned();
        if name.contains(&0) {
            return Ok(Some(format!("the attribute {text}: no name of this host")));
        }
        let set = rustix::fs::fsetxattr(file, OsStr::from_bytes(name), value, XattrFlags::empty());
        Ok(set.err().map(|error| format!("the attribute {text}: {error}")))
    }

    pub(crate) fn settle(&mut self, names: &Names, kept: &Kept) -> Result<Vec<String>> {
        check(names)?;
        let folder = self.open_folder(names)?;
        let kept = Kept { mode: Some(kept.mode.unwrap_or(0o755)), ..kept.clone() };
        Ok(self.keep(&folder, &kept))
    }

    /// What is no open file: a link, or a device.
    fn keep_by_name(&self, folder: &OwnedFd, name: &OsStr, kept: &Kept) -> Vec<String> {
        let mut lacking = Vec::new();
        if let Some((uid, gid)) = kept.owner.filter(|_| self.is_root)
            && let Err(error) = rustix::fs::chownat(
                folder,
                name,
                Some(Uid::from_raw(uid)),
                Some(Gid::from_raw(gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            )
        {
            lacking.push(format!("its owner: {error}"));
        }
        if let Err(error) = rustix::fs::utimensat(folder, name, &times(kept), AtFlags::SYMLINK_NOFOLLOW) {
            lacking.push(format!("its times: {error}"));
        }
        lacking
    }

    pub(crate) fn symlink(&mut self, names: &Names, target: &[u8], kept: &Kept) -> Result<Vec<String>> {
        let (folder, name) = self.parent(names)?;
        let target = OsStr::from_bytes(target);
        let (partial, ()) =
            self.partial(names, &folder, |folder, name| rustix::fs::symlinkat(target, folder, name))?;
        let lacking = self.keep_by_name(&folder, OsStr::from_bytes(&partial), kept);
        self.place(names, &folder, &partial, name)?;
        Ok(lacking)
    }

    pub(crate) fn link(&mut self, first: &Names, names: &Names) -> Result<()> {
        let (from, first_name) = self.parent(first)?;
        let (folder, name) = self.parent(names)?;
        let found = rustix::fs::statat(&from, first_name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.failed("look at", first))?;
        if !self.made.contains(&(found.st_dev, found.st_ino)) {
            return Err(Error::refused("is no file that was extracted").path(shown(first)));
        }
        let (partial, ()) = self.partial(names, &folder, |folder, name| {
            rustix::fs::linkat(&from, first_name, folder, name, AtFlags::empty())
        })?;
        self.place(names, &folder, &partial, name)
    }

    pub(crate) fn special(
        &mut self,
        names: &Names,
        special: SpecialFile,
        kept: &Kept,
    ) -> Result<Vec<String>> {
        let (folder, name) = self.parent(names)?;
        let (kind, device) = match special {
            SpecialFile::Pipe => (FileType::Fifo, 0),
            SpecialFile::Socket => (FileType::Socket, 0),
            SpecialFile::Character(major, minor) => {
                (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
            }
            SpecialFile::Block(major, minor) => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        };
        if !self.is_root && device != 0 {
            return Err(Error::refused("is a device, which only root can make").path(shown(names)));
        }
        let mode = Mode::from_raw_mode(u32::from(kept.mode.unwrap_or(0o600) & 0o777));
        let (partial, ()) = self.partial(names, &folder, |folder, name| {
            rustix::fs::mknodat(folder, name, kind, mode, device)?;
            // The process may have taken some of them away.
            let set = set_mode(folder, name, kind, mode);
            if set.is_err() {
                let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
            }
            set
        })?;
        let lacking = self.keep_by_name(&folder, OsStr::from_bytes(&partial), kept);
        self.place(names, &folder, &partial, name)?;
        Ok(lacking)
    }
}

/// Sets the permissions of what is no open file, if it is of this kind: what somebody else gave its name meanwhile, as a link that leads
/// out of the folder, keeps its own.
fn set_mode(folder: &OwnedFd, name: &OsStr, kind: FileType, mode: Mode) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != kind {
        return Err(Errno::NOENT);
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode)
}

/// What is left unfinished goes.
impl Drop for Below {
    fn drop(&mut self) {
        for new in self.new.values() {
            let _ = rustix::fs::unlinkat(&new.folder, OsStr::from_bytes(&new.partial), AtFlags::empty());
        }
    }
}

fn times(kept: &Kept) -> Timestamps {
    let time = |time: Option<(i64, u32)>| match time {
        Some((seconds, nanoseconds)) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    Timestamps { last_access: time(kept.accessed), last_modification: time(kept.modified) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Names {
        path.split('/').map(|name| name.as_bytes().to_vec()).collect()
    }

    fn make(below: &mut Below, path: &str) -> Result<()> {
        let (number, _) = below.create(&names(path))?;
        below.finish(number, &Kept::default()).map(drop)
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let dir = testkit::scratch();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir(&outside).unwrap();
        let mut below = Below::begin(&inside, true).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::os::unix::fs::symlink(outside.join("made"), inside.join("file")).unwrap();
        for path in ["..", "../out/x", "", ".", "a//b", "link/x", "link"] {
            let kind = |error: Error| error.kind();
            let refused = Err(block::ErrorKind::Refused);
            if path != "link" {
                assert_eq!(make(&mut below, path).map_err(kind), refused, "{path}");
            }
            assert!(below.make_folder(&names(path)).is_err(), "{path}");
        }
        for name in [b"a/b".to_vec(), b"a\0b".to_vec(), vec![b'x'; 300]] {
            assert!(below.create(&vec![name]).is_err());
        }
        // A link that is in the way is replaced, and not followed.
        make(&mut below, "file").unwrap();
        assert!(inside.join("file").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn what_somebody_puts_in_the_place_of_a_device_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = testkit::scratch();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&outside, "theirs").unwrap();
        std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o600)).unwrap();
        let folder = OwnedFd::from(File::open(&inside).unwrap());
        let (name, mode) = (OsStr::new("pipe"), Mode::from_raw_mode(0o666));
        rustix::fs::mknodat(&folder, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let mode_of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        set_mode(&folder, name, FileType::Fifo, mode).unwrap();
        assert_eq!(mode_of(&inside.join("pipe")), 0o666);
        for is_link in [true, false] {
            std::fs::remove_file(inside.join("pipe")).unwrap();
            let put = |path: PathBuf| {
                if is_link {
                    std::os::unix::fs::symlink(&outside, path)
                } else {
                    std::fs::hard_link(&outside, path)
                }
            };
            put(inside.join("pipe")).unwrap();
            assert!(set_mode(&folder, name, FileType::Fifo, mode).is_err());
            assert_eq!(mode_of(&outside), 0o600, "{is_link}");
        }
    }

    #[test]
    fn nothing_is_replaced_unasked_and_nothing_half_made_stays() {
        let dir = testkit::scratch();
        std::fs::write(dir.path().join("old"), "old").unwrap();
        let mut below = Below::begin(dir.path(), false).unwrap();
        assert_eq!(make(&mut below, "old").unwrap_err().kind(), block::ErrorKind::Refused);
        let (_, file) = below.create(&names("half")).unwrap();
        rustix::io::write(&file, b"half").unwrap();
        drop(below);
        let mut below = Below::begin(dir.path(), true).unwrap();
        make(&mut below, "old").unwrap();
        // What was made here is not replaced by another of the same name.
        assert_eq!(make(&mut below, "old").unwrap_err().kind(), block::ErrorKind::Refused);
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["old"]);
        assert_eq!(std::fs::read(dir.path().join("old")).unwrap(), b"");
    }
}
