//! The trees of a group: B+trees whose records have a fixed length.
//!
//! Invariants: a walk meets no more blocks than the group has, whatever they say; records come in the order of the tree, and each
//! block was checked for its neighbours and for what the block above says of it, and in version 5 for its checksum, its place and its owner.

use std::mem::offset_of;

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

use super::corrupt::Corrupt;
use super::key::{Keys, Order};
use super::layout::{NO_BLOCK, RawShortNode, SHORT_NODE_4_BYTES, reverse};
use super::seal::crc_holds;
use super::superblock::{GroupBlock, GroupNumber, Superblock};
use crate::Source;

const POINTER_BYTES: usize = 4;

/// A kind of tree.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    magic: [u8; 4],
    /// In version 4, which not all kinds are in.
    magic_4: [u8; 4],
    record_bytes: usize,
    /// Of all keys that a block has for another one.
    key_bytes: usize,
    order: Order,
    /// Whose its blocks are in the reverse map.
    pub(super) owner: u64,
}

const fn kind(
    name: &'static str,
    magics: [[u8; 4]; 2],
    [record_bytes, key_bytes]: [usize; 2],
    order: Order,
    owner: u64,
) -> Kind {
    let [magic, magic_4] = magics;
    Kind { name, magic, magic_4, record_bytes, key_bytes, order, owner }
}

pub(super) static BY_PLACE: Kind =
    kind("tree of free space by place", [*b"AB3B", *b"ABTB"], [8, 8], Order::Start, reverse::FREE_TREES);
pub(super) static BY_LENGTH: Kind =
    kind("tree of free space by length", [*b"AB3C", *b"ABTC"], [8, 8], Order::Length, reverse::FREE_TREES);
pub(super) static REVERSE_MAP: Kind =
    kind("reverse map", [*b"RMB3"; 2], [24, 40], Order::Reverse, reverse::FREE_TREES);
pub(super) static REFERENCES: Kind =
    kind("tree of reference counts", [*b"R3FC"; 2], [12, 4], Order::Start, reverse::REFERENCES);
pub(super) static INODES: Kind =
    kind("tree of inodes", [*b"IAB3", *b"IABT"], [16, 4], Order::Start, reverse::INODE_TREES);
pub(super) static INODES_WITH_FREE: Kind =
    kind("tree of free inodes", [*b"FIB3"; 2], [16, 4], Order::Start, reverse::INODE_TREES);

/// Where a tree begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub(super) kind: &'static Kind,
    pub(super) block: GroupBlock,
    /// 1 if the root is a leaf.
    pub(super) levels: u32,
}

/// What a walk meets.
pub(super) enum Step<'a> {
    /// A block of the tree.
    Node(GroupBlock),
    /// A record.
    Record(&'a [u8]),
}

/// Calls `each` with every block of a tree and every record, in order. That blocks say something else of those below them than these hold
/// is told once all were met.
pub(super) fn walk(
    source: &Source,
    superblock: &Superblock,
    group: GroupNumber,
    root: Root,
    each: &mut dyn FnMut(Step<'_>) -> Result<()>,
) -> Result<()> {
    let levels = usize::try_from(root.levels).expect("at most 9");
    let mut walk = Walk {
        source,
        superblock,
        group,
        kind: root.kind,
        each,
        before: vec![None; levels],
        met: 0,
        wrong_key: None,
    };
    walk.node(root.block, root.levels - 1)?;
    match walk.before.iter().flatten().find(|(_, right)| *right != NO_BLOCK) {
        Some((block, right)) => {
            Err(walk.wrong(*block, "rightsib", *right, "none of the last block of a level"))
        }
        None => match walk.wrong_key {
            Some((block, below)) => {
                Err(walk.wrong(block, "key of a block below", below, "that of what the block holds"))
            }
            None => Ok(()),
        },
    }
}

struct Walk<'a, 'b> {
    source: &'a Source,
    superblock: &'a Superblock,
    group: GroupNumber,
    kind: &'static Kind,
    each: &'b mut dyn FnMut(Step<'_>) -> Result<()>,
    /// Of each level, from the leaves up: the block that was met last, and which it says comes next.
    before: Vec<Option<(GroupBlock, GroupBlock)>>,
    met: u32,
    /// The first block that says something else of a block below it than that one holds, and the latter.
    wrong_key: Option<(GroupBlock, GroupBlock)>,
}

impl Walk<'_, '_> {
    fn wrong(&self, block: GroupBlock, name: &str, found: impl Into<u64>, expected: &str) -> Error {
        let what = Corrupt::Node { what: self.kind.name, group: self.group, block };
        Error::corrupt(what).field(name, found.into(), expected)
    }

