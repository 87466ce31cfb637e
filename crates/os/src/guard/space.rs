//! What is free on a file system, as it tells itself (`FS_IOC_GETFSMAP`, ioctl_getfsmap(2)): ext4 and XFS. Nothing is promised: it may be
//! taken a moment later.

use std::io;

use block::Result;
use extent::{Device, DeviceOffset, Offset, Span};
use rustix::io::Errno;

use super::{GuardedKind, GuardedSystem};
use crate::ioctl::ioctl;

/// `_IOWR('X', 59, struct fsmap_head)` (`include/uapi/linux/fsmap.h`).
const FS_IOC_GETFSMAP: u32 = 0xc0c0_583b;
/// `FMR_OF_SPECIAL_OWNER`: the owner is no file.
const SPECIAL_OWNER: u32 = 0x10;
/// `FMR_OWN_FREE`, `FMR_OWNER(0, 1)`, which ext4 and XFS share.
const OWN_FREE: u64 = 1;
/// `FMR_OWN_UNKNOWN`, `FMR_OWNER(0, 2)`: a file or a table, without reverse mapping.
const OWN_UNKNOWN: u64 = 2;
/// `FMR_OF_PREALLOC`, `FMR_OF_ATTR_FORK`, `FMR_OF_EXTENT_MAP`, `FMR_OF_SHARED`: of what has a file as its owner, what is not its contents alone.
const NOT_CONTENTS: u32 = 0x1 | 0x2 | 0x4 | 0x8;
/// So much of the device is asked for at a time: for each group of blocks a bitmap may have to be read.
const ASK_BYTES: u64 = 16 << 30;
/// Records that are asked for at a time.
const RECORDS: usize = 256;

/// `struct fsmap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Record {
    device: u32,
    flags: u32,
    physical: u64,
    owner: u64,
    offset: u64,
    length: u64,
    reserved: [u64; 3],
}

/// `struct fsmap_head`, with the records behind it.
#[repr(C)]
struct Request {
    in_flags: u32,
    out_flags: u32,
    count: u32,
    entries: u32,
    reserved: [u64; 6],
    low: Record,
    high: Record,
    records: [Record; RECORDS],
}

const _: () = assert!(size_of::<Record>() == 64);
const _: () = assert!(std::mem::offset_of!(Request, records) == 0xc0);

impl Record {
    fn is_free(&self) -> bool {
        self.flags & SPECIAL_OWNER != 0 && self.owner == OWN_FREE
    }

    fn space_use(&self) -> SpaceUse {
        let is_special = self.flags & SPECIAL_OWNER != 0;
        if self.is_free() {
            SpaceUse::Free
        } else if is_special && self.owner != OWN_UNKNOWN || self.flags & NOT_CONTENTS != 0 {
            SpaceUse::Fixed
        } else {
            SpaceUse::Taken
        }
    }
}

/// What a part of the device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceUse {
    /// Free.
    Free,
    /// A file's, or a table of the file system.
    Taken,
    /// A table for certain, or shared.
    Fixed,
}

/// What is told of the device in one answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpacePart {
    /// In order and without overlaps.
    pub parts: Vec<(Span<Device>, SpaceUse)>,
    /// Where the next answer begins; `None` if this was the last.
    pub next: Option<DeviceOffset>,
}

impl GuardedSystem {
    /// Whether all of a stretch of the device is free.
    pub(super) fn is_free(&self, start: u64, len: u64) -> io::Result<bool> {
        let end = start.checked_add(len).ok_or_else(|| io::Error::other("a place beyond all devices"))?;
        let request = self.ask_space(start, end)?;
        let mut at = start;
        for record in request.told() {
            if !record.is_free() || record.physical > at {
                return Ok(false);
            }
            at = at.max(record.physical.saturating_add(record.length));
        }
        Ok(at >= end)
    }

    /// What is free and what is taken from `from` on, up to `to` at most; `None` where the file system does not tell.
    pub fn space_from(&self, from: DeviceOffset, to: DeviceOffset) -> Result<Option<SpacePart>> {
        if self.kind == GuardedKind::Btrfs || from >= to {
            return Ok(None);
        }
        let end = to.get().min(from.get().saturating_add(ASK_BYTES));
        let request = match self.ask_space(from.get(), end) {
            Ok(request) => request,
            Err(error) => {
                return match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
                    _ => Err(self.error("ask for the free space of", error)),
                };
            }
        };
        let told = request.told();
        let mut part = SpacePart::default();
        let mut at = from.get();
        for record in told {
            let record_end = record.physical.saturating_add(record.length).min(end);
            let start = record.physical.max(at);
            if record.device != request.low.device || record_end <= start {
                continue;
            }
            // What two have is no file's own.
            let is_shared = record.physical < at && at > from.get();
            let space_use = if is_shared { SpaceUse::Fixed } else { record.space_use() };
            part.parts.push((Span::between(Offset::new(start), Offset::new(record_end)), space_use));
            at = record_end;
        }
        // Beyond the end of the file system nothing is told.
        let next = if told.len() == RECORDS { at } else { end };
        let goes_on = !told.is_empty() && next < to.get() && next > from.get();
        part.next = goes_on.then(|| Offset::new(next));
        Ok(Some(part))
    }

    fn ask_space(&self, start: u64, end: u64) -> io::Result<Box<Request>> {
        let root = self.root().map_err(io::Error::other)?;
        let device = u32::try_from(self.device).unwrap_or(u32::MAX);
        let none = Record { device, ..Record::default() };
        let mut request = Box::new(Request {
            in_flags: 0,
            out_flags: 0,
            count: u32::try_from(RECORDS).unwrap_or(1),
            entries: 0,
            reserved: [0; 6],
            low: Record { physical: start, ..none },
            high: Record { physical: end - 1, owner: u64::MAX, offset: u64::MAX, flags: u32::MAX, ..none },
            records: [Record::default(); RECORDS],
        });
        ioctl(&root, FS_IOC_GETFSMAP, &mut *request)?;
        Ok(request)
    }
}

impl Request {
    fn told(&self) -> &[Record] {
        let told = usize::try_from(self.entries).unwrap_or(0).min(RECORDS);
        &self.records[..told]
    }
}
