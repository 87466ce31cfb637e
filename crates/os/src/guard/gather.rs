//! Puts files together by the kernel's own calls, which exchange blocks under the file's lock: ext4 and XFS piece by piece, XFS whole files
//! where it cannot exchange ranges, Btrfs by writing the stretch anew. The file is held.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use block::Result;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fsync};

use super::room::{copy, would_lose_by_moving};
use super::{GuardedKind, HeldFile, xfs};
use crate::fiemap::{RawPiece, pieces};
use crate::ioctl::ioctl;
use extent::{Device, FileOffset, Span};

/// `_IOWR('f', 15, struct move_extent)` (`fs/ext4/ext4.h`).
const EXT4_IOC_MOVE_EXT: u32 = 0xc028_660f;
/// `_IOW(0x94, 16, struct btrfs_ioctl_defrag_range_args)`.
const BTRFS_IOC_DEFRAG_RANGE: u32 = 0x4030_9410;
/// `BTRFS_DEFRAG_RANGE_START_IO`.
const START_IO: u64 = 2;

/// As much is moved until it is asked whether that goes on: some tenths of a second on a disk that spins. On Btrfs, where each step finds its own
/// place, pieces of this length cost next to nothing.
const STEP_BYTES: u64 = 8 << 20;

/// What came of putting a stretch together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// It has fewer pieces.
    Yes,
    /// It stayed as it was.
    No,
    /// It was to stop before the end. What was moved until then lies where it is to be, unless only whole files can be moved.
    Stopped,
}

/// Is told how many bytes were moved since it was asked last. Whether work goes on.
pub type GoesOn<'a> = dyn FnMut(u64) -> bool + 'a;

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

/// So often a place for a piece is asked for.
const OFFERS_MAX: u32 = 12;

/// Room that is kept from the file system while it is to offer another place. The files have no names: the kernel frees it when this is dropped,
/// and when this process ends in whatever way.
#[derive(Debug, Default)]
pub struct KeptRoom {
    files: Vec<File>,
    bytes: u64,
}

