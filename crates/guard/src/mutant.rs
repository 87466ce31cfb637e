//! Ways to break the guard, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Room is reserved before the ledger says so.
    ReservedUnrecorded,
    /// The ledger forgets a file before its room went back.
    ForgottenTooEarly,
    /// Room is given back of a file that others have open.
    CutUnheld,
    /// Whatever lies past a file's end counts as the guard's.
    OthersRoomTaken,
    /// The time of the guard's own call stays in a file.
    StampStays,
    /// A time from before a write is set after it.
    StampUnproven,
    /// A file that others may store to through a mapping counts as not written.
    MappingIgnored,
    /// What a file shares is moved as well.
    SharedMoved,
    /// What a file shares is put beside another piece as well.
    SharedJoined,
    /// A small file is written anew each time it was closed.
    SmallEachTime,
    /// What is to stop goes on to the end of the file.
    StopIgnored,
    /// What nobody is known to own is taken for something that moves.
    StrangersMoved,
    /// A file moves for free space though it does not lie as it was found.
    MovedUnseen,
    /// What moved on a day is not in the ledger.
    DayForgotten,
    /// What was kept from the file system stays with the guard.
    HeldBack,
    /// Room of a file that became a program stays.
    ProgramsKeepRoom,
    /// The ledger does not hear of room that went back before an error.
    GivenUnrecorded,
    /// The ledger keeps what was announced and not reserved after an error.
    AnnouncedForgotten,
    /// A file with holes is moved as a whole.
    HolesFilled,
    /// Room that did not go back, since others may write to its file, counts as gone.
    LostForgotten,
    /// Room stays for a while where others run short of it.
    ShortageIgnored,
    /// What Btrfs needs for its tables is reserved for files.
    TablesStarved,
    /// As much is reserved where snapshots keep it as elsewhere.
    SnapshotsFilled,
    /// What is reserved of several files at once is not counted for the next of them.
    BatchUncounted,
    /// A file is put together though that takes the last free bytes for a while.
    LastRoomMoved,
    /// Free space is brought together though others took what was free meanwhile.
    SpaceCrowdedOut,
}

/// All of them.
pub const MUTANTS: [Mutant; 26] = [
    Mutant::ReservedUnrecorded,
    Mutant::ForgottenTooEarly,
    Mutant::CutUnheld,
    Mutant::OthersRoomTaken,
    Mutant::StampStays,
    Mutant::StampUnproven,
    Mutant::MappingIgnored,
    Mutant::SharedMoved,
    Mutant::SharedJoined,
    Mutant::SmallEachTime,
    Mutant::StopIgnored,
    Mutant::StrangersMoved,
    Mutant::MovedUnseen,
    Mutant::DayForgotten,
    Mutant::HeldBack,
    Mutant::ProgramsKeepRoom,
    Mutant::GivenUnrecorded,
    Mutant::AnnouncedForgotten,
    Mutant::HolesFilled,
    Mutant::LostForgotten,
    Mutant::ShortageIgnored,
    Mutant::TablesStarved,
    Mutant::SnapshotsFilled,
    Mutant::BatchUncounted,
    Mutant::LastRoomMoved,
    Mutant::SpaceCrowdedOut,
];

/// Those of free space, which the exploration of that finds.
pub const SPACE_MUTANTS: [Mutant; 5] = [
    Mutant::StrangersMoved,
    Mutant::MovedUnseen,
    Mutant::DayForgotten,
    Mutant::HeldBack,
    Mutant::SpaceCrowdedOut,
];
