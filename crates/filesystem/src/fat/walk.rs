//! All directories of a volume, from the root on.
//!
//! Invariants: each cluster is a part of one chain at most, so that the work is bounded by what the volume holds, and no directory is
//! met twice; a directory is no longer than the 65536 entries that the format allows (page 32).

use block::{Error, Result, read_vec};
use extent::Offset;
use zerocopy::FromBytes;

use super::boot::{Geometry, Kind};
use super::corrupt::Corrupt;
use super::layout::{DELETED, DirEntry, ENTRY_BYTES, attr};
use super::names::LongName;
use super::table::Chains;
use crate::clusters::{Cluster, Run};
use crate::{Source, fault};

/// The most bytes of a directory.
const DIRECTORY_BYTES_MAX: u64 = 65536 * ENTRY_BYTES as u64;

/// A file or directory, as its entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node {
    /// Where its entry lies on the volume; 0 of the root directory.
    pub(super) entry: u64,
    pub(super) is_directory: bool,
    /// 0 of an empty file.
    pub(super) first: Cluster,
    pub(super) size_bytes: u64,
}

impl Node {
    pub(super) fn of(raw: &DirEntry, entry: u64, kind: Kind) -> Self {
        let high = if kind == Kind::Fat32 { raw.fst_clus_hi.get() } else { 0 };
        Self {
            entry,
            is_directory: raw.attr & attr::DIRECTORY != 0,
            first: u32::from(high) << 16 | u32::from(raw.fst_clus_lo.get()),
            size_bytes: raw.file_size.get().into(),
        }
    }

    pub(super) fn wrong(&self) -> Error {
        Error::corrupt(Corrupt::DirectoryEntry { entry: self.entry })
    }
}

/// Sees what is found.
pub(super) trait Visitor {
    /// A directory with its clusters; the root of FAT12 and FAT16 has none.
    fn directory(&mut self, node: &Node, runs: &[Run]);

    /// An entry of the directory whose own entry lies at `parent`. Directories are walked later.
    fn entry(&mut self, chains: &mut Chains<'_>, node: &Node, parent: u64, name: &[u8]) -> Result<()>;

    /// What contradicts the format, of the file or directory whose entry lies there. An error ends the walk.
    fn wrong(&mut self, entry: u64, error: Error) -> Result<()>;
}

/// Shows `visitor` everything.
pub(super) fn walk(source: &Source, geometry: &Geometry, visitor: &mut dyn Visitor) -> Result<()> {
    let mut chains = Chains::new(source, geometry);
    let root = Node { entry: 0, is_directory: true, first: geometry.root_cluster, size_bytes: 0 };
    let mut walk = Walk { source, geometry, visitor, waiting: vec![(root, 0)] };
    while let Some((node, parent_first)) = walk.waiting.pop() {
        walk.directory(&mut chains, &node, parent_first)?;
    }
    Ok(())
}

struct Walk<'a> {
    source: &'a Source,
    geometry: &'a Geometry,
    visitor: &'a mut dyn Visitor,
    /// Directories with the first clusters of those that they are in; 0 stands for the root.
    waiting: Vec<(Node, Cluster)>,
}

impl Walk<'_> {
    fn directory(&mut self, chains: &mut Chains<'_>, node: &Node, parent_first: Cluster) -> Result<()> {
        let is_fixed = node.entry == 0 && self.geometry.kind != Kind::Fat32;
        let (runs, followed) =
            if is_fixed { (Vec::new(), Ok(())) } else { chains.follow(node.first, node.entry) };
        self.visitor.directory(node, &runs);
        if let Err(error) = followed {
            self.tolerate(node.entry, error)?;
        }
        let mut spans: Vec<_> =
            runs.iter().map(|run| self.geometry.clusters.span_of(run.first, run.count)).collect();
        if is_fixed {
            spans.push(extent::Span::new(Offset::new(self.geometry.root_at), self.geometry.root_bytes));
        }
        let total: u64 = spans.iter().map(extent::Span::len_bytes).sum();
        if total > DIRECTORY_BYTES_MAX {
            let error = node.wrong().field("bytes of the directory", total, "at most 65536 entries");
            return self.tolerate(node.entry, error);
        }
        let name = LongName::default();
        let mut entries = Entries { node, parent_first, index: 0, is_over: false, is_told: false, name };
        for span in spans {
            let bytes = read_vec(self.source, span.start(), span.len_bytes(), "FAT directory")?;
            let (raw, _) = bytes.as_chunks::<ENTRY_BYTES>();
            for (at, raw) in (span.start().get()..).step_by(ENTRY_BYTES).zip(raw) {
                self.entry(chains, &mut entries, at, raw)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        chains: &mut Chains<'_>,
        entries: &mut Entries<'_>,
        at: u64,
        bytes: &[u8; ENTRY_BYTES],
    ) -> Result<()> {
        let raw = DirEntry::read_from_bytes(bytes).expect("the struct's size");
        let index = entries.index;
        entries.index += 1;
        if entries.node.entry != 0 && index < 2 {
            return self.dot(entries, &raw, index);
        }
        match raw.name[0] {
            DELETED => entries.name.clear(),
            0 => entries.is_over = true,
            _ if entries.is_over => {
                let entry = entries.node.entry;
                if !std::mem::replace(&mut entries.is_told, true) {
                    self.tolerate(entry, Error::corrupt(Corrupt::BehindEnd { entry }))?;
                }
            }
            _ if raw.attr & attr::LONG_NAME_MASK == attr::LONG_NAME => entries.name.push(bytes),
            _ if raw.attr & attr::VOLUME_ID != 0 => entries.name.clear(),
            _ => {
                let node = Node::of(&raw, at, self.geometry.kind);
                let name = entries.name.take(&raw);
                self.visitor.entry(chains, &node, entries.node.entry, &name)?;
                if node.is_directory {
                    let own = if entries.node.entry == 0 { 0 } else { entries.node.first };
                    self.waiting.push((node, own));
                }
            }
        }
        Ok(())
    }

    /// The first two entries of all directories but the root: itself, and the one that it is in (page 26).
    fn dot(&mut self, entries: &Entries<'_>, raw: &DirEntry, index: usize) -> Result<()> {
        let node = entries.node;
        let found = Node::of(raw, node.entry, self.geometry.kind);
        let (name, expected) =
            if index == 0 { (b".          ", node.first) } else { (b"..         ", entries.parent_first) };
        // Some write the root's own number instead of 0.
        let is_root = index == 1 && expected == 0 && found.first == self.geometry.root_cluster;
        if raw.name != *name || !found.is_directory || (found.first != expected && !is_root) {
            let expected = format!("of a directory at {expected}, in entry {index} within");
            return self.tolerate(node.entry, node.wrong().field("cluster", found.first, expected));
        }
        Ok(())
    }

    fn tolerate(&mut self, entry: u64, error: Error) -> Result<()> {
        self.visitor.wrong(entry, fault::of_volume(error)?)
    }
}

/// How far a directory was read.
struct Entries<'a> {
    node: &'a Node,
    parent_first: Cluster,
    index: usize,
    is_over: bool,
    /// Whether it was told that there are entries behind the end.
    is_told: bool,
    name: LongName,
}
