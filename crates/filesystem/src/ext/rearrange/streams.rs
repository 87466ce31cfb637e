//! All streams with what of them may move.

use block::{Error, Result};
use extent::{ExtentSet, Volume};

use super::super::files::{self, InodeVisitor};
use super::super::inode::{Contents, Inode};
use super::super::layout::inode_flags;
use super::super::superblock::Superblock;
use crate::Source;
use crate::files::{FileExtent, FileId, FileKind, FileName, FileStream, FileVisitor, StreamName};
use crate::rearrange::{Mobility, StreamVisitor};

/// What keeps files where they are.
pub(super) struct Pins<'a> {
    pub(super) superblock: &'a Superblock,
    /// What lies in swap files.
    pub(super) swap: &'a ExtentSet<Volume>,
}

impl Pins<'_> {
    /// Whether the main stream of an inode, which has `extents`, may move.
    pub(super) fn mobility(&self, inode: &Inode, extents: &[FileExtent]) -> Mobility {
        self.reason(inode, extents).map_or(Mobility::Movable, Mobility::Pinned)
    }

    fn reason(&self, inode: &Inode, extents: &[FileExtent]) -> Option<&'static str> {
        match files::kind_of(inode, self.superblock) {
            FileKind::Metadata => return Some("the file system's own"),
            FileKind::Other => return Some("deleted while open, or no file with contents"),
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => {}
        }
        if inode.has(inode_flags::IMMUTABLE) {
            return Some("immutable: a boot loader may know its blocks");
        }
        if extents.iter().any(|extent| self.swap.within(extent.span).next().is_some()) {
            return Some("a swap file: a guest that hibernates knows its blocks");
        }
        let is_indirect = matches!(inode.contents, Contents::Indirect(_));
        if is_indirect && self.superblock.blocks_count > 1 << 32 {
            return Some("mapped by pointers, on a volume of more blocks than those can say");
        }
        let cluster_bytes =
            u64::from(self.superblock.cluster_blocks) * u64::from(self.superblock.block_bytes);
        (self.superblock.cluster_blocks > 1 && !is_aligned(self.superblock, extents, cluster_bytes))
            .then_some("its extents do not each have clusters of their own")
    }
}

/// Whether each extent begins with a cluster of the file and of the volume, and shares none with the next.
fn is_aligned(superblock: &Superblock, extents: &[FileExtent], cluster_bytes: u64) -> bool {
    let first = superblock.offset_of(superblock.first_data_block).get();
    let mut logical_end = 0;
    extents.iter().all(|extent| {
        let len_bytes = extent.span.len_bytes().next_multiple_of(cluster_bytes);
        let logical = extent.logical.get();
        let is_own = logical >= logical_end;
        logical_end = logical + len_bytes;
        is_own
            && logical.is_multiple_of(cluster_bytes)
            && (extent.span.start().get() - first).is_multiple_of(cluster_bytes)
            && extent.span.start().get() + len_bytes <= superblock.end_bytes()
    })
}

/// Shows `visitor` all streams that have extents.
pub(super) fn each(source: &Source, pins: &Pins<'_>, visitor: &mut dyn StreamVisitor) -> Result<()> {
    let mut streams = Streams { pins, visitor, inode: None, doubt: None, rounded: Vec::new() };
    files::scan_inodes(source, pins.superblock, &mut streams)?;
    streams.doubt.map_or(Ok(()), |why| Err(Error::corrupt(why)))
}

struct Streams<'a> {
    pins: &'a Pins<'a>,
    visitor: &'a mut dyn StreamVisitor,
    /// The inode whose streams come.
    inode: Option<Inode>,
    /// The first that there was: none is expected where all was checked.
    doubt: Option<String>,
    /// Extents as whole clusters.
    rounded: Vec<FileExtent>,
}

impl FileVisitor for Streams<'_> {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent]) {
        let Some(inode) = self.inode.as_ref().filter(|_| !extents.is_empty()) else {
            return;
        };
        if stream.name != StreamName::Main {
            let why = "extended attributes: their checksum has the number of their block";
            return self.visitor.stream(stream, extents, Mobility::Pinned(why));
        }
        let mobility = self.pins.mobility(inode, extents);
        let superblock = self.pins.superblock;
        if mobility != Mobility::Movable || superblock.cluster_blocks == 1 {
            return self.visitor.stream(stream, extents, mobility);
        }
        self.rounded.clear();
        self.rounded.extend(extents.iter().map(|extent| rounded(superblock, extent)));
        self.visitor.stream(stream, &self.rounded, mobility);
    }

    fn name(&mut self, _name: FileName<'_>) {}

    fn doubt(&mut self, file: Option<FileId>, why: String) {
        self.doubt.get_or_insert_with(|| match file {
            Some(FileId(number)) => format!("inode {number}: {why}"),
            None => why,
        });
    }
}

/// An extent with all of its last cluster.
fn rounded(superblock: &Superblock, extent: &FileExtent) -> FileExtent {
    let cluster_bytes = u64::from(superblock.cluster_blocks) * u64::from(superblock.block_bytes);
    let len_bytes = extent.span.len_bytes().next_multiple_of(cluster_bytes);
    FileExtent { span: extent::Span::new(extent.span.start(), len_bytes), ..*extent }
}

impl InodeVisitor for Streams<'_> {
    fn inode(&mut self, inode: &Inode) {
        self.inode = Some(inode.clone());
    }

    fn wants_names(&self) -> bool {
        false
    }
}
