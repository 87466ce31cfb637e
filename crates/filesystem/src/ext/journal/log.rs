//! The journal as a file of blocks: its superblock validated, its log as a ring.

use block::{Error, FieldValue, Result, read_vec};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{
    MAGIC, RawJournalSuperblock, SUPERBLOCK_CHECKSUM_AT, TAIL_BYTES, block_type, fast_commit, features, tag,
};
use crate::Source;
use crate::ext::checksum::{SEED, crc32c};
use crate::ext::corrupt::Corrupt;
use crate::ext::inode::{Contents, Inode};
use crate::ext::superblock::{BlockNumber, Superblock};
use crate::ext::tree::{self, Collector, FileExtent};

/// A journal in more pieces than that is no journal that any tool makes.
const PIECES_MAX: usize = 65_536;

/// Which checksums the log bears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checksums {
    None,
    /// One of each whole transaction, in its commit block.
    Transaction,
    /// One of each block; 16 bits of it for copies.
    V2,
    /// One of each block.
    V3,
}

/// The validated journal.
pub(super) struct Log<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    pieces: Vec<FileExtent>,
    /// First block of the ring.
    first: u32,
    /// The block after the ring's last.
    end: u32,
    /// First block for fast commits, where there may be some.
    pub(super) fast_commits: Option<u32>,
    /// The transaction expected first, and where; `None` if nothing is pending.
    pub(super) start: Option<(u32, u32)>,
    pub(super) errno: u32,
    pub(super) checksums: Checksums,
    pub(super) bit64: bool,
    pub(super) async_commit: bool,
    pub(super) seed: u32,
}

fn corrupt(field: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
    Error::corrupt(Corrupt::JournalSuperblock).field(field, found, expected)
}

impl<'a> Log<'a> {
    /// Finds and validates the journal by its inode.
    pub(super) fn open(source: &'a Source, superblock: &'a Superblock) -> Result<Self> {
        let inode = Inode::read(source, superblock, superblock.journal_inode)?;
        if !inode.is_regular() || inode.links_count == 0 || inode.contents == Contents::None {
            let mode = format!("{:#o}", inode.mode);
            return Err(Error::corrupt(Corrupt::JournalInode).field(
                "mode",
                mode,
                "a regular file with blocks",
            ));
        }
        let blocks = inode.size_bytes / u64::from(superblock.block_bytes);
        let mut collector = Collector::new(superblock, blocks, PIECES_MAX);
        tree::walk(source, superblock, &inode, &mut collector)?;
        if let Some(hole) = first_hole(&collector.extents, blocks) {
            let expected = "allocated, as each of the journal's blocks";
            return Err(Error::corrupt(Corrupt::JournalInode).field("block", hole, expected));
        }
        let mut log = Self {
            source,
            superblock,
            pieces: collector.extents,
            first: 0,
            end: 1,
            fast_commits: None,
            start: None,
            errno: 0,
            checksums: Checksums::None,
            bit64: false,
            async_commit: false,
            seed: 0,
        };
        let bytes = log.read(0)?;
        let (raw, _) =
            RawJournalSuperblock::read_from_prefix(&bytes).expect("a block is at least that large");
        log.parse(&raw, blocks)?;
        Ok(log)
    }

    fn parse(&mut self, raw: &RawJournalSuperblock, blocks: u64) -> Result<()> {
        if raw.header.magic.get() != MAGIC {
            return Err(corrupt("magic", FieldValue::hex(raw.header.magic), format!("{MAGIC:#x}")));
        }
        match raw.header.blocktype.get() {
            block_type::SUPERBLOCK_V1 => {}
            block_type::SUPERBLOCK_V2 => self.parse_features(raw)?,
            other => return Err(corrupt("blocktype", other, "3 or 4")),
        }
        let maxlen = raw.maxlen.get();
        if raw.blocksize.get() != self.superblock.block_bytes {
            return Err(corrupt("blocksize", raw.blocksize, self.superblock.block_bytes));
        }
        if u64::from(maxlen) > blocks || maxlen < 2 {
            return Err(corrupt("maxlen", maxlen, format!("2 to {blocks}, the journal's blocks")));
        }
        self.first = raw.first.get();
        self.end = maxlen;
        if raw.header.blocktype.get() == block_type::SUPERBLOCK_V2
            && raw.feature_incompat.get() & features::INCOMPAT_FAST_COMMIT != 0
        {
            self.cut_fast_commits(raw, maxlen);
        }
        if self.first == 0 || self.first >= self.end {
            return Err(corrupt("first", self.first, format!("1 to {}", self.end - 1)));
        }
        let start = raw.start.get();
        if start != 0 && !(self.first..self.end).contains(&start) {
            return Err(corrupt("start", start, format!("0, or {} to {}", self.first, self.end - 1)));
        }
        self.start = (start != 0).then(|| (raw.sequence.get(), start));
        self.errno = raw.errno.get();
        Ok(())
    }

    /// The kernel's `jbd2_journal_load`: the journal's last blocks are for fast commits.
    fn cut_fast_commits(&mut self, raw: &RawJournalSuperblock, maxlen: u32) {
        let count = match raw.num_fc_blks.get() {
            0 => fast_commit::BLOCKS_DEFAULT,
            count => count,
        };
        if maxlen.checked_sub(count).is_some_and(|rest| rest >= fast_commit::LOG_BLOCKS_MIN) {
            self.end = maxlen - count;
        }
        self.fast_commits = Some(self.end + 1).filter(|block| *block < maxlen);
    }

