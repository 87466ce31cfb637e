//! What images, their tables in use and layers that do not fit each other say, as values.

use crate::Format;

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

/// Why a file that is to be an image of a format is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenImage {
    /// It bears the format's signature, and its header contradicts the format.
    #[error("{format} image with a broken header: {reason}")]
    Header {
        /// The format.
        format: Format,
        /// What is wrong with the header. The error that the parser found is the source of the error that this is the cause of.
        reason: String,
    },
    /// Its name ends as an image's of that format does, and nothing in it says that it is one.
    #[error("{format} image with a broken header: its signature is missing")]
    NoSignature {
        /// The format.
        format: Format,
    },
}

/// How the tables of a disk in use contradict what was read of them when it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenTables {
    /// An entry does not lie within one page of its table, as tables begin at multiples of the size of an entry.
    #[error("table entry across pages")]
    EntryAcrossPages,
    /// A unit is marked as compressed, in an image of a format or with a header that knows no compression.
    #[error("compressed unit in an image without compression")]
    UnexpectedCompression,
}
