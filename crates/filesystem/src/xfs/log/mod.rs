//! The log: whether it ends with the record that is written when a volume is unmounted.
//!
//! Only then is all that the volume says in its place. Else the records before its end are read ([`record`], of the structs in
//! [`layout`]) and replayed in memory ([`mod@replay`], with [`buffer`] and [`inode`] for what that changes, and [`intent`] for
//! what is left to be done). Where the log ends is found as
//! the kernel finds it (`xlog_find_head`): each sector bears the number of the turn in which it was written, and the log ends where that
//! goes down by one. What would have the kernel look further makes the volume whole.

use std::mem::offset_of;

use block::{Result, read_vec};
use extent::VolumeOffset;
use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

mod buffer;
mod inode;
mod intent;
mod layout;
mod record;
mod replay;

pub(super) use intent::Unfinished;
pub(super) use replay::{Replayed, replay};

use super::superblock::Superblock;
use crate::Source;

use layout::{LOG_CLIENT, LOG_MAGIC, RawFurtherHeader, RawLogRecord, RawOperation, VERSION_2, operation};

/// The log counts in these, whatever the sectors are.
const SECTOR_BYTES: u64 = layout::SECTOR_BYTES as u64;
/// So much may be under way at once (`XLOG_MAX_ICLOGS` of the largest size): what lies around the end is looked at that far.
const UNDER_WAY_SECTORS: u64 = 8 * (256 << 10) / SECTOR_BYTES;
/// So far before the last sector that was written the kernel looks for one that was not, with the smallest buffers that it may be mounted
/// with (`XLOG_MAX_ICLOGS` of 16 KiB).
const LOOKED_BACK_SECTORS: u64 = 8 * (16 << 10) / SECTOR_BYTES;
/// A header has the turns of so many bytes behind it.
const HEADER_COVERS_BYTES: u32 = 32 << 10;
/// The longest record, with its headers: the log's largest buffer.
const RECORD_SECTORS_MAX: u64 = (256 << 10) / SECTOR_BYTES + 9;

/// What a log is that does not end with an unmount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unclean {
    /// It may be replayed.
    Pending,
    /// It is not understood.
    Whole(&'static str),
}

/// What of the log is in the way of relying on the volume as it lies there; `None` if it was unmounted.
pub(super) fn why_unclean(source: &Source, superblock: &Superblock) -> Result<Option<Unclean>> {
    let Some(log) = Log::open(source, superblock) else {
        return Ok(Some(Unclean::Whole("its log is on another device")));
    };
    let Some(head) = log.head()? else {
        return Ok(Some(Unclean::Whole("where its log ends is not certain")));
    };
    match log.why_not_unmounted(head.sector, superblock)? {
        None if head.has_more => Ok(Some(Unclean::Whole("its log goes on behind its unmounting"))),
        why => Ok(why),
    }
}

/// Where the log ends, as a number that what is written as of then bears; `None` if that is not certain.
pub(super) fn end_lsn(source: &Source, superblock: &Superblock) -> Result<Option<u64>> {
    let Some(log) = Log::open(source, superblock) else { return Ok(None) };
    let Some(head) = log.head()? else { return Ok(None) };
    Ok(Some(u64::from(log.turn(0)?) << 32 | head.sector))
}

/// Where the log ends.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// The sector behind the last that counts.
    sector: u64,
    /// Whether there are records behind that one, which were stored although one before them was not.
    has_more: bool,
}

struct Log<'a> {
    source: &'a Source,
    start: VolumeOffset,
    sectors: u64,
}

/// The turn of a sector: its first word, but of a record's header the second.
fn turn_of(sector: &[u8]) -> u32 {
    let word = |at: usize| U32::read_from_bytes(&sector[at..at + 4]).expect("4 bytes").get();
    if word(0) == LOG_MAGIC { word(offset_of!(RawLogRecord, cycle)) } else { word(0) }
}

impl<'a> Log<'a> {
    /// `None` if it is on another device.
    fn open(source: &'a Source, superblock: &Superblock) -> Option<Self> {
        let (first, count) = superblock.log?;
        let sectors = u64::from(count) * u64::from(superblock.block_bytes) / SECTOR_BYTES;
        Some(Self { source, start: superblock.offset_of(first), sectors })
    }

    fn read(&self, sector: u64, count: u64) -> Result<Vec<u8>> {
        read_vec(&**self.source, self.start.plus(sector * SECTOR_BYTES), count * SECTOR_BYTES, "XFS log")
    }

    fn turn(&self, sector: u64) -> Result<u32> {
        Ok(turn_of(&self.read(sector, 1)?))
    }

    /// The turns of these sectors.
    fn turns(&self, from: u64, end: u64) -> Result<Vec<u32>> {
        if from >= end {
            return Ok(Vec::new());
        }
        Ok(self.read(from, end - from)?.chunks_exact(layout::SECTOR_BYTES).map(turn_of).collect())
    }

