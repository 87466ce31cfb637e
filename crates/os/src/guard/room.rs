//! What a file is like, and room past its end.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use block::{Error, Result};
use extent::{Offset, Span};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{GuardedKind, GuardedSystem, Handle, xfs};
use crate::fiemap;
use crate::ioctl::ioctl;

/// A file as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileFacts {
    /// Where it ends.
    pub size_bytes: u64,
    /// Storage that it has.
    pub allocated_bytes: u64,
    /// When it was modified: seconds since 1970, and nanoseconds of them.
    pub modified: (i64, u32),
}

/// Why a file is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftAlone {
    /// Not a regular file with a name.
    NoFile,
    /// Set-id bits or file capabilities.
    SetId,
    /// It is a program that may be run.
    Executable,
    /// Its attributes.
    Attributes,
    /// Swap space.
    Swap,
    /// Somebody else reserved room past its end.
    OwnLayout,
}

/// What came of reserving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Reserved; as the file was just before and just after.
    Reserved(FileFacts, FileFacts),
    /// Left alone.
    Not(LeftAlone),
    /// No room, not possible here, or the file is to be left alone since then. Part of it may have been reserved.
    NoRoom,
}

impl FileFacts {
    /// Of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            size_bytes: found.size(),
            allocated_bytes: found.blocks().saturating_mul(512),
            modified: (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap_or(0)),
        })
    }
}

/// `_IOR('f', 1, long)`.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
/// `FS_COMPR_FL`, `FS_IMMUTABLE_FL`, `FS_APPEND_FL`, `FS_ENCRYPT_FL`, `FS_VERITY_FL`, `FS_DAX_FL`, data in the inode.
const FORBIDDEN_FLAGS: u64 = 0x4 | 0x10 | 0x20 | 0x800 | 0x10_0000 | 0x200_0000 | 0x1000_0000;

/// Of how many bytes at a time room is asked for on Btrfs at least: a call's room is free for others again only once none of it is used.
const BTRFS_CALL_BYTES_MIN: u64 = 256 << 10;
/// More than this in one call Btrfs puts into other block groups than less (`btrfs_calc_block_group_size_class`, fs/btrfs/block-group.c), thus not
/// beside what the file has.
const BTRFS_CALL_BYTES_MAX: u64 = 8 << 20;
/// A call takes one part of so many of what the file has by then.
const BTRFS_CALL_SHARE: u64 = 8;

/// `FS_IMMUTABLE_FL`, `FS_APPEND_FL`, `FS_VERITY_FL`: such a file cannot be cut either.
const UNCUTTABLE_FLAGS: u64 = 0x10 | 0x20 | 0x10_0000;

const BLOCK_BYTES: u64 = 4096;
/// Blocks are at most this large: room begins at a multiple.
const ALIGN_BYTES: u64 = 65536;

/// What is to happen to a file's room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Reserve,
    GiveBack,
}

/// Whether a file is to be left alone, and why.
pub(super) fn left_alone(file: &File) -> Result<Option<LeftAlone>> {
    why_not(file, Wish::Reserve)
}

/// Whether room may not even go back of a file, and why. A file may have become a program since the room was reserved, as all do that a linker
/// or a package manager writes, or set-id, whose bits one with `CAP_FSETID` does not strip.
pub(super) fn uncuttable(file: &File) -> Result<Option<LeftAlone>> {
    why_not(file, Wish::GiveBack)
}

/// Whether freeing room of a file, or exchanging it, would take something from it by now.
pub(super) fn would_lose_by_moving(file: &File) -> bool {
    would_lose(file, Wish::GiveBack).is_some()
}

