//! The full check: the devices' extents are those of chunks, each has its block group, and what the extent tree lists is what all
//! trees refer to, each reference as often as it is listed.
//!
//! Memory: a number for each block of a tree, and some more for those of one level; what refers to data is compared by digests.

use std::collections::HashSet;

use block::{Error, Result};

use super::chunk::Chunk;
use super::corrupt::Corrupt;
use super::devices::{self, counter};
use super::extents::{self, Extent, Met, Reference};
use super::file_extent::{self, Data, FileExtentItem};
use super::key::{Key, everything};
use super::layout::{group, item, object};
use super::roots::{self, Tree};
use super::tree::{Expected, Node, Reader};
use crate::digest::Digest;

/// Blocks of trees are read in pieces of at most this size.
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// Fails with the first contradiction.
pub(super) fn check(reader: &Reader, trees: &[Tree]) -> Result<()> {
    devices::check_extents(reader, trees)?;
    let listed = extent_tree(reader, trees)?;
    let mut sweep = Sweep {
        reader,
        shared: listed.shared,
        deleting: trees.iter().filter(|tree| tree.is_deleted).map(|tree| tree.root.tree).collect(),
        met: Digest::default(),
        visited: HashSet::new(),
        levels: Vec::new(),
    };
    for root in [reader.superblock.root_tree, reader.superblock.chunk_tree] {
        sweep.root(&Tree { root, is_deleted: false, deleted_to: None, directory: 0 });
    }
    for tree in trees {
        sweep.root(tree);
    }
    sweep.run()?;
    if sweep.met == listed.references {
        return Ok(());
    }
    let (met, listed) = (sweep.met.count(), listed.references.count());
    let (found, expected) = match met == listed {
        true => {
            (format!("{met}, not all of them to what it lists"), format!("{listed}, all of them to that"))
        }
        false => (met.to_string(), format!("{listed}")),
    };
    Err(Error::corrupt(Corrupt::References).field("references", found, expected))
}

fn wrong(logical: u64, name: &str, found: u64, expected: &str) -> Error {
    Error::corrupt(Corrupt::Chunk { logical }).field(name, found, expected.to_owned())
}

/// What the extent tree lists.
struct Listed {
    references: Digest,
    /// Blocks whose references bear them, and not their tree. In order.
    shared: Vec<u64>,
}

/// The extent tree: each extent is in a block group of its kind.
fn extent_tree(reader: &Reader, trees: &[Tree]) -> Result<Listed> {
    let mut listed = Listed { references: Digest::default(), shared: Vec::new() };
    let mut groups: Vec<(Key, u64, u64)> = Vec::new();
    let mut used = vec![0_u64; reader.chunks.all().len()];
    let root = roots::find(trees, object::EXTENT_TREE)?.root;
    extents::each(reader, root, 0, u64::MAX, &mut |met| {
        match met {
            Met::BlockGroup { key, used, kind } => groups.push((key, used, kind)),
            Met::Reference(extent, reference, count) => {
                listed.references.add_times((extent, reference), count);
            }
            Met::Extent { extent, is_shared } => {
                let (index, chunk) = holding(reader, extent)?;
                used[index] += extent.len_bytes;
                let wanted =
                    if extent.level.is_some() { group::METADATA | group::SYSTEM } else { group::DATA };
                if chunk.kind & wanted == 0 {
                    return Err(wrong(chunk.logical, "type", chunk.kind, "that of the extents in it"));
                }
                if is_shared {
                    listed.shared.push(extent.logical);
                }
            }
        }
        Ok(())
    })?;
    let tree = reader.superblock.block_groups_tree();
    if tree != object::EXTENT_TREE {
        reader.walk(roots::find(trees, tree)?.root, &everything(), &mut |key, bytes| {
            let (used, kind) = extents::block_group(key, bytes)?;
            groups.push((key, used, kind));
            Ok(())
        })?;
    }
    block_groups(reader, &groups, &used)?;
    counter("bytes_used", reader.superblock.used_bytes, used.iter().sum())?;
    Ok(listed)
}

fn holding(reader: &Reader, extent: Extent) -> Result<(usize, &Chunk)> {
    let all = reader.chunks.all();
    let chunk = reader.chunks.holding(extent.logical, extent.len_bytes)?;
    Ok((all.partition_point(|other| other.logical < chunk.logical), chunk))
}

