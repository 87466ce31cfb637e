//! Ways to break a change in place, one at a time. Compiled for tests alone.

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
