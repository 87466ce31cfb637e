//! All files of a volume in one pass over the inode tables, for analysis.
//!
//! Invariants:
//! - what is not understood, of a file, a directory or a group, is a doubt, and the pass goes on; only a read that fails
//!   ends it;
//! - no block is taken for a part of two maps, so that the work is bounded by what the volume holds.
//!
//! Deliberately absent: whether blocks are marked used and owned once, which is for [`check`](super::check).

use std::collections::HashSet;
use std::ops::Range;

use block::{Error, ErrorKind, Result, read_vec};
use extent::{Offset, Span};

use super::bitmap::{self, Bits};
use super::features::incompat;
use super::group::{self, Group};
use super::inode::{Contents, Inode, InodeNumber, inode_at};
use super::layout::{file_type, inode_flags, special_inode};
use super::names::Names;
use super::nodes;
use super::superblock::{BlockNumber, GroupNumber, Superblock};
use super::table::pieces;
use super::tree::{self, FileExtent, Visitor};
use crate::Source;
use crate::files::{self, FileId, FileKind, FileName, FileStream, FileVisitor, PieceState, StreamName};

/// The most extents of one file that are listed: 128 MiB of them.
const EXTENT_COUNT_MAX: usize = 1 << 22;
/// The most blocks of maps that are told apart.
const NODE_COUNT_MAX: usize = 1 << 21;
/// When so many groups are broken, the others are not looked at.
const BROKEN_GROUP_COUNT_MAX: u32 = 1 << 14;

/// Shows `visitor` all files.
pub(super) fn scan(source: &Source, superblock: &Superblock, visitor: &mut dyn FileVisitor) -> Result<()> {
    let root = FileId(special_inode::ROOT.into());
    visitor.name(FileName { file: root, parent: root, name: b"" });
    let mut scan = Scan {
        source,
        superblock,
        visitor,
        names: Names::new(source, superblock),
        nodes: HashSet::new(),
        extents: Vec::new(),
        shown: Vec::new(),
    };
    let mut broken_count = 0;
    for number in 0..superblock.groups_count {
        if let Err(error) = scan.group(number) {
            tolerate(error, None, scan.visitor)?;
            broken_count += 1;
        }
        if broken_count > BROKEN_GROUP_COUNT_MAX {
            scan.visitor.doubt(None, format!("the inodes from block group {number} on are not listed"));
            break;
        }
    }
    scan.names.read(scan.visitor)?;
    Ok(())
}

/// Makes a doubt of an error, unless it is one of reading.
fn tolerate(error: Error, file: Option<InodeNumber>, visitor: &mut dyn FileVisitor) -> Result<()> {
    if error.kind() == ErrorKind::Io {
        return Err(error);
    }
    visitor.doubt(file.map(|number| FileId(number.into())), error.to_string());
    Ok(())
}

struct Scan<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    visitor: &'a mut dyn FileVisitor,
    names: Names<'a>,
    /// The blocks of maps that were met.
    nodes: HashSet<BlockNumber>,
    /// The extents of the file at hand, and as they are shown; kept for their memory.
    extents: Vec<FileExtent>,
    shown: Vec<files::FileExtent>,
}

/// The inodes in use of a group.
struct InUse {
    bits: Bits,
    /// The bitmap is broken: only inodes whose own checksum holds are believed, and their count of links.
    unproven: bool,
}

