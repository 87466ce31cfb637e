//! Room on a host's file system that is kept for the moment when there is none left: to close an image where even what is written
//! again takes new room.
//!
//! It is a file without a name: it goes with the program, however that ends.

use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};

use crate::fiemap::filesystem_name;

/// Enough for the tables of an image that change between two flushes; what a host that is nearly full can spare of it, if it is as much
/// as a few tables.
const SPARE_BYTES: [u64; 5] = [4 << 20, 2 << 20, 1 << 20, 512 << 10, 256 << 10];

/// File systems that write what is written again elsewhere.
const WRITE_ELSEWHERE: [&str; 4] = ["btrfs", "bcachefs", "zfs", "f2fs"];

/// Room that is given back when this goes.
pub struct SpareRoom(#[allow(dead_code)] OwnedFd);

impl SpareRoom {
    /// Keeps room on the file system of the folder of `path`; `None` where it is of no use, or there is none.
    pub fn beside(path: &Path) -> Option<Self> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok()?);
        let is_of_use = filesystem_name(&file).is_some_and(|name| WRITE_ELSEWHERE.contains(&name.as_str()));
        if !is_of_use {
            return None;
        }
        let mut sizes = SPARE_BYTES.into_iter();
        let is_kept = |bytes| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).is_ok();
        sizes.find(|bytes| is_kept(*bytes)).map(|_| Self(file.into()))
    }
}
