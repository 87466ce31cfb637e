//! Btrfs, checked tree by tree, and what of it stays. Of several devices the volume is all, one behind the other, each as long as it
//! says, by ascending numbers.
//!
//! Each block is read once, however many snapshots have it.

mod corrupt;
mod geometry;
pub(super) mod snapshot;

use std::collections::HashSet;

use block::{Error, Result};
use xxhash_rust::xxh3::xxh3_128;

use super::{Scope, Source, VolumeReport};
pub use corrupt::CorruptBtrfs;
use geometry::Geometry;
pub(super) use geometry::is_btrfs;
use geometry::number;

/// Of all trees: the number of the first subvolume, and of the first that is none again.
const SUBVOLUMES: std::ops::Range<u64> = 256..0_u64.wrapping_sub(256);
const HEADER_BYTES: usize = 101;

/// Checks all trees, and that each extent is referred to as often as it is counted.
pub(super) fn check(source: &Source, scope: Scope) -> Result<VolumeReport> {
    let mut report = VolumeReport { filesystem: "btrfs", ..VolumeReport::default() };
    let (mut counted, mut used) = (0_u128, 0);
    let (geometry, met) = walk(source, &mut |geometry, item| {
        match item.kind {
            1 if item.is_file() => {
                let is_directory = number(item.data, 52, 4) & 0o170_000 == 0o040_000;
                *if is_directory { &mut report.directories } else { &mut report.files } += 1;
            }
            96 if item.is_file() && scope == Scope::All => report.names += 1,
            168 | 169 if item.tree == 2 => {
                let len = if item.kind == 169 { geometry.node_bytes } else { item.offset };
                let copies = geometry.places_of(item.object, len)?;
                used += len;
                report.used_bytes += len * copies.len() as u64;
                counted =
                    counted.wrapping_add(fact(item.object, len).wrapping_mul(number(item.data, 0, 8).into()));
            }
            _ => {}
        }
        Ok(())
    })?;
    if counted != met {
        return Err(Error::corrupt(CorruptBtrfs::References));
    }
    if used != geometry.used_bytes {
        return Err(Error::corrupt(CorruptBtrfs::Used(used)));
    }
    Ok(report)
}

/// That something refers to an extent.
fn fact(address: u64, len: u64) -> u128 {
    xxh3_128([address.to_le_bytes(), len.to_le_bytes()].as_flattened())
}

/// An item of a tree.
struct Item<'a> {
    tree: u64,
    object: u64,
    kind: u8,
    offset: u64,
    data: &'a [u8],
}

impl Item<'_> {
    /// Whether it is of a subvolume.
    fn is_file(&self) -> bool {
        self.tree == 5 || SUBVOLUMES.contains(&self.tree)
    }

    fn wrong(&self) -> Error {
        Error::corrupt(CorruptBtrfs::Item(self.object))
    }
}

type Each<'a> = &'a mut dyn FnMut(&Geometry<'_>, &Item<'_>) -> Result<()>;

/// Shows `each` all items of all trees. Answers the sum of all references that blocks and files make.
fn walk<'a>(source: &'a Source, each: Each<'_>) -> Result<(Geometry<'a>, u128)> {
    let mut geometry = Geometry::open(source)?;
    let [roots, chunks] = geometry.roots();
    let mut found = Vec::new();
    Walk::new(&geometry, 3).node(chunks, None, &mut |_, item| {
        if item.kind == 228 {
            found.push((item.offset, item.data.to_vec()));
        }
        Ok(())
    })?;
    for (start, chunk) in found {
        geometry.add_chunk(start, &chunk)?;
    }
    let mut trees = Vec::new();
    let mut walk = Walk::new(&geometry, 1);
    walk.node(roots, None, &mut |geometry, item| {
        if item.kind == 132 {
            if number(item.data, 220, 17) != 0 || item.object == 0_u64.wrapping_sub(8) {
                return Err(Error::unsupported("Btrfs in which a tree is being deleted or moved"));
            }
            let root = [number(item.data, 176, 8), number(item.data, 160, 8), number(item.data, 238, 1)];
            trees.push((item.object, root));
        }
        each(geometry, item)
    })?;
    for (tree, root) in [(3, chunks)].into_iter().chain(trees) {
        (walk.tree, walk.before) = (tree, None);
        walk.node(root, None, each)?;
    }
    let met = walk.met;
    Ok((geometry, met))
}