    fn parse_features(&mut self, raw: &RawJournalSuperblock) -> Result<()> {
        use features as f;
        let (compat, incompat) = (raw.feature_compat.get(), raw.feature_incompat.get());
        let known = f::INCOMPAT_REVOKE
            | f::INCOMPAT_64BIT
            | f::INCOMPAT_ASYNC_COMMIT
            | f::INCOMPAT_CSUM_V2
            | f::INCOMPAT_CSUM_V3
            | f::INCOMPAT_FAST_COMMIT;
        for (set, bits, known) in [
            ("compat", compat, f::COMPAT_CHECKSUM),
            ("incompat", incompat, known),
            ("ro_compat", raw.feature_ro_compat.get(), 0),
        ] {
            if bits & !known != 0 {
                let unknown = bits & !known;
                return Err(Error::unsupported(format!("ext journal {set} feature {unknown:#x} (unknown)")));
            }
        }
        let kinds = [
            (compat & f::COMPAT_CHECKSUM != 0, Checksums::Transaction),
            (incompat & f::INCOMPAT_CSUM_V2 != 0, Checksums::V2),
            (incompat & f::INCOMPAT_CSUM_V3 != 0, Checksums::V3),
        ];
        let mut set = kinds.iter().filter(|(set, _)| *set).map(|(_, kind)| *kind);
        self.checksums = set.next().unwrap_or(Checksums::None);
        if set.next().is_some() {
            return Err(corrupt("features", "more than one kind of checksum", "one"));
        }
        self.bit64 = incompat & f::INCOMPAT_64BIT != 0;
        self.async_commit = incompat & f::INCOMPAT_ASYNC_COMMIT != 0;
        self.seed = crc32c(SEED, &raw.uuid);
        self.verify_superblock(raw)
    }

    fn verify_superblock(&self, raw: &RawJournalSuperblock) -> Result<()> {
        if !self.checks_blocks() {
            return Ok(());
        }
        if raw.checksum_type != 4 {
            return Err(corrupt("checksum_type", raw.checksum_type, "4 (CRC-32C)"));
        }
        let computed = checksum_without(SEED, raw.as_bytes(), SUPERBLOCK_CHECKSUM_AT);
        if computed != raw.checksum.get() {
            let (found, expected) = (raw.checksum.get(), computed);
            return Err(Error::corrupt(Corrupt::JournalSuperblockChecksum { found, expected }));
        }
        Ok(())
    }

    /// Whether each block of the log has a checksum.
    pub(super) fn checks_blocks(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    /// Bytes of a tag without its UUID.
    pub(super) fn tag_bytes(&self) -> usize {
        let bytes = if self.bit64 { tag::BYTES_64 } else { tag::BYTES_32 };
        match self.checksums {
            Checksums::V3 => tag::BYTES_V3,
            Checksums::V2 => bytes + tag::BYTES_V2_MORE,
            Checksums::None | Checksums::Transaction => bytes,
        }
    }

    /// Bytes of a descriptor or revoke block before its checksum.
    pub(super) fn payload_bytes(&self) -> usize {
        let block = usize::try_from(self.superblock.block_bytes).expect("at most 64 KiB");
        if self.checks_blocks() { block - TAIL_BYTES } else { block }
    }

    /// Whether a descriptor or revoke block has the checksum at its end.
    pub(super) fn tail_holds(&self, bytes: &[u8]) -> bool {
        let at = bytes.len() - TAIL_BYTES;
        let stored = bytes.last_chunk().map(|tail| u32::from_be_bytes(*tail));
        !self.checks_blocks() || stored == Some(checksum_without(self.seed, bytes, at))
    }

    /// Blocks of the ring.
    pub(super) fn ring_blocks(&self) -> u32 {
        self.end - self.first
    }

    /// The block that follows in the ring.
    pub(super) fn next(&self, block: u32) -> u32 {
        if block + 1 >= self.end { self.first } else { block + 1 }
    }

    /// The block that holds the journal's superblock.
    pub(super) fn superblock_block(&self) -> Option<BlockNumber> {
        self.pieces.first().filter(|piece| piece.logical == 0).map(|piece| piece.start)
    }

    /// Reads a block of the journal.
    pub(super) fn read(&self, block: u32) -> Result<Vec<u8>> {
        let logical = u64::from(block);
        let index = self.pieces.partition_point(|piece| piece.logical + piece.count <= logical);
        let piece = self.pieces.get(index).filter(|piece| piece.logical <= logical);
        let Some(piece) = piece else {
            return Err(Error::corrupt(Corrupt::Journal).field("block", block, "allocated"));
        };
        let at = self.superblock.offset_of(piece.start + (logical - piece.logical));
        read_vec(self.source, at, self.superblock.block_bytes.into(), "ext journal")
    }
}

/// The first of a journal's blocks that is in none of its extents. The kernel stops when it meets one, and e2fsck
/// removes a journal with one that is mapped by pointers.
fn first_hole(extents: &[FileExtent], blocks: u64) -> Option<u64> {
    let mut at = 0;
    for extent in extents {
        if extent.logical > at {
            break;
        }
        at = extent.logical + extent.count;
    }
    (at < blocks).then_some(at)
}

/// CRC-32C of `bytes` with zeros in place of the four from `at`.
pub(super) fn checksum_without(seed: u32, bytes: &[u8], at: usize) -> u32 {
    [&bytes[..at], &[0; 4], &bytes[at + 4..]].into_iter().fold(seed, crc32c)
}
