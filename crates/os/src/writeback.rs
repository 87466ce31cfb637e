//! Has the kernel begin to write what was written for the first time to storage that was reserved for it, as soon as neighbours
//! are there, rather than all of it once somebody flushes: the device would stand idle until then.
//!
//! Nothing is waited for and nothing becomes stable by it: flushes do what they do without it, and tell of errors as they do
//! without it (`sync_file_range(2)`, which takes none away from them).

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use extent::HostSpan;

use crate::LiveFile;
use crate::ioctl::ioctl;

/// So many spans wait at most. If the device has more to do anyhow, the rest is left to the kernel.
const WAITING_COUNT_MAX: usize = 16;

/// How far it stands back behind other threads.
const NICE: i32 = 10;

/// A thread of its own, since the call waits while the device's queue is full. `None` if there can be none: nothing is begun early then.
pub(super) struct Writeback(Option<(SyncSender<HostSpan>, JoinHandle<()>)>);

impl Writeback {
    /// For `file`.
    pub(super) fn new(file: Arc<LiveFile>) -> Self {
        let (spans, waiting) = sync_channel::<HostSpan>(WAITING_COUNT_MAX);
        let run = move || {
            // Requests come first. Of this thread alone (nice(2), "C library/kernel differences").
            let _ = rustix::process::nice(NICE);
            waiting.iter().for_each(|span| begin(&file, span));
        };
        let thread = std::thread::Builder::new().name("writeback".to_owned()).spawn(run);
        Self(thread.ok().map(|thread| (spans, thread)))
    }

    /// Has `span`, which was written, be written by the device, too.
    pub(super) fn begin(&self, span: HostSpan) {
        if let Some((spans, _)) = &self.0 {
            // What does not fit is written by the next flush.
            let _ = spans.try_send(span);
        }
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        if let Some((spans, thread)) = self.0.take() {
            drop(spans);
            // It holds the file, which is to be closed when this is gone.
            let _ = thread.join();
        }
    }
}

/// Has what was written to `file` get its places, and be written, from this thread, and waits for it: what is still on its way from an earlier time
/// would be passed over. It is not stable by that. Where the file system cannot do it, it does it when it likes.
pub fn write_out(file: &std::fs::File) {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call has arguments by value; the descriptor is open as long as `file` is borrowed. A length of 0 is the whole file.
    #[allow(unsafe_code)]
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
}

/// `ioctl_xfs_free_eofblocks`, `_IOR('X', 58, struct xfs_fs_eofblocks)`: linux/fs/xfs/libxfs/xfs_fs.h.
const XFS_IOC_FREE_EOFBLOCKS: u32 = 0x8080_583a;

/// `struct xfs_fs_eofblocks`: version 1, to be waited for, of all files.
#[repr(C)]
struct FreeEofBlocks {
    version: u32,
    flags: u32,
    uid: u32,
    gid: u32,
    prid: u32,
    pad: u32,
    min_file_size: u64,
    pad64: [u64; 12],
}

const _: () = assert!(size_of::<FreeEofBlocks>() == 128);

/// Has XFS finish what it does about removed files when it likes otherwise. `folder` is any of its folders; of another file system nothing becomes of it.
pub fn finish_removals(folder: &std::fs::File) {
    let mut all = FreeEofBlocks {
        version: 1,
        flags: 1,
        uid: 0,
        gid: 0,
        prid: 0,
        pad: 0,
        min_file_size: 0,
        pad64: [0; 12],
    };
    let _ = ioctl(folder, XFS_IOC_FREE_EOFBLOCKS, &mut all);
}

fn begin(file: &LiveFile, span: HostSpan) {
    let (Ok(start), Ok(len)) = (span.start().get().try_into(), span.len_bytes().try_into()) else { return };
    // SAFETY: the call has arguments by value; the descriptor is open as long as `file` is borrowed.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::sync_file_range(file.std_file().as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE)
    };
    // Where it is not known or does not help, nothing is lost.
    let _ = result;
}