/// Whether a file has what the kernel takes from it when its room changes (capabilities; set-id bits, without `CAP_FSETID`), or is about to get
/// it: that comes last, once it may be run. Asked right before such a call, too: what was asked before may be long ago on a busy machine.
fn would_lose(file: &File, wish: Wish) -> Option<LeftAlone> {
    let Ok(found) = file.metadata() else { return Some(LeftAlone::NoFile) };
    let is_asked = wish == Wish::Reserve;
    if found.mode() & 0o6000 != 0 && (is_asked || !keeps_set_id()) || has_capabilities(file) {
        return Some(LeftAlone::SetId);
    }
    (is_asked && found.mode() & 0o111 != 0 && begins_as_program(file)).then_some(LeftAlone::Executable)
}

fn why_not(file: &File, wish: Wish) -> Result<Option<LeftAlone>> {
    let Ok(found) = file.metadata() else { return Ok(Some(LeftAlone::NoFile)) };
    let is_asked = wish == Wish::Reserve;
    let forbidden_flags = if is_asked { FORBIDDEN_FLAGS } else { UNCUTTABLE_FLAGS };
    let mut flags = 0_u64;
    let left = if !found.is_file() || found.nlink() == 0 {
        LeftAlone::NoFile
    } else if let Some(left) = would_lose(file, wish) {
        left
    } else if ioctl(file, FS_IOC_GETFLAGS, &mut flags).is_err()
        || flags & forbidden_flags != 0
        || is_asked && xfs::is_special(file)
    {
        LeftAlone::Attributes
    } else if is_swap(&found) {
        LeftAlone::Swap
    } else {
        return Ok(None);
    };
    Ok(Some(left))
}

fn has_capabilities(file: &File) -> bool {
    let mut none: [u8; 0] = [];
    let found = rustix::fs::fgetxattr(file, "security.capability", &mut none);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// Whether this process has `CAP_FSETID` (capabilities(7)), with which cutting a file leaves its set-id bits.
fn keeps_set_id() -> bool {
    const FSETID: u32 = 4;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> FSETID & 1 == 1)
}

/// ELF, a script, or what Windows runs; what is empty may become one.
fn begins_as_program(file: &File) -> bool {
    let mut head = [0; 4];
    let len = file.read_at(&mut head, 0).unwrap_or(0);
    let head = &head[..len];
    len < 2 || head.starts_with(b"\x7fELF") || head.starts_with(b"#!") || head.starts_with(b"MZ")
}

fn is_swap(found: &std::fs::Metadata) -> bool {
    let text = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_it = |line: &str| {
        let path = line.split(' ').next().unwrap_or_default();
        std::fs::metadata(path).is_ok_and(|swap| (swap.dev(), swap.ino()) == (found.dev(), found.ino()))
    };
    text.lines().skip(1).any(is_it)
}

/// Whether a file has storage at `from` or behind it.
pub(super) fn has_storage_from(file: &File, from: u64) -> Result<bool> {
    let Some(window) = Span::checked(Offset::new(from), u64::MAX - from) else { return Ok(false) };
    Ok(fiemap::allocated(file, "a guarded file", window)?.is_none_or(|found| !found.is_empty()))
}

/// Whether somebody reserved storage within `start..end`. What a write has on its way there does not count.
fn has_reserved_within(file: &File, start: u64, end: u64) -> Result<bool> {
    let window = Span::between(Offset::new(start), Offset::new(end));
    fiemap::has_reserved(file, "a guarded file", window)
}

impl GuardedSystem {
    /// Why no room may be reserved of a file from `from` on; `None`: it may.
    pub fn refuses(&self, handle: &Handle, from: u64) -> Result<Option<LeftAlone>> {
        let Some(file) = self.open_read(handle)? else { return Ok(Some(LeftAlone::NoFile)) };
        if let Some(left) = left_alone(&file)? {
            return Ok(Some(left));
        }
        let free = self.free_from(&file, from).map_err(|error| self.error("look at a file of", error))?;
        Ok(free.is_none().then_some(LeftAlone::OwnLayout))
    }

