//! The server side of NBD, fixed newstyle; the client side is the crate `nbd`. What it can do is in `docs/formats/nbd.md`.
//!
//! A connection has a thread that receives. It does what is quick itself, and hands the rest to workers of the
//! connection; whoever is done sends what is ready to be sent. Parsing and negotiating are pure ([`protocol`]).

mod connection;
mod exports;
mod headers;
mod input;
mod memory;
mod negotiate;
mod pages;
mod reply;
mod request;
mod server;
#[cfg(feature = "tls")]
mod tls;

pub(crate) use server::Published;
pub use server::{Event, Listener, Options, Publisher, Server};
#[cfg(feature = "tls")]
pub use tls::Tls;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use ::nbd::PAYLOAD_BYTES_MAX;
use ::nbd::{layout, transport};

use negotiate::Session;

/// What is kept is whole at every moment, also when a thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The protocol without I/O, for front ends of one's own and for fuzzing.
pub mod protocol {
    pub use super::headers::Headers;
    pub use super::negotiate::{
        Answer, ExportFacts, Negotiation, Next, NotAnOption, OPTION_BYTES_MAX, Session, TlsState,
        parse_option,
    };
    pub use super::request::{Command, Errno, NotARequest, Request, RequestId};
}
