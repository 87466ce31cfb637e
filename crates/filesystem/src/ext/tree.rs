//! Walks the blocks of an inode: its extent tree, or its direct and indirect pointers.
//!
//! Bounded whatever the disk says: the depth is limited by the format, the nodes of an extent tree must cover
//! ascending logical blocks (so no node is met twice), and the visitor sees each node before it is read, so
//! that it can refuse one that it knows already.

use std::ops::Range;

use block::{Error, FieldValue, ReadAt, Result, read_vec};
use extent::Volume;
use zerocopy::FromBytes;

use super::checksum::crc32c;
use super::corrupt::Corrupt;
use super::inode::{BlockRoot, Contents, Inode};
use super::layout::{
    EXTENT_DEPTH_MAX, EXTENT_ENTRY_BYTES, EXTENT_MAGIC, EXTENT_WRITTEN_MAX, RawExtent, RawExtentHeader,
    RawExtentIndex,
};
use super::superblock::{BlockNumber, Superblock};

/// A piece of a file: consecutive logical blocks in consecutive blocks of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileExtent {
    /// First block within the file.
    pub(super) logical: u64,
    /// First block on the volume.
    pub(super) start: BlockNumber,
    pub(super) count: u64,
    /// Allocated, but reads as zeros whatever is there.
    pub(super) unwritten: bool,
}

/// What a walk meets.
pub(super) trait Visitor {
    /// A block of the map itself. Called before it is read.
    fn node(&mut self, block: BlockNumber) -> Result<()>;
    /// A piece of the file. In logical order.
    fn extent(&mut self, extent: FileExtent) -> Result<()>;
}

/// Walks all blocks of `inode`. All that the visitor sees lies within the volume.
pub(super) fn walk(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    inode: &Inode,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    let mut walk = Walk { source, superblock, inode, visitor, pending: None };
    match &inode.contents {
        Contents::None => return Ok(()),
        Contents::Extents(root) => walk.extent_node(root, None, 0..1 << 32, None).map(|_| ())?,
        Contents::Indirect(root) => walk.pointers(root)?,
    }
    walk.flush()
}

struct Walk<'a> {
    source: &'a dyn ReadAt<Volume>,
    superblock: &'a Superblock,
    inode: &'a Inode,
    visitor: &'a mut dyn Visitor,
    /// The run of pointers that is still growing.
    pending: Option<FileExtent>,
}

