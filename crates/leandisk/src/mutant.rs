//! Ways to break the order of safety of the use cases, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The journal goes before the disk is closed.
    JournalRemovedBeforeClose,
    /// Nobody looks whether a change of the disk was interrupted.
    PendingNotLookedFor,
    /// A copy replaces what has the target's name without being asked to.
    TargetReplacedUnasked,
    /// Nobody looks whether the target of a copy is its source.
    TargetNotTold,
    /// An OVA has its name before its descriptor is there.
    ApplianceNamedEarly,
    /// Nobody looks whether the source changed while it was copied.
    ChangeOfSourceUnnoticed,
    /// A copy goes on with what one of another source left.
    SourceNotInIdentity,
    /// A copy goes on with what one with other options left.
    OptionsNotInIdentity,
    /// A bitmap begins anew before the target of an incremental copy is whole.
    BitmapRotatedFirst,
    /// The target of an incremental copy has its name while it is written.
    HalfUnderItsName,
    /// The target of an incremental copy has its name before its contents are on stable storage.
    IncrementNotFlushed,
}
