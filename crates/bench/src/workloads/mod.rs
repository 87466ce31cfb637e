//! Ten activities on an aged disk, before and after what is to make them faster.
//!
//! One disk is aged and given contents that are known byte for byte. Each remedy is applied to a copy of it; each activity then runs on
//! each of these copies in turns, every time on the same contents and with nothing of them in memory.
//!
//! Invariants:
//! - all that is written lies in a folder made for the run, which goes with it; what a killed run left goes when the next one begins;
//! - mounts are seen by this thread and what it starts alone, and go with them; loop devices go with the mounts;
//! - an activity checks what it read or wrote, and a run with a wrong byte ends as `Mismatch`.

mod activity;
mod contents;
mod disk;
mod documents;
mod files;
mod mail;
mod messages;
mod postgresql;
mod prepare;
mod sizes;
mod sqlite;
mod storage;
mod tables;
mod trace;

use std::path::{Path, PathBuf};
use std::time::Instant;

use block::{Error, Result};
use engine::JobMonitor;
use predict::cost::{Piece, QueueLimits};
use predict::profile::READ_AHEAD_BYTES;
use serve::monitor::Snapshot;

use crate::age::{AgedKind, AgedLayout, LookAt};
use crate::children::{cpu_seconds_of, need_program};
use crate::counters::{Counters, Devices, Watch};
use crate::fragmentation::Mounted;
use crate::images::on_host;
use crate::workspace::{Workspace, write_back};

pub use activity::{Activity, Engine};
pub use sizes::{Sizes, WORKLOAD_DISK_BYTES_DEFAULT, WORKLOAD_DISK_BYTES_FULL, WORKLOAD_DISK_BYTES_MIN};
pub use storage::{FileLies, Forecast, Lies, Storage, Survey};
pub use trace::{Recorded, Request};

use contents::{Manifest, Turns};
use postgresql::{Postgresql, Server};
use storage::{Known, Reading};
use trace::Recording;

/// How a disk was used before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskState {
    /// Not at all: each file was written in one go.
    Fresh,
    /// For a month, to half full.
    Light,
    /// For months, until nearly full; what is measured lies in what was freed.
    Heavy,
    /// As heavy, and the image's own file lies in pieces on the host.
    Nested,
}

impl DiskState {
    /// As on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Light => "light",
            Self::Heavy => "heavy",
            Self::Nested => "nested",
        }
    }
}

/// What is done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Nothing: what others are compared with.
    None,
    /// `defrag`.
    Defrag,
    /// `defrag --goal pack`.
    DefragPack,
    /// `copy --layout packed`.
    CopyPacked,
}

impl Remedy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Defrag, Self::DefragPack, Self::CopyPacked];

    /// As on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Defrag => "defrag",
            Self::DefragPack => "defrag-pack",
            Self::CopyPacked => "copy-packed",
        }
    }

    /// The command that does it.
    pub fn command(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Defrag => Some("defrag"),
            Self::DefragPack => Some("defrag --goal pack"),
            Self::CopyPacked => Some("copy --layout packed"),
        }
    }
}

/// Applies a remedy: in place to the second disk, which is a copy of the first; or makes the second of the first (`CopyPacked`).
pub type Apply<'a> = &'a dyn Fn(Remedy, &Path, &Path) -> Result<()>;

/// What to measure.
pub struct Workloads<'a> {
    /// The folder on the storage to measure.
    pub dir: &'a Path,
    /// How the disk was used before.
    pub state: DiskState,
    /// What is done on it, in this order.
    pub activities: &'a [Activity],
    /// What is done about it, in this order.
    pub remedies: &'a [Remedy],
    /// Of the disk.
    pub disk_bytes: u64,
    /// How often each activity runs on each disk.
    pub runs: usize,
    /// Of all contents.
    pub seed: u64,
    /// Applies a remedy.
    pub apply: Apply<'a>,
    /// How a disk is looked at.
    pub look: LookAt<'a>,
    /// On which storage.
    pub storage: Storage,
    /// How it is told where everything lies.
    pub survey: Survey<'a>,
}

