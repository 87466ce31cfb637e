//! Ways to break disks in use, one at a time. Compiled for tests alone: an exploration that does not find each of them
//! proves nothing.

use std::cell::Cell;

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Data are not flushed before what refers to them is written.
    NoFlushOfData,
    /// What refers to data is not flushed at the end.
    NoFlushOfTables,
    /// What refers to data is written before the data are flushed.
    TablesBeforeData,
    /// A freed unit is used again before its freeing is on stable storage.
    ReusedTooSoon,
}

/// All of them.
pub const MUTANTS: [Mutant; 4] =
    [Mutant::NoFlushOfData, Mutant::NoFlushOfTables, Mutant::TablesBeforeData, Mutant::ReusedTooSoon];

thread_local! {
    static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Runs `act` with disks in use broken in this way, on this thread.
pub fn with<R>(mutant: Option<Mutant>, act: impl FnOnce() -> R) -> R {
    let before = CHOSEN.replace(mutant);
    let result = act();
    CHOSEN.set(before);
    result
}

pub(crate) fn is(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}
