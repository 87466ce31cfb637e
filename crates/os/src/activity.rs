//! What the kernel counts of the devices below files, and of this process: whether others use them.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::guard::lies_on_lowest;
use crate::{DeviceCounters, DeviceNumber, devices_below};

/// No file of counters is longer.
const TEXT_BYTES_MAX: usize = 4096;

/// Bytes up to a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovedBytes {
    /// Read from the devices, by whomever.
    pub device_read: u64,
    /// Written to them.
    pub device_written: u64,
    /// Read by this process from storage of any kind.
    pub own_read: u64,
    /// Written by this process, which may reach a device later.
    pub own_written: u64,
}

/// The counters of devices and of this process, open: they can be read when nothing can be opened any more.
#[derive(Debug)]
pub struct Activity {
    own: File,
    devices: Vec<File>,
    is_exact: bool,
}

impl Activity {
    /// Of the devices below these files, or below the folders of those that are not there yet. `None` where the kernel does not count, or the
    /// files lie on no device of this machine.
    pub fn below(paths: &[PathBuf]) -> Option<Self> {
        let there = paths.iter().filter_map(|path| existing(path));
        let there: Vec<&Path> = there.collect();
        let found: BTreeSet<DeviceNumber> = there.iter().flat_map(|path| devices_below(path)).collect();
        let counters = |device| File::open(DeviceCounters::file(device)?).ok();
        let devices: Vec<_> = found.into_iter().filter_map(counters).collect();
        let own = File::open("/proc/self/io").ok()?;
        let is_exact = there.iter().all(|path| lies_on_lowest(path));
        (!devices.is_empty()).then_some(Self { own, devices, is_exact })
    }

    /// Of the devices below these file systems, whose counters are in `folder` as they are in `/sys/dev/block`.
    pub fn of_systems(folder: &Path, systems: &[(PathBuf, Vec<DeviceNumber>)]) -> Option<Self> {
        let devices: BTreeSet<_> = systems.iter().flat_map(|(_, devices)| devices).collect();
        let is_exact = systems.iter().all(|(path, _)| lies_on_lowest(path));
        let counters = |device: &DeviceNumber| {
            File::open(folder.join(format!("{}:{}", device.major, device.minor)).join("stat")).ok()
        };
        let devices: Vec<_> = devices.into_iter().filter_map(counters).collect();
        let own = File::open("/proc/self/io").ok()?;
        (!devices.is_empty()).then_some(Self { own, devices, is_exact })
    }

    /// Whether what this process does reaches the devices as it is, with nothing in between that does more or less of it, such as a RAID or
    /// a file that serves as a device.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// As the kernel counts now; `None` if it does not any more.
    pub fn moved(&self) -> Option<MovedBytes> {
        let own = text(&self.own)?;
        let mut moved = MovedBytes {
            own_read: named(&own, "read_bytes:")?,
            own_written: named(&own, "write_bytes:")?,
            ..MovedBytes::default()
        };
        for device in &self.devices {
            let DeviceCounters { read_bytes, written_bytes, .. } = DeviceCounters::parse(&text(device)?)?;
            moved.device_read = moved.device_read.checked_add(read_bytes)?;
            moved.device_written = moved.device_written.checked_add(written_bytes)?;
        }
        Some(moved)
    }
}

/// The path, or what of it there is.
fn existing(path: &Path) -> Option<&Path> {
    if path.exists() {
        return Some(path);
    }
    let folder = path.parent()?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    folder.exists().then_some(folder)
}

fn text(file: &File) -> Option<String> {
    let mut bytes = vec![0; TEXT_BYTES_MAX];
    let len = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

fn named(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_this_process_writes_is_counted_for_it_and_for_the_device() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        let Some(activity) = Activity::below(std::slice::from_ref(&path)) else {
            panic!("no device below {}", path.display());
        };
        let before = activity.moved().unwrap();
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![7; 8 << 20]).unwrap();
        file.sync_all().unwrap();
        let after = activity.moved().unwrap();
        assert!(after.own_written - before.own_written >= 8 << 20);
        assert!(after.device_written - before.device_written >= 8 << 20);
    }

    #[test]
    fn a_path_that_is_not_there_is_its_folder() {
        assert_eq!(existing(Path::new("/tmp/none of this name")), Some(Path::new("/tmp")));
        assert_eq!(existing(Path::new("none of this name")), Some(Path::new(".")));
        assert_eq!(existing(Path::new("/none/of/this")), None);
        assert!(Activity::below(&["nbd://host/".into(), "/proc/self".into()]).is_none());
    }
}
