//! What a server says that does not keep to the protocol, as values.

/// How a server breaks the NBD protocol. What it sent comes with it ([`block::Error::wrong_field`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// It does not greet as NBD servers do.
    #[error("the greeting")]
    Greeting,
    /// It negotiates in the old style.
    #[error("the kind of negotiation")]
    Style,
    /// A reply to an option begins with something else, or is too long.
    #[error("a reply to an option")]
    OptionReply,
    /// It replies to one option again and again.
    #[error("a negotiation that does not end")]
    Endless,
    /// A reply to a request begins with something else.
    #[error("the start of a reply")]
    Reply,
    /// A reply is to another request.
    #[error("the cookie of a reply")]
    Cookie,
    /// What it offers, or a size, is no sense.
    #[error("what the server says of the export")]
    Export,
    /// A chunk of a reply does not fit the request: outside of it, over another chunk, or of a wrong length.
    #[error("a chunk of a reply")]
    Chunk,
    /// A reply of many chunks leaves a part of what was asked for out.
    #[error("a reply that does not cover the request")]
    Incomplete,
    /// The extents of a reply about allocation make no sense.
    #[error("the extents that are said to be allocated")]
    Allocation,
}
