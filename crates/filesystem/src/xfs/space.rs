//! The records of the trees of free space, of reference counts and of inodes.

use block::{Error, Result};
use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::corrupt::Corrupt;
use super::group::Free;
use super::superblock::{GroupBlock, GroupNumber, Superblock};
use super::tree::{self, INODES, Kind, REFERENCES, Root, Step};
use crate::Source;

/// Blocks of one group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Blocks {
    pub(super) first: GroupBlock,
    pub(super) count: u32,
}

impl Blocks {
    pub(super) fn end(self) -> GroupBlock {
        self.first.saturating_add(self.count)
    }
}

/// How often blocks are referred to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct References {
    pub(super) blocks: Blocks,
    pub(super) count: u32,
    /// They are reserved for a write to what is shared, and belong to nobody yet.
    pub(super) is_staging: bool,
}

/// 64 inodes in a row, of which some may not be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    /// The number of the first in its group.
    pub(super) first: u32,
    /// Bits of those that are there.
    pub(super) there: u64,
    /// Bits of those that are free, among those that are there.
    pub(super) free: u64,
}

/// Of the first block: it belongs to a write to what is shared.
const STAGING: u32 = 1 << 31;

fn wrong(kind: &Kind, group: GroupNumber, start: u32, name: &str, found: u64, expected: &str) -> Error {
    Error::corrupt(Corrupt::Record { what: kind.name, group, start }).field(name, found, expected)
}

fn word(bytes: &[u8], index: usize) -> u32 {
    U32::read_from_bytes(&bytes[index * 4..][..4]).expect("4 bytes").get()
}

fn within(superblock: &Superblock, group: GroupNumber, kind: &Kind, blocks: Blocks) -> Result<()> {
    let end = blocks.first.checked_add(blocks.count);
    let is_within = blocks.count > 0 && end.is_some_and(|end| end <= superblock.blocks_of(group));
    let expected = "at least 1, and an end within the group";
    if is_within {
        Ok(())
    } else {
        Err(wrong(kind, group, blocks.first, "blockcount", blocks.count.into(), expected))
    }
}

/// What is met in a tree.
pub(super) enum Met<T> {
    /// A block of it.
    Node(GroupBlock),
    /// What it has a record of.
    Record(T),
}

/// Calls `each` with all blocks of a tree of free space, and what it says is free, in its order.
pub(super) fn each_free(
    source: &Source,
    superblock: &Superblock,
    group: GroupNumber,
    root: Root,
    each: &mut dyn FnMut(Met<Blocks>) -> Result<()>,
) -> Result<()> {
    let by_place = root.kind == &tree::BY_PLACE;
    let mut before: Option<Blocks> = None;
    tree::walk(source, superblock, group, root, &mut |step| match step {
        Step::Node(block) => each(Met::Node(block)),
        Step::Record(record) => {
            let blocks = Blocks { first: word(record, 0), count: word(record, 1) };
            within(superblock, group, root.kind, blocks)?;
            let is_behind = before.is_none_or(|before| match by_place {
                true => before.end() <= blocks.first,
                false => (before.count, before.first) < (blocks.count, blocks.first),
            });
            if !is_behind {
                let expected = "behind the record before it";
                return Err(wrong(
                    root.kind,
                    group,
                    blocks.first,
                    "startblock",
                    blocks.first.into(),
                    expected,
                ));
            }
            before = Some(blocks);
            each(Met::Record(blocks))
        }
    })
}

/// What is free of a group, in order: what its tree says, and the blocks that are kept for its trees.
pub(super) fn free_of(
    source: &Source,
    superblock: &Superblock,
    group: GroupNumber,
    free: &Free,
) -> Result<Vec<Blocks>> {
    let mut all: Vec<_> = free.kept.iter().map(|block| Blocks { first: *block, count: 1 }).collect();
    each_free(source, superblock, group, free.by_place, &mut |met| {
        if let Met::Record(blocks) = met {
            all.push(blocks);
        }
        Ok(())
    })?;
    all.sort_unstable();
    let mut merged: Vec<Blocks> = Vec::with_capacity(all.len());
    for blocks in all {
        match merged.last_mut() {
            Some(last) if last.end() >= blocks.first => {
                last.count = last.count.max(blocks.end() - last.first);
            }
            _ => merged.push(blocks),
        }
    }
    Ok(merged)
}

