//! What servers make of images that grow side by side: Leandisk's, and QEMU's where there is one.
//!
//! Both are used alike: a process for each image, NBD over Unix sockets, the same requests in the same order. First the guests
//! write; then, through servers started anew and with nothing of the images in the page cache, every image is read from its
//! start to its end.
//!
//! Invariants: servers have ended, and a file system made for the run is unmounted, when a run ends, however it ends.

mod host;
mod servers;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};

use block::{Error, HostFile as _, ReadAt as _, Result};
use engine::{JobMonitor, Provision};
use extent::Span;
use image::{Chain, Format, NoFiles, OpenOptions};
use os::SourceFile;
use stack::Layers;

use crate::children::find_program;
use crate::content::Content;
use crate::counters::{Devices, Interval, Watch};
use crate::images::{image_bytes_max, image_name, make};
use crate::workspace::{Workspace, write_back};

pub(crate) use host::{Mounted, is_mounted};
use servers::Server;
use workload::{Request, Rounds};

pub use host::{HostKind, HostVolume};
pub use servers::ServerKind;
pub use workload::{Order, Workload};

/// What is read at a time, at least and at most: as much as the device takes in one request, so that what it is asked in
/// several lies in pieces.
const READ_BYTES_MIN: u64 = 64 << 10;
const READ_BYTES_MAX: u64 = 1 << 20;

/// A smaller disk has no room for small files to come and go.
const CHURN_BYTES_MIN: u64 = 1 << 20;

/// Other numbers give other places and lengths.
const SEED: u64 = 0x6c65_616e_6469_736b;

/// What to measure.
pub struct Fragmentation<'a> {
    /// The folder in which images, or the file system for them, are made.
    pub dir: &'a Path,
    /// What the guests do.
    pub workload: Workload,
    /// The images' formats.
    pub formats: &'a [Format],
    /// A file system to be made for the images; without it they lie in the folder.
    pub host: Option<HostVolume>,
    /// How often all is measured.
    pub iterations: usize,
    /// Leaves the images where they are. Not with a file system made for the run, which goes.
    pub keeps: bool,
    /// The program `leandisk`.
    pub program: &'a Path,
}

/// What was measured.
pub struct FragmentationOutcome {
    /// The host's file system, if it is known.
    pub host_filesystem: Option<String>,
    /// The names of the block devices beneath; empty where nothing is counted.
    pub devices: Vec<String>,
    /// Why there is nothing to compare with, if there is nothing.
    pub missing: Option<String>,
    /// What was read at a time.
    pub read_bytes: u64,
    /// Where the images are, if they were kept.
    pub kept: Option<PathBuf>,
    /// For each format and server, in order.
    pub runs: Vec<FragmentationRun>,
}

/// One server with images of one format.
pub struct FragmentationRun {
    /// The format.
    pub format: Format,
    /// The server.
    pub server: ServerKind,
    /// Of each iteration.
    pub iterations: Vec<FragmentationFacts>,
}

/// What an iteration showed.
pub struct FragmentationFacts {
    /// While the guests wrote.
    pub writing: Traffic,
    /// While all images were read.
    pub reading: Traffic,
    /// Runs of the virtual disks in their images.
    pub container_runs: u64,
    /// Extents of the images' files, if the host tells.
    pub host_extents: Option<u64>,
    /// What the images take on the host.
    pub allocated_bytes: u64,
    /// The time for which the servers kept processors busy while the guests wrote.
    pub server_cpu_seconds: Option<f64>,
}

