//! What a volume uses as long as its journal is not replayed: boot loaders, forensic tools and mounts with `noload` read it so.
//!
//! The state on the disk is one in the middle of writing, and contradicts itself as a matter of course. So nothing is checked here:
//! used is what the block bitmaps have marked, and what any inode maps that can be read, whatever the inode bitmaps say of it. Too much
//! is taken rather than too little.
//!
//! Of this only what is free, or swap, once the journal was replayed is kept in memory, in a bounded number of pieces. The journal of a
//! whole life is as large as what it frees.

use std::collections::HashSet;

use block::{Error, Result, read_vec};
use extent::{ExtentSet, Span, Volume, VolumeSpan};
use zerocopy::FromBytes;

use super::bitmap::Bits;
use super::group::{self, Group};
use super::inode::{Contents, Inode, inode_at};
use super::layout::{
    EXTENT_DEPTH_MAX, EXTENT_ENTRY_BYTES, EXTENT_MAGIC, EXTENT_WRITTEN_MAX, RawExtent, RawExtentHeader,
    RawExtentIndex,
};
use super::ledger::{Bitmaps, clusters};
use super::superblock::{BlockNumber, GroupNumber, Superblock};
use super::swapfile::{self, SwapFile};
use crate::Source;

/// The most pieces that are kept; there are twice as many before they are sorted and joined.
const PIECES_MAX: usize = 1 << 19;
/// The most blocks of maps that are followed.
const NODES_MAX: usize = 1 << 21;
/// Bytes of inode tables read at once.
const TABLE_BYTES_MAX: u32 = 1 << 20;

/// A volume as it is on the disk.
pub(super) struct Unreplayed {
    pub(super) source: Source,
    pub(super) superblock: Superblock,
}

impl Unreplayed {
    /// What it uses of what is free or swap in `replayed`, the same volume with its journal replayed. `Unsupported` if there is too
    /// much to tell, or if the journal changes more than what a guest does in use.
    pub(super) fn kept(
        &self,
        replayed: &Source,
        superblock: &Superblock,
        swap: &[SwapFile],
    ) -> Result<ExtentSet<Volume>> {
        check_geometry(&self.superblock, superblock)?;
        let mut kept = EitherState {
            volume: self,
            replayed: superblock,
            bitmaps: Bitmaps::new(replayed, superblock),
            swap_pages: swapfile::pages(swap),
            swap,
            nodes: HashSet::new(),
            spans: Vec::new(),
        };
        for number in 0..self.superblock.groups_count {
            let group = group::read_unchecked(&self.source, &self.superblock, number)?;
            kept.group(number, &group, inodes_to_read(replayed, superblock, number, &group)?)?;
        }
        Ok(kept.spans.into_iter().collect())
    }
}

/// The journal may make a volume larger, and that is all.
fn check_geometry(before: &Superblock, after: &Superblock) -> Result<()> {
    let shape = |it: &Superblock| {
        let sizes = (it.block_bytes, it.cluster_blocks, it.inode_bytes, it.descriptor_bytes);
        (sizes, it.first_data_block, it.blocks_per_group, it.inodes_per_group)
    };
    if shape(before) == shape(after) && before.groups_count <= after.groups_count {
        return Ok(());
    }
    Err(Error::unsupported("the journal of the ext volume, once replayed, changes how the volume is divided"))
}

/// How many inodes of a group's table to look at: those that were ever used before the journal's replay or after it.
fn inodes_to_read(
    replayed: &Source,
    superblock: &Superblock,
    number: GroupNumber,
    before: &Group,
) -> Result<u32> {
    let used = |group: &Group| match group.inode_uninit {
        true => 0,
        false => superblock.inodes_per_group.saturating_sub(group.inodes_unused),
    };
    Ok(used(before).max(used(&group::read(replayed, superblock, number)?)))
}

struct EitherState<'a> {
    volume: &'a Unreplayed,
    replayed: &'a Superblock,
    bitmaps: Bitmaps<'a>,
    swap: &'a [SwapFile],
    swap_pages: ExtentSet<Volume>,
    /// Blocks of maps that were followed.
    nodes: HashSet<BlockNumber>,
    spans: Vec<VolumeSpan>,
}

