//! `leandisk coordinate`: one budget of background work for each storage device of a host, leased to its own guard and to those of its guests.
//!
//! One thread. Guests' QEMUs connect to one socket, guards of this host to another; which files a guest's disks are is seen by the process
//! at the other end, so that nothing is to be configured.
//!
//! Invariants: a guest can ask for leases and nothing else, and hears of nobody but itself; what it says is bounded in length and number; what
//! cannot be sent to it is left out.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use ::coordinate::Limits;
use ::coordinate::{
    ClientId, Coordinator, DeviceId, DiskAnswer, FromGuest, Growth, Host, LineReader, Millis, Serial,
};
use ::guard::Pressure;
use block::{Error, Result};
use os::DeviceNumber;

use crate::waits::waits;

/// Where the sockets are, unless somebody says otherwise.
pub const LISTEN_FOLDER: &str = "/run/leandisk/coordinate";

/// A look around at least so often.
const TICK_MS: u64 = 100;
/// And at most so often, whatever guests say.
const REST: Duration = Duration::from_millis(2);
/// It is asked whether others wait for the host's devices so often.
const LOOK_MS: Millis = 200;
/// Read of one client at a time.
const READ_BYTES: usize = 1024;
const UNSENT_BYTES_MAX: usize = 8 << 10;
/// A thin disk may grow by one part of so many.
const GROWTH_SHARE: u64 = 1000;

/// What is coordinated, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the sockets.
    pub listen_folder: PathBuf,
    /// How much background work there may be.
    pub limits: Limits,
    /// What the kernel counts of waiting: `/proc/pressure`.
    pub pressure: PathBuf,
}

/// The socket for guards of this host in such a folder.
pub(crate) fn host_socket(folder: &Path) -> PathBuf {
    folder.join("host.sock")
}

fn guests_socket(folder: &Path) -> PathBuf {
    folder.join("guests.sock")
}

/// Coordinates until `stop` is set. `ready` is called with the sockets of the host and of its guests.
pub fn run(options: &Options, stop: &AtomicBool, ready: impl FnOnce(&[PathBuf])) -> Result<()> {
    let folder = &options.listen_folder;
    let make = |error| Error::io("create", error).path(folder.display());
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(make)?;
    let lock_path = folder.join("lock");
    let lock = std::fs::File::create(&lock_path)
        .map_err(|error| Error::io("create", error).path(lock_path.display()))?;
    if !os::try_lock(&lock, false) {
        return Err(Error::refused("a coordinator runs there already").path(folder.display()));
    }
    // QEMU may run as any user; whoever connects is a guest, and can only ask.
    let places = [(host_socket(folder), 0o600), (guests_socket(folder), 0o666)];
    let listeners = [listen(&places[0].0, places[0].1)?, listen(&places[1].0, places[1].1)?];
    ready(&places.each_ref().map(|place| place.0.clone()));
    let mut server = Server::new(options, listeners);
    while !stop.load(Ordering::Relaxed) {
        server.turn();
        std::thread::sleep(REST);
    }
    for (place, _) in &places {
        let _ = std::fs::remove_file(place);
    }
    Ok(())
}

fn listen(path: &Path, mode: u32) -> Result<UnixListener> {
    let fail = |error| Error::io("listen at", error).path(path.display());
    // Nobody listens there: the lock is ours.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(fail)?;
    Ok(listener)
}

/// Who is at the other end.
#[derive(Clone, Copy)]
enum Who {
    /// A guard of this host, which knows its devices.
    Host,
    /// A guest, whose QEMU is this process.
    Guest(u32),
}

struct Client {
    stream: UnixStream,
    reader: LineReader,
    unsent: Vec<u8>,
}

struct Server {
    began: Instant,
    listeners: [UnixListener; 2],
    coordinator: Coordinator,
    clients: BTreeMap<ClientId, Client>,
    machine: Machine,
    next: ClientId,
    pressure: Pressure,
    looked: Millis,
    folder: PathBuf,
}

/// What is known of the host.
struct Machine {
    who: BTreeMap<ClientId, Who>,
    is_busy: bool,
}

impl Host for Machine {
    fn disk(&mut self, client: ClientId, size_bytes: u64, serial: &Serial) -> Option<DiskAnswer> {
        match self.who.get(&client)? {
            Who::Host => {
                let (major, minor) = serial.text().split_once(':')?;
                let device = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
                Some(DiskAnswer { devices: vec![device.into()], growth: Growth::Thick })
            }
            Who::Guest(process) => guests_disk(*process, size_bytes),
        }
    }

