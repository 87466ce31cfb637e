//! What relocations make of an inode and of its map.
//!
//! Invariant: what is made maps the same logical blocks, in the same state, to where their contents lie afterwards, and
//! nothing else of the inode changes but the count of its blocks and its checksum.

use block::{Error, ReadAt, Result};
use extent::Volume;

use super::super::files::{self, EXTENT_COUNT_MAX, join};
use super::super::inode::{BlockRoot, Contents, Inode};
use super::super::superblock::{BlockNumber, Superblock};
use super::super::tree::{self, FileExtent, Visitor};
use super::build::Shape;
use super::place::Places;
use super::streams::Pins;
use crate::rearrange::{Mobility, Relocations};

/// An inode's map once its file lies elsewhere.
pub(super) struct Remapped {
    pub(super) root: BlockRoot,
    /// Blocks of the map that are written anew.
    pub(super) nodes: Vec<(BlockNumber, Vec<u8>)>,
    /// Blocks of pointers, each of which is to be [mapped](map_pointers) where it lies.
    pub(super) pointers: Vec<BlockNumber>,
    /// Blocks of the map that are free afterwards.
    pub(super) freed: Vec<BlockNumber>,
}

/// Remaps the map of `inode`, of which `moved_bytes` are said to move. `Invalid` unless just that much does, in whole
/// extents, and the inode may move.
pub(super) fn remap(
    volume: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    pins: &Pins<'_>,
    inode: &Inode,
    relocations: &Relocations,
    moved_bytes: u64,
) -> Result<Remapped> {
    let mut map = Collected { superblock, nodes: Vec::new(), extents: Vec::new() };
    tree::walk(volume, superblock, inode, &mut map)?;
    let shown: Vec<_> = map.extents.iter().map(|extent| files::shown(extent, superblock)).collect();
    if let Mobility::Pinned(why) = pins.mobility(inode, &shown) {
        return Err(Error::invalid(format!(
            "a relocation of ext inode {}, which must stay: {why}",
            inode.number
        )));
    }
    let places = Places::new(superblock, relocations, inode.number);
    let mut sum = 0;
    for extent in &mut map.extents {
        let (moved, bytes) = places.extent(*extent)?;
        *extent = moved;
        sum += bytes;
    }
    if sum != moved_bytes {
        let what = format!(
            "relocations move {moved_bytes} bytes of ext inode {}, of which it has {sum}",
            inode.number
        );
        return Err(Error::invalid(what));
    }
    match &inode.contents {
        Contents::None => {
            Err(Error::invalid(format!("a relocation of ext inode {} without blocks", inode.number)))
        }
        Contents::Extents(root) => {
            let tree = Shape::new(superblock, inode, root).build(map.extents, &map.nodes)?;
            Ok(Remapped { root: tree.root, nodes: tree.nodes, pointers: Vec::new(), freed: tree.freed })
        }
        Contents::Indirect(root) => {
            let root = mapped_root(root, &places)?;
            Ok(Remapped { root, nodes: Vec::new(), pointers: map.nodes, freed: Vec::new() })
        }
    }
}

/// The root of a map that has no nodes, or whose nodes stay where they are.
pub(super) fn remap_root(
    superblock: &Superblock,
    inode: &Inode,
    relocations: &Relocations,
) -> Result<BlockRoot> {
    let places = Places::new(superblock, relocations, inode.number);
    match &inode.contents {
        Contents::None => {
            Err(Error::invalid(format!("a relocation of ext inode {} without blocks", inode.number)))
        }
        Contents::Indirect(root) => mapped_root(root, &places),
        Contents::Extents(root) => {
            let mut map = Collected { superblock, nodes: Vec::new(), extents: Vec::new() };
            tree::walk(&NoNodes, superblock, inode, &mut map)?;
            let moved = map.extents.into_iter().map(|extent| Ok(places.extent(extent)?.0));
            let moved = moved.collect::<Result<Vec<_>>>()?;
            Ok(Shape::new(superblock, inode, root).build(moved, &[])?.root)
        }
    }
}

fn mapped_root(root: &BlockRoot, places: &Places<'_>) -> Result<BlockRoot> {
    let mut root = *root;
    map_pointers(&mut root, places)?;
    Ok(root)
}

/// Makes all pointers of a block say where their blocks lie afterwards. Those to blocks of pointers stay, as these do.
pub(super) fn map_pointers(bytes: &mut [u8], places: &Places<'_>) -> Result<()> {
    for pointer in bytes.as_chunks_mut::<4>().0 {
        let block = u32::from_le_bytes(*pointer);
        if block != 0 {
            let moved = places.block(block.into());
            let moved = u32::try_from(moved).map_err(|_| {
                Error::invalid(format!("a relocation to ext block {moved}, past what a pointer can say"))
            })?;
            *pointer = moved.to_le_bytes();
        }
    }
    Ok(())
}

/// A map as a walk meets it, its extents joined.
struct Collected<'a> {
    superblock: &'a Superblock,
    nodes: Vec<BlockNumber>,
    extents: Vec<FileExtent>,
}

impl Visitor for Collected<'_> {
    fn node(&mut self, block: BlockNumber) -> Result<()> {
        self.nodes.push(block);
        // A map that leads in circles has more nodes than the volume has blocks.
        if self.nodes.len() as u64 > self.superblock.blocks_count || self.nodes.len() > EXTENT_COUNT_MAX {
            return Err(Error::unsupported(format!("ext block map has too many blocks, at block {block}")));
        }
        Ok(())
    }

    fn extent(&mut self, extent: FileExtent) -> Result<()> {
        join(&mut self.extents, extent);
        if self.extents.len() > EXTENT_COUNT_MAX {
            return Err(Error::unsupported(format!("ext file in more than {EXTENT_COUNT_MAX} pieces")));
        }
        Ok(())
    }
}

/// Stands for a volume of which nothing is to be read.
struct NoNodes;

impl ReadAt<Volume> for NoNodes {
    fn len_bytes(&self) -> u64 {
        0
    }

    fn read_at(&self, at: extent::VolumeOffset, _buf: &mut [u8]) -> Result<()> {
        Err(Error::invalid("a map was to have no blocks").at(at))
    }
}
