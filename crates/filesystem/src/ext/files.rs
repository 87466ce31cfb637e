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
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};

use block::{Error, Result, read_vec};
use extent::{Offset, Span};

use super::bitmap::{self, Bits};
use super::corrupt::Corrupt;
use super::features::incompat;
use super::group;
use super::inode::{Contents, Inode, inode_at};
use super::layout::{file_type, inode_flags, special_inode};
use super::names::Names;
use super::nodes;
use super::superblock::{BlockNumber, GroupNumber, Superblock};
use super::table::pieces;
use super::tree::{self, FileExtent, Visitor};
use crate::Source;
use crate::files::{
    self, FileId, FileKind, FileName, FileStream, FileVisitor, PieceState, StreamName, tolerate,
};

/// The most extents of one file that are listed: 128 MiB of them.
pub(super) const EXTENT_COUNT_MAX: usize = 1 << 22;
/// How many pieces of inode tables are read before they are looked at.
const PIECES_AHEAD: usize = 4;
/// The most blocks of maps that are told apart.
const NODE_COUNT_MAX: usize = 1 << 21;
/// When so many groups are broken, the others are not looked at.
const BROKEN_GROUP_COUNT_MAX: u32 = 1 << 14;

/// Sees inodes besides what is shown of them.
pub(super) trait InodeVisitor: FileVisitor {
    /// The inode whose streams follow.
    fn inode(&mut self, inode: &Inode);

    /// Whether names are to be read.
    fn wants_names(&self) -> bool;
}

/// Sees files alone.
struct Plain<'a>(&'a mut dyn FileVisitor);

impl FileVisitor for Plain<'_> {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[files::FileExtent]) {
        self.0.stream(stream, extents);
    }

    fn name(&mut self, name: FileName<'_>) {
        self.0.name(name);
    }

    fn doubt(&mut self, file: Option<FileId>, why: String) {
        self.0.doubt(file, why);
    }
}

impl InodeVisitor for Plain<'_> {
    fn inode(&mut self, _inode: &Inode) {}

    fn wants_names(&self) -> bool {
        true
    }
}

/// Shows `visitor` all files.
pub(super) fn scan(source: &Source, superblock: &Superblock, visitor: &mut dyn FileVisitor) -> Result<()> {
    scan_inodes(source, superblock, &mut Plain(visitor))
}

/// Shows `visitor` all files and their inodes.
pub(super) fn scan_inodes(
    source: &Source,
    superblock: &Superblock,
    visitor: &mut dyn InodeVisitor,
) -> Result<()> {
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
    // The next pieces of the tables are read while one is looked at.
    std::thread::scope(|scope| {
        let (sender, steps) = mpsc::sync_channel(PIECES_AHEAD);
        let reader = Reader { source, superblock, sender };
        scope.spawn(move || reader.run());
        let mut broken_count = 0;
        for step in steps {
            match step {
                Step::Piece(piece) => scan.piece(&piece)?,
                Step::Doubt(why) => scan.visitor.doubt(None, why),
                Step::BrokenBitmap(error) => tolerate(scan.visitor, None, error)?,
                Step::BrokenGroup(number, error) => {
                    tolerate(scan.visitor, None, error)?;
                    broken_count += 1;
                    if broken_count > BROKEN_GROUP_COUNT_MAX {
                        let why = format!("the inodes from block group {} on are not listed", number + 1);
                        scan.visitor.doubt(None, why);
                        break;
                    }
                }
            }
        }
        Ok(())
    })?;
    scan.names.read(scan.visitor)?;
    Ok(())
}

struct Scan<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    visitor: &'a mut dyn InodeVisitor,
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

/// A part of a group's inode table.
struct Piece {
    number: GroupNumber,
    inode_table: BlockNumber,
    in_use: Arc<InUse>,
    range: Range<u32>,
    bytes: Vec<u8>,
}

/// What the reader comes across, in order.
enum Step {
    Piece(Piece),
    Doubt(String),
    BrokenBitmap(Error),
    /// Nothing more comes of this group.
    BrokenGroup(GroupNumber, Error),
}

/// Nobody listens any more.
struct Gone;

/// Reads the tables ahead of the scan.
struct Reader<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    sender: SyncSender<Step>,
}