/// What was measured.
pub struct WorkloadsOutcome {
    /// The host's file system, if it is known.
    pub host_filesystem: Option<String>,
    /// The names of the block devices beneath.
    pub devices: Vec<String>,
    /// How much of everything there was.
    pub sizes: Sizes,
    /// The disk after each remedy.
    pub disks: Vec<DiskFacts>,
    /// Each activity on each disk.
    pub measured: Vec<Measured>,
    /// What was not measured, and why.
    pub skipped: Vec<Skipped>,
}

/// A disk after its remedy.
#[derive(Clone, Debug)]
pub struct DiskFacts {
    /// What was done.
    pub remedy: Remedy,
    /// How long that took.
    pub seconds: f64,
    /// How it lies.
    pub layout: AgedLayout,
    /// In how many pieces its image lies on the host, if that tells.
    pub host_extents: Option<u64>,
    /// What the image takes on the host.
    pub allocated_bytes: u64,
}

/// An activity on a disk.
pub struct Measured {
    /// What was done.
    pub activity: Activity,
    /// By which database, if by any.
    pub engine: Option<Engine>,
    /// On the disk after this.
    pub remedy: Remedy,
    /// What reading was predicted to take, before; or why nobody knew. `None` of what is not predicted.
    pub forecast: Option<std::result::Result<Forecast, String>>,
    /// Each time.
    pub runs: Vec<RunFacts>,
}

/// What one run took.
pub struct RunFacts {
    /// Until all was done, and on stable storage if anything was written. On a modelled storage: as long as it would have taken.
    pub seconds: f64,
    /// With at least one request under way; `None` where the kernel keeps no record.
    pub storage_seconds: Option<f64>,
    /// Commands of the modelled storage; requests of the guest on this one.
    pub commands: Option<u64>,
    /// For how long this program and those that it started kept processors busy. The kernel's own threads are not in it.
    pub cpu_seconds: Option<f64>,
    /// What the guest's device was asked.
    pub guest: Counters,
    /// What the host's devices were asked meanwhile, whoever asked.
    pub host: Option<Counters>,
    /// Each request to the guest's device, counted as `serve` counts; `None` where the kernel keeps no record.
    pub requests: Option<Snapshot>,
    /// How often the kernel cut a request because the device does not take more at once.
    pub cuts: Option<u64>,
    /// What was compared with what it was to be: files, messages, rows.
    pub checked: u64,
}

/// What was not measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// What.
    pub activity: Activity,
    /// By which database.
    pub engine: Option<Engine>,
    /// Why.
    pub because: String,
}

/// What an activity works on.
pub(crate) struct Scene<'a> {
    /// Where the guest's file system is mounted.
    point: &'a Path,
    /// A folder on another disk.
    second: &'a Path,
    sizes: &'a Sizes,
    manifest: &'a Manifest,
    /// Of all files on the disk: how many, and a number for their contents.
    everything: (u64, u64),
    turns: Turns,
    seed: u64,
    monitor: &'a dyn JobMonitor,
}

impl Scene<'_> {
    fn check_cancel(&self) -> Result<()> {
        if self.monitor.is_cancelled() { Err(Error::interrupted()) } else { Ok(()) }
    }
}

/// A disk that activities run on.
struct Prepared {
    remedy: Remedy,
    /// As it is before each run.
    pristine: PathBuf,
    /// What is mounted.
    work: PathBuf,
    /// Where everything lies.
    lies: Lies,
}

/// What all runs share.
struct Stage<'a> {
    bench: &'a Workloads<'a>,
    space: &'a Workspace,
    sizes: Sizes,
    manifest: Manifest,
    everything: (u64, u64),
    paths: Vec<PathBuf>,
    postgresql: Option<Postgresql>,
    host: Option<Devices>,
    monitor: &'a dyn JobMonitor,
}

/// The image's file lies in pieces of this size, where it is to.
const HOST_PIECE_BYTES: u64 = 64 << 10;
/// Nothing is written to what is only read, not even a log.
const READ_ONLY: &str = "ro,noload,noatime";
const READ_WRITE: &str = "noatime";

