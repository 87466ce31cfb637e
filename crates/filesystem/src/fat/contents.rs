//! What is in a regular file.

use std::sync::Arc;

use block::{Error, Result, read_struct};
use extent::Offset;

use super::Volume;
use super::check::follow_file;
use super::layout::{DELETED, DirEntry, ENTRY_BYTES, attr};
use super::table::Chains;
use super::walk::Node;
use crate::browse::Contents;
use crate::files::{FileId, StreamName};
use crate::pieces::Pieces;

/// Opens the main stream of a regular file.
pub(super) fn open(volume: &Volume, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
    let Volume { source, geometry, .. } = volume;
    let entry = file.0.checked_mul(ENTRY_BYTES as u64).filter(|entry| *entry >= geometry.root_at);
    let unread = || Error::unsupported(format!("FAT file {} is not read: only regular files are", file.0));
    let entry = entry.filter(|_| name == StreamName::Main).ok_or_else(unread)?;
    let raw: DirEntry = read_struct(&**source, Offset::new(entry), "FAT directory entry")?;
    let is_file = !matches!(raw.name[0], 0 | DELETED) && raw.attr & (attr::DIRECTORY | attr::VOLUME_ID) == 0;
    if !is_file {
        return Err(unread());
    }
    let node = Node::of(&raw, entry, geometry.kind);
    let (runs, followed) = follow_file(&mut Chains::new(source, geometry), &node, geometry.clusters.bytes);
    followed?;
    let extents = geometry.clusters.extents_of(&runs, u64::MAX);
    Ok(Box::new(Pieces { source: Arc::clone(source), size_bytes: node.size_bytes, extents }))
}
