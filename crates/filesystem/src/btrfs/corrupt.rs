//! What a Btrfs volume that is broken says, as values.

/// How a Btrfs volume contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the superblock.
    #[error("Btrfs superblock")]
    Superblock,
    /// A chunk, or that which should be its stripe on the device, or its block group.
    #[error("Btrfs chunk at {logical}")]
    Chunk {
        /// Where it begins.
        logical: u64,
    },
    /// An address that no chunk maps.
    #[error("Btrfs address {logical} is in no chunk")]
    Unmapped {
        /// The address.
        logical: u64,
    },
    /// A block of a tree.
    #[error("Btrfs tree block at {logical}")]
    Node {
        /// Where it lies.
        logical: u64,
    },
    /// An item of a tree.
    #[error("Btrfs item ({objectid} {kind} {offset})")]
    Item {
        /// Of its key.
        objectid: u64,
        /// The type in its key.
        kind: u8,
        /// Of its key.
        offset: u64,
    },
    /// A tree that the volume must have.
    #[error("Btrfs has no tree {tree}")]
    NoTree {
        /// Its number.
        tree: u64,
    },
    /// What trees refer to is not what the extent tree lists.
    #[error("Btrfs trees refer to other extents than the extent tree lists")]
    References,
    /// A sum over what is there is not the counter of it.
    #[error("Btrfs counters")]
    Counter,
}
