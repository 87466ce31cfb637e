//! Whether another program has an image open for writing, as far as it says so by locks.
//!
//! QEMU takes shared byte-range locks on an image that say what it may do: byte 100 + n for permission n
//! (`block/file-posix.c`, `RAW_LOCK_PERM_BASE`; permissions in `include/block/block-common.h`: bit 1 is
//! `BLK_PERM_WRITE`, bit 3 `BLK_PERM_RESIZE`). They are only asked about here, never taken.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::OFlags;

use crate::raw_file::RawFile;

/// `RAW_LOCK_PERM_BASE` + the number of each permission that changes the contents.
const QEMU_WRITE_BYTES: [libc::off_t; 2] = [100 + 1, 100 + 3];

/// Says who holds `path` open for writing, if locks tell. `None` means that nobody who locks does; programs
/// that take no locks are not seen.
pub fn in_use_by_writer(path: impl AsRef<Path>) -> Option<String> {
    writer_of(&RawFile::open(path.as_ref(), OFlags::RDONLY).ok()?.file)
}

pub(crate) fn writer_of(file: &File) -> Option<String> {
    QEMU_WRITE_BYTES
        .iter()
        .any(|byte| is_locked(file, *byte))
        .then(|| "another program (QEMU or one like it) has it open for writing".to_owned())
}

/// Whether somebody else's lock on this byte would keep us from locking it alone.
fn is_locked(file: &File, byte: libc::off_t) -> bool {
    let lock_type = |value: i32| libc::c_short::try_from(value).expect("lock types are small numbers");
    let mut lock = libc::flock {
        l_type: lock_type(libc::F_WRLCK),
        l_whence: lock_type(libc::SEEK_SET),
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: F_OFD_GETLK reads and writes one `struct flock` behind the pointer, which is a live, exclusive
    // reference to one for the whole call; the descriptor is open as long as `file` is borrowed.
    #[allow(unsafe_code)]
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    result == 0 && lock.l_type != lock_type(libc::F_UNLCK)
}
