//! What is in a regular file, to be read as its guest reads it.

use std::sync::Arc;

use block::{Error, ReadAt, Result, check_bounds};
use extent::{File, FileOffset};
use zerocopy::FromBytes;

use super::file_extent::{self, FileExtentItem};
use super::files::{self, shown};
use super::key::Key;
use super::layout::{RawInode, item, mode};
use super::roots::{self, Tree};
use super::tree::Reader;
use crate::files::{FileId, StreamName};
use crate::pieces::Pieces;

/// Bytes that lie in the tree, and zeros behind them.
struct Inline {
    bytes: Vec<u8>,
    size_bytes: u64,
}

impl ReadAt<File> for Inline {
    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.size_bytes)?;
        let from = usize::try_from(at.get()).unwrap_or(usize::MAX).min(self.bytes.len());
        let there = &self.bytes[from..];
        let len = there.len().min(buf.len());
        buf[..len].copy_from_slice(&there[..len]);
        buf[len..].fill(0);
        Ok(())
    }
}

/// Opens the main stream of a regular file.
pub(super) fn open(
    reader: &Reader,
    trees: &[Tree],
    file: FileId,
    name: StreamName<'_>,
) -> Result<Box<dyn ReadAt<File>>> {
    let (tree, inode) = files::of_id(file);
    let unread =
        |why: &str| Error::unsupported(format!("Btrfs file {inode} of tree {tree} is not read: {why}"));
    let root = roots::find(trees, tree)?.root;
    let (mut size_bytes, mut extents, mut inline) = (None, Vec::new(), None);
    let range = Key::new(inode, item::INODE, 0)..=Key::new(inode, item::EXTENT_DATA, u64::MAX);
    reader.walk(root, &range, &mut |key, bytes| {
        match key.kind {
            item::INODE => {
                let raw = RawInode::read_from_bytes(bytes)
                    .map_err(|_| key.wrong("size", bytes.len() as u64, "that of an inode"))?;
                let is_regular = raw.mode.get() & mode::MASK == mode::REGULAR;
                size_bytes = is_regular.then_some(raw.size.get());
            }
            item::EXTENT_DATA => match file_extent::parse(&reader.superblock, key, bytes)? {
                FileExtentItem::Hole => {}
                FileExtentItem::Inline { is_compressed: true, .. } => {
                    return Err(unread("it is compressed"));
                }
                FileExtentItem::Inline { bytes, .. } => inline = Some(bytes.to_vec()),
                FileExtentItem::Data(data) => extents.push(shown(reader, key.offset, &data)?),
            },
            _ => {}
        }
        Ok(())
    })?;
    let size_bytes =
        size_bytes.filter(|_| name == StreamName::Main).ok_or_else(|| unread("it is no regular file"))?;
    match inline {
        Some(bytes) if extents.is_empty() => Ok(Box::new(Inline { bytes, size_bytes })),
        Some(_) => Err(unread("it lies both in its tree and elsewhere")),
        None => Ok(Box::new(Pieces { source: Arc::clone(&reader.source), size_bytes, extents })),
    }
}