impl EitherState<'_> {
    fn group(&mut self, number: GroupNumber, group: &Group, inodes: u32) -> Result<()> {
        let (source, superblock) = (&self.volume.source, &self.volume.superblock);
        for (first, count) in [
            (superblock.base_start(number), u64::from(superblock.base_blocks(number))),
            (group.block_bitmap, 1),
            (group.inode_bitmap, 1),
            (group.inode_table, u64::from(superblock.inode_table_blocks())),
        ] {
            self.add(first, count)?;
        }
        if !group.block_uninit && superblock.holds(group.block_bitmap, 1) {
            let len_bytes = u64::from(superblock.clusters_per_group / 8);
            let at = superblock.offset_of(group.block_bitmap);
            let bytes = read_vec(source, at, len_bytes, "ext block bitmap")?;
            self.marked(number, &Bits::from_bytes(&bytes, superblock.group_clusters(number)))?;
        }
        if !superblock.holds(group.inode_table, superblock.inode_table_blocks().into()) {
            return Ok(());
        }
        let inode_bytes = u32::from(superblock.inode_bytes);
        let step = (TABLE_BYTES_MAX / inode_bytes).max(1);
        let mut at = 0;
        while at < inodes {
            let end = inodes.min(at.saturating_add(step));
            let place = inode_at(superblock, group.inode_table, at);
            let bytes =
                read_vec(source, place, u64::from(end - at) * u64::from(inode_bytes), "ext inode table")?;
            for (index, bytes) in (at..end).zip(bytes.chunks_exact(usize::from(superblock.inode_bytes))) {
                // What the kernel refuses to read is nobody's.
                let number = number * superblock.inodes_per_group + index + 1;
                if let Ok(inode) = Inode::parse(bytes, superblock, number) {
                    self.inode(&inode)?;
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Takes what a group's bitmap has marked.
    fn marked(&mut self, number: GroupNumber, bits: &Bits) -> Result<()> {
        let superblock = &self.volume.superblock;
        let (start, ratio) = (superblock.group_start(number), u64::from(superblock.cluster_blocks));
        for run in bits.runs(0, bits.len(), true) {
            let first = start + u64::from(run.start) * ratio;
            self.add_free(first, u64::from(run.end - run.start) * ratio)?;
        }
        Ok(())
    }

    fn inode(&mut self, inode: &Inode) -> Result<()> {
        // The pages of a swap file mean nothing in either state.
        let is_same = |file: &SwapFile| {
            let identity = |inode: &Inode| (inode.number, inode.checksum_seed, inode.size_bytes, inode.mode);
            identity(&file.inode) == identity(inode)
        };
        let is_swap = self.swap.iter().any(is_same);
        if let Some(block) = inode.attributes {
            self.add(block, 1)?;
        }
        match &inode.contents {
            Contents::None => Ok(()),
            Contents::Extents(root) => self.extents(root, EXTENT_DEPTH_MAX + 1, is_swap),
            Contents::Indirect(root) => {
                for (slot, pointer) in pointers(root).enumerate() {
                    self.pointer(pointer, slot.saturating_sub(11), is_swap)?;
                }
                Ok(())
            }
        }
    }

    /// Takes what a node of a tree of extents maps, if it is one of a depth below `depth_end`.
    fn extents(&mut self, bytes: &[u8], depth_end: u16, is_swap: bool) -> Result<()> {
        let Ok((header, entries)) = RawExtentHeader::read_from_prefix(bytes) else { return Ok(()) };
        if header.magic.get() != EXTENT_MAGIC || header.depth.get() >= depth_end {
            return Ok(());
        }
        let depth = header.depth.get();
        for entry in entries.chunks_exact(EXTENT_ENTRY_BYTES).take(header.entries.get().into()) {
            if depth == 0 {
                let raw = RawExtent::read_from_bytes(entry).expect("exactly an entry's size");
                let len = raw.len.get();
                let count = if len > EXTENT_WRITTEN_MAX { len - EXTENT_WRITTEN_MAX } else { len };
                let start = u64::from(raw.start_hi.get()) << 32 | u64::from(raw.start_lo.get());
                self.contents(start, count.into(), is_swap)?;
            } else {
                let raw = RawExtentIndex::read_from_bytes(entry).expect("exactly an entry's size");
                let block = u64::from(raw.leaf_hi.get()) << 32 | u64::from(raw.leaf_lo.get());
                if let Some(bytes) = self.node(block)? {
                    self.extents(&bytes, depth, is_swap)?;
                }
            }
        }
        Ok(())
    }

    fn pointer(&mut self, pointer: u32, level: usize, is_swap: bool) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let Some(below) = level.checked_sub(1) else { return self.contents(pointer.into(), 1, is_swap) };
        let Some(bytes) = self.node(pointer.into())? else { return Ok(()) };
        pointers(&bytes).try_for_each(|pointer| self.pointer(pointer, below, is_swap))
    }

    /// Takes a block of a map; its bytes, if it was not followed before.
    fn node(&mut self, block: BlockNumber) -> Result<Option<Vec<u8>>> {
        let superblock = &self.volume.superblock;
        if !superblock.holds(block, 1) || !self.nodes.insert(block) {
            return Ok(None);
        }
        if self.nodes.len() > NODES_MAX {
            return Err(too_much());
        }
        self.add(block, 1)?;
        let at = superblock.offset_of(block);
        read_vec(&self.volume.source, at, superblock.block_bytes.into(), "ext block map").map(Some)
    }

    fn contents(&mut self, first: BlockNumber, count: u64, is_swap: bool) -> Result<()> {
        if is_swap { self.add_free(first, count) } else { self.add(first, count) }
    }

    /// Takes blocks that are free or swap after the replay.
    fn add(&mut self, first: BlockNumber, count: u64) -> Result<()> {
        if !self.swap_pages.is_empty() && self.replayed.holds(first, count) {
            let span =
                Span::new(self.replayed.offset_of(first), count * u64::from(self.replayed.block_bytes));
            let pages: Vec<_> = self.swap_pages.within(span).collect();
            pages.into_iter().try_for_each(|part| self.push(part))?;
        }
        self.add_free(first, count)
    }

    /// Takes blocks that are free after the replay. What lies past the volume is left out.
    fn add_free(&mut self, first: BlockNumber, count: u64) -> Result<()> {
        let superblock = self.replayed;
        let from = first.max(superblock.first_data_block);
        let end = first.saturating_add(count).min(superblock.blocks_count);
        if from >= end {
            return Ok(());
        }
        let (per_group, ratio) =
            (u64::from(superblock.clusters_per_group), u64::from(superblock.cluster_blocks));
        let wanted = clusters(superblock, from, end - from);
        let mut at = wanted.from;
        while at < wanted.end {
            let number = u32::try_from(at / per_group).expect("a group of the volume");
            let start = u64::from(number) * per_group;
            let group_end = wanted.end.min(start + per_group);
            let bits = self.bitmaps.get(number)?;
            let bit = |cluster: u64| u32::try_from(cluster - start).expect("within the group");
            for free in bits.runs(bit(at), bit(group_end), false) {
                let first = superblock.first_data_block + (start + u64::from(free.start)) * ratio;
                let len_bytes = u64::from(free.end - free.start) * ratio * u64::from(superblock.block_bytes);
                self.push(Span::new(superblock.offset_of(first), len_bytes))?;
            }
            at = group_end;
        }
        Ok(())
    }

    fn push(&mut self, span: VolumeSpan) -> Result<()> {
        match self.spans.last_mut() {
            Some(last) if last.end() == span.start() => *last = Span::between(last.start(), span.end()),
            _ => self.spans.push(span),
        }
        if self.spans.len() >= 2 * PIECES_MAX {
            let joined: ExtentSet<Volume> = self.spans.drain(..).collect();
            if joined.count() > PIECES_MAX {
                return Err(too_much());
            }
            self.spans.extend(joined.iter());
        }
        Ok(())
    }
}

fn too_much() -> Error {
    Error::unsupported("too much of the ext volume is used only as long as its journal is not replayed")
}

fn pointers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|pointer| u32::from_le_bytes(*pointer))
}