impl Workloads<'_> {
    /// What progress counts, about.
    pub fn total_bytes(&self) -> u64 {
        let runs = self.remedies.len() * (2 + self.runs * self.activities.len());
        self.disk_bytes.saturating_mul(runs as u64 + 1)
    }

    /// Runs it to its end. The calling thread sees other mounts than the rest of the system from then on.
    pub fn run(&self, monitor: &dyn JobMonitor) -> Result<WorkloadsOutcome> {
        self.check()?;
        os::hide_mounts(self.dir)?;
        trace::prepare();
        let disks = 2 + 2 * self.remedies.len() as u64;
        let space = Workspace::swept(self.dir, self.disk_bytes.saturating_mul(disks))?;
        let sizes = Sizes::of(self.disk_bytes);
        let (postgresql, mut skipped) = self.find_postgresql(&sizes);
        let master = space.path().join("aged.raw");
        let prepared = prepare::make(self, &space, &master, &sizes, postgresql.as_ref(), monitor)?;
        let stage = Stage {
            bench: self,
            space: &space,
            sizes,
            manifest: prepared.manifest,
            everything: prepared.everything,
            paths: prepared.paths,
            postgresql,
            host: Devices::beneath(space.path()),
            monitor,
        };
        let mut outcome = WorkloadsOutcome {
            host_filesystem: on_host(&master)?.filesystem,
            devices: stage.host.as_ref().map_or_else(Vec::new, Devices::names),
            sizes,
            disks: Vec::new(),
            measured: Vec::new(),
            skipped: Vec::new(),
        };
        outcome.skipped.append(&mut skipped);
        let mut disks = Vec::new();
        for remedy in self.remedies {
            let (disk, facts) = stage.apply(*remedy, &master)?;
            disks.push(disk);
            outcome.disks.push(facts);
        }
        stage.measure_all(&disks, &mut outcome.measured)?;
        Ok(outcome)
    }

    fn check(&self) -> Result<()> {
        if self.disk_bytes < WORKLOAD_DISK_BYTES_MIN {
            let limit = format!("{WORKLOAD_DISK_BYTES_MIN} bytes and more");
            return Err(Error::invalid("a disk for all activities").field("size", self.disk_bytes, limit));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::refused("only root may mount a file system").hint("run it as root"));
        }
        let programs = ["mkfs.ext4", "losetup", "mount", "umount"];
        programs.iter().try_for_each(|name| need_program(name).map(drop))
    }

    /// PostgreSQL if it is wanted and can be had; else what is skipped for want of it.
    fn find_postgresql(&self, sizes: &Sizes) -> (Option<Postgresql>, Vec<Skipped>) {
        let of_databases: Vec<_> =
            self.activities.iter().filter(|activity| activity.is_of_databases()).collect();
        if of_databases.is_empty() {
            return (None, Vec::new());
        }
        match Postgresql::find(sizes) {
            Ok(found) => (Some(found), Vec::new()),
            Err(because) => {
                let skipped = of_databases.into_iter().map(|activity| Skipped {
                    activity: *activity,
                    engine: Some(Engine::Postgresql),
                    because: because.clone(),
                });
                (None, skipped.collect())
            }
        }
    }

    fn turns(&self) -> Turns {
        match self.state {
            DiskState::Fresh => Turns::NONE,
            DiskState::Light => Turns { files: 2, bytes: 256 << 10 },
            DiskState::Heavy | DiskState::Nested => Turns { files: 8, bytes: 16 << 10 },
        }
    }
}