    /// Answers the keys of what lies below.
    fn node(&mut self, block: GroupBlock, level: u32) -> Result<Keys> {
        let Self { source, superblock, group, kind, .. } = *self;
        let at = superblock.in_group(group, block).filter(|_| self.met < superblock.blocks_of(group));
        let at =
            at.ok_or_else(|| self.wrong(block, "place", block, "a block of the group that was not met yet"))?;
        self.met += 1;
        let bytes = read_vec(&**source, superblock.offset_of(at), superblock.block_bytes.into(), kind.name)?;
        let count = self.check(block, level, &bytes)?;
        (self.each)(Step::Node(block))?;
        let body = &bytes[self.header_bytes()..];
        if level == 0 {
            let records = body.chunks_exact(kind.record_bytes).take(count);
            records.clone().try_for_each(|record| (self.each)(Step::Record(record)))?;
            return Ok(Keys::joined(kind.order, records.map(|record| Keys::of_record(kind.order, record))));
        }
        let (keys, pointers) = body.split_at(self.count_max(level) * kind.key_bytes);
        let mut found = Vec::with_capacity(count);
        for (key, pointer) in
            keys.chunks_exact(kind.key_bytes).zip(pointers.chunks_exact(POINTER_BYTES)).take(count)
        {
            let below = U32::read_from_bytes(pointer).expect("4 bytes").get();
            let keys = self.node(below, level - 1)?;
            if keys != Keys::said(kind.order, key) {
                self.wrong_key.get_or_insert((block, below));
            }
            found.push(keys);
        }
        Ok(Keys::joined(kind.order, found.into_iter()))
    }

    fn header_bytes(&self) -> usize {
        if self.superblock.has_checksums { size_of::<RawShortNode>() } else { SHORT_NODE_4_BYTES }
    }

    fn count_max(&self, level: u32) -> usize {
        let block_bytes = usize::try_from(self.superblock.block_bytes).expect("at most 64 KiB");
        let body = block_bytes - self.header_bytes();
        let each = if level == 0 { self.kind.record_bytes } else { self.kind.key_bytes + POINTER_BYTES };
        body / each
    }

    /// Checks a block's header; answers how many records it has.
    fn check(&mut self, block: GroupBlock, level: u32, bytes: &[u8]) -> Result<usize> {
        let (raw, _) = RawShortNode::read_from_prefix(bytes).expect("a block is longer");
        if self.superblock.has_checksums {
            self.check_owner(block, &raw, bytes)?;
        } else if raw.magic != self.kind.magic_4 {
            return Err(self.wrong(block, "magic", u32::from_be_bytes(raw.magic), "that of its kind"));
        }
        if u32::from(raw.level.get()) != level {
            return Err(self.wrong(block, "level", raw.level.get(), "one less than that of the block above"));
        }
        let count = usize::from(raw.numrecs.get());
        let is_root = self.before.len() == usize::try_from(level).expect("at most 9") + 1;
        if count > self.count_max(level) || (count == 0 && !(is_root && level == 0)) {
            return Err(self.wrong(block, "numrecs", raw.numrecs.get(), "what a block holds"));
        }
        let place = &mut self.before[usize::try_from(level).expect("at most 9")];
        let (left, expected) = place.map_or((NO_BLOCK, block), |(left, right)| (left, right));
        *place = Some((block, raw.rightsib.get()));
        if raw.leftsib.get() != left || expected != block {
            return Err(self.wrong(
                block,
                "leftsib",
                raw.leftsib.get(),
                "the block before it, which names it as the next",
            ));
        }
        Ok(count)
    }

    /// Checks what version 5 has in a block's header.
    fn check_owner(&self, block: GroupBlock, raw: &RawShortNode, bytes: &[u8]) -> Result<()> {
        let number = self.superblock.in_group(self.group, block).unwrap_or_default();
        if raw.magic != self.kind.magic || !crc_holds(bytes, offset_of!(RawShortNode, crc)) {
            return Err(self.wrong(block, "crc", 0_u32, "that of the block, and its magic number before it"));
        }
        if raw.uuid != self.superblock.meta_uuid || raw.owner.get() != self.group {
            return Err(self.wrong(block, "owner", raw.owner.get(), "the group, and the volume's UUID"));
        }
        if !self.superblock.is_past(raw.lsn.get()) {
            return Err(self.wrong(block, "lsn", raw.lsn.get(), "a place before the log's end"));
        }
        if raw.blkno.get() != self.superblock.daddr_of(number) {
            return Err(self.wrong(block, "blkno", raw.blkno.get(), "its own place"));
        }
        Ok(())
    }
}
