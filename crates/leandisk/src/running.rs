//! Disks of running QEMU guests, named `qmp:SOCKET[?disk=NAME]`: each is read as it was at one moment, while the guest goes on.
//!
//! [`Disk::begin`] has QEMU export it, and gives the address of that export, which any use case that only reads takes for a disk; what was
//! made goes with the [`Disk`]. A process may close itself in after it was begun: nothing else is opened for it, and what is removed then goes
//! over the connection to QEMU that is open already.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use block::{Error, Result};
use report::{RecoverDocument, VmDocument};
pub use vm::{Address, Freeze};
use vm::{Agent, GuestAgent, Life, RunId, Snapshot, Socket, Surroundings, Wanted};

use crate::{Cancel, Observer};

/// Names of sockets are not longer (`sun_path` of unix(7), less the zero byte).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Between two looks whether something that QEMU ends is gone.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// How a disk of a running guest is read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether the guest is frozen at the moment.
    pub freeze: Freeze,
    /// The host's socket of the guest's agent.
    pub agent: Option<PathBuf>,
    /// The dirty bitmap that says what is read.
    pub since: Option<String>,
    /// The folder of the file that takes what the guest overwrites meanwhile; `None` for that of temporary files.
    pub overlay_folder: Option<PathBuf>,
}

/// Which disks the guest has.
pub fn list(address: &Address) -> Result<VmDocument> {
    let mut monitor = Socket::connect(&address.socket)?;
    Ok(VmDocument::new(&address.to_string(), vm::disks(&mut monitor)?))
}

/// Removes what copies of the guest's disks left that were killed; one that goes on is left alone. `Refused` if that cannot be told.
pub fn recover(address: &Address) -> Result<RecoverDocument> {
    sweep();
    let mut monitor = Socket::connect(&address.socket)?;
    let recovered = vm::recover(&mut monitor, &Host)?;
    match recovered.living.first() {
        Some(run) if run.life() == Life::Unknown => {
            Err(Error::refused(format!("'{run}' is a run of leandisk in another container, and may go on"))
                .hint("run leandisk recover in that container"))
        }
        _ => Ok(RecoverDocument::of_running(&address.to_string(), recovered.removed.len())),
    }
}

/// A disk of a running guest as it was at one moment. What was made for that goes with this value.
pub struct Disk {
    monitor: Socket,
    /// Until it is ended.
    snapshot: Option<Snapshot>,
    overlay: File,
    socket: PathBuf,
    source: PathBuf,
    shown: String,
    len_bytes: u64,
    cancelled: Cancel,
}

impl Disk {
    /// Has QEMU export the disk. What copies that were killed left in that QEMU is removed before.
    pub fn begin(address: &Address, options: &Options, observer: &dyn Observer) -> Result<Self> {
        // What stops the program from here on must not leave anything behind.
        let cancelled = observer.cancel()?;
        sweep();
        let mut monitor = Socket::connect(&address.socket)?;
        let disk = vm::find(&mut monitor, address.disk.as_deref())?;
        let run = RunId::new()?;
        let overlay = overlay(options.overlay_folder.as_deref(), disk.virtual_bytes)?;
        let socket = socket_path(run)?;
        let listener = serve::bind(&socket, serve::Access::default())?;
        let wanted = Wanted {
            run,
            disk: &disk,
            overlay: overlay.as_fd(),
            socket: listener.as_fd(),
            socket_path: &socket,
            freeze: options.freeze,
            agent: options.agent.as_deref(),
            since: options.since.as_deref(),
        };
        let begun = begin(&mut monitor, &wanted, observer);
        // QEMU has its own.
        drop::<UnixListener>(listener);
        let snapshot = begun.inspect_err(|_error| {
            let _ = std::fs::remove_file(&socket);
        })?;
        let source = format!("nbd+unix:///{}?socket={}", snapshot.export(), escaped(&socket));
        let shown = Address { disk: Some(disk.name.clone()), ..address.clone() }.to_string();
        let len_bytes = disk.virtual_bytes;
        let source = source.into();
        let begun =
            Self { monitor, snapshot: Some(snapshot), overlay, socket, source, shown, len_bytes, cancelled };
        if disk.device.is_none() {
            observer.note(
                "no device uses this disk: a write to it fails if what it overwrites cannot be kept meanwhile",
            );
        }
        begun.check_cancelled()?;
        Ok(begun)
    }

    /// The address of the export, to be opened in place of a path.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// What it is called in reports.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// What was made by name, and is removed in the end.
    pub fn made(&self) -> &Path {
        &self.socket
    }

