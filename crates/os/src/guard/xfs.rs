//! What XFS has of its own (`fs/xfs/libxfs/xfs_fs.h`): descriptors that leave a file's times alone, and exchanging the blocks of two files.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;

use super::owned;
use crate::ioctl::ioctl;

/// A request with the size of its argument in it.
#[allow(clippy::cast_possible_truncation, reason = "the arguments here have less than 300 bytes")]
const fn sized<T>(request: u32) -> u32 {
    request | (size_of::<T>() as u32) << 16
}

/// `_IOWR('X', 106, struct xfs_fsop_handlereq)`.
const FD_TO_HANDLE: u32 = sized::<HandleRequest>(0xc000_586a);
/// `_IOWR('X', 107, struct xfs_fsop_handlereq)`.
const OPEN_BY_HANDLE: u32 = sized::<HandleRequest>(0xc000_586b);
/// `_IOWR('X', 109, struct xfs_swapext)`.
const SWAPEXT: u32 = sized::<Swap>(0xc000_586d);
/// `_IOR('X', 126, struct xfs_fsop_geom)`, of which the flags are at [`GEOMETRY_FLAGS_AT`].
const FSGEOMETRY: u32 = sized::<[u32; GEOMETRY_WORDS]>(0x8000_587e);
/// `_IOR('X', 130, struct xfs_commit_range)`.
const START_COMMIT: u32 = sized::<CommitRange>(0x8000_5882);
/// `_IOW('X', 131, struct xfs_commit_range)`.
const COMMIT_RANGE: u32 = sized::<CommitRange>(0x4000_5883);
/// `_IOR('X', 31, struct fsxattr)`, which is the same on all file systems.
const FSGETXATTR: u32 = 0x801c_581f;

/// `FS_XFLAG_REALTIME`.
const IS_REALTIME: u32 = 0x1;
/// `FS_XFLAG_PREALLOC`.
const IS_PREALLOCATED: u32 = 0x2;

/// `sizeof(struct xfs_fsop_geom)`, in words.
const GEOMETRY_WORDS: usize = 64;
const GEOMETRY_FLAGS_AT: usize = 92 / 4;
/// `XFS_FSOP_GEOM_FLAGS_EXCHANGE_RANGE`.
const HAS_EXCHANGE_RANGE: u32 = 1 << 24;

#[repr(C)]
struct HandleRequest {
    descriptor: u32,
    path: *mut u8,
    open_flags: u32,
    in_handle: *mut u8,
    in_bytes: u32,
    out_handle: *mut u8,
    out_bytes: *mut u32,
}

/// `struct xfs_bstat` in the first of its versions, of which the kernel compares the times.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bulk {
    ino: u64,
    mode: u16,
    nlink: u16,
    uid: u32,
    gid: u32,
    rdev: u32,
    blksize: i32,
    size: i64,
    atime: Time,
    mtime: Time,
    ctime: Time,
    blocks: i64,
    xflags: u32,
    extsize: i32,
    extents: i32,
    generation: u32,
    project_low: u16,
    fork_offset: u16,
    project_high: u16,
    sick: u16,
    checked: u16,
    pad: [u8; 2],
    cowextsize: u32,
    dm_mask: u32,
    dm_state: u16,
    attribute_extents: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Time {
    seconds: libc::c_long,
    nanoseconds: i32,
}

#[repr(C)]
struct Swap {
    version: i64,
    target: i64,
    donor: i64,
    offset: i64,
    length: i64,
    pad: [u8; 16],
    stat: Bulk,
}

/// `struct xfs_commit_range`: the called file is the second one.
#[repr(C)]
struct CommitRange {
    file1: i32,
    pad: u32,
    file1_offset: u64,
    file2_offset: u64,
    length: u64,
    flags: u64,
    /// The kernel's own, by which it knows whether the second file changed.
    file2_freshness: [u64; 6],
}

const _: () = assert!(size_of::<CommitRange>() == 88);
const _: () = assert!(offset_of!(CommitRange, file1_offset) == 8 && offset_of!(CommitRange, flags) == 32);
const _: () = assert!(offset_of!(CommitRange, file2_freshness) == 40);
const _: () =
    assert!(START_COMMIT == 0x8058_5882 && COMMIT_RANGE == 0x4058_5883 && FSGEOMETRY == 0x8100_587e);

/// Whether ranges of two files can be exchanged on this file system, in one transaction.
pub(super) fn exchanges_ranges(root: &File) -> bool {
    let mut geometry = [0_u32; GEOMETRY_WORDS];
    ioctl(root, FSGEOMETRY, &mut geometry).is_ok() && geometry[GEOMETRY_FLAGS_AT] & HAS_EXCHANGE_RANGE != 0
}

