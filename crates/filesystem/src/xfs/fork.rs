//! The extents of a fork: in the inode, or in a tree whose root is there.

use std::mem::offset_of;

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

use super::inode::{Fork, Inode, wrong};
use super::layout::{LONG_NODE_4_BYTES, NONE, RawForkRoot, RawLongNode, format};
use super::seal::crc_holds;
use super::superblock::{BlockNumber, Superblock};
use crate::Source;

const RECORD_BYTES: usize = 16;
const WORD_BYTES: usize = 8;
/// More levels than any inode's tree has (`xfs_bmap_compute_maxlevels`).
const LEVELS_MAX: u16 = 12;

/// An extent of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    /// In blocks of the file.
    pub(super) logical: u64,
    pub(super) first: BlockNumber,
    pub(super) count: u64,
    pub(super) is_unwritten: bool,
}

/// What a walk meets.
pub(super) enum Met {
    /// A block of the tree.
    Node(BlockNumber),
    Extent(Mapping),
}

/// Calls `each` with the blocks of a fork's tree, and its extents in the file's order. Answers how many blocks all of that is. That a block says
/// something else of those below than these hold is told once all were met.
pub(super) fn walk(
    source: &Source,
    superblock: &Superblock,
    inode: &Inode,
    fork: &Fork,
    each: &mut dyn FnMut(Met) -> Result<()>,
) -> Result<u64> {
    let mut walk = Walk {
        source,
        superblock,
        number: inode.number,
        each,
        end: 0,
        extents: 0,
        blocks: 0,
        nodes: 0,
        before: Vec::new(),
        wrong_key: None,
    };
    match fork.format {
        format::EXTENTS => {
            let count = usize::try_from(fork.extent_count).unwrap_or(usize::MAX);
            let is_there = fork.bytes.len() / RECORD_BYTES >= count;
            let records = fork.bytes.get(..count.saturating_mul(RECORD_BYTES)).filter(|_| is_there);
            let records = records
                .ok_or_else(|| wrong(inode.number, "nextents", fork.extent_count, "what the fork holds"))?;
            walk.records(records)?;
        }
        format::BTREE => walk.root(&fork.bytes)?,
        _ => return Ok(0),
    }
    if let Some(key) = walk.wrong_key {
        return Err(wrong(
            inode.number,
            "key in its tree of extents",
            key,
            "what the block below begins with",
        ));
    }
    if walk.extents != fork.extent_count {
        let expected = format!("{}, as many as there are", walk.extents);
        return Err(wrong(inode.number, "nextents", fork.extent_count, &expected));
    }
    Ok(walk.blocks + walk.nodes)
}

/// Where an extent is in the file, by its first word.
fn logical_of(high: u64) -> u64 {
    high << 1 >> 10
}

struct Walk<'a, 'b> {
    source: &'a Source,
    superblock: &'a Superblock,
    number: u64,
    each: &'b mut dyn FnMut(Met) -> Result<()>,
    /// Where the last extent ended in the file.
    end: u64,
    extents: u64,
    blocks: u64,
    nodes: u64,
    /// Of each level, from the leaves up: the block that was met last, and which it says comes next.
    before: Vec<Option<(u64, u64)>>,
    /// The first key of a block that begins with something else.
    wrong_key: Option<u64>,
}

impl Walk<'_, '_> {
    fn wrong(&self, name: &str, found: impl Into<u64>, expected: &str) -> Error {
        wrong(self.number, name, found, expected)
    }

    fn root(&mut self, bytes: &[u8]) -> Result<()> {
        let number = self.number;
        let expected = "1 to 12 levels, and as many records as fit";
        let bad = |level: u16| wrong(number, "root of its tree of extents", level, expected);
        let (raw, rest) = RawForkRoot::read_from_prefix(bytes).map_err(|_| bad(0))?;
        let (level, count) = (raw.level.get(), usize::from(raw.numrecs.get()));
        let count_max = rest.len() / (2 * WORD_BYTES);
        if !(1..=LEVELS_MAX).contains(&level) || count == 0 || count > count_max {
            return Err(bad(level));
        }
        self.before = vec![None; usize::from(level)];
        self.below(rest.split_at(count_max * WORD_BYTES), count, level)?;
        match self.before.iter().flatten().find(|(_, right)| *right != NONE) {
            Some((_, right)) => Err(self.wrong("rightsib", *right, "none of the last block of a level")),
            None => Ok(()),
        }
    }

    /// Walks blocks below one of this level, of which these are the keys and the pointers. Answers where they begin in the file.
    fn below(&mut self, (keys, pointers): (&[u8], &[u8]), count: usize, level: u16) -> Result<u64> {
        let word = |bytes: &[u8]| U64::read_from_bytes(bytes).expect("8 bytes").get();
        let mut start = None;
        for (key, pointer) in keys.chunks_exact(WORD_BYTES).zip(pointers.chunks_exact(WORD_BYTES)).take(count)
        {
            let first = self.node(word(pointer), level - 1)?;
            if word(key) != first {
                self.wrong_key.get_or_insert(word(key));
            }
            start.get_or_insert(first);
        }
        Ok(start.unwrap_or_default())
    }

