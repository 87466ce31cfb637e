//! Brings a disk in use to stable storage, and gives back what was freed once its freeing is there.
//!
//! Invariants:
//! - a commit takes its snapshot with the state alone, so all data that it refers to were written before it flushes;
//! - what was freed before the snapshot is punched and free after it, what was freed later with the next one;
//! - flushes that were asked for while one was under way share the next;
//! - a commit that failed leaves the disk failed for good, unless all that was missing was room: then the next one does all that
//!   this one did not.
//!
//! Absent on purpose: commits by time. Nobody is promised anything before a flush; only tables that take too much memory are
//! committed without one.

use std::sync::atomic::Ordering;

use block::{Error, Result, TargetFile};
use extent::{ExtentSet, HostSpan};

use super::{AllocatingDisk, Container, State, Storage, Tidy, WriteOut};
use crate::live::broken;

/// Who commits.
pub(super) struct Committer {
    pub(super) out: Box<dyn WriteOut>,
    /// All flushes up to this one are done.
    done: u64,
}

impl Committer {
    pub(super) fn new(out: Box<dyn WriteOut>) -> Self {
        Self { out, done: 0 }
    }
}

impl<C: Container> AllocatingDisk<C> {
    /// See [`block::EditDisk::flush`].
    pub(super) fn flush_all(&self) -> Result<()> {
        self.check_whole()?;
        let number = self.flush_count.fetch_add(1, Ordering::AcqRel) + 1;
        let mut committer = self.committer.lock().expect("no writer panicked");
        // One that began after this one did covers it.
        if committer.done >= number {
            return self.check_whole();
        }
        let begun = self.flush_count.load(Ordering::Acquire);
        self.commit(&mut committer)?;
        committer.done = begun;
        Ok(())
    }

    /// Brings all that was done before to stable storage, and then gives back what was freed.
    pub(super) fn commit(&self, committer: &mut Committer) -> Result<()> {
        self.check_whole()?;
        self.try_commit(committer, Release::IfPunched).inspect_err(|error| self.note(error))
    }

    /// Whether the disk is as it was before the operation that failed with `error`.
    fn is_as_before(&self, error: &Error) -> bool {
        error.is_full() && !self.file.is_lost()
    }

    fn note(&self, error: &Error) {
        if !self.is_as_before(error) {
            self.has_failed.store(true, Ordering::Release);
        }
    }

    /// Writes so many changed tables back that there is room for more in memory.
    pub(super) fn bound_tables(&self) -> Result<()> {
        if self.look().tables.is_full() {
            return self.commit(&mut self.committer.lock().expect("no writer panicked"));
        }
        Ok(())
    }

    fn try_commit(&self, committer: &mut Committer, release: Release) -> Result<()> {
        let (mut snapshot, freed) = {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.before_commit(tables)?;
            let snapshot = tables.snapshot();
            (snapshot, state.take_freed())
        };
        let written = match snapshot.pages.is_empty() {
            true => self.file.flush(),
            false => committer.out.write_out(&self.file, &mut snapshot),
        };
        {
            let mut state = self.change();
            state.tables.snapshot_written(&snapshot);
            if written.is_err() {
                // The storage may still refer to it.
                state.freed.extend(freed.iter().copied());
            }
        }
        written.and_then(|()| self.release(&freed, release))
    }

    /// What a mutant does.
    pub(super) fn release_now(&self) -> Result<()> {
        let freed = self.change().take_freed();
        self.release(&freed, Release::IfPunched)
    }

