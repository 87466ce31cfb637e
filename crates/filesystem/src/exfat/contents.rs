//! What is in a regular file.

use std::sync::Arc;

use block::{Error, Result, read_struct};
use extent::Offset;

use super::Volume;
use super::layout::{ENTRY_BYTES, StreamEntry, entry_type};
use super::table::Chains;
use super::walk::Node;
use crate::browse::Contents;
use crate::files::{FileId, StreamName};
use crate::pieces::Pieces;

/// Opens the main stream of a file. Directories are read as their entries.
pub(super) fn open(volume: &Volume, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
    let Volume { source, geometry, .. } = volume;
    let entry = file.0.checked_mul(ENTRY_BYTES as u64).filter(|entry| *entry >= geometry.clusters.at);
    let unread = || Error::unsupported(format!("exFAT file {} is not read: there is none", file.0));
    let entry = entry.filter(|_| name == StreamName::Main).ok_or_else(unread)?;
    let stream: StreamEntry = read_struct(&**source, Offset::new(entry), "exFAT stream entry")?;
    if stream.entry_type != entry_type::STREAM {
        return Err(unread());
    }
    let node = Node::of(&stream, entry, false);
    let (runs, taken) = node.runs(&mut Chains::new(source, geometry), geometry.clusters.bytes);
    taken?;
    let extents = geometry.clusters.extents_of(&runs, node.valid_bytes);
    Ok(Box::new(Pieces { source: Arc::clone(source), size_bytes: node.size_bytes, extents }))
}
