//! A new disk with a file system of its own, mounted as often as it is needed.
//!
//! Invariants: its place is a folder of the run's own; a mount goes with the value, and nobody else sees it; the program that keeps NTFS
//! mounted ends with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, Result};

use super::perform::Care;
use crate::children::{Running, need_program, run};
use crate::fragmentation::Mounted;

/// How long NTFS may take to be mounted.
const MOUNT_MAX: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(5);

/// A kind of file system that can age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgedKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// NTFS, written by ntfs-3g.
    Ntfs,
}

impl AgedKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Ntfs => "ntfs",
        }
    }

    /// A smaller disk is not made.
    pub fn size_bytes_min(self) -> u64 {
        match self {
            Self::Ext4 | Self::Ntfs => 16 << 20,
            // xfsprogs make none below 300 MiB.
            Self::Xfs => 320 << 20,
            Self::Btrfs => 128 << 20,
        }
    }

    /// What is left for files on a disk of so many bytes: the same everywhere, and a little less than there is.
    pub(crate) fn capacity_bytes(self, size_bytes: u64) -> u64 {
        let own = match self {
            Self::Ext4 | Self::Ntfs => size_bytes / 10 + (4 << 20),
            Self::Xfs => size_bytes / 16 + (80 << 20),
            // Chunks of metadata and of the system.
            Self::Btrfs => size_bytes / 8 + (64 << 20),
        };
        size_bytes.saturating_sub(own)
    }

    /// Whether filefrag tells of its files.
    pub(super) fn has_filefrag(self) -> bool {
        self != Self::Ntfs
    }

    pub(crate) fn care(self) -> Care {
        match self {
            Self::Ext4 | Self::Ntfs => Care::WriteOut,
            Self::Btrfs => Care::Flush,
            Self::Xfs => Care::WriteOutAndFinish,
        }
    }

    /// `Refused`, `Unsupported` or `Invalid` if it cannot be made here.
    pub(super) fn check(self, size_bytes: u64) -> Result<()> {
        if size_bytes < self.size_bytes_min() {
            let limit = format!("{} bytes and more", self.size_bytes_min());
            return Err(Error::invalid("a disk of this kind").field("size", size_bytes, limit));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::refused("only root may mount a file system")
                .hint("run it as root, or let a folder age that is mounted"));
        }
        self.programs().iter().try_for_each(|name| need_program(name).map(drop))
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mkfs.ext4", "losetup", "mount", "umount"],
            Self::Xfs => &["mkfs.xfs", "losetup", "mount", "umount"],
            Self::Btrfs => &["mkfs.btrfs", "losetup", "mount", "umount"],
            Self::Ntfs => &["mkntfs", "ntfs-3g", "umount"],
        }
    }

    /// Makes it. Places depend on the seed of directory hashes, which follows from `seed`, and on no other identity: these are as different as
    /// those of any two file systems.
    pub(crate) fn make(self, path: &Path, seed: u64) -> Result<()> {
        let extended = format!(
            "hash_seed=1ea0d15c-0000-4000-8000-{:012x},lazy_itable_init=0,lazy_journal_init=0",
            seed & 0xffff_ffff_ffff
        );
        let (program, arguments): (&str, &[&str]) = match self {
            Self::Ext4 => ("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", &extended]),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f"]),
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-m", "single"]),
            Self::Ntfs => ("mkntfs", &["-q", "-f", "-F", "-p", "0", "-s", "512", "-H", "255", "-S", "63"]),
        };
        let arguments: Vec<_> = arguments.iter().map(Path::new).chain([path]).collect();
        run(&need_program(program)?, &arguments).map(drop)
    }

    fn mount_options(self) -> &'static str {
        match self {
            // Nothing is settled by the clock.
            Self::Ext4 => "noatime,commit=3600,no_prefetch_block_bitmaps,dioread_lock",
            Self::Btrfs => "noatime,commit=3600,nodiscard",
            Self::Xfs | Self::Ntfs => "noatime",
        }
    }
}

/// What keeps it mounted.
enum Mount {
    /// The kernel.
    Kernel(Mounted),
    /// A program.
    Program(Running),
}

/// A disk in a file.
pub(super) struct Volume {
    kind: AgedKind,
    path: PathBuf,
    point: PathBuf,
    mount: Option<Mount>,
}

impl Volume {
    /// Makes it in `dir`.
    pub(super) fn make(dir: &Path, kind: AgedKind, size_bytes: u64, seed: u64) -> Result<Self> {
        let (path, point) = (dir.join("volume"), dir.join("mount"));
        let failed = |error: std::io::Error| Error::io("make", error).path(path.display());
        File::create_new(&path).and_then(|file| file.set_len(size_bytes)).map_err(failed)?;
        fs::create_dir(&point).map_err(failed)?;
        kind.make(&path, seed)?;
        Ok(Self { kind, path, point, mount: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where its files are while it is mounted.
    pub(super) fn files(&self) -> PathBuf {
        self.point.join("aged")
    }

    pub(super) fn mount(&mut self) -> Result<()> {
        self.mount = Some(match self.kind {
            AgedKind::Ntfs => Mount::Program(self.mount_by_program()?),
            AgedKind::Ext4 | AgedKind::Xfs | AgedKind::Btrfs => {
                Mount::Kernel(Mounted::mount(self.point.clone(), &self.path, self.kind.mount_options())?)
            }
        });
        Ok(())
    }

    fn mount_by_program(&self) -> Result<Running> {
        let options = format!("no_detach,{}", self.kind.mount_options());
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let arguments = ["-o".to_owned(), options, text(&self.path), text(&self.point)];
        let log = self.path.with_extension("log");
        let mut program = Running::start(&need_program("ntfs-3g")?, &arguments, log)?;
        let deadline = Instant::now() + MOUNT_MAX;
        while !crate::fragmentation::is_mounted(&self.point) {
            program.check()?;
            if Instant::now() >= deadline {
                let late = std::io::ErrorKind::TimedOut.into();
                return Err(Error::io("mount", late).path(self.path.display()));
            }
            std::thread::sleep(STEP);
        }
        Ok(program)
    }

    pub(super) fn unmount(&mut self) -> Result<()> {
        match self.mount.take() {
            None => Ok(()),
            Some(Mount::Kernel(mounted)) => mounted.unmount(),
            Some(Mount::Program(program)) => {
                run(&need_program("umount")?, &[&self.point])?;
                program.end(false)
            }
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Some(Mount::Program(program)) = self.mount.take() {
            if let Ok(unmount) = need_program("umount") {
                let asked = run(&unmount, &[&self.point]);
                let _ = asked.or_else(|_| run(&unmount, &["--lazy".as_ref(), self.point.as_path()]));
            }
            drop(program);
        }
    }
}
