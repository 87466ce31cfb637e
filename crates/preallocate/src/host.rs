//! What reserving ahead needs of the machine: a file, its file system's room, a clock, and threads that wait for each other. `os` is
//! the real one, `sim` one that delays, fails and reorders on demand.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use block::{Result, TargetFile};
use extent::{ExtentSet, Host, HostSpan};

use crate::{Millis, Policy};

/// The room of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSpace {
    /// Bytes that this program may still take.
    pub free_bytes: u64,
    /// Bytes that there are at all.
    pub all_bytes: u64,
}

/// The machine under a file whose storage is reserved ahead.
pub trait Machine: Send + Sync + 'static {
    /// How threads wait for each other.
    type Gate: Gate;

    /// The file.
    fn file(&self) -> &dyn TargetFile;

    /// See [`Gate`].
    fn gate(&self) -> &Self::Gate;

    /// How storage is reserved here; `None`: not at all.
    fn policy(&self) -> Option<Policy>;

    /// What of `window` has storage, or data that will have some; `None` if that cannot be told.
    fn allocated_within(&self, window: HostSpan) -> Result<Option<ExtentSet<Host>>>;

    /// Gives `span` storage and leaves length and contents as they are. `false` where that cannot be done.
    fn keep_room(&self, span: HostSpan) -> Result<bool>;

    /// Takes the storage of `span`, up to the block in which the file ends, which was never written, back. `false` where that cannot be done.
    fn give_room_back(&self, span: HostSpan) -> Result<bool>;

    /// Takes all storage past the end back. Nobody writes meanwhile.
    fn cut_off_room_past_end(&self) -> Result<()>;

    /// What the file system has left.
    fn room(&self) -> Result<HostSpace>;

    /// Milliseconds of any clock that does not go back.
    fn now(&self) -> Millis;

    /// Has the device begin with what was written to `span`.
    fn write_back(&self, _span: HostSpan) {}

    /// Whether the device does not mind where it writes.
    fn takes_scattered(&self) -> bool {
        false
    }

    /// Calls `act` at these intervals until it says `false`; whether it will.
    fn repeat(&self, every: Duration, act: Box<dyn FnMut() -> bool + Send>) -> bool;
}

/// Lets many through at once, or one alone.
pub trait Gate: Send + Sync {
    /// Runs `act` beside others.
    fn beside<R>(&self, act: impl FnOnce() -> R) -> R;

    /// Runs `act` while nobody else runs anything.
    fn alone<R>(&self, act: impl FnOnce() -> R) -> R;
}

impl Gate for RwLock<()> {
    fn beside<R>(&self, act: impl FnOnce() -> R) -> R {
        let _beside = self.read().unwrap_or_else(PoisonError::into_inner);
        act()
    }

    fn alone<R>(&self, act: impl FnOnce() -> R) -> R {
        let _alone = self.write().unwrap_or_else(PoisonError::into_inner);
        act()
    }
}