struct Walk<'a, 'b> {
    geometry: &'a Geometry<'b>,
    tree: u64,
    /// The key before.
    before: Option<[u64; 3]>,
    visited: HashSet<u64>,
    met: u128,
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(geometry: &'a Geometry<'b>, tree: u64) -> Self {
        Self { geometry, tree, before: None, visited: HashSet::new(), met: 0 }
    }

    /// A block, by its address, generation and level; `first` is the key that leads to it.
    fn node(&mut self, root: [u64; 3], first: Option<[u64; 3]>, each: Each<'_>) -> Result<()> {
        let geometry = self.geometry;
        let [address, generation, level] = root;
        self.met = self.met.wrapping_add(fact(address, geometry.node_bytes));
        if !self.visited.insert(address) {
            self.before = None;
            return Ok(());
        }
        let wrong = || Error::corrupt(CorruptBtrfs::Tree(address));
        let bytes = geometry.read_block(address)?;
        let is_right = geometry.sum_holds(&bytes)
            && &bytes[32..48] == geometry.uuid()
            && [number(&bytes, 48, 8), number(&bytes, 80, 8), number(&bytes, 100, 1)] == root
            && level < 8
            && generation > 0;
        let entry = if level == 0 { 25 } else { 33 };
        let body = &bytes[HEADER_BYTES..];
        let count = usize::try_from(number(&bytes, 96, 4)).map_err(|_| wrong())?;
        let entries = body.get(..count.saturating_mul(entry)).filter(|_| is_right).ok_or_else(wrong)?;
        let mut end = body.len();
        for (index, bytes) in entries.chunks_exact(entry).enumerate() {
            let key = [number(bytes, 0, 8), number(bytes, 8, 1), number(bytes, 9, 8)];
            if index == 0 && first.is_some_and(|first| first != key) {
                return Err(wrong());
            }
            if level > 0 {
                self.node([number(bytes, 17, 8), number(bytes, 25, 8), level - 1], Some(key), each)?;
                continue;
            }
            if self.before.is_some_and(|before| before >= key) {
                return Err(wrong());
            }
            self.before = Some(key);
            let [offset, size] =
                [17, 21].map(|at| usize::try_from(number(bytes, at, 4)).unwrap_or(usize::MAX));
            if offset < entries.len() || offset.checked_add(size) != Some(end) {
                return Err(wrong());
            }
            let data = &body[offset..end];
            end = offset;
            let kind = u8::try_from(key[1]).map_err(|_| wrong())?;
            let item = Item { tree: self.tree, object: key[0], kind, offset: key[2], data };
            if let Some([address, len, ..]) = extent_of(&item)? {
                self.met = self.met.wrapping_add(fact(address, len));
            }
            each(geometry, &item)?;
        }
        Ok(())
    }
}

/// Where the extent of a part of a file lies, how long it is, and where in it the part begins and how long that is; `None` of what is no
/// such part, and of one within the tree or that is not there.
fn extent_of(item: &Item<'_>) -> Result<Option<[u64; 4]>> {
    if item.kind != 108 || number(item.data, 20, 1) == 0 {
        return Ok(None);
    }
    let extent = [21, 29, 37, 45].map(|at| number(item.data, at, 8));
    match (item.data.len(), number(item.data, 20, 1)) {
        (53, 1 | 2) => Ok(Some(extent).filter(|extent| extent[0] != 0)),
        _ => Err(item.wrong()),
    }
}
