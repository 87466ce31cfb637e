//! Disks opened, served until that is stopped, and closed.
//!
//! Invariants:
//! - what is refused is refused before a client is let in and before a byte changes;
//! - where the process is to be closed in, all that has a name is opened and made before, and threads begin and clients come after;
//! - either all disks are served, or none, and none was changed; in the end each is closed, whatever became of the others;
//! - a disk's top image is held alone from before it is parsed for use until it is closed; what is only read (parents,
//!   and all of a disk served read-only) is kept from being written by whoever respects locks;
//! - a client that got its flush answered finds its data after any end of this program.
//!
//! Absent on purpose: disks that come and go while others are served.

mod compacting;
mod filling;
mod held;
mod lean;
mod listening;
mod made;
mod opened;
mod overlay;
mod rehearsal;
mod simulated;

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, LiveDisk, Result};
use image::live::Arrangement;
use os::{ConfinedNames, SpareFile, SpareRoom, Work};
use predict::profile::{HDD, Profile, SAN};
use serve::Export;
use serve::monitor::Monitor;
use serve::stats::MetricsServer;
use serve::trace::{TraceFacts, TraceOptions, TraceWriter};

use crate::confine::{Opening, When};
use crate::open::OpenOptions;
use crate::remote::{disk_name, is_address};
use crate::{Observer, Provision};
use held::Held;
use listening::{Doors, Entrances, Listening};
use made::Made;
use opened::OpenForUse;
pub(crate) use opened::{open_direct, read_only};
use simulated::Simulated;

/// What is served, and where.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disks, each an export.
    pub disks: Vec<Served>,
    /// How they are opened.
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
    /// Whether what the guest does not use reads as zeros. For disks that are only read.
    pub lean: bool,
    /// What each disk keeps of its space; `None` for what it was created with.
    pub provision: Option<Provision>,
    /// Where the units of thin disks go that are written for the first time.
    pub placement: Placement,
    /// Whether what a disk's guest does not use is given back when all clients are gone and the disk is closed, as `compact` does it.
    pub compact_at_close: bool,
    /// What the address is secured with.
    pub tls: Option<TlsFiles>,
    /// Whether the network may be listened on without TLS.
    pub insecure: bool,
    /// A loopback address for metrics.
    pub metrics: Option<SocketAddr>,
    /// The kind of storage as whose requests are answered; `None` for as soon as they can be.
    pub simulate: Option<Simulate>,
}

/// A kind of storage that a served disk stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Simulate {
    /// A disk with an arm.
    Hdd,
    /// An array behind a network.
    San,
}

impl Simulate {
    fn profile(self) -> &'static Profile {
        match self {
            Self::Hdd => &HDD,
            Self::San => &SAN,
        }
    }
}

/// Where units of a thin disk go in its image's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Together: the file is about as long as what it holds.
    #[default]
    Dense,
    /// As far from each other as on the disk.
    Mirror,
}

impl Placement {
    fn arrangement(self) -> Arrangement {
        match self {
            Self::Dense => Arrangement::default(),
            Self::Mirror => Arrangement::Mirror,
        }
    }
}

/// A disk that is served.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// An image file or a block device that nobody else uses; to be read, also an export of a server.
    pub disk: PathBuf,
    /// Where it is read, if elsewhere: at the export of a running guest's disk.
    pub read_at: Option<PathBuf>,
    /// The export's name; `None` for the file's.
    pub name: Option<String>,
    /// A new file in which every request is recorded.
    pub trace: Option<PathBuf>,
    /// Of a disk of a snapshot: the image that what clients write goes to. It is made if it is not there.
    pub overlay: Option<PathBuf>,
    /// Of a disk of a snapshot: the new disk that it is restored to while it is served.
    pub into: Option<PathBuf>,
}

impl Served {
    /// The name under which clients find it.
    pub fn export_name(&self) -> String {
        let of_file = || self.disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let named = || disk_name(&self.disk).unwrap_or_else(of_file);
        self.name.clone().unwrap_or_else(named)
    }
}

impl<P: Into<PathBuf>> From<P> for Served {
    fn from(disk: P) -> Self {
        Self { disk: disk.into(), ..Self::default() }
    }
}

/// Where a disk is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedAt {
    /// The disk, as it was named.
    pub disk: PathBuf,
    /// Its addresses, and that of the metrics.
    pub places: Vec<String>,
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

/// Opens the disks, serves them until `wait` returns, and closes them. `wait` is given the addresses at which each is served. The error
/// is the first disk's; those of others are notes.
pub fn run(options: &Options, observer: &Arc<dyn Observer>, wait: impl FnOnce(&[ServedAt])) -> Result<()> {
    run_confined(options, When::Never, observer, wait)
}

