//! What a VMDK that is broken says, as values.

/// How a VMDK contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// There is neither a descriptor nor the header of an extent.
    #[error("not a VMDK: neither a descriptor nor a sparse extent")]
    NoVmdk,
    /// A line or a length of the descriptor.
    #[error("VMDK descriptor")]
    Descriptor,
    /// A key of the descriptor that has two values.
    #[error("VMDK descriptor says a key twice")]
    KeyTwice,
    /// A parent that is named and denied.
    #[error("VMDK descriptor names a parent and says that there is none")]
    ParentAndNone,
    /// The extent that an embedded descriptor names.
    #[error("VMDK with an embedded descriptor")]
    EmbeddedDescriptor,
    /// A line of the descriptor that describes an extent.
    #[error("VMDK extent description")]
    ExtentDescription,
    /// Where a flat extent lies.
    #[error("VMDK flat extent")]
    FlatExtent,
    /// A sparse extent that is not what the descriptor says.
    #[error("VMDK sparse extent")]
    SparseExtent,
    /// An extent of another type than the descriptor says.
    #[error("VMDK extent of type SPARSE that holds SESparse data")]
    WrongExtentType,
    /// A field of the header of a sparse extent.
    #[error("VMDK sparse header")]
    SparseHeader,
    /// Ends of lines that a transfer replaced.
    #[error("VMDK file damaged by a transfer as text")]
    TextTransfer,
    /// The size of an extent.
    #[error("VMDK extent")]
    Capacity,
    /// Where a structure lies.
    #[error("VMDK {what}")]
    Pointer {
        /// Which.
        what: &'static str,
    },
    /// The marker before the footer.
    #[error("VMDK footer marker")]
    FooterMarker,
    /// A field of the footer.
    #[error("VMDK footer")]
    Footer,
    /// A stream that was cut off.
    #[error("VMDK stream without a footer at its end")]
    NoFooter,
    /// A field of the header of a COWD extent.
    #[error("VMDK COWD header")]
    CowdHeader,
    /// A field of the header of an SESparse extent.
    #[error("VMDK SESparse header")]
    SeSparseHeader,
    /// A field of the volatile header of an SESparse extent.
    #[error("VMDK SESparse volatile header")]
    SeSparseVolatileHeader,
    /// An entry of a grain directory.
    #[error("VMDK grain directory")]
    GrainDirectory,
    /// An entry of a grain table.
    #[error("VMDK grain table")]
    GrainTable,
    /// A grain that lies where something else does.
    #[error("VMDK grain table: place of grain is {grain}, expected one that nothing else has")]
    SharedGrain {
        /// The number of the grain.
        grain: u64,
    },
    /// The data of a compressed grain.
    #[error("VMDK compressed grain")]
    CompressedGrain,
    /// A grain that ends behind the file.
    #[error("VMDK grain marker past the file's end")]
    MarkerPastEnd,
    /// A field of the marker before a grain.
    #[error("VMDK grain marker")]
    GrainMarker,
}