impl Stage<'_> {
    /// Makes the disk that is measured after a remedy.
    fn apply(&self, remedy: Remedy, master: &Path) -> Result<(Prepared, DiskFacts)> {
        let path = |name: &str| self.space.path().join(format!("{name}-{}.raw", remedy.word()));
        let (work, pristine) = (path("work"), path("pristine"));
        let pieces = (self.bench.state == DiskState::Nested).then_some(HOST_PIECE_BYTES);
        if remedy != Remedy::CopyPacked {
            disk::lay_out(master, &work, pieces, self.monitor)?;
        }
        let started = Instant::now();
        if remedy != Remedy::None {
            (self.bench.apply)(remedy, master, &work)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        disk::lay_out(&work, &pristine, None, self.monitor)?;
        let image = on_host(&work)?;
        let layout = (self.bench.look)(&work)?;
        let lies = (self.bench.survey)(&work)?;
        self.monitor.advanced(0, self.bench.disk_bytes);
        let facts = DiskFacts {
            remedy,
            seconds,
            layout,
            host_extents: image.extents,
            allocated_bytes: image.allocated_bytes,
        };
        Ok((Prepared { remedy, pristine, work, lies }, facts))
    }

    /// Each activity on each disk, in turns that begin with another disk each time.
    fn measure_all(&self, disks: &[Prepared], measured: &mut Vec<Measured>) -> Result<()> {
        let kinds: Vec<_> =
            self.bench.activities.iter().flat_map(|activity| self.kinds_of(*activity)).collect();
        let before = self.probe(disks)?;
        for &(activity, engine) in &kinds {
            measured.extend(disks.iter().map(|disk| Measured {
                activity,
                engine,
                remedy: disk.remedy,
                forecast: self.forecast(disk, activity, &before),
                runs: Vec::new(),
            }));
        }
        for run in 0..self.bench.runs {
            for (kind, &(activity, engine)) in kinds.iter().enumerate() {
                for turn in 0..disks.len() {
                    let index = (turn + run) % disks.len();
                    let facts = self.measure(&disks[index], activity, engine)?;
                    measured[kind * disks.len() + index].runs.push(facts);
                    self.monitor.advanced(self.bench.disk_bytes, 0);
                }
            }
        }
        let after = self.probe(disks)?;
        for (index, measured) in measured.iter_mut().enumerate() {
            let again = self.forecast(&disks[index % disks.len()], measured.activity, &after);
            measured.forecast =
                measured.forecast.take().zip(again).map(|(before, after)| steady(before, after));
        }
        Ok(())
    }

    /// What the storage is like, and what its device takes at once.
    fn probe(&self, disks: &[Prepared]) -> Result<Known> {
        let point = self.space.path().join("mount");
        let mut known = Known {
            profile: Err("its device is not known".into()),
            is_modelled: self.bench.storage.model().is_some(),
            limits: QueueLimits::DEFAULT,
            read_ahead_bytes: READ_AHEAD_BYTES,
        };
        let Some(first) = disks.first() else { return Ok(known) };
        let mounted = Mounted::mount(point.clone(), &first.work, READ_ONLY)?;
        let names = Devices::beneath(&point).map_or_else(Vec::new, |devices| devices.names());
        if let Some(device) = names.first().map(|name| Path::new("/dev").join(name)) {
            if let Some(queue) = os::queue_of(&device) {
                let (request_bytes, segments) = (queue.request_bytes, queue.segments);
                known.limits = QueueLimits { request_bytes, segments };
                known.read_ahead_bytes = queue.read_ahead_bytes;
            }
            known.profile =
                self.bench.storage.model().map_or_else(|| storage::probe(&device), |model| Ok(*model));
        }
        mounted.unmount()?;
        Ok(known)
    }

    /// What reading the files of an activity takes, if it does nothing else with the disk.
    fn forecast(
        &self,
        disk: &Prepared,
        activity: Activity,
        known: &Known,
    ) -> Option<std::result::Result<Forecast, String>> {
        let of = |entries: &[&[contents::Entry]]| -> Vec<PathBuf> {
            entries.iter().flat_map(|entries| entries.iter()).map(|entry| entry.path.clone()).collect()
        };
        let Manifest { tree, documents, maildir, mbox, .. } = &self.manifest;
        let files;
        let reading = match activity {
            Activity::Documents => {
                files = of(&[documents]);
                Reading::AtOnce(&files)
            }
            Activity::Backup => {
                files = of(&[tree, documents, maildir, mbox]);
                Reading::InParts(&files)
            }
            Activity::Scan => Reading::All(&self.paths),
            _ => return None,
        };
        Some(disk.lies.forecast(known, reading))
    }

    fn kinds_of(&self, activity: Activity) -> Vec<(Activity, Option<Engine>)> {
        if !activity.is_of_databases() {
            return vec![(activity, None)];
        }
        let engines = [Some(Engine::Sqlite), self.postgresql.as_ref().map(|_| Engine::Postgresql)];
        engines.into_iter().flatten().map(|engine| (activity, Some(engine))).collect()
    }

    /// One run, on contents as they always are, none of them in memory.
    fn measure(&self, on: &Prepared, activity: Activity, engine: Option<Engine>) -> Result<RunFacts> {
        let point = self.space.path().join("mount");
        let second = self.space.path().join("second");
        disk::forget_cached(&on.work)?;
        let writes = activity.writes() || engine == Some(Engine::Postgresql);
        let options = if writes { READ_WRITE } else { READ_ONLY };
        let mounted = Mounted::mount(point.clone(), &on.work, options)?;
        let scene = Scene {
            point: &point,
            second: &second,
            sizes: &self.sizes,
            manifest: &self.manifest,
            everything: self.everything,
            turns: self.bench.turns(),
            seed: self.bench.seed,
            monitor: self.monitor,
        };
        let server = match (&self.postgresql, engine) {
            (Some(found), Some(Engine::Postgresql)) => {
                Some(found.serve(&point, self.space.path(), self.monitor)?)
            }
            _ => None,
        };
        let facts = self.watched(&scene, activity, server.as_ref(), writes, &on.lies.map);
        let ended = server.map_or(Ok(()), Server::stop);
        let facts = facts?;
        ended?;
        mounted.unmount()?;
        if writes {
            disk::restore(&on.pristine, &on.work, self.monitor)?;
        }
        Ok(facts)
    }

    fn watched(
        &self,
        scene: &Scene<'_>,
        activity: Activity,
        server: Option<&Server<'_>>,
        writes: bool,
        map: &[Piece],
    ) -> Result<RunFacts> {
        let guest = Devices::beneath(scene.point)
            .ok_or_else(|| Error::unsupported("the kernel does not count what a loop device is asked"))?;
        let cpu = || Some(cpu_seconds_of("self")? + server.map_or(0.0, Server::cpu_seconds));
        write_back(self.space.path())?;
        let recording = guest.names().first().and_then(|name| Recording::start(name));
        let (cpu_before, on_host) = (cpu(), Watch::start(self.host.as_ref())?);
        let on_guest = Watch::start(Some(&guest))?;
        activity::perform(activity, scene, server)?;
        if writes {
            write_back(scene.point)?;
        }
        let on_guest = on_guest.stop()?;
        let on_host = on_host.stop()?;
        let cpu_seconds = cpu().zip(cpu_before).map(|(now, before)| now - before);
        let recorded = recording.and_then(Recording::stop);
        let took = recorded
            .as_ref()
            .map(|recorded| storage::took(self.bench.storage, recorded, on_guest.seconds, map));
        if took.is_none() && self.bench.storage != Storage::This {
            return Err(Error::unsupported(
                "the kernel did not record all requests, and a model can only serve what was recorded",
            )
            .hint("choose a smaller --size, or --storage this"));
        }
        let checked = activity::check(activity, scene, server)?;
        Ok(RunFacts {
            seconds: took.as_ref().map_or(on_guest.seconds, |took| took.seconds),
            storage_seconds: took.as_ref().map(|took| took.storage_seconds),
            commands: took.as_ref().map(|took| took.commands),
            cpu_seconds,
            guest: on_guest.device.unwrap_or_default(),
            host: on_host.device,
            requests: took.map(|took| took.requests),
            cuts: recorded.as_ref().map(|recorded| recorded.cuts),
            checked,
        })
    }
}

/// A forecast that is the same by the storage as it was before and after; else nobody knows.
fn steady(
    before: std::result::Result<Forecast, String>,
    after: std::result::Result<Forecast, String>,
) -> std::result::Result<Forecast, String> {
    let (before, after) = (before?, after?);
    let ratio = after.seconds / before.seconds;
    match (1.0 / STEADY_RATIO..=STEADY_RATIO).contains(&ratio) {
        true => Ok(before),
        false => Err(format!("at the end the storage took {ratio:.2} times as long as at the beginning")),
    }
}

/// What is measured of the storage before and after may differ so far.
const STEADY_RATIO: f64 = 1.2;

/// The file system of all disks.
const KIND: AgedKind = AgedKind::Ext4;
