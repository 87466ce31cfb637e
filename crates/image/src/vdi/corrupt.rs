//! What a VDI that is broken says, as values.

use uuid::Uuid;

/// How a VDI contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the header.
    #[error("VDI header")]
    Header,
    /// An entry of the block map.
    #[error("VDI block map")]
    BlockMap,
    /// Two blocks lie in one place.
    #[error("VDI block map: entry {block} is {found}, expected a place that no other block has")]
    SharedBlock {
        /// The number of the block.
        block: u64,
        /// What is stored.
        found: u32,
    },
    /// The parent was written to since the image was made of it.
    #[error(
        "the parent '{name}' of a differencing VDI was changed since: its modification UUID is {found}, expected {expected}"
    )]
    ParentChanged {
        /// Its name.
        name: String,
        /// What is stored.
        found: Uuid,
        /// What it must be.
        expected: Uuid,
    },
}
