//! The metadata as they will be, computed as they are read, for volumes written anew.
//!
//! Kept in memory besides the relocations: the numbers of the files that move, the blocks of those trees of extents that
//! have some, where blocks of pointers lie, and some bytes for each group of which something changes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use block::{Error, Result, read_vec};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};

use super::super::group::{self, GroupUpdate};
use super::super::inode::{BlockRoot, Inode, InodeNumber, inode_at, replace_root};
use super::super::layout::{RawSuperblock, SUPERBLOCK_OFFSET};
use super::super::nodes;
use super::super::superblock::{BlockNumber, GroupNumber, Superblock};
use super::groups::{Changes, freed_clusters};
use super::metadata_edits::MetadataEdits;
use super::place::{Places, moved_bytes};
use super::quota::Released;
use super::remap::{map_pointers, remap, remap_root};
use super::streams::Pins;
use crate::Source;
use crate::ext::corrupt::Corrupt;
use crate::rearrange::{Relocations, Rewritten};

/// Inodes of which the maps are read at once.
const INODES_AHEAD: usize = 4096;

/// What lies in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Superblock,
    /// Whole blocks of descriptors, from that of this group on.
    Descriptors(GroupNumber),
    Bitmap(GroupNumber),
    /// Whole blocks of an inode table, from this inode on.
    Inodes(InodeNumber),
    /// A block that is kept as it will be: a node of a tree of extents, a block of a quota file.
    Kept,
    /// Pointers.
    Pointers,
}

/// Consecutive metadata of a kind.
#[derive(Clone, Copy, Debug)]
struct Region {
    span: VolumeSpan,
    kind: Kind,
}

/// A root that is not computed from the inode alone.
struct Root {
    root: BlockRoot,
    freed_count: u64,
}

/// See [`Rewritten`].
pub(super) struct View {
    source: Source,
    superblock: Arc<Superblock>,
    relocations: Arc<Relocations>,
    /// Those that move, ascending.
    inodes: Vec<InodeNumber>,
    roots: HashMap<InodeNumber, Root>,
    kept: HashMap<BlockNumber, Box<[u8]>>,
    freed: ExtentSet<Volume>,
    groups: BTreeMap<GroupNumber, GroupUpdate>,
    /// By where they lie; disjoint.
    regions: Vec<Region>,
    places: ExtentSet<Volume>,
}

impl View {
    pub(super) fn new(
        source: &Source,
        superblock: &Arc<Superblock>,
        pins: &Pins<'_>,
        relocations: Arc<Relocations>,
    ) -> Result<Self> {
        let moved = moved_bytes(superblock, &relocations)?;
        let mut maker = Maker { source, superblock, pins, relocations: &relocations, made: Made::default() };
        for group in
            moved.chunk_by(|(a, _), (b, _)| superblock.group_of_inode(*a) == superblock.group_of_inode(*b))
        {
            maker.group(group)?;
        }
        maker.quotas()?;
        let Made { roots, kept, freed, mut regions, .. } = maker.made;
        let freed = freed_clusters(superblock, freed);
        let changes = Changes { superblock, relocations: &relocations, freed: &freed, may_reuse: true };
        let mut groups = BTreeMap::new();
        for number in changes.groups() {
            let bitmap = changes.bitmap(source, number)?;
            regions.push(Region::of_blocks(superblock, bitmap.block, 1, Kind::Bitmap(number)));
            groups.insert(number, bitmap.update);
        }
        push_descriptors(&mut regions, superblock, groups.keys().copied());
        if !freed.is_empty() {
            let span = Span::new(Offset::new(SUPERBLOCK_OFFSET), size_of::<RawSuperblock>() as u64);
            regions.push(Region { span, kind: Kind::Superblock });
        }
        regions.sort_unstable_by_key(|region| region.span);
        check_disjoint(&regions, &relocations)?;
        Ok(Self {
            source: source.clone(),
            superblock: superblock.clone(),
            inodes: moved.into_iter().map(|(inode, _)| inode).collect(),
            roots,
            kept,
            groups,
            places: regions.iter().map(|region| region.span).collect(),
            regions,
            freed,
            relocations,
        })
    }

