//! Records of the log: what was written between its tail and its head, put together to transactions in the order in which they were
//! committed.

use std::collections::HashMap;

use block::{Error, Result};
use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

use super::{FURTHER_HEADER_BYTES, HEADER_COVERS_BYTES, Log, SECTOR_BYTES, VERSION_2, crc_holds};
use crate::xfs::corrupt::Corrupt;
use crate::xfs::layout::{LOG_MAGIC, RawLogRecord};
use crate::xfs::superblock::Superblock;

/// The most of a log that is replayed: as much as the kernel makes by itself (`XFS_MAX_LOG_BYTES`) less what cannot be under way.
const REPLAYED_BYTES_MAX: u64 = 512 << 20;
/// Of a record's `fmt`: what is not in the order of the disk is in that of a machine with little ends.
const LITTLE_ENDIAN: u32 = 1;
const TRANSACTION_MAGIC: [u8; 4] = *b"NART";
/// `struct xfs_trans_header`.
const TRANSACTION_HEADER_BYTES: usize = 16;
/// `struct xlog_op_header`.
const OPERATION_BYTES: usize = 12;

/// Bits of an operation's flags.
mod flag {
    pub(super) const START: u8 = 0x01;
    pub(super) const COMMIT: u8 = 0x02;
    pub(super) const WAS_CONTINUED: u8 = 0x08;
    pub(super) const UNMOUNT: u8 = 0x20;
}

/// A part of a transaction: what it is of, in regions of which the first says so.
#[derive(Default, Debug)]
pub(super) struct Item {
    pub(super) regions: Vec<Vec<u8>>,
}

impl Item {
    /// How many regions it says that it has.
    fn expected(&self) -> Option<usize> {
        let first = self.regions.first()?;
        Some(usize::from(u16::from_le_bytes(*first.get(2..)?.first_chunk()?)))
    }
}

/// What was committed at once.
#[derive(Default, Debug)]
pub(super) struct Transaction {
    /// Of the record in which it begins: by turn, and sector.
    pub(super) lsn: u64,
    header: Vec<u8>,
    pub(super) items: Vec<Item>,
}

pub(super) fn wrong(sector: u64, name: &str, found: impl Into<u64>, expected: &str) -> Error {
    Error::corrupt(Corrupt::Log { sector }).field(name, found.into(), expected.to_owned())
}

impl Transaction {
    fn add(&mut self, sector: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if self.header.len() < TRANSACTION_HEADER_BYTES {
            self.header.extend_from_slice(data);
            let is_right = self.header.len() <= TRANSACTION_HEADER_BYTES
                && self.header.iter().zip(TRANSACTION_MAGIC).all(|(found, expected)| *found == expected);
            return if is_right {
                Ok(())
            } else {
                Err(wrong(sector, "th_magic", 0_u64, "that of a transaction"))
            };
        }
        match self.items.last_mut().filter(|item| item.expected() != Some(item.regions.len())) {
            Some(item) => item.regions.push(data.to_vec()),
            None => self.items.push(Item { regions: vec![data.to_vec()] }),
        }
        Ok(())
    }

    fn add_continued(&mut self, sector: u64, data: &[u8]) -> Result<()> {
        if self.header.len() < TRANSACTION_HEADER_BYTES {
            return self.add(sector, data);
        }
        let region = self.items.last_mut().and_then(|item| item.regions.last_mut());
        let region = region.ok_or_else(|| wrong(sector, "oh_flags", 0_u64, "something to go on with"))?;
        region.extend_from_slice(data);
        Ok(())
    }

    /// Fails unless all of it is there.
    fn check(&self, sector: u64) -> Result<()> {
        match self.items.iter().find(|item| item.expected() != Some(item.regions.len())) {
            None => Ok(()),
            Some(item) => {
                Err(wrong(sector, "regions", item.regions.len() as u64, "as many as the item says"))
            }
        }
    }
}

