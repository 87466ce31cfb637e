//! What a QCOW2 image that is broken says, as values.

/// How a QCOW2 image contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the header.
    #[error("QCOW2 header")]
    Header,
    /// A field of a header extension.
    #[error("QCOW2 header extension")]
    HeaderExtension,
    /// A field of an entry of the snapshot table.
    #[error("QCOW2 snapshot")]
    Snapshot,
    /// A field of the directory of bitmaps, or of a bitmap's table.
    #[error("QCOW2 bitmaps")]
    Bitmaps,
    /// The data of a compressed cluster.
    #[error("QCOW2 compressed cluster")]
    CompressedCluster,
    /// An entry of the L1 table.
    #[error("QCOW2 L1 entry")]
    L1Entry,
    /// An entry of an L2 table.
    #[error("QCOW2 L2 entry")]
    L2Entry,
    /// The refcount of a cluster that holds metadata.
    #[error("QCOW2 metadata")]
    Metadata,
    /// An entry of the refcount table.
    #[error("QCOW2 refcount table")]
    RefcountTable,
    /// The refcount of a cluster that is in use.
    #[error("QCOW2 refcount")]
    Refcount,
}