/// As [`run`], and closes this process in before a byte is written and a client let in: it can open nothing more then, start no program
/// and reach nobody, for all that it does afterwards. For a program that has one thread.
///
/// With [`When::Auto`], what the kernel does not do is left out. With [`When::Always`] it is `Unsupported`.
pub fn run_confined(
    options: &Options,
    when: When,
    observer: &Arc<dyn Observer>,
    wait: impl FnOnce(&[ServedAt]),
) -> Result<()> {
    check_told_apart(options)?;
    overlay::check_overlays(options)?;
    filling::check_targets(options)?;
    let doors = Doors::of(options)?;
    let opening = match reads_as_it_goes(options) {
        true => {
            Opening::not_closed_in(when, "what is served is read from a repository or a server as it goes")?
        }
        false => Opening::begin(when, made_names(options, &doors))?,
    };
    let held = hold_all(options)?;
    let outlets = Outlets::open(options, doors, &**observer)?;
    let spare = spare_files(options);
    opening.close(Work::Serving)?;
    let disks = InUse::take_all(options, held, observer)?;
    let spare: Vec<SpareRoom> = spare.into_iter().filter_map(SpareFile::keep).collect();
    let ended = serve(options, outlets, &disks, observer, |places| {
        wait(places);
        // It is there for what comes after.
        drop(spare);
    });
    // Whatever went wrong with clients, or with another disk, an image is closed if it can be.
    let closed: Vec<_> = disks.iter().map(|disk| disk.end(options, &**observer)).collect();
    let results = ended?.into_iter().zip(closed).map(|(ended, closed)| ended.result(closed));
    first_error(results, &**observer)
}

/// Whether a disk is served that is read from a repository, or from another server, as it goes.
fn reads_as_it_goes(options: &Options) -> bool {
    let is_elsewhere = |served: &Served| served.read_at.is_some() || is_address(&served.disk);
    options.disks.iter().any(|served| is_elsewhere(served) || options.open.snapshot(&served.disk).is_some())
}

/// `Invalid` unless clients can tell the disks apart, and no two that are written are one.
fn check_told_apart(options: &Options) -> Result<()> {
    if options.disks.is_empty() {
        return Err(Error::invalid("there is no disk to serve"));
    }
    if options.lean && !options.read_only {
        return Err(Error::invalid(
            "--lean needs --read-only: what a client wrote could not be told from what it did not use",
        ));
    }
    for (index, second) in options.disks.iter().enumerate() {
        for first in &options.disks[..index] {
            check_pair(first, second, options.read_only)?;
        }
    }
    Ok(())
}

fn check_pair(first: &Served, second: &Served, is_read_only: bool) -> Result<()> {
    let (one, other, name) = (first.disk.display(), second.disk.display(), second.export_name());
    if !is_read_only && is_same_place(&first.disk, &second.disk) {
        return Err(Error::invalid(format!("'{one}' and '{other}' are the same disk")).hint("name it once"));
    }
    if first.export_name() == name {
        return Err(Error::invalid(format!("'{one}' and '{other}' would both be served as '{name}'"))
            .hint("give each disk a name of its own: --name once for each, in the order of the disks"));
    }
    Ok(())
}

/// Whether both paths lead to the same file. Files with several names are found out by their locks.
fn is_same_place(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The first error. The others are told.
fn first_error(results: impl Iterator<Item = Result<()>>, observer: &dyn Observer) -> Result<()> {
    let mut errors = results.filter_map(Result::err);
    let first = errors.next();
    errors.for_each(|other| observer.note(&other.to_string()));
    first.map_or(Ok(()), Err)
}

/// A disk in use, and what measures it.
struct InUse<'a> {
    served: &'a Served,
    /// Whether there are others, so that what is told of it names it.
    is_one_of_several: bool,
    monitor: Arc<Monitor>,
    opened: OpenForUse,
}

