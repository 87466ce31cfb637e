//! Trees of extents, built anew in as few blocks as can be.
//!
//! Invariants:
//! - extents that continue each other are one, as far as one can be that long; so extents of which some moved never need
//!   more entries than before, and a tree with all its nodes but the last of each level full never more blocks;
//! - the shape is one that e2fsck finds nothing to narrow or to shorten in (`e2fsck_should_rebuild_extents`).
//!
//! Deliberately absent: which blocks are free. A tree takes blocks that the map had before.

use block::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::super::checksum::crc32c;
use super::super::files::join;
use super::super::inode::{BlockRoot, Inode};
use super::super::layout::{
    EXTENT_DEPTH_MAX, EXTENT_ENTRY_BYTES, EXTENT_MAGIC, EXTENT_UNWRITTEN_MAX, EXTENT_WRITTEN_MAX, RawExtent,
    RawExtentHeader, RawExtentIndex,
};
use super::super::superblock::{BlockNumber, Superblock};
use super::super::tree::FileExtent;
use crate::ext::corrupt::Corrupt;

/// Entries in the root, which is in the inode.
const ROOT_ENTRIES: usize = size_of::<BlockRoot>() / EXTENT_ENTRY_BYTES - 1;

type Entry = [u8; EXTENT_ENTRY_BYTES];

/// A tree of extents as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tree {
    pub(super) root: BlockRoot,
    /// The other nodes.
    pub(super) nodes: Vec<(BlockNumber, Vec<u8>)>,
    /// Blocks of the map that are not needed any more.
    pub(super) freed: Vec<BlockNumber>,
}

/// What nodes look like.
pub(super) struct Shape {
    block_bytes: u32,
    /// Where the checksums of nodes start from, if they have some.
    checksum_seed: Option<u32>,
    /// As the root has it.
    generation: u32,
}

/// An entry with the first logical block below it.
#[derive(Clone, Copy)]
struct Below {
    first: u32,
    entry: Entry,
}

impl Shape {
    /// That of the tree of `inode`, whose root is `root`.
    pub(super) fn new(superblock: &Superblock, inode: &Inode, root: &BlockRoot) -> Self {
        let (header, _) = RawExtentHeader::read_from_prefix(root).expect("a root is larger than its header");
        Self {
            block_bytes: superblock.block_bytes,
            checksum_seed: superblock.features.metadata_csum().then_some(inode.checksum_seed),
            generation: header.generation.get(),
        }
    }

    /// Entries in a block. What is left behind them has room for the checksum, as no power of two is a multiple of 12.
    fn node_entries(&self) -> usize {
        usize::try_from(self.block_bytes).expect("at most 64 KiB") / EXTENT_ENTRY_BYTES - 1
    }

    /// The smallest tree of `extents`, in the first of `blocks`.
    pub(super) fn build(
        &self,
        extents: impl IntoIterator<Item = FileExtent>,
        blocks: &[BlockNumber],
    ) -> Result<Tree> {
        let mut level = entries(extents)?;
        let mut free = blocks.iter().copied();
        let mut nodes = Vec::new();
        let mut depth = 0;
        while level.len() > ROOT_ENTRIES {
            let mut above = Vec::new();
            for below in level.chunks(self.node_entries()) {
                let block = free.next().ok_or_else(|| {
                    Error::unsupported(format!(
                        "ext map of extents needs more than its {} blocks",
                        blocks.len()
                    ))
                })?;
                nodes.push((block, self.node(below, depth)));
                above.push(index(below[0].first, block)?);
            }
            level = above;
            depth += 1;
        }
        if depth > EXTENT_DEPTH_MAX {
            return Err(Error::unsupported(format!("ext map of extents of depth {depth}")));
        }
        let mut root = [0; size_of::<BlockRoot>()];
        self.fill(&mut root, &level, ROOT_ENTRIES, depth, self.generation);
        Ok(Tree { root, nodes, freed: free.collect() })
    }

    fn node(&self, below: &[Below], depth: u16) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.block_bytes).expect("at most 64 KiB")];
        let max = self.node_entries();
        self.fill(&mut bytes, below, max, depth, 0);
        if let Some(seed) = self.checksum_seed {
            let at = EXTENT_ENTRY_BYTES * (1 + max);
            let sum = crc32c(seed, &bytes[..at]);
            bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    fn fill(&self, bytes: &mut [u8], below: &[Below], max: usize, depth: u16, generation: u32) {
        let count = |count: usize| u16::try_from(count).expect("entries of a block").into();
        let header = RawExtentHeader {
            magic: EXTENT_MAGIC.into(),
            entries: count(below.len()),
            max: count(max),
            depth: depth.into(),
            generation: generation.into(),
        };
        let (head, rest) = bytes.split_at_mut(EXTENT_ENTRY_BYTES);
        head.copy_from_slice(header.as_bytes());
        for (place, below) in rest.chunks_exact_mut(EXTENT_ENTRY_BYTES).zip(below) {
            place.copy_from_slice(&below.entry);
        }
    }
}