/// What was asked of servers, and what became of it.
pub struct Traffic {
    /// Time, device and processors.
    pub interval: Interval,
    /// Reads or writes of the guests.
    pub requests: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// One image and where it lies.
struct Image {
    path: PathBuf,
    format: Format,
}

impl Fragmentation<'_> {
    /// Runs it to its end. With a file system of its own, the calling thread sees other mounts than the rest of the system from
    /// then on.
    pub fn run(&self, monitor: &dyn JobMonitor) -> Result<FragmentationOutcome> {
        if self.workload.churns && self.workload.size_bytes < CHURN_BYTES_MIN {
            let limit = format!("{CHURN_BYTES_MIN} bytes and more");
            return Err(Error::invalid("a disk of small files").field(
                "its size",
                self.workload.size_bytes,
                limit,
            ));
        }
        if let Some(host) = &self.host {
            host.check()?;
            os::hide_mounts(self.dir)?;
        }
        let images_bytes =
            image_bytes_max(self.workload.size_bytes).saturating_mul(self.workload.files as u64);
        let volume_bytes = self.host.map(|host| host.size_bytes(images_bytes));
        let peer = find_program("qemu-nbd");
        let run_count = (1 + usize::from(peer.is_some())) * self.formats.len() * self.iterations;
        let keeps = self.keeps && self.host.is_none();
        let at_once = if keeps { run_count as u64 } else { 1 };
        let need_bytes = volume_bytes.unwrap_or(images_bytes.saturating_mul(at_once));
        let space = Workspace::new(self.dir, need_bytes)?;
        let space = if keeps { space.kept() } else { space };
        let missing =
            peer.is_none().then(|| "qemu-nbd is not installed: there is nothing to compare with".into());
        let ours = ServerKind::Leandisk(self.program.to_owned());
        let servers: Vec<_> = peer.map(ServerKind::QemuNbd).into_iter().chain([ours]).collect();
        let mut outcome = FragmentationOutcome {
            host_filesystem: None,
            devices: Vec::new(),
            missing,
            read_bytes: READ_BYTES_MAX,
            kept: space.keeps().then(|| space.path().to_owned()),
            runs: Vec::new(),
        };
        for format in self.formats {
            outcome.runs.extend(servers.iter().map(|server| FragmentationRun {
                format: *format,
                server: server.clone(),
                iterations: Vec::new(),
            }));
        }
        for iteration in 0..self.iterations {
            // Whoever is first has no advantage in the end.
            let mut order: Vec<_> = (0..outcome.runs.len()).collect();
            if iteration % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (format, server) = (outcome.runs[index].format, outcome.runs[index].server.clone());
                let name = format!("{format}-{}-{}", server.name(), iteration + 1);
                let facts = match (self.host, volume_bytes) {
                    (Some(host), Some(bytes)) => {
                        let mounted = Mounted::new(space.path(), host, bytes, SEED, monitor)?;
                        let dir = mounted.path().join(name);
                        let facts = self.measure(&dir, format, &server, &mut outcome, monitor)?;
                        mounted.remove()?;
                        facts
                    }
                    _ => {
                        space.check_room(images_bytes)?;
                        let dir = space.path().join(name);
                        let facts = self.measure(&dir, format, &server, &mut outcome, monitor)?;
                        if !keeps {
                            let removed = fs::remove_dir_all(&dir);
                            removed.map_err(|error| Error::io("remove", error).path(dir.display()))?;
                        }
                        facts
                    }
                };
                outcome.runs[index].iterations.push(facts);
            }
        }
        Ok(outcome)
    }

    /// Bytes that the guests write and read, about, for a run's progress.
    pub fn total_bytes(&self) -> u64 {
        let servers = 1 + u64::from(find_program("qemu-nbd").is_some());
        let runs = servers * self.formats.len() as u64 * self.iterations as u64;
        runs.saturating_mul(self.workload.size_bytes.saturating_mul(2 * self.workload.files as u64))
    }

    /// One server, one format, once, in the new folder `dir`.
    fn measure(
        &self,
        dir: &Path,
        format: Format,
        kind: &ServerKind,
        outcome: &mut FragmentationOutcome,
        monitor: &dyn JobMonitor,
    ) -> Result<FragmentationFacts> {
        fs::create_dir(dir).map_err(|error| Error::io("make", error).path(dir.display()))?;
        let devices = Devices::beneath(dir);
        outcome.read_bytes = read_bytes(devices.as_ref());
        let images = self.make_images(dir, format, monitor)?;
        write_back(dir)?;
        let start = |writes: bool| -> Result<Vec<Server>> {
            images.iter().map(|image| Server::start(kind, &image.path, format, writes, monitor)).collect()
        };
        let mut servers = start(true)?;
        let writing = self.write(&mut servers, devices.as_ref(), monitor)?;
        let server_cpu_seconds = servers.iter().map(Server::cpu_seconds).sum();
        servers.into_iter().try_for_each(Server::stop)?;
        write_back(dir)?;
        let mut facts = FragmentationFacts {
            writing,
            reading: Traffic { interval: Watch::start(None)?.stop()?, requests: 0, bytes: 0 },
            container_runs: 0,
            host_extents: Some(0),
            allocated_bytes: 0,
            server_cpu_seconds,
        };
        for image in &images {
            let filesystem = facts.add_image(image)?;
            outcome.host_filesystem = filesystem;
        }
        let mut servers = start(false)?;
        facts.reading = self.read(&mut servers, devices.as_ref(), outcome.read_bytes, monitor)?;
        servers.into_iter().try_for_each(Server::stop)?;
        outcome.devices = devices.map_or_else(Vec::new, |devices| devices.names());
        Ok(facts)
    }

    fn make_images(&self, dir: &Path, format: Format, monitor: &dyn JobMonitor) -> Result<Vec<Image>> {
        let make_one = |index: usize| {
            let path = dir.join(image_name(&index.to_string(), format));
            make(&path, format, self.workload.size_bytes, Provision::Thin, &Silent(monitor))?;
            Ok(Image { path, format })
        };
        (0..self.workload.files).map(make_one).collect()
    }

    /// The guests write.
    fn write(
        &self,
        servers: &mut [Server],
        devices: Option<&Devices>,
        monitor: &dyn JobMonitor,
    ) -> Result<Traffic> {
        let longest = self.workload.write_bytes.max(64 << 10);
        let mut content = Content::new(usize::try_from(longest).unwrap_or(usize::MAX), SEED);
        let (mut requests, mut bytes) = (0, 0);
        let watch = Watch::start(devices)?;
        for round in Rounds::new(self.workload, SEED) {
            if monitor.is_cancelled() {
                return Err(Error::interrupted());
            }
            let mut written = 0;
            for (server, request) in servers.iter_mut().zip(&round) {
                let client = &mut server.client;
                match request {
                    Some(Request::Write { at, len }) => {
                        client.begin_write(*at, content.next(usize::try_from(*len).unwrap_or(usize::MAX)))?;
                        requests += 1;
                        written += len;
                    }
                    Some(Request::Trim { at, len }) => {
                        client.begin_trim(*at, usize::try_from(*len).unwrap_or(usize::MAX))?;
                    }
                    Some(Request::Flush) => client.begin_flush()?,
                    None => {}
                }
            }
            for (server, request) in servers.iter_mut().zip(&round) {
                if request.is_some() {
                    server.client.finish(&mut [])?;
                }
            }
            bytes += written;
            monitor.advanced(written, written);
        }
        Ok(Traffic { interval: watch.stop()?, requests, bytes })
    }

    /// Every image is read whole.
    fn read(
        &self,
        servers: &mut [Server],
        devices: Option<&Devices>,
        read_bytes: u64,
        monitor: &dyn JobMonitor,
    ) -> Result<Traffic> {
        let mut buf = vec![0; usize::try_from(read_bytes).unwrap_or(0)];
        let (mut requests, mut bytes) = (0, 0);
        let watch = Watch::start(devices)?;
        for server in servers {
            let mut at = 0;
            while at < self.workload.size_bytes {
                if monitor.is_cancelled() {
                    return Err(Error::interrupted());
                }
                let len = (self.workload.size_bytes - at).min(read_bytes);
                server.client.begin_read(at, usize::try_from(len).unwrap_or(usize::MAX))?;
                server.client.finish(&mut buf)?;
                at += len;
                requests += 1;
                bytes += len;
                monitor.advanced(len, 0);
            }
        }
        Ok(Traffic { interval: watch.stop()?, requests, bytes })
    }
}

impl FragmentationFacts {
    /// Adds how an image lies, and has the page cache forget it. Answers the host's file system.
    fn add_image(&mut self, image: &Image) -> Result<Option<String>> {
        let file = SourceFile::open(&image.path)?;
        self.allocated_bytes += file.allocated_bytes()?;
        let chain = Chain::open(file.clone(), OpenOptions { format: Some(image.format) }, &NoFiles)?;
        let layers = Layers::of(&chain)?;
        self.container_runs += layers.image_runs().len() as u64;
        self.host_extents = self.host_extents.zip(layers.host_extent_count()).map(|(sum, count)| sum + count);
        file.forget(Span::from_zero(file.len_bytes()));
        Ok(file.host_filesystem())
    }
}

/// What is read at a time from these devices.
fn read_bytes(devices: Option<&Devices>) -> u64 {
    let request = devices.and_then(Devices::request_bytes).unwrap_or(READ_BYTES_MAX);
    1 << request.clamp(READ_BYTES_MIN, READ_BYTES_MAX).ilog2()
}

/// Can be cancelled, and counts nothing.
struct Silent<'a>(&'a dyn JobMonitor);

impl JobMonitor for Silent<'_> {
    fn advanced(&self, _read_bytes: u64, _written_bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}
