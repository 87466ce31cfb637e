//! The file beside a disk that a change in place is written to before it is made, so that it can be finished after a
//! crash.
//!
//! Its name follows from the disk's, under whatever name that is opened: who opens the disk next finds it. It exists as
//! long as something may have to be finished. For block devices, whose folder is not for files and lost with the machine,
//! it lies in [`DEVICE_FOLDER`]. Where its user wants it elsewhere, a symbolic link of that name leads to it.
//!
//! Absent on purpose: what is in it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use block::{Error, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan, Offset};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::flushed::Flushed;
use crate::new_file::{folder_of, sync_folder};
use crate::raw_file::{Kind, OPEN_FLAGS, RawFile, io_error, is_unsupported};

/// The end of a journal's name, which begins with a dot.
const SUFFIX: &str = ".leandisk-journal";
/// Where the journals of block devices lie.
const DEVICE_FOLDER: &str = "/var/lib/leandisk";
/// Where the system keeps names of block devices that are the same each time it starts.
const LASTING_NAMES: &str = "/dev/disk/by-id";

/// Where the journal of the disk at `disk_path` lies.
pub fn journal_path(disk_path: impl AsRef<Path>) -> PathBuf {
    let disk_path = disk_path.as_ref();
    // A link and what it leads to are one disk. What does not exist has no journal, but a place for it all the same.
    let true_path = fs::canonicalize(disk_path).unwrap_or_else(|_| disk_path.to_owned());
    let is_device = fs::metadata(&true_path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    let journal_name = |name: OsString| {
        let mut journal_name = OsString::from(".");
        journal_name.push(name);
        journal_name.push(SUFFIX);
        journal_name
    };
    if is_device {
        return Path::new(DEVICE_FOLDER).join(journal_name(lasting_name(&true_path)));
    }
    true_path.with_file_name(journal_name(true_path.file_name().unwrap_or_default().to_owned()))
}

/// A name of the block device that it has after the next start, too; where the system knows none, its path with `-` for
/// each `/`.
fn lasting_name(device: &Path) -> OsString {
    let links = fs::read_dir(LASTING_NAMES).into_iter().flatten().flatten();
    let is_it = |entry: &fs::DirEntry| fs::canonicalize(entry.path()).is_ok_and(|path| path == device);
    let lasting = links.filter(is_it).map(|entry| entry.file_name()).min();
    lasting.unwrap_or_else(|| device.to_string_lossy().trim_start_matches('/').replace('/', "-").into())
}

/// A journal, held by this process alone.
pub struct JournalFile {
    raw: RawFile,
    path: PathBuf,
    /// The link beside the disk that leads to it.
    link: Option<PathBuf>,
    flushed: Flushed,
}

impl JournalFile {
    /// Makes a new, empty one at `path`, for its owner's eyes alone. Its name is on stable storage when this returns.
    /// `Refused` if there is one already.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let folder = folder_of(path);
        if folder == Path::new(DEVICE_FOLDER) {
            make_device_folder(folder)?;
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OPEN_FLAGS;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
            Errno::EXIST => pending(path),
            error => io_error("create", path, error),
        })?;
        let journal = Self::adopt(RawFile::adopt(fd, path)?, path)?;
        sync_folder(folder)?;
        Ok(journal)
    }

    /// Makes a new, empty one for the disk at `disk_path`: beside it, or at `stated` with a link to it beside the disk, so that
    /// whoever opens the disk finds it.
    pub fn create_for(disk_path: impl AsRef<Path>, stated: Option<&Path>) -> Result<Self> {
        let beside = journal_path(disk_path);
        let Some(stated) = stated.filter(|stated| **stated != beside) else { return Self::create(beside) };
        let mut journal = Self::create(stated)?;
        match journal.link_from(&beside) {
            Ok(()) => Ok(journal),
            Err(error) => {
                journal.remove()?;
                Err(error)
            }
        }
    }

    fn link_from(&mut self, beside: &Path) -> Result<()> {
        let target = fs::canonicalize(&self.path).map_err(|error| Error::io("resolve", error))?;
        if folder_of(beside) == Path::new(DEVICE_FOLDER) {
            make_device_folder(folder_of(beside))?;
        }
        rustix::fs::symlink(&target, beside).map_err(|error| match error {
            Errno::EXIST => pending(beside),
            error => io_error("note where the journal is, as", beside, error),
        })?;
        self.link = Some(beside.to_owned());
        sync_folder(folder_of(beside))
    }

    /// Opens that of the disk at `disk_path`, which is at `stated` or where it belongs. `None` if there is none.
    pub fn open_for(disk_path: impl AsRef<Path>, stated: Option<&Path>) -> Result<Option<Self>> {
        let disk_path = disk_path.as_ref();
        let beside = journal_path(disk_path);
        let is_missing = |path: &Path| {
            fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if is_missing(&beside) && stated.is_none_or(is_missing) {
            return Ok(None);
        }
        let target = link_target(&beside)?;
        let mut journal = Self::open(stated.or(target.as_deref()).unwrap_or(&beside))?;
        let path = fs::canonicalize(&journal.path).ok();
        journal.link = Some(beside).filter(|_| target.is_some() && target == path);
        Ok(Some(journal))
    }

    /// Opens the one at `path`. `Refused` if another process has it open, or if it is none that this user, or the
    /// system's, made.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let stat = rustix::fs::lstat(path).map_err(|error| io_error("open", path, error))?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OPEN_FLAGS;
        let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
        if Kind::of(&stat, path)? != Kind::Regular || !is_ours {
            return Err(
                Error::refused("is no journal that this user or the system's made").path(path.display())
            );
        }
        let fd =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| io_error("open", path, error))?;
        Self::adopt(RawFile::adopt(fd, path)?, path)
    }

    /// Whether the disk at `disk_path` has one, so that a change of it may have to be finished. Where that cannot be told
    /// it counts as one.
    pub fn exists(disk_path: impl AsRef<Path>) -> bool {
        match fs::symlink_metadata(journal_path(disk_path)) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, for good when this returns: there is nothing to finish any more.
    pub fn remove(self) -> Result<()> {
        self.check_named()?;
        if let Some(link) = &self.link {
            rustix::fs::unlink(link).map_err(|error| io_error("remove", link, error))?;
            sync_folder(folder_of(link))?;
        }
        rustix::fs::unlink(&self.path).map_err(|error| io_error("remove", &self.path, error))?;
        sync_folder(folder_of(&self.path))
    }

    fn adopt(raw: RawFile, path: &Path) -> Result<Self> {
        let journal = Self { raw, path: path.to_owned(), link: None, flushed: Flushed::default() };
        lock(&journal.raw.file, path)?;
        journal.check_named()?;
        Ok(journal)
    }

    /// Fails if the name means another file by now, or none.
    fn check_named(&self) -> Result<()> {
        let (named, opened) = (fs::symlink_metadata(&self.path), self.raw.file.metadata());
        match (named, opened) {
            (Ok(named), Ok(opened)) if (named.dev(), named.ino()) == (opened.dev(), opened.ino()) => Ok(()),
            _ => Err(Error::refused("was removed or replaced by another process").path(self.path.display())),
        }
    }
}

