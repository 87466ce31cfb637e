//! Ways to break the regulation, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// What this process did counts as others' work.
    OwnWorkCounted,
    /// Data that this process wrote, and that reach the device later, count as others' work.
    LateWritesCounted,
    /// Slow progress is not looked at.
    ProgressIgnored,
    /// A pause ends while others go on.
    PauseEndsBlindly,
    /// Work waits as long as others work.
    Starved,
    /// Work in turns does not look what others do between its turns.
    RestUnseen,
    /// Work in turns goes on through a pause that was decided in the midst of a turn.
    TurnUnended,
}

/// All of them.
pub const MUTANTS: [Mutant; 7] = [
    Mutant::OwnWorkCounted,
    Mutant::LateWritesCounted,
    Mutant::ProgressIgnored,
    Mutant::PauseEndsBlindly,
    Mutant::Starved,
    Mutant::RestUnseen,
    Mutant::TurnUnended,
];
