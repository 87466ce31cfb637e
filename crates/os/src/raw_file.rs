//! What sources and targets share: opening by kind, errors with path and offset, whole reads and writes.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, Result, check_bounds};
use extent::{HostOffset, HostSpan};
use rustix::fs::{Advice, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::direct::Direct;
use crate::lock_bytes;
use crate::memory::prefer_large_pages;
use crate::requests::{Client, Request, client};
use crate::zeros::ZEROS;

/// What kind of thing a path is, of the kinds that can hold an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Regular,
    BlockDevice,
}

impl Kind {
    /// `Refused` for what is neither a regular file nor a block device.
    pub(crate) fn of(stat: &Stat, path: &Path) -> Result<Self> {
        let other = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(Self::Regular),
            FileType::BlockDevice => return Ok(Self::BlockDevice),
            FileType::Directory => "a directory",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            FileType::CharacterDevice => "a character device",
            _ => "of an unknown kind",
        };
        Err(Error::refused(format!("is {other}, neither a file nor a block device")).path(path.display()))
    }
}

/// The flags of every open: nothing inherits the descriptor, no controlling terminal, and no waiting for a
/// peer should the path have become a pipe.
pub(crate) const OPEN_FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// An open file or block device with what its errors need.
pub(crate) struct RawFile {
    pub(crate) file: File,
    /// Byte for byte as it was given.
    pub(crate) path: PathBuf,
    /// The path as text, for messages.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// A second descriptor that goes past the page cache.
    pub(crate) direct: Option<Direct>,
    /// Whether it holds locks, which end with it.
    is_locked: AtomicBool,
}

impl Drop for RawFile {
    /// Locks last until each copy of the descriptor is closed, and a program that another thread starts has copies of all for a
    /// moment: so they are given back here.
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
            let _ = lock_bytes::lock(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0);
        }
    }
}

/// An I/O error of `what` on `path`.
pub(crate) fn io_error(what: &str, path: &Path, source: impl Into<io::Error>) -> Error {
    Error::io(what, source.into()).path(path.display())
}

impl RawFile {
    /// Opens what is known to be no pipe, socket or character device, whose opening could have effects.
    pub(crate) fn open(path: &Path, flags: OFlags) -> Result<Self> {
        if let Some(broker) = client().filter(|_| flags == OFlags::RDONLY) {
            let ((), fd) = broker.open(&Request::Open { path: path.into(), past_cache: false })?;
            return Self::adopt(fd, path);
        }
        let stat = rustix::fs::stat(path).map_err(|error| io_error("open", path, error))?;
        Kind::of(&stat, path)?;
        let fd = rustix::fs::open(path, flags | OPEN_FLAGS, Mode::empty())
            .map_err(|error| io_error("open", path, error))?;
        Self::adopt(fd, path)
    }

    /// [`RawFile::open`] for reading, past the page cache where that can be done.
    pub(crate) fn open_direct(path: &Path) -> Result<Self> {
        match client() {
            Some(broker) => Self::ask(broker, &Request::Open { path: path.into(), past_cache: true }, path),
            None => Ok(Self::open(path, OFlags::RDONLY)?.with_direct(OFlags::RDONLY)),
        }
    }

    /// What the broker opens for reading and past the page cache, with `path` as its name.
    pub(crate) fn ask(broker: &Client, request: &Request, path: &Path) -> Result<Self> {
        let (fd, direct) = broker.open_direct(request)?;
        let mut raw = Self::adopt(fd, path)?;
        raw.direct = direct.and_then(Direct::adopt);
        Ok(raw)
    }

    /// The same file; what is aligned goes past the page cache where the file system can do that.
    pub(crate) fn with_direct(mut self, access: OFlags) -> Self {
        self.direct = Direct::open(&self.file, access);
        self
    }

