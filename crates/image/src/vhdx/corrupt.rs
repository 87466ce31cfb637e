//! What a VHDX that is broken says, as values.

use extent::{HostOffset, HostSpan};

/// How a VHDX contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// There is no file type identifier.
    #[error("no VHDX signature at the start")]
    NoSignature,
    /// A field of a header.
    #[error("VHDX header")]
    Header,
    /// The checksum of a header.
    #[error("VHDX header: checksum is {found:#010x}, expected {expected:#010x}")]
    HeaderChecksum {
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// The two headers.
    #[error("VHDX headers differ but bear the same sequence number")]
    HeadersDiffer,
    /// A field of the region table.
    #[error("VHDX region table")]
    RegionTable,
    /// The checksum of the region table.
    #[error("VHDX region table: checksum is {found:#010x}, expected {expected:#010x}")]
    RegionTableChecksum {
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// A region that every VHDX has.
    #[error("VHDX region table lists no {name}")]
    NoRegion {
        /// Its name.
        name: &'static str,
    },
    /// A field of an entry of the region table.
    #[error("VHDX region")]
    Region,
    /// Two regions lie in one place.
    #[error("VHDX regions overlap: place is {place:?}, expected apart from {other:?}")]
    RegionsOverlap {
        /// Where it lies.
        place: HostSpan,
        /// Where the other lies.
        other: HostSpan,
    },
    /// A size that the metadata say.
    #[error("VHDX metadata")]
    Metadata,
    /// A differencing disk that names no parent.
    #[error("VHDX differencing disk without a parent locator")]
    NoParentLocator,
    /// A field of the metadata table.
    #[error("VHDX metadata table")]
    MetadataTable,
    /// A field of an entry of the metadata table.
    #[error("VHDX metadata item")]
    MetadataItem,
    /// An item that every VHDX has.
    #[error("VHDX metadata lack the {name}")]
    NoMetadataItem {
        /// Its name.
        name: &'static str,
    },
    /// The length of an item.
    #[error("VHDX metadata item {name}: length is {found}, expected {expected}")]
    MetadataItemLength {
        /// Its name.
        name: &'static str,
        /// What is stored.
        found: u64,
        /// What it must be.
        expected: usize,
    },
    /// A field of the parent locator.
    #[error("VHDX parent locator")]
    ParentLocator,
    /// The file is shorter than its log says.
    #[error("VHDX file was cut short")]
    CutShort,
    /// A field of an entry of the log.
    #[error("VHDX log entry")]
    LogEntry,
    /// A log that is pending and has no valid entry.
    #[error("VHDX log: the header says that one is pending, but no entry of it is valid")]
    NoValidLog,
    /// A log that is there after it was applied.
    #[error("VHDX log that is pending after it was applied")]
    LogAfterReplay,
    /// A field of the block allocation table.
    #[error("VHDX BAT")]
    Bat,
    /// An entry of the block allocation table.
    #[error("VHDX BAT entry {index}")]
    BatEntry {
        /// Its number.
        index: u64,
    },
    /// Two entries of the block allocation table lead to one place.
    #[error("VHDX BAT entry {index}: place is {:#x}, expected one that no other block has", .place.get())]
    SharedBatEntry {
        /// Its number.
        index: u64,
        /// Where it lies.
        place: HostOffset,
    },
    /// A block that lies where something else does.
    #[error("VHDX BAT: place of block is {block}, expected one that nothing else has")]
    SharedBlock {
        /// The number of the block.
        block: u64,
    },
}
