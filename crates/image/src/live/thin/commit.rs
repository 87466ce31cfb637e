//! Brings a disk in use to stable storage, and gives back what was freed once its freeing is there.
//!
//! Invariants:
//! - a commit takes its snapshot with the state alone, so all data that it refers to were written before it flushes;
//! - what was freed before the snapshot is punched and free after it, what was freed later with the next one;
//! - flushes that were asked for while one was under way share the next;
//! - a commit that failed leaves the disk failed for good.
//!
//! Absent on purpose: commits by time. Nobody is promised anything before a flush; only tables that take too much memory are
//! committed without one.

use std::sync::atomic::Ordering;

use block::Result;

use super::{Container, State, Storage, Thin, Tidy, WriteOut};

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

impl<C: Container> Thin<C> {
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
        self.try_commit(committer).inspect_err(|_| self.has_failed.store(true, Ordering::Release))
    }

    fn try_commit(&self, committer: &mut Committer) -> Result<()> {
        let (snapshot, freed) = {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.before_commit(tables)?;
            let snapshot = tables.snapshot();
            (snapshot, state.take_freed())
        };
        if snapshot.pages.is_empty() {
            self.file.flush()?;
        } else {
            committer.out.write_out(&*self.file, &snapshot)?;
        }
        self.change().tables.settle(&snapshot);
        self.release(&freed)
    }

    /// What a mutant does.
    pub(super) fn release_now(&self) -> Result<()> {
        let freed = self.change().take_freed();
        self.release(&freed)
    }

    /// Gives back storage whose freeing is on stable storage.
    fn release(&self, freed: &[Storage]) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        let mut dying = Vec::new();
        {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            for storage in freed {
                dying.extend(container.dying(tables, storage)?);
            }
        }
        // Before anybody else can have it.
        for span in dying.into_iter().collect::<extent::ExtentSet<_>>().iter() {
            self.file.punch(span)?;
        }
        let mut state = self.change();
        let State { tables, container, .. } = &mut *state;
        freed.iter().try_for_each(|storage| container.release(tables, storage))
    }

    /// See [`block::LiveDisk::close`].
    pub(super) fn close_for_good(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        // What is under way ends; what comes later sees that the disk is closed.
        for region in &self.regions {
            drop(region.write().expect("no writer panicked"));
        }
        let mut committer = self.committer.lock().expect("no writer panicked");
        // Twice: the first frees, and that is to be on the storage too.
        self.commit(&mut committer)?;
        self.commit(&mut committer)?;
        if !self.has_begun.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.finish(&mut committer).inspect_err(|_| self.has_failed.store(true, Ordering::Release))
    }

    fn finish(&self, committer: &mut Committer) -> Result<()> {
        self.tidy(committer, Tidy::AtTheEnd)?;
        let len_bytes = {
            let mut state = self.change();
            let State { tables, container, .. } = &mut *state;
            container.finish(tables)?
        };
        self.try_commit(committer)?;
        // Before the file is cut off: a log that is still in force says how long it is at least.
        committer.out.end(&*self.file)?;
        self.change().tables.truncate(len_bytes)?;
        self.file.flush()
    }
}

impl<C: Container> State<C> {
    /// All that was freed since this was asked last.
    fn take_freed(&mut self) -> Vec<Storage> {
        let mut freed = std::mem::take(&mut self.freed);
        freed.extend(self.freed_units.drain().map(|(_, at)| Storage::Unit(at)));
        freed
    }
}
