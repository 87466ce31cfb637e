//! Trees: blocks of items by ascending keys.
//!
//! Invariants: a block was checked for its checksum, its place, its level, its generation, and its keys against those of the block
//! above. So no walk meets a block twice, whatever blocks say.

use std::ops::RangeInclusive;
use std::sync::Arc;

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;

use super::chunk::Chunks;
use super::corrupt::Corrupt;
use super::joined::Layout;
use super::key::{Key, Root, is_subvolume};
use super::layout::{RawHeader, RawItem, RawPointer, object};
use super::superblock::Superblock;
use crate::Source;

/// `BTRFS_MAX_LEVEL`.
const LEVELS_MAX: u8 = 8;

/// What a block is expected to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) tree: u64,
    pub(super) logical: u64,
    pub(super) level: u8,
    pub(super) generation: u64,
    /// The first key; `None` of a root.
    pub(super) first: Option<Key>,
    /// All keys are below this one; [`Key::MAX`] may be the last.
    pub(super) end: Key,
}

impl From<Root> for Expected {
    fn from(root: Root) -> Self {
        let Root { tree, logical, level, generation } = root;
        Self { tree, logical, level, generation, first: None, end: Key::MAX }
    }
}

/// A block of a tree, checked.
pub(super) struct Node<'a> {
    pub(super) logical: u64,
    pub(super) level: u8,
    /// The tree that it was made for.
    pub(super) owner: u64,
    tree: u64,
    end: Key,
    count: usize,
    body: &'a [u8],
}

fn wrong(logical: u64, name: &str, found: impl Into<u64>, expected: &str) -> Error {
    Error::corrupt(Corrupt::Node { logical }).field(name, found.into(), expected.to_owned())
}

impl<'a> Node<'a> {
    /// Checks a block.
    pub(super) fn parse(superblock: &Superblock, expected: &Expected, bytes: &'a [u8]) -> Result<Self> {
        let logical = expected.logical;
        if !superblock.checksum.holds(bytes) {
            return Err(wrong(logical, "csum", 0_u64, "that of the block"));
        }
        let (raw, body) = RawHeader::read_from_prefix(bytes).expect("a block is longer");
        if raw.fsid != superblock.metadata_uuid {
            return Err(wrong(logical, "fsid", 0_u64, "that of the volume"));
        }
        let owner = raw.owner.get();
        let is_owner = owner == expected.tree || (is_subvolume(owner) && is_subvolume(expected.tree));
        // What a balance has moved bears the number of its trees.
        let is_owner = is_owner || (owner == object::TREE_RELOC && is_subvolume(expected.tree));
        for (name, found, right) in [
            ("bytenr", raw.bytenr.get(), logical),
            ("generation", raw.generation.get(), expected.generation),
            ("level", raw.level.into(), expected.level.into()),
            ("owner", owner, if is_owner { owner } else { expected.tree }),
        ] {
            if found != right {
                return Err(wrong(logical, name, found, &right.to_string()));
            }
        }
        let entry_bytes = if raw.level == 0 { size_of::<RawItem>() } else { size_of::<RawPointer>() };
        let count =
            usize::try_from(raw.nritems.get()).ok().filter(|count| *count <= body.len() / entry_bytes);
        let count = count.filter(|count| *count > 0 || (raw.level == 0 && expected.first.is_none()));
        let count =
            count.ok_or_else(|| wrong(logical, "nritems", raw.nritems.get(), "as many as a block holds"))?;
        let node =
            Self { logical, level: raw.level, owner, tree: expected.tree, end: expected.end, count, body };
        node.check(expected)?;
        Ok(node)
    }

    fn check(&self, expected: &Expected) -> Result<()> {
        let mut before: Option<Key> = None;
        for index in 0..self.count {
            let key = self.key(index);
            let is_behind = match before {
                Some(before) => before < key,
                None => expected.first.is_none_or(|first| first == key),
            };
            if !is_behind || (key >= self.end && self.end != Key::MAX) {
                let expected = "keys that ascend, from that of the block above to the next one of it";
                return Err(wrong(self.logical, "key.objectid", key.objectid, expected));
            }
            before = Some(key);
        }
        if self.level > 0 {
            return Ok(());
        }
        let mut end = self.body.len();
        for index in 0..self.count {
            let raw = self.item_at(index);
            let (offset, size) = (raw.offset.get() as usize, raw.size.get() as usize);
            if offset.checked_add(size) != Some(end) || offset < self.count * size_of::<RawItem>() {
                let expected = "one behind all items, whose data end where those of the item before it begin";
                return Err(wrong(self.logical, "item.offset", raw.offset.get(), expected));
            }
            end = offset;
        }
        Ok(())
    }

    fn item_at(&self, index: usize) -> RawItem {
        let size = size_of::<RawItem>();
        RawItem::read_from_bytes(&self.body[index * size..][..size]).expect("as long as it")
    }

    fn pointer_at(&self, index: usize) -> RawPointer {
        let size = size_of::<RawPointer>();
        RawPointer::read_from_bytes(&self.body[index * size..][..size]).expect("as long as it")
    }

