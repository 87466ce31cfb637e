//! What a VHD that is broken says, as values.

/// How a VHD contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// There is no footer.
    #[error("no VHD footer at the end, nor at the start")]
    NoFooter,
    /// A field of the footer.
    #[error("VHD footer")]
    Footer,
    /// The checksum of the footer.
    #[error("VHD footer: checksum is {found:#010x}, expected {expected:#010x}")]
    FooterChecksum {
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// A field of the footer that no fixed disk has.
    #[error("VHD footer of a fixed disk")]
    FixedFooter,
    /// The two footers.
    #[error("VHD footer and its copy at the start tell different disks")]
    FootersDiffer,
    /// A field of the dynamic header.
    #[error("VHD dynamic header")]
    DynamicHeader,
    /// The checksum of the dynamic header.
    #[error("VHD dynamic header: checksum is {found:#010x}, expected {expected:#010x}")]
    DynamicHeaderChecksum {
        /// What is stored.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// A field of a parent locator.
    #[error("VHD parent locator")]
    ParentLocator,
    /// An entry of the block allocation table.
    #[error("VHD BAT entry {index}")]
    BatEntry {
        /// Its number.
        index: u64,
    },
    /// A block that lies where something else does.
    #[error("VHD BAT: place of block is {block}, expected one that nothing else has")]
    SharedBlock {
        /// The number of the block.
        block: u64,
    },
    /// A field of the block allocation table.
    #[error("VHD BAT")]
    Bat,
}