impl KeptRoom {
    fn keep(&mut self, file: File, bytes: u64) {
        self.files.push(file);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Gives all of it back.
    pub fn let_go(&mut self) {
        self.files.clear();
        self.bytes = 0;
    }
}

fn lies_in(piece: &RawPiece, stretch: Span<Device>) -> bool {
    let start = stretch.start().get();
    piece.physical < stretch.end().get() && piece.physical.saturating_add(piece.len_bytes) > start
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

/// Whether a stretch has neither holes nor what is only reserved. How much storage the file has does not tell: some may lie past its end.
fn is_written_throughout(pieces: &[RawPiece], start: u64, end: u64) -> bool {
    let mut at = start;
    for piece in within(pieces, start, end) {
        if piece.logical > at || !piece.is_written {
            return false;
        }
        at = piece.logical.saturating_add(piece.len_bytes);
    }
    at >= end
}

/// Where the room begins on the device that a stretch of so many bytes would take beside a block of the file.
fn room_beside(pieces: &[RawPiece], neighbour: u64, block: u64, len: u64, beside_next: bool) -> Option<u64> {
    let piece = within(pieces, neighbour, neighbour + block).first().copied()?;
    let at = piece.physical.checked_add(neighbour.checked_sub(piece.logical)?)?;
    if beside_next { at.checked_sub(len) } else { at.checked_add(block) }
}

impl HeldFile {
    /// Where it lies. What waits in the page cache is written back first.
    pub fn pieces(&self) -> Result<Vec<RawPiece>> {
        let name = self.system.path.display().to_string();
        Ok(pieces(&self.file, &name)?.unwrap_or_default())
    }

    /// Puts a stretch together if that makes fewer pieces of it. Contents and times stay. After each step what was moved is written
    /// to the device, and it is asked whether that goes on.
    pub fn gather(&self, start: u64, len: u64, goes_on: &mut GoesOn<'_>) -> Result<Gathered> {
        let before = self.pieces()?;
        let end = start.saturating_add(len);
        if within(&before, start, end).iter().any(|piece| piece.is_shared) {
            return Ok(Gathered::No);
        }
        let done = match self.system.kind {
            GuardedKind::Ext4 => self.move_blocks(&before, start, end, goes_on),
            GuardedKind::Xfs if self.system.moves_whole_files => self.swap(&before, goes_on),
            GuardedKind::Xfs => self.exchange(&before, start, end, goes_on),
            GuardedKind::Btrfs => self.write_anew(start, end, goes_on),
        };
        match done.map_err(|error| self.error("put together", error))? {
            Gathered::Yes if count(&self.pieces()?) >= count(&before) => Ok(Gathered::No),
            done => Ok(done),
        }
    }

    fn donor(&self) -> io::Result<File> {
        let root = self.system.root().map_err(io::Error::other)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&root, ".", flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// A donor with room at the same places as this stretch; `None` if that would be no fewer pieces.
    fn better_donor(&self, before: &[RawPiece], start: u64, end: u64) -> io::Result<Option<File>> {
        let donor = self.donor()?;
        fallocate(&donor, FallocateFlags::empty(), start, end.saturating_sub(start))?;
        let room = pieces(&donor, "a donor").map_err(io::Error::other)?.unwrap_or_default();
        Ok((count(&room) < count(&within(before, start, end))).then_some(donor))
    }

    /// The file and a donor swap blocks.
    fn move_blocks(
        &self,
        before: &[RawPiece],
        start: u64,
        end: u64,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Gathered> {
        let block = self.file.metadata()?.blksize().max(1024);
        let (start, end) = (start / block * block, end.next_multiple_of(block));
        let Some(donor) = self.better_donor(before, start, end)? else { return Ok(Gathered::No) };
        self.move_to(&donor, start, end, block, goes_on)
    }

    fn move_to(
        &self,
        donor: &File,
        start: u64,
        end: u64,
        block: u64,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Gathered> {
        self.in_steps(start, end, goes_on, |at, next| {
            let moved = self.move_ext(donor, at, next - at, block)?;
            crate::write_out(&self.file);
            Ok(moved)
        })
    }

    /// Moves a piece to a place outside of a stretch of the device, where it is one piece again. Contents and times stay.
    pub fn move_out(
        &self,
        start: FileOffset,
        len: u64,
        stretch: Span<Device>,
        kept: &mut KeptRoom,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered> {
        let (start, end) = (start.get(), start.get().saturating_add(len));
        let done = self.move_out_in(start, end, stretch, kept, goes_on);
        match done.map_err(|error| self.error("move", error))? {
            Gathered::Yes
                if within(&self.pieces()?, start, end).iter().any(|piece| lies_in(piece, stretch)) =>
            {
                Ok(Gathered::No)
            }
            done => Ok(done),
        }
    }

    fn move_out_in(
        &self,
        start: u64,
        end: u64,
        stretch: Span<Device>,
        kept: &mut KeptRoom,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Gathered> {
        let found = self.file.metadata()?;
        let block = found.blksize().max(1024);
        let all = self.pieces().map_err(io::Error::other)?;
        let is_movable = |piece: &RawPiece| piece.is_plain && piece.is_written && !piece.is_shared;
        let is_known = start.is_multiple_of(block) && start < end.min(found.size());
        let moving = within(&all, start, end);
        if !is_known || count(&moving) != 1 || !moving.iter().all(is_movable) {
            return Ok(Gathered::No);
        }
        let on_ext4 = self.system.kind == GuardedKind::Ext4;
        // On XFS the end of the file bounds what is exchanged.
        let end = if on_ext4 { end.next_multiple_of(block) } else { end.min(found.size()) };
        let whole_only = self.system.moves_whole_files && (start > 0 || end < found.size());
        if self.system.kind == GuardedKind::Btrfs || whole_only {
            return Ok(Gathered::No);
        }
        let Some(donor) = self.donor_outside(start, end, stretch, kept)? else { return Ok(Gathered::No) };
        if on_ext4 {
            self.move_to(&donor, start, end, block, goes_on)
        } else if self.system.moves_whole_files {
            self.swap_with(&donor, &found, goes_on)
        } else {
            self.exchange_with(&donor, start, end, goes_on)
        }
    }

    /// A donor with room in one piece outside of a stretch. No file system takes a place that one names: what it offers within the stretch is kept, and
    /// more of it, until it offers another.
    fn donor_outside(
        &self,
        start: u64,
        end: u64,
        stretch: Span<Device>,
        kept: &mut KeptRoom,
    ) -> io::Result<Option<File>> {
        for tried in 0..OFFERS_MAX {
            let donor = self.donor()?;
            if fallocate(&donor, FallocateFlags::empty(), start, end - start).is_err() {
                return Ok(None);
            }
            let room = pieces(&donor, "a donor").map_err(io::Error::other)?.unwrap_or_default();
            let is_outside = !room.iter().any(|piece| lies_in(piece, stretch));
            if is_outside && count(&room) == 1 {
                return Ok(Some(donor));
            }
            kept.keep(donor, end - start);
            let more = ((end - start) << tried).min(stretch.len_bytes().saturating_sub(kept.bytes));
            if more == 0 {
                return Ok(None);
            }
            let filler = self.donor()?;
            if fallocate(&filler, FallocateFlags::empty(), 0, more).is_ok() {
                kept.keep(filler, more);
            }
        }
        Ok(None)
    }

    /// Puts a stretch right beside the piece that follows it in the file, or that is before it. ext4 alone: what a file gets next to a block
    /// that it has already is looked for right beside that block. So a donor gets the neighbouring block of the file first, then a copy of
    /// the stretch, and if that came to lie beside it, the two swap all of it.
    pub fn join(
        &self,
        start: u64,
        len: u64,
        beside_next: bool,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<Gathered> {
        let done = self.join_in(start, len, beside_next, goes_on);
        done.map_err(|error| self.error("put together", error))
    }

    fn join_in(
        &self,
        start: u64,
        len: u64,
        beside_next: bool,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Gathered> {
        let block = self.file.metadata()?.blksize().max(1024);
        let end = start.saturating_add(len).next_multiple_of(block);
        if self.system.kind != GuardedKind::Ext4 || !start.is_multiple_of(block) || start >= end {
            return Ok(Gathered::No);
        }
        let pieces_now = self.pieces().map_err(io::Error::other)?;
        let Some(neighbour) = (if beside_next { Some(end) } else { start.checked_sub(block) }) else {
            return Ok(Gathered::No);
        };
        let (from, to) = (start.min(neighbour), end.max(neighbour + block));
        let Some(room) = room_beside(&pieces_now, neighbour, block, end - start, beside_next) else {
            return Ok(Gathered::No);
        };
        let is_movable = |piece: &RawPiece| piece.is_plain && piece.is_written && !piece.is_shared;
        if !within(&pieces_now, from, to).iter().all(is_movable) || !self.is_free_now(room, end - start)? {
            return Ok(Gathered::No);
        }
        let donor = self.donor()?;
        fallocate(&donor, FallocateFlags::empty(), neighbour, block)?;
        if self.move_ext(&donor, neighbour, block, block)? != block {
            return Ok(Gathered::No);
        }
        let is_beside = self.copied_beside(&donor, start, end, (from, to));
        // In any case the file gets its block back, which is part of the stretch then.
        let (at, to_move) =
            if matches!(is_beside, Ok(true)) { (from, to - from) } else { (neighbour, block) };
        let mut moved = 0;
        while moved < to_move {
            match self.move_ext(&donor, at + moved, to_move - moved, block)? {
                0 => break,
                more => moved += more,
            }
        }
        crate::write_out(&self.file);
        goes_on(moved);
        Ok(if is_beside? && moved == to - from { Gathered::Yes } else { Gathered::No })
    }

    /// Whether a place is free, also if that takes a commit: until then ext4 gives nobody what was freed, such as room that just went back.
    fn is_free_now(&self, start: u64, len: u64) -> io::Result<bool> {
        if self.system.is_free(start, len)? {
            return Ok(true);
        }
        fsync(&self.file)?;
        self.system.is_free(start, len)
    }

    /// Copies the stretch to the same places of the donor. Whether it is in one piece with the block that the donor has.
    fn copied_beside(&self, donor: &File, start: u64, end: u64, all: (u64, u64)) -> io::Result<bool> {
        copy(&self.file, donor, start, end.min(self.file.metadata()?.size()))?;
        // It gets a place as it is written out, for which this waits. No commit is waited for: what is not committed has happened nowhere.
        let pieces = pieces(donor, "a donor").map_err(io::Error::other)?.unwrap_or_default();
        let has = pieces.iter().map(|piece| piece.len_bytes).sum::<u64>() >= all.1 - all.0;
        Ok(has && count(&pieces) == 1 && !self.is_wanted())
    }

    /// The file and the donor swap a stretch of the same place. How many bytes of it.
    fn move_ext(&self, donor: &File, start: u64, len: u64, block: u64) -> io::Result<u64> {
        let mut request = MoveExtent {
            reserved: 0,
            donor: u32::try_from(donor.as_raw_fd()).unwrap_or(u32::MAX),
            start: start / block,
            donor_start: start / block,
            len: len / block,
            moved: 0,
        };
        ioctl(&self.file, EXT4_IOC_MOVE_EXT, &mut request)?;
        Ok(request.moved.saturating_mul(block))
    }

    /// A donor gets a copy, then the two exchange ranges. What changed meanwhile the kernel refuses to exchange.
    fn exchange(
        &self,
        before: &[RawPiece],
        start: u64,
        end: u64,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Gathered> {
        let end = end.min(self.file.metadata()?.size());
        if !is_written_throughout(before, start, end) {
            return Ok(Gathered::No);
        }
        let Some(donor) = self.better_donor(before, start, end)? else { return Ok(Gathered::No) };
        self.exchange_with(&donor, start, end, goes_on)
    }

    fn exchange_with(
        &self,
        donor: &File,
        start: u64,
        end: u64,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Gathered> {
        self.in_steps(start, end, goes_on, |at, next| {
            let sampled = xfs::sample(&self.file)?;
            // With what it exchanges the kernel drops capabilities; what is set after this, the kernel sees as a change.
            if would_lose_by_moving(&self.file) {
                return Ok(0);
            }
            copy(&self.file, donor, at, next)?;
            crate::write_out(donor);
            sampled.exchange(&self.file, donor, at, next - at)?;
            Ok(next - at)
        })
    }

    /// Moves step by step: `one` moves from here to there, and says how many bytes it moved. What nobody else wants goes on.
    fn in_steps(
        &self,
        start: u64,
        end: u64,
        goes_on: &mut GoesOn<'_>,
        mut one: impl FnMut(u64, u64) -> io::Result<u64>,
    ) -> io::Result<Gathered> {
        let mut at = start;
        while at < end {
            let moved = one(at, end.min(at.saturating_add(STEP_BYTES)))?;
            at = at.saturating_add(moved);
            let goes_on = goes_on(moved) && !self.is_wanted();
            if at < end && (moved == 0 || !goes_on) {
                return Ok(if moved == 0 { Gathered::No } else { Gathered::Stopped });
            }
        }
        Ok(Gathered::Yes)
    }

    /// A donor gets a copy in one piece, then the two swap all blocks.
    fn swap(&self, before: &[RawPiece], goes_on: &mut GoesOn<'_>) -> io::Result<Gathered> {
        let found = self.file.metadata()?;
        // Holes would be filled, and what was only reserved would become zeros.
        if found.size() == 0 || !is_written_throughout(before, 0, found.size()) {
            return Ok(Gathered::No);
        }
        let Some(donor) = self.better_donor(before, 0, found.size())? else { return Ok(Gathered::No) };
        self.swap_with(&donor, &found, goes_on)
    }

    fn swap_with(
        &self,
        donor: &File,
        found: &std::fs::Metadata,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Gathered> {
        let copied = self.in_steps(0, found.size(), goes_on, |at, next| {
            copy(&self.file, donor, at, next)?;
            crate::write_out(donor);
            Ok(next - at)
        })?;
        if copied != Gathered::Yes {
            return Ok(copied);
        }
        fsync(donor)?;
        if self.is_wanted() {
            return Ok(Gathered::No);
        }
        let now = self.file.metadata()?;
        let times =
            |of: &std::fs::Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec(), of.size());
        if times(&now) != times(found) {
            return Ok(Gathered::No);
        }
        // Behind our back nothing is left in the cache of either.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        xfs::swap(&self.file, donor, found)?;
        Ok(Gathered::Yes)
    }

    fn write_anew(&self, start: u64, end: u64, goes_on: &mut GoesOn<'_>) -> io::Result<Gathered> {
        self.in_steps(start, end, goes_on, |at, next| {
            let mut request = DefragRange {
                start: at,
                len: next - at,
                flags: START_IO,
                // Pieces of any length.
                threshold: u32::MAX,
                compression: 0,
                unused: [0; 4],
            };
            ioctl(&self.file, BTRFS_IOC_DEFRAG_RANGE, &mut request)?;
            fsync(&self.file)?;
            Ok(next - at)
        })
    }
}
