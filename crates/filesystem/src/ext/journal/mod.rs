//! The journal of ext3 and ext4 (jbd2), replayed in memory.
//!
//! Three passes, as in the kernel's `fs/jbd2/recovery.c`: find where the log ends, collect what is revoked,
//! replay. Where the kernel would mount the volume but for a reported error, this fails instead. Fast
//! commits are found, not replayed: a volume that has some pending is not to be relied on.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use block::{Error, Overlay, Result};
use zerocopy::FromBytes;

use self::layout::{
    COMMIT_CHECKSUM_AT, HEADER_BYTES, MAGIC, REVOKE_COUNT_AT, REVOKE_RECORDS_AT, RawCommit, RawHeader,
    block_type, fast_commit, tag,
};
use self::log::{Checksums, Log, checksum_without};
use super::checksum::{crc32_be, crc32c};
use super::features::incompat;
use super::superblock::{BlockNumber, Superblock};
use crate::Source;
use crate::ext::corrupt::Corrupt;

mod layout;
mod log;

/// The most memory that replayed blocks may take.
const REPLAYED_BYTES_MAX: u64 = 96 << 20;
/// The most blocks that may be revoked.
const REVOKED_COUNT_MAX: usize = 1 << 20;

/// What the journal asks for.
pub(super) enum Outcome {
    /// There is no journal, or nothing is pending in it.
    Nothing,
    /// It is marked as pending, but nothing is.
    Empty,
    /// The volume as it will be once it is replayed, and in words what was.
    Replayed { source: Source, what: String },
}

/// The block of the journal's superblock, if the volume has a journal.
pub(super) fn superblock_block(source: &Source, superblock: &Superblock) -> Result<Option<BlockNumber>> {
    if !superblock.features.has_journal() || superblock.journal_inode == 0 {
        return Ok(None);
    }
    Ok(Log::open(source, superblock)?.superblock_block())
}

/// Replays the journal if it is pending.
pub(super) fn replay(source: &Source, superblock: &Superblock) -> Result<Outcome> {
    let pending = superblock.features.incompat.has(incompat::RECOVER);
    if !superblock.features.has_journal() {
        return match pending {
            true => Err(Error::corrupt(Corrupt::NoJournal)),
            false => Ok(Outcome::Nothing),
        };
    }
    if superblock.journal_inode == 0 {
        return match pending {
            true => Err(Error::unsupported("ext needs its journal replayed, which is on another device")),
            false => Ok(Outcome::Nothing),
        };
    }
    let log = Log::open(source, superblock)?;
    if log.errno != 0 {
        return Err(Error::corrupt(Corrupt::JournalStopped { errno: log.errno }));
    }
    match (pending, log.start) {
        (false, None) => Ok(Outcome::Nothing),
        (false, Some(_)) => Err(Error::corrupt(Corrupt::JournalNotPending)),
        (true, None) => Ok(Outcome::Empty),
        (true, Some((sequence, start))) => Replay::new(&log, superblock, sequence, start).run(source),
    }
}

/// The passes over a log.
struct Replay<'a> {
    log: &'a Log<'a>,
    superblock: &'a Superblock,
    /// The first transaction, and its first block.
    sequence: u32,
    start: u32,
    /// For each revoked block the last transaction that revoked it.
    revoked: HashMap<BlockNumber, u32>,
    /// The blocks as they will be.
    blocks: BTreeMap<BlockNumber, Vec<u8>>,
}

/// A place in the log, and the transaction that is expected there.
#[derive(Clone, Copy)]
struct Cursor {
    block: u32,
    sequence: u32,
    /// Blocks that may still be looked at before all of the ring was.
    left: u32,
}

/// A tag of a descriptor block.
struct Tag {
    target: BlockNumber,
    flags: u16,
    /// As stored: 16 bits in the second kind of checksum, 32 in the third.
    checksum: u32,
}

impl<'a> Replay<'a> {
    fn new(log: &'a Log<'a>, superblock: &'a Superblock, sequence: u32, start: u32) -> Self {
        Self { log, superblock, sequence, start, revoked: HashMap::new(), blocks: BTreeMap::new() }
    }

