//! Where a file lies on the device: the `FS_IOC_FIEMAP` ioctl (Linux, `Documentation/filesystems/fiemap.rst`;
//! structs and flags as in `include/uapi/linux/fiemap.h`).
//!
//! The kernel is asked to write back what the page cache holds of the file first (`FIEMAP_FLAG_SYNC`), as bytes that
//! wait there have no place yet. That changes nothing of what the file reads as.

use std::fs::File;

use block::{Error, HostExtent, Result};
use extent::{ExtentSet, Host, HostSpan, Offset, Span};
use rustix::io::Errno;

use crate::ioctl::ioctl;
use crate::raw_file::is_unsupported;

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;

const FLAG_SYNC: u32 = 0x1;

const LAST: u32 = 0x1;
/// Unknown place, not allocated yet, encoded (compressed or encrypted by the file system).
const WITHOUT_PLACE: u32 = 0x2 | 0x4 | 0x8;
/// Not aligned to blocks, in the inode, packed with others' tails.
const NOT_ITS_OWN: u32 = 0x100 | 0x200 | 0x400;
const UNWRITTEN: u32 = 0x800;

const EXTENTS_AT_ONCE: usize = 512;

/// More extents than this are not kept: 128 GiB in pieces of 4 KiB.
const EXTENTS_MAX: usize = 1 << 25;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS_AT_ONCE],
}

/// All extents of `file` in order; `None` if its file system does not tell.
pub(crate) fn extents(file: &File, name: &str) -> Result<Option<Vec<HostExtent>>> {
    let mut all: Vec<HostExtent> = Vec::new();
    // What waits in the page cache is written back by the first question.
    let told = ask_all(file, name, Span::from_zero(u64::MAX), FLAG_SYNC, |raw| {
        push(&mut all, raw);
        all.len() <= EXTENTS_MAX
    })?;
    if all.len() > EXTENTS_MAX {
        return Err(Error::unsupported(format!("a file in more than {EXTENTS_MAX} extents")).path(name));
    }
    Ok(told.then_some(all))
}

/// What was written, and is not only reserved; `None` if the file system does not tell. What waits in the page cache is written
/// back first.
pub(crate) fn stored(file: &File, name: &str) -> Result<Option<ExtentSet<Host>>> {
    let mut all = Vec::new();
    let told = ask_all(file, name, Span::from_zero(u64::MAX), FLAG_SYNC, |raw| {
        let is_written = raw.flags & UNWRITTEN == 0;
        all.extend(Span::checked(Offset::new(raw.logical), raw.length).filter(|_| is_written));
        all.len() <= EXTENTS_MAX
    })?;
    if all.len() > EXTENTS_MAX {
        return Err(Error::unsupported(format!("a file in more than {EXTENTS_MAX} extents")).path(name));
    }
    Ok(told.then(|| all.into_iter().collect()))
}

/// What of `window` has storage, or will have it once the page cache is written back; `None` if the file system does not
/// tell. Nothing is written back for the answer.
pub(crate) fn allocated(file: &File, name: &str, window: HostSpan) -> Result<Option<ExtentSet<Host>>> {
    let mut all = Vec::new();
    let told = ask_all(file, name, window, 0, |raw| {
        let span = Span::checked(Offset::new(raw.logical), raw.length);
        all.extend(span.and_then(|span| span.intersect(&window)));
        true
    })?;
    Ok(told.then(|| all.into_iter().collect()))
}

/// Whether some of `window` was reserved and not written. Nothing is written back for the answer, and what a write has on its way does not
/// count.
pub(crate) fn has_reserved(file: &File, name: &str, window: HostSpan) -> Result<bool> {
    let mut found = false;
    ask_all(file, name, window, 0, |raw| {
        found |= raw.flags & UNWRITTEN != 0 && raw.flags & WITHOUT_PLACE == 0;
        !found
    })?;
    Ok(found)
}

/// A piece of a file as the file system tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawPiece {
    /// Where in the file.
    pub logical: u64,
    /// Where on the device.
    pub physical: u64,
    /// How long.
    pub len_bytes: u64,
    /// Another file or a snapshot has it as well.
    pub is_shared: bool,
    /// It has a place of its own, and is neither encoded nor in the inode.
    pub is_plain: bool,
    /// It is not only reserved.
    pub is_written: bool,
}

const SHARED: u32 = 0x2000;

/// All pieces of a file in order; `None` if its file system does not tell. What waits in the page cache is written back first.
pub(crate) fn pieces(file: &File, name: &str) -> Result<Option<Vec<RawPiece>>> {
    pieces_with(file, name, FLAG_SYNC)
}

