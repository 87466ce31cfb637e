//! The file beside a disk that a change in place is written to before it is made, so that it can be finished after a
//! crash: its names, and the host's folders.
//!
//! Its name follows from the disk's, under whatever name that is opened: who opens the disk next finds it. It exists as
//! long as something may have to be finished. For block devices, whose folder is not for files and lost with the machine,
//! it lies in [`DEVICE_FOLDER`]. Where its user wants it elsewhere, a symbolic link of that name leads to it.
//!
//! Absent on purpose: what is in it, and what proves that it is one ([`journal::JournalFile`]).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan, Offset};
use journal::{DiskName, FileId, FoundFile, Header, Look, Names, Places, Standing};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::flushed::Flushed;
use crate::new_file::{folder_of, sync_folder};
use crate::raw_file::{Kind, OPEN_FLAGS, RawFile, io_error, is_unsupported};
use crate::requests::{Request, client};

/// The end of a journal's name, which begins with a dot.
const SUFFIX: &str = ".leandisk-journal";
/// Where the journals of block devices lie.
const DEVICE_FOLDER: &str = "/var/lib/leandisk";
/// Where the system keeps names of block devices that are the same each time it starts.
const LASTING_NAMES: &str = "/dev/disk/by-id";
/// How many names are tried for a file that has none of its own yet.
const NEW_NAMES_MAX: u32 = 64;

/// The journal of a disk, held by this process alone.
pub type JournalFile = journal::JournalFile<HostNames>;

/// Where the journal of the disk at `disk_path` lies.
pub fn journal_path(disk_path: impl AsRef<Path>) -> PathBuf {
    let true_path = true_path(disk_path.as_ref());
    let journal_name = |name: OsString| {
        let mut journal_name = OsString::from(".");
        journal_name.push(name);
        journal_name.push(SUFFIX);
        journal_name
    };
    if is_block_device(&true_path) {
        let name = lasting_name(&true_path)
            .unwrap_or_else(|| true_path.to_string_lossy().trim_start_matches('/').replace('/', "-").into());
        return Path::new(DEVICE_FOLDER).join(journal_name(name));
    }
    true_path.with_file_name(journal_name(true_path.file_name().unwrap_or_default().to_owned()))
}

/// The disk whose journal this would be by its name, if its is a name of a journal beside a disk.
pub(crate) fn names_a_journal_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes().strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    Some(path.with_file_name(OsStr::from_bytes(name)))
}

/// A link and what it leads to are one disk. What does not exist has no journal, but a place for it all the same.
fn true_path(disk_path: &Path) -> PathBuf {
    fs::canonicalize(disk_path).unwrap_or_else(|_| disk_path.to_owned())
}

