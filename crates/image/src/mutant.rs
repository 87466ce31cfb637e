//! Ways to break disks in use, one at a time. Compiled for tests alone.

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
