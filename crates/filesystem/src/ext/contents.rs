//! What is in a regular file, to be read as its guest reads it. Encrypted files, and those whose data lie in the inode, are
//! `Unsupported`.

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::File;

use super::Volume;
use super::files::{EXTENT_COUNT_MAX, shown};
use super::inode::{Contents as Root, Inode};
use super::layout::inode_flags;
use super::tree::{self, Collector};
use crate::files::{FileId, StreamName};
use crate::pieces::Pieces;

/// Opens the main stream of a regular file.
pub(super) fn open(volume: &Volume, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
    let Volume { source, superblock, .. } = volume;
    let number =
        u32::try_from(file.0).map_err(|_| Error::invalid(format!("{} is no inode's number", file.0)))?;
    let inode = Inode::read(source, superblock, number)?;
    let is_inline = inode.contents == Root::None && inode.size_bytes > 0;
    if name != StreamName::Main || !inode.is_regular() || is_inline || inode.has(inode_flags::ENCRYPT) {
        let what = "is not read: only regular files, which are not encrypted and not in their inodes, are";
        return Err(Error::unsupported(format!("ext inode {number} {what}")));
    }
    let blocks = inode.size_bytes.div_ceil(u64::from(superblock.block_bytes));
    let mut found = Collector::new(superblock, blocks, EXTENT_COUNT_MAX);
    tree::walk(source, superblock, &inode, &mut found)?;
    let extents = found.extents.iter().map(|extent| shown(extent, superblock)).collect();
    Ok(Box::new(Pieces { source: Arc::clone(source), size_bytes: inode.size_bytes, extents }))
}
