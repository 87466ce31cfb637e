//! What the check of an ext volume rejects, as values.

/// How an ext volume, by the check that shares nothing with what reads volumes elsewhere, contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptExt {
    /// A field of the superblock.
    #[error("ext superblock")]
    Superblock,
    /// A field of a group descriptor.
    #[error("ext group descriptor {group}")]
    GroupDescriptor {
        /// The number of the group.
        group: u64,
    },
    /// A bitmap of a group.
    #[error("ext {what} bitmap of group {group}")]
    Bitmap {
        /// Which.
        what: &'static str,
        /// The number of the group.
        group: u64,
    },
    /// Where metadata of a group lie.
    #[error("ext {what} of group {group}")]
    Metadata {
        /// Which.
        what: &'static str,
        /// The number of the group.
        group: u64,
    },
    /// A field of an inode, or of its map.
    #[error("ext inode {inode}")]
    Inode {
        /// The number of the inode.
        inode: u64,
    },
    /// A field of a directory.
    #[error("ext directory {inode}")]
    Directory {
        /// The number of the inode.
        inode: u64,
    },
    /// A field of a block of attributes.
    #[error("ext attribute block {block}")]
    AttributeBlock {
        /// The number of the block.
        block: u64,
    },
    /// A field of a block of attributes of an inode.
    #[error("ext attribute block {block} of inode {inode}")]
    AttributeBlockOf {
        /// The number of the block.
        block: u64,
        /// The number of the inode.
        inode: u64,
    },
    /// Names that lead to other inodes than there are.
    #[error("ext directories and inodes do not agree")]
    NamesAndInodes,
}
