//! Who watches from C: functions that are told how far the work is, and what needs saying.
//!
//! Invariants: no two calls of one observer overlap, whichever threads they come from; a worker that finds one running goes on
//! without; and none comes after the call of the library has returned, since no thread of it is left then.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use block::{Error, Result};
use engine::JobMonitor;
use leandisk::{Cancel, Observer, Progress, Unwatched, Waiting};

use crate::error::c_text;
use crate::options::{self, Versioned};

/// The least time between two calls about one phase, but for its first and last.
const CALL_INTERVAL: Duration = Duration::from_millis(50);

/// Who watches a call. The functions are called from threads of the library, never two at once, and not after the call has returned.
/// They may call this library, but must not leave by an exception or longjmp. Each may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ObserverStruct {
    /// Set by leandisk_observer_init.
    pub struct_size: usize,
    /// Handed to the functions as it is.
    pub context: *mut c_void,
    /// How far the work is. `phase` is "copy", "verify", "move", "free", "zero" or "write"; or, with a total of 0, words for what
    /// nobody knows the length of. Not called more than some 20 times a second. An answer other than 0 stops the work as soon
    /// as that is safe: the call then ends with LEANDISK_KIND_INTERRUPTED.
    pub progress: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            phase: *const c_char,
            done_bytes: u64,
            total_bytes: u64,
        ) -> c_int,
    >,
    /// A sentence for people: a warning, or what was decided.
    pub note: Option<unsafe extern "C" fn(context: *mut c_void, text: *const c_char)>,
}

// SAFETY: integers, a pointer that is only handed on, optional functions; its size comes first.
unsafe impl Versioned for ObserverStruct {
    const NAME: &'static str = "leandisk_observer";
    const FIRST_BYTES: usize = size_of::<Self>();
    type Told = Watch;

    unsafe fn told(&self) -> Result<Watch> {
        let watcher = Watcher { told: *self, talking: Mutex::new(()), cancel: Cancel::default() };
        Ok(Watch(Arc::new(watcher)))
    }
}

/// Reads an observer; null watches nothing.
///
/// # Safety
/// As for [`options::read`].
pub(crate) unsafe fn read(observer: *const ObserverStruct) -> Result<Box<dyn Observer>> {
    if observer.is_null() {
        return Ok(Box::new(Unwatched));
    }
    // SAFETY: as the caller promises.
    Ok(Box::new(unsafe { options::read(observer) }?))
}

struct Watcher {
    told: ObserverStruct,
    /// Held by who calls.
    talking: Mutex<()>,
    /// Set once a function wants the work to stop.
    cancel: Cancel,
}

// SAFETY: the context is handed to the functions alone, which the header says are called from other threads, one at a time.
unsafe impl Send for Watcher {}
// SAFETY: as above; the calls are one at a time by the lock.
unsafe impl Sync for Watcher {}

impl Watcher {
    fn talk(&self) -> MutexGuard<'_, ()> {
        self.talking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells how far a phase is; whoever calls has the lock.
    fn tell(&self, _talking: &MutexGuard<'_, ()>, phase: &CString, done_bytes: u64, total_bytes: u64) {
        let Some(progress) = self.told.progress else { return };
        // SAFETY: the caller of the library gave this function for this context, and the phase's name is good for the call.
        let answer = unsafe { progress(self.told.context, phase.as_ptr(), done_bytes, total_bytes) };
        if answer != 0 {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }
}

/// An observer in C.
pub(crate) struct Watch(Arc<Watcher>);

impl Observer for Watch {
    fn waiting(&self, what: &'static str) -> Box<dyn Waiting> {
        self.0.tell(&self.0.talk(), &c_text(what), 0, 0);
        Box::new(Unwatched)
    }

    fn progress(&self, phase: &'static str, total_bytes: u64, cancel: Cancel) -> Box<dyn Progress> {
        let phase = Phase {
            watcher: self.0.clone(),
            name: c_text(phase),
            total_bytes,
            done_bytes: AtomicU64::new(0),
            cancel,
            told: Mutex::new(Instant::now()),
        };
        phase.tell(&phase.watcher.talk());
        Box::new(phase)
    }

    fn note(&self, text: &str) {
        let Some(note) = self.0.told.note else { return };
        let text = c_text(text);
        let _talking = self.0.talk();
        // SAFETY: the caller of the library gave this function for this context, and the text is good for the call.
        unsafe { note(self.0.told.context, text.as_ptr()) };
    }

    fn cancel(&self) -> Result<Cancel> {
        match self.0.cancel.load(Ordering::Relaxed) {
            true => Err(Error::interrupted()),
            false => Ok(self.0.cancel.clone()),
        }
    }
}

/// Work through a known number of bytes.
struct Phase {
    watcher: Arc<Watcher>,
    name: CString,
    total_bytes: u64,
    done_bytes: AtomicU64,
    cancel: Cancel,
    /// When it was last told of.
    told: Mutex<Instant>,
}

impl Phase {
    fn tell(&self, talking: &MutexGuard<'_, ()>) {
        self.watcher.tell(talking, &self.name, self.done_bytes.load(Ordering::Relaxed), self.total_bytes);
    }

    /// Whoever finds another one telling has nothing to add.
    fn tell_if_due(&self) {
        let Ok(mut told) = self.told.try_lock() else { return };
        if told.elapsed() < CALL_INTERVAL {
            return;
        }
        let Ok(talking) = self.watcher.talking.try_lock() else { return };
        self.tell(&talking);
        *told = Instant::now();
    }
}

impl JobMonitor for Phase {
    fn advanced(&self, read_bytes: u64, _written_bytes: u64) {
        self.done_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.tell_if_due();
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed) || self.watcher.cancel.load(Ordering::Relaxed)
    }
}

impl Progress for Phase {
    fn finish(&self) {
        self.tell(&self.watcher.talk());
    }
}
