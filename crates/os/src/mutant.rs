//! Ways to break a stream, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A write of which some was taken counts as done.
    StreamCutShort,
    /// A write that failed counts as done, and others follow.
    StreamFailureForgotten,
}

/// All of them.
pub const MUTANTS: [Mutant; 2] = [Mutant::StreamCutShort, Mutant::StreamFailureForgotten];
