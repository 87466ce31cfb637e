//! What a journal that is broken says, as values.

/// How a journal contradicts its format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// It says more than it holds.
    #[error("the journal's length and its counts disagree")]
    TooShort,
    /// The file is shorter than any journal.
    #[error("{len_bytes} bytes long, shorter than any journal")]
    Length {
        /// Its length.
        len_bytes: u64,
    },
    /// It does not begin as a journal does.
    #[error("it begins otherwise")]
    Magic,
    /// The digest of the header.
    #[error("the journal's header is damaged")]
    HeaderDigest,
    /// The header has more than it says.
    #[error("the journal's header has more than it says")]
    HeaderTooLong,
    /// A span that no disk can have.
    #[error("a span of the journal overflows")]
    SpanOverflows,
    /// A patch outside of the volume, or before the one before it.
    #[error("a patch of the journal is out of place")]
    PatchOutOfPlace,
    /// A move from or to outside of the volume.
    #[error("a move of the journal is out of place")]
    MoveOutOfPlace,
    /// A difference that lies behind its patch.
    #[error("a difference lies past its patch")]
    DifferenceOutOfPlace,
    /// A record that has more than it says.
    #[error("a record of the journal has more than it says")]
    RecordTooLong,
}
