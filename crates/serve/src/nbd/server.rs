//! Listens, accepts, limits, and stops.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};

use super::connection::{Setting, serve};
use super::exports::Exports;
use super::memory::Pool;
use super::negotiate::ExportFacts;
use super::transport::{Socket, Transport};
use crate::export::{Export, FaultKind};
use crate::socket::{Access, bind};

/// The unit in which guests cache.
const PAGE_BYTES: u32 = 4096;

/// Where clients come in.
pub struct Listener {
    socket: Listening,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::Tls>,
    is_insecure: bool,
}

enum Listening {
    Unix(UnixListener, Option<PathBuf>),
    Tcp(TcpListener),
}

impl Listener {
    fn new(socket: Listening) -> Self {
        Self {
            socket,
            #[cfg(feature = "tls")]
            tls: None,
            is_insecure: false,
        }
    }

    /// A socket in the file system at `path`, which must not exist, for the owner alone. It is removed in the end.
    pub fn unix(path: impl Into<PathBuf>) -> Result<Self> {
        Self::unix_for(path, Access::default())
    }

    /// A socket in the file system at `path`, which must not exist, for those with `access`. It is removed in the end.
    pub fn unix_for(path: impl Into<PathBuf>, access: Access) -> Result<Self> {
        let path = path.into();
        let socket = bind(&path, access)?;
        Ok(Self::new(Listening::Unix(socket, Some(path))))
    }

    /// A socket that listens already, and stays where it is in the end.
    pub fn from_unix(socket: UnixListener) -> Self {
        Self::new(Listening::Unix(socket, None))
    }

    /// A TCP socket that listens already.
    pub fn from_tcp(socket: TcpListener) -> Self {
        Self::new(Listening::Tcp(socket))
    }

    /// A TCP socket.
    pub fn tcp(address: SocketAddr) -> Result<Self> {
        let socket =
            TcpListener::bind(address).map_err(|error| Error::io(format!("listen on {address}"), error))?;
        Ok(Self::new(Listening::Tcp(socket)))
    }

    /// For clients with TLS alone.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: super::tls::Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// In the clear for the whole network to see, if that is what it comes to.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.is_insecure = true;
        self
    }

    /// The address of a TCP socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Listening::Tcp(socket) => socket.local_addr().ok(),
            Listening::Unix(..) => None,
        }
    }

    fn check(&self) -> Result<()> {
        let Listening::Tcp(socket) = &self.socket else { return Ok(()) };
        let address = socket.local_addr().map_err(|error| Error::io("listen", error))?;
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return Ok(());
        }
        if address.ip().is_loopback() || self.is_insecure {
            return Ok(());
        }
        Err(Error::refused(format!("everyone on the network of {address} could read and write the disks"))
            .hint("use TLS, or say --insecure"))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Listening::Unix(socket, _) => socket.as_fd(),
            Listening::Tcp(socket) => socket.as_fd(),
        }
    }
}

/// What a server tells of itself.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client was turned away: there are as many as may be.
    TooManyConnections,
    /// A client was turned away: the system gave no socket or thread.
    NotAccepted(String),
    /// An export failed for good, and why.
    ExportFailed(String, String),
}

/// Limits, and whom to tell.
#[derive(Clone)]
pub struct Options {
    /// The most connections at a time.
    pub connection_count_max: usize,
    /// How long a client may take to say what it wants.
    pub handshake: Duration,
    /// How long a client may stop within a request or a reply.
    pub stall: Duration,
    /// The most threads of a connection that work on requests.
    pub workers_per_connection: usize,
    /// Processors that they share. By default all that this process may use when it is asked, which a process that is confined sees less
    /// well.
    pub processor_count: usize,
    /// Memory that all connections share, besides about 4 MiB of each.
    pub shared_bytes: usize,
    /// How long replies may take once the server stops.
    pub grace: Duration,
    /// Told of what happens.
    pub tell: Arc<dyn Fn(Event) + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connection_count_max: 100,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            workers_per_connection: 32,
            processor_count: std::thread::available_parallelism().map_or(1, usize::from),
            shared_bytes: 256 << 20,
            grace: Duration::from_secs(10),
            tell: Arc::new(|_| {}),
        }
    }
}

struct Shared {
    /// As a client that comes in now finds them.
    exports: RwLock<Arc<Exports>>,
    pool: Arc<Pool>,
    options: Options,
    connections: Mutex<Connections>,
    one_ended: Condvar,
    next_number: AtomicU64,
    /// Told to connections, which are told apart by it from clients that leave.
    is_stopping: Arc<AtomicBool>,
}

