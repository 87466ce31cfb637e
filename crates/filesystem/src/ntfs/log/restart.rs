//! Where the log is to be read from: its restart pages, checked as far as reading its records relies on them.

use block::{Error, Result};
use zerocopy::FromBytes;

use super::layout::{ClientRecord, FullRestartArea, Lsn};
use crate::ntfs::corrupt::Corrupt;
use crate::ntfs::layout::{LOGFILE_NO_CLIENT, MAGIC_RSTR, RestartPageHeader};
use crate::ntfs::logfile;
use crate::ntfs::stream::Stream;

/// Restart pages, and copies of pages that were not full, come before the pages that are used in turn.
const FIRST_PAGE_OF_VERSION_1: u64 = 4;
const FIRST_PAGE_OF_VERSION_2: u64 = 34;

/// The largest log that is read: the default is 64 MiB, and `chkdsk /L` makes larger ones.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// Who must have opened the log.
const CLIENT: &str = "NTFS";

/// What the newer of the two restart pages says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Restart {
    /// Written while Windows 8 or later uses the volume.
    pub(super) is_version_2: bool,
    pub(super) page_bytes: u64,
    pub(super) log_bytes: u64,
    /// Where the pages begin that are used in turn.
    pub(super) first_page: u64,
    /// Where records begin in a page.
    pub(super) data_offset: u64,
    pub(super) record_header_bytes: u64,
    /// Bits of a sequence number that are a place.
    offset_bits: u32,
    /// The newest record when the page was written.
    pub(super) current_lsn: Lsn,
    /// The oldest record that the client may need.
    pub(super) oldest_lsn: Lsn,
    /// The client's newest restart record.
    pub(super) client_lsn: Lsn,
}

impl Restart {
    /// Reads both pages. Each must check out, and they must agree on how the log is laid out.
    pub(super) fn read(log: &Stream) -> Result<Self> {
        let first = one(log, 0)?;
        let second = one(log, first.page_bytes)?;
        let (newer, older) =
            if second.current_lsn > first.current_lsn { (second, first) } else { (first, second) };
        let as_older = Self {
            current_lsn: older.current_lsn,
            oldest_lsn: older.oldest_lsn,
            client_lsn: older.client_lsn,
            ..newer
        };
        if as_older != older {
            return Err(Error::corrupt(Corrupt::RestartPage).at(log.volume_offset(first.page_bytes)).field(
                "layout",
                "another",
                "that of the first page",
            ));
        }
        Ok(newer)
    }

    /// Whether a sequence number is that of a record which begins at `offset`.
    pub(super) fn is_at(&self, lsn: Lsn, offset: u64) -> bool {
        lsn != 0 && self.offset_of(lsn) == offset
    }

    /// Where a record begins in the log.
    pub(super) fn offset_of(&self, lsn: Lsn) -> u64 {
        (lsn & ((1 << self.offset_bits) - 1)) << 3
    }

    /// How often the log had been begun anew when a record was written.
    pub(super) fn turn_of(&self, lsn: Lsn) -> u64 {
        lsn >> self.offset_bits
    }

    /// The sequence number of a record at `offset`. Those of turns that there cannot be are of no record.
    pub(super) fn compose(&self, turn: u64, offset: u64) -> Lsn {
        turn.wrapping_shl(self.offset_bits) | offset >> 3
    }
}

