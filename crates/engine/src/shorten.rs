//! Shortens the file of a disk in use before it is closed: what lies in parts of the disk that were given room and hardly used
//! goes down into gaps.
//!
//! Invariants:
//! - nobody else uses the disk any more;
//! - a file that is short enough stays as it is, and no more moves than makes it so.
//!
//! Absent on purpose: a journal. A cut leaves each unit where it was or where it goes ([`LiveDisk::relocate`]).

use block::{LiveDisk, Result};
use plan::shorten::shorten_to;

use crate::compact::batches;

/// Moves what makes the file longer than `length_bytes`, `moved_bytes_max` of it at most. Says how many bytes moved.
pub fn shorten(disk: &dyn LiveDisk, length_bytes: u64, moved_bytes_max: u64) -> Result<u64> {
    disk.flush()?;
    let Some(occupancy) = disk.occupancy()? else { return Ok(0) };
    let slot_bytes = occupancy.slot_bytes();
    let mut moved_bytes = 0;
    for batch in batches(&shorten_to(&occupancy, length_bytes, moved_bytes_max), slot_bytes) {
        disk.relocate(&batch)?;
        moved_bytes += batch.iter().map(|moved| moved.count * slot_bytes).sum::<u64>();
    }
    Ok(moved_bytes)
}