    /// Answers where what lies below begins in the file.
    fn node(&mut self, name: u64, level: u16) -> Result<u64> {
        let (source, superblock) = (self.source, self.superblock);
        let block = superblock.block_of(name).filter(|_| self.nodes < superblock.blocks);
        let block = block.ok_or_else(|| self.wrong("block of its tree", name, "a block of the volume"))?;
        self.nodes += 1;
        let bytes =
            read_vec(&**source, superblock.offset_of(block), superblock.block_bytes.into(), "XFS extents")?;
        let count = self.check(name, block, level, &bytes)?;
        (self.each)(Met::Node(block))?;
        let body = &bytes[self.header_bytes()..];
        if level == 0 {
            let first = U64::read_from_prefix(body).map_or(0, |(high, _)| high.get());
            self.records(&body[..count * RECORD_BYTES])?;
            return Ok(logical_of(first));
        }
        self.below(body.split_at(body.len() / (2 * WORD_BYTES) * WORD_BYTES), count, level)
    }

    fn header_bytes(&self) -> usize {
        if self.superblock.has_checksums { size_of::<RawLongNode>() } else { LONG_NODE_4_BYTES }
    }

    fn check(&mut self, name: u64, block: BlockNumber, level: u16, bytes: &[u8]) -> Result<usize> {
        let (raw, _) = RawLongNode::read_from_prefix(bytes).expect("a block is longer");
        if self.superblock.has_checksums {
            self.check_owner(block, &raw, bytes)?;
        } else if raw.magic != *b"BMAP" {
            let found = u32::from_be_bytes(raw.magic);
            return Err(self.wrong("magic of a block of its tree", found, "that of such a block"));
        }
        let (count, count_max) =
            (usize::from(raw.numrecs.get()), (bytes.len() - self.header_bytes()) / RECORD_BYTES);
        if raw.level.get() != level || count == 0 || count > count_max {
            return Err(self.wrong(
                "numrecs of a block of its tree",
                raw.numrecs.get(),
                "what a block of its level holds",
            ));
        }
        let place = &mut self.before[usize::from(level)];
        let (left, expected) = place.unwrap_or((NONE, name));
        *place = Some((name, raw.rightsib.get()));
        if raw.leftsib.get() != left || expected != name {
            return Err(self.wrong(
                "leftsib of a block of its tree",
                raw.leftsib.get(),
                "the block before it",
            ));
        }
        Ok(count)
    }

    /// Checks what version 5 has in a block's header.
    fn check_owner(&self, block: BlockNumber, raw: &RawLongNode, bytes: &[u8]) -> Result<()> {
        if raw.magic != *b"BMA3" || !crc_holds(bytes, offset_of!(RawLongNode, crc)) {
            return Err(self.wrong("crc of a block of its tree", raw.crc.get(), "that of the block"));
        }
        if !self.superblock.is_past(raw.lsn.get()) {
            return Err(self.wrong(
                "lsn of a block of its tree",
                raw.lsn.get(),
                "a place before the log's end",
            ));
        }
        let is_its = raw.uuid == self.superblock.meta_uuid && raw.owner.get() == self.number;
        if is_its && raw.blkno.get() == self.superblock.daddr_of(block) {
            return Ok(());
        }
        let expected = "the inode, and its own place";
        Err(self.wrong("owner of a block of its tree", raw.owner.get(), expected))
    }

    fn records(&mut self, bytes: &[u8]) -> Result<()> {
        for record in bytes.chunks_exact(RECORD_BYTES) {
            let word = |at: usize| U64::read_from_bytes(&record[at..at + 8]).expect("8 bytes").get();
            self.record(word(0), word(8))?;
        }
        Ok(())
    }

    /// Bit 127 is the state, 54 bits are the place in the file, 52 the place on the volume, 21 the length.
    fn record(&mut self, high: u64, low: u64) -> Result<()> {
        let (logical, count) = (logical_of(high), low & 0x1f_ffff);
        let name = (high & 0x1ff) << 43 | low >> 21;
        let first = self.superblock.block_of(name).filter(|first| self.superblock.holds(*first, count));
        let Some(first) = first.filter(|_| count > 0 && logical >= self.end) else {
            return Err(self.wrong(
                "extent",
                name,
                "within a group, and behind the one before it in the file",
            ));
        };
        self.end = logical + count;
        self.extents += 1;
        self.blocks += count;
        (self.each)(Met::Extent(Mapping { logical, first, count, is_unwritten: high >> 63 == 1 }))
    }
}
