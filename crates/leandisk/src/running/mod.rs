//! Disks of running QEMU guests, named `qmp:SOCKET[?disk=NAME]`: each is read as it was at one moment, while the guest goes on.
//!
//! [`Moment::begin`] has QEMU export it, and gives the address of that export, which any use case that only reads takes for a disk; what was
//! made goes with the [`Moment`]. A process may close itself in after it was begun: nothing else is opened for it, and what is removed then goes
//! over the connection to QEMU that is open already. [`Guests`] are several disks, of one guest at one moment.

mod guests;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use block::{Error, Result, TargetFile};
use extent::HostOffset;
use report::{RecoverDocument, VmDocument};
pub use vm::{Address, Freeze};
use vm::{
    Agent, BitmapFound, GuestAgent, Life, RunId, Snapshot, Socket, Surroundings, VmDisk, Wanted, WantedDisk,
};

pub use self::guests::{Guests, ReadDisk};
use crate::{Cancel, Observer, remote};

/// Names of sockets are not longer (`sun_path` of unix(7), less the zero byte).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Between two looks whether something that QEMU ends is gone.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// The least that is written to a disk.
const SECTOR_BYTES: usize = 512;

/// How disks of a running guest are read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether the guest is frozen at the moment.
    pub freeze: Freeze,
    /// The host's socket of the guest's agent.
    pub agent: Option<PathBuf>,
    /// The dirty bitmap that says what is read.
    pub bitmap: BitmapAsked,
    /// The folder of the file that takes what the guest overwrites meanwhile; `None` for that of temporary files.
    pub overlay_folder: Option<PathBuf>,
}

/// Whether a disk's dirty bitmap is asked what was written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum BitmapAsked {
    /// Not at all.
    #[default]
    No,
    /// Or the disk is not read.
    Always(String),
    /// If it can be relied on.
    IfUsable(String),
}

/// What a disk's dirty bitmap says, as far as it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapTold {
    /// Its name.
    pub name: String,
    /// How it can be read, or why it cannot be relied on.
    pub is_usable: std::result::Result<BitmapRead, String>,
}

/// How a bitmap is read that stands still as it was at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapRead {
    /// The metadata context of the disk's export.
    pub context: String,
    /// Bytes that a bit stands for.
    pub granularity_bytes: u64,
}

/// Which disks of a guest are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meant {
    /// The one of that name.
    Named(String),
    /// The only one that it has.
    Only,
    /// All that it can write to.
    All,
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

/// Disks of a running guest as they were at one moment, by their numbers. What was made for that goes with this value.
pub struct Moment {
    monitor: Socket,
    /// Until it is ended.
    snapshot: Option<Snapshot>,
    overlays: Vec<File>,
    socket: PathBuf,
    disks: Vec<AtMoment>,
    cancelled: Cancel,
}

/// A disk at the moment.
#[derive(Clone, Debug)]
pub struct AtMoment {
    /// The address of the export, to be opened in place of a path.
    pub source: PathBuf,
    /// What it is called in reports.
    pub shown: String,
    /// The disk's length.
    pub len_bytes: u64,
    /// What its bitmap says, if that was asked.
    pub bitmap: Option<BitmapTold>,
    /// For which of what was meant it stands.
    pub meant: usize,
}

impl Moment {
    /// Has QEMU export one disk. What copies that were killed left in that QEMU is removed before.
    pub fn begin(address: &Address, options: &Options, observer: &dyn Observer) -> Result<Self> {
        let meant = address.disk.clone().map_or(Meant::Only, Meant::Named);
        Self::of_disks(&address.socket, &[meant], options, observer)
    }

    /// Has QEMU export disks as they are at one moment.
    pub fn of_disks(qmp: &Path, meant: &[Meant], options: &Options, observer: &dyn Observer) -> Result<Self> {
        // What stops the program from here on must not leave anything behind.
        let cancelled = observer.cancel()?;
        sweep();
        let mut monitor = Socket::connect(qmp)?;
        let found = find(&mut monitor, qmp, meant, observer)?;
        let run = RunId::new()?;
        let overlay =
            |(_, disk): &(usize, VmDisk)| overlay(options.overlay_folder.as_deref(), disk.virtual_bytes);
        let overlays = found.iter().map(overlay).collect::<Result<Vec<_>>>()?;
        let mut told = Vec::new();
        for (_, disk) in &found {
            told.push(look_at_bitmap(&mut monitor, disk, &options.bitmap)?);
        }
        let socket = socket_path(run)?;
        let listener = serve::bind(&socket, serve::Access::default())?;
        let disks = found.iter().zip(&overlays).zip(&told).map(|(((_, disk), overlay), told)| WantedDisk {
            disk,
            overlay: overlay.as_fd(),
            since: told.as_ref().filter(|told| told.is_usable.is_ok()).map(|told| told.name.as_str()),
        });
        let wanted = Wanted {
            run,
            disks: disks.collect(),
            socket: listener.as_fd(),
            socket_path: &socket,
            freeze: options.freeze,
            agent: options.agent.as_deref(),
        };
        let begun = begin(&mut monitor, &wanted, observer);
        // QEMU has its own.
        drop::<UnixListener>(listener);
        let snapshot = begun.inspect_err(|_error| {
            let _ = std::fs::remove_file(&socket);
        })?;
        let numbered = found.iter().zip(told).enumerate();
        let disks = numbered.map(|(number, ((meant, disk), bitmap))| {
            at_moment(&snapshot, number, &socket, qmp, disk, bitmap, *meant)
        });
        let disks = disks.collect();
        let begun = Self { monitor, snapshot: Some(snapshot), overlays, socket, disks, cancelled };
        if found.iter().any(|(_, disk)| disk.device.is_none()) {
            observer.note(
                "no device uses this disk: a write to it fails if what it overwrites cannot be kept meanwhile",
            );
        }
        begun.check_cancelled()?;
        Ok(begun)
    }

