//! Records of the log: what was written between its tail and its head, put together to transactions in the order in which they were
//! committed.

use std::collections::HashMap;

use block::{Error, Result};
use zerocopy::FromBytes;

use super::layout::{
    LITTLE_ENDIAN, LOG_MAGIC, RawFurtherHeader, RawItem, RawLogRecord, RawOperation, RawTransactionHeader,
    SECTOR_BYTES as SECTOR, TRANSACTION_MAGIC, VERSION_1, VERSION_2, operation,
};
use super::{HEADER_COVERS_BYTES, Log, RECORD_SECTORS_MAX, SECTOR_BYTES, crc_holds, headers_of, sectors_of};
use crate::xfs::corrupt::Corrupt;
use crate::xfs::superblock::Superblock;

/// The most of a log that is replayed: as much as the kernel makes by itself (`XFS_MAX_LOG_BYTES`) less what cannot be under way.
const REPLAYED_BYTES_MAX: u64 = 512 << 20;
/// What is logged first of a transaction.
const TRANSACTION_HEADER_BYTES: usize = size_of::<RawTransactionHeader>();

/// A part of a transaction: what it is of, in regions of which the first says so.
#[derive(Default, Debug)]
pub(super) struct Item {
    pub(super) regions: Vec<Vec<u8>>,
}

impl Item {
    /// The first region, which says what it is.
    pub(super) fn head(&self) -> &[u8] {
        self.regions.first().map_or(&[], Vec::as_slice)
    }

    /// What it begins with, if it is as long as that.
    fn raw(&self) -> Option<RawItem> {
        Some(RawItem::read_from_prefix(self.head()).ok()?.0)
    }

    /// What kind of item it is, of [`item`](super::layout::item).
    pub(super) fn kind(&self) -> Option<u16> {
        self.raw().map(|raw| raw.type_.get())
    }

    /// Whether it has as many regions as it says.
    fn is_whole(&self) -> bool {
        self.raw().is_some_and(|raw| usize::from(raw.size.get()) == self.regions.len())
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

/// The error of a record in a sector of the log.
pub(super) fn wrong(sector: u64, name: &str, found: impl Into<u64>, expected: &str) -> Error {
    Error::corrupt(Corrupt::Log { sector }).field(name, found.into(), expected.to_owned())
}

/// The error of a part of the log that ends too early.
pub(super) fn short(what: &str) -> Error {
    wrong(0, what, 0_u64, "as long as what it is of")
}

impl Transaction {
    /// Adds a region: to the header, to the item at hand, or as the first of another one.
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
        match self.items.last_mut().filter(|item| !item.is_whole()) {
            Some(item) => item.regions.push(data.to_vec()),
            None => self.items.push(Item { regions: vec![data.to_vec()] }),
        }
        Ok(())
    }

    /// Adds what the region at hand goes on with.
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
        match self.items.iter().find(|item| !item.is_whole()) {
            None => Ok(()),
            Some(item) => {
                Err(wrong(sector, "regions", item.regions.len() as u64, "as many as the item says"))
            }
        }
    }
}

