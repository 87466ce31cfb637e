//! A file that nobody else has open, and that nobody can open meanwhile: a lease for writing, which the kernel gives only then
//! (`fcntl(2)`, `F_SETLEASE`). Whoever opens the file waits until it is let go, so that is soon.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use block::{Error, Result};
use rustix::fs::{FallocateFlags, Timespec, Timestamps, UTIME_OMIT, fallocate, ftruncate, futimens};

use super::room::{FileFacts, has_storage_from, left_alone, uncuttable};
use super::{GuardedKind, GuardedSystem, Handle, LeftAlone};
use crate::lock_bytes::{is_leased, lease_alone};

/// What came of taking a file.
pub enum Taken {
    /// It is ours until this is dropped.
    Held(HeldFile),
    /// Somebody has it open.
    Busy,
    /// It is to be left alone.
    Not(LeftAlone),
    /// It is gone.
    Gone,
}

/// A file that nobody else has open.
pub struct HeldFile {
    pub(super) file: File,
    pub(super) system: GuardedSystem,
}

impl GuardedSystem {
    /// Takes a file for oneself alone, if nobody has it open.
    pub fn hold(&self, handle: &Handle) -> Result<Taken> {
        self.hold_unless(handle, left_alone)
    }

    /// The same to give room back and for nothing else: of a file that became a program since, it goes back as well.
    pub fn hold_to_cut(&self, handle: &Handle) -> Result<Taken> {
        self.hold_unless(handle, uncuttable)
    }

    fn hold_unless(
        &self,
        handle: &Handle,
        left_alone: impl Fn(&File) -> Result<Option<LeftAlone>>,
    ) -> Result<Taken> {
        let Some(reader) = self.open_read(handle)? else { return Ok(Taken::Gone) };
        if let Some(left) = left_alone(&reader)? {
            // Without a name it goes by itself.
            return Ok(if left == LeftAlone::NoFile { Taken::Gone } else { Taken::Not(left) });
        }
        let Ok(file) = self.open_write(&reader)? else { return Ok(Taken::Busy) };
        drop(reader);
        Ok(match lease_alone(&file) {
            Ok(()) => Taken::Held(HeldFile { file, system: self.clone() }),
            Err(_) => Taken::Busy,
        })
    }
}

impl HeldFile {
    /// As it is.
    pub fn facts(&self) -> Result<FileFacts> {
        FileFacts::of(&self.file).map_err(|error| self.error("look at", error))
    }

    /// Whether somebody waits for it.
    pub fn is_wanted(&self) -> bool {
        !is_leased(&self.file)
    }

    /// Frees what it has past its end up to `to`; `false` if there is more beyond, which would go as well.
    pub fn cut(&self, to: u64) -> Result<bool> {
        let found = self.facts()?;
        let from = found.size_bytes.next_multiple_of(4096);
        if self.system.kind != GuardedKind::Ext4 {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let len = to.saturating_sub(from);
            let punched = if len == 0 { Ok(()) } else { fallocate(&self.file, punch, from, len) };
            return punched.map(|()| true).map_err(|error| self.error("give back room of", error.into()));
        }
        // ext4 frees all of what is past the end or nothing.
        if has_storage_from(&self.file, to)? {
            return Ok(false);
        }
        ftruncate(&self.file, found.size_bytes)
            .map_err(|error| self.error("give back room of", error.into()))?;
        Ok(true)
    }

    /// Sets when it was modified.
    pub fn stamp(&self, modified: (i64, u32)) -> Result<()> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: modified.0, tv_nsec: modified.1.into() },
        };
        if self.facts()?.modified == modified {
            return Ok(());
        }
        futimens(&self.file, &times).map_err(|error| self.error("set the time of", error.into()))
    }

    pub(super) fn error(&self, what: &'static str, error: io::Error) -> Error {
        let inode = self.file.metadata().map(|found| found.ino()).unwrap_or_default();
        Error::io(what, error).path(format!("inode {inode} of {}", self.system.path.display()))
    }
}
