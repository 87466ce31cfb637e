//! What swap space that is broken says, as values.

/// How swap space contradicts its format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the header, which comes with it ([`block::Error::wrong_field`]).
    #[error("swap header")]
    Header,
    /// There are signatures for more than one page size.
    #[error("swap signatures for more than one page size are there")]
    TwoSignatures,
}
