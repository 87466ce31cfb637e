//! A target file in the making.
//!
//! It is written under another name beside its place, and gets its own name when all of it is on stable
//! storage. Until then whatever bears that name stays as it is; a copy that fails leaves nothing behind.
//!
//! Two copies to one target are kept apart by a lock on the partial file, which the kernel drops with the process:
//! what a killed copy leaves is recognised by not being locked.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, HostFile, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan, Offset, Span};
use rustix::fs::{AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;

use crate::direct::Direct;
use crate::raw_file::{Kind, OPEN_FLAGS, RawFile, io_error, is_unsupported};
use crate::requests::{Client, Request, client};
use crate::storage_promise::StoragePromise;

/// The end of a partial file's name, which begins with a dot.
const PARTIAL_SUFFIX: &str = ".leandisk-partial";

/// How often the making of a partial file is tried anew when another process removes it at the same time.
const CREATE_ATTEMPTS_MAX: u32 = 16;

/// A new file under a partial name.
pub struct NewFile {
    pub(crate) raw: RawFile,
    place: Place,
    names: Names,
    /// Whether the partial file stays when this value goes.
    keeps: AtomicBool,
    /// What [`TargetFile::forget`] was last told: under way to the storage, not yet dropped.
    leaving: Mutex<Option<HostSpan>>,
}

impl NewFile {
    /// Begins a file that will become `final_path`.
    ///
    /// `Refused` if that exists and may not be replaced, if it is no regular file, or if another process is
    /// writing it. A link is followed: what it points to is replaced, not the link.
    pub fn create(final_path: impl AsRef<Path>, replace: bool) -> Result<Self> {
        if let Some(broker) = client() {
            return Self::ask(broker, final_path.as_ref(), replace);
        }
        let (place, raw) = Place::find(final_path.as_ref(), replace)?.create()?;
        Ok(place.into_file(raw, Names::This))
    }

    /// [`NewFile::create`] in a process that is confined.
    fn ask(broker: &'static Client, path: &Path, replaces: bool) -> Result<Self> {
        let ((number, told), fd) = broker.open(&Request::Create { path: path.into(), replaces })?;
        let place = Place::from_told(told, replaces);
        let raw = RawFile::adopt(fd, &place.partial_path)?;
        Ok(place.into_file(raw, Names::Broker(broker, number)))
    }

    /// Like [`NewFile::create`]; aligned writes go past the page cache where the file system can do that.
    pub fn create_direct(final_path: impl AsRef<Path>, replace: bool) -> Result<Self> {
        let mut file = Self::create(final_path, replace)?;
        file.raw.direct = Direct::open(&file.raw.file, OFlags::RDWR);
        Ok(file)
    }

    /// A file of the name `path` that stays when this value goes.
    pub(crate) fn staying(raw: RawFile, path: &Path) -> Self {
        let place = Place {
            final_path: path.to_owned(),
            partial_path: path.to_owned(),
            replace: true,
            replaced_identity: None,
        };
        let file = place.into_file(raw, Names::This);
        file.keep();
        file
    }

    /// Has the file system write over the file's data where they lie, rather than elsewhere each time: Btrfs, which can do so
    /// with files that are empty still, and then keeps no checksums of them. Advice: it cannot fail.
    pub fn overwrite_in_place(&self) {
        if crate::fiemap::filesystem_magic(&self.raw.file) == Some(preallocate::BTRFS_MAGIC)
            && let Ok(flags) = rustix::fs::ioctl_getflags(&self.raw.file)
        {
            let _ = rustix::fs::ioctl_setflags(&self.raw.file, flags | IFlags::NOCOW);
        }
    }

    /// Where the file lies until it is published.
    pub fn partial_path(&self) -> &Path {
        &self.place.partial_path
    }

    /// Where the file will lie.
    pub fn final_path(&self) -> &Path {
        &self.place.final_path
    }

    /// Device and inode of the file that publishing replaces: it must not be a source of the copy.
    pub fn replaced_identity(&self) -> Option<(u64, u64)> {
        self.place.replaced_identity
    }

    /// Marks the file with what is promised of its storage; `false` if its file system keeps no marks.
    pub fn mark(&self, kept: StoragePromise) -> bool {
        crate::storage_promise::mark(&self.raw.file, kept)
    }

    /// Bytes that the file occupies on the host now.
    pub fn allocated_bytes(&self) -> Result<u64> {
        Ok(crate::raw_file::unsigned(self.raw.stat()?.st_blocks).saturating_mul(512))
    }

    /// Leaves the partial file in place when this value goes, so that the copy can be resumed.
    pub fn keep(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// Gives the file its name, after all of it is on stable storage. A failure removes the partial file.
    ///
    /// `Refused` if the name was taken meanwhile and may not be replaced.
    pub fn publish(self) -> Result<()> {
        self.keeps.store(false, Ordering::Relaxed);
        self.raw.file.sync_all().map_err(|error| Error::io("flush", error).path(&self.raw.name))?;
        match &self.names {
            Names::This => self.place.give_name()?,
            Names::Broker(broker, number) => broker.ask(&Request::Publish(*number))?,
        }
        self.keep();
        match &self.names {
            Names::This => self.place.sync(),
            Names::Broker(broker, number) => broker.ask(&Request::SyncPublished(*number)),
        }
    }

    /// Removes the partial file.
    pub fn discard(self) -> Result<()> {
        self.keep();
        self.remove()
    }

    fn remove(&self) -> Result<()> {
        match &self.names {
            Names::This => self.place.remove(),
            Names::Broker(broker, number) => broker.ask(&Request::Discard(*number)),
        }
    }

    /// Whether the file system says that so much is free.
    fn has_free(&self, bytes: u64) -> bool {
        let facts = rustix::fs::fstatvfs(&self.raw.file);
        facts.is_ok_and(|facts| facts.f_bavail.saturating_mul(facts.f_frsize) >= bytes)
    }

    /// Makes the file at least `len_bytes` long.
    fn grow_to(&self, len_bytes: u64) -> Result<()> {
        if self.len_bytes() < len_bytes { self.set_len(len_bytes) } else { Ok(()) }
    }

    /// Gives storage to `span` by writing zeros where the file system says that nothing is. Where it does
    /// not say so, what lies before the file's end is left as it is.
    fn reserve_by_writing(&self, span: HostSpan) -> Result<()> {
        let len_bytes = self.len_bytes();
        let end = span.end().min(Offset::new(len_bytes));
        let mut at = span.start();
        while at < end {
            let Ok(hole) = rustix::fs::seek(&self.raw.file, SeekFrom::Hole(at.get())) else { break };
            let hole = Offset::new(hole.max(at.get()));
            if hole >= end {
                break;
            }
            let data = match rustix::fs::seek(&self.raw.file, SeekFrom::Data(hole.get())) {
                Ok(data) if data > hole.get() => Offset::new(data).min(end),
                Err(Errno::NXIO) => end,
                _ => break,
            };
            self.raw.write_zeros(Span::between(hole, data))?;
            at = data;
        }
        self.raw.write_zeros(Span::between(span.start().max(Offset::new(len_bytes)), span.end()))
    }
}

impl ReadAt<Host> for NewFile {
    fn len_bytes(&self) -> u64 {
        self.raw.current_len_bytes().unwrap_or(0)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.raw.read(at, buf, self.raw.current_len_bytes()?)
    }
}

impl TargetFile for NewFile {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.raw.write(at, buf)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.raw.file, len_bytes)
            .map_err(|error| self.raw.error("set the length", Offset::new(len_bytes), error))
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        let (start, len_bytes) = (span.start().get(), span.len_bytes());
        match rustix::fs::fallocate(&self.raw.file, FallocateFlags::empty(), start, len_bytes) {
            Ok(()) => Ok(()),
            Err(error) if is_unsupported(error) => self.reserve_by_writing(span),
            Err(error) => Err(self.raw.error("reserve", span.start(), error)),
        }
    }

    fn reserve_ahead(&self, span: HostSpan, spare_bytes: u64) -> bool {
        let (start, len_bytes) = (span.start().get(), span.len_bytes());
        if spare_bytes > 0 && !self.has_free(len_bytes.saturating_add(spare_bytes)) {
            return false;
        }
        let found = rustix::fs::fallocate(&self.raw.file, FallocateFlags::empty(), start, len_bytes).is_ok();
        if !found {
            // A full host may have given a part of it, which others need.
            let way = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.raw.file, way, start, len_bytes);
        }
        found
    }

    fn prepare_memory(&self, memory: &mut [u8]) {
        self.raw.prepare_memory(memory);
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.grow_to(span.end().get())?;
        zero(&self.raw, span)
    }

    fn flush(&self) -> Result<()> {
        self.raw.flush()
    }

    fn clone_range(&self, source: &dyn HostFile, span: HostSpan) -> Result<bool> {
        let Some(descriptor) = source.descriptor() else { return Ok(false) };
        crate::clone::clone_range(&self.raw.file, descriptor, span)
            .map_err(|error| self.raw.error("clone", span.start(), error))
    }

    /// The advice starts the write-back of what is dirty and drops what is clean; therefore each span gets it twice:
    /// when it is complete, and when the next one is.
    fn forget(&self, span: HostSpan) {
        self.raw.drop_cache(span);
        let last = self.leaving.lock().unwrap_or_else(PoisonError::into_inner).replace(span);
        if let Some(last) = last {
            self.raw.drop_cache(last);
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.keeps.load(Ordering::Relaxed) {
            let _ = self.remove();
        }
    }
}

