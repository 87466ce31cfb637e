//! Room on a host's file system that is kept for the moment when there is none left: to close an image where even what is written
//! again takes new room.
//!
//! It is a file without a name: it goes with the program, however that ends.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FallocateFlags, Mode, OFlags};

use block::Result;

use crate::fiemap::filesystem_name;
use crate::raw_file::io_error;

/// Enough for the tables of an image that change between two flushes; what a host that is nearly full can spare of it, if it is as much
/// as a few tables.
const SPARE_BYTES: [u64; 5] = [4 << 20, 2 << 20, 1 << 20, 512 << 10, 256 << 10];

/// File systems that write what is written again elsewhere.
const WRITE_ELSEWHERE: [&str; 4] = ["btrfs", "bcachefs", "zfs", "f2fs"];

/// Bytes that are free for this user on the file system that holds the file at `path`.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let facts = rustix::fs::statvfs(path).map_err(|error| io_error("statvfs", path, error))?;
    // A file system that does not count has no blocks at all.
    Ok(if facts.f_blocks == 0 { u64::MAX } else { facts.f_bavail.saturating_mul(facts.f_frsize) })
}

/// A file without a name, which takes no room yet.
pub struct SpareFile(File);

/// Room that is given back when this goes.
pub struct SpareRoom(File);

impl Drop for SpareRoom {
    /// Such file systems use freed room only once the transaction that freed it is stored, so that is waited for.
    fn drop(&mut self) {
        if rustix::fs::ftruncate(&self.0, 0).is_ok() {
            let _ = rustix::fs::syncfs(&self.0);
        }
    }
}

impl SpareFile {
    /// For room on the file system of the folder of `path`; `None` where it is of no use.
    pub fn beside(path: &Path) -> Option<Self> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok()?);
        let is_of_use = filesystem_name(&file).is_some_and(|name| WRITE_ELSEWHERE.contains(&name.as_str()));
        is_of_use.then_some(Self(file))
    }

    /// Keeps room; `None` where there is none.
    pub fn keep(self) -> Option<SpareRoom> {
        let Self(file) = self;
        let mut sizes = SPARE_BYTES.into_iter();
        let is_kept = |bytes| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).is_ok();
        sizes.find(|bytes| is_kept(*bytes)).map(|_| SpareRoom(file))
    }
}
