//! Which files are written and closed on a file system, by fanotify (`fanotify(7)`): a mark on the whole file system, and events that come
//! with the file open for reading. That works on all three file systems and in subvolumes, which marks that report file handles do
//! not.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use block::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{GuardedSystem, owned};

/// Some 170 events.
const BUFFER_BYTES: usize = 4096;
/// `sizeof(struct fanotify_event_metadata)`.
const EVENT_BYTES: usize = 24;
const VERSION: u8 = 3;

/// What happened to a file since it was told last.
pub struct Seen {
    /// The file, open for reading; `None`: more happened than was remembered.
    pub file: Option<File>,
    /// It was written, cut or reserved.
    pub was_written: bool,
    /// Somebody who could write closed it.
    pub was_closed: bool,
    /// The process that did so; 0 if it is not one of this namespace.
    pub process: u32,
}

/// Tells of writes to a file system by others.
pub struct Watch {
    queue: File,
    system: GuardedSystem,
    buffer: Vec<u8>,
}

impl Watch {
    /// From now on.
    pub fn new(system: &GuardedSystem) -> Result<Self> {
        let fail = |error| system.error("watch", error);
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let opened = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME;
        let opened = libc::c_uint::try_from(opened).map_err(|_| fail(io::Error::other("flags")))?;
        // SAFETY: the call has arguments by value alone.
        #[allow(unsafe_code)]
        let queue = owned(unsafe { libc::fanotify_init(flags, opened) }).map_err(fail)?;
        let root = system.root()?;
        let mask = libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE;
        let mark = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
        // SAFETY: both descriptors are open for the call; a null path means the second of them (fanotify_mark(2)).
        #[allow(unsafe_code)]
        let marked =
            unsafe { libc::fanotify_mark(queue.as_raw_fd(), mark, mask, root.as_raw_fd(), std::ptr::null()) };
        if marked != 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        Ok(Self { queue, system: system.clone(), buffer: vec![0; BUFFER_BYTES] })
    }

    /// Hands over what happened since the last call, up to a bound. Whether there may be more.
    pub fn read(&mut self, mut take: impl FnMut(Seen)) -> Result<bool> {
        let len = match self.queue.read(&mut self.buffer) {
            Ok(len) => len,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(false);
            }
            // The file of an event could not be opened: that event is lost.
            Err(_) => {
                take(Seen { file: None, was_written: true, was_closed: false, process: 0 });
                return Ok(false);
            }
        };
        let own = u32::try_from(rustix::process::getpid().as_raw_nonzero().get()).unwrap_or(0);
        let events = &self.buffer[..len];
        for event in events.chunks_exact(EVENT_BYTES) {
            let word =
                |at: usize| u32::from_ne_bytes([event[at], event[at + 1], event[at + 2], event[at + 3]]);
            if word(0) != 24 || event[4] != VERSION {
                return Err(self
                    .system
                    .error("watch", io::Error::other("the kernel tells of files in another way")));
            }
            let mask = u64::from(word(8)) | if cfg!(target_endian = "big") { u64::from(word(12)) } else { 0 };
            let file = owned(i32::from_ne_bytes(word(16).to_ne_bytes())).ok();
            let process = word(20);
            if process == own {
                continue;
            }
            let has = |bit: u64| mask & bit != 0 || file.is_none();
            let (was_written, was_closed) = (has(libc::FAN_MODIFY), has(libc::FAN_CLOSE_WRITE));
            take(Seen { was_written, was_closed, process, file });
        }
        Ok(len > BUFFER_BYTES - 2 * EVENT_BYTES)
    }
}

/// Waits until something happened on one of these, or this many milliseconds passed.
pub fn wait(watches: &[&Watch], milliseconds: u64) {
    let mut fds: Vec<_> = watches.iter().map(|watch| PollFd::new(&watch.queue, PollFlags::IN)).collect();
    let time = Timespec {
        tv_sec: i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(milliseconds % 1000).unwrap_or(0) * 1_000_000,
    };
    // Interrupted by a signal, it is over as well.
    let _ = poll(&mut fds, Some(&time));
}