/// Makes `span` read as zeros: by freeing its storage, by marking it, or by writing.
pub(crate) fn zero(raw: &RawFile, span: HostSpan) -> Result<()> {
    if span.is_empty() {
        return Ok(());
    }
    let ways = [
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    ];
    for way in ways {
        match rustix::fs::fallocate(&raw.file, way, span.start().get(), span.len_bytes()) {
            Ok(()) => return Ok(()),
            Err(error) if is_unsupported(error) => {}
            Err(error) => return Err(raw.error("zero", span.start(), error)),
        }
    }
    raw.write_zeros(span)
}

/// Who changes a new file's names.
enum Names {
    /// This process.
    This,
    /// The broker, which knows it by a number.
    Broker(&'static Client, usize),
}

/// Where a new file goes.
pub(crate) struct Place {
    pub(crate) final_path: PathBuf,
    pub(crate) partial_path: PathBuf,
    pub(crate) replace: bool,
    pub(crate) replaced_identity: Option<(u64, u64)>,
}

/// A [`Place`] on its way from the broker: what the file will be called and is called, and what it replaces.
pub(crate) type ToldPlace = (OsString, OsString, Option<(u64, u64)>);

impl Place {
    pub(crate) fn tell(&self) -> ToldPlace {
        ((&self.final_path).into(), (&self.partial_path).into(), self.replaced_identity)
    }