    /// Reserves room past the end of a file, up to `to`: from where it ends, or from `from` if that is later. Length and contents stay.
    /// A file that has room already is left alone.
    pub fn reserve(&self, handle: &Handle, from: u64, to: u64) -> Result<Outcome> {
        let Some(file) = self.open_read(handle)? else { return Ok(Outcome::Not(LeftAlone::NoFile)) };
        if let Some(left) = left_alone(&file)? {
            return Ok(Outcome::Not(left));
        }
        let fail = |error| self.error("reserve room on", error);
        let Some(from) = self.free_from(&file, from).map_err(fail)? else {
            return Ok(Outcome::Not(LeftAlone::OwnLayout));
        };
        if from >= to {
            return Ok(Outcome::NoRoom);
        }
        let Ok(writer) = self.open_write(&file)? else { return Ok(Outcome::NoRoom) };
        let before = FileFacts::of(&file).map_err(fail)?;
        let mut call = |at, len| fallocate(&writer, FallocateFlags::KEEP_SIZE, at, len).is_ok();
        if let Some(outcome) = self.reserve_between(&writer, from, to, &mut call) {
            return Ok(outcome);
        }
        drop(writer);
        Ok(Outcome::Reserved(before, FileFacts::of(&file).map_err(fail)?))
    }

