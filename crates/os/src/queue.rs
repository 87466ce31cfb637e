//! What the block device under a file takes at once, as the kernel says in `/sys`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor};
use serde::{Deserialize, Serialize};

use crate::requests::{Request, client};

/// The limits of a block device's queue (Documentation/ABI/stable/sysfs-block).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Queue {
    /// The longest request, `max_sectors_kb` in bytes.
    pub request_bytes: u64,
    /// How many pieces of memory a request may fill, `max_segments`.
    pub segments: u64,
    /// What is read ahead, `read_ahead_kb` in bytes.
    pub read_ahead_bytes: u64,
    /// Whether the device says that it rotates. A virtual device may say either.
    pub is_rotational: bool,
    /// Whether it is an NVMe device.
    pub is_nvme: bool,
    /// Whether a hypervisor makes it: what it is underneath, nobody here can tell.
    pub is_virtual: bool,
}

/// The queue of the device at `path`, or of the one on which the file at `path` lies. `None` where that is not one
/// block device: a network file system, one in memory, Btrfs.
pub fn queue_of(path: impl AsRef<Path>) -> Option<Queue> {
    let path = path.as_ref();
    match client() {
        Some(broker) => broker.ask(&Request::Queue(path.into())).ok()?,
        None => find_queue(path),
    }
}

/// [`queue_of`], by a process that is not confined.
pub(crate) fn find_queue(path: &Path) -> Option<Queue> {
    let metadata = fs::metadata(path).ok()?;
    let is_device = FileType::from_raw_mode(metadata.mode()) == FileType::BlockDevice;
    queue_of_device(if is_device { metadata.rdev() } else { metadata.dev() })
}

/// The queue of the block device of this number.
pub(crate) fn queue_of_device(device: u64) -> Option<Queue> {
    let folder =
        queue_folder(&Path::new("/sys/dev/block").join(format!("{}:{}", major(device), minor(device))))?;
    let number =
        |name: &str| -> Option<u64> { fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok() };
    let name = folder.parent()?.file_name()?.to_string_lossy().into_owned();
    Some(Queue {
        request_bytes: number("max_sectors_kb")?.checked_mul(1024)?,
        segments: number("max_segments")?,
        read_ahead_bytes: number("read_ahead_kb")?.checked_mul(1024)?,
        is_rotational: number("rotational")? != 0,
        is_nvme: name.starts_with("nvme"),
        // virtio and Xen.
        is_virtual: name.starts_with("vd") || name.starts_with("xvd"),
    })
}

/// Whether the block device of this number both discards and reads zeros afterwards.
pub(crate) fn gives_back(device: u64) -> bool {
    let path = Path::new("/sys/dev/block").join(format!("{}:{}", major(device), minor(device)));
    let is_positive = |folder: &Path, name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        text.trim().parse::<u64>().is_ok_and(|number| number > 0)
    };
    queue_folder(&path).is_some_and(|folder| {
        is_positive(&folder, "discard_max_bytes") && is_positive(&folder, "write_zeroes_max_bytes")
    })
}

/// A partition has none of its own: it is its disk's, one folder above.
fn queue_folder(device: &Path) -> Option<PathBuf> {
    let device = fs::canonicalize(device).ok()?;
    [device.join("queue"), device.parent()?.join("queue")].into_iter().find(|folder| folder.is_dir())
}
