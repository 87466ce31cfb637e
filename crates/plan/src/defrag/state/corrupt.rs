//! What a layout that cannot be says, as values.

/// How what a planner was told contradicts itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenLayout {
    /// Free space that is not whole clusters.
    #[error("free space that is not whole clusters")]
    NotClusters,
    /// Two own one place of the volume.
    #[error("two owners of one place of the volume")]
    TwoOwners,
}
