//! A connected socket, in the clear or through TLS: one thread receives while others send.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
#[cfg(feature = "tls")]
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;

/// A socket of either kind.
pub enum Socket {
    /// Of this machine.
    Unix(UnixStream),
    /// Of the network.
    Tcp(TcpStream),
}

/// Who is at the other end, as far as the kernel tells.
pub enum Peer {
    /// An address of the network.
    Address(SocketAddr),
    /// A process of this machine, and its user.
    Process {
        /// Its number.
        pid: i32,
        /// Its user's number.
        uid: u32,
    },
    /// Somebody who left.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Process { pid, uid } => write!(f, "pid {pid} uid {uid}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

macro_rules! on_socket {
    ($socket:expr, $stream:ident => $what:expr) => {
        match $socket {
            Socket::Unix($stream) => $what,
            Socket::Tcp($stream) => $what,
        }
    };
}

impl Socket {
    /// Another descriptor of the same socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map_or(Peer::Unknown, Peer::Address),
            Self::Unix(stream) => socket_peercred(stream).map_or(Peer::Unknown, |who| Peer::Process {
                pid: who.pid.as_raw_nonzero().get(),
                uid: who.uid.as_raw(),
            }),
        }
    }

    /// Ends receiving, sending, or both.
    pub fn shutdown(&self, how: Shutdown) {
        // Fails if the peer is gone, which is as good.
        let _ = on_socket!(self, stream => stream.shutdown(how));
    }

    /// How long the peer may be silent, or take nothing.
    pub fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        // Zero means forever to the kernel.
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        on_socket!(self, stream => stream.set_read_timeout(timeout))?;
        on_socket!(self, stream => stream.set_write_timeout(timeout))
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let received = on_socket!(self, stream => (&*stream).read(buf));
            match received {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn send_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        on_socket!(self, stream => (&*stream).write_vectored(slices))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        on_socket!(self, stream => stream.as_fd())
    }
}

/// A socket with what TLS needs.
pub struct Transport {
    socket: Socket,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

#[cfg(feature = "tls")]
struct Tls {
    connection: Mutex<rustls::Connection>,
    inbound: Mutex<Inbound>,
}

/// Bytes from the socket that TLS did not take yet. Only the receiving thread locks it.
#[cfg(feature = "tls")]
struct Inbound {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// What one TLS record holds, and some.
#[cfg(feature = "tls")]
const INBOUND_BYTES: usize = 64 << 10;

impl Transport {
    /// In the clear.
    pub fn new(socket: Socket) -> Self {
        Self {
            socket,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The socket beneath.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket, if what is sent goes as it is.
    pub fn in_the_clear(&self) -> Option<&Socket> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return None;
        }
        Some(&self.socket)
    }

    /// Receives what there is, waiting for the first byte. 0 at the end.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.receive(&self.socket, buf);
        }
        self.socket.receive(buf)
    }

    /// The same by `deadline`.
    pub fn receive_before(&self, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_timeouts(left)?;
        self.receive(buf)
    }

    /// Sends all of `slices`. One thread at a time: the caller sees to it.
    pub fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.send(&self.socket, slices);
        }
        send_all(&self.socket, slices)
    }

    /// [`Self::send`] of one slice.
    pub fn send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.send(&mut [IoSlice::new(bytes)])
    }

    /// Turns to TLS, as its server.
    #[cfg(feature = "tls")]
    pub fn start_tls(
        &mut self,
        config: std::sync::Arc<rustls::ServerConfig>,
        deadline: Instant,
    ) -> io::Result<()> {
        let connection = rustls::ServerConnection::new(config).map_err(io::Error::other)?;
        self.shake_hands(connection.into(), deadline)
    }

    /// Turns to TLS, as its client.
    #[cfg(feature = "tls")]
    pub fn start_tls_as_client(
        &mut self,
        config: std::sync::Arc<rustls::ClientConfig>,
        host: rustls::pki_types::ServerName<'static>,
        deadline: Instant,
    ) -> io::Result<()> {
        let connection = rustls::ClientConnection::new(config, host).map_err(io::Error::other)?;
        self.shake_hands(connection.into(), deadline)
    }

    #[cfg(feature = "tls")]
    fn shake_hands(&mut self, mut connection: rustls::Connection, deadline: Instant) -> io::Result<()> {
        while connection.is_handshaking() {
            while connection.wants_write() {
                connection.write_tls(&mut Writer(&self.socket))?;
            }
            if !connection.is_handshaking() {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_timeouts(left)?;
            if connection.read_tls(&mut Reader(&self.socket))? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = connection.process_new_packets() {
                // Tells the other why.
                let _ = connection.write_tls(&mut Writer(&self.socket));
                return Err(io::Error::other(error));
            }
        }
        while connection.wants_write() {
            connection.write_tls(&mut Writer(&self.socket))?;
        }
        self.tls = Some(Tls {
            connection: Mutex::new(connection),
            inbound: Mutex::new(Inbound { bytes: vec![0; INBOUND_BYTES], start: 0, end: 0 }),
        });
        Ok(())
    }

    /// Says goodbye. After this nothing is sent.
    pub fn close(&self) {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let mut connection = tls.connection();
            connection.send_close_notify();
            let _ = connection.write_tls(&mut Writer(&self.socket));
        }
        self.socket.shutdown(Shutdown::Both);
    }
}

fn send_all(socket: &Socket, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match socket.send_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut slices, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(feature = "tls")]
struct Reader<'socket>(&'socket Socket);

#[cfg(feature = "tls")]
impl Read for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.receive(buf)
    }
}

#[cfg(feature = "tls")]
struct Writer<'socket>(&'socket Socket);

#[cfg(feature = "tls")]
impl Write for Writer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        on_socket!(self.0, stream => (&*stream).write(buf))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(feature = "tls")]
impl Tls {
    fn connection(&self) -> MutexGuard<'_, rustls::Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, socket: &Socket, buf: &mut [u8]) -> io::Result<usize> {
        let mut inbound = self.inbound.lock().unwrap_or_else(PoisonError::into_inner);
        let inbound = &mut *inbound;
        loop {
            let mut connection = self.connection();
            match connection.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            if inbound.start < inbound.end {
                let mut bytes = &inbound.bytes[inbound.start..inbound.end];
                inbound.start += connection.read_tls(&mut bytes)?;
                connection.process_new_packets().map_err(io::Error::other)?;
                while connection.wants_write() {
                    connection.write_tls(&mut Writer(socket))?;
                }
                continue;
            }
            // Not locked while waiting: others send.
            drop(connection);
            let received = socket.receive(&mut inbound.bytes)?;
            (inbound.start, inbound.end) = (0, received);
            if received == 0 {
                return Ok(0);
            }
        }
    }

    fn send(&self, socket: &Socket, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let mut connection = self.connection();
        for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let taken = connection.writer().write(rest)?;
                rest = &rest[taken..];
                if taken == 0 || !rest.is_empty() {
                    flush_tls(&mut connection, socket)?;
                }
            }
        }
        flush_tls(&mut connection, socket)
    }
}

#[cfg(feature = "tls")]
fn flush_tls(connection: &mut rustls::Connection, socket: &Socket) -> io::Result<()> {
    while connection.wants_write() {
        match connection.write_tls(&mut Writer(socket)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
