//! What a guard of fragments needs of Linux: who writes files (fanotify), files by their handles, room past their ends, files for oneself
//! alone (leases), and the kernel's own calls that move a file's blocks.
//!
//! Invariants:
//! - no file stays open here longer than one call of these needs, but for one that is held; nothing is opened for writing that may be run;
//! - room is freed, and blocks move, only of a file that is held;
//! - on XFS nothing of this shows in a file's times (`XFS_IOC_OPEN_BY_HANDLE` makes a descriptor that leaves them).

mod btrfs;
mod fanotify;
mod gather;
mod handle;
mod held;
mod mapped;
mod peer;
mod room;
mod space;
mod storage;
mod walk;
mod xfs;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use block::{Error, Result};

pub use fanotify::{Seen, Watch, wait};
pub use gather::{Gathered, GoesOn, KeptRoom};
pub use handle::Handle;
pub use held::{HeldFile, Taken};
pub use mapped::may_store;
pub use peer::{OpenDisk, connect_at_once, disks_open_in, open_port, process_at, wait_for_input};
pub use room::{FileFacts, LeftAlone, Outcome};
pub use space::{SpacePart, SpaceUse};
pub(crate) use storage::lies_on_lowest;
pub use storage::{DeviceCounters, DeviceNumber, DiskFacts, devices_below, devices_below_system};
pub use walk::{FoundFile, Walk};

use crate::fiemap::{filesystem_magic, filesystem_name};
use crate::ioctl::ioctl;

/// File systems that can be guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardedKind {
    /// ext4, and ext3 and ext2 as ext4 has them.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl GuardedKind {
    /// As `mount` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

/// The room of a mounted file system, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuardedRoom {
    /// What ordinary users may still take.
    pub free_bytes: u64,
    /// What there is at all.
    pub all_bytes: u64,
    /// Of what is free, what no block group has (Btrfs): it can become room for files or for the file system's own tables.
    pub undecided_bytes: u64,
}

/// A mounted file system that can be guarded.
#[derive(Clone, Debug)]
pub struct GuardedSystem {
    /// Where it was named.
    pub path: PathBuf,
    /// What it is.
    pub kind: GuardedKind,
    /// Its number, by which a ledger knows it.
    pub uuid: [u8; 16],
    /// Whether only whole files can be put together here: XFS without exchange of ranges.
    pub moves_whole_files: bool,
    device: u64,
}

impl GuardedSystem {
    /// The file system of the folder at `path`; what it is instead, if it cannot be guarded.
    pub fn find(path: &Path) -> Result<std::result::Result<Self, String>> {
        let fail = |error| Error::io("open", error).path(path.display().to_string());
        let path = std::fs::canonicalize(path).map_err(fail)?;
        let root = open_folder(&path).map_err(fail)?;
        let kind = match filesystem_magic(&root) {
            Some(0xef53) => GuardedKind::Ext4,
            Some(preallocate::XFS_MAGIC) => GuardedKind::Xfs,
            Some(preallocate::BTRFS_MAGIC) => GuardedKind::Btrfs,
            _ => return Ok(Err(filesystem_name(&root).unwrap_or_else(|| "unknown".to_owned()))),
        };
        let device = root.metadata().map_err(fail)?.dev();
        let uuid = uuid_of(&root, kind).map_err(fail)?;
        let moves_whole_files = kind == GuardedKind::Xfs && !xfs::exchanges_ranges(&root);
        Ok(Ok(Self { path, kind, uuid, moves_whole_files, device }))
    }

    /// Its folder. It is not kept open: that would keep it from being unmounted.
    fn root(&self) -> Result<File> {
        let fail = |error| Error::io("open", error).path(self.path.display().to_string());
        let root = open_folder(&self.path).map_err(fail)?;
        if root.metadata().map_err(fail)?.dev() != self.device {
            return Err(fail(io::Error::other("another file system is mounted there now")));
        }
        Ok(root)
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        self.root().is_ok()
    }

    /// What is free there.
    pub fn room(&self) -> Result<GuardedRoom> {
        let fail = |error| self.error("ask for the room of", error);
        let root = self.root()?;
        let facts = rustix::fs::fstatvfs(&root).map_err(|error| fail(error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
        let undecided_bytes = match self.kind {
            GuardedKind::Btrfs => btrfs::unallocated_bytes(&root).map_err(fail)?,
            GuardedKind::Ext4 | GuardedKind::Xfs => 0,
        };
        Ok(GuardedRoom {
            free_bytes: bytes(facts.f_bavail),
            all_bytes: bytes(facts.f_blocks),
            undecided_bytes,
        })
    }

    /// Whether there is a snapshot that was made within so many seconds, which keeps what files had at that moment. Where that cannot be asked, there may be one.
    pub fn was_snapshotted_within(&self, seconds: u64) -> Result<bool> {
        if self.kind != GuardedKind::Btrfs {
            return Ok(false);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let found = btrfs::has_snapshot_since(&self.root()?, now.saturating_sub(seconds));
        Ok(found.unwrap_or(true))
    }

    fn error(&self, what: &'static str, error: io::Error) -> Error {
        Error::io(what, error).path(self.path.display().to_string())
    }
}

fn open_folder(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

/// `_IOR(0x15, 0, struct fsuuid2)`: a byte of length and 16 of the number (`include/uapi/linux/fs.h`).
const FS_IOC_GETFSUUID: u32 = 0x8011_1500;
fn uuid_of(root: &File, kind: GuardedKind) -> io::Result<[u8; 16]> {
    let mut answer = [0_u8; 1024];
    let (request, at) = match kind {
        GuardedKind::Btrfs => (btrfs::IOC_FS_INFO, btrfs::FS_INFO_UUID),
        GuardedKind::Ext4 | GuardedKind::Xfs => (FS_IOC_GETFSUUID, 1),
    };
    ioctl(root, request, &mut answer)?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&answer[at..at + 16]);
    Ok(uuid)
}

/// A descriptor that a call returned.
fn owned(descriptor: i32) -> io::Result<File> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    #[allow(unsafe_code)]
    let owned = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
    Ok(File::from(owned))
}

/// The name under which an open file can be opened again, whatever its own.
fn reopened(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What an open file is called now.
pub fn name_of(file: &File) -> Option<PathBuf> {
    std::fs::read_link(reopened(file)).ok()
}

/// Where file systems are mounted that can be guarded, each once.
pub fn guarded_mounts() -> Vec<PathBuf> {
    let mut seen = std::collections::BTreeSet::new();
    let mut mounts = crate::mounts();
    mounts.retain(|mount| {
        let is_known = [&b"ext4"[..], b"xfs", b"btrfs"].contains(&&mount.kind[..]);
        is_known && mount.is_writable() && seen.insert(mount.device)
    });
    mounts.into_iter().map(|mount| mount.point).collect()
}

/// Locks a file (`flock(2)`) until it is closed, for oneself alone or beside others; whether that could be done at once.
pub fn try_lock(file: &File, beside_others: bool) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let how = if beside_others {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    flock(file, how).is_ok()
}

/// `ioprio_set(2)`: of the class that only gets what nobody else wants, or as before.
pub fn be_idle_io(is_idle: bool) {
    const WHO_PROCESS: libc::c_int = 1;
    let value: libc::c_int = if is_idle { 3 << 13 } else { 0 };
    // SAFETY: the call has arguments by value alone; 0 is this thread. Where it fails, nothing changes.
    #[allow(unsafe_code)]
    unsafe {
        libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value);
    }
}
