//! A disk opened, served until that is stopped, and closed.
//!
//! Invariants:
//! - what is refused is refused before a socket exists and before a byte changes;
//! - the top image is held alone from before it is parsed for use until it is closed; what is only read (parents, and all
//!   of a disk served read-only) is kept from being written by whoever respects locks;
//! - a client that got its flush answered finds its data after any end of this program.
//!
//! Absent on purpose: several disks in one process.

mod listening;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bench::DiskInUse;
use block::{Counted, Disk, EditDisk, Error, HostFile, LiveDisk, ReadAt, Result, Run, TargetFile};
use claims::Act;
use extent::{Host, Virtual, VirtualOffset, VirtualSpan};
use image::live::LiveOptions;
use image::{Chain, Format, Purpose, Resolver};
use os::{LiveFile, PreallocatedFile, ReadLock, SpareRoom, StoragePromise, preallocated};
use serve::Export;
use serve::monitor::Monitor;
use serve::stats::MetricsServer;
use serve::trace::{TraceFacts, TraceOptions, TraceWriter};

use crate::open::{Caching, Gate, OpenOptions, check_claims, check_nothing_pending, open_chain};
use crate::{Observer, Provision, Unwatched};
use listening::{Doors, Listening};

/// What is served, and where.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disk: an image file or a block device that nobody else uses.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
    /// A Unix socket to listen on.
    pub socket: Option<PathBuf>,
    /// The permissions of that socket; `None` for the owner alone.
    pub socket_mode: Option<u32>,
    /// The group that the socket is given to, by name or number.
    pub socket_group: Option<String>,
    /// An address to listen on. Others than loopback need `tls` or `insecure`.
    pub listen: Option<SocketAddr>,
    /// Whether to listen on the sockets that the service manager passed to this process, too. They are passed once.
    pub passed_sockets: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// What the disk keeps of its space; `None` for what it was created with.
    pub provision: Option<Provision>,
    /// The export's name; `None` for the file's.
    pub name: Option<String>,
    /// What the address is secured with.
    pub tls: Option<TlsFiles>,
    /// Whether the network may be listened on without TLS.
    pub insecure: bool,
    /// A new file in which every request is recorded.
    pub trace: Option<PathBuf>,
    /// A loopback address for metrics.
    pub metrics: Option<SocketAddr>,
}

/// Files in PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signed the certificates of clients; without it, clients need none.
    pub authority: Option<PathBuf>,
}

/// Opens the disk, serves it until `wait` returns, and closes it. `wait` is given the addresses at which it is served.
pub fn run(options: &Options, observer: &Arc<dyn Observer>, wait: impl FnOnce(&[String])) -> Result<()> {
    let doors = Doors::of(options)?;
    let monitor = Monitor::new();
    let opened = OpenForUse::open(options, &monitor)?;
    let spare = if options.read_only { None } else { SpareRoom::beside(&options.disk) };
    let served = serve(options, doors, &opened, monitor, observer, |places| {
        wait(places);
        // It is there for what comes after.
        drop(spare);
    });
    // Whatever went wrong with clients, the image is closed if it can be.
    let closed = opened.close(&**observer);
    let Ended { flushed, recorded } = served.and_then(|ended| closed.map(|()| ended))?;
    match flushed {
        // What there was no room for then has been stored since.
        Err(error) if error.is_full() => recorded,
        flushed => flushed.and(recorded),
    }
}

/// How serving ended.
struct Ended {
    /// The last flush.
    flushed: Result<()>,
    /// The recording, if there is one.
    recorded: Result<()>,
}

