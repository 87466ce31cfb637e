//! Ways to break what keeps a copy from or to an export whole, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// What was written is not flushed.
    TargetNotFlushed,
    /// A flush while others write that the server could not do is forgotten, and what it lost with it.
    EarlyFlushForgiven,
    /// A target's connection that is lost is taken up again, and what the server may have lost with it is not written again.
    TargetTakenUpAgain,
    /// Connections to a target are made when they are needed, also after something was written.
    TargetConnectedLate,
    /// What a server says it could not do counts as done.
    RefusalTakenForDone,
    /// What is skipped keeps what lay there.
    SkippedNotZeroed,
    /// What a server calls a hole is taken for zeros, whether it calls it so or not.
    HoleTakenForZeros,
    /// A reply that breaks off counts as read.
    BrokenReplyTaken,
}

/// All of them.
pub const MUTANTS: [Mutant; 8] = [
    Mutant::TargetNotFlushed,
    Mutant::EarlyFlushForgiven,
    Mutant::TargetTakenUpAgain,
    Mutant::TargetConnectedLate,
    Mutant::RefusalTakenForDone,
    Mutant::SkippedNotZeroed,
    Mutant::HoleTakenForZeros,
    Mutant::BrokenReplyTaken,
];
