//! Counts for Prometheus: in a file that its node exporter collects, or over HTTP to whoever asks.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use block::{Error, Result};
use report::{GuardDocument, guard_metrics};

/// A client that does not ask within this time is not answered.
const PATIENCE: Duration = Duration::from_millis(200);

/// Where the counts go.
pub(super) enum Metrics {
    File(PathBuf),
    Socket(TcpListener),
}

impl Metrics {
    /// An address and a port, or else a file.
    pub(super) fn open(place: &str) -> Result<Self> {
        let Ok(address) = place.parse::<SocketAddr>() else { return Ok(Self::File(PathBuf::from(place))) };
        let fail = |error| Error::io("listen on", error).path(place);
        let listener = TcpListener::bind(address).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        Ok(Self::Socket(listener))
    }

    /// Keeps the file up to date.
    pub(super) fn write(&self, document: &GuardDocument) {
        let Self::File(path) = self else { return };
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let written = fs::write(&partial, guard_metrics(document)).and_then(|()| fs::rename(&partial, path));
        if let Err(error) = written {
            tracing::warn!(%error, path = %path.display(), "the counts could not be written");
        }
    }

    /// Answers one who asked meanwhile.
    pub(super) fn serve(&self, document: &GuardDocument) {
        let Self::Socket(listener) = self else { return };
        if let Ok((stream, _)) = listener.accept() {
            let _ = answer(stream, &guard_metrics(document));
        }
    }
}

fn answer(mut stream: TcpStream, text: &str) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; 1024];
    let _ = stream.read(&mut request)?;
    let len = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{text}"
    )
}