/// A file as it is at a moment, for [`Sampled::exchange`].
pub(super) struct Sampled(CommitRange);

/// What the file is like now.
pub(super) fn sample(target: &File) -> io::Result<Sampled> {
    let mut request = CommitRange {
        file1: 0,
        pad: 0,
        file1_offset: 0,
        file2_offset: 0,
        length: 0,
        flags: 0,
        file2_freshness: [0; 6],
    };
    ioctl(target, START_COMMIT, &mut request)?;
    Ok(Sampled(request))
}

impl Sampled {
    /// Exchanges the same range of the two, unless the file changed since: the kernel looks itself, under its locks.
    pub(super) fn exchange(mut self, target: &File, donor: &File, start: u64, len: u64) -> io::Result<()> {
        let request = &mut self.0;
        request.file1 = donor.as_raw_fd();
        (request.file1_offset, request.file2_offset, request.length) = (start, start, len);
        ioctl(target, COMMIT_RANGE, request).map(|_| ())
    }
}

/// Opens a file for reading and writing so that neither its times nor its change counter tell of what is done with it.
pub(super) fn open_unseen(root: &File, file: &File) -> io::Result<File> {
    let mut handle = [0_u8; 64];
    let mut len = 0_u32;
    let mut request = HandleRequest {
        descriptor: u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX),
        path: null_mut(),
        open_flags: 0,
        in_handle: null_mut(),
        in_bytes: 0,
        out_handle: handle.as_mut_ptr(),
        out_bytes: &raw mut len,
    };
    // The kernel writes a handle of 24 bytes, and its length.
    ioctl(file, FD_TO_HANDLE, &mut request)?;
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let mut request = HandleRequest {
        descriptor: 0,
        open_flags: u32::try_from(flags).unwrap_or(0),
        in_handle: handle.as_mut_ptr(),
        in_bytes: len,
        out_handle: null_mut(),
        out_bytes: null_mut(),
        ..request
    };
    owned(ioctl(root, OPEN_BY_HANDLE, &mut request)?)
}

fn flags(file: &File) -> Option<u32> {
    let mut answer = [0_u32; 7];
    ioctl(file, FSGETXATTR, &mut answer).ok().map(|_| answer[0])
}

/// Whether the file lies in the real-time section.
pub(super) fn is_special(file: &File) -> bool {
    flags(file).is_some_and(|flags| flags & IS_REALTIME != 0)
}

/// Whether somebody reserved room for the file, ever.
pub(super) fn is_preallocated(file: &File) -> bool {
    flags(file).is_none_or(|flags| flags & IS_PREALLOCATED != 0)
}

/// Swaps all blocks of two files of the same length, if the first is as `found` says.
pub(super) fn swap(target: &File, donor: &File, found: &std::fs::Metadata) -> io::Result<()> {
    let time = |seconds: i64, nanoseconds: i64| -> io::Result<Time> {
        let bad = || io::Error::other("a time that cannot be");
        Ok(Time {
            seconds: libc::c_long::try_from(seconds).map_err(|_| bad())?,
            nanoseconds: i32::try_from(nanoseconds).map_err(|_| bad())?,
        })
    };
    let size = i64::try_from(found.size()).map_err(|_| io::Error::other("a size that cannot be"))?;
    let stat = Bulk {
        ino: found.ino(),
        mode: 0,
        nlink: 0,
        uid: found.uid(),
        gid: found.gid(),
        rdev: 0,
        blksize: 0,
        size,
        atime: time(found.atime(), found.atime_nsec())?,
        mtime: time(found.mtime(), found.mtime_nsec())?,
        ctime: time(found.ctime(), found.ctime_nsec())?,
        blocks: 0,
        xflags: 0,
        extsize: 0,
        extents: 0,
        generation: 0,
        project_low: 0,
        fork_offset: 0,
        project_high: 0,
        sick: 0,
        checked: 0,
        pad: [0; 2],
        cowextsize: 0,
        dm_mask: 0,
        dm_state: 0,
        attribute_extents: 0,
    };
    let mut swap = Swap {
        version: 0,
        target: i64::from(target.as_raw_fd()),
        donor: i64::from(donor.as_raw_fd()),
        offset: 0,
        length: size,
        pad: [0; 16],
        stat,
    };
    ioctl(target, SWAPEXT, &mut swap).map(|_| ())
}