    /// Where the log ends; `None` if the turns around it do not fit together, or mounting with other options would
    /// have the kernel take another one.
    ///
    /// Several records are under way at once, and one may be stored when one before it is not. The log ends before the first that is missing then:
    /// what is behind it was not done for anybody.
    fn head(&self) -> Result<Option<Head>> {
        if self.sectors < 2 {
            return Ok(None);
        }
        let (first, last) = (self.turn(0)?, self.turn(self.sectors - 1)?);
        if first == 0 || (first != last && last != first - 1) {
            // Of a log that was never written to its end, what is left reads as zeros.
            if first == 0 || last != 0 {
                return Ok(None);
            }
        }
        // Where the turn is full, what was there before it is one turn earlier.
        let (near, before) = match first == last {
            true => (self.sectors, first - 1),
            false => (self.first_of_turn(last)?, last),
        };
        let from = near.saturating_sub(UNDER_WAY_SECTORS);
        let turns = self.turns(from, (near + UNDER_WAY_SECTORS).min(self.sectors))?;
        // What comes before the start of the log is its end, one turn earlier.
        let behind = UNDER_WAY_SECTORS.saturating_sub(near).min(self.sectors - near);
        let is_even = turns.iter().all(|turn| [first, before].contains(turn))
            && self.turns(self.sectors - behind, self.sectors)?.iter().all(|turn| *turn == last);
        let missing = turns.iter().position(|turn| *turn == before);
        let sector = missing.map_or(near, |index| from + index as u64);
        let written = turns.iter().rposition(|turn| *turn == first);
        let end = written.map_or(sector, |index| from + index as u64 + 1);
        if !is_even || end.saturating_sub(sector) > LOOKED_BACK_SECTORS {
            return Ok(None);
        }
        let whole = self.whole_until(sector)?;
        Ok(Some(Head { sector: whole, has_more: end > whole }))
    }

    /// `head`, or where the last record before it begins, if only a part of that was stored (`xlog_find_verify_log_record`).
    fn whole_until(&self, head: u64) -> Result<u64> {
        let Some((start, raw)) = self.last_header(head)? else { return Ok(head) };
        let is_torn = start < head && start + sectors_of(&raw) > head;
        Ok(if is_torn { start } else { head })
    }

    /// Where the last record before `head` begins, which may be at the log's end, and its header.
    fn last_header(&self, head: u64) -> Result<Option<(u64, RawLogRecord)>> {
        let back = RECORD_SECTORS_MAX.min(self.sectors);
        let from = (head + self.sectors - back) % self.sectors;
        let bytes = self.read_around(from, back)?;
        let sectors: Vec<_> = bytes.chunks_exact(layout::SECTOR_BYTES).collect();
        let index = sectors.iter().rposition(|sector| sector.starts_with(&LOG_MAGIC.to_be_bytes()));
        Ok(index.map(|index| {
            let (raw, _) = RawLogRecord::read_from_prefix(sectors[index]).expect("a sector is longer");
            ((from + index as u64) % self.sectors, raw)
        }))
    }

    /// Sectors from `at` on, which may go on at the beginning.
    fn read_around(&self, at: u64, count: u64) -> Result<Vec<u8>> {
        let first = count.min(self.sectors - at);
        let mut bytes = self.read(at, first)?;
        if first < count {
            bytes.extend(self.read(0, count - first)?);
        }
        Ok(bytes)
    }

    /// The first sector of the `last` turn, of which the last sector is and the first is not.
    fn first_of_turn(&self, last: u32) -> Result<u64> {
        let (mut low, mut high) = (0, self.sectors - 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.turn(middle)? == last { high = middle } else { low = middle }
        }
        Ok(high)
    }

    fn why_not_unmounted(&self, head: u64, superblock: &Superblock) -> Result<Option<Unclean>> {
        const MUST: Option<Unclean> = Some(Unclean::Pending);
        let Some((at, raw)) = self.last_header(head)? else { return Ok(MUST) };
        let (headers, len) = (headers_of(&raw) as usize, raw.len.get() as usize);
        // The record that unmounts is short, but may be filled up to a stripe.
        let is_last = len > 0 && at < head && at + sectors_of(&raw) == head;
        if !is_last || raw.fs_uuid != superblock.uuid || raw.num_logops.get() != 1 {
            return Ok(MUST);
        }
        let bytes = self.read(at, head - at)?;
        let sectors: Vec<_> = bytes.chunks_exact(layout::SECTOR_BYTES).collect();
        let (last, _) = RawOperation::read_from_prefix(sectors[headers]).expect("a sector is longer");
        if last.clientid != LOG_CLIENT || last.flags & operation::UNMOUNT_TRANS == 0 {
            return Ok(MUST);
        }
        let data = &bytes[headers * layout::SECTOR_BYTES..];
        match crc_holds(&sectors[..headers], &data[..len.min(data.len())], raw.crc.get()) {
            true => Ok(None),
            false => Ok(Some(Unclean::Whole("the last record of its log is broken"))),
        }
    }
}

/// How many sectors of headers a record has.
fn headers_of(raw: &RawLogRecord) -> u32 {
    match raw.version.get() & VERSION_2 != 0 {
        true => raw.size.get().div_ceil(HEADER_COVERS_BYTES).max(1),
        false => 1,
    }
}

/// How many sectors a record has, with its headers.
fn sectors_of(raw: &RawLogRecord) -> u64 {
    u64::from(headers_of(raw)) + u64::from(raw.len.get()).div_ceil(SECTOR_BYTES)
}

/// Whether a record's checksum is right: that of its header, which is longer on machines of 64 bits than on others, of the further headers that
/// the data need, and of the data. `mkfs.xfs` and Linux before 3.8 write none.
fn crc_holds(headers: &[&[u8]], data: &[u8], crc: u32) -> bool {
    const AT: usize = offset_of!(RawLogRecord, crc);
    const LEN: usize = size_of::<RawLogRecord>();
    let (first, further) = (headers[0], data.len().div_ceil(HEADER_COVERS_BYTES as usize).max(1));
    let is_right = |len: usize| {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&first[..AT]), &[0; 4]);
        let sum = crc32c::crc32c_append(sum, &first[AT + 4..len]);
        let further =
            headers.iter().take(further).skip(1).map(|header| &header[..size_of::<RawFurtherHeader>()]);
        crc32c::crc32c_append(further.fold(sum, crc32c::crc32c_append), data) == crc
    };
    cfg!(fuzzing) || crc == 0 || [LEN + 4, LEN].into_iter().any(is_right)
}