fn is_block_device(true_path: &Path) -> bool {
    fs::metadata(true_path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// A name of the block device that it has after the next start, too, if the system knows one.
pub(crate) fn lasting_name(device: &Path) -> Option<OsString> {
    if let Some(broker) = client() {
        return broker.ask(&Request::LastingName(device.into())).ok()?;
    }
    let links = fs::read_dir(LASTING_NAMES).into_iter().flatten().flatten();
    let is_it = |entry: &fs::DirEntry| fs::canonicalize(entry.path()).is_ok_and(|path| path == device);
    links.filter(is_it).map(|entry| entry.file_name()).min()
}

/// What a journal knows the disk at `disk_path` by.
pub fn disk_name(disk_path: impl AsRef<Path>) -> Result<DiskName> {
    let path = true_path(disk_path.as_ref());
    let stat = rustix::fs::stat(&path).map_err(|error| io_error("stat", &path, error))?;
    let file = match Kind::of(&stat, &path)? {
        Kind::Regular => id_of(&stat),
        Kind::BlockDevice => FileId { device: u64::MAX, inode: stat.st_rdev },
    };
    let lasting_name = match Kind::of(&stat, &path)? {
        Kind::Regular => None,
        Kind::BlockDevice => lasting_name(&path),
    };
    let lasting_name = lasting_name.unwrap_or_default().to_string_lossy().into_owned();
    Ok(DiskName { file, path, lasting_name })
}

fn id_of(stat: &Stat) -> FileId {
    FileId { device: stat.st_dev, inode: stat.st_ino }
}

/// Makes the journal of the disk at `disk_path`: beside it, or at `stated` with a link to it beside the disk, so that whoever
/// opens the disk finds it. It has its header, and its name is on stable storage, when this returns. `Refused` if there is one, or
/// anything else under its name.
pub fn create_journal(
    disk_path: impl AsRef<Path>,
    stated: Option<&Path>,
    header: Header,
) -> Result<JournalFile> {
    let disk_path = disk_path.as_ref();
    let places = places(disk_path, stated)?;
    for path in [Some(&places.beside), places.stated.as_ref()].into_iter().flatten() {
        if folder_of(path) == Path::new(DEVICE_FOLDER) {
            make_device_folder(folder_of(path))?;
        }
    }
    JournalFile::create(HostNames, &places, disk_name(disk_path)?, header)
}

/// `Refused` if [`create_journal`] would refuse. Changes nothing.
pub fn check_journal_place(disk_path: impl AsRef<Path>, stated: Option<&Path>) -> Result<()> {
    journal::check_free(&HostNames, &places(disk_path.as_ref(), stated)?)
}

/// What is where the journal of the disk at `disk_path` would be, at `stated` or where it belongs. `None` if there is nothing.
/// `Refused` if another process has it, or if neither this user nor the system's made it.
pub fn find_journal(
    disk_path: impl AsRef<Path>,
    stated: Option<&Path>,
) -> Result<Option<FoundFile<HostNames>>> {
    journal::find(HostNames, &places(disk_path.as_ref(), stated)?)
}

/// What has the name of the journal of the disk at `disk_path`.
pub fn journal_standing(disk_path: impl AsRef<Path>) -> Standing {
    journal::standing(&HostNames, &journal_path(disk_path))
}

/// A relative path means something else to who follows a link to it.
fn places(disk_path: &Path, stated: Option<&Path>) -> Result<Places> {
    let stated = stated.map(|stated| match (fs::canonicalize(folder_of(stated)), stated.file_name()) {
        (Ok(folder), Some(name)) => Ok(folder.join(name)),
        (Ok(_), None) => Err(Error::refused("names no file").path(stated.display())),
        (Err(error), _) => Err(io_error("find the folder of", stated, error)),
    });
    Ok(Places::new(journal_path(disk_path), stated.transpose()?))
}

fn make_device_folder(folder: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().mode(0o755).create(folder);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_error("create", folder, error)),
        Ok(()) => sync_folder(folder_of(folder)),
    }
}

/// The folders of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostNames;

/// A journal's file.
pub struct HostJournal {
    raw: RawFile,
    flushed: Flushed,
    /// The name that it has until it gets its own, where there are no files without one.
    passing_path: Option<PathBuf>,
    is_named: AtomicBool,
}

impl Names for HostNames {
    type File = Box<HostJournal>;