    /// Takes an open descriptor, after another look at what it is: the path may have changed in between.
    pub(crate) fn adopt(fd: OwnedFd, path: &Path) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).map_err(|error| io_error("stat", path, error))?;
        let kind = Kind::of(&stat, path)?;
        let name = path.to_string_lossy().into_owned();
        Ok(Self {
            file: File::from(fd),
            path: path.to_owned(),
            name,
            kind,
            direct: None,
            is_locked: AtomicBool::new(false),
        })
    }

    /// The descriptor alone, for another process, to which its locks go too.
    pub(crate) fn into_fd(mut self) -> Result<OwnedFd> {
        *self.is_locked.get_mut() = false;
        let copied = self.file.as_fd().try_clone_to_owned();
        copied.map_err(|error| io_error("pass on", &self.path, error))
    }

    /// An error of `what` at `at`.
    pub(crate) fn error(&self, what: &str, at: HostOffset, source: impl Into<io::Error>) -> Error {
        Error::io(what, source.into()).path(&self.name).at(at)
    }

    /// What the system says of it now.
    pub(crate) fn stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.file).map_err(|error| Error::io("stat", error.into()).path(&self.name))
    }

    /// Its length now. A block device's is where its end lies.
    pub(crate) fn current_len_bytes(&self) -> Result<u64> {
        match self.kind {
            Kind::Regular => Ok(unsigned(self.stat()?.st_size)),
            Kind::BlockDevice => rustix::fs::seek(&self.file, SeekFrom::End(0))
                .map_err(|error| Error::io("find the end", error.into()).path(&self.name)),
        }
    }

    /// Fills `buf` from `at`; the whole of it, or an error.
    pub(crate) fn read(&self, at: HostOffset, buf: &mut [u8], len_bytes: u64) -> Result<()> {
        check_bounds(at, buf.len(), len_bytes).map_err(|error| error.path(&self.name))?;
        if let Some(direct) = &self.direct {
            let failed = |error| self.error("direct read", at, error);
            let read = direct.read(at, buf).map_err(failed)?;
            if read || direct.read_through(at, buf, len_bytes).map_err(failed)? {
                return Ok(());
            }
        }
        self.file.read_exact_at(buf, at.get()).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.error(
                "read",
                at,
                io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"),
            ),
            _ => self.error("read", at, error),
        })
    }

    /// Writes all of `buf` at `at`.
    pub(crate) fn write(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        if let Some(direct) = &self.direct
            && direct.write(at, buf).map_err(|error| self.error("direct write", at, error))?
        {
            return Ok(());
        }
        self.file.write_all_at(buf, at.get()).map_err(|error| self.error("write", at, error))
    }

    /// Has `memory` be of large pages if it is written past the page cache.
    pub(crate) fn prepare_memory(&self, memory: &mut [u8]) {
        if self.direct.is_some() {
            prefer_large_pages(memory);
        }
    }

    /// Writes zeros over `span`.
    pub(crate) fn write_zeros(&self, span: HostSpan) -> Result<()> {
        for piece in span.split(ZEROS.len() as u64) {
            let len = usize::try_from(piece.len_bytes()).expect("at most the zeros' length");
            self.file
                .write_all_at(&ZEROS[..len], piece.start().get())
                .map_err(|error| self.error("write zeros", piece.start(), error))?;
        }
        Ok(())
    }

    /// Locks the whole file (`flock(2)`) as long as this is open. On a file system without locks nothing can be told, as with
    /// any other program; `busy` is the error if another has it.
    pub(crate) fn lock_whole(&self, busy: impl FnOnce() -> Error) -> Result<()> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.is_locked.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(Errno::WOULDBLOCK) => Err(busy()),
            Err(error) if is_unsupported(error) || error == Errno::NOLCK => Ok(()),
            Err(error) => Err(io_error("lock", &self.path, error)),
        }
    }

    /// Locks bytes for reading as long as this is open; whether the file system has such locks. `WouldBlock` if another has them
    /// for writing.
    pub(crate) fn lock_bytes(&self, start: libc::off_t, len: libc::off_t) -> io::Result<bool> {
        match lock_bytes::lock(&self.file, libc::F_OFD_SETLK, libc::F_RDLCK, start, len) {
            Ok(_) => {
                self.is_locked.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::EINVAL)) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until everything written is on stable storage.
    pub(crate) fn flush(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.file).map_err(|error| Error::io("flush", error.into()).path(&self.name))
    }

    /// Drops what is clean in the page cache and starts writing back what is dirty. Advice: it cannot fail.
    pub(crate) fn drop_cache(&self, span: HostSpan) {
        if let Some(len_bytes) = NonZeroU64::new(span.len_bytes()) {
            let _ = rustix::fs::fadvise(&self.file, span.start().get(), Some(len_bytes), Advice::DontNeed);
        }
    }
}

/// Whether the file system or device lacks the operation, as opposed to failing in it.
pub(crate) fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL)
}

/// A size or count that the kernel types as signed but never makes negative.
pub(crate) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
