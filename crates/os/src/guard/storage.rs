//! The devices below a file system, down to those that lie on nothing else, and what the kernel counts of them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

use super::{GuardedKind, GuardedSystem};

/// Devices upon devices: more layers are not followed.
const DEPTH_MAX: u32 = 16;
/// More devices are not told apart.
const DEVICES_MAX: usize = 256;

/// A block device, by the numbers that the kernel has for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceNumber {
    /// Of its driver.
    pub major: u32,
    /// Among its driver's.
    pub minor: u32,
}

impl DeviceNumber {
    pub(super) fn of(device: u64) -> Self {
        Self { major: major(device), minor: minor(device) }
    }

    fn folder(self) -> Option<PathBuf> {
        fs::canonicalize(format!("/sys/dev/block/{}:{}", self.major, self.minor)).ok()
    }
}

/// What the kernel counts sectors in, whatever the device does.
const SECTOR_BYTES: u64 = 512;

/// Requests that a device has served, and how long they took together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounters {
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Milliseconds that they took.
    pub read_ms: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Milliseconds that they took.
    pub write_ms: u64,
}

impl DeviceCounters {
    /// As the kernel has them now.
    pub fn of(device: DeviceNumber) -> Option<Self> {
        Self::parse(&fs::read_to_string(Self::file(device)?).ok()?)
    }

    /// Where the kernel has them.
    pub(crate) fn file(device: DeviceNumber) -> Option<PathBuf> {
        Some(device.folder()?.join("stat"))
    }

    /// The fields 1, 3, 4, 5, 7 and 8 of `Documentation/admin-guide/iostats.rst`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let word = |at: usize| words.get(at)?.parse::<u64>().ok();
        let bytes = |at: usize| word(at)?.checked_mul(SECTOR_BYTES);
        Some(Self {
            reads: word(0)?,
            read_bytes: bytes(2)?,
            read_ms: word(3)?,
            writes: word(4)?,
            written_bytes: bytes(6)?,
            write_ms: word(7)?,
        })
    }
}

/// What a guest knows of a disk that its hypervisor gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskFacts {
    /// How long it is.
    pub size_bytes: u64,
    /// As its maker or hypervisor says; empty if it does not.
    pub serial: String,
}

impl DiskFacts {
    /// Of a disk of this machine.
    pub fn of(device: DeviceNumber) -> Option<Self> {
        let folder = device.folder()?;
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let sectors: u64 = text("size")?.trim().parse().ok()?;
        let serial = text("serial").or_else(|| text("device/serial")).unwrap_or_default();
        Some(Self { size_bytes: sectors.checked_mul(SECTOR_BYTES)?, serial: serial.trim().to_owned() })
    }
}

/// The devices on which a file system lies that can be guarded: those that lie on no other device, however many there are in between. Empty
/// where the kernel does not tell.
pub fn devices_below_system(system: &GuardedSystem) -> Vec<DeviceNumber> {
    let mut found = BTreeSet::new();
    for device in own_devices(system) {
        descend(device, DEPTH_MAX, &mut found);
    }
    found.into_iter().collect()
}

/// The same of a file or block device.
pub fn devices_below(path: &Path) -> Vec<DeviceNumber> {
    let mut found = BTreeSet::new();
    if let Ok(facts) = fs::metadata(path) {
        below(device_of(&facts), DEPTH_MAX, &mut found);
    }
    found.into_iter().collect()
}

/// Whether a file or block device lies on one device, with none in between.
pub(crate) fn lies_on_lowest(path: &Path) -> bool {
    let Ok(facts) = fs::metadata(path) else { return false };
    let device = DeviceNumber::of(device_of(&facts));
    devices_below(path) == [disk_of(device).unwrap_or(device)]
}

/// The disk that a partition is of; `None` of what is none.
fn disk_of(device: DeviceNumber) -> Option<DeviceNumber> {
    let folder = device.folder().filter(|folder| folder.join("partition").exists())?;
    number_in(&folder.parent()?.join("dev"))
}

/// The device that a file lies on, or that it is.
fn device_of(facts: &fs::Metadata) -> u64 {
    let kind = rustix::fs::FileType::from_raw_mode(facts.mode());
    if kind == rustix::fs::FileType::BlockDevice { facts.rdev() } else { facts.dev() }
}

/// Those that are the file system's own. Btrfs has any number, and a device number of its own.
fn own_devices(system: &GuardedSystem) -> Vec<DeviceNumber> {
    if system.kind != GuardedKind::Btrfs {
        return vec![DeviceNumber::of(system.device)];
    }
    let uuid: String = system.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let uuid = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
    let names = fs::read_dir(format!("/sys/fs/btrfs/{uuid}/devices"));
    let devices = names.into_iter().flatten().flatten().take(DEVICES_MAX);
    devices.filter_map(|entry| number_in(&entry.path().join("dev"))).collect()
}

fn number_in(path: &Path) -> Option<DeviceNumber> {
    let text = fs::read_to_string(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// What is below the device of this number; of one that is none, such as that of a Btrfs, what is mounted with it.
fn below(device: u64, depth: u32, found: &mut BTreeSet<DeviceNumber>) {
    let number = DeviceNumber::of(device);
    if number.folder().is_some() {
        return descend(number, depth, found);
    }
    let mounts = crate::mounts();
    let source = mounts.iter().filter(|mount| mount.device == device).find_map(crate::Mount::source_device);
    if let Some(source) = source {
        descend(DeviceNumber::of(source), depth, found);
    }
}

fn descend(device: DeviceNumber, depth: u32, found: &mut BTreeSet<DeviceNumber>) {
    let Some(folder) = device.folder() else { return };
    if depth == 0 || found.len() >= DEVICES_MAX {
        return;
    }
    if let Some(disk) = disk_of(device) {
        return descend(disk, depth - 1, found);
    }
    let slaves: Vec<_> = fs::read_dir(folder.join("slaves"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| number_in(&entry.path().join("dev")))
        .take(DEVICES_MAX)
        .collect();
    if !slaves.is_empty() {
        return slaves.into_iter().for_each(|slave| descend(slave, depth - 1, found));
    }
    // A file as a device.
    if let Ok(file) = fs::read_to_string(folder.join("loop/backing_file"))
        && let Ok(facts) = fs::metadata(file.trim_end_matches('\n'))
    {
        return below(facts.dev(), depth - 1, found);
    }
    found.insert(device);
}

/// A number of the kind that `stat` has.
impl From<DeviceNumber> for u64 {
    fn from(number: DeviceNumber) -> Self {
        makedev(number.major, number.minor)
    }
}
