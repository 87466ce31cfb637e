//! The tree of roots: which trees the volume has.

use block::{Error, Result};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::key::{Key, Root, everything};
use super::layout::{RawRoot, item, object};
use super::tree::Reader;

/// A tree that the tree of roots names.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) root: Root,
    /// It is a subvolume that was deleted, and is not listed any more.
    pub(super) is_deleted: bool,
    /// How far its blocks are deleted: up to this key, which blocks of this level and those above bear.
    pub(super) deleted_to: Option<(Key, u8)>,
    /// The number of its top directory.
    pub(super) directory: u64,
}

/// Reads a root.
pub(super) fn parse(key: Key, bytes: &[u8]) -> Result<Tree> {
    let raw = RawRoot::read_from_prefix(bytes);
    let (raw, _) = raw.map_err(|_| key.wrong("size", bytes.len() as u64, "that of a root"))?;
    let deleted_to = Key::from(&raw.drop_progress);
    let is_begun = deleted_to != Key::MIN;
    if is_begun && !(1..=raw.level).contains(&raw.drop_level) {
        return Err(key.wrong("drop_level", raw.drop_level, "one from 1 to that of the root"));
    }
    let root = Root {
        tree: key.objectid,
        logical: raw.bytenr.get(),
        level: raw.level,
        generation: raw.generation.get(),
    };
    Ok(Tree {
        root,
        is_deleted: raw.refs.get() == 0,
        deleted_to: is_begun.then_some((deleted_to, raw.drop_level)),
        directory: raw.root_dirid.get(),
    })
}

/// All trees that the tree of roots names, by their numbers.
pub(super) fn read(reader: &Reader) -> Result<Vec<Tree>> {
    let mut trees: Vec<Tree> = Vec::new();
    reader.walk(reader.superblock.root_tree, &everything(), &mut |key, bytes| {
        let unfinished = || Err(Error::refused("a balance of it was not finished: mount it, and let it end"));
        match (key.kind, key.objectid) {
            (item::ROOT, _) => {}
            (item::TEMPORARY, object::BALANCE) => return unfinished(),
            _ => return Ok(()),
        }
        match key.objectid {
            object::TREE_RELOC => return unfinished(),
            object::RAID_STRIPE_TREE => return Err(Error::unsupported("Btrfs with a tree of stripes")),
            _ => {}
        }
        if trees.last().is_some_and(|tree| tree.root.tree == key.objectid) {
            return Err(Error::unsupported(format!("Btrfs with several trees of number {}", key.objectid)));
        }
        trees.push(parse(key, bytes)?);
        Ok(())
    })?;
    Ok(trees)
}

/// The tree of a number.
pub(super) fn find(trees: &[Tree], number: u64) -> Result<&Tree> {
    let found = trees.binary_search_by_key(&number, |tree| tree.root.tree);
    found.map(|index| &trees[index]).map_err(|_| Error::corrupt(Corrupt::NoTree { tree: number }))
}