#[derive(Default)]
struct Connections {
    /// A second handle of each socket, to end it by.
    sockets: HashMap<u64, Socket>,
    is_stopping: bool,
}

/// A server at work. Stops when dropped.
pub struct Server {
    shared: Arc<Shared>,
    /// The other ends are polled by the listening threads.
    bells: Vec<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    is_stopped: bool,
}

impl Server {
    /// Serves `exports` to whom comes in by `listeners`. The only export is also the one without a name.
    pub fn start(listeners: Vec<Listener>, exports: Vec<Arc<Export>>, options: Options) -> Result<Self> {
        for listener in &listeners {
            listener.check()?;
        }
        let facts = facts(&exports)?;
        for export in &exports {
            let (tell, name) = (options.tell.clone(), export.name().to_owned());
            export.watch(move |why| tell(Event::ExportFailed(name.clone(), why.to_owned())));
        }
        let shared = Arc::new(Shared {
            exports: RwLock::new(Arc::new(Exports { list: exports, facts })),
            pool: Pool::new(options.shared_bytes),
            options,
            connections: Mutex::default(),
            one_ended: Condvar::new(),
            next_number: AtomicU64::new(0),
            is_stopping: Arc::default(),
        });
        let mut server = Self { shared, bells: Vec::new(), threads: Vec::new(), is_stopped: false };
        for listener in listeners {
            server.listen(listener).map_err(|error| Error::io("listen", error))?;
        }
        Ok(server)
    }

    fn listen(&mut self, listener: Listener) -> io::Result<()> {
        match &listener.socket {
            Listening::Unix(socket, _) => socket.set_nonblocking(true)?,
            Listening::Tcp(socket) => socket.set_nonblocking(true)?,
        }
        let (bell, ring) = UnixStream::pair()?;
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("nbd listener".into())
            .spawn(move || shared.listen(&listener, &ring))?;
        self.bells.push(bell);
        self.threads.push(thread);
        Ok(())
    }

    /// Where exports may be added.
    pub fn publisher(&self) -> Publisher {
        Publisher(self.shared.clone())
    }

    /// Lets in a client at the other end of a connected socket, as one that came in by a listener without TLS.
    pub fn let_in(&self, client: UnixStream) -> Result<()> {
        self.shared
            .try_welcome(Socket::Unix(client), None)
            .map_err(|error| Error::io("serve a client", error))
    }

    /// How many clients there are.
    pub fn connection_count(&self) -> usize {
        self.shared.connections().sockets.len()
    }

    /// Takes no more clients and no more requests, waits for replies to those that came, and flushes every export. The
    /// error is the first export's that could not be flushed.
    pub fn stop(self) -> Result<()> {
        self.stop_each().into_iter().collect()
    }

    /// As [`Self::stop`], with what came of each export's flush, in the order of the exports.
    pub fn stop_each(mut self) -> Vec<Result<()>> {
        self.stop_now()
    }

    fn stop_now(&mut self) -> Vec<Result<()>> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Vec::new();
        }
        self.shared.connections().is_stopping = true;
        self.shared.is_stopping.store(true, SeqCst);
        self.bells.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.end_connections();
        self.shared.exports().public().map(|export| last_flush(export)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_now();
    }
}

fn last_flush(export: &Export) -> Result<()> {
    export.do_flush().map_err(|fault| {
        let kind = match fault.kind {
            FaultKind::NoSpace => io::ErrorKind::StorageFull,
            _ => io::ErrorKind::Other,
        };
        let what = format!("export '{}'", export.name().escape_debug());
        Error::io(what, io::Error::new(kind, fault.message))
    })
}

fn facts(exports: &[Arc<Export>]) -> Result<Vec<ExportFacts>> {
    if exports.is_empty() {
        return Err(Error::invalid("there is nothing to serve"));
    }
    let mut facts: Vec<ExportFacts> = Vec::new();
    for export in exports {
        let name = export.name();
        if name.len() > 4096 || export.description().len() > 4096 {
            return Err(Error::invalid("names of exports are at most 4096 bytes long"));
        }
        if facts.iter().any(|other| other.name == name) {
            return Err(Error::invalid(format!("two exports are called '{}'", name.escape_debug())));
        }
        facts.push(facts_of(export, false));
    }
    Ok(facts)
}

fn facts_of(export: &Export, is_private: bool) -> ExportFacts {
    ExportFacts {
        name: export.name().to_owned(),
        description: export.description().to_owned(),
        len_bytes: export.len_bytes(),
        preferred_bytes: export.sector_bytes().max(PAGE_BYTES),
        is_read_only: export.is_read_only(),
        is_private,
    }
}

/// Where exports come and go while a server runs, for those who were told their names.
#[derive(Clone)]
pub struct Publisher(Arc<Shared>);

