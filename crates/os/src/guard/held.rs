//! A file that nobody else has open, and that nobody can open meanwhile: a lease for writing, which the kernel gives only then
//! (`fcntl(2)`, `F_SETLEASE`). Whoever opens the file waits until it is let go, so that is soon.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use block::{Error, Result};
use rustix::fs::{FallocateFlags, Timespec, Timestamps, UTIME_OMIT, fallocate, ftruncate, futimens};

use super::room::{FileFacts, has_storage_from, left_alone, uncuttable, would_lose_by_moving};
use super::{GuardedKind, GuardedSystem, Handle, LeftAlone};
use crate::lock_bytes::{is_leased, lease_alone, lease_break_time};

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
    /// When it was taken.
    since: Instant,
    /// For how long it is ours whoever waits.
    ours_for: Duration,
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
        // Half of what the kernel grants: this process may be stopped at any moment, also in the middle of a call.
        let (since, ours_for) = (Instant::now(), lease_break_time() / 2);
        Ok(match lease_alone(&file) {
            Ok(()) => Taken::Held(HeldFile { file, system: self.clone(), since, ours_for }),
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

    /// Whether nobody else can have it open by now: the kernel breaks a lease only once somebody has waited for it.
    fn is_ours(&self) -> bool {
        self.since.elapsed() < self.ours_for || is_leased(&self.file)
    }

    /// Frees what it has past its end up to `to`, unless there is more beyond which would go as well. `false`, and nothing is freed, if somebody
    /// may have waited for it until the kernel took the lease away, or if it got capabilities since it was taken.
    pub fn cut(&self, to: u64) -> Result<bool> {
        // ext4 frees all of what is past the end or nothing.
        let is_whole = self.system.kind == GuardedKind::Ext4;
        if is_whole && has_storage_from(&self.file, to)? {
            return Ok(true);
        }
        let found = self.facts()?;
        if would_lose_by_moving(&self.file) {
            return Ok(false);
        }
        // Asked last: what somebody appends after the look at the length would go.
        if !self.is_ours() {
            return Ok(false);
        }
        let from = found.size_bytes.next_multiple_of(4096);
        let done = if is_whole {
            ftruncate(&self.file, found.size_bytes)
        } else {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let len = to.saturating_sub(from);
            if len == 0 { Ok(()) } else { fallocate(&self.file, punch, from, len) }
        };
        done.map(|()| true).map_err(|error| self.error("give back room of", error.into()))
    }

    /// Sets when it was modified, unless somebody else may have modified it meanwhile.
    pub fn stamp(&self, modified: (i64, u32)) -> Result<()> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: modified.0, tv_nsec: modified.1.into() },
        };
        if self.facts()?.modified == modified || !self.is_ours() {
            return Ok(());
        }
        futimens(&self.file, &times).map_err(|error| self.error("set the time of", error.into()))
    }

    pub(super) fn error(&self, what: &'static str, error: io::Error) -> Error {
        let inode = self.file.metadata().map(|found| found.ino()).unwrap_or_default();
        Error::io(what, error).path(format!("inode {inode} of {}", self.system.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::thread;

    use super::*;

    /// A file of which 1 MiB is reserved past its end and that is taken; its path.
    fn taken(folder: &tempfile::TempDir, ours_for: Duration) -> (HeldFile, PathBuf) {
        let path = folder.path().join("file");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all_at(b"written", 0).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
        lease_alone(&file).unwrap();
        // The way of ext4 works anywhere.
        let system = GuardedSystem {
            path: folder.path().to_owned(),
            kind: GuardedKind::Ext4,
            uuid: [0; 16],
            moves_whole_files: false,
            device: 0,
        };
        (HeldFile { file, system, since: Instant::now(), ours_for }, path)
    }

    #[test]
    fn what_got_capabilities_since_it_was_taken_is_not_cut() {
        use super::super::room::tests::{CAPABILITIES, has};
        let folder = testkit::scratch();
        let (held, path) = taken(&folder, Duration::from_secs(3600));
        let how = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "security.capability", &CAPABILITIES, how).unwrap();
        assert!(!held.cut(1 << 20).unwrap());
        assert!(has(&held.file), "they stay");
        rustix::fs::removexattr(&path, "security.capability").unwrap();
        assert!(held.cut(1 << 20).unwrap());
    }

    #[test]
    fn what_others_may_have_opened_by_now_is_not_cut() {
        for (ours_for, is_ours) in [(Duration::ZERO, false), (Duration::from_secs(3600), true)] {
            let folder = testkit::scratch();
            let (held, path) = taken(&folder, ours_for);
            // Nobody waits: it is ours however long that takes.
            assert!(held.is_ours());
            let opener = thread::spawn(move || {
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(b"appended", 7).unwrap();
            });
            while !held.is_wanted() {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(held.cut(1 << 20).unwrap(), is_ours);
            held.stamp((1, 0)).unwrap();
            let is_stamped = held.facts().unwrap().modified == (1, 0);
            assert_eq!(is_stamped, is_ours);
            drop(held);
            opener.join().unwrap();
            assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"writtenappended");
        }
    }
}
