//! What an XFS volume that is broken says, as values.

/// How an XFS volume contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the superblock.
    #[error("XFS superblock")]
    Superblock,
    /// The copy of the superblock in a group.
    #[error("XFS superblock of group {group}")]
    Copy {
        /// Counted from zero.
        group: u32,
    },
    /// One of the headers of a group: `AGF`, `AGI`, `AGFL`.
    #[error("XFS {what} of group {group}")]
    Header {
        /// Its name.
        what: &'static str,
        /// Counted from zero.
        group: u32,
    },
    /// A block of one of the trees of a group.
    #[error("XFS {what} of group {group}, block {block}")]
    Node {
        /// The tree's name.
        what: &'static str,
        /// Counted from zero.
        group: u32,
        /// Of the group.
        block: u32,
    },
    /// A record of one of the trees of a group.
    #[error("XFS {what} of group {group}: record from {start}")]
    Record {
        /// The tree's name.
        what: &'static str,
        /// Counted from zero.
        group: u32,
        /// What it says of where it begins.
        start: u32,
    },
    /// Two trees of a group that should say the same, or a tree and a counter.
    #[error("XFS group {group}: {what}")]
    Disagree {
        /// What does not agree.
        what: &'static str,
        /// Counted from zero.
        group: u32,
    },
    /// The log, by sectors of 512 bytes.
    #[error("XFS log, sector {sector}")]
    Log {
        /// Counted from its beginning.
        sector: u64,
    },
    /// An inode, or the tree of its extents.
    #[error("XFS inode {inode}")]
    Inode {
        /// Its number.
        inode: u64,
    },
    /// A block that two own, or that is free and owned.
    #[error("XFS block {block} is owned twice, the second time by {owner}")]
    OwnedTwice {
        /// Counted over all groups without gaps.
        block: u64,
        /// The owner that was met later.
        owner: String,
    },
    /// A block that is neither free nor anyone's.
    #[error("XFS block {block} is neither free nor owned")]
    Unowned {
        /// Counted over all groups without gaps.
        block: u64,
    },
    /// The reverse maps of all groups, and the owners of their blocks.
    #[error("XFS reverse map")]
    ReverseMap,
    /// Blocks that are not shared as often as the tree of reference counts says.
    #[error("XFS blocks from {block} are shared otherwise than counted")]
    Shared {
        /// The first of them, counted over all groups without gaps.
        block: u64,
    },
}