    fn changes(&self) -> Changes<'_> {
        Changes {
            superblock: &self.superblock,
            relocations: &self.relocations,
            freed: &self.freed,
            may_reuse: true,
        }
    }

    /// The bytes of `part` of a region, or of more of it.
    fn region(&self, region: &Region, part: VolumeSpan) -> Result<(VolumeOffset, Vec<u8>)> {
        let part = self.whole_items(region, part);
        let bytes = match region.kind {
            Kind::Bitmap(number) => self.changes().bitmap(&self.source, number)?.bytes,
            Kind::Kept => self.kept(part.start())?,
            kind => {
                let mut bytes = read_vec(&self.source, part.start(), part.len_bytes(), "ext metadata")?;
                let skipped = part.start().get() - region.span.start().get();
                self.rewrite(kind, skipped, &mut bytes)?;
                bytes
            }
        };
        Ok((part.start(), bytes))
    }

    /// `part`, which is within a region, and the rest of the things at its ends.
    fn whole_items(&self, region: &Region, part: VolumeSpan) -> VolumeSpan {
        let item_bytes = match region.kind {
            Kind::Superblock => region.span.len_bytes(),
            Kind::Descriptors(_) => self.superblock.descriptor_bytes.into(),
            Kind::Inodes(_) => self.superblock.inode_bytes.into(),
            Kind::Bitmap(_) | Kind::Kept | Kind::Pointers => self.superblock.block_bytes.into(),
        };
        let start = region.span.start().get();
        let from = (part.start().get() - start) / item_bytes * item_bytes;
        let end = (part.end().get() - start).next_multiple_of(item_bytes);
        Span::between(Offset::new(start + from), Offset::new(start + end))
    }

    /// Makes `bytes`, from `skipped` bytes into a region of a kind on, as they will be.
    fn rewrite(&self, kind: Kind, skipped: u64, bytes: &mut [u8]) -> Result<()> {
        let index = |item_bytes: u32| u32::try_from(skipped / u64::from(item_bytes)).expect("within a table");
        match kind {
            Kind::Superblock => self.changes().update_superblock(bytes),
            Kind::Descriptors(first) => {
                self.descriptors(first + index(self.superblock.descriptor_bytes), bytes);
                Ok(())
            }
            Kind::Inodes(first) => self.table(first + index(self.superblock.inode_bytes.into()), bytes),
            Kind::Pointers => {
                bytes.chunks_exact_mut(index_of(self.superblock.block_bytes)).try_for_each(|block| {
                    // Whose they are does not matter: what moves of other files is not in these.
                    map_pointers(block, &Places::new(&self.superblock, &self.relocations, 0))
                })
            }
            Kind::Bitmap(_) | Kind::Kept => Ok(()),
        }
    }

    fn descriptors(&self, first: GroupNumber, bytes: &mut [u8]) {
        let item_bytes = index_of(self.superblock.descriptor_bytes);
        for (number, update) in self.groups.range(first..) {
            let at = index_of(number - first).saturating_mul(item_bytes);
            let Some(descriptor) = bytes.get_mut(at..at.saturating_add(item_bytes)) else { return };
            update.apply(descriptor, &self.superblock, *number);
        }
    }

    fn table(&self, first: InodeNumber, bytes: &mut [u8]) -> Result<()> {
        let item_bytes = usize::from(self.superblock.inode_bytes);
        let start = self.inodes.partition_point(|number| *number < first);
        for number in &self.inodes[start..] {
            let at = index_of(number - first).saturating_mul(item_bytes);
            let Some(bytes) = bytes.get_mut(at..at.saturating_add(item_bytes)) else { return Ok(()) };
            self.inode(*number, bytes)?;
        }
        Ok(())
    }

    fn inode(&self, number: InodeNumber, bytes: &mut [u8]) -> Result<()> {
        let inode = Inode::parse(bytes, &self.superblock, number)?;
        match self.roots.get(&number) {
            Some(Root { root, freed_count }) => {
                replace_root(bytes, &self.superblock, &inode, root, *freed_count)
            }
            None => {
                let root = remap_root(&self.superblock, &inode, &self.relocations)?;
                replace_root(bytes, &self.superblock, &inode, &root, 0)
            }
        }
    }

    fn kept(&self, at: VolumeOffset) -> Result<Vec<u8>> {
        let block = at.get() / u64::from(self.superblock.block_bytes);
        let bytes =
            self.kept.get(&block).ok_or_else(|| Error::invalid("no block that is rewritten").at(at))?;
        Ok(bytes.to_vec())
    }
}