impl Reader<'_> {
    fn run(self) {
        for number in 0..self.superblock.groups_count {
            let sent = match self.group(number) {
                Ok(sent) => sent,
                Err(error) => self.send(Step::BrokenGroup(number, error)),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn send(&self, step: Step) -> Result<(), Gone> {
        self.sender.send(step).map_err(|_| Gone)
    }

    fn group(&self, number: GroupNumber) -> Result<Result<(), Gone>> {
        let superblock = self.superblock;
        let group = group::read(self.source, superblock, number)?;
        let in_use = match bitmap::read_inodes(self.source, superblock, number, &group) {
            Ok(bits) => InUse { bits, unproven: false },
            // A bitmap can only be seen to be broken by a checksum; then inodes have one, too.
            Err(error) => {
                if self.send(Step::BrokenBitmap(error)).is_err() {
                    return Ok(Err(Gone));
                }
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
            if self.send(Step::Doubt(why)).is_err() {
                return Ok(Err(Gone));
            }
        }
        let in_use = Arc::new(in_use);
        for range in pieces(&in_use.bits, limit, superblock.inode_bytes.into()) {
            let at = inode_at(superblock, group.inode_table, range.start);
            let len_bytes = u64::from(range.end - range.start) * u64::from(superblock.inode_bytes);
            let bytes = read_vec(self.source, at, len_bytes, "ext inode table")?;
            let piece =
                Piece { number, inode_table: group.inode_table, in_use: in_use.clone(), range, bytes };
            if self.send(Step::Piece(piece)).is_err() {
                return Ok(Err(Gone));
            }
        }
        Ok(Ok(()))
    }
}

impl Scan<'_> {
    fn piece(&mut self, piece: &Piece) -> Result<()> {
        let superblock = self.superblock;
        let &Piece { number, inode_table, ref in_use, ref range, ref bytes } = piece;
        let inode_bytes = usize::from(superblock.inode_bytes);
        let first = number * superblock.inodes_per_group + 1;
        let mut inodes = Vec::new();
        for (index, bytes) in range.clone().zip(bytes.chunks_exact(inode_bytes)) {
            if !in_use.bits.get(index) {
                continue;
            }
            match Inode::parse(bytes, superblock, first + index) {
                Ok(inode) if in_use.unproven && (inode.mode == 0 || inode.links_count == 0) => {}
                Ok(inode) => inodes.push((inode, bytes)),
                Err(error) => {
                    let error = error.at(inode_at(superblock, inode_table, index));
                    tolerate(self.visitor, Some(FileId((first + index).into())), error)?;
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
            tolerate(self.visitor, Some(FileId(inode.number.into())), error)?;
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
        self.visitor.inode(inode);
        self.visitor.stream(stream, &self.shown);
        self.attributes(inode);
        if kind == FileKind::Directory && self.visitor.wants_names() {
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

/// What an inode is to its guest.
pub(super) fn kind_of(inode: &Inode, superblock: &Superblock) -> FileKind {
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

/// An extent as it is shown.
pub(super) fn shown(extent: &FileExtent, superblock: &Superblock) -> files::FileExtent {
    let block_bytes = u64::from(superblock.block_bytes);
    files::FileExtent {
        logical: Offset::new(extent.logical * block_bytes),
        span: Span::new(superblock.offset_of(extent.start), extent.count * block_bytes),
        state: if extent.unwritten { PieceState::Unwritten } else { PieceState::Written },
    }
}

/// Adds `extent` to `extents`, joined to the last one where it continues that.
pub(super) fn join(extents: &mut Vec<FileExtent>, extent: FileExtent) {
    match extents.last_mut() {
        Some(last)
            if (last.logical + last.count, last.start + last.count) == (extent.logical, extent.start)
                && last.unwritten == extent.unwritten =>
        {
            last.count += extent.count;
        }
        _ => extents.push(extent),
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
        if is_new { Ok(()) } else { Err(Error::corrupt(Corrupt::BlockTwiceInMaps { block })) }
    }

    fn extent(&mut self, extent: FileExtent) -> Result<()> {
        join(self.extents, extent);
        if self.extents.len() > EXTENT_COUNT_MAX {
            self.extents.truncate(EXTENT_COUNT_MAX);
            return Err(Error::unsupported(format!("ext file in more than {EXTENT_COUNT_MAX} pieces")));
        }
        Ok(())
    }
}