impl<'a> InUse<'a> {
    /// Takes all disks into use, or none, and then leaves every byte as it was.
    fn take_all(
        options: &Options,
        held: Vec<(&'a Served, Held)>,
        observer: &Arc<dyn Observer>,
    ) -> Result<Vec<Self>> {
        let is_one_of_several = options.disks.len() > 1;
        let mut disks: Vec<Self> = Vec::new();
        for (served, held) in held {
            let monitor = Monitor::new();
            match held.into_use(&monitor, observer) {
                Ok(opened) => {
                    let (disk, export) = (&served.disk, served.export_name());
                    tracing::info!(?disk, ?export, bytes = opened.disk.len_bytes(), "disk taken into use");
                    disks.push(Self { served, is_one_of_several, monitor, opened });
                }
                Err(error) => {
                    // The error that is told is what matters.
                    disks.iter().for_each(|disk| drop(disk.close(&**observer)));
                    return Err(named(error, served, is_one_of_several));
                }
            }
        }
        Ok(disks)
    }

    fn path(&self) -> &Path {
        &self.served.disk
    }

    fn export(&self, options: &Options, writer: Option<&Arc<TraceWriter>>) -> Arc<Export> {
        let disk: Arc<dyn LiveDisk> = match options.simulate.map(Simulate::profile) {
            None => self.opened.disk.clone(),
            Some(profile) => Arc::new(Simulated::new(self.opened.disk.clone(), profile)),
        };
        let mut export = Export::new(self.served.export_name(), disk);
        export = export.monitored(self.monitor.clone());
        if options.read_only {
            export = export.read_only();
        }
        if self.opened.writes_zeros {
            export = export.writing_zeros();
        }
        if let Some(writer) = writer {
            export = export.traced(writer.clone());
        }
        Arc::new(export)
    }

    /// Closes the disk, and compacts it if that is asked for.
    fn end(&self, options: &Options, observer: &dyn Observer) -> Result<()> {
        self.close(observer)?;
        if !options.compact_at_close {
            return Ok(());
        }
        surviving(|| self.opened.compact(observer))
            .map_err(|error| named(error, self.served, self.is_one_of_several))
    }

    fn close(&self, observer: &dyn Observer) -> Result<()> {
        let closed = surviving(|| self.opened.close(observer));
        match &closed {
            Ok(()) => tracing::info!(disk = ?self.served.disk, "disk closed"),
            Err(error) => tracing::warn!(disk = ?self.served.disk, %error, "disk not closed in order"),
        }
        closed.map_err(|error| named(error, self.served, self.is_one_of_several))
    }
}

/// A disk's end, told as an error if it panics: the others have an end as well. A request that panicked leaves a disk so.
fn surviving(close: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(close)).unwrap_or_else(|_| {
        let why = "Leandisk has a fault, and left the image as a kill would have";
        Err(Error::io("close the image", std::io::Error::other(why)))
    })
}

/// Locks the files of all disks. Where there are several, each is asked whether it can be taken into use before any of them is.
fn hold_all<'a>(options: &'a Options) -> Result<Vec<(&'a Served, Held)>> {
    let is_one_of_several = options.disks.len() > 1;
    let hold = |served: &'a Served| {
        let held = Held::of(served, options).map_err(|error| named(error, served, is_one_of_several))?;
        Ok((served, held))
    };
    let all = options.disks.iter().map(hold).collect::<Result<Vec<_>>>()?;
    if is_one_of_several {
        for (served, held) in &all {
            held.check_usable().map_err(|error| named(error, served, true))?;
        }
    }
    Ok(all)
}

/// An error that says which of several disks it is about.
fn named(error: Error, served: &Served, is_one_of_several: bool) -> Error {
    if is_one_of_several { error.path(served.disk.display()) } else { error }
}

/// How serving a disk ended.
struct Ended {
    /// The last flush.
    flushed: Result<()>,
    /// The recording, if there is one.
    recorded: Result<()>,
}

impl Ended {
    /// What came of the disk, once it was closed.
    fn result(self, closed: Result<()>) -> Result<()> {
        closed?;
        match self.flushed {
            // What there was no room for then has been stored since.
            Err(error) if error.is_full() => self.recorded,
            flushed => flushed.and(self.recorded),
        }
    }
}

/// What is made by name, and removed again.
fn made_names(options: &Options, doors: &Doors) -> ConfinedNames {
    let traces = options.disks.iter().filter_map(|served| served.trace.clone());
    ConfinedNames { removed: doors.made().into_iter().chain(traces).collect(), ..ConfinedNames::default() }
}

/// Where room is kept while disks are written.
fn spare_files(options: &Options) -> Vec<SpareFile> {
    let written = options.disks.iter().filter(|_| !options.read_only);
    written.filter_map(|served| SpareFile::beside(served.written_path())).collect()
}

/// What is open besides the disks. Nothing comes in or goes out before they are in use.
struct Outlets {
    /// Of each disk.
    traces: Vec<Option<TraceFile>>,
    metrics: Option<TcpListener>,
    entrances: Entrances,
}

impl Outlets {
    fn open(options: &Options, doors: Doors, observer: &dyn Observer) -> Result<Self> {
        let traces =
            options.disks.iter().map(|served| served.trace.as_deref().map(TraceFile::make).transpose());
        Ok(Self {
            traces: traces.collect::<Result<_>>()?,
            metrics: options.metrics.map(MetricsServer::bind).transpose()?,
            entrances: doors.open(observer)?,
        })
    }
}

