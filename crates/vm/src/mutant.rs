//! Ways to break the order in which things are made in QEMU and removed, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Nothing says what was made.
    NoRecord,
    /// The overlay's node stays.
    OverlayLeft,
    /// The filter stays above the guest's node.
    FilterLeftIn,
    /// What a run made that still goes on is removed.
    LivingTornDown,
    /// The NBD server is stopped while others use it.
    ServerOfOthersStopped,
    /// Nothing says that the guest may be frozen.
    FreezeNotRecorded,
    /// The guest is thawed only if all went well.
    ThawOnlyAfterSuccess,
    /// What is written from the moment on is recorded a little later.
    NewBitmapAfterMoment,
    /// The user's bitmap is cleared, and what was written since the moment is forgotten.
    NewBitmapDropped,
    /// What was written until the moment is asked for a little before it.
    OldBitmapBeforeMoment,
    /// Each disk is taken at a moment of its own.
    DisksOneByOne,
    /// Of several disks only the first is put back as it was.
    OnlyFirstDiskPutBack,
    /// A disk is exported that its QEMU does not survive.
    ThreadIgnored,
}

/// All of them.
pub const MUTANTS: [Mutant; 13] = [
    Mutant::NoRecord,
    Mutant::OverlayLeft,
    Mutant::FilterLeftIn,
    Mutant::LivingTornDown,
    Mutant::ServerOfOthersStopped,
    Mutant::FreezeNotRecorded,
    Mutant::ThawOnlyAfterSuccess,
    Mutant::NewBitmapAfterMoment,
    Mutant::NewBitmapDropped,
    Mutant::OldBitmapBeforeMoment,
    Mutant::DisksOneByOne,
    Mutant::OnlyFirstDiskPutBack,
    Mutant::ThreadIgnored,
];
