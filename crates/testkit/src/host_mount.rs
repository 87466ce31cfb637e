//! Fresh file systems of the host, as images lie on them. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::tools::{run, scratch};

/// A fresh file system in a file, mounted as long as the value lives. One at a time in a program.
pub struct HostMount {
    folder: PathBuf,
    _dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

static MOUNTING: Mutex<()> = Mutex::new(());

impl HostMount {
    /// Makes and mounts a file system of `len_bytes`: `ext4`, `xfs` (from 300 MiB) or `btrfs`.
    pub fn new(filesystem: &str, len_bytes: u64) -> Self {
        let alone = MOUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch();
        let (image, folder) = (dir.path().join("filesystem"), dir.path().join("mounted"));
        std::fs::File::create(&image).unwrap().set_len(len_bytes).unwrap();
        std::fs::create_dir(&folder).unwrap();
        let [image, to] = [&image, &folder].map(|path| path.to_str().unwrap());
        run(&format!("mkfs.{filesystem}"), &["-q", image]);
        run("mount", &["-t", filesystem, "-o", "loop", image, to]);
        Self { folder, _dir: dir, _alone: alone }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// What it has left.
    pub fn free_bytes(&self) -> u64 {
        let said = run("stat", &["-f", "-c", "%a %S", self.folder.to_str().unwrap()]);
        said.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product()
    }
}

impl Drop for HostMount {
    fn drop(&mut self) {
        let unmount = |more: &[&str]| {
            let status = Command::new("umount").args(more).arg(&self.folder).status();
            status.is_ok_and(|status| status.success())
        };
        // Lazily, where a test failed with a file open.
        let _ = unmount(&[]) || unmount(&["-l"]);
    }
}
