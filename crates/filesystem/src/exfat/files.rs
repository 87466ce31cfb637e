//! All files of a volume, for analysis.
//!
//! exFAT has no numbers of files: a file is told by where its stream entry lies on the volume, in units of 32 bytes. The root
//! directory, which has none, is 0.

use std::collections::HashMap;

use block::{Error, Result};

use super::Volume;
use super::layout::ENTRY_BYTES;
use super::table::Chains;
use super::walk::{self, Node, Visitor};
use crate::clusters::{self, Run};
use crate::files::{FileId, FileKind, FileName, FileStream, FileVisitor, StreamName, tolerate};

/// The number of the file whose stream entry lies at `entry`.
pub(super) fn id_of(entry: u64) -> FileId {
    FileId(entry / ENTRY_BYTES as u64)
}

/// Shows `visitor` all files.
pub(super) fn scan(volume: &Volume, visitor: &mut dyn FileVisitor) -> Result<()> {
    visitor.name(FileName { file: FileId(0), parent: FileId(0), name: b"" });
    let mut files = Files { visitor, nodes: Vec::new(), directories: HashMap::new() };
    let Volume { source, geometry, .. } = volume;
    let cluster_bytes = geometry.clusters.bytes;
    walk::walk(source, geometry, &mut Chains::new(source, geometry), None, &mut files)?;
    let Files { visitor, mut nodes, directories, .. } = files;
    nodes.sort_unstable_by_key(|node| node.entry);
    let mut chains = Chains::new(source, geometry);
    for run in directories.values().flatten() {
        // What two directories own was told as they were walked.
        let _ = chains.claim(*run, 0);
    }
    for node in nodes {
        let file = id_of(node.entry);
        let (runs, wrong) = match directories.get(&node.entry) {
            Some(runs) => (runs.clone(), Ok(())),
            None => node.runs(&mut chains, cluster_bytes),
        };
        if let Err(error) = wrong {
            tolerate(visitor, Some(file), error)?;
        }
        let allocated = clusters::count_of(&runs) * cluster_bytes;
        let (kind, size_bytes, written) = match node.is_directory {
            true => (FileKind::Directory, allocated, allocated),
            false => (FileKind::Regular, node.size_bytes, node.valid_bytes.div_ceil(cluster_bytes)),
        };
        let written = if node.is_directory { written } else { written.saturating_mul(cluster_bytes) };
        let extents = geometry.clusters.extents_of(&runs, written);
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