impl Publisher {
    /// Lets clients that come in from now on find the export by its name, until the answer is dropped.
    pub(crate) fn publish(&self, export: Export) -> Published {
        let export = Arc::new(export);
        self.0.change_exports(|exports| {
            exports.facts.push(facts_of(&export, true));
            exports.list.push(export.clone());
        });
        Published { shared: self.0.clone(), export }
    }

    /// Whether no more clients are let in.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.is_stopping.load(SeqCst)
    }
}

/// A private export, as long as the value lives.
pub(crate) struct Published {
    shared: Arc<Shared>,
    export: Arc<Export>,
}

impl Drop for Published {
    fn drop(&mut self) {
        self.shared.change_exports(|exports| {
            let Some(index) = exports.list.iter().position(|other| Arc::ptr_eq(other, &self.export)) else {
                return;
            };
            exports.list.remove(index);
            exports.facts.remove(index);
        });
    }
}

impl Shared {
    fn exports(&self) -> Arc<Exports> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Clients that are there keep what they found.
    fn change_exports(&self, change: impl FnOnce(&mut Exports)) {
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Exports::clone(&exports);
        change(&mut changed);
        *exports = Arc::new(changed);
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A listening thread's life.
    fn listen(self: &Arc<Self>, listener: &Listener, ring: &UnixStream) {
        loop {
            let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(ring, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return (self.options.tell)(Event::NotAccepted(error.to_string())),
            }
            if !ready[1].revents().is_empty() {
                break;
            }
            match accept(&listener.socket) {
                Ok(socket) => self.welcome(socket, listener),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => {
                    (self.options.tell)(Event::NotAccepted(error.to_string()));
                    // Out of descriptors, most likely: whoever waits is still there later.
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        if let Listening::Unix(_, Some(path)) = &listener.socket {
            let _ = std::fs::remove_file(path);
        }
    }

    fn welcome(self: &Arc<Self>, socket: Socket, listener: &Listener) {
        if let Err(error) = self.try_welcome(socket, Some(listener)) {
            (self.options.tell)(Event::NotAccepted(error.to_string()));
        }
    }

    fn try_welcome(self: &Arc<Self>, socket: Socket, listener: Option<&Listener>) -> io::Result<()> {
        let number = self.next_number.fetch_add(1, Relaxed);
        let handle = socket.try_clone()?;
        {
            let mut connections = self.connections();
            if connections.sockets.len() >= self.options.connection_count_max {
                drop(connections);
                (self.options.tell)(Event::TooManyConnections);
                return Ok(());
            }
            if connections.is_stopping {
                return Ok(());
            }
            connections.sockets.insert(number, handle);
        }
        let registered = Registered { shared: self.clone(), number };
        let setting = Setting {
            exports: self.exports(),
            pool: self.pool.clone(),
            handshake: self.options.handshake,
            stall: self.options.stall,
            workers: self.options.workers_per_connection.max(1),
            processors: self.options.processor_count,
            number,
            is_stopping: self.is_stopping.clone(),
            #[cfg(feature = "tls")]
            tls: listener.and_then(|listener| listener.tls.clone()),
            #[cfg(not(feature = "tls"))]
            tls: None,
        };
        let _ = listener;
        std::thread::Builder::new().name("nbd connection".into()).spawn(move || {
            let _registered = registered;
            serve(Transport::new(socket), &setting);
        })?;
        Ok(())
    }

    /// No more requests; then, after the grace, no more replies.
    fn end_connections(&self) {
        for socket in self.connections().sockets.values() {
            socket.shutdown(Shutdown::Read);
        }
        let deadline = Instant::now() + self.options.grace;
        let mut connections = self.connections();
        while !connections.sockets.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                for socket in connections.sockets.values() {
                    socket.shutdown(Shutdown::Both);
                }
                // Only a backend that does not return can keep one now.
                let patience = self.options.grace.max(Duration::from_secs(1));
                let all_ended = |connections: &mut Connections| !connections.sockets.is_empty();
                let _ = self.one_ended.wait_timeout_while(connections, patience, all_ended);
                return;
            }
            connections =
                self.one_ended.wait_timeout(connections, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A connection's place among the others, given up when dropped.
struct Registered {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.connections().sockets.remove(&self.number);
        self.shared.one_ended.notify_all();
    }
}

fn accept(listening: &Listening) -> io::Result<Socket> {
    Ok(match listening {
        Listening::Unix(listener, _) => {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(false)?;
            Socket::Unix(stream)
        }
        Listening::Tcp(listener) => {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            Socket::Tcp(stream)
        }
    })
}
