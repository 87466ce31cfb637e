//! One display of several copies: their progress is that of one.
//!
//! How much a disk holds that is copied is known when its turn comes; until then it counts as much as its files have on the host.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use block::Result;
use engine::JobMonitor;

use super::{Item, Seen};
use crate::copy::SourceSeen;
use crate::{Cancel, Observer, Progress, Waiting};

/// The watcher of all copies.
pub(super) struct Watching<'a> {
    inner: &'a dyn Observer,
    verifies: bool,
    cancel: OnceLock<Cancel>,
    shared: Arc<Shared>,
}

struct Shared {
    /// The display, once the first copy begins.
    display: Mutex<Option<Box<dyn Progress>>>,
    total_bytes: AtomicU64,
}

impl Shared {
    fn with(&self, tell: impl FnOnce(&dyn Progress)) {
        let display = self.display.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(display) = &*display {
            tell(&**display);
        }
    }

    /// Takes what is known now for what was expected.
    fn correct(&self, expected_bytes: u64, known_bytes: u64) {
        let total = self.total_bytes.load(Ordering::Relaxed);
        let total = total.saturating_sub(expected_bytes).saturating_add(known_bytes);
        self.total_bytes.store(total, Ordering::Relaxed);
        self.with(|display| display.set_total(total));
    }
}

impl<'a> Watching<'a> {
    pub(super) fn new(inner: &'a dyn Observer, seen: &Seen, verifies: bool) -> Self {
        let expected = seen.iter().flatten().map(|seen| expected_bytes(seen, verifies));
        let total_bytes = AtomicU64::new(expected.map(|[copied, compared]| copied + compared).sum());
        let shared = Arc::new(Shared { display: Mutex::new(None), total_bytes });
        Self { inner, verifies, cancel: OnceLock::new(), shared }
    }

    /// Whether the user asked to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.get().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }

    /// The watcher of one of them.
    pub(super) fn disk<'w>(&'w self, item: &Item, seen: &SourceSeen) -> OfDisk<'w, 'a> {
        let [copied, compared] = expected_bytes(seen, self.verifies);
        let left = Mutex::new(vec![("copy", copied), ("verify", compared)]);
        OfDisk { all: self, name: item.shown(), left }
    }

    /// Takes the display away.
    pub(super) fn finish(&self) {
        self.shared.with(|display| display.finish());
    }
}

/// Bytes that are copied, and compared.
fn expected_bytes(seen: &SourceSeen, verifies: bool) -> [u64; 2] {
    [seen.allocated_bytes.min(seen.virtual_bytes), if verifies { seen.virtual_bytes } else { 0 }]
}

/// The watcher of one disk's copy.
pub(super) struct OfDisk<'w, 'a> {
    all: &'w Watching<'a>,
    name: String,
    /// What is expected of phases that did not begin.
    left: Mutex<Vec<(&'static str, u64)>>,
}

impl Observer for OfDisk<'_, '_> {
    fn waiting(&self, what: &'static str) -> Box<dyn Waiting> {
        let is_shown = self.all.shared.display.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        // Two displays would be in each other's way.
        if is_shown { Box::new(crate::Unwatched) } else { self.all.inner.waiting(what) }
    }

    fn progress(&self, phase: &'static str, total_bytes: u64, cancel: Cancel) -> Box<dyn Progress> {
        let expected = {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let index = left.iter().position(|(of, _)| *of == phase);
            index.map_or(0, |index| left.swap_remove(index).1)
        };
        let shared = self.all.shared.clone();
        {
            let mut display = shared.display.lock().unwrap_or_else(PoisonError::into_inner);
            display.get_or_insert_with(|| {
                let total = shared.total_bytes.load(Ordering::Relaxed);
                self.all.inner.progress("copy", total, cancel.clone())
            });
        }
        shared.correct(expected, total_bytes);
        Box::new(Part { shared, total_bytes, done_bytes: AtomicU64::new(0), cancel })
    }

    fn note(&self, text: &str) {
        self.all.inner.note(&format!("{}: {text}", self.name));
    }

    fn cancel(&self) -> Result<Cancel> {
        if let Some(cancel) = self.all.cancel.get() {
            return Ok(cancel.clone());
        }
        let cancel = self.all.inner.cancel()?;
        Ok(self.all.cancel.get_or_init(|| cancel).clone())
    }
}

impl Drop for OfDisk<'_, '_> {
    /// What did not begin will not: it failed, or was a dry run.
    fn drop(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left: u64 = left.iter().map(|(_, bytes)| bytes).sum();
        self.all.shared.correct(left, 0);
    }
}

/// A phase of one disk as a part of the display.
struct Part {
    shared: Arc<Shared>,
    total_bytes: u64,
    done_bytes: AtomicU64,
    cancel: Cancel,
}

impl JobMonitor for Part {
    fn resumed(&self, read_bytes: u64, written_bytes: u64) {
        self.done_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.shared.with(|display| display.resumed(read_bytes, written_bytes));
    }

    fn advanced(&self, read_bytes: u64, written_bytes: u64) {
        self.done_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.shared.with(|display| display.advanced(read_bytes, written_bytes));
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

impl Progress for Part {
    fn finish(&self) {}
}

impl Drop for Part {
    /// What a copy that failed did not do is not expected any more.
    fn drop(&mut self) {
        self.shared.correct(self.total_bytes, self.done_bytes.load(Ordering::Relaxed));
    }
}
