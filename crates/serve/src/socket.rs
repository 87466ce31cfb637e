//! Sockets in the file system, and who may use them.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use block::{Error, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const BACKLOG: i32 = 128;

/// Who may connect to a socket.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Permissions, as of a file: whoever may write may connect.
    pub mode: u32,
    /// The group that it is given to; `None` for the one of whoever makes it.
    pub group_id: Option<u32>,
}

impl Default for Access {
    /// The owner alone.
    fn default() -> Self {
        Self { mode: 0o600, group_id: None }
    }
}

/// A socket at `path` that only those with `access` may connect to, from its first moment on. One that a server left behind when it
/// was killed is replaced.
pub fn bind(path: &Path, access: Access) -> Result<UnixListener> {
    let failed = |error: io::Error| Error::io("listen", error).path(path.display());
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(error.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
    // Nobody can connect before it listens.
    let opened =
        grant(path, access).and_then(|()| rustix::net::listen(&socket, BACKLOG).map_err(io::Error::from));
    opened.map_err(|error| {
        let _ = std::fs::remove_file(path);
        failed(error)
    })?;
    Ok(UnixListener::from(socket))
}

fn grant(path: &Path, access: Access) -> io::Result<()> {
    if access.group_id.is_some() {
        lchown(path, None, access.group_id)?;
    }
    std::fs::set_permissions(path, PermissionsExt::from_mode(access.mode))
}
