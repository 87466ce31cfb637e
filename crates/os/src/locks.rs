//! Locks on images, as QEMU takes them: taking them, and refusing what others use. `lock_bytes` says what they mean.
//!
//! Who opens an image takes its locks first and then looks for those that speak against it, so that of two at the same time at
//! least one sees the other.
//!
//! Absent on purpose: waiting for locks; breaking those of others.

use std::io;
use std::path::Path;

use block::{Error, Result};
use rustix::fs::OFlags;

use crate::lock_bytes::{QEMU_READER_BYTES, is_locked, is_written};
use crate::raw_file::{Kind, RawFile};
use crate::users;

/// `RAW_LOCK_PERM_BASE` and `RAW_LOCK_SHARED_BASE`.
const QEMU_BASES: [libc::off_t; 2] = [100, 200];
/// More permissions than QEMU has: it locks the bytes of those that it knows.
const QEMU_PERMISSION_COUNT: libc::off_t = 64;

/// Fails with `Refused` if somebody uses `raw`, which is open for reading only: writes to it, or has it as a disk. A device
/// says so itself when it is claimed.
pub(crate) fn check_unused(raw: &RawFile) -> Result<()> {
    let user = if raw.kind == Kind::BlockDevice { None } else { users::of(raw).into_iter().next() };
    user.map_or(Ok(()), |user| Err(Error::refused(user.text).path(&raw.name).hint(user.hint)))
}

/// Takes `raw` for this process alone: no QEMU can open it from now on, not even for reading, and no other Leandisk.
/// `Refused` if one of them, or anybody who locks a part of it, has it open. The locks go with the descriptor.
pub(crate) fn take(raw: &RawFile) -> Result<()> {
    for base in QEMU_BASES {
        match raw.lock_bytes(base, QEMU_PERMISSION_COUNT) {
            Ok(true) => {}
            // Nothing can be told, as with any other program.
            Ok(false) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(in_use(raw)),
            Err(error) => return Err(Error::io("lock", error).path(&raw.name)),
        }
    }
    // From the first byte to the last that a file can have.
    if is_locked(&raw.file, 0, 0) { Err(in_use(raw)) } else { Ok(()) }
}

/// Keeps a file from being written by whoever respects locks, as a QEMU does that reads it. Others may read it, too.
pub struct ReadLock {
    /// The locks go with it.
    _file: RawFile,
}

impl ReadLock {
    /// Locks `path`. `Refused` if somebody who locks it writes to it. On a file system without locks there is nothing to
    /// hold.
    pub fn take(path: impl AsRef<Path>) -> Result<Self> {
        let raw = RawFile::open(path.as_ref(), OFlags::RDONLY)?;
        for byte in QEMU_READER_BYTES {
            match raw.lock_bytes(byte, 1) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(in_use(&raw)),
                // Without locks nothing can be told, as with any other program.
                _ => {}
            }
        }
        if is_written(&raw.file) { Err(in_use(&raw)) } else { Ok(Self { _file: raw }) }
    }
}

fn in_use(raw: &RawFile) -> Error {
    Error::refused(format!("is in use by {}", users::holders(&raw.file)))
        .path(&raw.name)
        .hint("shut down what uses it, then try again")
}