/// Serves the disk until `wait` returns.
fn serve(
    options: &Options,
    doors: Doors,
    opened: &OpenForUse,
    monitor: Arc<Monitor>,
    observer: &Arc<dyn Observer>,
    wait: impl FnOnce(&[String]),
) -> Result<Ended> {
    let disk = &opened.disk;
    let trace = options.trace.as_deref().map(|path| record(path, &**disk)).transpose()?;
    let name = options
        .name
        .clone()
        .unwrap_or_else(|| options.disk.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let mut export = Export::new(name, disk.clone()).monitored(monitor);
    if options.read_only {
        export = export.read_only();
    }
    if opened.writes_zeros {
        export = export.writing_zeros();
    }
    if let Some(trace) = &trace {
        export = export.traced(trace.clone());
    }
    let export = Arc::new(export);
    let exports = vec![export.clone()];
    let metrics =
        options.metrics.map(|address| MetricsServer::start(address, exports.clone())).transpose()?;
    let listening = Listening::start(doors, &exports, observer).inspect_err(|_| {
        // Nothing was recorded, and a second attempt makes the file anew.
        options.trace.iter().for_each(|path| drop(std::fs::remove_file(path)));
    })?;
    let mut places = listening.places;
    if let Some(metrics) = &metrics {
        places.push(format!("http://{}/metrics", metrics.address()));
    }
    wait(&places);
    let flushed = listening.server.stop();
    let recorded = trace.map_or(Ok(()), |trace| finish(&trace, options.trace.as_deref(), &**observer));
    Ok(Ended { flushed, recorded })
}

fn record(path: &Path, disk: &dyn LiveDisk) -> Result<Arc<TraceWriter>> {
    let facts = TraceFacts { disk_bytes: disk.len_bytes(), sector_bytes: disk.sector_bytes() };
    let file = File::create_new(path).map_err(|error| Error::io("make", error).path(path.display()))?;
    Ok(Arc::new(TraceWriter::new(file, facts, TraceOptions::default())?))
}

fn finish(trace: &TraceWriter, path: Option<&Path>, observer: &dyn Observer) -> Result<()> {
    let totals = trace.finish()?;
    if let Some(path) = path.filter(|_| totals.dropped > 0) {
        observer.note(&format!("{} requests are missing from {}", totals.dropped, path.display()));
    }
    Ok(())
}

/// Takes a disk that stands on no other into use as `serve` does, but past the page cache where that can be done.
pub(crate) fn open_direct(path: &Path, format: Format) -> Result<Box<dyn DiskInUse>> {
    let open = OpenOptions { format: Some(format), allow_path: Vec::new() };
    let chain = open_chain(path, &open, Caching::Metadata)?;
    let gate = Gate::new(path, &open)?;
    let how = UseOptions { caching: Caching::Direct, kept: os::kept(path), monitor: &Monitor::new() };
    Ok(Box::new(OpenForUse::writable(&chain, &gate, how)?))
}

/// How a disk is used.
struct UseOptions<'a> {
    caching: Caching,
    /// What of its storage is not given back.
    kept: StoragePromise,
    monitor: &'a Arc<Monitor>,
}

/// A disk with the locks of the files that are only read.
struct OpenForUse {
    disk: Arc<dyn LiveDisk>,
    /// The top layer's.
    files: Vec<Arc<PreallocatedFile>>,
    /// Zeros are written, because it keeps that it was.
    writes_zeros: bool,
    _locks: Vec<ReadLock>,
}

impl OpenForUse {
    fn open(options: &Options, monitor: &Arc<Monitor>) -> Result<Self> {
        check_nothing_pending(&options.disk)?;
        let chain = open_chain(&options.disk, &options.open, Caching::PageCache)?;
        let gate = Gate::new(&options.disk, &options.open)?;
        let promised = options.provision.map_or_else(|| os::kept(&options.disk), Provision::kept);
        if options.read_only {
            Self::read_only(&chain, &gate)
        } else {
            Self::writable(&chain, &gate, UseOptions { caching: Caching::PageCache, kept: promised, monitor })
        }
    }

    fn read_only(chain: &Chain, gate: &Gate) -> Result<Self> {
        check_claims(chain, gate, Act::Read)?;
        let locks = lock_for_reading(chain.files())?;
        // What was parsed before the locks may have changed since.
        let chain = Chain::open(chain.files()[0].clone(), same_format(chain), gate)?;
        chain.check_readable()?;
        check_all_held(&chain, &locks, &[])?;
        Ok(Self {
            disk: Arc::new(ReadOnly(chain)),
            files: Vec::new(),
            writes_zeros: false,
            _locks: locks.into_iter().map(|held| held.lock).collect(),
        })
    }

    fn writable(chain: &Chain, gate: &Gate, how: UseOptions<'_>) -> Result<Self> {
        check_writable(chain)?;
        check_claims(chain, gate, Act::Change)?;
        let own = chain.links()[0].layer.files();
        let files = own.iter().map(|file| open_live(&**file, &how)).collect::<Result<Vec<_>>>()?;
        let locks = lock_for_reading(&chain.files()[own.len()..])?;
        let own_first = OwnFilesFirst { gate, files: &files };
        let again = Chain::open(files[0].clone(), same_format(chain), &own_first)?;
        check_all_held(&again, &locks, &files)?;
        check_writable(&again)?;
        let files: Vec<_> = files.into_iter().map(|file| provisioned(file, &again, how.monitor)).collect();
        let counted = |file: &Arc<PreallocatedFile>| -> Arc<dyn TargetFile> {
            Arc::new(Counted::new(file.clone(), how.monitor.clone()))
        };
        let targets = files.iter().map(counted).collect();
        let options =
            LiveOptions { keeps_places: how.kept != StoragePromise::Nothing, ..LiveOptions::default() };
        let disk: Arc<dyn LiveDisk> = image::live::open(again, targets, options)?.into();
        Ok(Self {
            disk,
            files,
            writes_zeros: how.kept == StoragePromise::Written,
            _locks: locks.into_iter().map(|held| held.lock).collect(),
        })
    }

