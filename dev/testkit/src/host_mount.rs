//! File systems of the host, as images lie on them: fresh ones, and ones whose free space is in pieces. Needs root.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::statvfs;
use tempfile::TempDir;

use crate::loops::{mount, unmount};
use crate::tools::{run, scratch};

/// How large the file system of a folder is, and what it has left.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// All of it.
    pub all_bytes: u64,
    /// What is free, for root, too.
    pub free_bytes: u64,
    /// What is free for everybody.
    pub available_bytes: u64,
}

impl Room {
    /// Of the file system on which this lies.
    pub fn of(path: &Path) -> Self {
        let found = statvfs(path).unwrap();
        let bytes = |blocks: u64| blocks * found.f_frsize;
        Self {
            all_bytes: bytes(found.f_blocks),
            free_bytes: bytes(found.f_bfree),
            available_bytes: bytes(found.f_bavail),
        }
    }

    /// Whether this share of it is taken.
    pub fn is_filled_to(self, percent: u64) -> bool {
        (self.all_bytes - self.available_bytes) * 100 >= self.all_bytes * percent
    }
}

/// A file system in a file, mounted as long as the value lives. One at a time in a program.
pub struct HostMount {
    folder: PathBuf,
    _dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

static MOUNTING: Mutex<()> = Mutex::new(());

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn make(filesystem: &str, image: &Path, len_bytes: u64) {
    File::create(image).unwrap().set_len(len_bytes).unwrap();
    run(&format!("mkfs.{filesystem}"), &["-q", text(image)]);
}

/// `sb_features_incompat` and `sb_crc` (`fs/xfs/libxfs/xfs_format.h`).
const INCOMPATIBLE_AT: usize = 216;
const CHECKSUM_AT: usize = 224;
/// `XFS_SB_FEAT_INCOMPAT_EXCHRANGE`.
const EXCHANGES_RANGES: u64 = 1 << 6;

fn superblock(image: &File, at: u64) -> [u8; 512] {
    let mut superblock = [0; 512];
    image.read_exact_at(&mut superblock, at).unwrap();
    superblock
}

fn number(superblock: &[u8], at: usize) -> u64 {
    u32::from_be_bytes(superblock[at..at + 4].try_into().unwrap()).into()
}

fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

fn allow_exchange(image: &File, at: u64) {
    let mut superblock = superblock(image, at);
    let features = u32::try_from(number(&superblock, INCOMPATIBLE_AT) | EXCHANGES_RANGES).unwrap();
    superblock[INCOMPATIBLE_AT..INCOMPATIBLE_AT + 4].copy_from_slice(&features.to_be_bytes());
    superblock[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let checksum = crc32c(&superblock).to_le_bytes();
    superblock[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum);
    image.write_all_at(&superblock, at).unwrap();
}

impl HostMount {
    /// Makes and mounts a file system of `len_bytes`: `ext4`, `xfs` (from 300 MiB) or `btrfs`.
    pub fn new(filesystem: &str, len_bytes: u64) -> Self {
        Self::of(filesystem, |image| make(filesystem, image, len_bytes))
    }

    /// The same, made with these options.
    pub fn made_with(filesystem: &str, len_bytes: u64, options: &[&str]) -> Self {
        Self::of(filesystem, |image| {
            File::create(image).unwrap().set_len(len_bytes).unwrap();
            run(&format!("mkfs.{filesystem}"), &[&["-q"], options, &[text(image)]].concat());
        })
    }

    /// XFS that can exchange ranges of files (kernel 6.10), which the `mkfs.xfs` of older distributions does not offer.
    pub fn xfs_that_exchanges_ranges(len_bytes: u64) -> Self {
        Self::of("xfs", |image| {
            make("xfs", image, len_bytes);
            let image = File::options().read(true).write(true).open(image).unwrap();
            let head = superblock(&image, 0);
            let (block, group, count) = (number(&head, 4), number(&head, 84), number(&head, 88));
            (0..count).for_each(|at| allow_exchange(&image, at * group * block));
        })
    }

    fn of(filesystem: &str, make: impl FnOnce(&Path)) -> Self {
        let alone = MOUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch();
        let (image, folder) = (dir.path().join("filesystem"), dir.path().join("mounted"));
        make(&image);
        std::fs::create_dir(&folder).unwrap();
        mount(&["-t", filesystem, "-o", "loop", text(&image), text(&folder)]);
        Self { folder, _dir: dir, _alone: alone }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// What it has left.
    pub fn available_bytes(&self) -> u64 {
        Room::of(&self.folder).available_bytes
    }
}

impl HostMount {
    /// Writes that its device has done so far. Not on Btrfs, whose files do not tell their device.
    pub fn device_writes(&self) -> u64 {
        self.device_counter(4)
    }

    /// Bytes of these.
    pub fn device_written_bytes(&self) -> u64 {
        self.device_counter(6) * 512
    }

    /// The kernel's Documentation/block/stat.rst: the fifth, number 4, is "write I/Os", number 6 "write sectors", of 512 bytes.
    fn device_counter(&self, number: usize) -> u64 {
        let device = self.folder.metadata().unwrap().dev();
        let [major, minor] = [rustix::fs::major(device), rustix::fs::minor(device)];
        let counters = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap();
        counters.split_whitespace().nth(number).unwrap().parse().unwrap()
    }
}

/// A file system whose free space is in pieces, to be mounted in the same state again and again.
pub struct AgedHost {
    filesystem: String,
    image: PathBuf,
    _dir: TempDir,
}

/// Small files are of 16 to 512 KiB, in pages.
const AGED_FILE_PAGES: std::ops::RangeInclusive<u64> = 4..=128;
/// Files of a folder.
const AGED_FOLDER_FILES: usize = 64;

impl AgedHost {
    /// Makes a file system of `len_bytes` as [`HostMount::new`], fills it with small files and erases three fifths of them.
    pub fn new(filesystem: &str, len_bytes: u64) -> Self {
        let dir = scratch();
        let image = dir.path().join("aged");
        make(filesystem, &image, len_bytes);
        let mount = HostMount::of(filesystem, |link| std::os::unix::fs::symlink(&image, link).unwrap());
        age(mount.path());
        drop(mount);
        Self { filesystem: filesystem.to_owned(), image, _dir: dir }
    }

    /// A copy of it, mounted.
    pub fn mount(&self) -> HostMount {
        HostMount::of(&self.filesystem, |copy| {
            run("cp", &["--sparse=always", text(&self.image), text(copy)]);
        })
    }
}

fn age(folder: &Path) {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut files = Vec::new();
    let is_nearly_full = |room: Room| room.available_bytes < room.all_bytes / 32;
    while !is_nearly_full(Room::of(folder)) {
        let folder = folder.join(format!("old-{}", files.len()));
        std::fs::create_dir(&folder).unwrap();
        for number in 0..AGED_FOLDER_FILES {
            let len_pages =
                AGED_FILE_PAGES.start() + random(AGED_FILE_PAGES.end() - AGED_FILE_PAGES.start() + 1);
            let path = folder.join(number.to_string());
            let file = File::create(&path).unwrap();
            // Their contents are nobody's.
            let reserved =
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len_pages * 4096);
            if reserved.is_err() {
                break;
            }
            files.push(path);
        }
        // Some count what is free only then.
        run("sync", &["-f", text(&folder)]);
    }
    files.into_iter().filter(|_| random(5) < 3).for_each(|path| std::fs::remove_file(path).unwrap());
    run("sync", &["-f", text(folder)]);
}

impl Drop for HostMount {
    fn drop(&mut self) {
        unmount(&self.folder);
    }
}