/// Serves the disks until `wait` returns. How it ended is told of each.
fn serve(
    options: &Options,
    outlets: Outlets,
    disks: &[InUse<'_>],
    observer: &Arc<dyn Observer>,
    wait: impl FnOnce(&[ServedAt]),
) -> Result<Vec<Ended>> {
    let AtWork { recordings, listening, places, _metrics } =
        AtWork::start(options, outlets, disks, observer)?;
    wait(&places);
    let flushed = listening.stop();
    let recorded = recordings.iter().map(|recording| finish(recording.as_ref(), &**observer));
    Ok(flushed.into_iter().zip(recorded).map(|(flushed, recorded)| Ended { flushed, recorded }).collect())
}

/// What serves the disks.
struct AtWork {
    recordings: Vec<Option<Recording>>,
    listening: Listening,
    places: Vec<ServedAt>,
    _metrics: Option<MetricsServer>,
}

impl AtWork {
    /// Begins to record and to let clients in.
    fn start(
        options: &Options,
        outlets: Outlets,
        disks: &[InUse<'_>],
        observer: &Arc<dyn Observer>,
    ) -> Result<Self> {
        let Outlets { traces, metrics, entrances } = outlets;
        let begin = |(trace, disk): (Option<TraceFile>, &InUse<'_>)| {
            trace.map(|trace| trace.begin(&*disk.opened.disk)).transpose()
        };
        let begun = traces.into_iter().zip(disks).map(begin).collect::<Result<Vec<_>>>()?;
        let exports: Vec<_> = disks
            .iter()
            .zip(&begun)
            .map(|(disk, begun)| disk.export(options, begun.as_ref().map(Begun::writer)))
            .collect();
        let metrics =
            metrics.map(|listener| MetricsServer::start_on(listener, exports.clone())).transpose()?;
        let listening = Listening::start(entrances, &exports, observer)?;
        let page = metrics.as_ref().map(|metrics| format!("http://{}/metrics", metrics.address()));
        let places = disks.iter().zip(&exports).map(|(disk, export)| ServedAt {
            disk: disk.path().to_owned(),
            places: listening.places(export.name()).chain(page.clone()).collect(),
        });
        let places = places.collect();
        let recordings = begun.into_iter().map(|begun| begun.map(Begun::keep)).collect();
        Ok(Self { recordings, places, listening, _metrics: metrics })
    }
}

/// A new file for a recording. It goes again unless something is recorded: a second attempt makes it anew.
struct TraceFile {
    path: PathBuf,
    file: File,
    made: Made,
}

impl TraceFile {
    fn make(path: &Path) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| Error::io("make", error).path(path.display()))?;
        Ok(Self { path: path.to_owned(), file, made: Made::new(path) })
    }

    fn begin(self, disk: &dyn LiveDisk) -> Result<Begun> {
        let facts = TraceFacts { disk_bytes: disk.len_bytes(), sector_bytes: disk.sector_bytes() };
        let writer = Arc::new(TraceWriter::new(self.file, facts, TraceOptions::default())?);
        Ok(Begun { recording: Recording { path: self.path, writer }, made: self.made })
    }
}

/// A recording before the first request.
struct Begun {
    recording: Recording,
    made: Made,
}

impl Begun {
    fn writer(&self) -> &Arc<TraceWriter> {
        &self.recording.writer
    }

    fn keep(self) -> Recording {
        self.made.keep();
        self.recording
    }
}

/// Requests that are recorded, and where.
struct Recording {
    path: PathBuf,
    writer: Arc<TraceWriter>,
}

fn finish(recording: Option<&Recording>, observer: &dyn Observer) -> Result<()> {
    let Some(Recording { path, writer }) = recording else { return Ok(()) };
    let totals = writer.finish()?;
    if totals.dropped > 0 {
        observer.note(&format!("{} requests are missing from {}", totals.dropped, path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic)]
    fn an_end_that_panics_is_an_error_of_that_disk_alone() {
        let results = [surviving(|| panic!("as a test")), surviving(|| Ok(()))];
        assert_eq!(results.each_ref().map(Result::is_ok), [false, true]);
        let told = first_error(results.into_iter(), &crate::Unwatched).expect_err("the first");
        assert!(told.to_string().contains("has a fault"), "{told}");
    }

    #[test]
    fn disks_of_one_name_are_refused_by_both_their_paths() {
        let disks: Vec<Served> = ["a/disk.raw", "b/other.raw", "c/disk.raw"].map(Served::from).into();
        let told_apart = |disks: Vec<Served>| check_told_apart(&Options { disks, ..Options::default() });
        let error = told_apart(disks.clone()).expect_err("two are called disk.raw");
        assert_eq!(error.to_string(), "'a/disk.raw' and 'c/disk.raw' would both be served as 'disk.raw'");
        let named = Served { name: Some("data".into()), ..disks[2].clone() };
        told_apart(vec![disks[0].clone(), disks[1].clone(), named]).expect("all can be told apart");
    }
}