    /// `None` if all of it is reserved, from where the file ends by then. On Btrfs in many calls: each may be one too many for a file that changes
    /// meanwhile.
    fn reserve_between(
        &self,
        file: &File,
        from: u64,
        to: u64,
        call: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<Outcome> {
        let mut at = from;
        let mut has_reserved = false;
        while at < to {
            if let Some(left) = would_lose(file, Wish::Reserve) {
                return Some(if has_reserved { Outcome::NoRoom } else { Outcome::Not(left) });
            }
            // Finding out what it has may have taken long. A hole that its writer makes before where it ends now is to stay one.
            let Ok(facts) = FileFacts::of(file) else { return Some(Outcome::NoRoom) };
            at = at.max(facts.size_bytes.next_multiple_of(BLOCK_BYTES));
            let len = self.call_bytes(at).min(to.saturating_sub(at));
            if len == 0 {
                break;
            }
            if !call(at, len) {
                return Some(Outcome::NoRoom);
            }
            has_reserved = true;
            at += len;
        }
        (!has_reserved).then_some(Outcome::NoRoom)
    }

    /// Where room may begin; `None` where there is some already. It may be written meanwhile.
    fn free_from(&self, file: &File, from: u64) -> io::Result<Option<u64>> {
        // What XFS finds ahead of its own accord it takes back of its own accord.
        let is_own = self.kind == GuardedKind::Xfs && !xfs::is_preallocated(file);
        loop {
            let size = FileFacts::of(file)?.size_bytes;
            let start = from.max(size.next_multiple_of(BLOCK_BYTES));
            let aligned = start.next_multiple_of(ALIGN_BYTES);
            // Before that there may be a write on its way, and what somebody reserved all the same.
            let is_free = || {
                Ok::<_, Error>(
                    !has_storage_from(file, aligned)? && !has_reserved_within(file, start, aligned)?,
                )
            };
            if is_own || is_free().map_err(io::Error::other)? {
                return Ok(Some(start));
            }
            if FileFacts::of(file)?.size_bytes == size {
                return Ok(None);
            }
        }
    }

    fn call_bytes(&self, at: u64) -> u64 {
        match self.kind {
            GuardedKind::Btrfs => {
                (at / BTRFS_CALL_SHARE).next_power_of_two().clamp(BTRFS_CALL_BYTES_MIN, BTRFS_CALL_BYTES_MAX)
            }
            GuardedKind::Ext4 | GuardedKind::Xfs => u64::MAX,
        }
    }
}

/// Copies what a file has of `start..end` to the same places of another.
pub(super) fn copy(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        let want = usize::try_from((end - at).min(1 << 20)).unwrap_or(buffer.len());
        let got = from.read_at(&mut buffer[..want], at)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all_at(&buffer[..got], at)?;
        at += got as u64;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use rustix::fs::{XattrFlags, setxattr};

    /// Of `cap_net_raw`, version 2 (capabilities(7)).
    pub(in crate::guard) const CAPABILITIES: [u8; 20] =
        [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// Whether a file has capabilities.
    pub(in crate::guard) fn has(file: &File) -> bool {
        has_capabilities(file)
    }

    /// As Btrfs is asked for room, wherever the file lies.
    fn system(folder: &Path) -> GuardedSystem {
        let kind = GuardedKind::Btrfs;
        GuardedSystem { path: folder.to_owned(), kind, uuid: [0; 16], moves_whole_files: false, device: 0 }
    }

    #[test]
    fn nothing_is_reserved_before_where_a_file_ends_by_then() {
        let file = tempfile::tempfile_in(testkit::scratch().path()).unwrap();
        let system = system(Path::new("/"));
        let reserve = |to: u64| {
            let mut asked = Vec::new();
            let mut call = |at, len| {
                asked.push((at, len));
                // Its writer goes on.
                file.set_len(at + len + 1).unwrap();
                true
            };
            let outcome = system.reserve_between(&file, 0, to, &mut call);
            (outcome, asked)
        };
        let (outcome, asked) = reserve(4 << 20);
        assert_eq!(outcome, None);
        assert!(asked.len() > 1, "{asked:?}");
        for (before, after) in asked.iter().zip(&asked[1..]) {
            assert_eq!(after.0, before.0 + before.1 + BLOCK_BYTES);
        }
        assert_eq!(reserve(2 << 20), (Some(Outcome::NoRoom), vec![]));
    }

    #[test]
    fn what_is_asked_for_in_many_calls_lies_in_one_piece() {
        let host = testkit::HostMount::new("btrfs", 4 << 30);
        // The first block group for data that mkfs.btrfs makes has 8 MiB.
        let other = File::create_new(host.path().join("other")).unwrap();
        fallocate(&other, FallocateFlags::KEEP_SIZE, 0, 8 << 20).unwrap();
        let file = File::create_new(host.path().join("file")).unwrap();
        let mut lens = Vec::new();
        let mut call = |at, len| {
            lens.push(len);
            fallocate(&file, FallocateFlags::KEEP_SIZE, at, len).is_ok()
        };
        let (first, end) = (65536, 200 << 20);
        assert_eq!(system(host.path()).reserve_between(&file, first, end, &mut call), None);
        assert!(lens.first() < lens.last() && lens.iter().sum::<u64>() == end - first, "{lens:?}");
        let pieces = fiemap::pieces(&file, "file").unwrap().unwrap();
        assert_eq!(pieces.first().unwrap().logical, first);
        for (before, after) in pieces.iter().zip(&pieces[1..]) {
            assert_eq!(before.logical + before.len_bytes, after.logical);
            assert_eq!(before.physical + before.len_bytes, after.physical, "{pieces:?}");
        }
    }

    #[test]
    fn what_becomes_a_program_with_capabilities_meanwhile_keeps_them() {
        let folder = testkit::scratch();
        for becomes_program in [false, true] {
            let path = folder.path().join("file");
            std::fs::write(&path, b"\x7fELF").unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let mut calls = 0;
            let mut call = |at, len| {
                calls += 1;
                fallocate(&file, FallocateFlags::KEEP_SIZE, at, len).unwrap();
                if becomes_program {
                    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
                    setxattr(&path, "security.capability", &CAPABILITIES, XattrFlags::empty()).unwrap();
                }
                true
            };
            let outcome = system(folder.path()).reserve_between(&file, 4096, 1 << 20, &mut call);
            if !becomes_program {
                assert_eq!(outcome, None);
                assert!(calls > 1, "room of Btrfs is asked for in parts: {calls}");
                continue;
            }
            assert_eq!((outcome, calls), (Some(Outcome::NoRoom), 1));
            assert!(has_capabilities(&file));
            // A call more would have taken them.
            fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 4096).unwrap();
            assert!(!has_capabilities(&file));
        }
    }
}
