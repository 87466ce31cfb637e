//! Ways to break a change in place, one at a time. Compiled for tests alone: an exploration that does not find each of
//! them proves nothing.

use std::cell::Cell;

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Moved data are not flushed before the commit.
    NoFlushOfData,
    /// The record is not flushed before it is applied.
    NoFlushOfRecord,
    /// What was applied is not flushed.
    NoFlushOfMetadata,
    /// Metadata change before the record is written.
    AppliedBeforeCommit,
    /// A recovery redoes a record that may be in the host's cache alone.
    RedoneFromCache,
    /// A recovery does not flush what it wrote, or found.
    RecoveryNotFlushed,
    /// Nobody looks whether a destination is free.
    PlacesNotChecked,
    /// What arrived is not read back.
    NotReadBack,
}

thread_local! {
    static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Runs `act` with the engine broken in this way, on this thread.
pub fn with<R>(mutant: Option<Mutant>, act: impl FnOnce() -> R) -> R {
    let before = CHOSEN.replace(mutant);
    let result = act();
    CHOSEN.set(before);
    result
}

pub(crate) fn is(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}
