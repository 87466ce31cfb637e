//! What an ext volume that is broken says, as values.

use super::owner::Owner;

/// How an ext volume contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the superblock.
    #[error("ext superblock")]
    Superblock,
    /// The checksum of the superblock.
    #[error("ext superblock: checksum is {found:#x}, expected {expected:#x}")]
    SuperblockChecksum {
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// The volume bears the signature of Linux swap space, too.
    #[error("signatures of both ext and swap are on the volume")]
    AlsoSwap,
    /// A field of the block that protects from being mounted twice.
    #[error("ext multiple-mount block")]
    MultipleMount,
    /// A field of a group descriptor.
    #[error("ext group descriptor {group}")]
    GroupDescriptor {
        /// The number of the group.
        group: u32,
    },
    /// The checksum of a group descriptor.
    #[error("ext group descriptor {group}: checksum is {found:#x}, expected {expected:#x}")]
    GroupDescriptorChecksum {
        /// The number of the group.
        group: u32,
        /// What is stored.
        found: u16,
        /// What it must be.
        expected: u16,
    },
    /// The checksum of a block bitmap.
    #[error("ext block bitmap of group {group} has the wrong checksum")]
    BlockBitmapChecksum {
        /// The number of the group.
        group: u32,
    },
    /// The checksum of an inode bitmap.
    #[error("ext inode bitmap of group {group} has the wrong checksum")]
    InodeBitmapChecksum {
        /// The number of the group.
        group: u32,
    },
    /// Metadata of a group that lie behind the volume.
    #[error("ext {what} of group {group} lies past the end")]
    MetadataPastEnd {
        /// Which.
        what: &'static str,
        /// The number of the group.
        group: u32,
    },
    /// The number of an inode that cannot be.
    #[error("ext inode: number is {found}, expected 1 to {max}")]
    InodeNumber {
        /// What is stored.
        found: u32,
        /// The largest that may be.
        max: u32,
    },
    /// A field of an inode, or of its map.
    #[error("ext inode {inode}")]
    Inode {
        /// The number of the inode.
        inode: u32,
    },
    /// The checksum of an inode.
    #[error("ext inode {inode}: checksum is {found:#x}, expected {expected:#x}")]
    InodeChecksum {
        /// The number of the inode.
        inode: u32,
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// An inode that is marked free and has links.
    #[error("ext inode {inode} is marked free: links_count is {links}, expected 0")]
    InodeMarkedFree {
        /// The number of the inode.
        inode: u32,
        /// Its links.
        links: u16,
    },
    /// A field of an entry of a directory.
    #[error("ext directory {inode}")]
    Directory {
        /// The number of the inode.
        inode: u32,
    },
    /// The checksum of a block of a directory.
    #[error("ext directory {inode}: checksum of block {block} is {found:#x}, expected {expected:#x}")]
    DirectoryChecksum {
        /// The number of the inode.
        inode: u32,
        /// The number of the block.
        block: u64,
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// A block that two own.
    #[error("ext block {block} is owned twice: by {owner} and by another")]
    BlockOwnedTwice {
        /// The number of the block.
        block: u64,
        /// Who owns it.
        owner: Owner,
    },
    /// More blocks are owned than are marked used.
    #[error("ext blocks are owned twice: more are owned than are marked used")]
    BlocksOwnedTwice,
    /// A block that is marked used without an owner.
    #[error("ext block {block} is marked used, but nobody owns it")]
    BlockUnowned {
        /// The number of the block.
        block: u64,
    },
    /// A block that is owned and marked free.
    #[error("ext block {block} of {owner} is marked free")]
    BlockMarkedFree {
        /// The number of the block.
        block: u64,
        /// Who owns it.
        owner: Owner,
    },
    /// A map that runs in a circle.
    #[error("ext block {block} is twice in the map of {owner}")]
    BlockTwiceInMap {
        /// The number of the block.
        block: u64,
        /// Who owns it.
        owner: Owner,
    },
    /// Maps that run in a circle.
    #[error("ext block {block} is twice in maps of files")]
    BlockTwiceInMaps {
        /// The number of the block.
        block: u64,
    },
    /// Metadata that lie where something else does.
    #[error("ext metadata lie where something else does")]
    MetadataInMetadata,
    /// Metadata that lie where a file's contents do.
    #[error("ext metadata lie where a file's contents do")]
    MetadataInFile,
    /// A block that an extent cannot name.
    #[error("ext block {block} is past what an extent can say")]
    PastExtents {
        /// The number of the block.
        block: u64,
    },
    /// A field of a quota file.
    #[error("ext quota file, inode {inode}")]
    QuotaFile {
        /// The number of the inode.
        inode: u32,
    },
    /// A journal that is pending and is not there.
    #[error("ext needs its journal replayed, but has none")]
    NoJournal,
    /// The inode of the journal.
    #[error("ext journal inode")]
    JournalInode,
    /// A field of the superblock of the journal.
    #[error("ext journal superblock")]
    JournalSuperblock,
    /// The checksum of the superblock of the journal.
    #[error("ext journal superblock: checksum is {found:#x}, expected {expected:#x}")]
    JournalSuperblockChecksum {
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// A block of the journal.
    #[error("ext journal")]
    Journal,
    /// A journal that the kernel stopped at an error.
    #[error("ext journal was stopped by an error: errno is {}, expected 0", errno.cast_signed())]
    JournalStopped {
        /// The number of the error, as it is stored: of most the negative one of Linux.
        errno: u32,
    },
    /// A journal that holds transactions and is not marked so.
    #[error("ext journal holds transactions, but is not marked as pending")]
    JournalNotPending,
    /// A transaction that runs in a circle.
    #[error("ext journal has a transaction longer than its log")]
    TransactionTooLong,
    /// The checksum of a transaction.
    #[error("ext journal transaction {sequence} has a wrong checksum")]
    TransactionChecksum {
        /// The number of the transaction.
        sequence: u32,
    },
    /// The checksum of a transaction that is not the last.
    #[error("ext journal transaction {sequence} has a wrong checksum, but is not the last")]
    InnerTransactionChecksum {
        /// The number of the transaction.
        sequence: u32,
    },
    /// The checksum of a block in the journal.
    #[error(
        "ext journal transaction {sequence}, copy of block {block}: checksum is {found:#x}, expected {expected:#x}"
    )]
    TransactionBlockChecksum {
        /// The number of the transaction.
        sequence: u32,
        /// The number of the block.
        block: u64,
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// A block that a transaction names.
    #[error("ext journal transaction {sequence}")]
    Transaction {
        /// The number of the transaction.
        sequence: u32,
    },
    /// A log that ends before its last transaction.
    #[error("ext journal's log ends before its last transaction")]
    LogEndsEarly,
    /// A field of a revoke block.
    #[error("ext journal revoke block")]
    RevokeBlock,
    /// A journal that replaces the superblock.
    #[error("the journal replaces the ext superblock by something else")]
    ReplacedSuperblock,
}