impl Rewritten for View {
    fn places(&self) -> &ExtentSet<Volume> {
        &self.places
    }

    fn freed(&self) -> &ExtentSet<Volume> {
        &self.freed
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        let outside = || Error::invalid("a read of what is not rewritten").at(at);
        let wanted = Span::checked(at, buf.len() as u64).ok_or_else(outside)?;
        let mut filled = at;
        let first = self.regions.partition_point(|region| region.span.end() <= at);
        for region in &self.regions[first..] {
            let Some(part) = region.span.intersect(&wanted).filter(|part| part.start() == filled) else {
                break;
            };
            // Nodes and bitmaps are had one at a time.
            let step = match region.kind {
                Kind::Bitmap(_) | Kind::Kept => u64::from(self.superblock.block_bytes),
                _ => u64::MAX,
            };
            for part in part.split(step) {
                let (start, bytes) = self.region(region, part)?;
                let from = |at: VolumeOffset, base: VolumeOffset| {
                    usize::try_from(at.get() - base.get()).expect("in memory")
                };
                let target = from(part.start(), at)..from(part.end(), at);
                let source = from(part.start(), start)..from(part.end(), start);
                buf[target].copy_from_slice(&bytes[source]);
            }
            filled = part.end();
        }
        if filled == wanted.end() { Ok(()) } else { Err(outside()) }
    }
}

impl Region {
    fn of_blocks(superblock: &Superblock, first: BlockNumber, count: u64, kind: Kind) -> Self {
        let len_bytes = count * u64::from(superblock.block_bytes);
        Self { span: Span::new(superblock.offset_of(first), len_bytes), kind }
    }
}

/// The blocks that hold the descriptors of `groups`, which ascend.
fn push_descriptors(
    regions: &mut Vec<Region>,
    superblock: &Superblock,
    groups: impl Iterator<Item = GroupNumber>,
) {
    let per_block = superblock.descriptors_per_block();
    let mut last = None;
    for number in groups {
        let first = number / per_block * per_block;
        if last != Some(first) {
            last = Some(first);
            let block = superblock.descriptor_at(first).get() / u64::from(superblock.block_bytes);
            regions.push(Region::of_blocks(superblock, block, 1, Kind::Descriptors(first)));
        }
    }
}

/// Fails unless `regions`, which are sorted, are disjoint, and nothing moves from or to there.
fn check_disjoint(regions: &[Region], relocations: &Relocations) -> Result<()> {
    let is_moved = |region: &&Region| {
        relocations.departures(region.span).next().is_some()
            || relocations.arrivals(region.span).next().is_some()
    };
    let overlapping =
        regions.windows(2).find(|pair| pair[0].span.end() > pair[1].span.start()).map(|pair| &pair[1]);
    match overlapping.or_else(|| regions.iter().find(is_moved)) {
        Some(region) => Err(Error::corrupt(Corrupt::MetadataInMetadata).at(region.span.start())),
        None => Ok(()),
    }
}

#[derive(Default)]
struct Made {
    roots: HashMap<InodeNumber, Root>,
    kept: HashMap<BlockNumber, Box<[u8]>>,
    freed: Vec<BlockNumber>,
    regions: Vec<Region>,
    released: Released,
}

/// Looks at all that moves, once.
struct Maker<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    pins: &'a Pins<'a>,
    relocations: &'a Relocations,
    made: Made,
}