fn pending(path: &Path) -> Error {
    Error::refused("a change of this disk was interrupted and is not finished")
        .path(path.display())
        .hint("finish it with 'leandisk recover'")
}

/// Where the link at `path` leads; `None` if it is none. `Refused` if it is one that this user, or the system's, did not make.
fn link_target(path: &Path) -> Result<Option<PathBuf>> {
    let Ok(stat) = rustix::fs::lstat(path) else { return Ok(None) };
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Symlink {
        return Ok(None);
    }
    if ![0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid) {
        return Err(Error::refused("is no journal that this user or the system's made").path(path.display()));
    }
    fs::read_link(path).map(Some).map_err(|error| Error::io("read the link", error).path(path.display()))
}

fn make_device_folder(folder: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().mode(0o755).create(folder);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_error("create", folder, error)),
        Ok(()) => sync_folder(folder_of(folder)),
    }
}

fn lock(file: &File, path: &Path) -> Result<()> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            Err(Error::refused("another process is changing this disk").path(path.display()))
        }
        // A file system without locks: the disk's own tell.
        Err(error) if is_unsupported(error) || error == Errno::NOLCK => Ok(()),
        Err(error) => Err(io_error("lock", path, error)),
    }
}

impl ReadAt<Host> for JournalFile {
    fn len_bytes(&self) -> u64 {
        self.raw.current_len_bytes().unwrap_or(0)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.flushed.check(&self.raw)?;
        self.raw.read(at, buf, self.raw.current_len_bytes()?)
    }
}