/// The same without writing anything back: what waits has no place yet.
pub(crate) fn pieces_now(file: &File, name: &str) -> Result<Option<Vec<RawPiece>>> {
    pieces_with(file, name, 0)
}

fn pieces_with(file: &File, name: &str, flags: u32) -> Result<Option<Vec<RawPiece>>> {
    let mut all = Vec::new();
    let told = ask_all(file, name, Span::from_zero(u64::MAX), flags, |raw| {
        all.push(RawPiece {
            logical: raw.logical,
            physical: raw.physical,
            len_bytes: raw.length,
            is_shared: raw.flags & SHARED != 0,
            is_plain: raw.flags & (WITHOUT_PLACE | NOT_ITS_OWN) == 0,
            is_written: raw.flags & UNWRITTEN == 0,
        });
        all.len() <= EXTENTS_MAX
    })?;
    Ok(told.then_some(all))
}

/// Hands every extent of `window` to `take` until that says `false`. `false` if the file system does not tell.
fn ask_all(
    file: &File,
    name: &str,
    window: HostSpan,
    flags: u32,
    mut take: impl FnMut(&RawExtent) -> bool,
) -> Result<bool> {
    let mut start = window.start().get();
    let end = window.end().get();
    while start < end {
        let is_first = start == window.start().get();
        let Some(request) = ask(file, name, start, end - start, if is_first { flags } else { 0 })? else {
            // Only the first answer tells that there is none.
            return if is_first {
                Ok(false)
            } else {
                Err(Error::io("ask for the extents of", lost()).path(name))
            };
        };
        let count = (request.mapped_extents as usize).min(EXTENTS_AT_ONCE);
        let Some(last) = request.extents[..count].last() else { break };
        for raw in &request.extents[..count] {
            if !take(raw) {
                return Ok(true);
            }
        }
        let next = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || next <= start {
            break;
        }
        start = next;
    }
    Ok(true)
}

fn lost() -> std::io::Error {
    std::io::Error::other("the file system ceased to tell")
}

/// One question; `None` if the file system does not answer it.
fn ask(file: &File, name: &str, start: u64, length: u64, flags: u32) -> Result<Option<Box<Request>>> {
    let mut request = Box::new(Request {
        start,
        length,
        flags,
        mapped_extents: 0,
        extent_count: u32::try_from(EXTENTS_AT_ONCE).expect("a small number"),
        reserved: 0,
        extents: [RawExtent {
            logical: 0,
            physical: 0,
            length: 0,
            reserved64: [0; 2],
            flags: 0,
            reserved: [0; 3],
        }; EXTENTS_AT_ONCE],
    });
    // The kernel reads the head and writes it and at most `extent_count` extents behind it, all of which lie in the box.
    let Err(error) = ioctl(file, FS_IOC_FIEMAP, &mut *request) else { return Ok(Some(request)) };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(errno) if is_unsupported(errno) || errno == Errno::NOTTY => Ok(None),
        _ => Err(Error::io("ask for the extents of", error).path(name)),
    }
}

fn push(all: &mut Vec<HostExtent>, raw: &RawExtent) {
    if raw.flags & (WITHOUT_PLACE | NOT_ITS_OWN) != 0 || raw.length == 0 {
        return;
    }
    let (Some(span), true) =
        (Span::checked(Offset::new(raw.logical), raw.length), raw.physical.checked_add(raw.length).is_some())
    else {
        return;
    };
    all.push(HostExtent { span, device: Offset::new(raw.physical), is_written: raw.flags & UNWRITTEN == 0 });
}

/// The `f_type` of statfs(2).
pub(crate) fn filesystem_magic(file: &File) -> Option<u64> {
    Some(u64::try_from(rustix::fs::fstatfs(file).ok()?.f_type).ok()? & 0xffff_ffff)
}

/// The names of the file systems that images commonly lie on.
pub(crate) fn filesystem_name(file: &File) -> Option<String> {
    let name = match filesystem_magic(file)? {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794c_7630 => "overlayfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0xff53_4d42 | 0xfe53_4d42 => "cifs",
        0xca45_1a4e => "bcachefs",
        0x4d44 => "vfat",
        0x2011_bab0 => "exfat",
        0x5346_544e | 0x7366_746e => "ntfs",
        0x00c3_6400 => "ceph",
        0x0116_1970 => "gfs2",
        other => return Some(format!("{other:#x}")),
    };
    Some(name.to_owned())
}
