//! Ways to break reserving ahead, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// What the host calls a hole counts as one though a write to it is under way.
    InFlightForgotten,
    /// What is written stays counted as unused.
    UsedStaysUnused,
    /// What is unused is taken back while others write.
    GivenBackBesideWrites,
}

/// All of them.
pub const MUTANTS: [Mutant; 3] =
    [Mutant::InFlightForgotten, Mutant::UsedStaysUnused, Mutant::GivenBackBesideWrites];
