//! The names of one target in the host's folder, and what is done to them by a process that is not confined: this one, or the broker.
//!
//! Until it is whole the target is `.NAME.leandisk-partial`, which its owner alone can read, and what is stored of the copy's progress
//! `.NAME.leandisk-progress`, both beside `NAME`. A partial target is held by a lock, which the kernel drops with the process.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use block::{Error, Result, TargetName};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::Resource;

use crate::StoragePromise;
use crate::new_file::{Place, folder_of, names, open_own, rename_to_free_name, sync_folder};
use crate::raw_file::{OPEN_FLAGS, RawFile, io_error, is_unsupported};
use crate::target_options::{Cloning, FolderOptions, TargetSpace};

/// The attribute that holds a partial target's mark.
pub(crate) const MARK: &str = "user.leandisk.partial";

/// Bytes of a mark.
pub(crate) const MARK_LEN: usize = 16;

/// The longest name in a folder (`NAME_MAX` of Linux).
const NAME_BYTES_MAX: usize = 255;

/// FAT's number (`MSDOS_SUPER_MAGIC` of Linux).
const FAT_MAGIC: u64 = 0x4d44;
/// The number of ext2, ext3 and ext4 (`EXT4_SUPER_MAGIC` of Linux).
const EXT_MAGIC: u64 = 0xef53;
/// The longest file on FAT: its directory entries have 32 bits for the length.
const FAT_LEN_BYTES_MAX: u64 = (1 << 32) - 1;

/// The names of one target.
pub(crate) struct TargetNames {
    pub(crate) place: Place,
    pub(crate) options: FolderOptions,
}

impl TargetNames {
    /// `Refused` if the target exists and may not be replaced, is no regular file, or has too long a name.
    pub(crate) fn find(target: &Path, options: FolderOptions) -> Result<Self> {
        let names = Self { place: Place::find(target, options.replace)?, options };
        let longest = names.path(TargetName::Draft);
        let len = longest.file_name().map_or(0, std::ffi::OsStr::len);
        if len > NAME_BYTES_MAX {
            let spare = len - NAME_BYTES_MAX;
            return Err(Error::refused("the target's name is too long").path(target.display()).hint(
                format!("while it is made it has a longer one: choose one that is {spare} bytes shorter"),
            ));
        }
        Ok(names)
    }

    /// Where the file of that name lies.
    pub(crate) fn path(&self, name: TargetName) -> PathBuf {
        let suffix = match name {
            TargetName::Target => return self.place.final_path.clone(),
            TargetName::Partial => return self.place.partial_path.clone(),
            TargetName::Checkpoint => ".leandisk-progress",
            TargetName::Draft => ".leandisk-progress-draft",
            TargetName::Filling => ".leandisk-filling",
            TargetName::Filled => ".leandisk-filled",
            TargetName::FilledDraft => ".leandisk-filled-draft",
        };
        let mut hidden = OsString::from(".");
        hidden.push(self.place.final_path.file_name().unwrap_or_default());
        hidden.push(suffix);
        self.place.final_path.with_file_name(hidden)
    }

    fn folder(&self) -> &Path {
        folder_of(&self.place.final_path)
    }

