//! A file system made for a run, in a file, on a loop device.
//!
//! Invariants: it is unmounted and its device is gone when the value goes; the file goes with the folder it lies in. Nobody
//! else sees the mount, which is gone, too, if this program is killed.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Error, Result};
use engine::JobMonitor;
use rustix::fs::FallocateFlags;

use crate::children::{need_program, run};
use crate::content::{Content, Random};
use crate::workspace::write_back;

/// An aged file system is filled until so little of it is free.
const AGED_FREE_SHARE: u64 = 12;
/// Small files, in whole pages.
const SMALL_PAGES_MAX: u64 = 32;
const PAGE_BYTES: u64 = 4096;
/// Files of a folder.
const FOLDER_FILES: u64 = 256;
/// Folders that are filled between two looks at what is really free.
const FOLDERS_AT_ONCE: u64 = 8;
/// Files beyond which a file system is not filled: it tells something else of its free space than it has.
const SMALL_FILES_MAX: u64 = 1 << 22;
/// How often a busy file system is asked to go.
const UNMOUNT_ATTEMPTS: u32 = 50;

/// A kind of file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl HostKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// What it takes besides files, and its tools ask for at least.
    fn own_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 128 << 20,
            // xfsprogs make none below 300 MiB.
            Self::Xfs | Self::Btrfs => 512 << 20,
        }
    }

    fn make_flags(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["-q", "-F", "-m", "0"],
            Self::Xfs | Self::Btrfs => &["-q", "-f"],
        }
    }
}

/// A file system to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostVolume {
    /// Its kind.
    pub kind: HostKind,
    /// Whether its free space is in pieces: it was filled with small files, and every other one was removed.
    pub is_aged: bool,
}

impl HostVolume {
    /// How large it is made for images that take so much.
    pub(super) fn size_bytes(&self, image_bytes: u64) -> u64 {
        let times = if self.is_aged { 3 } else { 2 };
        let bytes = image_bytes.saturating_mul(times).saturating_add(self.kind.own_bytes());
        bytes.checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
    }

    /// `Refused` or `Unsupported` if it cannot be made here.
    pub(super) fn check(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::refused("only root may mount a file system")
                .hint("run it as root, or without --host-filesystem"));
        }
        let make = format!("mkfs.{}", self.kind.name());
        [&*make, "losetup", "mount", "umount"].iter().try_for_each(|name| need_program(name).map(drop))
    }
}

/// A mounted file system.
pub(crate) struct Mounted {
    point: PathBuf,
    /// What goes with it.
    volume: Option<PathBuf>,
    unmount: PathBuf,
}