/// The entries of leaves: extents joined, and cut where they are longer than an entry can say.
fn entries(extents: impl IntoIterator<Item = FileExtent>) -> Result<Vec<Below>> {
    let mut joined = Vec::new();
    extents.into_iter().for_each(|extent| join(&mut joined, extent));
    let mut entries = Vec::new();
    for extent in joined {
        let len_max = u64::from(if extent.unwritten { EXTENT_UNWRITTEN_MAX } else { EXTENT_WRITTEN_MAX });
        let mut done = 0;
        while done < extent.count {
            let count = len_max.min(extent.count - done);
            entries.push(leaf_entry(extent.logical + done, extent.start + done, count, extent.unwritten)?);
            done += count;
        }
    }
    Ok(entries)
}

fn leaf_entry(logical: u64, start: BlockNumber, count: u64, unwritten: bool) -> Result<Below> {
    let first = u32::try_from(logical).map_err(|_| too_far(logical))?;
    let (start_lo, start_hi) = split(start)?;
    let len = u16::try_from(count).expect("cut to what an entry can say");
    let len = if unwritten { len + EXTENT_WRITTEN_MAX } else { len };
    let raw = RawExtent {
        block: first.into(),
        len: len.into(),
        start_hi: start_hi.into(),
        start_lo: start_lo.into(),
    };
    Ok(Below { first, entry: zerocopy::transmute!(raw) })
}

fn index(first: u32, block: BlockNumber) -> Result<Below> {
    let (leaf_lo, leaf_hi) = split(block)?;
    let raw = RawExtentIndex {
        block: first.into(),
        leaf_lo: leaf_lo.into(),
        leaf_hi: leaf_hi.into(),
        unused: 0.into(),
    };
    Ok(Below { first, entry: zerocopy::transmute!(raw) })
}

/// The lower 32 and the upper 16 bits of a block's number.
fn split(block: BlockNumber) -> Result<(u32, u16)> {
    let [a, b, c, d, e, f, 0, 0] = block.to_le_bytes() else {
        return Err(too_far(block));
    };
    Ok((u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f])))
}

