//! Where clients come in: sockets that are made for them, and those that the service manager passed.
//!
//! Invariant: what is wrong with the options is found before the disk is opened. A socket that was passed stays where it is.

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, Result};
use os::PassedSocket;
use serve::nbd::{Event, Listener, Options as ServerOptions, Server, Tls};
use serve::stats::{StatsServer, socket_beside};
use serve::{Access, Export};

use super::{Options, TlsFiles};
use crate::Observer;

/// What is to be listened on, as far as it is known before the disk.
pub(super) struct Doors {
    socket: Option<PathBuf>,
    access: Access,
    listen: Option<SocketAddr>,
    tls: Option<Tls>,
    is_insecure: bool,
    passed: Vec<PassedSocket>,
}

impl Doors {
    pub(super) fn of(options: &Options) -> Result<Self> {
        let passed = if options.passed_sockets { os::passed_sockets()? } else { Vec::new() };
        if options.socket.is_none() && options.listen.is_none() && passed.is_empty() {
            return Err(Error::invalid("there is no socket to listen on")
                .hint("give --socket PATH or --listen ADDR:PORT, or have systemd pass a socket"));
        }
        Ok(Self {
            socket: options.socket.clone(),
            access: access(options)?,
            listen: options.listen,
            tls: options.tls.as_ref().map(tls).transpose()?,
            is_insecure: options.insecure,
            passed,
        })
    }

    /// Makes the sockets, and takes those that were passed.
    fn open(mut self, name: &str) -> Result<Entrances> {
        let mut entrances = Entrances::default();
        if let Some(address) = self.listen {
            entrances.add(self.tcp(Listener::tcp(address)?, address, name));
        }
        for socket in std::mem::take(&mut self.passed) {
            match socket {
                PassedSocket::Tcp(socket) => {
                    let address = socket.local_addr().map_err(|error| Error::io("listen", error))?;
                    entrances.add(self.tcp(Listener::from_tcp(socket), address, name));
                }
                PassedSocket::Unix(socket) => {
                    let path = path_of(&socket);
                    entrances.add((Listener::from_unix(socket), unix_place(&path, name)));
                    entrances.passed.get_or_insert(path);
                }
            }
        }
        // The last one, so that nothing is left of it when another fails.
        if let Some(path) = self.socket.take() {
            entrances.add((Listener::unix_for(&path, self.access)?, unix_place(&path, name)));
            entrances.own = Some(path);
        }
        Ok(entrances)
    }

    /// A TCP listener as the options want it, and its place.
    fn tcp(&self, listener: Listener, address: SocketAddr, name: &str) -> (Listener, String) {
        let address = listener.tcp_address().unwrap_or(address);
        let (listener, scheme) = match &self.tls {
            Some(tls) => (listener.with_tls(tls.clone()), "nbds"),
            None => (listener, "nbd"),
        };
        let listener = if self.is_insecure { listener.insecure() } else { listener };
        (listener, format!("{scheme}://{address}/{name}"))
    }
}

/// Listeners, and what each is called.
#[derive(Default)]
struct Entrances {
    listeners: Vec<Listener>,
    places: Vec<String>,
    /// The socket that was made in the file system.
    own: Option<PathBuf>,
    /// The first socket in the file system that was passed.
    passed: Option<PathBuf>,
}

impl Entrances {
    fn add(&mut self, (listener, place): (Listener, String)) {
        self.listeners.push(listener);
        self.places.push(place);
    }
}

/// A server with its control socket.
pub(super) struct Listening {
    pub(super) server: Server,
    /// For people and clients.
    pub(super) places: Vec<String>,
    _stats: Option<StatsServer>,
}

impl Listening {
    pub(super) fn start(doors: Doors, exports: &[Arc<Export>], observer: &Arc<dyn Observer>) -> Result<Self> {
        let access = doors.access;
        let Entrances { listeners, places, own, passed } = doors.open(&percent_encoded(exports[0].name()))?;
        let told = observer.clone();
        let tell = Arc::new(move |event| tell(&event, &*told));
        let how = ServerOptions { tell, ..ServerOptions::default() };
        let started = Server::start(listeners, exports.to_vec(), how).and_then(|server| {
            let stats = match &own {
                Some(path) => Some(StatsServer::start_for(socket_beside(path), access, exports.to_vec())?),
                None => passed.and_then(|path| stats_beside_passed(&path, exports, &**observer)),
            };
            Ok(Self { server, places, _stats: stats })
        });
        if let (Err(_), Some(path)) = (&started, &own) {
            let _ = std::fs::remove_file(path);
        }
        started
    }
}

/// Statistics beside a socket of the service manager, whose folder may be another's.
fn stats_beside_passed(path: &Path, exports: &[Arc<Export>], observer: &dyn Observer) -> Option<StatsServer> {
    let started = StatsServer::start(socket_beside(path), exports.to_vec());
    started.inspect_err(|error| observer.note(&format!("there are no statistics: {error}"))).ok()
}

/// Where a socket is in the file system; empty if it is not.
fn path_of(socket: &UnixListener) -> PathBuf {
    let address = socket.local_addr().ok();
    address.and_then(|address| address.as_pathname().map(Path::to_owned)).unwrap_or_default()
}

fn unix_place(path: &Path, name: &str) -> String {
    format!("nbd+unix:///{name}?socket={}", percent_encoded(&path.to_string_lossy()))
}

/// Permissions of the socket that is made.
fn access(options: &Options) -> Result<Access> {
    let by_default = Access::default();
    let group_id = options.socket_group.as_deref().map(os::group_id).transpose()?;
    Ok(Access { mode: options.socket_mode.unwrap_or(by_default.mode), group_id })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::io("read", error).path(path.display()))
}

fn tls(files: &TlsFiles) -> Result<Tls> {
    let authority = files.authority.as_deref().map(read).transpose()?;
    Tls::from_pem(&read(&files.certificate)?, &read(&files.key)?, authority.as_deref())
}

fn tell(event: &Event, observer: &dyn Observer) {
    match event {
        Event::TooManyConnections => {
            observer.note("a client was turned away: there are too many connections");
        }
        Event::NotAccepted(why) => observer.note(&format!("a client was turned away: {why}")),
        Event::ExportFailed(_, why) => observer.note(why),
    }
}

/// RFC 3986, section 2.1. The slash of paths stays.
fn percent_encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::percent_encoded;

    #[test]
    fn names_stay_within_their_part_of_an_address() {
        assert_eq!(percent_encoded("/run/a b?c&d=é.sock"), "/run/a%20b%3Fc%26d%3D%C3%A9.sock");
    }
}
