//! Packs on their way into a repository: at once by who filled them, or by threads where the storage takes several at a time.
//!
//! Invariants: there are no more packs in memory than threads, and those that are being filled; what [`Uploads::wait`] returns after is
//! there for good; once a pack could not be stored, none is stored any more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use block::{Error, Result};

use crate::Id;
use crate::index::IndexFile;
use crate::pack::Filling;
use crate::storage::Kind;
use crate::unlocked::Unlocked;

/// More threads than that help nobody.
const THREADS_MAX: usize = 16;
/// So many packs are named in one index. Once it is stored, a backup that is interrupted has not done them in vain.
const PACKS_PER_INDEX: usize = 64;

/// What has been stored, and what is in no index yet.
struct Stored {
    repository: Arc<Unlocked>,
    unindexed: Mutex<IndexFile>,
    stored_bytes: AtomicU64,
    state: Mutex<State>,
    /// Nothing is on its way any more.
    is_idle: Condvar,
}

#[derive(Default)]
struct State {
    /// Packs that threads were given.
    waiting: usize,
    failed: Option<Arc<Error>>,
}

/// Where packs, indexes and the snapshot of a session go.
pub(crate) struct Uploads {
    stored: Arc<Stored>,
    /// Until this goes.
    packs: Option<SyncSender<Filling>>,
    threads: Vec<JoinHandle<()>>,
}

impl Uploads {
    pub(crate) fn begin(repository: Arc<Unlocked>) -> Self {
        let count = repository.storage().connection_count().min(THREADS_MAX);
        let stored = Arc::new(Stored {
            repository,
            unindexed: Mutex::default(),
            stored_bytes: AtomicU64::new(0),
            state: Mutex::default(),
            is_idle: Condvar::new(),
        });
        // Who gives a pack waits until a thread takes it.
        let (packs, given) = sync_channel(0);
        let given = Arc::new(Mutex::new(given));
        let start = |_| {
            let (stored, given) = (stored.clone(), given.clone());
            let work = move || stored.take_all(&given);
            std::thread::Builder::new().name("upload".into()).spawn(work).ok()
        };
        let threads: Vec<_> = (0..count).filter_map(start).collect();
        let packs = (!threads.is_empty()).then_some(packs);
        Self { stored, packs, threads }
    }

    /// Stores a pack, now or soon. An error may be of one before.
    pub(crate) fn put(&self, filling: Filling) -> Result<()> {
        if filling.is_empty() {
            return Ok(());
        }
        let Some(packs) = &self.packs else { return self.stored.put(filling) };
        {
            let mut state = self.stored.state();
            state.check()?;
            state.waiting += 1;
        }
        packs.send(filling).map_err(|_| Error::io("store a pack", std::io::ErrorKind::BrokenPipe.into()))
    }

    /// Until everything that was put is stored.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut state = self.stored.state();
        while state.waiting > 0 {
            state = self.stored.is_idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.check()
    }

    /// Stores an index of all packs that are in none.
    pub(crate) fn save_index(&self) -> Result<()> {
        let index = std::mem::take(&mut *self.stored.unindexed());
        self.stored.save_index(&index)
    }

    pub(crate) fn save(&self, kind: Kind, value: &impl serde::Serialize) -> Result<Id> {
        self.stored.save(kind, value)
    }

    /// Bytes of all files that were made, until now.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored.stored_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.packs = None;
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(Error::again(error)))
    }
}

/// A pack that a thread has taken is done with, whatever comes of it.
struct Taken<'a>(&'a Stored);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        if state.waiting == 0 {
            self.0.is_idle.notify_all();
        }
    }
}

impl Stored {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unindexed(&self) -> MutexGuard<'_, IndexFile> {
        self.unindexed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when nobody can give any more.
    fn take_all(&self, given: &Mutex<Receiver<Filling>>) {
        loop {
            let next = given.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(filling) = next else { return };
            let _taken = Taken(self);
            if self.state().failed.is_some() {
                continue;
            }
            if let Err(error) = self.put(filling) {
                self.state().failed.get_or_insert(Arc::new(error));
            }
        }
    }

    fn put(&self, filling: Filling) -> Result<()> {
        let (bytes, blobs) = filling.finish(&self.repository.key)?;
        let id = Id::of(&bytes);
        self.repository.storage().create(Kind::Pack, &id.to_string(), &bytes)?;
        self.stored_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut unindexed = self.unindexed();
        unindexed.push(id, &blobs);
        let full = (unindexed.pack_count() >= PACKS_PER_INDEX).then(|| std::mem::take(&mut *unindexed));
        drop(unindexed);
        full.map_or(Ok(()), |index| self.save_index(&index))
    }

    fn save_index(&self, index: &IndexFile) -> Result<()> {
        if index.pack_count() > 0 {
            self.save(Kind::Index, index)?;
        }
        Ok(())
    }

    fn save(&self, kind: Kind, value: &impl serde::Serialize) -> Result<Id> {
        let (id, bytes) = self.repository.save_json(kind, value)?;
        self.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(id)
    }
}