impl Maker<'_> {
    /// Takes what changes of the quota files.
    fn quotas(&mut self) -> Result<()> {
        let mut metadata = MetadataEdits::new(self.source, self.superblock);
        self.made.released.apply(&mut metadata)?;
        self.keep(metadata.into_blocks());
        Ok(())
    }

    /// Keeps blocks that are written anew.
    fn keep(&mut self, blocks: impl IntoIterator<Item = (BlockNumber, Vec<u8>)>) {
        for (block, bytes) in blocks {
            self.made.regions.push(Region::of_blocks(self.superblock, block, 1, Kind::Kept));
            self.made.kept.insert(block, bytes.into());
        }
    }

    /// Takes the inodes of a group that move.
    fn group(&mut self, moved: &[(InodeNumber, u64)]) -> Result<()> {
        let superblock = self.superblock;
        let (Some((first, _)), Some((last, _))) = (moved.first(), moved.last()) else { return Ok(()) };
        let number = superblock.group_of_inode(*first);
        let group = group::read(self.source, superblock, number)?;
        let per_block = superblock.block_bytes / u32::from(superblock.inode_bytes);
        let base = number * superblock.inodes_per_group + 1;
        let blocks = (first - base) / per_block..(last - base) / per_block + 1;
        let start = group.inode_table + u64::from(blocks.start);
        let count = u64::from(blocks.end - blocks.start);
        let kind = Kind::Inodes(base + blocks.start * per_block);
        self.made.regions.push(Region::of_blocks(superblock, start, count, kind));
        let mut rest = moved;
        while !rest.is_empty() {
            let end_max = rest[0].0.saturating_add(u32::try_from(INODES_AHEAD).expect("some thousands"));
            let (now, later) = rest.split_at(rest.partition_point(|(inode, _)| *inode < end_max));
            self.piece(group.inode_table, base, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Takes inodes of a table that lie near each other; `base` is the table's first.
    fn piece(&mut self, table: BlockNumber, base: InodeNumber, moved: &[(InodeNumber, u64)]) -> Result<()> {
        let superblock = self.superblock;
        let range: Range<u32> = moved[0].0..moved[moved.len() - 1].0 + 1;
        let at = inode_at(superblock, table, range.start - base);
        let item_bytes = usize::from(superblock.inode_bytes);
        let len_bytes = u64::from(range.end - range.start) * u64::from(superblock.inode_bytes);
        let bytes = read_vec(self.source, at, len_bytes, "ext inode table")?;
        let parse = |number: InodeNumber| {
            let at = index_of(number - range.start) * item_bytes;
            Inode::parse(&bytes[at..at + item_bytes], superblock, number)
        };
        let inodes = moved.iter().map(|(number, _)| parse(*number)).collect::<Result<Vec<_>>>()?;
        let ahead = nodes::read_ahead(self.source, superblock, inodes.iter())?;
        inodes.iter().zip(moved).try_for_each(|(inode, (_, bytes))| self.inode(&ahead, inode, *bytes))
    }

    fn inode(&mut self, ahead: &Source, inode: &Inode, moved_bytes: u64) -> Result<()> {
        let superblock = self.superblock;
        let map = remap(ahead, superblock, self.pins, inode, self.relocations, moved_bytes)?;
        if !map.nodes.is_empty() || !map.freed.is_empty() {
            let freed_count = map.freed.len() as u64;
            self.made.roots.insert(inode.number, Root { root: map.root, freed_count });
        }
        self.keep(map.nodes);
        let pointers = map.pointers.iter();
        let pointers = pointers.map(|block| Region::of_blocks(superblock, *block, 1, Kind::Pointers));
        self.made.regions.extend(pointers);
        self.made.released.add(inode, superblock.clusters_bytes(map.freed.len() as u64));
        self.made.freed.extend(map.freed);
        Ok(())
    }
}

fn index_of(number: u32) -> usize {
    usize::try_from(number).expect("an index of memory")
}
