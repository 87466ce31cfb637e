//! What a recording that is broken says, as values.

/// How a recording contradicts its format. A field that is wrong comes with it ([`block::Error::wrong_field`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// The file ends within the header.
    #[error("recording is shorter than its header")]
    Short,
    /// The file does not begin as a recording does.
    #[error("not a recording of Leandisk")]
    Foreign,
    /// The header's length, or its checksum.
    #[error("recording header")]
    Header,
    /// The signature, the length or the checksum of a block.
    #[error("recording block")]
    Block,
    /// A block is longer than the records that it counts.
    #[error("recording: a block holds more than its records")]
    Surplus,
    /// A record breaks off, or holds a number that none can hold.
    #[error("recording: malformed record")]
    Record,
    /// A record of blktrace without its signature.
    #[error("blktrace record")]
    Blktrace,
}
