//! How a Btrfs volume contradicts itself, as values.

/// What the check of a Btrfs volume found. A field comes with it where one is to blame ([`block::Error::wrong_field`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptBtrfs {
    /// The superblock.
    #[error("Btrfs: the superblock does not hold together")]
    Superblock,
    /// An address that is in no chunk.
    #[error("Btrfs: nothing lies at {0}")]
    Address(u64),
    /// A block of a tree.
    #[error("Btrfs: the block at {0} is not the block of a tree that it should be")]
    Tree(u64),
    /// An item.
    #[error("Btrfs: the item of {0} does not hold together")]
    Item(u64),
    /// What trees refer to is not what is counted.
    #[error("Btrfs: extents are referred to otherwise than counted")]
    References,
    /// Used bytes.
    #[error("Btrfs: {0} bytes are in extents, and another number is counted")]
    Used(u64),
}
