//! The pages of `$LogFile`: which there are, where each belongs, and which records begin in them.
//!
//! A page that is not full yet is first written elsewhere: version 1.1 has two places for copies, version 2.0 thirty-two. A page
//! may therefore be there several times, in several states; where in the log it belongs is part of its records'
//! sequence numbers, so that no copy is believed which does not agree.

use std::collections::BTreeMap;

use block::{Error, Result, read_vec};
use extent::Offset;
use zerocopy::FromBytes;

use super::layout::{Lsn, MAGIC_RCRD, RecordHeader, RecordPageHeader, UNWRITTEN};
use super::restart::Restart;
use crate::ntfs::corrupt::Corrupt;
use crate::ntfs::record::fix_up;
use crate::ntfs::stream::Stream;

/// Records begin at multiples of it, and offsets in sequence numbers count it.
const UNIT_BYTES: u64 = 8;

/// One page, as it was found somewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Where it was found in the log.
    at: u64,
    /// Where it belongs.
    pub(super) home: u64,
    /// Of the newest record that it knows of.
    newest: Lsn,
    /// Where the last record that ends in it ends.
    next_record_offset: u64,
}

/// Where a record begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Which page, as it was found.
    page: usize,
    /// Where in it.
    offset: u64,
    /// Bytes behind its head.
    len_bytes: u64,
}

/// All pages of a log, and where all records begin.
pub(super) struct Pages<'a> {
    log: &'a Stream,
    restart: &'a Restart,
    pages: Vec<Page>,
    /// The pages that belong at a place.
    by_home: BTreeMap<u64, Vec<usize>>,
    /// Every record that begins somewhere.
    pub(super) places: BTreeMap<Lsn, Place>,
    /// The page that was read last, with its fixups undone.
    last: Option<(usize, Vec<u8>)>,
}

/// A record, put together.
pub(super) struct Whole {
    /// [`super::layout::CLIENT_RECORD`] or another.
    pub(super) kind: u32,
    /// [`super::layout::NO_REDO`] and others.
    pub(super) flags: u16,
    /// What follows its head.
    pub(super) data: Vec<u8>,
    /// The records that may follow: directly, or in the next page if this page was left as it is.
    pub(super) next: [Option<Lsn>; 2],
}

impl<'a> Pages<'a> {
    /// Reads the log once. Every page that was ever written must check out.
    pub(super) fn read(log: &'a Stream, restart: &'a Restart) -> Result<Self> {
        let (pages, by_home, places) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut read = Self { log, restart, pages, by_home, places, last: None };
        let mut at = 2 * restart.page_bytes;
        while at + restart.page_bytes <= restart.log_bytes {
            read.add(at)?;
            at += restart.page_bytes;
        }
        Ok(read)
    }

    fn error(&self, at: u64) -> Error {
        Error::corrupt(Corrupt::LogPage { page: at / self.restart.page_bytes }).at(self.log.volume_offset(at))
    }

    fn add(&mut self, at: u64) -> Result<()> {
        let mut bytes = read_vec(self.log, Offset::new(at), self.restart.page_bytes, "$LogFile")?;
        if bytes.starts_with(&UNWRITTEN) {
            return Ok(());
        }
        fix_up(&mut bytes, &[MAGIC_RCRD], || self.error(at))?;
        let (header, _) = RecordPageHeader::ref_from_prefix(&bytes).expect("a page is larger");
        let next_record_offset = u64::from(header.next_record_offset.get());
        if next_record_offset > self.restart.page_bytes {
            let expected = format!("at most {}", self.restart.page_bytes);
            return Err(self.error(at).field("next record's offset", next_record_offset, expected));
        }
        let Some((home, newest)) = self.home_of(at, header) else { return Ok(()) };
        let index = self.pages.len();
        self.pages.push(Page { at, home, newest, next_record_offset });
        self.by_home.entry(home).or_default().push(index);
        self.find_records(index, &bytes)?;
        Ok(())
    }

    /// Where a page belongs, and the newest record that it knows of. Copies that belong nowhere were left by another version.
    fn home_of(&self, at: u64, header: &RecordPageHeader) -> Option<(u64, Lsn)> {
        let restart = self.restart;
        let (last, ended) = (header.last_lsn_or_file_offset.get(), header.last_end_lsn.get());
        if at >= restart.first_page {
            return Some((at, last.max(ended)));
        }
        let (home, newest) = match restart.is_version_2 {
            true => (u64::from(header.file_offset.get()), last.max(ended)),
            false => (last, ended),
        };
        let is_a_page = home.is_multiple_of(restart.page_bytes)
            && home >= restart.first_page
            && home.checked_add(restart.page_bytes).is_some_and(|end| end <= restart.log_bytes);
        is_a_page.then_some((home, newest))
    }

