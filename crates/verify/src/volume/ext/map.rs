//! Which blocks an inode owns: trees of extents, and pointers.

use block::Result;
use zerocopy::FromBytes;

use super::geometry::{Geometry, crc32c};
use super::inode::{Inode, Map};
use super::layout::{Extent, ExtentHeader, ExtentIndex};

/// Bytes of a header, an index and an extent.
const ENTRY: usize = 12;
/// The kernel's limit.
const DEPTH_MAX: usize = 5;

/// Blocks of a file that follow each other, in it and on the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) logical: u64,
    pub(super) start: u64,
    pub(super) count: u64,
    pub(super) is_unwritten: bool,
}

/// What a walk meets, in logical order.
pub(super) enum Met {
    /// A block of the map, before it is read.
    Node(u64),
    Piece(Piece),
}

/// Entries of each level of a tree: in use, and there is room for.
type Levels = [(u64, u64); DEPTH_MAX + 1];

/// Calls `each` with all that the inode's map names, all of which the volume holds. Answers whether a tree of extents has
/// more blocks than it needs, by the rule of `e2fsck`: a level with room for a whole block more than it uses, or one
/// that would fit in the level above.
pub(super) fn walk(
    geometry: &Geometry,
    inode: &Inode<'_>,
    each: &mut dyn FnMut(Met) -> Result<()>,
) -> Result<bool> {
    let mut walk = Walk { geometry, inode, each, levels: Levels::default(), pending: None };
    match inode.map {
        Map::None => return Ok(false),
        Map::Extents => {
            let root = inode.raw.block;
            let depth = walk.header(&root, None, "root")?.1;
            if depth > DEPTH_MAX {
                return Err(inode.error().field(
                    "depth of its extent tree",
                    depth,
                    format!("{DEPTH_MAX} at most"),
                ));
            }
            walk.extents(&root, depth, 0, 1 << 32)?;
            let per_block = (geometry.block_bytes / 12).saturating_sub(1);
            return Ok(is_wide(&walk.levels[..=depth], per_block));
        }
        Map::Pointers => walk.pointers()?,
    }
    walk.flush()?;
    Ok(false)
}

fn is_wide(levels: &[(u64, u64)], per_block: u64) -> bool {
    let has_room = levels.iter().any(|(used, max)| max.saturating_sub(*used) > per_block);
    let fits_above = levels
        .iter()
        .enumerate()
        .any(|(level, (used, _))| levels[..level].iter().any(|above| *used < above.1));
    has_room || fits_above
}

struct Walk<'a> {
    geometry: &'a Geometry,
    inode: &'a Inode<'a>,
    each: &'a mut dyn FnMut(Met) -> Result<()>,
    /// From the root down.
    levels: Levels,
    pending: Option<Piece>,
}

