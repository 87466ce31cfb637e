//! What the kernel counts of the block devices beneath a folder, and of the processors.
//!
//! The counters are those of whole devices or partitions: whatever else uses them meanwhile is counted, too.
//!
//! Sources: `Documentation/block/stat.rst`, `Documentation/filesystems/proc.rst` (`/proc/stat`, `mountinfo`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use block::{Error, Result};
use rustix::fs::{major, minor};

/// `stat.rst`: counted in these whatever the device's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// What devices did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Requests to read that were completed, after neighbours were merged.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Requests to write that were completed, after neighbours were merged.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// For how long requests waited and were served, each counted for itself, in milliseconds.
    pub queued_ms: u64,
}

impl Counters {
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
        // reads, merged, sectors, ms; writes, merged, sectors, ms; in flight, ms active, ms in the queue.
        let [reads, _, read_sectors, _, writes, _, written_sectors, _, _, _, queued_ms, ..] = fields[..]
        else {
            return None;
        };
        Some(Self {
            reads,
            read_bytes: read_sectors.wrapping_mul(SECTOR_BYTES),
            writes,
            written_bytes: written_sectors.wrapping_mul(SECTOR_BYTES),
            queued_ms,
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads.wrapping_add(other.reads),
            read_bytes: self.read_bytes.wrapping_add(other.read_bytes),
            writes: self.writes.wrapping_add(other.writes),
            written_bytes: self.written_bytes.wrapping_add(other.written_bytes),
            queued_ms: self.queued_ms.wrapping_add(other.queued_ms),
        }
    }

    /// What was done since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.wrapping_sub(earlier.reads),
            read_bytes: self.read_bytes.wrapping_sub(earlier.read_bytes),
            writes: self.writes.wrapping_sub(earlier.writes),
            written_bytes: self.written_bytes.wrapping_sub(earlier.written_bytes),
            // Of 32 bits in the kernel.
            queued_ms: self.queued_ms.wrapping_sub(earlier.queued_ms) & u64::from(u32::MAX),
        }
    }
}

/// The block devices on which a file system lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Devices {
    /// Their folders in `/sys`.
    folders: Vec<PathBuf>,
}

impl Devices {
    /// Those beneath `path`; `None` if it does not lie on block devices that the kernel counts for.
    pub fn beneath(path: &Path) -> Option<Self> {
        let folders = match folder_of(fs::metadata(path).ok()?.dev()) {
            Some(folder) => vec![folder],
            // File systems of several devices have a number that is no device's.
            None => folders_of_mount(path)?,
        };
        let devices = Self { folders };
        devices.read().ok().map(|_| devices)
    }

    /// The names by which the kernel calls them.
    pub fn names(&self) -> Vec<String> {
        let name = |folder: &PathBuf| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.folders.iter().map(name).collect()
    }