fn too_far(block: u64) -> Error {
    Error::corrupt(Corrupt::PastExtents { block })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BLOCK_BYTES: u32 = 1024;
    const NODE_ENTRIES: usize = 84;

    fn shape() -> Shape {
        Shape { block_bytes: BLOCK_BYTES, checksum_seed: Some(7), generation: 3 }
    }

    /// A tree as it is read back.
    #[derive(Default)]
    struct Read {
        extents: Vec<FileExtent>,
        /// For each level from the root: entries in use, and the room for them as e2fsck counts it.
        levels: Vec<(usize, usize)>,
        nodes: usize,
    }

    fn number(bytes: &[u8]) -> u64 {
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Reads a node plainly, by the offsets of the specification.
    fn read(bytes: &[u8], level: usize, nodes: &BTreeMap<u64, &[u8]>, out: &mut Read) {
        assert_eq!(number(&bytes[..2]), 0xf30a);
        let (entries, max, depth) = (number(&bytes[2..4]), number(&bytes[4..6]), number(&bytes[6..8]));
        let (entries, max) = (usize::try_from(entries).unwrap(), usize::try_from(max).unwrap());
        assert_eq!(max, bytes.len() / 12 - 1);
        assert!(entries <= max);
        if level > 0 {
            let sum = crc32c(7, &bytes[..12 * (max + 1)]);
            assert_eq!(number(&bytes[12 * (max + 1)..][..4]), u64::from(sum));
        }
        if out.levels.len() == level {
            out.levels.push((0, 0));
        }
        out.levels[level].0 += entries;
        out.levels[level].1 += if level > 0 && entries < max { max - 1 } else { max };
        for entry in bytes[12..].chunks(12).take(entries) {
            let logical = number(&entry[..4]);
            if depth > 0 {
                let block = number(&entry[4..8]) | number(&entry[8..10]) << 32;
                let before = out.extents.len();
                out.nodes += 1;
                read(nodes[&block], level + 1, nodes, out);
                assert_eq!(out.extents[before].logical, logical);
                assert_eq!(number(&nodes[&block][6..8]), depth - 1);
            } else {
                let start = number(&entry[8..12]) | number(&entry[6..8]) << 32;
                let (len, unwritten) = match number(&entry[4..6]) {
                    len @ 1..=32768 => (len, false),
                    len => (len - 32768, true),
                };
                out.extents.push(FileExtent { logical, start, count: len, unwritten });
            }
        }
    }

    fn blocks_for(entries: usize, in_node: usize) -> usize {
        let (mut level, mut blocks) = (entries, 0);
        while level > ROOT_ENTRIES {
            level = level.div_ceil(in_node);
            blocks += level;
        }
        blocks
    }

    fn joined(extents: &[FileExtent]) -> Vec<FileExtent> {
        let mut all = Vec::new();
        extents.iter().for_each(|extent| join(&mut all, *extent));
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn what_is_built_is_read_back(
            steps in prop::collection::vec((0..3u64, 0..3u64, 1..40_000u64, 0..4u8), 0..1500),
            in_node in 20..NODE_ENTRIES,
        ) {
            let (mut logical, mut start) = (0, 1 << 33);
            let mut extents = Vec::new();
            for (gap, jump, count, kind) in steps {
                // Many continue the one before; lengths are those of entries.
                logical += gap / 2;
                start += jump / 2;
                let unwritten = kind == 0;
                let count = if kind == 3 { 32_767 } else { count.min(if unwritten { 32_767 } else { 32_768 }) };
                extents.push(FileExtent { logical, start, count, unwritten });
                logical += count;
                start += count;
            }
            // What the tree took before, at worst, with nodes not full.
            let had = blocks_for(extents.len(), in_node);
            let blocks: Vec<u64> = (0..had as u64).map(|index| 1000 + 3 * index).collect();
            let tree = shape().build(extents.iter().copied(), &blocks).unwrap();
            prop_assert_eq!(tree.nodes.len() + tree.freed.len(), had);
            let nodes: BTreeMap<u64, &[u8]> = tree.nodes.iter().map(|(block, bytes)| (*block, &bytes[..])).collect();
            prop_assert_eq!(nodes.len(), tree.nodes.len());
            let mut back = Read::default();
            read(&tree.root, 0, &nodes, &mut back);
            prop_assert_eq!(number(&tree.root[8..12]), 3);
            prop_assert_eq!(joined(&back.extents), joined(&extents));
            let len_max = |extent: &FileExtent| if extent.unwritten { 32_767 } else { 32_768 };
            let fewest: u64 = joined(&extents).iter().map(|extent| extent.count.div_ceil(len_max(extent))).sum();
            prop_assert_eq!(back.extents.len() as u64, fewest);
            prop_assert!(back.extents.len() <= extents.len());
            prop_assert_eq!(back.nodes, tree.nodes.len());
            prop_assert_eq!(back.nodes, blocks_for(back.extents.len(), NODE_ENTRIES), "the smallest");
            // e2fsck neither narrows nor shortens it.
            for (level, (used, room)) in back.levels.iter().enumerate() {
                prop_assert!(room - used <= 84);
                prop_assert!(back.levels[..level].iter().all(|(_, above)| used >= above));
            }
        }
    }

    #[test]
    fn neighbours_are_one_as_long_as_an_entry_says() {
        let extent = |logical, start, count, unwritten| FileExtent { logical, start, count, unwritten };
        let lens = |extents: &[FileExtent]| {
            let tree = shape().build(extents.iter().copied(), &[]).unwrap();
            let mut back = Read::default();
            read(&tree.root, 0, &BTreeMap::new(), &mut back);
            back.extents.iter().map(|extent| extent.count).collect::<Vec<_>>()
        };
        assert_eq!(lens(&[extent(0, 50, 30_000, false), extent(30_000, 30_050, 2_768, false)]), [32_768]);
        assert_eq!(lens(&[extent(0, 50, 30_000, true), extent(30_000, 30_050, 2_768, true)]), [32_767, 1]);
        assert_eq!(lens(&[extent(0, 50, 2, true), extent(2, 52, 2, false)]), [2, 2]);
        assert_eq!(lens(&[extent(0, 50, 2, false), extent(3, 52, 2, false)]), [2, 2]);
        assert_eq!(lens(&[]), [] as [u64; 0]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let far = FileExtent { logical: 1 << 32, start: 5, count: 1, unwritten: false };
        assert!(shape().build([far], &[]).is_err());
        let far = FileExtent { logical: 0, start: 1 << 48, count: 1, unwritten: false };
        assert!(shape().build([far], &[]).is_err());
        let many =
            (0..5).map(|index| FileExtent { logical: index, start: 9 - index, count: 1, unwritten: false });
        assert!(shape().build(many, &[]).is_err(), "more than the root holds, and no block for a node");
    }
}
