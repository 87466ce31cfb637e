//! The servers under measurement, one process for each image, behind Unix sockets.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, Result};
use engine::JobMonitor;
use image::Format;
use nbd::Client;

use crate::children::Running;

/// How long a server may take until it listens.
const START_MAX: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(2);

/// Which server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerKind {
    /// The program `leandisk` at this place.
    Leandisk(PathBuf),
    /// The program `qemu-nbd` at this place.
    QemuNbd(PathBuf),
}

impl ServerKind {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leandisk(_) => "leandisk",
            Self::QemuNbd(_) => "qemu-nbd",
        }
    }

    fn program(&self) -> &Path {
        match self {
            Self::Leandisk(program) | Self::QemuNbd(program) => program,
        }
    }

    /// qemu-nbd ends with its only client, past the page cache, as virtual machines commonly have their disks.
    fn arguments(&self, disk: &Path, format: Format, socket: &Path, writes: bool) -> Vec<String> {
        let (disk, socket) = (disk.display().to_string(), socket.display().to_string());
        let read_only = |flag: &str| (!writes).then(|| flag.to_owned());
        match self {
            Self::Leandisk(_) => ["serve", "-f", format.name(), &disk, "--socket", &socket]
                .into_iter()
                .map(str::to_owned)
                .chain(read_only("--read-only"))
                .collect(),
            Self::QemuNbd(_) => {
                let format = format!("--format={}", name_of_qemu(format));
                let socket = format!("--socket={socket}");
                let flags = ["--cache=none".to_owned(), "--discard=unmap".to_owned(), format, socket];
                flags.into_iter().chain(read_only("--read-only")).chain([disk]).collect()
            }
        }
    }
}

fn name_of_qemu(format: Format) -> &'static str {
    match format {
        Format::Vhd => "vpc",
        other => other.name(),
    }
}

/// A server of one image with a connection to it.
pub(super) struct Server {
    pub(super) client: Client,
    running: Running,
    is_ours: bool,
}

impl Server {
    /// Starts a server and connects to it. Its socket and what it says lie beside the disk.
    pub(super) fn start(
        kind: &ServerKind,
        disk: &Path,
        format: Format,
        writes: bool,
        monitor: &dyn JobMonitor,
    ) -> Result<Self> {
        let socket = disk.with_extension("sock");
        let log = disk.with_extension("log");
        let mut running =
            Running::start_server(kind.program(), &kind.arguments(disk, format, &socket, writes), log)?;
        let deadline = Instant::now() + START_MAX;
        loop {
            match Client::connect(&socket, "") {
                Ok(client) => {
                    return Ok(Self { client, running, is_ours: matches!(kind, ServerKind::Leandisk(_)) });
                }
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) if monitor.is_cancelled() => return Err(Error::interrupted()),
                Err(_) => running.check()?,
            }
            std::thread::sleep(STEP);
        }
    }

    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        self.running.cpu_seconds()
    }

    /// Takes leave, and waits until the image is closed.
    pub(super) fn stop(self) -> Result<()> {
        drop(self.client);
        self.running.end(self.is_ours)
    }
}
