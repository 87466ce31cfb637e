//! The NBD protocol: its structs, and disks behind servers. The server's side is in the crate `serve`.
//!
//! [`RemoteDisk`] is an export that is read as a file of the host is; its holes are what the server's `base:allocation` says reads as zeros.
//! [`RemoteTarget`] is one that is written over.
//! Sockets are opened by whoever uses it ([`Dial`]): a process that can open nothing gets them from another.
//!
//! Invariants:
//! - nothing that a server says takes unbounded memory, waits for ever, or panics anything;
//! - what breaks the protocol is an error with a [`Corrupt`]; a connection that is lost is `Io`, after it could not be taken up again;
//! - what is read is whole: each byte came in exactly one chunk of a reply.
//!
//! Absent on purpose: the names of files and hosts (the crate `os` opens them), formats.

pub mod layout;

mod address;
mod allocation;
mod client;
mod connection;
mod corrupt;
mod disk;
mod handshake;
mod inbox;
mod lanes;
mod marks;
#[cfg(feature = "mutants")]
mod mutant;
mod reply;
mod target;
#[cfg(feature = "tls")]
mod tls;
pub mod transport;

pub use address::{Address, Endpoint, SYSTEM_AUTHORITIES, TlsAddress};
pub use client::Client;
pub use connection::Connection;
pub use corrupt::Corrupt;
pub use disk::RemoteDisk;
pub use handshake::{Facts, Wanted};
pub use lanes::{Dial, Patience};
pub use marks::dirty;
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use target::RemoteTarget;
#[cfg(feature = "tls")]
pub use tls::ClientTls;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most bytes of a payload, told to clients as the largest block (doc/proto.md, "Block size constraints").
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// What is kept is whole at every moment, also when a thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