    /// The disks, in the order in which they were meant.
    pub fn disks(&self) -> &[AtMoment] {
        &self.disks
    }

    /// The only disk.
    pub fn disk(&self) -> &AtMoment {
        &self.disks[0]
    }

    /// What was made by name, and is removed in the end.
    pub fn made(&self) -> &Path {
        &self.socket
    }

    /// Has the user's bitmap of a disk begin again at the moment that was read: what was written before is in the target, for good. The bits of
    /// the places `kept` are set in it from the beginning.
    pub fn rotate(&mut self, disk: usize, kept: &[HostOffset]) -> Result<()> {
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        if !kept.is_empty() {
            let export = snapshot.offer_bits(&mut self.monitor, disk, self.disks[disk].len_bytes)?;
            let bits = remote::open_target(&address_of(&export, &self.socket))?;
            kept.iter().try_for_each(|at| bits.write_at(*at, &[0; SECTOR_BYTES]))?;
        }
        snapshot.rotate(&mut self.monitor, &Host, disk)
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
        for overlay in &self.overlays {
            // QEMU keeps a descriptor of it for as long as the guest stands still.
            let _ = overlay.set_len(0);
        }
        match ended {
            Err(error) if vm::is_over(&error) => {
                tracing::info!(%error, "the guest ended, and all that was made in its QEMU with it");
                Host.remove_socket(&self.socket)
            }
            ended => ended,
        }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "something is left in QEMU");
        }
    }
}

fn at_moment(
    snapshot: &Snapshot,
    number: usize,
    socket: &Path,
    qmp: &Path,
    disk: &VmDisk,
    bitmap: Option<BitmapTold>,
    meant: usize,
) -> AtMoment {
    let context = format!("qemu:dirty-bitmap:{}", snapshot.dirty_bitmap(number));
    let bitmap = bitmap.map(|mut told| {
        if let Ok(read) = &mut told.is_usable {
            read.context = context;
        }
        told
    });
    AtMoment {
        source: address_of(&snapshot.export(number), socket),
        shown: Address { disk: Some(disk.name.clone()), socket: qmp.to_owned() }.to_string(),
        len_bytes: disk.virtual_bytes,
        bitmap,
        meant,
    }
}

/// The address of an export at a socket of this host.
fn address_of(export: &str, socket: &Path) -> PathBuf {
    format!("nbd+unix:///{export}?socket={}", escaped(socket)).into()
}

/// The disks that are meant, each with the number of what it is meant by. `Invalid` if one is meant twice.
fn find(
    monitor: &mut Socket,
    qmp: &Path,
    meant: &[Meant],
    observer: &dyn Observer,
) -> Result<Vec<(usize, VmDisk)>> {
    let mut found = Vec::new();
    for (number, meant) in meant.iter().enumerate() {
        let disks = match meant {
            Meant::Named(name) => vec![vm::find(monitor, Some(name))?],
            Meant::Only => vec![vm::find(monitor, None)?],
            Meant::All => all(monitor, qmp, observer)?,
        };
        found.extend(disks.into_iter().map(|disk| (number, disk)));
    }
    let mut nodes = BTreeSet::new();
    match found.iter().find(|(_, disk)| !nodes.insert(&disk.node)) {
        None => Ok(found),
        Some((_, disk)) => Err(Error::invalid(format!("the disk '{}' is named twice", disk.name))
            .path(format!("qmp:{}", qmp.display()))),
    }
}

/// All disks that the guest can write to; those that it can only read, if there are no others.
fn all(monitor: &mut Socket, qmp: &Path, observer: &dyn Observer) -> Result<Vec<VmDisk>> {
    let (read_only, written): (Vec<_>, Vec<_>) =
        vm::disks(monitor)?.into_iter().partition(|disk| disk.read_only);
    match (written.is_empty(), read_only.is_empty()) {
        (true, true) => Err(Error::refused("this QEMU has no disk").path(format!("qmp:{}", qmp.display()))),
        (true, false) => Ok(read_only),
        (false, _) => {
            for disk in read_only {
                observer.note(&format!(
                    "'{}' is left out: the guest can only read it; name it with ?disk={} to have it as well",
                    disk.name, disk.name
                ));
            }
            Ok(written)
        }
    }
}

/// What is to be said of the bitmap that is asked for. Where it is read is not known yet.
fn look_at_bitmap(monitor: &mut Socket, disk: &VmDisk, asked: &BitmapAsked) -> Result<Option<BitmapTold>> {
    let (name, is_needed) = match asked {
        BitmapAsked::No => return Ok(None),
        BitmapAsked::Always(name) => (name, true),
        BitmapAsked::IfUsable(name) => (name, false),
    };
    let usable = |granularity_bytes| Ok(BitmapRead { context: String::new(), granularity_bytes });
    let is_usable = match vm::find_bitmap(monitor, disk, name)? {
        BitmapFound::Usable { granularity_bytes } => usable(granularity_bytes),
        // Whoever makes the moment refuses it.
        _ if is_needed => usable(1),
        BitmapFound::Unusable(why) => Err(format!(
            "the bitmap {name:?} {why} ('block-dirty-bitmap-remove', and '-add' it anew with \"persistent\": true)"
        )),
        BitmapFound::Missing => Err(format!("the disk has no bitmap {name:?}")),
    };
    Ok(Some(BitmapTold { name: name.clone(), is_usable }))
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
