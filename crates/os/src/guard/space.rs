//! What is free on a file system, as it tells itself (`FS_IOC_GETFSMAP`, ioctl_getfsmap(2)): ext4 and XFS. Nothing is promised: it may be
//! taken a moment later.

use std::io;

use super::GuardedSystem;
use crate::ioctl::ioctl;

/// `_IOWR('X', 59, struct fsmap_head)` (`include/uapi/linux/fsmap.h`).
const FS_IOC_GETFSMAP: u32 = 0xc0c0_583b;
/// `FMR_OF_SPECIAL_OWNER`: the owner is no file.
const SPECIAL_OWNER: u32 = 0x10;
/// `FMR_OWN_FREE`, `FMR_OWNER(0, 1)`, which ext4 and XFS share.
const OWN_FREE: u64 = 1;
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
}

impl GuardedSystem {
    /// Whether all of a stretch of the device is free.
    pub(super) fn is_free(&self, start: u64, len: u64) -> io::Result<bool> {
        let end = start.checked_add(len).ok_or_else(|| io::Error::other("a place beyond all devices"))?;
        let root = self.root().map_err(io::Error::other)?;
        let device = u32::try_from(self.device).unwrap_or(u32::MAX);
        let none = Record { device, ..Record::default() };
        let mut request = Request {
            in_flags: 0,
            out_flags: 0,
            count: u32::try_from(RECORDS).unwrap_or(1),
            entries: 0,
            reserved: [0; 6],
            low: Record { physical: start, ..none },
            high: Record { physical: end - 1, owner: u64::MAX, offset: u64::MAX, flags: u32::MAX, ..none },
            records: [Record::default(); RECORDS],
        };
        ioctl(&root, FS_IOC_GETFSMAP, &mut request)?;
        let told = usize::try_from(request.entries).unwrap_or(0).min(RECORDS);
        let mut at = start;
        for record in &request.records[..told] {
            if !record.is_free() || record.physical > at {
                return Ok(false);
            }
            at = at.max(record.physical.saturating_add(record.length));
        }
        Ok(at >= end)
    }
}
