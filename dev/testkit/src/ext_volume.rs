//! Volumes of ext2/3/4 with fragmented files, made by the real tools, and what is to be the same after files were moved.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::guest::as_root;
use crate::loops::{mount, unmount};
use crate::tools::{mke2fs, scratch};

const FILL: &str = include_str!("../scripts/fill-ext.py");
const DIGEST: &str = include_str!("../scripts/digest-tree.py");

/// Makes a volume of 48 MiB at `path` and fills it through a mount. `options` are those of mke2fs, as `-t ext4 -b 1024`;
/// the same seed gives the same files.
pub fn make(path: &Path, options: &str, seed: u64) {
    fs::File::create(path).unwrap().set_len(48 << 20).unwrap();
    let mut args: Vec<&str> = vec!["-q", "-F"];
    args.extend(options.split_whitespace());
    args.push(path.to_str().unwrap());
    mke2fs(&args);
    let mount = Mounted::new(path, "rw");
    python(FILL, &[mount.dir().to_str().unwrap(), &seed.to_string()]);
}

/// What is to be the same of the tree at a mounted `dir` wherever its files lie: paths, inodes, modes, owners, links, sizes,
/// times, attributes and contents. To be taken of volumes mounted read-only, as reading would change times.
pub fn tree_digest(dir: &Path) -> String {
    python(DIGEST, &[dir.to_str().unwrap()])
}

/// A volume mounted through the kernel as ext4; unmounted when it goes out of scope. One at a time in a process.
pub struct Mounted {
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

static MOUNTING: Mutex<()> = Mutex::new(());

impl Mounted {
    /// Mounts the volume in the file at `path`, with further `options` of mount.
    pub fn new(path: &Path, options: &str) -> Self {
        let alone = MOUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch();
        let options = format!("loop,{options}");
        mount(&["-t", "ext4", "-o", &options, path.to_str().unwrap(), dir.path().to_str().unwrap()]);
        Self { dir, _alone: alone }
    }

    /// Where it is mounted.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.dir.path());
    }
}

fn python(script: &str, args: &[&str]) -> String {
    let mut all = vec!["-c", script];
    all.extend(args);
    sudo("python3", &all)
}

fn sudo(program: &str, args: &[&str]) -> String {
    let output = as_root(program, args);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {}\n{stderr}", output.status);
    stdout
}