impl Walk<'_> {
    fn corrupt(&self, field: &str, found: impl Into<FieldValue>, expected: impl std::fmt::Display) -> Error {
        Error::corrupt(Corrupt::Inode { inode: self.inode.number }).field(field, found, expected)
    }

    fn check_within(&self, what: &str, start: BlockNumber, count: u64) -> Result<()> {
        if self.superblock.holds(start, count) {
            return Ok(());
        }
        let found = format!("block {start} and {} more", count.saturating_sub(1));
        Err(self.corrupt(what, found, "within the volume"))
    }

    fn read_node(&mut self, block: BlockNumber) -> Result<Vec<u8>> {
        self.check_within("block of its map", block, 1)?;
        self.visitor.node(block)?;
        let at = self.superblock.offset_of(block);
        read_vec(self.source, at, self.superblock.block_bytes.into(), "ext block map")
    }

    fn emit(&mut self, extent: FileExtent) -> Result<()> {
        self.check_within("extent", extent.start, extent.count)?;
        self.visitor.extent(extent)
    }

    // Extent trees.

    /// Walks a node that covers the logical blocks `range`; returns where its last extent ends.
    /// `depth` is what the parent expects, `None` for the root; `block` where the node lies, for its checksum.
    fn extent_node(
        &mut self,
        bytes: &[u8],
        depth: Option<u16>,
        range: Range<u64>,
        block: Option<BlockNumber>,
    ) -> Result<u64> {
        let (header, _) = RawExtentHeader::read_from_prefix(bytes).expect("a node is larger than its header");
        self.check_header(&header, bytes.len(), depth)?;
        if let Some(block) = block {
            self.verify_tail(&header, bytes, block)?;
        }
        let used = usize::from(header.entries.get()) * EXTENT_ENTRY_BYTES;
        let entries = bytes[EXTENT_ENTRY_BYTES..][..used].chunks_exact(EXTENT_ENTRY_BYTES);
        match header.depth.get() {
            0 => self.leaf(entries.map(read_entry::<RawExtent>), range),
            depth => self.index(&entries.map(read_entry::<RawExtentIndex>).collect::<Vec<_>>(), depth, range),
        }
    }

    fn check_header(&self, header: &RawExtentHeader, len: usize, depth: Option<u16>) -> Result<()> {
        let room = len / EXTENT_ENTRY_BYTES - 1;
        if header.magic.get() != EXTENT_MAGIC {
            return Err(self.corrupt("extent header's magic", FieldValue::hex(header.magic), "0xf30a"));
        }
        match depth {
            None if header.depth.get() > EXTENT_DEPTH_MAX => {
                return Err(self.corrupt("extent tree's depth", header.depth, "at most 5"));
            }
            Some(depth) if header.depth.get() != depth => {
                return Err(self.corrupt("extent node's depth", header.depth, depth));
            }
            _ => {}
        }
        if usize::from(header.max.get()) > room || header.max.get() == 0 {
            return Err(self.corrupt("extent header's max", header.max, format!("1 to {room}")));
        }
        // Only the root of an empty file has none: the kernel removes a leaf with its last extent.
        let least = u16::from(depth.is_some() || header.depth.get() > 0);
        if !(least..=header.max.get()).contains(&header.entries.get()) {
            let expected = format!("{least} to {}", header.max);
            return Err(self.corrupt("extent header's entries", header.entries, expected));
        }
        Ok(())
    }

    /// The checksum lies behind the room for entries (`struct ext4_extent_tail`).
    fn verify_tail(&self, header: &RawExtentHeader, bytes: &[u8], block: BlockNumber) -> Result<()> {
        if !self.superblock.features.metadata_csum() {
            return Ok(());
        }
        let at = EXTENT_ENTRY_BYTES * (1 + usize::from(header.max.get()));
        let stored =
            bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|tail| u32::from_le_bytes(*tail));
        let computed = crc32c(self.inode.checksum_seed, &bytes[..at.min(bytes.len())]);
        if stored == Some(computed) {
            return Ok(());
        }
        let found = stored.map_or_else(|| "missing".into(), FieldValue::hex);
        let name = format!("checksum of extent block {block}");
        Err(self.corrupt(&name, found, format!("{computed:#x}")))
    }

    fn leaf(&mut self, extents: impl Iterator<Item = RawExtent>, range: Range<u64>) -> Result<u64> {
        let mut end = range.start;
        for raw in extents {
            let len = raw.len.get();
            let unwritten = len > EXTENT_WRITTEN_MAX;
            let count = u64::from(if unwritten { len - EXTENT_WRITTEN_MAX } else { len });
            let logical = u64::from(raw.block.get());
            if count == 0 || logical < end || logical + count > range.end {
                let found = format!("{logical} with length {count}");
                let expected = format!("a piece of {end} to {}", range.end);
                return Err(self.corrupt("extent's first block", found, expected));
            }
            end = logical + count;
            let start = u64::from(raw.start_hi.get()) << 32 | u64::from(raw.start_lo.get());
            self.emit(FileExtent { logical, start, count, unwritten })?;
        }
        Ok(end)
    }

    fn index(&mut self, children: &[RawExtentIndex], depth: u16, range: Range<u64>) -> Result<u64> {
        let mut end = range.start;
        for (number, raw) in children.iter().enumerate() {
            let first = u64::from(raw.block.get());
            let limit = children.get(number + 1).map_or(range.end, |next| u64::from(next.block.get()));
            if first < end || first >= limit || limit > range.end {
                let expected = format!("from {end}, below {limit}");
                return Err(self.corrupt("extent index's first block", first, expected));
            }
            let block = u64::from(raw.leaf_hi.get()) << 32 | u64::from(raw.leaf_lo.get());
            let bytes = self.read_node(block)?;
            end = self.extent_node(&bytes, Some(depth - 1), first..limit, Some(block))?;
        }
        Ok(end)
    }

    // Direct and indirect pointers.

    fn pointers(&mut self, root: &BlockRoot) -> Result<()> {
        let per_block = u64::from(self.superblock.block_bytes / 4);
        let mut logical = 0;
        for (slot, pointer) in pointers_in(root).enumerate() {
            // 12 direct pointers, then one each of the three levels.
            let level = u32::try_from(slot.saturating_sub(11)).expect("fifteen slots");
            self.pointer(pointer, level, logical)?;
            logical += per_block.pow(level);
        }
        Ok(())
    }

    /// Walks what `pointer` maps through `level` blocks of pointers, from the file's block `logical`.
    fn pointer(&mut self, pointer: u32, level: u32, logical: u64) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        if level == 0 {
            return self.push(logical, u64::from(pointer));
        }
        let bytes = self.read_node(u64::from(pointer))?;
        let step = u64::from(self.superblock.block_bytes / 4).pow(level - 1);
        let mut logical = logical;
        for pointer in pointers_in(&bytes) {
            self.pointer(pointer, level - 1, logical)?;
            logical += step;
        }
        Ok(())
    }

    /// Joins a block to the run before it, or passes that on.
    fn push(&mut self, logical: u64, start: BlockNumber) -> Result<()> {
        if let Some(run) = &mut self.pending
            && (run.logical + run.count, run.start + run.count) == (logical, start)
        {
            run.count += 1;
            return Ok(());
        }
        self.flush()?;
        self.pending = Some(FileExtent { logical, start, count: 1, unwritten: false });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.pending.take().map_or(Ok(()), |run| self.emit(run))
    }
}

fn read_entry<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).expect("exactly an entry's size")
}

fn pointers_in(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|pointer| u32::from_le_bytes([pointer[0], pointer[1], pointer[2], pointer[3]]))
}

/// Collects a file's extents, up to a limit, for a file whose blocks need no check of ownership.
pub(super) struct Collector {
    pub(super) extents: Vec<FileExtent>,
    count_max: usize,
    /// Nodes are counted, so that a map that leads in circles ends.
    nodes_left: u64,
}

impl Collector {
    /// For a file of at most `blocks` blocks, without holes, in at most `count_max` pieces.
    pub(super) fn new(superblock: &Superblock, blocks: u64, count_max: usize) -> Self {
        // Blocks of pointers are full but for the last ones; those of an extent tree hold at least 84 entries,
        // and are not left with less than a few.
        let pointers = u64::from(superblock.block_bytes / 4);
        let nodes_left = blocks.min(superblock.blocks_count) / pointers + 16 + count_max as u64 / 16;
        Self { extents: Vec::new(), count_max, nodes_left }
    }
}

impl Visitor for Collector {
    fn node(&mut self, block: BlockNumber) -> Result<()> {
        self.nodes_left = self.nodes_left.checked_sub(1).ok_or_else(|| {
            Error::unsupported(format!("ext block map has too many blocks, at block {block}"))
        })?;
        Ok(())
    }

    fn extent(&mut self, extent: FileExtent) -> Result<()> {
        if self.extents.len() >= self.count_max {
            return Err(Error::unsupported(format!("ext file in more than {} pieces", self.count_max)));
        }
        self.extents.push(extent);
        Ok(())
    }
}