impl TargetFile for JournalFile {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.flushed.check(&self.raw)?;
        self.raw.write(at, buf)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.flushed.check(&self.raw)?;
        rustix::fs::ftruncate(&self.raw.file, len_bytes)
            .map_err(|error| self.raw.error("set the length", Offset::new(len_bytes), error))
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.flushed.check(&self.raw)?;
        if span.is_empty() {
            return Ok(());
        }
        match rustix::fs::fallocate(
            &self.raw.file,
            FallocateFlags::empty(),
            span.start().get(),
            span.len_bytes(),
        ) {
            Err(error) if is_unsupported(error) => {
                if self.raw.current_len_bytes()? < span.end().get() {
                    self.set_len(span.end().get())
                } else {
                    Ok(())
                }
            }
            Err(error) => Err(self.raw.error("reserve", span.start(), error)),
            Ok(()) => Ok(()),
        }
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.flushed.check(&self.raw)?;
        self.raw.write_zeros(span)
    }

    fn flush(&self) -> Result<()> {
        self.flushed.flush(&self.raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn a_disk_has_one_journal_under_all_its_names() {
        let dir = testkit::scratch();
        let root = dir.path().canonicalize().unwrap();
        let disk = root.join("a disk.qcow2");
        fs::write(&disk, "disk").unwrap();
        fs::create_dir(root.join("other")).unwrap();
        std::os::unix::fs::symlink(&disk, root.join("other/link")).unwrap();
        let expected = root.join(".a disk.qcow2.leandisk-journal");
        assert_eq!(journal_path(&disk), expected);
        assert_eq!(journal_path(root.join("other/link")), expected);
        assert_eq!(journal_path(root.join("other/../a disk.qcow2")), expected);
        assert!(!JournalFile::exists(&disk));
        let journal = JournalFile::create(journal_path(&disk)).unwrap();
        assert!(JournalFile::exists(root.join("other/link")));
        assert_eq!(fs::metadata(&expected).unwrap().mode() & 0o777, 0o600);
        journal.remove().unwrap();
        assert!(!JournalFile::exists(&disk));
        assert!(!expected.exists());
    }

    #[test]
    fn only_one_has_it_and_it_grows() {
        let dir = testkit::scratch();
        let path = dir.path().join(".disk.leandisk-journal");
        assert_eq!(JournalFile::open(&path).err().unwrap().kind(), ErrorKind::Io);
        let journal = JournalFile::create(&path).unwrap();
        journal.write_at(Offset::new(5000), b"entry").unwrap();
        journal.flush().unwrap();
        assert_eq!(journal.len_bytes(), 5005);
        assert_eq!(JournalFile::create(&path).err().unwrap().kind(), ErrorKind::Refused);
        assert_eq!(JournalFile::open(&path).err().unwrap().kind(), ErrorKind::Refused);
        drop(journal);
        let journal = JournalFile::open(&path).unwrap();
        let mut entry = [0; 5];
        journal.read_at(Offset::new(5000), &mut entry).unwrap();
        assert_eq!(&entry, b"entry");
        journal.set_len(0).unwrap();
        assert_eq!(journal.len_bytes(), 0);
        journal.flushed.fail();
        assert!(journal.write_at(Offset::ZERO, &[1]).is_err());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        assert_eq!(journal.remove().err().unwrap().kind(), ErrorKind::Refused);
        assert!(path.exists());
    }

    #[test]
    fn a_journal_elsewhere_is_found_from_its_disk() {
        let (dir, other) = (testkit::scratch(), testkit::scratch());
        let (disk, elsewhere) = (dir.path().join("disk"), other.path().join("journal"));
        fs::write(&disk, "disk").unwrap();
        assert!(JournalFile::open_for(&disk, None).unwrap().is_none());
        let journal = JournalFile::create_for(&disk, Some(&elsewhere)).unwrap();
        journal.write_at(Offset::ZERO, b"entry").unwrap();
        assert!(JournalFile::exists(&disk));
        let second = JournalFile::create_for(&disk, Some(&other.path().join("second"))).err().unwrap();
        assert_eq!(second.kind(), ErrorKind::Refused);
        assert!(!other.path().join("second").exists(), "what came to nothing leaves nothing");
        assert_eq!(JournalFile::create_for(&disk, None).err().unwrap().kind(), ErrorKind::Refused);
        drop(journal);
        for stated in [None, Some(elsewhere.as_path())] {
            let journal = JournalFile::open_for(&disk, stated).unwrap().unwrap();
            assert_eq!(journal.len_bytes(), 5);
        }
        // One that is lost is not one that never was.
        fs::rename(&elsewhere, other.path().join("moved")).unwrap();
        assert!(JournalFile::exists(&disk));
        assert_eq!(JournalFile::open_for(&disk, None).err().unwrap().kind(), ErrorKind::Io);
        fs::rename(other.path().join("moved"), &elsewhere).unwrap();
        JournalFile::open_for(&disk, None).unwrap().unwrap().remove().unwrap();
        assert!(!JournalFile::exists(&disk) && !elsewhere.exists());
    }

    #[test]
    fn links_and_journals_of_others_are_not_opened() {
        let dir = testkit::scratch();
        let path = dir.path().join("journal");
        fs::write(dir.path().join("target"), "x").unwrap();
        std::os::unix::fs::symlink("target", &path).unwrap();
        assert!(JournalFile::open(&path).is_err());
        assert_eq!(JournalFile::create(&path).err().unwrap().kind(), ErrorKind::Refused);
        let others = dir.path().join("others");
        fs::write(&others, "x").unwrap();
        if std::os::unix::fs::chown(&others, Some(12_345), None).is_ok() {
            assert_eq!(JournalFile::open(&others).err().unwrap().kind(), ErrorKind::Refused);
        }
    }

    #[test]
    fn a_device_s_journal_lies_with_the_system() {
        let device = fs::read_dir("/dev")
            .unwrap()
            .flatten()
            .find(|entry| entry.file_type().is_ok_and(|kind| kind.is_block_device()));
        let Some(device) = device else {
            println!("SKIPPED: there is no block device here");
            return;
        };
        let path = journal_path(device.path());
        assert_eq!(path.parent(), Some(Path::new(DEVICE_FOLDER)));
        assert!(path.to_string_lossy().ends_with(SUFFIX), "{}", path.display());
    }
}
