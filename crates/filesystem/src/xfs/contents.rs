//! What is in a regular file, to be read as its guest reads it.

use std::sync::Arc;

use block::{Error, ReadAt, Result, read_vec};
use extent::File;

use super::files::shown;
use super::fork::{self, Met};
use super::inode::{self, mode};
use super::superblock::Superblock;
use crate::Source;
use crate::files::{FileId, StreamName};
use crate::pieces::Pieces;

/// Opens the main stream of a regular file.
pub(super) fn open(
    source: &Source,
    superblock: &Superblock,
    file: FileId,
    name: StreamName<'_>,
) -> Result<Box<dyn ReadAt<File>>> {
    let unread = || Error::unsupported(format!("XFS inode {} is not read: it is no regular file", file.0));
    let at = superblock.inode_at(file.0).filter(|_| name == StreamName::Main).ok_or_else(unread)?;
    let bytes = read_vec(&**source, at, superblock.inode_bytes.into(), "XFS inode")?;
    let inode = inode::parse(&bytes, superblock, file.0)?.filter(|inode| inode.kind == mode::REGULAR);
    let inode = inode.ok_or_else(unread)?;
    let mut extents = Vec::new();
    fork::walk(source, superblock, &inode, &inode.data, &mut |met| {
        if let Met::Extent(extent) = met {
            extents.push(shown(superblock, &extent));
        }
        Ok(())
    })?;
    Ok(Box::new(Pieces { source: Arc::clone(source), size_bytes: inode.size_bytes, extents }))
}