impl Log<'_> {
    /// Sectors from `at` on, which may go on at the beginning.
    fn read_around(&self, at: u64, count: u64) -> Result<Vec<u8>> {
        let first = count.min(self.sectors - at);
        let mut bytes = self.read(at, first)?;
        if first < count {
            bytes.extend(self.read(0, count - first)?);
        }
        Ok(bytes)
    }

    /// Where the last record before `head` begins, and where it says that the log's tail is.
    fn last_record(&self, head: u64) -> Result<(u64, u64)> {
        let back = super::RECORD_SECTORS_MAX.min(self.sectors);
        let from = (head + self.sectors - back) % self.sectors;
        let bytes = self.read_around(from, back)?;
        let index = bytes.chunks_exact(512).rposition(|sector| sector.starts_with(&LOG_MAGIC.to_be_bytes()));
        let index = index.ok_or_else(|| wrong(head, "h_magicno", 0_u64, "a record before the log's head"))?;
        let (raw, _) = RawLogRecord::read_from_prefix(&bytes[index * 512..]).expect("a sector is longer");
        Ok(((from + index as u64) % self.sectors, raw.tail_lsn.get() & u64::from(u32::MAX)))
    }

    /// All transactions that were committed between the log's tail and `head`.
    pub(super) fn transactions(&self, superblock: &Superblock, head: u64) -> Result<Vec<Transaction>> {
        let (_, tail) = self.last_record(head)?;
        let mut left = match (head % self.sectors + self.sectors).checked_sub(tail) {
            Some(len) if tail < self.sectors => len % self.sectors,
            _ => return Err(wrong(head, "h_tail_lsn", tail, "a sector of the log")),
        };
        if left * SECTOR_BYTES > REPLAYED_BYTES_MAX {
            return Err(Error::unsupported("XFS with more than 512 MiB in its log"));
        }
        let (mut at, mut before) = (tail, 0);
        let (mut open, mut done) = (HashMap::new(), Vec::new());
        while left > 0 {
            let len = self.record(superblock, at, left, &mut before, &mut open, &mut done)?;
            (at, left) = ((at + len) % self.sectors, left - len);
        }
        Ok(done)
    }

    /// Reads the record at `at`; answers how many sectors it has.
    fn record(
        &self,
        superblock: &Superblock,
        at: u64,
        left: u64,
        before: &mut u64,
        open: &mut HashMap<u32, Transaction>,
        done: &mut Vec<Transaction>,
    ) -> Result<u64> {
        let first = self.read_around(at, 1)?;
        let (raw, _) = RawLogRecord::read_from_prefix(&first).expect("a sector is longer");
        let lsn = raw.lsn.get();
        let is_right = raw.magicno.get() == LOG_MAGIC
            && raw.fs_uuid == superblock.uuid
            && raw.version.get() == VERSION_2
            && lsn & u64::from(u32::MAX) == at
            && lsn > *before;
        if !is_right {
            return Err(wrong(at, "h_lsn", lsn, "a record of this log, behind the one before it"));
        }
        if raw.fmt.get() != LITTLE_ENDIAN {
            return Err(Error::unsupported("XFS with a log in the order of another machine"));
        }
        *before = lsn;
        let len = u64::from(raw.len.get());
        let headers = u64::from(raw.size.get().div_ceil(HEADER_COVERS_BYTES).max(1));
        let sectors = headers + len.div_ceil(SECTOR_BYTES);
        if sectors > left || sectors > super::RECORD_SECTORS_MAX {
            return Err(wrong(at, "h_len", len, "a record that ends before the log does"));
        }
        let bytes = self.read_around(at, sectors)?;
        let (heads, data) = bytes.split_at(usize::try_from(headers).expect("few") * 512);
        let heads: Vec<_> = heads.chunks_exact(512).collect();
        let len = usize::try_from(len).expect("at most the log");
        if raw.crc.get() == 0 || !crc_holds(&heads, &data[..len], raw.crc.get()) {
            return Err(wrong(at, "h_crc", raw.crc.get(), "that of the record"));
        }
        let data = unpack(&raw, &heads, data);
        let mut rest = &data[..len];
        for _ in 0..raw.num_logops.get() {
            rest = operation(at, lsn, rest, open, done)?;
        }
        // What is left fills the record up to a sector, or to a stripe.
        Ok(sectors)
    }
}

/// Puts the first word of each sector back, where the number of the turn was written over it.
fn unpack(raw: &RawLogRecord, heads: &[&[u8]], data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    for (index, sector) in data.chunks_exact_mut(512).enumerate() {
        let (head, word) = (index / 64, index % 64);
        let kept = match head {
            0 => raw.cycle_data[word].get(),
            _ => heads.get(head).map_or(0, |head| {
                debug_assert!(8 + word * 4 <= FURTHER_HEADER_BYTES + 4);
                U32::read_from_bytes(&head[4 + word * 4..8 + word * 4]).expect("4 bytes").get()
            }),
        };
        sector[..4].copy_from_slice(&kept.to_be_bytes());
    }
    data
}

/// Takes one operation from the front of `bytes`; answers what follows it.
fn operation<'a>(
    sector: u64,
    lsn: u64,
    bytes: &'a [u8],
    open: &mut HashMap<u32, Transaction>,
    done: &mut Vec<Transaction>,
) -> Result<&'a [u8]> {
    let short = || wrong(sector, "oh_len", bytes.len() as u64, "an operation within its record");
    let (head, rest) = bytes.split_at_checked(OPERATION_BYTES).ok_or_else(short)?;
    let word = |at: usize| U32::read_from_bytes(&head[at..at + 4]).expect("4 bytes").get();
    let (id, len, flags) = (word(0), word(4), head[9]);
    let (data, rest) = rest.split_at_checked(usize::try_from(len).map_err(|_| short())?).ok_or_else(short)?;
    if flags & flag::UNMOUNT != 0 {
        return Ok(rest);
    }
    if flags & flag::START != 0 {
        open.insert(id, Transaction { lsn, ..Transaction::default() });
        return Ok(rest);
    }
    if flags & flag::COMMIT != 0 {
        if let Some(transaction) = open.remove(&id) {
            transaction.check(sector)?;
            done.push(transaction);
        }
        return Ok(rest);
    }
    // One that begins before the tail is in its places already.
    if let Some(transaction) = open.get_mut(&id) {
        match flags & flag::WAS_CONTINUED {
            0 => transaction.add(sector, data)?,
            _ => transaction.add_continued(sector, data)?,
        }
    }
    Ok(rest)
}
