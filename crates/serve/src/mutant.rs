//! Ways to break how a disk is kept as it was at a moment, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// What changes is kept once it has changed.
    KeptAfterChange,
    /// A reader asks what was kept, and reads the disk then.
    AskedBeforeReading,
    /// What could not be kept is read as it is now.
    FailureForgotten,
}

/// All of them.
pub const MUTANTS: [Mutant; 3] =
    [Mutant::KeptAfterChange, Mutant::AskedBeforeReading, Mutant::FailureForgotten];