/// Each chunk has its block group, which knows how much of it is used.
fn block_groups(reader: &Reader, groups: &[(Key, u64, u64)], used: &[u64]) -> Result<()> {
    let chunks = reader.chunks.all();
    if groups.len() != chunks.len() {
        let expected = format!("{}, one for each chunk", chunks.len());
        return Err(Error::corrupt(Corrupt::Counter).field("block groups", groups.len(), expected));
    }
    for ((chunk, sum), (key, used, kind)) in chunks.iter().zip(used).zip(groups) {
        for (name, found, right) in [
            ("block group", key.objectid, chunk.logical),
            ("block group's length", key.offset, chunk.len_bytes),
            ("block group's flags", *kind, chunk.kind),
            ("block group's used", *used, *sum),
        ] {
            if found != right {
                return Err(wrong(chunk.logical, name, found, &right.to_string()));
            }
        }
    }
    Ok(())
}

/// A block that is to be looked at, and how far what it names is deleted.
struct Wanted {
    expected: Expected,
    deleted_to: Option<(Key, u8)>,
}

/// Blocks of one level that are to be looked at.
#[derive(Default)]
struct Level {
    wanted: Vec<Wanted>,
    /// Which trees refer to which of them.
    trees: HashSet<(u64, u64)>,
}

/// Meets every block of every tree once, level by level, from the top.
struct Sweep<'a> {
    reader: &'a Reader,
    shared: Vec<u64>,
    /// Subvolumes that are being deleted. Before a block that others share loses its reference from there, it becomes one whose references bear
    /// it, and so do those below it, one after the other (`walk_down_proc` in the kernel's fs/btrfs/extent-tree.c). Between two of these steps
    /// the upper one refers to the lower, which still bears the subvolume.
    deleting: HashSet<u64>,
    met: Digest,
    visited: HashSet<u64>,
    /// By level, the blocks to come.
    levels: Vec<Level>,
}

impl Sweep<'_> {
    fn root(&mut self, tree: &Tree) {
        let reference = Reference::Tree { tree: tree.root.tree };
        self.want(Wanted { expected: tree.root.into(), deleted_to: tree.deleted_to }, reference);
    }

    fn want(&mut self, wanted: Wanted, reference: Reference) {
        let Expected { logical, level, .. } = wanted.expected;
        let len_bytes = self.reader.superblock.node_bytes.into();
        self.met.add((Extent { logical, len_bytes, level: Some(level) }, reference));
        let level = usize::from(level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Level::default);
        }
        if let Reference::Tree { tree } = reference {
            self.levels[level].trees.insert((logical, tree));
        }
        if self.visited.insert(logical) {
            self.levels[level].wanted.push(wanted);
        }
    }

    fn run(&mut self) -> Result<()> {
        for level in (0..self.levels.len()).rev() {
            let Level { wanted, trees } = std::mem::take(&mut self.levels[level]);
            let deleted: Vec<_> = wanted
                .iter()
                .filter_map(|wanted| Some((wanted.expected.logical, wanted.deleted_to?)))
                .collect();
            let mut blocks: Vec<Expected> = wanted.into_iter().map(|wanted| wanted.expected).collect();
            let reader = self.reader;
            reader.each_node(&mut blocks, PIECE_BYTES_MAX, &mut |_, node| {
                let is_known =
                    trees.contains(&(node.logical, node.owner)) || self.deleting.contains(&node.owner);
                if !self.is_shared(&node) && !is_known {
                    let error = Error::corrupt(Corrupt::Node { logical: node.logical });
                    return Err(error.field("owner", node.owner, "a tree that refers to it".to_owned()));
                }
                let deleted_to = deleted.iter().find(|(logical, _)| *logical == node.logical);
                self.node(&node, deleted_to.map(|(_, deleted_to)| *deleted_to))
            })?;
        }
        Ok(())
    }

    fn is_shared(&self, node: &Node<'_>) -> bool {
        self.shared.binary_search(&node.logical).is_ok()
    }

    fn node(&mut self, node: &Node<'_>, deleted_to: Option<(Key, u8)>) -> Result<()> {
        let is_shared = self.is_shared(node);
        let reference = match is_shared {
            true => Reference::SharedTree { parent: node.logical },
            false => Reference::Tree { tree: node.owner },
        };
        let first = deleted_to.map_or(0, |(key, _)| node.slot(key));
        for (index, expected) in node.children(first).enumerate() {
            let deleted_to = deleted_to.filter(|(_, level)| index == 0 && node.level > *level);
            self.want(Wanted { expected, deleted_to }, reference);
        }
        for (key, bytes) in node.items().filter(|(key, _)| key.kind == item::EXTENT_DATA) {
            let FileExtentItem::Data(data) = file_extent::parse(&self.reader.superblock, key, bytes)? else {
                continue;
            };
            let Data { logical, len_bytes, offset, .. } = data;
            let reference = match is_shared {
                true => Reference::SharedFile { parent: node.logical },
                false => Reference::File {
                    tree: node.owner,
                    inode: key.objectid,
                    offset: key.offset.wrapping_sub(offset),
                },
            };
            self.met.add((Extent { logical, len_bytes, level: None }, reference));
        }
        Ok(())
    }
}
