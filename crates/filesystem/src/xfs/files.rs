//! All files: their extents and names, in one pass over the inodes, each group's in order.

use block::{Result, read_vec};
use extent::{Offset, VolumeSpan};

use super::directory::{self, ENTRIES_END_BYTES, Entry};
use super::fork::{self, Mapping, Met as ForkMet};
use super::group;
use super::inode::{self, Fork, Inode, mode};
use super::inodes::{each_inode, each_read_ahead};
use super::layout::format;
use super::space::{self, Chunk, Met};
use super::superblock::{GroupNumber, Superblock};
use crate::Source;
use crate::files::{
    FileExtent, FileId, FileKind, FileName, FileStream, FileVisitor, PieceState, StreamName, tolerate,
};

/// Shows `visitor` all files.
pub(super) fn scan(source: &Source, superblock: &Superblock, visitor: &mut dyn FileVisitor) -> Result<()> {
    let root = FileId(superblock.root_inode);
    visitor.name(FileName { file: root, parent: root, name: b"" });
    for group in 0..superblock.group_count {
        let mut chunks = Vec::new();
        let found = group::read_inodes(source, superblock, group).and_then(|inodes| {
            space::each_chunk(source, superblock, group, inodes.all, &mut |met| {
                if let Met::Record(chunk) = met {
                    chunks.push((group, chunk));
                }
                Ok(())
            })
        });
        found.or_else(|error| tolerate(visitor, None, error))?;
        let mut files = Files { source, superblock, visitor };
        each_read_ahead(source, superblock, &chunks, |ahead, group, chunk| files.chunk(ahead, group, chunk))?;
    }
    Ok(())
}

/// As what readers show it.
pub(super) fn shown(superblock: &Superblock, extent: &Mapping) -> FileExtent {
    let block_bytes = u64::from(superblock.block_bytes);
    FileExtent {
        logical: Offset::new(extent.logical.saturating_mul(block_bytes)),
        span: superblock.span_of(extent.first, extent.count),
        state: if extent.is_unwritten { PieceState::Unwritten } else { PieceState::Written },
    }
}

struct Files<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    visitor: &'a mut dyn FileVisitor,
}

impl Files<'_> {
    fn chunk(&mut self, ahead: &Source, group: GroupNumber, chunk: Chunk) -> Result<()> {
        let superblock = self.superblock;
        let read = each_inode(ahead, superblock, group, chunk, &mut |found| {
            if found.is_free {
                return Ok(());
            }
            match inode::parse(found.bytes, superblock, found.number) {
                Ok(Some(inode)) => self.inode(&inode),
                Ok(None) => Ok(()),
                Err(error) => tolerate(self.visitor, Some(FileId(found.number)), error),
            }
        });
        read.or_else(|error| tolerate(self.visitor, None, error))
    }

    fn inode(&mut self, inode: &Inode) -> Result<()> {
        let (superblock, file) = (self.superblock, FileId(inode.number));
        let mut extents = Vec::new();
        let walked = fork::walk(self.source, superblock, inode, &inode.data, &mut |met| {
            if let ForkMet::Extent(extent) = met {
                extents.push(shown(superblock, &extent));
            }
            Ok(())
        });
        walked.map(drop).or_else(|error| tolerate(self.visitor, Some(file), error))?;
        let kind = match inode.kind {
            _ if superblock.is_own_file(inode.number) => FileKind::Metadata,
            mode::REGULAR => FileKind::Regular,
            mode::DIRECTORY => FileKind::Directory,
            mode::SYMLINK => FileKind::Symlink,
            _ => FileKind::Other,
        };
        let is_inline = matches!(inode.data.format, format::LOCAL | format::DEVICE);
        let size_bytes = inode.size_bytes;
        self.visitor
            .stream(FileStream { file, kind, name: StreamName::Main, size_bytes, is_inline }, &extents);
        if kind != FileKind::Directory {
            return Ok(());
        }
        let read = self.entries(inode.number, &inode.data, &extents);
        read.or_else(|error| tolerate(self.visitor, Some(file), error))
    }

    /// The entries of a directory.
    fn entries(&mut self, number: u64, fork: &Fork, extents: &[FileExtent]) -> Result<()> {
        let visitor = &mut *self.visitor;
        let mut each = |Entry { inode, name }: Entry<'_>| {
            visitor.name(FileName { file: FileId(inode), parent: FileId(number), name });
        };
        each_entry(self.source, self.superblock, number, fork, extents, &mut each)
    }
}

/// Calls `each` with the entries of the directory `number`, which lies in a fork that has these extents.
pub(super) fn each_entry(
    source: &Source,
    superblock: &Superblock,
    number: u64,
    fork: &Fork,
    extents: &[FileExtent],
    each: &mut dyn FnMut(Entry<'_>),
) -> Result<()> {
    if fork.format == format::LOCAL {
        return directory::each_inline(superblock, number, &fork.bytes, each);
    }
    for block in blocks(superblock, extents) {
        let mut bytes = Vec::with_capacity(superblock.directory_block_bytes as usize);
        for part in &block {
            bytes.extend(read_vec(&**source, part.start(), part.len_bytes(), "XFS directory")?);
        }
        let Some(first) = block.first() else { continue };
        let first = first.start().get() / u64::from(superblock.block_bytes);
        directory::each_in_block(superblock, number, first, &bytes, each)?;
    }
    Ok(())
}

/// The directory's blocks with entries, each of which may lie in several places.
fn blocks(superblock: &Superblock, extents: &[FileExtent]) -> Vec<Vec<VolumeSpan>> {
    let size = u64::from(superblock.directory_block_bytes);
    let mut blocks: Vec<(u64, Vec<VolumeSpan>)> = Vec::new();
    for extent in extents.iter().take_while(|extent| extent.logical.get() < ENTRIES_END_BYTES) {
        for part in extent.span.split(u64::from(superblock.block_bytes)) {
            let logical = extent.logical.get() + (part.start().get() - extent.span.start().get());
            match blocks.last_mut() {
                Some((block, parts)) if *block == logical / size => parts.push(part),
                _ => blocks.push((logical / size, vec![part])),
            }
        }
    }
    blocks.into_iter().map(|(_, parts)| parts).collect()
}