    /// Gives back storage whose freeing is on stable storage.
    fn release(&self, freed: &[Storage], release: Release) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        let mut dying: Vec<Vec<HostSpan>> = Vec::with_capacity(freed.len());
        {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            for storage in freed {
                dying.push(container.dying(tables, storage)?);
            }
        }
        // Before anybody else can have it.
        let kept = self.punch_all(dying.iter().flatten().copied().collect())?;
        let is_kept = |dying: &[HostSpan]| dying.iter().any(|span| kept.within(*span).next().is_some());
        let mut state = self.change();
        let State { tables, container, freed: later, .. } = &mut *state;
        for (storage, dying) in freed.iter().zip(dying) {
            if release == Release::IfPunched && is_kept(&dying) && !broken!(UnpunchedIsClean) {
                later.push(*storage);
            } else {
                container.release(tables, storage)?;
            }
        }
        Ok(())
    }

    /// Punches `dying`; says what of it the host had no room to punch.
    fn punch_all(&self, dying: ExtentSet<extent::Host>) -> Result<ExtentSet<extent::Host>> {
        let mut kept = ExtentSet::new();
        for span in dying.iter() {
            match self.file.punch(span) {
                Err(error) if error.is_full() => kept.push(span),
                punched => punched?,
            }
        }
        Ok(kept)
    }

    /// See [`block::LiveDisk::close`].
    pub(super) fn close_for_good(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        // What is under way ends; what comes later sees that the disk is closed.
        for region in &self.regions {
            drop(region.write().expect("no writer panicked"));
        }
        let mut committer = self.committer.lock().expect("no writer panicked");
        self.check_whole()?;
        let closed = self.commit_and_finish(&mut committer).inspect_err(|error| self.note(error));
        let Err(error) = closed else { return Ok(()) };
        if self.is_as_before(&error) && self.has_begun.swap(false, Ordering::AcqRel) {
            // The image is as the last commit left it, and is to look like one that nobody has open.
            let _ = committer.out.end(&self.file);
            return Err(error.hint(
                "what was written since the last flush may be missing from the image, which is whole; make room on the host",
            ));
        }
        Err(error)
    }

    fn commit_and_finish(&self, committer: &mut Committer) -> Result<()> {
        // Twice: the first frees, and that is to be on the storage too.
        self.try_commit(committer, Release::IfPunched)?;
        self.try_commit(committer, Release::All)?;
        if !self.has_begun.load(Ordering::Acquire) {
            return Ok(());
        }
        self.finish(committer)?;
        self.has_begun.store(false, Ordering::Release);
        Ok(())
    }

    fn finish(&self, committer: &mut Committer) -> Result<()> {
        self.tidy(committer, Tidy::AtTheEnd)?;
        let noted = self.note_changes(committer)?;
        let len_bytes = {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.finish(tables)?
        };
        self.try_commit(committer, Release::All)?;
        if noted {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.changes_noted(tables)?;
            drop(state);
            self.try_commit(committer, Release::All)?;
        }
        // Before the file is cut off: a log that is still in force says how long it is at least.
        committer.out.end(&self.file)?;
        match self.change().tables.truncate(len_bytes) {
            // It is longer than it need be.
            Err(error) if error.is_full() => {}
            cut_off => cut_off?,
        }
        self.file.flush()
    }
}

impl<C: Container> AllocatingDisk<C> {
    /// Notes in the image's record what changed; says whether all of it is noted. Where the host has no room for that, the record stays as
    /// one that was left in use.
    fn note_changes(&self, committer: &mut Committer) -> Result<bool> {
        let Some(marks) = &self.marks else { return Ok(false) };
        for piece in 0.. {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            let more = match container.note_changes(tables, marks, piece) {
                Err(error) if error.is_full() => return Ok(false),
                noted => noted?,
            };
            let is_full = tables.is_full();
            drop(state);
            if !more {
                break;
            }
            if is_full {
                self.try_commit(committer, Release::All)?;
            }
        }
        Ok(true)
    }
}

/// What becomes of what was freed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// It is free once its storage is the host's again: who gets it next may take it for zeros.
    IfPunched,
    /// It is free: nobody gets it any more.
    All,
}

impl<C: Container> State<C> {
    /// All that was freed since this was asked last.
    fn take_freed(&mut self) -> Vec<Storage> {
        let mut freed = std::mem::take(&mut self.freed);
        freed.extend(self.freed_units.drain().map(|(_, at)| Storage::Unit(at)));
        freed
    }
}