/// Calls `each` with all blocks of the tree of reference counts, and its records.
pub(super) fn each_references(
    source: &Source,
    superblock: &Superblock,
    group: GroupNumber,
    root: Root,
    each: &mut dyn FnMut(Met<References>) -> Result<()>,
) -> Result<()> {
    let mut before: Option<References> = None;
    tree::walk(source, superblock, group, root, &mut |step| match step {
        Step::Node(block) => each(Met::Node(block)),
        Step::Record(record) => {
            let start = word(record, 0);
            let blocks = Blocks { first: start & !STAGING, count: word(record, 1) };
            let found = References { blocks, count: word(record, 2), is_staging: start & STAGING != 0 };
            within(superblock, group, &REFERENCES, blocks)?;
            if found.count == 0 || (found.count == 1) != found.is_staging {
                let expected = "2 at least; 1 of what is staged for a write";
                return Err(wrong(&REFERENCES, group, start, "refcount", found.count.into(), expected));
            }
            let is_behind = before.is_none_or(|before| match before.is_staging == found.is_staging {
                true => before.blocks.end() <= blocks.first,
                false => found.is_staging,
            });
            if !is_behind {
                return Err(wrong(
                    &REFERENCES,
                    group,
                    start,
                    "startblock",
                    start.into(),
                    "behind the record before it",
                ));
            }
            before = Some(found);
            each(Met::Record(found))
        }
    })
}

/// Calls `each` with all blocks of a tree of inodes, and its chunks.
pub(super) fn each_chunk(
    source: &Source,
    superblock: &Superblock,
    group: GroupNumber,
    root: Root,
    each: &mut dyn FnMut(Met<Chunk>) -> Result<()>,
) -> Result<()> {
    let is_sparse = superblock.has(super::layout::incompat::SPINODES);
    let mut end = 0;
    tree::walk(source, superblock, group, root, &mut |step| match step {
        Step::Node(block) => each(Met::Node(block)),
        Step::Record(record) => {
            let first = word(record, 0);
            let chunk = parse_chunk(record, is_sparse).ok_or_else(|| {
                wrong(root.kind, group, first, "freecount", u64::from(word(record, 1)), "as its bits say")
            })?;
            let past = first.checked_add(64).filter(|past| {
                let block = (past - 1) >> superblock.inode_log;
                // The end of a sparse chunk may lie past the group's.
                first >= end && (is_sparse || superblock.in_group(group, block).is_some())
            });
            let is_aligned = first.is_multiple_of(1 << superblock.inode_log);
            end = past.filter(|_| is_aligned).ok_or_else(|| {
                wrong(
                    root.kind,
                    group,
                    first,
                    "startino",
                    first.into(),
                    "behind the chunk before it, at the start of a block",
                )
            })?;
            each(Met::Record(chunk))
        }
    })
}

/// `None` if its counts are not those of its bits.
fn parse_chunk(record: &[u8], is_sparse: bool) -> Option<Chunk> {
    let free = U64::read_from_bytes(&record[8..16]).expect("8 bytes").get();
    let (mut there, free_count) = (u64::MAX, word(record, 1));
    let mut counts = (64, free_count);
    if is_sparse {
        let holes = U16::read_from_bytes(&record[4..6]).expect("2 bytes").get();
        let hole = |bit: u32| if holes >> bit & 1 == 1 { 0xf_u64 << (bit * 4) } else { 0 };
        there = !(0..16).map(hole).fold(0, |all, hole| all | hole);
        counts = (u32::from(record[6]), u32::from(record[7]));
    }
    // What is not there counts as free.
    let is_right =
        there.count_ones() == counts.0 && free & !there == !there && (free & there).count_ones() == counts.1;
    (is_right && there != 0).then_some(Chunk { first: word(record, 0), there, free: free & there })
}

/// The kind of a tree that lists all inodes.
pub(super) fn lists_all(root: Root) -> bool {
    root.kind == &INODES
}
