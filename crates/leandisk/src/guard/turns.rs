//! Whose turn it is: asks the coordinator of the storage, where there is one, before anything moves.
//!
//! Found without configuration: the port that a hypervisor gives its guest, or else the socket of a coordinator on this machine.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ::coordinate::{Disks, FromHost, Guest, LineReader, May, Serial};
use ::guard::Millis;
use os::{DeviceNumber, DiskFacts};

/// The port of a guest (`virtserialport`, `name=org.leandisk.guard.0`).
const PORT: &str = "/dev/virtio-ports/org.leandisk.guard.0";
/// It is looked for a coordinator again after so long.
const LOOK_MS: Millis = 2_000;
/// Who asked and does not ask any more makes room for the next file system.
const OWNER_MS: Millis = 2_000;
/// Asked for at a time.
const BYTES: u64 = 128 << 20;
/// What is not taken by the other side is bounded.
const UNSENT_BYTES_MAX: usize = 8 << 10;

trait Line: Read + Write {}
impl<T: Read + Write> Line for T {}

/// Where the coordinator is asked.
struct Port {
    line: Box<dyn Line>,
    /// A socket that ends is gone; a port stays, whoever is at its other end.
    ends: bool,
    reader: LineReader,
    unsent: Vec<u8>,
    guest: Guest,
}

/// See the module's page.
pub(super) struct Turns {
    /// Where the user said; else where it is looked for.
    place: Option<PathBuf>,
    devices: Vec<DeviceNumber>,
    port: Option<Port>,
    looked_ms: Option<Millis>,
    owner: Option<(Disks, Millis)>,
}

impl Turns {
    pub(super) fn new(place: Option<&Path>, devices: &[DeviceNumber]) -> Self {
        let mut devices = devices.to_vec();
        devices.sort_unstable();
        devices.dedup();
        Self { place: place.map(Path::to_owned), devices, port: None, looked_ms: None, owner: None }
    }

    /// The disks among those that can be asked for; `None` where they are not known, or too many.
    pub(super) fn disks(&self, devices: &[DeviceNumber]) -> Option<Disks> {
        let bit = |device: &DeviceNumber| self.devices.iter().position(|known| known == device);
        let bits = devices
            .iter()
            .map(|device| bit(device).and_then(|bit| 1_u64.checked_shl(u32::try_from(bit).ok()?)));
        Disks::new(bits.sum::<Option<u64>>()?)
    }

    /// Hears what was said, and looks for a coordinator if there is none.
    pub(super) fn turn(&mut self, now: Millis) {
        if self.port.is_none() && self.looked_ms.is_none_or(|looked| now >= looked + LOOK_MS) {
            self.looked_ms = Some(now);
            self.port = self.open(now);
        }
        let Some(port) = &mut self.port else { return };
        if let Err(error) = port.hear(now).and_then(|()| port.say()) {
            tracing::debug!(%error, "the coordinator is gone");
            (self.port, self.owner) = (None, None);
        }
    }

    fn open(&self, now: Millis) -> Option<Port> {
        let local = crate::coordinate::host_socket(Path::new(crate::coordinate::LISTEN_FOLDER));
        let found = match &self.place {
            Some(place) => open_line(place),
            None => open_line(Path::new(PORT)).or_else(|| open_line(&local)),
        };
        let (line, ends) = found?;
        // On this machine a device is known by its number, from a guest by what it says of itself.
        let disk = |device: &DeviceNumber| {
            let facts = DiskFacts::of(*device);
            let size_bytes = facts.as_ref().map_or(0, |facts| facts.size_bytes);
            let number = format!("{}:{}", device.major, device.minor);
            (
                size_bytes,
                Serial::new(&if ends { number } else { facts.map(|facts| facts.serial).unwrap_or_default() }),
            )
        };
        let guest = Guest::new(now, self.devices.iter().map(disk).collect());
        Some(Port { line, ends, reader: LineReader::default(), unsent: Vec::new(), guest })
    }

    /// Whether work on these disks may begin or go on.
    pub(super) fn may(&mut self, now: Millis, disks: Option<Disks>, gain: u64) -> May {
        let (Some(port), Some(disks)) = (&mut self.port, disks) else { return May::Alone };
        if self.owner.is_some_and(|(owner, seen)| owner != disks && now < seen + OWNER_MS) {
            return May::Wait;
        }
        self.owner = Some((disks, now));
        port.guest.may(now, disks, BYTES, gain)
    }

    /// What may move before a thin disk has grown too much.
    pub(super) fn growth_left(&self, disks: Option<Disks>) -> u64 {
        let left = self.port.as_ref().zip(disks).and_then(|(port, disks)| port.guest.growth_left(disks));
        left.unwrap_or(u64::MAX)
    }

    pub(super) fn moved(&mut self, bytes: u64) {
        if let Some(port) = &mut self.port {
            port.guest.moved(bytes);
        }
    }

    /// There is nothing to do on these disks.
    pub(super) fn done(&mut self, disks: Option<Disks>) {
        if self.owner.is_none_or(|(owner, _)| Some(owner) != disks) {
            return;
        }
        self.owner = None;
        if let Some(port) = &mut self.port {
            port.guest.done();
        }
    }
}

fn open_line(place: &Path) -> Option<(Box<dyn Line>, bool)> {
    use std::os::unix::fs::FileTypeExt;
    let kind = std::fs::metadata(place).ok()?.file_type();
    if kind.is_socket() {
        return os::connect_at_once(place).ok().map(|stream| (Box::new(stream) as Box<dyn Line>, true));
    }
    if !kind.is_char_device() {
        return None;
    }
    os::open_port(place).ok().map(|port| (Box::new(port) as Box<dyn Line>, false))
}

impl Port {
    fn hear(&mut self, now: Millis) -> io::Result<()> {
        let mut buffer = [0; 1024];
        // As much as there is for one look, and no more.
        for _ in 0..8 {
            match self.line.read(&mut buffer) {
                Ok(0) if self.ends => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Ok(()),
                Ok(len) => {
                    let guest = &mut self.guest;
                    self.reader.feed(&buffer[..len], |line| {
                        if let Some(said) = FromHost::parse(line) {
                            guest.receive(now, said);
                        }
                    });
                }
                Err(error) if is_later(&error) => return Ok(()),
                Err(error) if self.ends => return Err(error),
                // Nobody is at the other end of the port.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn say(&mut self) -> io::Result<()> {
        for said in self.guest.take_out() {
            // What there is no room for is said again later.
            if self.unsent.len() < UNSENT_BYTES_MAX {
                self.unsent.extend(said.to_string().as_bytes());
            }
        }
        while !self.unsent.is_empty() {
            match self.line.write(&self.unsent) {
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(error) if is_later(&error) => return Ok(()),
                Err(error) if self.ends => return Err(error),
                Err(_) => {
                    self.unsent.clear();
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
