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
    Error::corrupt(format!("ext block {block} is past what an extent can say"))
}