    fn run(mut self, source: &Source) -> Result<Outcome> {
        let end = self.scan()?;
        self.check_fast_commits(end)?;
        self.revoke(end)?;
        self.replay(end)?;
        let transactions = end.wrapping_sub(self.sequence);
        let what = format!(
            "its journal, replayed in memory: {transactions} transactions, {} blocks",
            self.blocks.len()
        );
        let mut overlay = Overlay::new(source.clone());
        for (block, bytes) in self.blocks {
            overlay.patch(self.superblock.offset_of(block), bytes);
        }
        Ok(Outcome::Replayed { source: Arc::new(overlay), what })
    }

    fn cursor(&self) -> Cursor {
        Cursor { block: self.start, sequence: self.sequence, left: self.log.ring_blocks() }
    }

    /// The next block of the log that belongs to the expected transaction, with its type; `None` at the end
    /// of the log.
    fn next(&self, cursor: &mut Cursor) -> Result<Option<(u32, Vec<u8>)>> {
        // A ring that was seen whole has nothing more to say.
        if cursor.left == 0 {
            return Ok(None);
        }
        let bytes = self.log.read(cursor.block)?;
        let (header, _) = RawHeader::read_from_prefix(&bytes).expect("a block is larger than a header");
        let belongs = header.magic.get() == MAGIC && header.sequence.get() == cursor.sequence;
        if !belongs {
            return Ok(None);
        }
        self.advance(cursor)?;
        Ok(Some((header.blocktype.get(), bytes)))
    }

    /// Steps over a block; returns which it was.
    fn advance(&self, cursor: &mut Cursor) -> Result<u32> {
        let block = cursor.block;
        cursor.left =
            cursor.left.checked_sub(1).ok_or_else(|| Error::corrupt(Corrupt::TransactionTooLong))?;
        cursor.block = self.log.next(block);
        Ok(block)
    }

    /// Finds the transaction at which the log ends: the first that was not committed.
    fn scan(&self) -> Result<u32> {
        let mut cursor = self.cursor();
        let mut scan = Scan::default();
        while let Some((kind, bytes)) = self.next(&mut cursor)? {
            match kind {
                block_type::DESCRIPTOR => {
                    scan.damaged |= !self.log.tail_holds(&bytes);
                    scan.crc = self.sum_or_skip(&mut cursor, &bytes, &scan)?;
                }
                block_type::REVOKE => scan.damaged |= !self.log.tail_holds(&bytes),
                block_type::COMMIT => match self.commit(&bytes, cursor.sequence, &mut scan)? {
                    Commit::Stale => return Ok(scan.end.unwrap_or(cursor.sequence)),
                    Commit::Good | Commit::Interrupted => cursor.sequence = cursor.sequence.wrapping_add(1),
                },
                _ => break,
            }
        }
        Ok(scan.end.unwrap_or(cursor.sequence))
    }

    /// Steps over the copies that a descriptor block describes; with the first kind of checksum, sums them.
    fn sum_or_skip(&self, cursor: &mut Cursor, bytes: &[u8], scan: &Scan) -> Result<u32> {
        let sums = self.log.checksums == Checksums::Transaction;
        let mut crc = if sums { crc32_be(scan.crc, bytes) } else { scan.crc };
        for _ in self.tags(bytes) {
            let block = self.advance(cursor)?;
            if sums {
                crc = crc32_be(crc, &self.log.read(block)?);
            }
        }
        Ok(crc)
    }

