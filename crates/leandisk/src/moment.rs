//! Disks that a `leandisk serve` on this host serves, read as they are at one moment while their guests go on: the server keeps what changes
//! meanwhile (copy before write), in a file without a name that this process makes.
//!
//! A disk is named by the address of its export or by the socket alone. Servers that keep no moments, other programs' among them, are read
//! as they answer, as before.

use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use block::Result;
use nbd::{Address, Endpoint};
use serve::stats::{MomentOfServer, socket_beside};

use crate::running::{escaped, overlay};

/// Where a disk that is served is read.
#[derive(Debug)]
pub struct Disk {
    source: PathBuf,
    /// The moment lasts as long as this.
    _moment: Option<MomentOfServer>,
}

impl Disk {
    /// `None` if the disk is none that a server on this host serves. What changes while it is read is kept in `folder`, or in that of
    /// temporary files.
    pub fn begin(disk: &Path, folder: Option<&Path>) -> Result<Option<Self>> {
        let Some(Place { socket, export, is_secured }) = Place::of(disk)? else { return Ok(None) };
        let asked = match socket_beside(&socket) {
            control if is_socket(&control) && !is_secured => {
                let file = overlay(folder, 0)?;
                MomentOfServer::begin(&control, export.as_deref(), file.as_fd())?
            }
            _ => None,
        };
        let name = asked.as_ref().map(MomentOfServer::export).or(export.as_deref()).unwrap_or_default();
        let source = match (&asked, Address::is_meant(disk)) {
            (None, true) => disk.to_owned(),
            _ => format!("nbd+unix:///{}?socket={}", escaped(Path::new(name)), escaped(&socket)).into(),
        };
        Ok(Some(Self { source, _moment: asked }))
    }

    /// The address to be opened in place of what was named.
    pub fn source(&self) -> &Path {
        &self.source
    }
}

/// A server's socket on this host, and which of its exports.
struct Place {
    socket: PathBuf,
    /// `None` for the only one.
    export: Option<String>,
    /// Over TLS, with credentials that the control socket knows nothing of.
    is_secured: bool,
}

impl Place {
    fn of(disk: &Path) -> Result<Option<Self>> {
        let Some(address) = Address::parse(disk)? else {
            let socket = is_socket(disk).then(|| disk.to_owned());
            return Ok(socket.map(|socket| Self { socket, export: None, is_secured: false }));
        };
        let Endpoint::Unix(socket) = address.endpoint else { return Ok(None) };
        let export = Some(address.export).filter(|name| !name.is_empty());
        Ok(Some(Self { socket, export, is_secured: address.tls.is_some() }))
    }
}

fn is_socket(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
}
