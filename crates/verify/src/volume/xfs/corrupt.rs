//! How an XFS volume contradicts itself, as values.

/// What the check of an XFS volume found. A field comes with it where one is to blame ([`block::Error::wrong_field`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptXfs {
    /// A superblock, or another header of a group.
    #[error("XFS: the {what} of group {group} does not hold together")]
    Header {
        /// Which one.
        what: &'static str,
        /// Counted from zero.
        group: u64,
    },
    /// A block of a tree.
    #[error("XFS: block {0} is not the block of a tree that it should be")]
    Tree(u64),
    /// A block that has two owners, or is free and has one.
    #[error("XFS: block {0} has two owners")]
    Shared(u64),
    /// Blocks that files share otherwise than counted.
    #[error("XFS: the blocks from {0} are shared otherwise than counted")]
    References(u64),
    /// Blocks without an owner.
    #[error("XFS: {0} blocks are neither free nor owned")]
    Unowned(u64),
    /// An inode, its extents, or what it holds.
    #[error("XFS: inode {0} does not hold together")]
    Inode(u64),
}