impl Mounted {
    /// Makes and mounts it in `dir`.
    pub(super) fn new(
        dir: &Path,
        what: HostVolume,
        size_bytes: u64,
        seed: u64,
        monitor: &dyn JobMonitor,
    ) -> Result<Self> {
        let (point, volume) = (dir.join("mount"), dir.join("volume"));
        let failed = |error: std::io::Error| Error::io("make", error).path(volume.display());
        let file = File::create_new(&volume).map_err(failed)?;
        file.set_len(size_bytes).map_err(failed)?;
        // Where storage cannot be found ahead it is found as it is written.
        let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size_bytes);
        drop(file);
        fs::create_dir(&point).map_err(failed)?;
        let flags = what.kind.make_flags().iter().map(Path::new);
        let arguments: Vec<_> = flags.chain([volume.as_path()]).collect();
        run(&need_program(&format!("mkfs.{}", what.kind.name()))?, &arguments)?;
        let mut mounted = Self::mount(point, &volume, "noatime")?;
        mounted.volume = Some(volume);
        if what.is_aged {
            age(&mounted.point, seed, monitor)?;
        }
        Ok(mounted)
    }

    /// Mounts the file system in the file `volume` at the folder `point`. Neither goes with it.
    pub(crate) fn mount(point: PathBuf, volume: &Path, options: &str) -> Result<Self> {
        let (attach, unmount) = (need_program("losetup")?, need_program("umount")?);
        let find = ["--find", "--show", "--direct-io=on"].map(Path::new);
        let device = run(&attach, &[&find[..], &[volume]].concat())
            // Not every file system has direct I/O.
            .or_else(|_| run(&attach, &[&find[..2], &[volume]].concat()))?;
        let device = PathBuf::from(device.trim());
        let mounted =
            run(&need_program("mount")?, &["-o".as_ref(), options.as_ref(), device.as_path(), &point]);
        // Once it is mounted the device goes when that ends; else now.
        let detached = run(&attach, &["--detach".as_ref(), &device]);
        mounted?;
        let mounted = Self { point, volume: None, unmount };
        detached.map(|_| mounted)
    }

    pub(super) fn path(&self) -> &Path {
        &self.point
    }

    /// Unmounts and removes it.
    pub(super) fn remove(self) -> Result<()> {
        self.try_unmount()?;
        drop(self);
        Ok(())
    }

    /// Unmounts it, and keeps everything.
    pub(crate) fn unmount(self) -> Result<()> {
        self.try_unmount()
    }

    fn try_unmount(&self) -> Result<()> {
        let mut result = Ok(String::new());
        for _ in 0..UNMOUNT_ATTEMPTS {
            result = run(&self.unmount, &[&self.point]);
            if result.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        result.map(drop)
    }
}

/// Whether something is mounted at this folder.
pub(crate) fn is_mounted(point: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path).map(|about| about.dev()).ok();
    device(point) != point.parent().and_then(device)
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.point) && self.try_unmount().is_err() {
            let _ = run(&self.unmount, &["--lazy".as_ref(), &self.point]);
        }
        // Not with all that is in it: that would be the file system's contents, were it still there.
        if let Some(volume) = &self.volume {
            let _ = fs::remove_dir(&self.point);
            let _ = fs::remove_file(volume);
        }
    }
}

/// Fills the file system at `point` with small files, and removes every other one.
fn age(point: &Path, seed: u64, monitor: &dyn JobMonitor) -> Result<()> {
    let mut random = Random::new(seed);
    let mut content = Content::new(usize::try_from(SMALL_PAGES_MAX * PAGE_BYTES).unwrap_or(1 << 17), seed);
    let failed = |path: &Path, error: std::io::Error| Error::io("write", error).path(path.display());
    let mut files = Vec::new();
    while (files.len() as u64) < SMALL_FILES_MAX {
        let index = files.len() as u64;
        let folder = point.join(format!("old-{}", index / FOLDER_FILES));
        if index.is_multiple_of(FOLDER_FILES) {
            if monitor.is_cancelled() {
                return Err(Error::interrupted());
            }
            if (index / FOLDER_FILES).is_multiple_of(FOLDERS_AT_ONCE) {
                // What is only in memory yet has no place, and is not counted by all.
                write_back(point)?;
            }
            fs::create_dir(&folder).map_err(|error| failed(&folder, error))?;
        }
        if is_nearly_full(point)? {
            break;
        }
        let path = folder.join(index.to_string());
        let len = (1 + random.below(SMALL_PAGES_MAX)) * PAGE_BYTES;
        let bytes = content.next(usize::try_from(len).unwrap_or(usize::MAX));
        match File::create_new(&path).and_then(|mut file| file.write_all(bytes)) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
            result => result.map_err(|error| failed(&path, error))?,
        }
        files.push(path);
    }
    write_back(point)?;
    for path in files.iter().step_by(2) {
        fs::remove_file(path).map_err(|error| failed(path, error))?;
    }
    write_back(point)
}

fn is_nearly_full(point: &Path) -> Result<bool> {
    let stat =
        rustix::fs::statvfs(point).map_err(|error| Error::io("stat", error.into()).path(point.display()))?;
    Ok(stat.f_bavail < stat.f_blocks / AGED_FREE_SHARE)
}
