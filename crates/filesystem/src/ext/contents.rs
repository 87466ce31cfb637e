//! What is in a file, to be read as its guest reads it. What is encrypted is `Unsupported`.

use std::sync::Arc;

use block::{Error, Result};

use super::Volume;
use super::attributes;
use super::corrupt::Corrupt;
use super::files::{EXTENT_COUNT_MAX, shown};
use super::inode::{Contents as Root, Inode};
use super::layout::inode_flags;
use super::tree::{self, Collector};
use crate::browse::{Contents, Inline};
use crate::files::{FileId, StreamName};
use crate::pieces::Pieces;

/// Bytes of the place in an inode where its map of blocks, or what is inline, lies.
const ROOT_BYTES: usize = 60;

/// Opens the main stream of a regular file.
pub(super) fn open(volume: &Volume, file: FileId, name: StreamName<'_>) -> Result<Box<dyn Contents>> {
    let number = number_of(file)?;
    let (inode, bytes) = Inode::read_with_bytes(&volume.source, &volume.superblock, number)?;
    if name != StreamName::Main || !inode.is_regular() {
        return Err(Error::unsupported(format!("ext inode {number} is not read: it is no regular file")));
    }
    check_open(&inode)?;
    contents(volume, &inode, &bytes)
}

/// The number of an inode.
pub(super) fn number_of(file: FileId) -> Result<u32> {
    u32::try_from(file.0).map_err(|_| Error::invalid(format!("{} is no inode's number", file.0)))
}

/// Fails if what is in the inode is encrypted.
pub(super) fn check_open(inode: &Inode) -> Result<()> {
    match inode.has(inode_flags::ENCRYPT) {
        true => Err(Error::unsupported(format!("ext inode {} is encrypted (fscrypt)", inode.number))),
        false => Ok(()),
    }
}

/// What is in an inode, of which `bytes` are those in the table: as it is, encrypted or not.
pub(super) fn contents(volume: &Volume, inode: &Inode, bytes: &[u8]) -> Result<Box<dyn Contents>> {
    let Volume { source, superblock, .. } = volume;
    let size_bytes = inode.size_bytes;
    if inode.contents == Root::None {
        let bytes = inline(inode, bytes)?;
        return Ok(Box::new(Inline { bytes, size_bytes }));
    }
    let blocks = size_bytes.div_ceil(u64::from(superblock.block_bytes));
    let mut found = Collector::new(superblock, blocks, EXTENT_COUNT_MAX);
    tree::walk(source, superblock, inode, &mut found)?;
    let extents = found.extents.iter().map(|extent| shown(extent, superblock)).collect();
    Ok(Box::new(Pieces { source: Arc::clone(source), size_bytes, extents }))
}

/// The bytes that lie in the inode: where the map of blocks would be, and in an attribute.
fn inline(inode: &Inode, bytes: &[u8]) -> Result<Vec<u8>> {
    let at = std::mem::offset_of!(super::layout::RawInode, block);
    let first = &bytes[at..at + ROOT_BYTES];
    let more = match inode.has(inode_flags::INLINE_DATA) {
        true => attributes::inline_data(bytes).unwrap_or_default(),
        false => &[],
    };
    let room = (first.len() + more.len()) as u64;
    if inode.size_bytes > room {
        let what = Corrupt::Inode { inode: inode.number };
        return Err(Error::corrupt(what).field(
            "size",
            inode.size_bytes,
            format!("at most {room} of what is inline"),
        ));
    }
    let mut all = [first, more].concat();
    all.truncate(usize::try_from(inode.size_bytes).expect("less than a block"));
    Ok(all)
}