    /// Closes the image, and gives back what was reserved for it and not used.
    fn close(&self, observer: &dyn Observer) -> Result<()> {
        let closed = self.disk.close();
        let given = self.files.iter().try_for_each(|file| file.give_back());
        closed.and(match given {
            // It stays reserved, and is in nobody's way but the host's.
            Err(error) if error.is_full() => {
                observer.note(&format!(
                    "the host did not take back what was reserved for the image and not used: {error}"
                ));
                Ok(())
            }
            given => given,
        })
    }
}

fn provisioned(file: Arc<LiveFile>, chain: &Chain, monitor: &Arc<Monitor>) -> Arc<PreallocatedFile> {
    let monitor = monitor.clone();
    let limit_bytes = image::live::end_max(chain, ReadAt::<Host>::len_bytes(&*file));
    let on_continued = Box::new(move || monitor.prevented_fragment());
    Arc::new(preallocated(file, limit_bytes, on_continued))
}

impl DiskInUse for OpenForUse {
    fn disk(&self) -> &dyn LiveDisk {
        &*self.disk
    }

    fn close(&self) -> Result<()> {
        Self::close(self, &Unwatched)
    }
}

fn same_format(chain: &Chain) -> image::OpenOptions {
    image::OpenOptions { format: Some(chain.facts().format) }
}

/// What speaks against writing, of the disk as a whole.
fn check_writable(chain: &Chain) -> Result<()> {
    let top = &chain.links()[0];
    let name = top.layer.files()[0].name();
    image::check_found(chain).map_err(|error| error.path(name))?;
    chain.check_readable()?;
    top.layer.check_editable().map_err(|error| error.path(name))
}

fn open_live(file: &dyn HostFile, how: &UseOptions<'_>) -> Result<Arc<LiveFile>> {
    let opened = match how.caching {
        Caching::Direct => LiveFile::open_direct(file.path())?,
        Caching::PageCache | Caching::Metadata => LiveFile::open(file.path())?,
    };
    let opened = opened.keeping(how.kept);
    if opened.identity() == file.identity() {
        Ok(Arc::new(opened))
    } else {
        Err(changed_meanwhile(file.name()))
    }
}

fn changed_meanwhile(name: &str) -> Error {
    Error::refused("was changed or replaced while it was opened")
        .hint("see that nothing uses it, and try again")
        .path(name)
}

/// A lock and the file that it is on.
struct LockedFile {
    lock: ReadLock,
    identity: Option<(u64, u64)>,
}

fn lock_for_reading(files: &[Arc<dyn HostFile>]) -> Result<Vec<LockedFile>> {
    let hold = |file: &Arc<dyn HostFile>| {
        Ok(LockedFile { lock: ReadLock::take(file.path())?, identity: file.identity() })
    };
    files.iter().map(hold).collect()
}

/// `Refused` unless the chain consists of what is locked and of `files`.
fn check_all_held(chain: &Chain, locks: &[LockedFile], files: &[Arc<LiveFile>]) -> Result<()> {
    for file in chain.files() {
        let identity = file.identity();
        let is_held = locks.iter().any(|held| held.identity == identity)
            || files.iter().any(|held| held.identity() == identity);
        if !is_held {
            return Err(changed_meanwhile(file.name()));
        }
    }
    Ok(())
}

/// Hands out the files that are open for writing under the names by which the image knows them.
struct OwnFilesFirst<'a> {
    gate: &'a Gate,
    files: &'a [Arc<LiveFile>],
}

impl Resolver for OwnFilesFirst<'_> {
    fn open(&self, from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        let found = self.gate.open(from, name, purpose)?;
        let own = self.files.iter().find(|file| file.identity() == found.identity());
        Ok(own.map_or(found, |file| file.clone() as Arc<dyn HostFile>))
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<OsString>> {
        self.gate.siblings(from)
    }

    fn open_sibling(&self, from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        self.gate.open_sibling(from, name)
    }
}

/// A disk that is read, and refuses every change.
struct ReadOnly(Chain);

impl ReadOnly {
    fn refuse<T>(&self) -> Result<T> {
        Err(Error::refused("the disk is served read-only").path(self.0.files()[0].name()))
    }
}

impl ReadAt<Virtual> for ReadOnly {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(at, buf)
    }
}

impl EditDisk for ReadOnly {
    fn write_at(&self, _at: VirtualOffset, _buf: &[u8]) -> Result<()> {
        self.refuse()
    }

    /// Nothing was written.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

impl Disk for ReadOnly {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        self.0.map_with_host(span)
    }

    fn sector_bytes(&self) -> u32 {
        self.0.sector_bytes()
    }
}

impl LiveDisk for ReadOnly {
    fn zero(&self, _span: VirtualSpan, _may_free: bool) -> Result<()> {
        self.refuse()
    }

    fn discard(&self, _span: VirtualSpan) -> Result<()> {
        self.refuse()
    }
}
