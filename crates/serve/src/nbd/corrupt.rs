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
}