    /// Judges a commit block.
    fn commit(&self, bytes: &[u8], sequence: u32, scan: &mut Scan) -> Result<Commit> {
        let (raw, _) = RawCommit::read_from_prefix(bytes).expect("a block is larger than a commit");
        let time = raw.commit_sec.get();
        let stored = raw.chksum[0].get();
        let holds = match self.log.checksums {
            Checksums::None => true,
            Checksums::Transaction => {
                let unused = (raw.chksum_type, raw.chksum_size, stored) == (0, 0, 0);
                unused || (raw.chksum_type, raw.chksum_size, stored) == (1, 4, scan.crc)
            }
            Checksums::V2 | Checksums::V3 => {
                stored == checksum_without(self.log.seed, bytes, COMMIT_CHECKSUM_AT)
            }
        };
        if scan.damaged || !holds {
            // Left over from an earlier life of the log: the log ends before it.
            if time < scan.last_time {
                return Ok(Commit::Stale);
            }
            if scan.damaged || !self.log.async_commit {
                return Err(Error::corrupt(Corrupt::TransactionChecksum { sequence }));
            }
        }
        // With asynchronous commits the last transaction may be torn. If it has a successor, it was not the last.
        if scan.end.is_some() {
            let sequence = sequence.wrapping_sub(1);
            return Err(Error::corrupt(Corrupt::InnerTransactionChecksum { sequence }));
        }
        scan.last_time = time;
        scan.crc = !0;
        if holds {
            return Ok(Commit::Good);
        }
        scan.end = Some(sequence);
        Ok(Commit::Interrupted)
    }

    /// Fails if fast commits follow the transaction before `end`.
    fn check_fast_commits(&self, end: u32) -> Result<()> {
        let Some(block) = self.log.fast_commits else {
            return Ok(());
        };
        let bytes = self.log.read(block)?;
        let kind = u16::from_le_bytes([bytes[0], bytes[1]]);
        let sequence_at = fast_commit::HEAD_SEQUENCE_AT;
        let sequence = bytes[sequence_at..].first_chunk().map_or(0, |chunk| u32::from_le_bytes(*chunk));
        let stale = kind == 0 || kind > fast_commit::HEAD || (kind == fast_commit::HEAD && sequence != end);
        if stale {
            return Ok(());
        }
        Err(Error::unsupported("ext journal has fast commits pending, which are not replayed"))
    }

    /// Collects what is revoked before transaction `end`.
    fn revoke(&mut self, end: u32) -> Result<()> {
        let mut cursor = self.cursor();
        while cursor.sequence != end {
            let (kind, bytes) = self.expect_next(&mut cursor)?;
            match kind {
                block_type::DESCRIPTOR => {
                    for _ in self.tags(&bytes) {
                        self.advance(&mut cursor)?;
                    }
                }
                block_type::REVOKE => self.revoke_records(&bytes, cursor.sequence)?,
                _ => cursor.sequence = cursor.sequence.wrapping_add(1),
            }
        }
        Ok(())
    }

    fn expect_next(&self, cursor: &mut Cursor) -> Result<(u32, Vec<u8>)> {
        self.next(cursor)?.ok_or_else(|| Error::corrupt(Corrupt::LogEndsEarly))
    }

    fn revoke_records(&mut self, bytes: &[u8], sequence: u32) -> Result<()> {
        let used = be32(bytes, REVOKE_COUNT_AT);
        let max = self.log.payload_bytes();
        let used = usize::try_from(used).ok().filter(|used| (REVOKE_RECORDS_AT..=max).contains(used));
        let Some(used) = used else {
            let found = be32(bytes, REVOKE_COUNT_AT);
            return Err(Error::corrupt(Corrupt::RevokeBlock).field("count", found, format!("16 to {max}")));
        };
        let record_bytes = if self.log.bit64 { 8 } else { 4 };
        for record in bytes[REVOKE_RECORDS_AT..used].chunks_exact(record_bytes) {
            let block = record.iter().fold(0, |block, byte| block << 8 | u64::from(*byte));
            // Transactions are met in order, so the last one stays.
            self.revoked.insert(block, sequence);
        }
        if self.revoked.len() > REVOKED_COUNT_MAX {
            return Err(Error::unsupported("ext journal revokes too many blocks to replay in memory"));
        }
        Ok(())
    }

    /// Whether a copy in transaction `sequence` is void: the block was revoked then or later.
    fn is_revoked(&self, block: BlockNumber, sequence: u32) -> bool {
        let since = |revoked: u32| revoked.wrapping_sub(self.sequence);
        self.revoked.get(&block).is_some_and(|revoked| since(*revoked) >= since(sequence))
    }