impl Scan<'_> {
    fn group(&mut self, number: GroupNumber) -> Result<()> {
        let superblock = self.superblock;
        let group = group::read(self.source, superblock, number)?;
        let in_use = match bitmap::read_inodes(self.source, superblock, number, &group) {
            Ok(bits) => InUse { bits, unproven: false },
            // A bitmap can only be seen to be broken by a checksum; then inodes have one, too.
            Err(error) => {
                tolerate(error, None, self.visitor)?;
                let mut bits = Bits::clear(superblock.inodes_per_group);
                bits.set(0, superblock.inodes_per_group);
                InUse { bits, unproven: true }
            }
        };
        let limit = superblock.inodes_per_group - group.inodes_unused;
        if in_use.bits.next(limit, in_use.bits.len(), true) < in_use.bits.len() && !in_use.unproven {
            let why = format!(
                "block group {number} has inodes in use where its descriptor says that there are none"
            );
            self.visitor.doubt(None, why);
        }
        for piece in pieces(&in_use.bits, limit, superblock.inode_bytes.into()) {
            self.piece(number, &group, &in_use, piece)?;
        }
        Ok(())
    }

    fn piece(&mut self, number: GroupNumber, group: &Group, in_use: &InUse, piece: Range<u32>) -> Result<()> {
        let superblock = self.superblock;
        let inode_bytes = usize::from(superblock.inode_bytes);
        let at = inode_at(superblock, group.inode_table, piece.start);
        let len_bytes = u64::from(piece.end - piece.start) * u64::from(superblock.inode_bytes);
        let bytes = read_vec(self.source, at, len_bytes, "ext inode table")?;
        let first = number * superblock.inodes_per_group + 1;
        let mut inodes = Vec::new();
        for (index, bytes) in piece.zip(bytes.chunks_exact(inode_bytes)) {
            if !in_use.bits.get(index) {
                continue;
            }
            match Inode::parse(bytes, superblock, first + index) {
                Ok(inode) if in_use.unproven && (inode.mode == 0 || inode.links_count == 0) => {}
                Ok(inode) => inodes.push((inode, bytes)),
                Err(error) => {
                    let error = error.at(inode_at(superblock, group.inode_table, index));
                    tolerate(error, Some(first + index), self.visitor)?;
                }
            }
        }
        let ahead = nodes::read_ahead(self.source, superblock, inodes.iter().map(|(inode, _)| inode))?;
        inodes.iter().try_for_each(|(inode, bytes)| self.inode(&ahead, inode, bytes))
    }

    /// Shows an inode, the `bytes` in the table.
    fn inode(&mut self, ahead: &Source, inode: &Inode, bytes: &[u8]) -> Result<()> {
        let superblock = self.superblock;
        self.extents.clear();
        let mut collector = Collector { nodes: &mut self.nodes, extents: &mut self.extents };
        if let Err(error) = tree::walk(ahead, superblock, inode, &mut collector) {
            tolerate(error, Some(inode.number), self.visitor)?;
        }
        let kind = kind_of(inode, superblock);
        if inode.mode == 0 && self.extents.is_empty() {
            if kind != FileKind::Metadata {
                let why = format!("ext inode {} is marked as in use, but is empty", inode.number);
                self.visitor.doubt(Some(FileId(inode.number.into())), why);
            }
            return Ok(());
        }
        self.shown.clear();
        self.shown.extend(self.extents.iter().map(|extent| shown(extent, superblock)));
        let size_bytes = size_of(inode, superblock);
        let stream = FileStream {
            file: FileId(inode.number.into()),
            kind,
            name: StreamName::Main,
            size_bytes,
            is_inline: inode.contents == Contents::None,
        };
        self.visitor.stream(stream, &self.shown);
        self.attributes(inode);
        if kind == FileKind::Directory {
            return match inode.contents {
                Contents::None => {
                    self.names.show_inline(inode, bytes, self.visitor);
                    Ok(())
                }
                _ => self.names.push(inode, size_bytes, &self.extents, self.visitor),
            };
        }
        Ok(())
    }

    /// Shows the block of extended attributes.
    fn attributes(&mut self, inode: &Inode) {
        let file = FileId(inode.number.into());
        let Some(start) = inode.attributes else { return };
        if !self.superblock.holds(start, 1) {
            let why = format!("ext inode {}: file_acl is {start}, past the end of the volume", inode.number);
            return self.visitor.doubt(Some(file), why);
        }
        let stream = FileStream {
            file,
            kind: FileKind::Metadata,
            name: StreamName::Named(b"xattr"),
            size_bytes: self.superblock.block_bytes.into(),
            is_inline: false,
        };
        let extent = FileExtent { logical: 0, start, count: 1, unwritten: false };
        self.visitor.stream(stream, &[shown(&extent, self.superblock)]);
    }
}

fn kind_of(inode: &Inode, superblock: &Superblock) -> FileKind {
    let number = inode.number;
    let is_own = number != special_inode::ROOT
        && (number < superblock.first_inode || superblock.own_inodes.contains(&number));
    if is_own || inode.has(inode_flags::EA_INODE) {
        return FileKind::Metadata;
    }
    match inode.mode & file_type::MASK {
        // Deleted while open.
        _ if inode.links_count == 0 => FileKind::Other,
        file_type::REGULAR => FileKind::Regular,
        file_type::DIRECTORY => FileKind::Directory,
        file_type::SYMLINK => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// The size as the kernel's `ext4_isize` takes it; that of a device means nothing.
fn size_of(inode: &Inode, superblock: &Superblock) -> u64 {
    match inode.mode & file_type::MASK {
        file_type::REGULAR => inode.size_bytes,
        file_type::DIRECTORY | file_type::SYMLINK if superblock.features.incompat.has(incompat::LARGEDIR) => {
            inode.size_bytes
        }
        file_type::DIRECTORY | file_type::SYMLINK => inode.size_bytes & u64::from(u32::MAX),
        _ => 0,
    }
}

fn shown(extent: &FileExtent, superblock: &Superblock) -> files::FileExtent {
    let block_bytes = u64::from(superblock.block_bytes);
    files::FileExtent {
        logical: Offset::new(extent.logical * block_bytes),
        span: Span::new(superblock.offset_of(extent.start), extent.count * block_bytes),
        state: if extent.unwritten { PieceState::Unwritten } else { PieceState::Written },
    }
}

/// Collects a file's extents, joined where they continue each other.
struct Collector<'a> {
    nodes: &'a mut HashSet<BlockNumber>,
    extents: &'a mut Vec<FileExtent>,
}

impl Visitor for Collector<'_> {
    fn node(&mut self, block: BlockNumber) -> Result<()> {
        // Past the limit circles are only as long as the depth of a map lets them be.
        let is_new = self.nodes.len() >= NODE_COUNT_MAX || self.nodes.insert(block);
        if is_new {
            Ok(())
        } else {
            Err(Error::corrupt(format!("ext block {block} is twice in maps of files")))
        }
    }

    fn extent(&mut self, extent: FileExtent) -> Result<()> {
        if let Some(last) = self.extents.last_mut()
            && (last.logical + last.count, last.start + last.count) == (extent.logical, extent.start)
            && last.unwritten == extent.unwritten
        {
            last.count += extent.count;
            return Ok(());
        }
        if self.extents.len() >= EXTENT_COUNT_MAX {
            return Err(Error::unsupported(format!("ext file in more than {EXTENT_COUNT_MAX} pieces")));
        }
        self.extents.push(extent);
        Ok(())
    }
}
