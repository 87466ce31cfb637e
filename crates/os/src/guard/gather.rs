//! Puts files together by the kernel's own calls, which swap blocks under the file's lock: ext4 piece by piece, XFS whole files, Btrfs by
//! writing the stretch anew. The file is held.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use block::Result;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fsync};

use super::room::copy;
use super::{GuardedKind, HeldFile, xfs};
use crate::fiemap::{RawPiece, pieces};
use crate::ioctl::ioctl;

/// `_IOWR('f', 15, struct move_extent)` (`fs/ext4/ext4.h`).
const EXT4_IOC_MOVE_EXT: u32 = 0xc028_660f;
/// `_IOW(0x94, 16, struct btrfs_ioctl_defrag_range_args)`.
const BTRFS_IOC_DEFRAG_RANGE: u32 = 0x4030_9410;
/// `BTRFS_DEFRAG_RANGE_START_IO`.
const START_IO: u64 = 2;

#[repr(C)]
struct MoveExtent {
    reserved: u32,
    donor: u32,
    start: u64,
    donor_start: u64,
    len: u64,
    moved: u64,
}

#[repr(C)]
struct DefragRange {
    start: u64,
    len: u64,
    flags: u64,
    threshold: u32,
    compression: u32,
    unused: [u32; 4],
}

/// How many places on the device.
fn count(pieces: &[RawPiece]) -> usize {
    let joined = pieces
        .windows(2)
        .filter(|pair| pair[0].physical.checked_add(pair[0].len_bytes) == Some(pair[1].physical));
    pieces.len() - joined.count()
}

fn within(pieces: &[RawPiece], start: u64, end: u64) -> Vec<RawPiece> {
    pieces
        .iter()
        .filter(|piece| piece.logical < end && piece.logical.saturating_add(piece.len_bytes) > start)
        .copied()
        .collect()
}

impl HeldFile {
    /// Where it lies. What waits in the page cache is written back first.
    pub fn pieces(&self) -> Result<Vec<RawPiece>> {
        let name = self.system.path.display().to_string();
        Ok(pieces(&self.file, &name)?.unwrap_or_default())
    }

    /// Puts a stretch together if that makes fewer pieces of it; whether it did. Contents and times stay.
    pub fn gather(&self, start: u64, len: u64) -> Result<bool> {
        let before = self.pieces()?;
        if before.iter().any(|piece| {
            piece.is_shared
                && piece.logical < start.saturating_add(len)
                && piece.logical.saturating_add(piece.len_bytes) > start
        }) {
            return Ok(false);
        }
        let end = start.saturating_add(len);
        let done = match self.system.kind {
            GuardedKind::Ext4 => self.move_blocks(&before, start, end),
            GuardedKind::Xfs => self.swap(&before),
            GuardedKind::Btrfs => self.write_anew(start, len),
        };
        let is_done = done.map_err(|error| self.error("put together", error))?;
        Ok(is_done && count(&self.pieces()?) < count(&before))
    }

    fn donor(&self) -> io::Result<File> {
        let root = self.system.root().map_err(io::Error::other)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&root, ".", flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// A donor gets room at the same places, then the two swap blocks.
    fn move_blocks(&self, before: &[RawPiece], start: u64, end: u64) -> io::Result<bool> {
        let block = self.file.metadata()?.blksize().max(1024);
        let donor = self.donor()?;
        let (start, end) = (start / block * block, end.next_multiple_of(block));
        fallocate(&donor, FallocateFlags::empty(), start, end - start)?;
        let room = pieces(&donor, "a donor").map_err(io::Error::other)?.unwrap_or_default();
        if count(&room) >= count(&within(before, start, end)) {
            return Ok(false);
        }
        let mut at = start;
        while at < end {
            let mut request = MoveExtent {
                reserved: 0,
                donor: u32::try_from(donor.as_raw_fd()).unwrap_or(u32::MAX),
                start: at / block,
                donor_start: at / block,
                len: (end - at) / block,
                moved: 0,
            };
            ioctl(&self.file, EXT4_IOC_MOVE_EXT, &mut request)?;
            if request.moved == 0 {
                break;
            }
            at = at.saturating_add(request.moved.saturating_mul(block));
        }
        Ok(true)
    }

    /// A donor gets a copy in one piece, then the two swap all blocks.
    fn swap(&self, before: &[RawPiece]) -> io::Result<bool> {
        let found = self.file.metadata()?;
        let size = found.size();
        // Holes would be filled.
        if found.blocks().saturating_mul(512) < size || size == 0 {
            return Ok(false);
        }
        let donor = self.donor()?;
        fallocate(&donor, FallocateFlags::empty(), 0, size)?;
        let room = pieces(&donor, "a donor").map_err(io::Error::other)?.unwrap_or_default();
        if count(&room) >= count(before) {
            return Ok(false);
        }
        let mut at = 0;
        while at < size {
            let next = size.min(at + (16 << 20));
            copy(&self.file, &donor, at, next)?;
            if self.is_wanted() {
                return Ok(false);
            }
            at = next;
        }
        fsync(&donor)?;
        if self.is_wanted() {
            return Ok(false);
        }
        let now = self.file.metadata()?;
        let times =
            |of: &std::fs::Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec(), of.size());
        if times(&now) != times(&found) {
            return Ok(false);
        }
        // Behind our back nothing is left in the cache of either.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        xfs::swap(&self.file, &donor, &found)?;
        Ok(true)
    }

    fn write_anew(&self, start: u64, len: u64) -> io::Result<bool> {
        let mut request = DefragRange {
            start,
            len,
            flags: START_IO,
            // Pieces of any length.
            threshold: u32::MAX,
            compression: 0,
            unused: [0; 4],
        };
        ioctl(&self.file, BTRFS_IOC_DEFRAG_RANGE, &mut request)?;
        fsync(&self.file)?;
        Ok(true)
    }
}
