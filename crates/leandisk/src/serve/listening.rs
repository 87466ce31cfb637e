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
use serve::{Access, Export, bind};

use super::made::Made;
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

    /// What is made by name for it, and removed in the end.
    pub(super) fn made(&self) -> Vec<PathBuf> {
        let passed = self.passed.iter().find_map(|socket| match socket {
            PassedSocket::Unix(socket) => Some(socket_beside(&path_of(socket))),
            PassedSocket::Tcp(_) => None,
        });
        match &self.socket {
            Some(path) => vec![path.clone(), socket_beside(path)],
            None => passed.into_iter().collect(),
        }
    }

    /// Makes the sockets, and takes those that were passed.
    pub(super) fn open(mut self, observer: &dyn Observer) -> Result<Entrances> {
        let mut entrances = Entrances::default();
        if let Some(address) = self.listen {
            entrances.add(self.tcp(Listener::tcp(address)?, address));
        }
        for socket in std::mem::take(&mut self.passed) {
            match socket {
                PassedSocket::Tcp(socket) => {
                    let address = socket.local_addr().map_err(|error| Error::io("listen", error))?;
                    entrances.add(self.tcp(Listener::from_tcp(socket), address));
                }
                PassedSocket::Unix(socket) => {
                    let path = path_of(&socket);
                    entrances.add((Listener::from_unix(socket), Place::Unix(path.clone())));
                    entrances.passed.get_or_insert(path);
                }
            }
        }
        match self.socket.take() {
            Some(path) => {
                // Who finds the disk's socket finds that of its statistics, too, and by it the moments of the disk. Where neither can be, the
                // error is about the disk's.
                let stats = made_socket(&socket_beside(&path), self.access);
                let (socket, made) = made_socket(&path, self.access)?;
                entrances.add((Listener::from_unix(socket), Place::Unix(path.clone())));
                entrances.made.push(made);
                entrances.add_stats(stats?);
            }
            None => entrances.add_stats_beside_passed(observer),
        }
        Ok(entrances)
    }

    /// A TCP listener as the options want it, and its place.
    fn tcp(&self, listener: Listener, address: SocketAddr) -> (Listener, Place) {
        let address = listener.tcp_address().unwrap_or(address);
        let (listener, scheme) = match &self.tls {
            Some(tls) => (listener.with_tls(tls.clone()), "nbds"),
            None => (listener, "nbd"),
        };
        let listener = if self.is_insecure { listener.insecure() } else { listener };
        (listener, Place::Tcp { scheme, address })
    }
}

/// Where a listener is.
enum Place {
    Tcp { scheme: &'static str, address: SocketAddr },
    Unix(PathBuf),
}

impl Place {
    /// The address of an export there.
    fn of(&self, name: &str) -> String {
        let name = percent_encoded(name);
        match self {
            Self::Tcp { scheme, address } => format!("{scheme}://{address}/{name}"),
            Self::Unix(path) => {
                format!("nbd+unix:///{name}?socket={}", percent_encoded(&path.to_string_lossy()))
            }
        }
    }
}

/// Listeners, and where each is. Whoever connects waits until there is a server.
#[derive(Default)]
pub(super) struct Entrances {
    listeners: Vec<Listener>,
    places: Vec<Place>,
    /// For statistics.
    stats: Option<UnixListener>,
    /// The sockets that were made in the file system.
    made: Vec<Made>,
    /// The first socket in the file system that was passed.
    passed: Option<PathBuf>,
    limits: ServerOptions,
}

impl Entrances {
    fn add(&mut self, (listener, place): (Listener, Place)) {
        self.listeners.push(listener);
        self.places.push(place);
    }

    fn add_stats(&mut self, (socket, made): (UnixListener, Made)) {
        self.stats = Some(socket);
        self.made.push(made);
    }

    /// Statistics beside a socket of the service manager, whose folder may be another's.
    fn add_stats_beside_passed(&mut self, observer: &dyn Observer) {
        let Some(path) = &self.passed else { return };
        match made_socket(&socket_beside(path), Access::default()) {
            Ok(made) => self.add_stats(made),
            Err(error) => observer.note(&format!("there are no statistics: {error}")),
        }
    }
}

/// A socket in the file system, which goes when the second value does.
fn made_socket(path: &Path, access: Access) -> Result<(UnixListener, Made)> {
    Ok((bind(path, access)?, Made::new(path)))
}

/// A server with its control socket.
pub(super) struct Listening {
    server: Server,
    places: Vec<Place>,
    _stats: Option<StatsServer>,
    made: Vec<Made>,
}

impl Listening {
    pub(super) fn start(
        entrances: Entrances,
        exports: &[Arc<Export>],
        observer: &Arc<dyn Observer>,
    ) -> Result<Self> {
        let Entrances { listeners, places, stats, made, limits, .. } = entrances;
        let (told, is_alone) = (observer.clone(), exports.len() == 1);
        let tell = Arc::new(move |event| tell(&event, is_alone, &*told));
        let how = ServerOptions { tell, ..limits };
        let server = Server::start(listeners, exports.to_vec(), how)?;
        let stats = stats
            .map(|socket| StatsServer::start_on(socket, exports.to_vec(), Some(server.publisher())))
            .transpose()?;
        Ok(Self { server, places, _stats: stats, made })
    }

    /// Lets nobody in any more, and flushes. What came of it is told of each export.
    pub(super) fn stop(self) -> Vec<Result<()>> {
        drop(self.made);
        self.server.stop_each()
    }

    /// The addresses of an export, for people and clients.
    pub(super) fn places(&self, name: &str) -> impl Iterator<Item = String> {
        self.places.iter().map(move |place| place.of(name))
    }
}

/// Where a socket is in the file system; empty if it is not.
fn path_of(socket: &UnixListener) -> PathBuf {
    let address = socket.local_addr().ok();
    address.and_then(|address| address.as_pathname().map(Path::to_owned)).unwrap_or_default()
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

/// An export that is alone needs no name.
fn tell(event: &Event, is_alone: bool, observer: &dyn Observer) {
    match event {
        Event::TooManyConnections => {
            observer.note("a client was turned away: there are too many connections");
        }
        Event::NotAccepted(why) => observer.note(&format!("a client was turned away: {why}")),
        Event::ExportFailed(_, why) if is_alone => observer.note(why),
        Event::ExportFailed(name, why) => observer.note(&format!("{name}: {why}")),
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