    fn is_busy(&mut self, _device: DeviceId) -> bool {
        self.is_busy
    }
}

/// The one file of this process that is as long as the disk, which is a raw image or a device; else any of them: the disk is then taken for
/// one that grows, and for lying on all their devices.
fn guests_disk(process: u32, size_bytes: u64) -> Option<DiskAnswer> {
    let all = os::disks_open_in(process);
    let same: Vec<_> = all.iter().filter(|disk| disk.size_bytes == size_bytes).collect();
    let (devices, is_thick) = match same[..] {
        [only] => (only.devices.clone(), only.allocated_bytes >= size_bytes),
        _ => (all.iter().flat_map(|disk| disk.devices.clone()).collect(), false),
    };
    let mut devices: Vec<DeviceId> = devices.into_iter().map(DeviceId::from).collect();
    devices.sort_unstable();
    devices.dedup();
    let growth = if is_thick { Growth::Thick } else { Growth::Thin(size_bytes / GROWTH_SHARE) };
    (!devices.is_empty()).then_some(DiskAnswer { devices, growth })
}

impl Server {
    fn new(options: &Options, listeners: [UnixListener; 2]) -> Self {
        let number = u64::from_le_bytes(*uuid::Uuid::new_v4().as_bytes().first_chunk().unwrap_or(&[1; 8]));
        Self {
            began: Instant::now(),
            listeners,
            coordinator: Coordinator::new(0, number, options.limits),
            clients: BTreeMap::new(),
            machine: Machine { who: BTreeMap::new(), is_busy: true },
            next: 1,
            pressure: Pressure::default(),
            looked: 0,
            folder: options.pressure.clone(),
        }
    }

    fn now(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    fn turn(&mut self) {
        let streams = self.clients.values().map(|client| &client.stream);
        os::wait_for_input(&self.listeners, streams, TICK_MS);
        self.accept();
        self.look();
        let mut gone = Vec::new();
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            if !self.hear(id) {
                gone.push(id);
            }
        }
        for id in gone {
            self.clients.remove(&id);
            self.machine.who.remove(&id);
            let now = self.now();
            self.coordinator.disconnected(now, id);
        }
        self.coordinator.tick(self.now());
        self.say();
    }

    fn accept(&mut self) {
        for at in [0, 1] {
            let Ok((stream, _)) = self.listeners[at].accept() else { continue };
            let who = if at == 0 { Who::Host } else { Who::Guest(os::process_at(&stream).unwrap_or(0)) };
            if stream.set_nonblocking(true).is_err() || !self.coordinator.connected(self.now(), self.next) {
                continue;
            }
            self.machine.who.insert(self.next, who);
            self.clients
                .insert(self.next, Client { stream, reader: LineReader::default(), unsent: Vec::new() });
            self.next += 1;
        }
    }

    /// What is waited for while somebody has a lease is waited for by its holder.
    fn look(&mut self) {
        let now = self.now();
        if now < self.looked + LOOK_MS {
            return;
        }
        self.looked = now;
        let waits = waits(&self.folder);
        if self.coordinator.leases().next().is_some() {
            self.pressure.skip(now, waits);
        } else {
            self.machine.is_busy = self.pressure.look(now, waits).is_some();
        }
    }

    /// Whether the client is still there.
    fn hear(&mut self, id: ClientId) -> bool {
        let now = self.now();
        let Some(client) = self.clients.get_mut(&id) else { return false };
        let mut buffer = [0; READ_BYTES];
        match client.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(len) => {
                let (coordinator, machine) = (&mut self.coordinator, &mut self.machine);
                client.reader.feed(&buffer[..len], |line| {
                    if let Some(said) = FromGuest::parse(line) {
                        coordinator.receive(now, id, said, machine);
                    }
                });
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn say(&mut self) {
        for (id, said) in self.coordinator.take_out() {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            tracing::debug!(id, %said, "said");
            if client.unsent.len() < UNSENT_BYTES_MAX {
                client.unsent.extend(said.to_string().as_bytes());
            }
        }
        for client in self.clients.values_mut().filter(|client| !client.unsent.is_empty()) {
            // Who does not listen is found gone when it is heard next, or asks again.
            if let Ok(len) = client.stream.write(&client.unsent) {
                client.unsent.drain(..len);
            }
        }
    }
}