    fn key(&self, index: usize) -> Key {
        match self.level {
            0 => Key::from(&self.item_at(index).key),
            _ => Key::from(&self.pointer_at(index).key),
        }
    }

    /// The first entry that may lead to `key`: the last one that is not behind it.
    pub(super) fn slot(&self, key: Key) -> usize {
        let (mut from, mut to) = (0, self.count);
        while from < to {
            let middle = from.midpoint(to);
            if self.key(middle) <= key { from = middle + 1 } else { to = middle }
        }
        from.saturating_sub(1)
    }

    /// The items of a leaf.
    pub(super) fn items(&self) -> impl Iterator<Item = (Key, &'a [u8])> + '_ {
        (0..if self.level == 0 { self.count } else { 0 }).map(|index| {
            let raw = self.item_at(index);
            (Key::from(&raw.key), &self.body[raw.offset.get() as usize..][..raw.size.get() as usize])
        })
    }

    /// What a block that is no leaf names, from entry `from` on.
    pub(super) fn children(&self, from: usize) -> impl Iterator<Item = Expected> + '_ {
        (from..if self.level > 0 { self.count } else { 0 }).map(|index| {
            let raw = self.pointer_at(index);
            Expected {
                tree: self.tree,
                logical: raw.blockptr.get(),
                level: self.level - 1,
                generation: raw.generation.get(),
                first: Some(Key::from(&raw.key)),
                end: if index + 1 < self.count { self.key(index + 1) } else { self.end },
            }
        })
    }
}

/// What is needed to read trees.
#[derive(Clone)]
pub(super) struct Reader {
    /// All devices as one volume.
    pub(super) source: Source,
    pub(super) superblock: Arc<Superblock>,
    pub(super) chunks: Arc<Chunks>,
    pub(super) layout: Arc<Layout>,
}

impl Reader {
    /// Of the file system of which `sources` are the devices.
    pub(super) fn new(sources: &[Source], superblock: &Arc<Superblock>, mut chunks: Chunks) -> Result<Self> {
        let layout = Arc::new(Layout::of(&superblock.devices, &mut chunks)?);
        let (source, superblock) = (layout.volume(sources), Arc::clone(superblock));
        Ok(Self { source, superblock, chunks: Arc::new(chunks), layout })
    }

    /// The bytes of a block.
    fn node_bytes(&self, expected: &Expected) -> Result<Vec<u8>> {
        let size = u64::from(self.superblock.node_bytes);
        let logical = expected.logical;
        if expected.level >= LEVELS_MAX || !logical.is_multiple_of(self.superblock.sector_bytes.into()) {
            return Err(wrong(
                logical,
                "level",
                expected.level,
                "at most 7, and an address in whole sectors",
            ));
        }
        let place = self.chunks.place(logical, size)?;
        read_vec(&*self.source, place.start(), size, "Btrfs tree block")
    }

    /// Calls `each` with the items of a tree whose keys are in a range, in order.
    pub(super) fn walk(
        &self,
        root: Root,
        range: &RangeInclusive<Key>,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.walk_node(&root.into(), range, each)
    }

    fn walk_node(
        &self,
        expected: &Expected,
        range: &RangeInclusive<Key>,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let bytes = self.node_bytes(expected)?;
        let node = Node::parse(&self.superblock, expected, &bytes)?;
        if node.level == 0 {
            for (key, data) in node.items() {
                if range.contains(&key) {
                    each(key, data)?;
                }
            }
            return Ok(());
        }
        for child in node.children(node.slot(*range.start())) {
            if child.first.is_some_and(|first| first > *range.end()) {
                break;
            }
            self.walk_node(&child, range, each)?;
        }
        Ok(())
    }

    /// Calls `each` with blocks of trees, in the order in which they lie, read in pieces of up to `piece_bytes`.
    pub(super) fn each_node(
        &self,
        wanted: &mut [Expected],
        piece_bytes: u64,
        each: &mut dyn FnMut(&Expected, Node<'_>) -> Result<()>,
    ) -> Result<()> {
        wanted.sort_unstable_by_key(|expected| expected.logical);
        let size = u64::from(self.superblock.node_bytes);
        let mut rest = &*wanted;
        while let Some(first) = rest.first() {
            let follows = |(index, expected): &(u64, &Expected)| {
                Some(expected.logical) == first.logical.checked_add(index * size)
                    && (*index == 0 || self.chunks.place(first.logical, (index + 1) * size).is_ok())
            };
            let count = (0..piece_bytes / size).zip(rest).take_while(follows).count().max(1);
            let (run, behind) = rest.split_at(count);
            let mut bytes = self.node_bytes(first)?;
            if count > 1 {
                let place = self.chunks.place(first.logical, count as u64 * size)?;
                bytes = read_vec(&*self.source, place.start(), place.len_bytes(), "Btrfs tree blocks")?;
            }
            for (expected, bytes) in run.iter().zip(bytes.chunks_exact(self.superblock.node_bytes as usize)) {
                each(expected, Node::parse(&self.superblock, expected, bytes)?)?;
            }
            rest = behind;
        }
        Ok(())
    }
}
