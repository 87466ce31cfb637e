//! Which headers requests and replies have, as it was agreed on.

use super::layout::{EXTENDED_REQUEST_BYTES, REQUEST_BYTES};

/// Which headers were agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Headers {
    /// Lengths of 32 bits; a write alone has a payload.
    #[default]
    Compact,
    /// Lengths of 64 bits; a flag says what has a payload.
    Extended,
}

impl Headers {
    /// Bytes of a request's header.
    pub fn request_bytes(self) -> usize {
        match self {
            Self::Compact => REQUEST_BYTES,
            Self::Extended => EXTENDED_REQUEST_BYTES,
        }
    }
}
