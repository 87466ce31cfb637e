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

/// The service manager, if there is one that wants to know.
pub(crate) struct Manager(Option<UnixDatagram>);

impl Manager {
    /// The one that started this process. To be asked before the process is closed in and reaches nobody new.
    pub(crate) fn find() -> Self {
        Self(std::env::var_os("NOTIFY_SOCKET").and_then(|name| connect(&name).ok()))
    }

    /// Tells it, if it is there.
    pub(crate) fn notify(&self, state: &str) {
        if let Some(socket) = &self.0 {
            // It learns from the process's end, too.
            let _ = socket.send(state.as_bytes());
        }
    }
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}