impl Walk<'_> {
    fn emit(&mut self, piece: Piece) -> Result<()> {
        if !self.geometry.holds(piece.start, piece.count) {
            let found = format!("{} blocks from block {}", piece.count, piece.start);
            let field = format!("extent at its block {}", piece.logical);
            return Err(self.inode.error().field(field, found, "within the volume"));
        }
        (self.each)(Met::Piece(piece))
    }

    fn node(&mut self, block: u64) -> Result<Vec<u8>> {
        if !self.geometry.holds(block, 1) {
            return Err(self.inode.error().field("block of its map", block, "within the volume"));
        }
        (self.each)(Met::Node(block))?;
        self.geometry.read(block, "ext block map")
    }

    /// Entries and depth of a node.
    fn header(&mut self, bytes: &[u8], depth: Option<usize>, what: &str) -> Result<(usize, usize)> {
        let bad = |field: &str, found: String, wanted: String| {
            self.inode.error().field(format!("{field} of the extent tree's {what}"), found, wanted)
        };
        let (header, _) = ExtentHeader::ref_from_prefix(bytes).expect("a node is larger than its header");
        if header.magic.get() != 0xf30a {
            return Err(bad("magic", format!("{:#x}", header.magic), "0xf30a".into()));
        }
        let found = usize::from(header.depth.get());
        if let Some(depth) = depth.filter(|depth| *depth != found) {
            return Err(bad("depth", found.to_string(), depth.to_string()));
        }
        let (entries, max) = (usize::from(header.entries.get()), usize::from(header.max.get()));
        let room = bytes.len() / ENTRY - 1;
        if max == 0 || max > room {
            return Err(bad("max", max.to_string(), format!("1 to {room}")));
        }
        let least = usize::from(depth.is_some() || found > 0);
        if entries < least || entries > max {
            return Err(bad("entries", entries.to_string(), format!("{least} to {max}")));
        }
        Ok((entries, found))
    }

    /// Walks a node that covers the blocks from `first` up to `end`; answers where its last extent ends.
    fn extents(&mut self, bytes: &[u8], depth: usize, first: u64, end: u64) -> Result<u64> {
        let (header, _) = ExtentHeader::ref_from_prefix(bytes).expect("a node is larger than its header");
        let (count, max) = (usize::from(header.entries.get()), usize::from(header.max.get()));
        // Counted from the leaves here, and from the root in what is answered.
        let root_depth = usize::from(
            ExtentHeader::ref_from_prefix(&self.inode.raw.block).expect("60 bytes").0.depth.get(),
        );
        let level = &mut self.levels[root_depth.saturating_sub(depth)];
        *level = (level.0 + count as u64, level.1 + max as u64);
        let entries = bytes[ENTRY..][..count * ENTRY].chunks_exact(ENTRY);
        let mut at = first;
        if depth == 0 {
            for entry in entries {
                at = self.extent(entry, at, end)?;
            }
            return Ok(at);
        }
        let children: Vec<(u64, u64)> = entries
            .map(|entry| {
                let (index, _) = ExtentIndex::ref_from_prefix(entry).expect("12 bytes");
                let leaf = u64::from(index.leaf_hi.get()) << 32 | u64::from(index.leaf_lo.get());
                (u64::from(index.block.get()), leaf)
            })
            .collect();
        for (number, (start, block)) in children.iter().enumerate() {
            let limit = children.get(number + 1).map_or(end, |next| next.0);
            if *start < at || *start >= limit || limit > end {
                let wanted = format!("{at} or more, below {limit}");
                return Err(self.inode.error().field(
                    "first block of an index of its extent tree",
                    *start,
                    wanted,
                ));
            }
            let bytes = self.node(*block)?;
            let what = format!("block {block}");
            self.header(&bytes, Some(depth - 1), &what)?;
            self.checksum(&bytes, *block)?;
            at = self.extents(&bytes, depth - 1, *start, limit)?;
        }
        Ok(at)
    }

    fn extent(&mut self, entry: &[u8], at: u64, end: u64) -> Result<u64> {
        let (extent, _) = Extent::ref_from_prefix(entry).expect("12 bytes");
        let len = extent.len.get();
        let is_unwritten = len > 0x8000;
        let count = u64::from(if is_unwritten { len - 0x8000 } else { len });
        let logical = u64::from(extent.block.get());
        if count == 0 || logical < at || logical + count > end {
            let found = format!("{count} blocks from {logical}");
            return Err(self.inode.error().field("extent", found, format!("blocks within {at} to {end}")));
        }
        let start = u64::from(extent.start_hi.get()) << 32 | u64::from(extent.start_lo.get());
        self.emit(Piece { logical, start, count, is_unwritten })?;
        Ok(logical + count)
    }

    /// Behind the room for entries (`struct ext4_extent_tail`).
    fn checksum(&self, bytes: &[u8], block: u64) -> Result<()> {
        if !self.geometry.has_checksums() {
            return Ok(());
        }
        let (header, _) = ExtentHeader::ref_from_prefix(bytes).expect("a node is larger than its header");
        let at = ENTRY * (1 + usize::from(header.max.get()));
        let computed = crc32c(self.inode.seed, &bytes[..at]);
        let stored =
            bytes.get(at..).and_then(|tail| tail.first_chunk()).map(|tail| u32::from_le_bytes(*tail));
        if stored == Some(computed) {
            return Ok(());
        }
        let found = stored.map_or_else(|| "missing".into(), |stored| format!("{stored:#x}"));
        Err(self.inode.error().field(
            format!("checksum of extent block {block}"),
            found,
            format!("{computed:#x}"),
        ))
    }

    fn pointers(&mut self) -> Result<()> {
        let per_block = self.geometry.block_bytes / 4;
        let root = self.inode.raw.block;
        let mut logical = 0;
        for (slot, pointer) in words(&root).enumerate() {
            let level = u32::try_from(slot.saturating_sub(11)).expect("four levels");
            self.pointer(pointer, level, logical)?;
            logical += per_block.pow(level);
        }
        Ok(())
    }

    fn pointer(&mut self, pointer: u32, level: u32, logical: u64) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        if level == 0 {
            let start = u64::from(pointer);
            if let Some(last) = self
                .pending
                .as_mut()
                .filter(|last| (last.logical + last.count, last.start + last.count) == (logical, start))
            {
                last.count += 1;
                return Ok(());
            }
            self.flush()?;
            self.pending = Some(Piece { logical, start, count: 1, is_unwritten: false });
            return Ok(());
        }
        let bytes = self.node(u64::from(pointer))?;
        let step = (self.geometry.block_bytes / 4).pow(level - 1);
        let mut logical = logical;
        for pointer in words(&bytes) {
            self.pointer(pointer, level - 1, logical)?;
            logical += step;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.pending.take().map_or(Ok(()), |piece| self.emit(piece))
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word))
}

/// Reads a block of a file by its number within it, given its pieces. It must be there.
pub(super) fn read_block(
    geometry: &Geometry,
    inode: &Inode<'_>,
    pieces: &[Piece],
    logical: u64,
) -> Result<Vec<u8>> {
    let at = pieces.partition_point(|piece| piece.logical + piece.count <= logical);
    let piece = pieces.get(at).filter(|piece| piece.logical <= logical && !piece.is_unwritten);
    let hole = || inode.error().field("block", format!("{logical}, a hole"), "there");
    let piece = piece.ok_or_else(hole)?;
    geometry.read(piece.start + (logical - piece.logical), "ext directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_with_room_to_spare_are_wide() {
        assert!(!is_wide(&[(4, 4)], 340));
        assert!(!is_wide(&[(2, 4), (500, 680)], 340));
        assert!(is_wide(&[(3, 4), (500, 1020)], 340));
        assert!(is_wide(&[(1, 4), (3, 340)], 340));
    }
}
