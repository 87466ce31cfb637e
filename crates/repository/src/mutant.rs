//! Ways to break the order in which a backup is stored, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The snapshot is stored before the packs that it needs.
    SnapshotBeforePacks,
    /// The snapshot and an index are stored before the last packs.
    IndexBeforePacks,
    /// An index and the snapshot are stored while packs are on their way.
    IndexBeforeUploads,
}
