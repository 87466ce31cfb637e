//! Blocks of the maps of many files, read before the files are walked, in the order in which they lie.
//!
//! An unchecked guess of what the walks will read, level by level: what was not read ahead is read when it is asked
//! for, and what is read in vain does no harm.

use std::collections::BTreeMap;

use block::Result;
use zerocopy::FromBytes;

use super::gather;
use super::inode::{Contents, Inode};
use super::layout::{EXTENT_ENTRY_BYTES, EXTENT_MAGIC, RawExtentHeader, RawExtentIndex};
use super::superblock::{BlockNumber, Superblock};
use crate::Source;
use crate::ahead::Ahead;

/// The most bytes read ahead at a time.
const BYTES_MAX: u64 = 8 << 20;

/// A block of a map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    block: BlockNumber,
    kind: NodeKind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NodeKind {
    ExtentTree,
    /// Pointers, through so many levels of blocks more.
    Pointers(u8),
}

/// `source` with the maps of `inodes` in memory, as far as there is room.
pub(super) fn read_ahead<'a>(
    source: &Source,
    superblock: &Superblock,
    inodes: impl Iterator<Item = &'a Inode>,
) -> Result<Source> {
    let mut wanted: Vec<Node> = inodes.flat_map(|inode| below_root(&inode.contents)).collect();
    if wanted.is_empty() {
        return Ok(source.clone());
    }
    let room = usize::try_from(BYTES_MAX / u64::from(superblock.block_bytes)).expect("some thousands");
    let mut blocks = BTreeMap::new();
    loop {
        wanted.retain(|node| {
            superblock.holds(node.block, 1) && !blocks.contains_key(&superblock.offset_of(node.block))
        });
        wanted.sort_unstable();
        wanted.dedup_by_key(|node| node.block);
        wanted.truncate(room - blocks.len());
        if wanted.is_empty() {
            return Ok(Ahead::of(source, blocks));
        }
        let mut below = Vec::new();
        gather::each_block(
            source,
            superblock,
            &wanted,
            |node| node.block,
            |_| true,
            |node, bytes| {
                below.extend(below_node(node.kind, bytes));
                blocks.insert(superblock.offset_of(node.block), bytes.to_vec());
            },
        )?;
        wanted = below;
    }
}

fn below_root(contents: &Contents) -> Vec<Node> {
    match contents {
        Contents::None => Vec::new(),
        Contents::Extents(root) => below_node(NodeKind::ExtentTree, root),
        Contents::Indirect(root) => {
            // 12 direct pointers, then one each of the three levels.
            let (_, slots) = root.split_at(12 * 4);
            let levels = pointers(slots).zip(0..).filter(|(block, _)| *block != 0);
            levels.map(|(block, level)| Node { block, kind: NodeKind::Pointers(level) }).collect()
        }
    }
}

fn below_node(kind: NodeKind, bytes: &[u8]) -> Vec<Node> {
    match kind {
        NodeKind::ExtentTree => below_extent_node(bytes),
        NodeKind::Pointers(0) => Vec::new(),
        NodeKind::Pointers(level) => {
            let kind = NodeKind::Pointers(level - 1);
            pointers(bytes).filter(|block| *block != 0).map(|block| Node { block, kind }).collect()
        }
    }
}

fn pointers(bytes: &[u8]) -> impl Iterator<Item = BlockNumber> {
    bytes.as_chunks::<4>().0.iter().map(|pointer| u32::from_le_bytes(*pointer).into())
}

fn below_extent_node(bytes: &[u8]) -> Vec<Node> {
    let Ok((header, entries)) = RawExtentHeader::read_from_prefix(bytes) else {
        return Vec::new();
    };
    if header.magic.get() != EXTENT_MAGIC || header.depth.get() == 0 {
        return Vec::new();
    }
    entries
        .chunks_exact(EXTENT_ENTRY_BYTES)
        .take(header.entries.get().into())
        .filter_map(|entry| RawExtentIndex::read_from_bytes(entry).ok())
        .map(|raw| u64::from(raw.leaf_hi.get()) << 32 | u64::from(raw.leaf_lo.get()))
        .map(|block| Node { block, kind: NodeKind::ExtentTree })
        .collect()
}