    pub(crate) fn from_told(told: ToldPlace, replace: bool) -> Self {
        let (final_path, partial_path, replaced_identity) = told;
        Self { final_path: final_path.into(), partial_path: partial_path.into(), replace, replaced_identity }
    }

    pub(crate) fn find(path: &Path, replace: bool) -> Result<Self> {
        let final_path = follow_link(path)?;
        let replaced_identity = match rustix::fs::stat(&final_path) {
            Err(Errno::NOENT) => None,
            Err(error) => return Err(io_error("create", &final_path, error)),
            Ok(stat) if Kind::of(&stat, &final_path)? == Kind::BlockDevice => {
                return Err(Error::refused("is a block device, not a file").path(final_path.display()));
            }
            Ok(_) if !replace => return Err(exists(&final_path)),
            Ok(stat) => Some((stat.st_dev, stat.st_ino)),
        };
        let Some(name) = final_path.file_name() else {
            return Err(Error::refused("names no file").path(final_path.display()));
        };
        let mut partial_name = OsString::from(".");
        partial_name.push(name);
        partial_name.push(PARTIAL_SUFFIX);
        let partial_path = final_path.with_file_name(partial_name);
        Ok(Self { final_path, partial_path, replace, replaced_identity })
    }

    /// Makes the partial file, held by its lock.
    pub(crate) fn create(self) -> Result<(Self, RawFile)> {
        for _ in 0..CREATE_ATTEMPTS_MAX {
            self.remove_stale()?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OPEN_FLAGS;
            let fd = match rustix::fs::open(&self.partial_path, flags, Mode::from_raw_mode(0o666)) {
                Err(Errno::EXIST) => continue,
                result => result.map_err(|error| io_error("create", &self.partial_path, error))?,
            };
            let raw = RawFile::adopt(fd, &self.partial_path)?;
            raw.lock_whole(|| self.is_being_written())?;
            if self.still_names(&raw.file) {
                self.take_mode_of_replaced(&raw).inspect_err(|_| drop(self.remove()))?;
                return Ok((self, raw));
            }
        }
        Err(self.is_being_written())
    }

    /// A file that replaces another is not easier to read than that one was.
    fn take_mode_of_replaced(&self, raw: &RawFile) -> Result<()> {
        if self.replaced_identity.is_none() {
            return Ok(());
        }
        let stat =
            rustix::fs::stat(&self.final_path).map_err(|error| io_error("stat", &self.final_path, error))?;
        rustix::fs::fchmod(&raw.file, Mode::from_raw_mode(stat.st_mode & 0o777))
            .map_err(|error| io_error("set the mode of", &self.partial_path, error))
    }

    /// Gives the partial file its name.
    pub(crate) fn give_name(&self) -> Result<()> {
        match self.replace {
            true => rustix::fs::rename(&self.partial_path, &self.final_path)
                .map_err(|error| io_error("rename", &self.final_path, error)),
            false => rename_to_free_name(&self.partial_path, &self.final_path),
        }
    }

    /// Makes the name last through a power cut.
    pub(crate) fn sync(&self) -> Result<()> {
        sync_folder(folder_of(&self.final_path))
    }

    /// Removes the partial file.
    pub(crate) fn remove(&self) -> Result<()> {
        rustix::fs::unlink(&self.partial_path).map_err(|error| io_error("remove", &self.partial_path, error))
    }

