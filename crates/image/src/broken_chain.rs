//! What layers that do not fit each other say, as values.

/// The longest chain followed. Hypervisors warn far below it.
pub(crate) const LAYER_COUNT_MAX: usize = 128;

/// How the files of a chain contradict each other.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenChain {
    /// An image is its own parent, or a parent of its parents.
    #[error("chain of parents runs in a circle: layer is {layers}, expected below {LAYER_COUNT_MAX}")]
    Circle {
        /// How many layers were opened before.
        layers: usize,
    },
    /// There are more layers than Leandisk opens.
    #[error("chain of parents is too long: layer is {layers}, expected below {LAYER_COUNT_MAX}")]
    TooLong {
        /// How many layers were opened before.
        layers: usize,
    },
    /// A differencing image does not say where its parent is.
    #[error("differencing image names no parent")]
    NoParentNamed,
    /// The parent is another image than the one that the child was made from.
    #[error(
        "'{name}' is not the parent this image was made from, or changed since: its identity is {found}, expected {expected}"
    )]
    NotItsParent {
        /// Its name.
        name: String,
        /// What is stored.
        found: String,
        /// What it must be.
        expected: String,
    },
}
