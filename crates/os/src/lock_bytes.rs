//! What the kernel tells of the locks and leases on a file.
//!
//! QEMU takes shared byte-range locks on an image that say what it does and what it lets others do
//! (`block/file-posix.c`, `raw_apply_lock_bytes` and `raw_check_lock_bytes`): byte 100 + n for permission n that it holds
//! (`RAW_LOCK_PERM_BASE`), byte 200 + n for one that others must not hold (`RAW_LOCK_SHARED_BASE`). The permissions are
//! in `include/block/block-common.h`; bit 1 is `BLK_PERM_WRITE`, bit 3 `BLK_PERM_RESIZE`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// `RAW_LOCK_PERM_BASE` + the number of each permission that changes the contents.
const QEMU_WRITE_BYTES: [libc::off_t; 2] = [100 + 1, 100 + 3];
/// `BLK_PERM_CONSISTENT_READ`, and that others neither write nor resize.
pub(crate) const QEMU_READER_BYTES: [libc::off_t; 3] = [100, 200 + 1, 200 + 3];

/// Whether somebody who locks as QEMU does may change the file's contents or its length.
pub(crate) fn is_written(file: &File) -> bool {
    QEMU_WRITE_BYTES.iter().any(|byte| is_locked(file, *byte, 1))
}

/// Whether somebody who locks as QEMU does reads the file, and lets nobody change it.
pub(crate) fn is_read(file: &File) -> bool {
    QEMU_READER_BYTES.iter().any(|byte| is_locked(file, *byte, 1))
}

/// Whether anybody has `file`, which is open for reading only, open for writing, or mapped for it: then the kernel gives no
/// lease for reading (fcntl(2), `F_SETLEASE`). `None` where that tells nothing: network file systems, files of others.
pub(crate) fn is_open_for_writing(file: &File) -> Option<bool> {
    let is_remote = ["nfs", "cifs", "ceph", "gfs2"];
    if crate::fiemap::filesystem_name(file).is_some_and(|name| is_remote.contains(&&*name)) {
        // These say the same when their server gave no lease.
        return None;
    }
    // Were somebody to open the file in the moment of the lease, the kernel would send a signal: one that is ignored
    // unless asked for.
    let asked =
        fcntl(file, F_SETSIG, libc::SIGURG).and_then(|()| fcntl(file, libc::F_SETLEASE, libc::F_RDLCK));
    match asked {
        Ok(()) => Some(fcntl(file, libc::F_SETLEASE, libc::F_UNLCK).is_err()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(true),
        Err(_) => None,
    }
}

/// Takes a file, open for reading and writing, for oneself alone, until it is closed: fails if anybody else has it open. Whoever opens it
/// waits, and the kernel sends a signal that is ignored unless asked for.
pub(crate) fn lease_alone(file: &File) -> io::Result<()> {
    fcntl(file, F_SETSIG, libc::SIGURG).and_then(|()| fcntl(file, libc::F_SETLEASE, libc::F_WRLCK))
}

/// Whether nobody waits for a file that was taken so.
pub(crate) fn is_leased(file: &File) -> bool {
    // SAFETY: the command touches no memory; the descriptor is open as long as `file` is borrowed.
    #[allow(unsafe_code)]
    let lease = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
    lease == libc::F_WRLCK
}

/// How long who opens such a file waits until the kernel takes the lease away (`/proc/sys/fs/lease-break-time`, proc_sys_fs(5)).
pub(crate) fn lease_break_time() -> Duration {
    let text = std::fs::read_to_string("/proc/sys/fs/lease-break-time").unwrap_or_default();
    Duration::from_secs(text.trim().parse().unwrap_or(0))
}

/// fcntl(2): which signal tells of a lease that is broken.
const F_SETSIG: libc::c_int = 10;

fn fcntl(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: the commands passed here take an integer and touch no memory; the descriptor is open as long as `file` is
    // borrowed.
    #[allow(unsafe_code)]
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether somebody else's lock on these bytes (all up to any end if `len` is 0) would keep us from locking them alone.
pub(crate) fn is_locked(file: &File, start: libc::off_t, len: libc::off_t) -> bool {
    let asked = lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, start, len);
    asked.is_ok_and(|found| i32::from(found) != libc::F_UNLCK)
}

/// One call on a lock that belongs to the open file description; gives the type of lock that the kernel answers with.
pub(crate) fn lock(
    file: &File,
    command: libc::c_int,
    lock_type: libc::c_int,
    start: libc::off_t,
    len: libc::off_t,
) -> io::Result<libc::c_short> {
    let short = |value: i32| libc::c_short::try_from(value).expect("lock types are small numbers");
    let mut lock = libc::flock {
        l_type: short(lock_type),
        l_whence: short(libc::SEEK_SET),
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: F_OFD_GETLK and F_OFD_SETLK read and write one `struct flock` behind the pointer, which is a live, exclusive
    // reference to one for the whole call; the descriptor is open as long as `file` is borrowed.
    #[allow(unsafe_code)]
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(lock.l_type) }
}
