//! What is in a regular file, to be read as its guest reads it. Encrypted files, and those whose data lie in the inode, are
//! `Unsupported`.

use std::sync::Arc;

use block::{Error, ReadAt, Result, check_bounds};
use extent::{File, FileOffset};

use super::Volume;
use super::files::{EXTENT_COUNT_MAX, shown};
use super::inode::{Contents as Root, Inode};
use super::layout::inode_flags;
use super::tree::{self, Collector};
use crate::Source;
use crate::files::{FileExtent, FileId, PieceState, StreamName};

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
    Ok(Box::new(Contents { source: Arc::clone(source), size_bytes: inode.size_bytes, extents }))
}

/// The extents ascend, as [`tree::walk`] shows them.
struct Contents {
    source: Source,
    size_bytes: u64,
    extents: Vec<FileExtent>,
}

impl Contents {
    /// The extent that holds the byte at `at`, or else where the next one begins.
    fn find(&self, at: u64) -> Result<&FileExtent, u64> {
        let end = |extent: &FileExtent| extent.logical.get().saturating_add(extent.span.len_bytes());
        let index = self.extents.partition_point(|extent| end(extent) <= at);
        match self.extents.get(index) {
            Some(extent) if extent.logical.get() <= at => Ok(extent),
            Some(extent) => Err(extent.logical.get()),
            None => Err(u64::MAX),
        }
    }

    /// Fills the front of `buf` with what lies in one piece from `at` on; answers how many bytes that were.
    fn read_piece(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let up_to = |left: u64| usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        match self.find(at) {
            Err(next) => {
                let len = up_to(next - at);
                buf[..len].fill(0);
                Ok(len)
            }
            Ok(extent) => {
                let skip = at - extent.logical.get();
                let len = up_to(extent.span.len_bytes() - skip);
                match extent.state {
                    PieceState::Written => {
                        self.source.read_at(extent.span.start().plus(skip), &mut buf[..len])?;
                    }
                    PieceState::Unwritten => buf[..len].fill(0),
                    PieceState::Compressed => return Err(Error::unsupported("a compressed file of ext")),
                }
                Ok(len)
            }
        }
    }
}

impl ReadAt<File> for Contents {
    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.size_bytes)?;
        let mut done = 0;
        while done < buf.len() {
            done += self.read_piece(at.get() + done as u64, &mut buf[done..])?;
        }
        Ok(())
    }
}
