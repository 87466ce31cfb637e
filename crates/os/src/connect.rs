//! Sockets that are connected to servers.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use block::{Error, Result};
use nbd::transport::Socket;
use nbd::{Address, Endpoint};
use rustix::fd::OwnedFd;

use crate::requests::{Request, client};

/// How long each address of a host may take to answer.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Connects to the server of the export at `address`, which the user named by `name`. A confined process has its broker do it, which reads
/// the address itself.
pub fn connect(name: &Path, address: &Address) -> Result<Socket> {
    let socket = match client() {
        Some(broker) => broker.open::<()>(&Request::Connect(name.into()))?.1,
        None => open(&address.endpoint)?,
    };
    Ok(match address.endpoint {
        Endpoint::Unix(_) => Socket::Unix(socket.into()),
        Endpoint::Tcp(..) => Socket::Tcp(socket.into()),
    })
}

/// Connects, by a process that is not confined.
pub(crate) fn open(endpoint: &Endpoint) -> Result<OwnedFd> {
    match endpoint {
        Endpoint::Unix(path) => {
            let socket = UnixStream::connect(path);
            Ok(socket.map_err(|error| Error::io("connect to the socket", error).path(path.display()))?.into())
        }
        Endpoint::Tcp(host, port) => {
            let name = format!("{host}:{port}");
            Ok(connect_tcp(host, *port).map_err(|error| Error::io("connect", error).path(name))?.into())
        }
    }
}

/// The first address of the host that answers.
fn connect_tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = None;
    for address in (host, port).to_socket_addrs()? {
        match connect_to(&address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
}

fn connect_to(address: &SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(address, CONNECT_MAX)?;
    // Requests are short, and each is waited for.
    socket.set_nodelay(true)?;
    Ok(socket)
}