    /// The disk's length.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The name of the metadata context that tells what was written since the bitmap was cleared.
    pub fn dirty_context(&self) -> Option<String> {
        self.snapshot.as_ref().map(|snapshot| format!("qemu:dirty-bitmap:{}", snapshot.dirty_bitmap()))
    }

    /// Has the user's bitmap begin again at the moment that was read: what was written before is in the target, for good.
    pub fn rotate(&mut self) -> Result<()> {
        match &self.snapshot {
            Some(snapshot) => snapshot.rotate(&mut self.monitor),
            None => Ok(()),
        }
    }

    /// Removes what was made in QEMU and beside it.
    pub fn end(mut self) -> Result<()> {
        self.remove()
    }

    /// `Interrupted` if the user asked to stop.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::interrupted()) } else { Ok(()) }
    }

    fn remove(&mut self) -> Result<()> {
        let Some(snapshot) = self.snapshot.take() else { return Ok(()) };
        let ended = snapshot.end(&mut self.monitor, &Host);
        // QEMU keeps a descriptor of it for as long as the guest stands still.
        let _ = self.overlay.set_len(0);
        match ended {
            Err(error) if vm::is_over(&error) => {
                tracing::info!(%error, "the guest ended, and all that was made in its QEMU with it");
                Host.remove_socket(&self.socket)
            }
            ended => ended,
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "something is left in QEMU");
        }
    }
}

fn begin(monitor: &mut Socket, wanted: &Wanted<'_>, observer: &dyn Observer) -> Result<Snapshot> {
    let waiting = observer.waiting("asking QEMU for the disk");
    let snapshot = vm::begin(monitor, &Host, wanted)?;
    drop(waiting);
    if let Some(why) = snapshot.unfrozen_because() {
        observer.note(&format!(
            "warning: the guest was not frozen ({why}): its disk is read as a power cut at that moment would leave it"
        ));
    }
    Ok(snapshot)
}

/// A file without a name, as long as the disk, that reads as zeros and occupies nothing.
pub(crate) fn overlay(folder: Option<&Path>, len_bytes: u64) -> Result<File> {
    let folder = folder.map_or_else(std::env::temp_dir, |folder| match folder.as_os_str().is_empty() {
        true => ".".into(),
        false => folder.to_owned(),
    });
    let made = tempfile::tempfile_in(&folder).and_then(|file| file.set_len(len_bytes).map(|()| file));
    made.map_err(|error| Error::io("make a file for what the guest overwrites", error).path(folder.display()))
}

/// Where the export's socket is: only this user may connect.
fn socket_path(run: RunId) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("{run}.sock"));
    match path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        true => Ok(path),
        false => Err(Error::unsupported("a socket with so long a name")
            .path(path.display())
            .hint("set TMPDIR to a folder with a shorter name")),
    }
}

/// Removes the sockets of runs that were killed: also of such that had told no QEMU of it yet.
fn sweep() {
    let folder = std::env::temp_dir();
    for name in os::names_in(&folder).unwrap_or_default() {
        if run_of_socket(Path::new(&name)).is_some_and(|run| run.life() == Life::Dead) {
            let _ = os::remove_made(&folder.join(name));
        }
    }
}

/// The run whose export's socket has this name.
fn run_of_socket(path: &Path) -> Option<RunId> {
    let name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
    RunId::parse(name).filter(|(_, part)| part.is_empty()).map(|(run, _)| run)
}

/// A path as it stands in an address.
pub(crate) fn escaped(path: &Path) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    bytes
        .map(|byte| if is_plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// What is outside of QEMU.
struct Host;

impl Surroundings for Host {
    fn life(&self, run: RunId) -> Life {
        run.life()
    }

    fn agent(&self, path: &Path) -> Result<Box<dyn Agent>> {
        Ok(Box::new(GuestAgent::connect(path)?))
    }

    fn remove_socket(&self, path: &Path) -> Result<()> {
        // A name that was left in QEMU by others must not have anything else removed.
        if run_of_socket(path).is_none() {
            return Ok(());
        }
        match os::remove_made(path) {
            Err(error) if is_not_there(&error) => Ok(()),
            removed => removed,
        }
    }

    fn wait(&self) {
        std::thread::sleep(LOOKS_EVERY);
    }
}

fn is_not_there(error: &Error) -> bool {
    error.io_source().is_some_and(|source| source.kind() == std::io::ErrorKind::NotFound)
}
