//! What each kind of place can do in one attempt, and the attempts that make a [`Storage`] of it.
//!
//! Invariants: there are no more requests at a time than a place takes; attempts are bounded, and the last one's error is told; a file that is to be made again, since nobody knows whether it was made, is
//! compared first with what is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use block::{Error, Result};
use mutants::broken;
use repository::{Kind, Storage};

use crate::fault::{Attempt, Fault};

/// How long anything is waited for, and how often it is tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Until a connection stands.
    pub connect: Duration,
    /// Until something more of an answer comes.
    pub silence: Duration,
    /// Before the second attempt; twice as long before each further one.
    pub first_pause: Duration,
    /// The longest of these pauses.
    pub pause_max: Duration,
    /// Attempts in all. No more than 3 of a place that has not answered yet, whose name is as likely to be wrong, or that does not any more.
    pub attempt_count: u32,
}

impl Default for Limits {
    /// Some two minutes of pauses in all.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            silence: Duration::from_secs(120),
            first_pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(30),
            attempt_count: 10,
        }
    }
}

/// Attempts of a place that has not answered yet, or does not any more.
const FIRST_ATTEMPT_COUNT: u32 = 3;

/// A kind of place. Callable from any thread; whatever it answers is checked already, but for the contents of files.
pub(crate) trait Backend: Send + Sync {
    /// Its name for messages, without passwords.
    fn place(&self) -> String;

    /// Makes what a new repository needs.
    fn prepare(&self) -> Attempt<()>;

    /// The names of all files of a kind but the configuration: IDs alone.
    fn names(&self, kind: Kind) -> Attempt<Vec<String>>;

    /// A file's length; `None` if there is none.
    fn len_bytes(&self, kind: Kind, name: &str) -> Attempt<Option<u64>>;

    /// A whole file, of [`repository::WHOLE_BYTES_MAX`] at most.
    fn read(&self, kind: Kind, name: &str) -> Attempt<Vec<u8>>;

    /// So many bytes from an offset on.
    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Attempt<Vec<u8>>;

    /// Makes a file, or makes it anew. When this returns it is whole, and there for good.
    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Attempt<()>;

    /// Removes a file, which need not be there.
    fn remove(&self, kind: Kind, name: &str) -> Attempt<()>;

    /// Removes what killed processes left half-written.
    fn clear_partial(&self) -> Attempt<()> {
        Ok(())
    }

    fn connection_count(&self) -> usize;
}

/// A place that is asked again while that may help.
pub(crate) struct Retrying<B> {
    backend: B,
    limits: Limits,
    has_answered: AtomicBool,
    /// How many more requests the place takes at this moment.
    free: Mutex<usize>,
    is_free: Condvar,
}

/// One of the requests that a place takes at a time.
struct Turn<'a, B>(&'a Retrying<B>);

impl<B> Drop for Turn<'_, B> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.is_free.notify_one();
    }
}

impl<B: Backend> Retrying<B> {
    pub(crate) fn new(backend: B, limits: Limits) -> Self {
        let free = Mutex::new(backend.connection_count().max(1));
        Self { backend, limits, has_answered: AtomicBool::new(false), free, is_free: Condvar::new() }
    }

    fn turn(&self) -> Turn<'_, B> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.is_free.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Turn(self)
    }

    fn attempt_count(&self) -> u32 {
        match self.has_answered.load(Ordering::Relaxed) {
            true => self.limits.attempt_count,
            false => self.limits.attempt_count.min(FIRST_ATTEMPT_COUNT),
        }
    }

    /// `attempt` is told whether it is not the first.
    fn retried<T>(&self, mut attempt: impl FnMut(bool) -> Attempt<T>) -> Result<T> {
        let mut pause = self.limits.first_pause;
        let mut count = 1;
        loop {
            let turn = self.turn();
            let attempted = attempt(count > 1);
            drop(turn);
            match attempted {
                Ok(answer) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Fault::Final(error)) => {
                    // Only one who is there can say so.
                    self.has_answered.store(true, Ordering::Relaxed);
                    return Err(error.path(self.backend.place()));
                }
                Err(Fault::Passing(error)) if count >= self.attempt_count() => {
                    // Whoever asks next, if only to remove a lock, is not to wait as long.
                    self.has_answered.store(false, Ordering::Relaxed);
                    return Err(given_up(error, count).path(self.backend.place()));
                }
                Err(Fault::Passing(_)) => {}
            }
            thread::sleep(pause);
            pause = (pause * 2).min(self.limits.pause_max);
            count += 1;
        }
    }

    fn make(&self, kind: Kind, name: &str, contents: &[u8], is_again: bool) -> Attempt<()> {
        // Nobody knows what an attempt before has made.
        let found = if is_again { self.backend.len_bytes(kind, name)? } else { None };
        match found {
            Some(len_bytes) if len_bytes == contents.len() as u64 && self.holds(kind, name, contents)? => {
                Ok(())
            }
            Some(_) => {
                self.backend.remove(kind, name)?;
                self.backend.create(kind, name, contents)
            }
            None => self.backend.create(kind, name, contents),
        }
    }

    fn holds(&self, kind: Kind, name: &str, contents: &[u8]) -> Attempt<bool> {
        Ok(broken!(LengthIsBelieved) || self.backend.read(kind, name)? == contents)
    }
}

fn given_up(error: Error, count: u32) -> Error {
    match count {
        1 => error,
        _ => error.hint(format!("it was tried {count} times")),
    }
}

impl<B: Backend> Storage for Retrying<B> {
    fn place(&self) -> String {
        self.backend.place()
    }

    fn prepare(&self) -> Result<()> {
        self.retried(|_| self.backend.prepare())
    }

    fn names(&self, kind: Kind) -> Result<Vec<String>> {
        match kind {
            Kind::Config => {
                let found = self.retried(|_| self.backend.len_bytes(kind, ""))?;
                Ok(found.into_iter().map(|_| String::new()).collect())
            }
            _ => self.retried(|_| self.backend.names(kind)),
        }
    }

    fn read(&self, kind: Kind, name: &str) -> Result<Vec<u8>> {
        self.retried(|_| self.backend.read(kind, name))
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        match len {
            0 => Ok(Vec::new()),
            _ => self.retried(|_| self.backend.read_part(kind, name, offset, len)),
        }
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Result<()> {
        self.retried(|is_again| self.make(kind, name, contents, is_again))
    }

    fn remove(&self, kind: Kind, name: &str) -> Result<()> {
        self.retried(|_| self.backend.remove(kind, name))
    }

    fn connection_count(&self) -> usize {
        self.backend.connection_count()
    }

    fn clear_partial(&self) -> Result<()> {
        self.retried(|_| self.backend.clear_partial())
    }
}

/// Where a file lies below the repository's root, in restic's layout.
pub(crate) fn relative_path(kind: Kind, name: &str) -> String {
    match (kind.folder(), kind) {
        (None, _) => "config".into(),
        (Some(folder), Kind::Pack) => format!("{folder}/{}/{name}", name.get(..2).unwrap_or_default()),
        (Some(folder), _) => format!("{folder}/{name}"),
    }
}

/// Those that are names of files: whatever else is there belongs to others, or is half-written.
pub(crate) fn is_id(name: &str) -> bool {
    repository::Id::from_hex(name).is_some()
}