fn one(log: &Stream, at: u64) -> Result<Restart> {
    let error = || Error::corrupt(Corrupt::RestartPage).at(log.volume_offset(at));
    let Some((page, area_at)) = logfile::restart_page(log, at)? else {
        return Err(error().field("magic", "another", "RSTR"));
    };
    let (header, _) = RestartPageHeader::ref_from_prefix(&page).expect("checked when it was read");
    if header.fixup.magic != MAGIC_RSTR {
        return Err(error().field("magic", "CHKD, that of a log that chkdsk has seen", "RSTR"));
    }
    let version = (header.major_version.get(), header.minor_version.get());
    let is_version_2 = match version {
        (1, 1) => false,
        (2, 0) => true,
        (major, minor) => {
            let found = format!("{major}.{minor}");
            return Err(Error::unsupported("NTFS $LogFile").field("version", found, "1.1 or 2.0"));
        }
    };
    let page_bytes = u64::from(header.system_page_size.get());
    if header.log_page_size != header.system_page_size {
        return Err(error().field("log page size", header.log_page_size, page_bytes));
    }
    let area = &page[area_at..];
    let (area, _) = FullRestartArea::ref_from_prefix(area)
        .map_err(|_| error().field("restart area's offset", area_at, "within the page"))?;
    let log_bytes = checked_log_bytes(log, area, page_bytes).map_err(|found| {
        error().field("log's size", found, "whole pages of the file, more than its copies take")
    })?;
    let first_page =
        page_bytes * if is_version_2 { FIRST_PAGE_OF_VERSION_2 } else { FIRST_PAGE_OF_VERSION_1 };
    if log_bytes <= first_page + page_bytes {
        return Err(error().field("log's size", log_bytes, format!("more than {}", first_page + page_bytes)));
    }
    let offset_bits = 64
        - checked_seq_bits(area, log_bytes)
            .map_err(|expected| error().field("sequence number bits", area.seq_number_bits, expected))?;
    let data_offset = u64::from(area.log_page_data_offset.get());
    if !data_offset.is_multiple_of(8) || !(64..page_bytes).contains(&data_offset) {
        return Err(error().field(
            "log page data offset",
            data_offset,
            "a multiple of 8 in the page, from 64",
        ));
    }
    let record_header_bytes = u64::from(area.record_header_length.get());
    if !record_header_bytes.is_multiple_of(8)
        || !(48..=page_bytes - data_offset).contains(&record_header_bytes)
    {
        return Err(error().field("record header length", record_header_bytes, "a multiple of 8 from 48"));
    }
    let client = client(&page, area_at, area).ok_or_else(|| {
        error().field("clients", area.head.log_clients, format!("one, {CLIENT}, that has it open"))
    })?;
    Ok(Restart {
        is_version_2,
        page_bytes,
        log_bytes,
        first_page,
        data_offset,
        record_header_bytes,
        offset_bits,
        current_lsn: area.head.current_lsn.get(),
        oldest_lsn: client.oldest_lsn.get(),
        client_lsn: client.client_restart_lsn.get(),
    })
}

fn checked_log_bytes(log: &Stream, area: &FullRestartArea, page_bytes: u64) -> Result<u64, u64> {
    let log_bytes = area.file_size.get();
    let is_right = log_bytes.is_multiple_of(page_bytes)
        && log_bytes <= block::ReadAt::len_bytes(log).min(log.initialized_bytes()).min(LOG_BYTES_MAX);
    if is_right { Ok(log_bytes) } else { Err(log_bytes) }
}

/// The offset of every record fits the other bits, in units of 8 bytes.
fn checked_seq_bits(area: &FullRestartArea, log_bytes: u64) -> Result<u32, u32> {
    let length_bits = 64 - log_bytes.leading_zeros();
    let expected = 64 + 3 - length_bits;
    if area.seq_number_bits.get() == expected { Ok(expected) } else { Err(expected) }
}

/// The only client, if there is one and it has the log open.
fn client<'a>(page: &'a [u8], area_at: usize, area: &FullRestartArea) -> Option<&'a ClientRecord> {
    let in_use = area.head.client_in_use_list.get();
    if area.head.log_clients != 1 || in_use == LOGFILE_NO_CLIENT || in_use != 0 {
        return None;
    }
    let at = area_at + usize::from(area.client_array_offset.get());
    let (client, _) = ClientRecord::ref_from_prefix(page.get(at..)?).ok()?;
    let name = client.client_name.iter().take(CLIENT.len()).map(|unit| unit.get());
    let is_named = client.client_name_length.get() == 8 && name.eq(CLIENT.encode_utf16());
    is_named.then_some(client)
}
