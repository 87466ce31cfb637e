//! Ways to break a change in place, or a copy that is resumed, one at a time. Compiled for tests alone.

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
    /// What was read with what lies between is taken as if nothing lay there.
    GapsNotSkipped,
    /// What holds nothing where it comes from is left as it is where it goes.
    StaleBelowHoles,
    /// A checkpoint is stored before what it names is on stable storage.
    CheckpointBeforeFlush,
    /// Nobody looks which partial target a checkpoint is of, nor waits until the name of that is on stable storage.
    CheckpointOfAnyFile,
    /// Nobody looks whether the source is still what it was.
    CheckpointOfAnySource,
    /// A copy that starts over makes its partial target before it removes the checkpoint of the last one, and nobody looks which
    /// partial target that is of.
    OldCheckpointStays,
    /// A copy that starts over removes the checkpoint of the last one, and does not wait until that is on stable storage.
    RemovedNamesNotFlushed,
    /// The first checkpoint of a copy is stored before the name of its partial target is on stable storage.
    NewNameNotFlushed,
    /// A target gets its name while there is a checkpoint of it.
    CheckpointOutlivesPublishing,
    /// A copy is over before the target's name is on stable storage.
    PublishedNameNotFlushed,
    /// What was reserved ahead goes back with the data that were written there.
    RoomOfDataGivenBack,
    /// What is cloned is not noted as placed, so that a copy that goes on cuts it off.
    ClonesNotNoted,
    /// A guest's request does not wait for who brings a unit, so that a filler may write over what it wrote.
    FillOverGuestWrite,
    /// A record says that units have arrived before they are on stable storage.
    MarkFilledTooSoon,
    /// What a killed process wrote to a record is relied on while it may be in the host's cache alone.
    FoundRecordNotFlushed,
    /// A block more is cloned than is planned: what the guest does not use comes along.
    ClonedBeyondThePlan,
}
