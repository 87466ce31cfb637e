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
    /// What a full host did not take of the tables is not written later either.
    FailedCommitForgotten,
    /// A unit whose storage a full host did not take back is taken for one that reads as zeros.
    UnpunchedIsClean,
    /// Where a unit would lie best is taken for free.
    PlaceNotAskedFor,
    /// What is discarded is not noted as changed.
    DiscardNotNoted,
    /// Bitmaps are said to be right before what they say is on stable storage.
    NotedTooSoon,
    /// A VHDX log that one header names is taken for one that neither does.
    HalfNamedIsUnnamed,
}

/// Those that a host without room brings to light.
pub const FULL_MUTANTS: [Mutant; 3] =
    [Mutant::FailedCommitForgotten, Mutant::UnpunchedIsClean, Mutant::HalfNamedIsUnnamed];

/// Those that cuts bring to light.
pub const MUTANTS: [Mutant; 5] = [
    Mutant::NoFlushOfData,
    Mutant::NoFlushOfTables,
    Mutant::TablesBeforeData,
    Mutant::ReusedTooSoon,
    Mutant::PlaceNotAskedFor,
];