    /// The file as a new one of this place.
    fn into_file(self, raw: RawFile, names: Names) -> NewFile {
        let (keeps, leaving) = (AtomicBool::new(false), Mutex::new(None));
        NewFile { raw, place: self, names, keeps, leaving }
    }

    /// Removes what a killed copy left.
    fn remove_stale(&self) -> Result<()> {
        let Some(stale) = self.open_existing()? else { return Ok(()) };
        stale.lock_whole(|| self.is_being_written())?;
        if self.still_names(&stale.file) {
            rustix::fs::unlink(&self.partial_path)
                .map_err(|error| io_error("remove", &self.partial_path, error))?;
        }
        Ok(())
    }

    fn open_existing(&self) -> Result<Option<RawFile>> {
        open_own(&self.partial_path)
    }

    /// Whether the partial name still means this file, now that it is locked.
    fn still_names(&self, file: &File) -> bool {
        names(&self.partial_path, file)
    }

    pub(crate) fn is_being_written(&self) -> Error {
        Error::refused("another process is writing this file").path(self.final_path.display())
    }
}

/// Opens a file that goes with a target, for reading and writing; `None` if there is none.
pub(crate) fn open_own(path: &Path) -> Result<Option<RawFile>> {
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io_error("open", path, error)),
        Ok(stat) => {
            if Kind::of(&stat, path)? == Kind::BlockDevice {
                return Err(Error::refused("is in the way").path(path.display()));
            }
        }
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OPEN_FLAGS;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(io_error("open", path, error)),
        Ok(fd) => RawFile::adopt(fd, path).map(Some),
    }
}

/// Whether `path` means this file.
pub(crate) fn names(path: &Path, file: &File) -> bool {
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(named), Ok(opened)) => (named.dev(), named.ino()) == (opened.dev(), opened.ino()),
        _ => false,
    }
}

/// Follows a link at `path` itself, so that the new file can lie beside what it replaces.
fn follow_link(path: &Path) -> Result<PathBuf> {
    match rustix::fs::lstat(path) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() => {
            std::fs::canonicalize(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Error::refused("is a link to nothing").path(path.display()),
                _ => io_error("create", path, error),
            })
        }
        _ => Ok(path.to_owned()),
    }
}

/// Renames, unless the name is taken.
pub(crate) fn rename_to_free_name(from: &Path, to: &Path) -> Result<()> {
    let renamed = match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A link fails where the name is taken, as the rename would.
        Err(error) if is_unsupported(error) => {
            rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()).and_then(|()| rustix::fs::unlink(from))
        }
        result => result,
    };
    renamed.map_err(|error| match error {
        Errno::EXIST => exists(to),
        error => io_error("rename", to, error),
    })
}

pub(crate) fn exists(path: &Path) -> Error {
    Error::refused("exists already").path(path.display()).hint("--force replaces it")
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Makes a new, changed or removed name in `folder` last through a power cut.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let opened = File::open(folder).map_err(|error| io_error("open", folder, error))?;
    match rustix::fs::fsync(&opened) {
        Ok(()) => Ok(()),
        Err(error) if is_unsupported(error) => Ok(()),
        Err(error) => Err(io_error("flush", folder, error)),
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    fn span(start: u64, len_bytes: u64) -> HostSpan {
        Span::new(Offset::new(start), len_bytes)
    }

    #[test]
    fn reserving_by_writing_keeps_what_was_written() {
        let dir = testkit::scratch();
        let file = NewFile::create(dir.path().join("target"), false).unwrap();
        file.write_at(Offset::new(65_536), &[7; 4096]).unwrap();
        file.set_len(1 << 20).unwrap();
        file.reserve_by_writing(span(4096, 2 << 20)).unwrap();
        assert_eq!(file.len_bytes(), (2 << 20) + 4096);
        let mut bytes = vec![0xff; (2 << 20) + 4096];
        file.read_at(Offset::ZERO, &mut bytes).unwrap();
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, if (65_536..69_632).contains(&at) { 7 } else { 0 }, "at {at}");
        }
        assert!(file.allocated_bytes().unwrap() >= 2 << 20);
    }

    #[test]
    fn two_copies_to_one_target_are_kept_apart() {
        let dir = testkit::scratch();
        let path = dir.path().join("target");
        let first = NewFile::create(&path, false).unwrap();
        first.write_at(Offset::ZERO, b"first").unwrap();
        for result in [NewFile::create(&path, false), NewFile::create(&path, true)] {
            assert_eq!(result.err().unwrap().kind(), ErrorKind::Refused);
        }
        first.publish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn many_at_once_make_one() {
        let dir = testkit::scratch();
        let path = dir.path().join("target");
        std::fs::write(dir.path().join(".target.leandisk-partial"), "stale").unwrap();
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| NewFile::create(&path, false).ok())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.iter().flatten().count(), 1);
    }
}
