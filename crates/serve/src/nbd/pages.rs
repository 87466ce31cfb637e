//! Pages of a file on their way from the host's cache to a socket, without a copy of what they hold.
//!
//! They wait in a pipe: so what cannot be read is known before the reply's head is sent, which promises that it could be.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use block::{Error, Result};
use extent::HostOffset;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};

/// What a pipe is to hold. Every user may have one of so many.
const PIPE_BYTES: usize = 1 << 20;
/// A pipe holds so many pages, whole or not.
const PAGE_BYTES: u64 = 4096;
/// The most pipes that a connection's workers have: each takes two descriptors of the process.
const PIPES_MAX: usize = 4;

/// What a pipe has room for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// A reply's head, and pages.
    ForAll,
    /// Pages alone.
    ForPages,
    /// Not even these.
    No,
}

/// A pipe, which is empty.
pub(crate) struct Pages {
    out: OwnedFd,
    into: OwnedFd,
    room_bytes: u64,
}

impl Pages {
    /// `None` where there are no more descriptors.
    pub(crate) fn new() -> Option<Self> {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        // What there is will do.
        let _ = fcntl_setpipe_size(&into, PIPE_BYTES);
        let room_bytes = fcntl_getpipe_size(&into).ok()? as u64;
        Some(Self { out, into, room_bytes })
    }

    /// Whether a head and the pages of `len_bytes` from `at` on have room, or at least the pages.
    pub(crate) fn room_for(&self, at: HostOffset, len_bytes: u64) -> Room {
        let pages = (at.get() % PAGE_BYTES + len_bytes).div_ceil(PAGE_BYTES);
        match self.room_bytes / PAGE_BYTES {
            room if room > pages => Room::ForAll,
            room if room == pages => Room::ForPages,
            _ => Room::No,
        }
    }

    /// Takes `head`, before any pages.
    pub(crate) fn put(&self, head: &[u8]) -> io::Result<()> {
        match rustix::io::write(&self.into, head)? {
            len if len == head.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Takes the pages of `len_bytes` from `at` on, for which there is room. If that fails some may be in the pipe.
    pub(crate) fn fill(&self, file: BorrowedFd<'_>, at: HostOffset, len_bytes: u64) -> Result<()> {
        let failed = |error: io::Error| Error::io("read", error).at(at);
        let mut from = at.get();
        let end = from + len_bytes;
        while from < end {
            let len = usize::try_from(end - from).unwrap_or(usize::MAX);
            match splice(file, Some(&mut from), &self.into, None, len, SpliceFlags::NONBLOCK) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(())
    }

    /// Sends all `len_bytes`.
    pub(crate) fn send(&self, socket: impl AsFd, len_bytes: u64) -> io::Result<()> {
        let mut left = len_bytes;
        while left > 0 {
            let len = usize::try_from(left).unwrap_or(usize::MAX);
            match splice(&self.out, None, &socket, None, len, SpliceFlags::empty()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => left -= sent as u64,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The pipe of a thread that lends.
#[derive(Default)]
pub(crate) enum Lending {
    /// Nothing was lent so far.
    #[default]
    Untried,
    /// Pages go through this.
    By(Pages),
    /// It cannot be done here.
    Not,
}

impl Lending {
    /// The pipe, to be put back if it is empty again.
    pub(crate) fn take(&mut self) -> Option<Pages> {
        match std::mem::replace(self, Self::Not) {
            Self::Untried => Pages::new(),
            Self::By(pages) => Some(pages),
            Self::Not => None,
        }
    }
}

/// The pipes of a connection's workers.
#[derive(Default)]
pub(crate) struct Pipes {
    free: Vec<Pages>,
    made_count: usize,
}

impl Pipes {
    /// An empty one. `None` while all that there may be are in use.
    pub(crate) fn take(&mut self) -> Option<Pages> {
        if let Some(pages) = self.free.pop() {
            return Some(pages);
        }
        if self.made_count == PIPES_MAX {
            return None;
        }
        self.made_count += 1;
        Pages::new()
    }

    /// Takes one back that is empty.
    pub(crate) fn give_back(&mut self, pages: Pages) {
        self.free.push(pages);
    }
}
