//! All files of a volume, for analysis.
//!
//! FAT has no numbers of files: a file is told by where its entry lies on the volume, in units of 32 bytes. The root directory, which
//! has no entry, is 0.

use std::collections::HashMap;

use block::{Error, Result};

use super::Volume;
use super::check::follow_file;
use super::layout::ENTRY_BYTES;
use super::table::Chains;
use super::walk::{self, Node, Visitor};
use crate::clusters::{self, Run};
use crate::files::{FileId, FileKind, FileName, FileStream, FileVisitor, StreamName, tolerate};

/// The number of the file whose entry lies at `entry`.
pub(super) fn id_of(entry: u64) -> FileId {
    FileId(entry / ENTRY_BYTES as u64)
}

/// Shows `visitor` all files.
pub(super) fn scan(volume: &Volume, visitor: &mut dyn FileVisitor) -> Result<()> {
    visitor.name(FileName { file: FileId(0), parent: FileId(0), name: b"" });
    let mut files = Files { visitor, nodes: Vec::new(), directories: HashMap::new() };
    let Volume { source, geometry, .. } = volume;
    walk::walk(source, geometry, &mut files)?;
    let Files { visitor, mut nodes, directories, .. } = files;
    nodes.sort_unstable_by_key(|node| node.entry);
    let mut chains = Chains::new(source, geometry);
    for run in directories.values().flatten() {
        chains.claim(*run);
    }
    for node in nodes {
        let file = id_of(node.entry);
        let (runs, wrong) = match directories.get(&node.entry) {
            Some(runs) => (runs.clone(), Ok(())),
            None => follow_file(&mut chains, &node, geometry.clusters.bytes),
        };
        if let Err(error) = wrong {
            tolerate(visitor, Some(file), error)?;
        }
        let extents = geometry.clusters.extents_of(&runs, u64::MAX);
        let allocated = clusters::count_of(&runs) * geometry.clusters.bytes;
        let (kind, size_bytes) = match node.is_directory {
            true if node.entry == 0 && runs.is_empty() => (FileKind::Directory, geometry.root_bytes),
            true => (FileKind::Directory, allocated),
            false => (FileKind::Regular, node.size_bytes),
        };
        let is_inline = extents.is_empty();
        visitor.stream(FileStream { file, kind, name: StreamName::Main, size_bytes, is_inline }, &extents);
    }
    Ok(())
}

/// Gathers files, and directories with their clusters.
struct Files<'a> {
    visitor: &'a mut dyn FileVisitor,
    nodes: Vec<Node>,
    directories: HashMap<u64, Vec<Run>>,
}

impl Visitor for Files<'_> {
    fn directory(&mut self, node: &Node, runs: &[Run]) {
        self.nodes.push(*node);
        self.directories.insert(node.entry, runs.to_vec());
    }

    fn entry(&mut self, _chains: &mut Chains<'_>, node: &Node, parent: u64, name: &[u8]) -> Result<()> {
        self.visitor.name(FileName { file: id_of(node.entry), parent: id_of(parent), name });
        // Directories are shown once they are walked.
        if !node.is_directory {
            self.nodes.push(*node);
        }
        Ok(())
    }

    fn wrong(&mut self, entry: u64, error: Error) -> Result<()> {
        tolerate(self.visitor, Some(id_of(entry)), error)
    }
}