    /// Takes the copies of all transactions before `end`.
    fn replay(&mut self, end: u32) -> Result<()> {
        let mut cursor = self.cursor();
        while cursor.sequence != end {
            let (kind, bytes) = self.expect_next(&mut cursor)?;
            match kind {
                block_type::DESCRIPTOR => {
                    for tag in self.tags(&bytes) {
                        let block = self.advance(&mut cursor)?;
                        if !self.is_revoked(tag.target, cursor.sequence) {
                            self.take(&tag, block, cursor.sequence)?;
                        }
                    }
                }
                block_type::REVOKE => {}
                _ => cursor.sequence = cursor.sequence.wrapping_add(1),
            }
        }
        Ok(())
    }

    fn take(&mut self, tag: &Tag, block: u32, sequence: u32) -> Result<()> {
        let target = tag.target;
        let mut bytes = self.log.read(block)?;
        let crc = crc32c(crc32c(self.log.seed, &sequence.to_be_bytes()), &bytes);
        let holds = match self.log.checksums {
            Checksums::None | Checksums::Transaction => true,
            Checksums::V2 => tag.checksum == crc & 0xffff,
            Checksums::V3 => tag.checksum == crc,
        };
        if !holds {
            let (block, found, expected) = (target, tag.checksum, crc);
            return Err(Error::corrupt(Corrupt::TransactionBlockChecksum {
                sequence,
                block,
                found,
                expected,
            }));
        }
        if target >= self.superblock.blocks_count {
            let what = Corrupt::Transaction { sequence };
            let expected = format!("below {}", self.superblock.blocks_count);
            return Err(Error::corrupt(what).field("block", target, expected));
        }
        if tag.flags & tag::ESCAPE != 0 {
            bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        self.blocks.insert(target, bytes);
        let held = self.blocks.len() as u64 * u64::from(self.superblock.block_bytes);
        if held > REPLAYED_BYTES_MAX {
            return Err(Error::unsupported("ext journal is too large to be replayed in memory"));
        }
        Ok(())
    }

    /// The tags of a descriptor block.
    fn tags(&self, bytes: &[u8]) -> Vec<Tag> {
        let tag_bytes = self.log.tag_bytes();
        let end = self.log.payload_bytes();
        let mut tags = Vec::new();
        let mut at = HEADER_BYTES;
        while at + tag_bytes <= end {
            let tag = self.tag(&bytes[at..at + tag_bytes]);
            at += tag_bytes;
            if tag.flags & tag::SAME_UUID == 0 {
                at += tag::UUID_BYTES;
            }
            let last = tag.flags & tag::LAST != 0;
            tags.push(tag);
            if last {
                break;
            }
        }
        tags
    }

    fn tag(&self, bytes: &[u8]) -> Tag {
        let hi = if self.log.bit64 { be32(bytes, tag::BLOCK_HI_AT) } else { 0 };
        let checksum = match self.log.checksums {
            Checksums::None | Checksums::Transaction => 0,
            Checksums::V2 => u32::from(be16(bytes, tag::CHECKSUM_V2_AT)),
            Checksums::V3 => be32(bytes, tag::CHECKSUM_V3_AT),
        };
        Tag {
            target: u64::from(hi) << 32 | u64::from(be32(bytes, tag::BLOCK_LO_AT)),
            flags: be16(bytes, tag::FLAGS_AT),
            checksum,
        }
    }
}

/// What the first pass knows.
struct Scan {
    /// A descriptor or revoke block of the transaction has a wrong checksum.
    damaged: bool,
    /// Of the transaction so far, for the first kind of checksum.
    crc: u32,
    /// When the last good transaction was committed.
    last_time: u64,
    /// The transaction that is torn, if one is.
    end: Option<u32>,
}

impl Default for Scan {
    fn default() -> Self {
        Self { damaged: false, crc: !0, last_time: 0, end: None }
    }
}

enum Commit {
    Good,
    /// Torn, which asynchronous commits allow for the last transaction.
    Interrupted,
    /// Not of this life of the log.
    Stale,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
