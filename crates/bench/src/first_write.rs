//! The first write to each place of a disk, against later ones: thin, lazy and eager disks are written whole, as a full
//! format does, several times over.
//!
//! The disks are written in this process through [`block::LiveDisk`], as a server would: what a front end adds is not in
//! the figures. A pass ends when all of it is on stable storage.

use std::path::{Path, PathBuf};

use block::{Error, LiveDisk, Result};
use engine::{JobMonitor, Provision};
use extent::VirtualOffset;
use image::Format;

use crate::content::Content;
use crate::counters::{Devices, Interval, Watch};
use crate::images::{image_bytes_max, image_name, make, on_host};
use crate::workspace::{Workspace, write_back};

/// A disk that was taken into use.
pub trait DiskInUse {
    /// The disk.
    fn disk(&self) -> &dyn LiveDisk;

    /// Leaves the disk as one that nobody uses.
    fn close(&self) -> Result<()>;
}

/// Takes a disk into use, past the page cache where that can be done.
pub type OpenDisk<'a> = dyn Fn(&Path, Format) -> Result<Box<dyn DiskInUse>> + 'a;

/// What to measure.
pub struct FirstWrite<'a> {
    /// The folder in which disks are made.
    pub dir: &'a Path,
    /// The disks' size.
    pub virtual_bytes: u64,
    /// What is written at a time.
    pub write_bytes: usize,
    /// How often each disk is written whole.
    pub passes: usize,
    /// How often all is done.
    pub iterations: usize,
    /// The formats.
    pub formats: &'a [Format],
    /// When the disks' storage is found.
    pub provisions: &'a [Provision],
    /// Leaves the disks where they are.
    pub keeps: bool,
    /// Takes a disk into use.
    pub open: &'a OpenDisk<'a>,
}

/// What was measured.
pub struct FirstWriteOutcome {
    /// The host's file system, if it is known.
    pub host_filesystem: Option<String>,
    /// The names of the block devices beneath; empty where nothing is counted.
    pub devices: Vec<String>,
    /// Where the disks are, if they were kept.
    pub kept: Option<PathBuf>,
    /// A disk for each format and provision, in the order in which they were asked for.
    pub disks: Vec<FirstDisk>,
}

/// A kind of disk.
pub struct FirstDisk {
    /// Its format.
    pub format: Format,
    /// When its storage was found.
    pub provision: Provision,
    /// How long it took to make, in each iteration.
    pub create_seconds: Vec<f64>,
    /// Its passes, in order.
    pub passes: Vec<Pass>,
}

/// One pass over a disk.
#[derive(Default)]
pub struct Pass {
    /// Of each iteration.
    pub iterations: Vec<PassFacts>,
}

/// What a pass took.
pub struct PassFacts {
    /// Time, device and processors.
    pub interval: Interval,
    /// What the guest wrote.
    pub guest_writes: u64,
    /// Bytes of it.
    pub guest_bytes: u64,
    /// Extents of the image after it, if the host tells.
    pub host_extents: Option<u64>,
    /// What the image takes on the host after it.
    pub allocated_bytes: u64,
}

impl FirstWrite<'_> {
    /// Bytes that a run writes, for its progress.
    pub fn total_bytes(&self) -> u64 {
        let passes = self.passes as u64 * self.formats.len() as u64 * self.provisions.len() as u64;
        let zeroed = self.provisions.iter().filter(|provision| **provision == Provision::Eager).count();
        let whole = passes + zeroed as u64 * self.formats.len() as u64;
        self.virtual_bytes.saturating_mul(whole).saturating_mul(self.iterations as u64)
    }

    /// Runs it to its end.
    pub fn run(&self, monitor: &dyn JobMonitor) -> Result<FirstWriteOutcome> {
        let at_once =
            if self.keeps { self.iterations * self.formats.len() * self.provisions.len() } else { 1 };
        let space =
            Workspace::new(self.dir, image_bytes_max(self.virtual_bytes).saturating_mul(at_once as u64))?;
        let space = if self.keeps { space.kept() } else { space };
        let devices = Devices::beneath(space.path());
        let mut disks: Vec<FirstDisk> = Vec::new();
        for format in self.formats {
            disks.extend(self.provisions.iter().map(|provision| FirstDisk {
                format: *format,
                provision: *provision,
                create_seconds: Vec::new(),
                passes: (0..self.passes).map(|_| Pass::default()).collect(),
            }));
        }
        let mut host_filesystem = None;
        for iteration in 1..=self.iterations {
            for disk in &mut disks {
                let stem = format!("{}-{iteration}", word(disk.provision));
                let path = space.path().join(image_name(&stem, disk.format));
                self.measure(&space, devices.as_ref(), &path, disk, monitor)?;
                host_filesystem = on_host(&path)?.filesystem;
                if !self.keeps {
                    let removed = std::fs::remove_file(&path);
                    removed.map_err(|error| Error::io("remove", error).path(path.display()))?;
                }
            }
        }
        Ok(FirstWriteOutcome {
            host_filesystem,
            devices: devices.map_or_else(Vec::new, |devices| devices.names()),
            kept: self.keeps.then(|| space.path().to_owned()),
            disks,
        })
    }

    /// Makes a disk and writes it.
    fn measure(
        &self,
        space: &Workspace,
        devices: Option<&Devices>,
        path: &Path,
        into: &mut FirstDisk,
        monitor: &dyn JobMonitor,
    ) -> Result<()> {
        space.check_room(image_bytes_max(self.virtual_bytes))?;
        write_back(space.path())?;
        let making = Watch::start(devices)?;
        make(path, into.format, self.virtual_bytes, into.provision, monitor)?;
        into.create_seconds.push(making.stop()?.seconds);
        let disk = (self.open)(path, into.format)?;
        for (index, pass) in into.passes.iter_mut().enumerate() {
            write_back(space.path())?;
            let watch = Watch::start(devices)?;
            let guest_writes = self.write(disk.disk(), index as u64, monitor)?;
            let interval = watch.stop()?;
            let found = on_host(path)?;
            pass.iterations.push(PassFacts {
                interval,
                guest_writes,
                guest_bytes: self.virtual_bytes,
                host_extents: found.extents,
                allocated_bytes: found.allocated_bytes,
            });
        }
        disk.close()
    }

    /// Writes the disk from its start to its end, other bytes in each pass, and flushes. Answers how many writes that were.
    fn write(&self, disk: &dyn LiveDisk, pass: u64, monitor: &dyn JobMonitor) -> Result<u64> {
        let mut content = Content::new(self.write_bytes, pass << 48);
        let mut at = 0;
        let mut count = 0;
        while at < self.virtual_bytes {
            if monitor.is_cancelled() {
                return Err(Error::interrupted());
            }
            let left = usize::try_from(self.virtual_bytes - at).unwrap_or(usize::MAX);
            let bytes = content.next(left);
            disk.write_at(VirtualOffset::new(at), bytes)?;
            at += bytes.len() as u64;
            count += 1;
            monitor.advanced(bytes.len() as u64, bytes.len() as u64);
        }
        disk.flush()?;
        Ok(count)
    }
}

/// The word for it on the command line.
fn word(provision: Provision) -> &'static str {
    match provision {
        Provision::Thin => "thin",
        Provision::Lazy => "lazy",
        Provision::Eager => "eager",
    }
}
