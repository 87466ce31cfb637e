//! Storage that two files share: the `FICLONERANGE` ioctl (ioctl_ficlonerange(2); struct and number as in Linux, `include/uapi/linux/fs.h`).
//!
//! What is asked for depends on the file system alone, so it is tried: with a file that has no name, and one block of the source.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

use block::HOST_BLOCK_BYTES;
use extent::{HostSpan, Span};
use rustix::io::Errno;

use crate::ioctl::ioctl;
use crate::raw_file::is_unsupported;
use crate::target_options::Cloning;

/// `_IOW(0x94, 13, struct file_clone_range)`.
const FICLONERANGE: u32 = 0x4020_940d;

/// The largest blocks that are cloned: larger ones than any file system on Linux has.
const BLOCK_BYTES_MAX: u64 = 1 << 20;

/// `struct file_clone_range`.
#[repr(C)]
struct Request {
    source: i64,
    source_offset: u64,
    source_length: u64,
    target_offset: u64,
}

/// Has `span` of `target` share the storage of the same span of `source`. `false` if their file system does not do that.
pub(crate) fn clone_range(target: &File, source: BorrowedFd<'_>, span: HostSpan) -> Result<bool, Errno> {
    // A length of zero would mean all that follows.
    if span.is_empty() {
        return Ok(true);
    }
    match ask(target, source, span) {
        Ok(()) => Ok(true),
        Err(error) if is_impossible(error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the first block of `source` can be cloned into `empty`, a file of the target's folder.
pub(crate) fn try_cloning(empty: &File, source: BorrowedFd<'_>) -> Result<Cloning, Errno> {
    // No less than what a raw target tells data from holes by.
    let block_bytes = rustix::fs::fstatvfs(empty)?.f_bsize.max(HOST_BLOCK_BYTES);
    if !block_bytes.is_power_of_two() || block_bytes > BLOCK_BYTES_MAX {
        return Ok(Cloning::no(&format!("the target's file system has blocks of {block_bytes} bytes")));
    }
    let Err(error) = ask(empty, source, Span::from_zero(block_bytes)) else {
        return Ok(Cloning::Blocks { block_bytes });
    };
    let name = || crate::fiemap::filesystem_name(empty).unwrap_or_else(|| "this file system".into());
    Ok(Cloning::no(&match error {
        Errno::XDEV => "the target is on another file system than the source".into(),
        Errno::INVAL => format!(
            "{} does not share these files' storage: their attributes differ (chattr +C), or there is no whole block",
            name()
        ),
        error if is_impossible(error) => {
            format!("{} does not share storage between files, as it is made or mounted here", name())
        }
        error => format!("{} failed to share storage: {error}", name()),
    }))
}

/// Whether the file system cannot do it with these files, as opposed to failing in it. Swap files are busy; other files are another
/// process's.
fn is_impossible(error: Errno) -> bool {
    is_unsupported(error) || [Errno::XDEV, Errno::TXTBSY, Errno::PERM, Errno::NOTTY].contains(&error)
}

fn ask(target: &File, source: BorrowedFd<'_>, span: HostSpan) -> Result<(), Errno> {
    let mut request = Request {
        source: i64::from(source.as_raw_fd()),
        source_offset: span.start().get(),
        source_length: span.len_bytes(),
        target_offset: span.start().get(),
    };
    loop {
        // The source's descriptor in the request is open as long as `source` is borrowed.
        let Err(error) = ioctl(target, FICLONERANGE, &mut request) else { return Ok(()) };
        let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        if errno != Errno::INTR {
            return Err(errno);
        }
    }
}
