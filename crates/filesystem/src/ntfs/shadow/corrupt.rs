//! What shadow copies that are broken say, as values.

/// How shadow copies contradict themselves or their format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptShadowCopy {
    /// There is no NTFS volume.
    #[error("no NTFS volume")]
    NoVolume,
    /// A field of the header.
    #[error("the header of shadow copies")]
    Header,
    /// A field of an entry of the catalog.
    #[error("an entry of the catalog of shadow copies")]
    CatalogEntry,
    /// A store that the catalog does not name once.
    #[error(
        "the store of shadow copies {store}: entries in the catalog is {copies} and {stores}, expected one of each kind"
    )]
    Entries {
        /// Its identifier.
        store: String,
        /// How many entries of copies name it.
        copies: usize,
        /// How many entries of stores name it.
        stores: usize,
    },
    /// A catalog that lies in no file.
    #[error("the catalog of shadow copies has no file")]
    NoCatalogFile,
    /// A store that lies in no file.
    #[error("the file of the shadow copy {store} is not there")]
    NoStoreFile {
        /// Its identifier.
        store: String,
    },
    /// Where the file of a store, or of the catalog, lies.
    #[error("{what}")]
    File {
        /// Which.
        what: String,
    },
    /// A field of the head of a block.
    #[error("{what}")]
    Block {
        /// Which.
        what: String,
    },
    /// A list of blocks that runs in a circle.
    #[error("{what}: place is met before, expected a block of its own")]
    BlockTwice {
        /// Which.
        what: String,
    },
    /// A field of a block descriptor of a store.
    #[error("a block descriptor of a shadow copy's store")]
    Descriptor,
}