impl Log<'_> {
    /// All transactions that were committed between the log's tail and `head`.
    pub(super) fn transactions(&self, superblock: &Superblock, head: u64) -> Result<Vec<Transaction>> {
        let last = self.last_header(head)?;
        let (_, last) =
            last.ok_or_else(|| wrong(head, "h_magicno", 0_u64, "a record before the log's head"))?;
        let tail = last.tail_lsn.get() & u64::from(u32::MAX);
        let mut left = match (head % self.sectors + self.sectors).checked_sub(tail) {
            Some(len) if tail < self.sectors => len % self.sectors,
            _ => return Err(wrong(head, "h_tail_lsn", tail, "a sector of the log")),
        };
        if left * SECTOR_BYTES > REPLAYED_BYTES_MAX {
            return Err(Error::unsupported("XFS with more than 512 MiB in its log"));
        }
        let (mut at, mut found) = (tail, Transactions::default());
        while left > 0 {
            let (raw, len) = self.header(superblock, at, left, found.lsn)?;
            let data = self.record(superblock, &raw, at, len)?;
            found.record(at, &raw, &data)?;
            (at, left) = ((at + len) % self.sectors, left - len);
        }
        Ok(found.committed)
    }

    /// Reads the header of the record at `at`, the one before which is of `before`; answers how many sectors the record has.
    fn header(
        &self,
        superblock: &Superblock,
        at: u64,
        left: u64,
        before: u64,
    ) -> Result<(RawLogRecord, u64)> {
        let first = self.read_around(at, 1)?;
        let (raw, _) = RawLogRecord::read_from_prefix(&first).expect("a sector is longer");
        let lsn = raw.lsn.get();
        let is_right = raw.magicno.get() == LOG_MAGIC
            && raw.fs_uuid == superblock.uuid
            && [VERSION_1, VERSION_2].contains(&raw.version.get())
            && lsn & u64::from(u32::MAX) == at
            && lsn > before;
        if !is_right {
            return Err(wrong(at, "h_lsn", lsn, "a record of this log, behind the one before it"));
        }
        if raw.fmt.get() != LITTLE_ENDIAN {
            return Err(Error::unsupported("XFS with a log in the order of another machine"));
        }
        let len = u64::from(raw.len.get());
        let sectors = sectors_of(&raw);
        let is_covered = len <= u64::from(headers_of(&raw)) * u64::from(HEADER_COVERS_BYTES);
        if sectors > left || sectors > RECORD_SECTORS_MAX || !is_covered {
            let expected = "a record that ends before the log does, as long as its headers cover";
            return Err(wrong(at, "h_len", len, expected));
        }
        Ok((raw, sectors))
    }

    /// Reads the data of the record at `at`, which has so many sectors. Without a checksum it may be in version 4 of the format, as the kernel
    /// takes it: Linux before 3.8 wrote none.
    fn record(&self, superblock: &Superblock, raw: &RawLogRecord, at: u64, sectors: u64) -> Result<Vec<u8>> {
        let bytes = self.read_around(at, sectors)?;
        let (heads, data) = bytes.split_at(usize::try_from(headers_of(raw)).expect("few") * SECTOR);
        let heads: Vec<_> = heads.chunks_exact(SECTOR).collect();
        let len = usize::try_from(raw.len.get()).expect("at most the log");
        if (superblock.has_checksums && raw.crc.get() == 0) || !crc_holds(&heads, &data[..len], raw.crc.get())
        {
            return Err(wrong(at, "h_crc", raw.crc.get(), "that of the record"));
        }
        let mut data = unpack(raw, &heads, data);
        data.truncate(len);
        Ok(data)
    }
}

/// Puts the first word of each sector back, where the number of the turn was written over it.
fn unpack(raw: &RawLogRecord, heads: &[&[u8]], data: &[u8]) -> Vec<u8> {
    let further = heads.iter().skip(1).map(|head| {
        let (raw, _) = RawFurtherHeader::read_from_prefix(head).expect("a sector is longer");
        raw.cycle_data
    });
    let kept: Vec<_> = std::iter::once(raw.cycle_data).chain(further).flatten().collect();
    let mut data = data.to_vec();
    for (index, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
        let word = kept.get(index).map_or(0, |word| word.get());
        sector[..4].copy_from_slice(&word.to_be_bytes());
    }
    data
}

/// Transactions that are put together from records.
#[derive(Default)]
struct Transactions {
    /// Of the last record.
    lsn: u64,
    /// Those of which more is to come, by number.
    open: HashMap<u32, Transaction>,
    /// In the order in which they were committed.
    committed: Vec<Transaction>,
}

impl Transactions {
    /// Takes all operations of the record at `sector`. What is left fills the record up to a sector, or to a stripe.
    fn record(&mut self, sector: u64, raw: &RawLogRecord, data: &[u8]) -> Result<()> {
        self.lsn = raw.lsn.get();
        let mut rest = data;
        for _ in 0..raw.num_logops.get() {
            let short = || wrong(sector, "oh_len", rest.len() as u64, "an operation within its record");
            let (operation, behind) = RawOperation::read_from_prefix(rest).map_err(|_| short())?;
            let len = usize::try_from(operation.len.get()).map_err(|_| short())?;
            let (data, behind) = behind.split_at_checked(len).ok_or_else(short)?;
            self.operation(sector, &operation, data)?;
            rest = behind;
        }
        Ok(())
    }

    /// Takes one operation of the record at `sector`.
    fn operation(&mut self, sector: u64, raw: &RawOperation, data: &[u8]) -> Result<()> {
        let (id, flags) = (raw.tid.get(), raw.flags);
        if flags & operation::UNMOUNT_TRANS != 0 {
            return Ok(());
        }
        if flags & operation::START_TRANS != 0 {
            self.open.insert(id, Transaction { lsn: self.lsn, ..Transaction::default() });
            return Ok(());
        }
        if flags & operation::COMMIT_TRANS != 0 {
            if let Some(transaction) = self.open.remove(&id) {
                transaction.check(sector)?;
                self.committed.push(transaction);
            }
            return Ok(());
        }
        // One that begins before the tail is in its places already.
        match self.open.get_mut(&id) {
            None => Ok(()),
            Some(transaction) if flags & operation::WAS_CONT_TRANS != 0 => {
                transaction.add_continued(sector, data)
            }
            Some(transaction) => transaction.add(sector, data),
        }
    }
}