    /// Finds the records that begin in a page: what has the sequence number of the place where it lies is one.
    fn find_records(&mut self, index: usize, bytes: &[u8]) -> Result<()> {
        let Page { at, home, newest, next_record_offset } = self.pages[index];
        let (page_bytes, head_bytes) = (self.restart.page_bytes, self.restart.record_header_bytes);
        let mut offset = self.restart.data_offset;
        let mut is_in_row = false;
        while offset + head_bytes <= page_bytes {
            let head = &bytes[to_index(offset)..];
            let (head, _) = RecordHeader::ref_from_prefix(head).expect("a record's head fits");
            let lsn = head.this_lsn.get();
            if !self.restart.is_at(lsn, home + offset) || lsn > newest {
                // Behind the first record the next one follows, up to where the page says that they end.
                if is_in_row && offset < next_record_offset {
                    let field = format!("sequence number of the record at {offset}");
                    let expected = format!("one of offset {:#x}", home + offset);
                    return Err(self.error(at).field(field, format!("{lsn:#x}"), expected));
                }
                offset += UNIT_BYTES;
                is_in_row = false;
                continue;
            }
            let len_bytes = u64::from(head.client_data_length.get());
            if len_bytes > self.restart.log_bytes {
                let expected = format!("at most the log's {} bytes", self.restart.log_bytes);
                return Err(super::record_error(lsn).field("length", len_bytes, expected));
            }
            let place = Place { page: index, offset, len_bytes };
            let known = self.places.entry(lsn).or_insert(place);
            if self.pages[known.page].newest < newest {
                *known = place;
            }
            is_in_row = true;
            offset += head_bytes + len_bytes.next_multiple_of(UNIT_BYTES);
        }
        Ok(())
    }

    /// The whole record, or `None` if a page that it goes on in is not there any more, or not yet.
    pub(super) fn whole(&mut self, lsn: Lsn) -> Result<Option<Whole>> {
        let place = self.places[&lsn];
        let page_bytes = self.restart.page_bytes;
        let head_bytes = self.restart.record_header_bytes;
        let page = self.pages[place.page];
        let bytes = self.bytes(place.page)?;
        let (head, _) = RecordHeader::ref_from_prefix(&bytes[to_index(place.offset)..]).expect("found there");
        let (kind, flags) = (head.record_type.get(), head.flags.get());
        let begins = place.offset + head_bytes;
        let here = place.len_bytes.min(page_bytes - begins);
        let mut data = bytes[to_index(begins)..to_index(begins + here)].to_vec();
        let (mut home, mut turn, mut end) = (page.home, self.restart.turn_of(lsn), begins + here);
        let mut last = page;
        while (data.len() as u64) < place.len_bytes {
            (home, turn) = self.next_home(home, turn);
            let Some(index) = self.newest_of(home, turn, lsn) else { return Ok(None) };
            let from = self.restart.data_offset;
            let more = (place.len_bytes - data.len() as u64).min(page_bytes - from);
            data.extend_from_slice(&self.bytes(index)?[to_index(from)..to_index(from + more)]);
            (last, end) = (self.pages[index], from + more);
        }
        let end = end.next_multiple_of(UNIT_BYTES);
        let (next, next_turn) = self.next_home(home, turn);
        let behind_page = self.restart.compose(next_turn, next + self.restart.data_offset);
        let directly = (end + head_bytes <= page_bytes).then(|| self.restart.compose(turn, home + end));
        // A page may be left with room in it.
        let is_left = directly.is_none() || last.next_record_offset == end;
        Ok(Some(Whole { kind, flags, data, next: [directly, is_left.then_some(behind_page)] }))
    }

    fn next_home(&self, home: u64, turn: u64) -> (u64, u64) {
        let next = home + self.restart.page_bytes;
        if next + self.restart.page_bytes <= self.restart.log_bytes {
            (next, turn)
        } else {
            (self.restart.first_page, turn + 1)
        }
    }

    /// The newest state of the page at `home` that was written after `lsn` was, in this turn of the log.
    fn newest_of(&self, home: u64, turn: u64, lsn: Lsn) -> Option<usize> {
        let pages = self.by_home.get(&home)?.iter().copied();
        let fitting = pages.filter(|index| {
            let newest = self.pages[*index].newest;
            let offset = self.restart.offset_of(newest);
            let begins_here = self.restart.turn_of(newest) == turn
                && (home..home + self.restart.page_bytes).contains(&offset);
            // In a page in which nothing begins the record that goes on is the newest one.
            newest == lsn || (newest > lsn && begins_here)
        });
        fitting.max_by_key(|index| self.pages[*index].newest)
    }

    fn bytes(&mut self, index: usize) -> Result<&[u8]> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != index) {
            let at = self.pages[index].at;
            let mut bytes = read_vec(self.log, Offset::new(at), self.restart.page_bytes, "$LogFile")?;
            fix_up(&mut bytes, &[MAGIC_RCRD], || self.error(at))?;
            self.last = Some((index, bytes));
        }
        Ok(&self.last.as_ref().expect("just read").1)
    }
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("within a page")
}