    /// The longest request that all of them take at once, `max_sectors_kb`; `None` if one does not tell.
    pub fn request_bytes(&self) -> Option<u64> {
        let of = |folder: &PathBuf| {
            // A partition's queue is its disk's.
            let queues = [Some(folder.as_path()), folder.parent()].map(|folder| Some(folder?.join("queue")));
            let queue = queues.into_iter().flatten().find(|queue| queue.is_dir())?;
            let text = fs::read_to_string(queue.join("max_sectors_kb")).ok()?;
            text.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        self.folders.iter().map(of).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// What they did since the machine started.
    pub fn read(&self) -> Result<Counters> {
        self.folders.iter().try_fold(Counters::default(), |sum, folder| {
            let path = folder.join("stat");
            let text =
                fs::read_to_string(&path).map_err(|error| Error::io("read", error).path(path.display()))?;
            let counters = Counters::parse(&text)
                .ok_or_else(|| Error::unsupported("counters of a block device").path(path.display()))?;
            Ok(sum.plus(counters))
        })
    }
}

fn folder_of(device: u64) -> Option<PathBuf> {
    let link = Path::new("/sys/dev/block").join(format!("{}:{}", major(device), minor(device)));
    fs::canonicalize(link).ok()
}

/// The devices of the Btrfs that `path` lies on.
fn folders_of_mount(path: &Path) -> Option<Vec<PathBuf>> {
    let path = fs::canonicalize(path).ok()?;
    let mounts = os::mounts();
    let source = &os::mount_of(&mounts, &path).filter(|mount| mount.kind == b"btrfs")?.source;
    let first = folder_of(fs::metadata(source).ok()?.rdev())?;
    let name = first.file_name()?;
    let members = fs::read_dir("/sys/fs/btrfs").ok()?.filter_map(|entry| {
        let devices = entry.ok()?.path().join("devices");
        devices.join(name).exists().then_some(devices)
    });
    let folders: Option<Vec<PathBuf>> = members
        .take(1)
        .flat_map(fs::read_dir)
        .flatten()
        .map(|entry| fs::canonicalize(entry.ok()?.path()).ok())
        .collect();
    Some(folders.filter(|folders| !folders.is_empty()).unwrap_or_else(|| vec![first]))
}

/// Time of all processors since the machine started, in ticks: idle, and in total.
fn cpu_ticks() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    parse_cpu_ticks(&text)
}

fn parse_cpu_ticks(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user, nice, system, idle, waiting for I/O, irq, softirq, steal; guests' are in user and nice.
    let idle = fields.get(3)?.checked_add(*fields.get(4)?)?;
    let total = fields.iter().take(8).try_fold(0u64, |sum, field| sum.checked_add(*field))?;
    Some((idle, total))
}

/// Devices and processors under observation.
pub struct Watch<'a> {
    devices: Option<&'a Devices>,
    counters: Option<Counters>,
    cpu: Option<(u64, u64)>,
    started: Instant,
}

/// What was observed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// For how long.
    pub seconds: f64,
    /// What the devices did, if that is counted.
    pub device: Option<Counters>,
    /// The share of time in which processors had nothing to do, or waited for storage.
    pub cpu_idle: Option<f64>,
}

impl<'a> Watch<'a> {
    /// Begins.
    pub fn start(devices: Option<&'a Devices>) -> Result<Self> {
        let counters = devices.map(Devices::read).transpose()?;
        Ok(Self { devices, counters, cpu: cpu_ticks(), started: Instant::now() })
    }

    /// Ends.
    pub fn stop(self) -> Result<Interval> {
        let seconds = self.started.elapsed().as_secs_f64();
        let now = self.devices.map(Devices::read).transpose()?;
        let device = now.zip(self.counters).map(|(now, earlier)| now.since(earlier));
        let cpu_idle = cpu_ticks().zip(self.cpu).and_then(|((idle, total), (idle_before, total_before))| {
            let total = total.checked_sub(total_before).filter(|ticks| *ticks > 0)?;
            Some(ratio(idle.saturating_sub(idle_before).min(total), total))
        });
        Ok(Interval { seconds, device, cpu_idle })
    }
}

/// One count as a multiple of another.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_kernels_page() {
        let text = "   10  1  2000 30  40 5 6000 70 0 80 90 1 2 3 4 5 6\n";
        let counters = Counters::parse(text).unwrap();
        let expected = Counters {
            reads: 10,
            read_bytes: 1_024_000,
            writes: 40,
            written_bytes: 3_072_000,
            queued_ms: 90,
        };
        assert_eq!(counters, expected);
        assert_eq!(Counters::parse("1 2 3"), None);
        assert_eq!(Counters::parse("a b c d e f g h i j k"), None);
        let wrapped = Counters { queued_ms: 5, ..expected };
        let earlier = Counters { queued_ms: u64::from(u32::MAX), ..expected };
        assert_eq!(wrapped.since(earlier), Counters { queued_ms: 6, ..Counters::default() });
    }

    #[test]
    fn idle_is_what_the_first_line_says() {
        assert_eq!(parse_cpu_ticks("cpu  10 1 5 100 20 0 1 3 9 0\ncpu0 1 2\n"), Some((120, 140)));
        assert_eq!(parse_cpu_ticks("cpu0 1 2 3 4 5"), None);
    }
}