    /// Fails as the making of a file of this length would, and answers what is free: with a file that has no name, or, where the
    /// file system has none such, by what it says. No name changes.
    pub(crate) fn check_room(&self, len_bytes: u64) -> Result<TargetSpace> {
        let limit = rustix::process::getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| len_bytes > limit) {
            return Err(self
                .too_long(len_bytes)
                .hint("'ulimit -f' sets the longest file that a program may make"));
        }
        match self.nameless() {
            Ok(file) => match rustix::fs::ftruncate(&file, len_bytes) {
                Err(Errno::FBIG) => return Err(self.too_long(len_bytes)),
                Err(error) => return Err(io_error("set the length", &self.place.partial_path, error)),
                Ok(()) => {}
            },
            Err(error) if is_unsupported(error) || error == Errno::ISDIR => self.check_folder(len_bytes)?,
            Err(error) => return Err(io_error("create", &self.place.partial_path, error)),
        }
        self.room()
    }

    /// An empty file of the folder that has no name.
    fn nameless(&self) -> rustix::io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(self.folder(), flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    /// Whether the target can share storage with `source`, which is open for reading. No name changes.
    pub(crate) fn check_cloning(&self, source: BorrowedFd<'_>) -> Result<Cloning> {
        match self.nameless() {
            Ok(empty) => crate::clone::try_cloning(&empty, source)
                .map_err(|error| io_error("try cloning to", &self.place.partial_path, error)),
            Err(error) if is_unsupported(error) || error == Errno::ISDIR => Ok(Cloning::no(
                "the target's file system has no files without a name, with which cloning is tried",
            )),
            Err(error) => Err(io_error("create", &self.place.partial_path, error)),
        }
    }

    /// As [`Self::check_room`], by what the file system says of itself.
    fn check_folder(&self, len_bytes: u64) -> Result<()> {
        let folder = self.folder();
        let failed = |error| io_error("create", &self.place.partial_path, error);
        rustix::fs::accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
            .map_err(failed)?;
        let facts = rustix::fs::statvfs(folder).map_err(failed)?;
        if facts.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(failed(Errno::ROFS));
        }
        match magic_of(folder) {
            Some(FAT_MAGIC) if len_bytes > FAT_LEN_BYTES_MAX => Err(self.too_long(len_bytes)),
            _ => Ok(()),
        }
    }

    fn too_long(&self, len_bytes: u64) -> Error {
        Error::refused(format!(
            "a file of {len_bytes} bytes is too long for the target's file system, or for this user"
        ))
        .path(self.place.final_path.display())
    }

    /// What is free, with what a partial target has that is there already: it is used again, or removed first.
    fn room(&self) -> Result<TargetSpace> {
        let folder = self.folder();
        let facts = rustix::fs::statvfs(folder).map_err(|error| io_error("statvfs", folder, error))?;
        // What ext keeps for root is told apart; elsewhere the difference is not root's either.
        let is_roots = rustix::process::geteuid().is_root() && magic_of(folder) == Some(EXT_MAGIC);
        let blocks = if is_roots { facts.f_bfree } else { facts.f_bavail };
        let left = rustix::fs::lstat(&self.place.partial_path);
        let left_bytes = left.map_or(0, |stat| crate::raw_file::unsigned(stat.st_blocks).saturating_mul(512));
        // A file system that does not count has no blocks at all.
        let free_bytes = match facts.f_blocks {
            0 => u64::MAX,
            _ => blocks.saturating_mul(facts.f_frsize).saturating_add(left_bytes),
        };
        Ok(TargetSpace { free_bytes })
    }

    /// Opens the file of that name, held by its lock; `None` if there is none.
    pub(crate) fn open(&self, name: TargetName) -> Result<Option<RawFile>> {
        open_own(&self.path(name))?.map(|raw| self.hold(raw)).transpose()
    }

    /// Makes an empty file, held by its lock, which its owner alone can read.
    pub(crate) fn create(&self, name: TargetName) -> Result<RawFile> {
        let path = self.path(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OPEN_FLAGS;
        let fd = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => return Err(self.place.is_being_written()),
            result => result.map_err(|error| io_error("create", &path, error))?,
        };
        let raw = RawFile::adopt(fd, &path)?;
        if name == TargetName::Partial {
            // Where the file system keeps no marks, the file has none.
            let _ = rustix::fs::fsetxattr(&raw.file, MARK, &random_mark()?, XattrFlags::empty());
        }
        self.hold(raw)
    }

    fn hold(&self, raw: RawFile) -> Result<RawFile> {
        raw.lock_whole(|| self.place.is_being_written())?;
        if names(&raw.path, &raw.file) { Ok(raw) } else { Err(self.place.is_being_written()) }
    }

    /// Removes the name; answers whether there was one.
    pub(crate) fn remove(&self, name: TargetName) -> Result<bool> {
        let path = self.path(name);
        match rustix::fs::unlink(&path) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(io_error("remove", &path, error)),
        }
    }

    /// Gives a file another name. `Refused` if that is the target's own, and may not be replaced.
    pub(crate) fn rename(&self, from: TargetName, to: TargetName) -> Result<()> {
        let (from, to_path) = (self.path(from), self.path(to));
        if to == TargetName::Target && !self.options.replace {
            return rename_to_free_name(&from, &to_path);
        }
        rustix::fs::rename(&from, &to_path).map_err(|error| io_error("rename", &to_path, error))
    }

    /// Makes the names last through a power cut.
    pub(crate) fn sync(&self) -> Result<()> {
        sync_folder(self.folder())
    }

    /// Gives the partial target the permissions of a whole one, and the mark of its storage for that of its own.
    pub(crate) fn complete(&self, partial: &File) -> Result<()> {
        let failed = |what, error| io_error(what, &self.place.partial_path, error);
        if self.options.kept != StoragePromise::Nothing {
            // Whether the file system keeps it is looked at when the target has its name.
            crate::storage_promise::mark(partial, self.options.kept);
        }
        match rustix::fs::fremovexattr(partial, MARK) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) if is_unsupported(error) => {}
            Err(error) => return Err(failed("remove the mark", error)),
        }
        match rustix::fs::fchmod(partial, self.final_mode()?) {
            Ok(()) => Ok(()),
            // A file system without permissions, where all files have those of the mount.
            Err(error) if is_unsupported(error) || error == Errno::PERM => Ok(()),
            Err(error) => Err(failed("set the mode", error)),
        }
    }

    /// The permissions of a whole target.
    fn final_mode(&self) -> Result<Mode> {
        let path = &self.place.final_path;
        let others = match self.place.replaced_identity {
            None => !umask(),
            Some(_) => rustix::fs::stat(path).map_err(|error| io_error("stat", path, error))?.st_mode,
        };
        Ok(Mode::from_raw_mode(self.options.mode & others & 0o777))
    }
}

/// The permissions that a copy of what is at `path` may have. A block device's are the host's, not the disk's: a copy of it is its
/// owner's alone.
pub fn copied_mode(path: &Path) -> u32 {
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => metadata.mode() & 0o777,
        _ => 0o600,
    }
}

/// Which file system `path` lies on, by Linux' number.
fn magic_of(path: &Path) -> Option<u64> {
    let facts = rustix::fs::statfs(path).ok()?;
    u64::try_from(facts.f_type).ok()
}

/// Bits that new files of this process lack. All but the owner's where that is not told.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o077)
}

/// A mark that no other file has.
fn random_mark() -> Result<[u8; MARK_LEN]> {
    let path = Path::new("/dev/urandom");
    let failed = |error: io::Error| io_error("read", path, error);
    let mut mark = [0; MARK_LEN];
    let file = File::open(path).map_err(failed)?;
    io::Read::read_exact(&mut &file, &mut mark).map_err(failed)?;
    Ok(mark)
}
