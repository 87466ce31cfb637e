//! Ways to break the coordinator or a guest, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A guest thinks that its lease does not end.
    LeaseWithoutEnd,
    /// A device is leased that is leased already.
    GrantedTwice,
    /// A guest counts its lease from when it heard of it.
    CountedFromHearing,
    /// A coordinator leases at once, though leases of the one before may not have ended.
    NoQuietStart,
    /// What a guest had is free as soon as its connection ends.
    FreeOnDisconnect,
    /// A guest takes the answer to an ask that it gave up.
    OldAnswerTaken,
    /// Who gains most is first, however long others wait.
    GainAlone,
    /// Who was last heard of long ago still keeps its place.
    AbsentKeepPlace,
    /// More bytes are leased than the budget has.
    BytesUnlimited,
}

/// All of them.
pub const MUTANTS: [Mutant; 9] = [
    Mutant::LeaseWithoutEnd,
    Mutant::GrantedTwice,
    Mutant::CountedFromHearing,
    Mutant::NoQuietStart,
    Mutant::FreeOnDisconnect,
    Mutant::OldAnswerTaken,
    Mutant::GainAlone,
    Mutant::AbsentKeepPlace,
    Mutant::BytesUnlimited,
];
