//! What the service manager is told while a disk is served (`sd_notify(3)`).
//!
//! Invariant: where nobody listens, nothing fails.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The disk is served.
pub(crate) const READY: &str = "READY=1";
/// No more requests are taken, and the image is being closed.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Tells the service manager, if there is one that wants to know.
pub(crate) fn notify(state: &str) {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
        // It learns from the process's end, too.
        let _ = send(&name, state);
    }
}

fn send(name: &OsStr, state: &str) -> io::Result<usize> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
}
