//! Files by their handles (`open_by_handle_at(2)`), which stay what they are when a file is renamed, and are nobody's once it is gone.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use block::Result;
use rustix::io::Errno;

use super::{GuardedKind, GuardedSystem, owned, reopened, xfs};

/// `MAX_HANDLE_SZ`.
const HANDLE_BYTES_MAX: usize = 128;

/// `struct file_handle` with the most that can follow it.
#[repr(C)]
struct Raw {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// A file's handle: its type, and what the file system says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handle(Vec<u8>);

impl Handle {
    /// Of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        let mut raw = Raw { bytes: 128, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
        let mut mount: libc::c_int = 0;
        // SAFETY: the kernel reads how many bytes there are for the handle, writes at most as many behind the head, and one integer;
        // all of it is exclusively borrowed; the path is a constant empty string, which with this flag means the descriptor.
        #[allow(unsafe_code)]
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &raw mut raw,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let len = usize::try_from(raw.bytes).unwrap_or(0).min(HANDLE_BYTES_MAX);
        let mut all = raw.kind.to_le_bytes().to_vec();
        all.extend(&raw.handle[..len]);
        Ok(Self(all))
    }

    /// As a ledger stores it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// From a ledger; `None` if it cannot be one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (5..=4 + HANDLE_BYTES_MAX).contains(&bytes.len()).then(|| Self(bytes.to_vec()))
    }

    fn raw(&self) -> Raw {
        let (kind, rest) = self.0.split_at(4);
        let mut raw = Raw { bytes: 0, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
        raw.kind = i32::from_le_bytes([kind[0], kind[1], kind[2], kind[3]]);
        raw.bytes = u32::try_from(rest.len()).expect("checked when it was made");
        raw.handle[..rest.len()].copy_from_slice(rest);
        raw
    }
}

impl GuardedSystem {
    /// Opens a file for reading; `None` if it is gone.
    pub fn open_read(&self, handle: &Handle) -> Result<Option<File>> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOATIME | libc::O_NONBLOCK | libc::O_NOFOLLOW;
        self.open(&self.root()?, handle, flags)
    }

    fn open(&self, root: &File, handle: &Handle, flags: libc::c_int) -> Result<Option<File>> {
        let mut raw = handle.raw();
        // SAFETY: the kernel reads the head and the bytes it announces, all within `raw`; the folder is open for the call.
        #[allow(unsafe_code)]
        let result =
            unsafe { libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), &raw mut raw, flags) };
        match owned(i32::try_from(result).unwrap_or(-1)) {
            Ok(file) => Ok(Some(file)),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::STALE | Errno::NOENT) => Ok(None),
                _ => Err(self.error("open a file of", error)),
            },
        }
    }

    /// Opens a file for writing that is open for reading; on XFS so that its times stay. `Err` of kind `WouldBlock` where somebody holds it.
    pub(super) fn open_write(&self, file: &File) -> Result<io::Result<File>> {
        if self.kind == GuardedKind::Xfs {
            return Ok(xfs::open_unseen(&self.root()?, file));
        }
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOATIME);
        Ok(options.read(true).write(true).open(reopened(file)))
    }
}