    fn look(&self, path: &Path) -> Result<Look> {
        if let Some(broker) = client() {
            return broker.ask::<Looked>(&Request::LookAtJournal(path.into())).map(Look::from);
        }
        let stat = match rustix::fs::lstat(path) {
            Ok(stat) => stat,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Look::Nothing),
            Err(error) => return Err(io_error("look at", path, error)),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return Ok(Look::File);
        }
        check_ours(&stat, path)?;
        let target = fs::read_link(path).map_err(|error| io_error("read the link", path, error))?;
        Ok(Look::Link(folder_of(path).join(target)))
    }

    fn make(&self, path: &Path) -> Result<Self::File> {
        let folder = folder_of(path);
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OPEN_FLAGS;
        match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
            Ok(fd) if has_proc_entry(&fd) => return HostJournal::adopt(fd, path, None),
            Ok(_) => {}
            // A file system without nameless files may call it a folder that cannot be written.
            Err(error) if is_unsupported(error) || error == Errno::ISDIR || error == Errno::NOENT => {}
            Err(error) => return Err(io_error("create", path, error)),
        }
        for number in 0..NEW_NAMES_MAX {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".new-{}-{number}", std::process::id()));
            let passing_path = folder.join(name);
            match rustix::fs::open(
                &passing_path,
                flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW,
                mode,
            ) {
                Err(Errno::EXIST) => {}
                Err(error) => return Err(io_error("create", &passing_path, error)),
                Ok(fd) => return HostJournal::adopt(fd, path, Some(passing_path)),
            }
        }
        Err(io_error("create", path, Errno::EXIST))
    }

    fn give_name(&self, file: &Self::File, path: &Path) -> Result<()> {
        let named = match &file.passing_path {
            None => {
                let entry = proc_entry(&file.raw.file);
                rustix::fs::linkat(CWD, entry, CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(from) => match rustix::fs::renameat_with(CWD, from, CWD, path, RenameFlags::NOREPLACE) {
                // A link fails where the name is taken, as the rename would.
                Err(error) if is_unsupported(error) => {
                    rustix::fs::linkat(CWD, from, CWD, path, AtFlags::empty())
                        .and_then(|()| rustix::fs::unlink(from))
                }
                renamed => renamed,
            },
        };
        named.map_err(|error| taken_or(error, "name the journal", path))?;
        file.is_named.store(true, Ordering::Relaxed);
        // Some file systems keep a file's name with the file.
        rustix::fs::fsync(&file.raw.file).map_err(|error| io_error("flush", path, error))
    }

    fn link(&self, path: &Path, to: &Path) -> Result<()> {
        rustix::fs::symlink(to, path).map_err(|error| taken_or(error, "note where the journal is, as", path))
    }

    fn open(&self, path: &Path) -> Result<Self::File> {
        let file = self.open_as(path, OFlags::RDWR)?;
        lock(&file.raw)?;
        Ok(file)
    }

    fn peek(&self, path: &Path) -> Result<Self::File> {
        self.open_as(path, OFlags::RDONLY)
    }

    fn id(&self, file: &Self::File) -> Result<FileId> {
        Ok(id_of(&file.raw.stat()?))
    }

    fn is_named(&self, file: &Self::File, path: &Path) -> Result<bool> {
        match rustix::fs::lstat(path) {
            Ok(stat) => Ok(id_of(&stat) == self.id(file)?),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(io_error("look at", path, error)),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        rustix::fs::unlink(path).map_err(|error| io_error("remove", path, error))
    }

    fn sync(&self, path: &Path) -> Result<()> {
        sync_folder(folder_of(path))
    }
}

impl HostNames {
    fn open_as(self, path: &Path, access: OFlags) -> Result<Box<HostJournal>> {
        let raw = match client() {
            Some(broker) if access == OFlags::RDONLY => {
                let ((), fd) = broker.open(&Request::PeekAtJournal(path.into()))?;
                RawFile::adopt(fd, path)?
            }
            _ => self.open_raw(path, access)?,
        };
        let is_named = AtomicBool::new(true);
        Ok(Box::new(HostJournal { raw, flushed: Flushed::default(), passing_path: None, is_named }))
    }

    /// Opens what can be a journal.
    pub(crate) fn open_raw(self, path: &Path, access: OFlags) -> Result<RawFile> {
        let stat = rustix::fs::lstat(path).map_err(|error| io_error("open", path, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::refused("is no journal: it is not a file").path(path.display()));
        }
        check_ours(&stat, path)?;
        let fd = rustix::fs::open(path, access | OFlags::NOFOLLOW | OPEN_FLAGS, Mode::empty())
            .map_err(|error| io_error("open", path, error))?;
        let raw = RawFile::adopt(fd, path)?;
        if id_of(&raw.stat()?) != id_of(&stat) {
            return Err(Error::refused("was replaced while it was opened").path(path.display()));
        }
        Ok(raw)
    }
}

/// A [`Look`] on its way from the broker.
#[derive(Serialize, Deserialize)]
pub(crate) enum Looked {
    Nothing,
    File,
    Link(OsString),
}

impl From<&Look> for Looked {
    fn from(look: &Look) -> Self {
        match look {
            Look::Nothing => Self::Nothing,
            Look::File => Self::File,
            Look::Link(to) => Self::Link(to.into()),
        }
    }
}

impl From<Looked> for Look {
    fn from(looked: Looked) -> Self {
        match looked {
            Looked::Nothing => Self::Nothing,
            Looked::File => Self::File,
            Looked::Link(to) => Self::Link(to.into()),
        }
    }
}

fn check_ours(stat: &Stat, path: &Path) -> Result<()> {
    if [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid) {
        return Ok(());
    }
    Err(Error::refused("is no journal that this user or the system's made").path(path.display()))
}

fn taken_or(error: Errno, what: &str, path: &Path) -> Error {
    match error {
        Errno::EXIST => Error::refused("exists already, and a journal replaces nothing").path(path.display()),
        error => io_error(what, path, error),
    }
}

/// The name under which the kernel links a file that has none (open(2), `O_TMPFILE`).
fn proc_entry(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn has_proc_entry(fd: &OwnedFd) -> bool {
    fs::symlink_metadata(proc_entry(fd)).is_ok()
}

impl HostJournal {
    fn adopt(fd: OwnedFd, path: &Path, passing_path: Option<PathBuf>) -> Result<Box<Self>> {
        let (raw, is_named) = (RawFile::adopt(fd, path)?, AtomicBool::new(false));
        let journal = Self { raw, flushed: Flushed::default(), passing_path, is_named };
        lock(&journal.raw)?;
        Ok(Box::new(journal))
    }
}

impl Drop for HostJournal {
    /// What never got its name goes.
    fn drop(&mut self) {
        if let Some(passing_path) = self.passing_path.as_ref().filter(|_| !*self.is_named.get_mut()) {
            let _ = rustix::fs::unlink(passing_path);
        }
    }
}

/// On a file system without locks the disk's own tell.
fn lock(raw: &RawFile) -> Result<()> {
    raw.lock_whole(|| Error::refused("another process is changing this disk").path(&raw.name))
}

impl ReadAt<Host> for HostJournal {
    fn len_bytes(&self) -> u64 {
        self.raw.current_len_bytes().unwrap_or(0)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.flushed.check(&self.raw)?;
        self.raw.read(at, buf, self.raw.current_len_bytes()?)
    }
}

impl TargetFile for HostJournal {
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
    use journal::Identity;
    use std::os::unix::fs::MetadataExt;

    fn header() -> Header {
        Header::without_volume(Identity::default(), 4096)
    }

    /// Opens the journal of `disk`, whose contents are 4 KiB of anything.
    fn proven(disk: &Path, stated: Option<&Path>) -> Result<Option<JournalFile>> {
        let Some(found) = find_journal(disk, stated)? else { return Ok(None) };
        Ok(Some(found.prove(disk_name(disk)?, &block::Memory::new(vec![0; 4096]))?.0))
    }

    fn kind<T>(result: Result<T>) -> ErrorKind {
        result.err().unwrap().kind()
    }

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
        assert!(matches!(journal_standing(&disk), Standing::Absent));
        let journal = create_journal(&disk, None, header()).unwrap();
        let Standing::Journal(found) = journal_standing(root.join("other/link")) else { panic!() };
        assert_eq!(found.disk_path(), Some(disk.as_path()));
        let metadata = fs::metadata(&expected).unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, journal::HEADER_BYTES));
        journal.remove().unwrap();
        assert!(matches!(journal_standing(&disk), Standing::Absent));
        assert!(!expected.exists());
    }

    #[test]
    fn only_one_has_it_and_it_grows() {
        let dir = testkit::scratch();
        let disk = dir.path().join("disk");
        fs::write(&disk, "disk").unwrap();
        let path = journal_path(&disk);
        assert!(find_journal(&disk, None).unwrap().is_none());
        let journal = create_journal(&disk, None, header()).unwrap();
        journal.file().write_at(Offset::new(20_000), b"entry").unwrap();
        journal.file().flush().unwrap();
        assert_eq!(journal.file().len_bytes(), 20_005);
        assert_eq!(kind(create_journal(&disk, None, header())), ErrorKind::Refused);
        assert_eq!(kind(check_journal_place(&disk, None)), ErrorKind::Refused);
        assert_eq!(kind(find_journal(&disk, None)), ErrorKind::Refused);
        drop(journal);
        let journal = proven(&disk, None).unwrap().unwrap();
        let mut entry = [0; 5];
        journal.file().read_at(Offset::new(20_000), &mut entry).unwrap();
        assert_eq!(&entry, b"entry");
        journal.file().flushed.fail();
        assert!(journal.file().write_at(Offset::ZERO, &[1]).is_err());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        assert_eq!(kind(journal.remove()), ErrorKind::Refused);
        assert!(path.exists());
    }

    #[test]
    fn a_journal_elsewhere_is_found_from_its_disk() {
        let (dir, other) = (testkit::scratch(), testkit::scratch());
        let (disk, elsewhere) = (dir.path().join("disk"), other.path().join("journal"));
        fs::write(&disk, "disk").unwrap();
        let journal = create_journal(&disk, Some(&elsewhere), header()).unwrap();
        assert!(matches!(journal_standing(&disk), Standing::Journal(_)));
        let second = create_journal(&disk, Some(&other.path().join("second")), header());
        assert_eq!(kind(second), ErrorKind::Refused);
        assert!(!other.path().join("second").exists(), "what came to nothing leaves nothing");
        assert_eq!(kind(create_journal(&disk, None, header())), ErrorKind::Refused);
        drop(journal);
        for stated in [None, Some(elsewhere.as_path())] {
            let journal = proven(&disk, stated).unwrap().unwrap();
            assert_eq!(journal.file().len_bytes(), journal::HEADER_BYTES);
        }
        // One that is lost is not one that never was.
        fs::rename(&elsewhere, other.path().join("moved")).unwrap();
        let Standing::Other(error) = journal_standing(&disk) else { panic!() };
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(kind(find_journal(&disk, None)), ErrorKind::Io);
        fs::rename(other.path().join("moved"), &elsewhere).unwrap();
        proven(&disk, None).unwrap().unwrap().remove().unwrap();
        assert!(matches!(journal_standing(&disk), Standing::Absent) && !elsewhere.exists());
    }

    /// Whatever it is, and however it came there: it is neither opened for writing nor removed.
    #[test]
    fn what_has_the_name_of_a_journal_is_left_alone() {
        let (dir, other) = (testkit::scratch(), testkit::scratch());
        let disk = dir.path().join("disk");
        fs::write(&disk, "disk").unwrap();
        let (beside, keys) = (journal_path(&disk), other.path().join("keys"));
        for len in [0, 9, 4096, 16_384, 16_385, 100_000] {
            for is_link in [false, true] {
                let file = if is_link { &keys } else { &beside };
                fs::write(file, vec![b'k'; len]).unwrap();
                if is_link {
                    std::os::unix::fs::symlink(&keys, &beside).unwrap();
                }
                assert!(matches!(journal_standing(&disk), Standing::Other(_)), "{len}");
                assert_eq!(kind(create_journal(&disk, None, header())), ErrorKind::Refused);
                assert_eq!(
                    kind(create_journal(&disk, Some(&other.path().join("new")), header())),
                    ErrorKind::Refused
                );
                assert_eq!(kind(proven(&disk, None)), ErrorKind::Refused);
                assert_eq!(fs::read(file).unwrap(), vec![b'k'; len]);
                assert!(!other.path().join("new").exists());
                fs::remove_file(&beside).unwrap();
            }
            fs::write(&keys, vec![b'k'; len]).unwrap();
            assert_eq!(kind(create_journal(&disk, Some(&keys), header())), ErrorKind::Refused);
            assert_eq!(kind(proven(&disk, Some(&keys))), ErrorKind::Refused);
            assert_eq!(fs::read(&keys).unwrap(), vec![b'k'; len]);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn where_files_have_names_from_the_start_none_is_left() {
        let dir = testkit::scratch();
        let path = dir.path().join("journal");
        let passing = dir.path().join("journal.new-1-0");
        let make = || {
            let fd = fs::File::create_new(&passing).unwrap();
            HostJournal::adopt(fd.into(), &path, Some(passing.clone())).unwrap()
        };
        drop(make());
        assert!(!passing.exists());
        fs::write(&path, "another").unwrap();
        let file = make();
        assert_eq!(kind(HostNames.give_name(&file, &path)), ErrorKind::Refused);
        assert_eq!(fs::read(&path).unwrap(), b"another");
        fs::remove_file(&path).unwrap();
        HostNames.give_name(&file, &path).unwrap();
        assert!(HostNames.is_named(&file, &path).unwrap() && !passing.exists());
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn links_and_journals_of_others_are_not_opened() {
        let dir = testkit::scratch();
        let path = dir.path().join("journal");
        fs::write(dir.path().join("target"), "x").unwrap();
        std::os::unix::fs::symlink("target", &path).unwrap();
        assert_eq!(kind(HostNames.open(&path)), ErrorKind::Refused);
        assert_eq!(HostNames.look(&path).unwrap(), Look::Link(dir.path().join("target")));
        let others = dir.path().join("others");
        fs::write(&others, "x").unwrap();
        if std::os::unix::fs::chown(&others, Some(12_345), None).is_ok() {
            assert_eq!(kind(HostNames.open(&others)), ErrorKind::Refused);
            assert_eq!(kind(HostNames.peek(&others)), ErrorKind::Refused);
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
