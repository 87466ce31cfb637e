//! All files of all subvolumes: their extents and names, in one pass over each subvolume's tree.
//!
//! Numbers of files are those of their subvolume: the number of the file behind that of its subvolume, which is 0 for the top level.

use std::ops::RangeInclusive;

use block::Result;
use extent::{Offset, Span};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U64};

use super::file_extent::{self, Data, FileExtentItem, Packing};
use super::key::{Key, Root, everything, is_subvolume};
use super::layout::{RawInode, item, mode, object};
use super::roots::Tree;
use super::tree::Reader;
use crate::files::{
    FileExtent, FileId, FileKind, FileName, FileStream, FileVisitor, PieceState, StreamName, tolerate,
};

/// Bits of a file's number within its subvolume.
const INODE_BITS: u32 = 40;

/// The file of a subvolume; `None` if the numbers do not fit.
pub(super) fn id_of(tree: u64, inode: u64) -> Option<FileId> {
    let tree = if tree == object::FS_TREE { 0 } else { tree };
    let fits = inode < 1 << INODE_BITS && tree < 1 << (u64::BITS - INODE_BITS);
    fits.then_some(FileId(tree << INODE_BITS | inode))
}

/// The subvolume of a file, and its number there.
pub(super) fn of_id(file: FileId) -> (u64, u64) {
    let tree = file.0 >> INODE_BITS;
    (if tree == 0 { object::FS_TREE } else { tree }, file.0 & ((1 << INODE_BITS) - 1))
}

/// Whether it is a subvolume with files that can be reached.
pub(super) fn is_listed(tree: &Tree) -> bool {
    is_subvolume(tree.root.tree) && !tree.is_deleted
}

/// Shows `visitor` all files.
pub(super) fn scan(reader: &Reader, trees: &[Tree], visitor: &mut dyn FileVisitor) -> Result<()> {
    if reader.superblock.log_tree.is_some() {
        let why = "files that were synchronised after the last commit are listed as they were then";
        visitor.doubt(None, why.into());
    }
    subvolume_names(reader, visitor)?;
    for tree in trees.iter().filter(|tree| is_listed(tree)) {
        if tree.root.tree == object::FS_TREE
            && let Some(root) = id_of(object::FS_TREE, tree.directory)
        {
            visitor.name(FileName { file: root, parent: root, name: b"" });
        }
        let mut files = Files { reader, tree: tree.root, visitor, open: None };
        let range = everything();
        let walked = files.read(&range);
        walked.or_else(|error| tolerate(visitor, None, error))?;
    }
    Ok(())
}

/// Where subvolumes are in others.
fn subvolume_names(reader: &Reader, visitor: &mut dyn FileVisitor) -> Result<()> {
    let walked = reader.walk(reader.superblock.root_tree, &everything(), &mut |key, bytes| {
        if key.kind != item::ROOT_REF {
            return Ok(());
        }
        let (directory, name) = reference(key, bytes, true)?;
        let root = id_of(key.offset, object::FIRST_FREE).zip(id_of(key.objectid, directory));
        if let Some((file, parent)) = root {
            visitor.name(FileName { file, parent, name });
        }
        Ok(())
    });
    walked.or_else(|error| tolerate(visitor, None, error))
}

/// A name, and the number before it: of `ROOT_REF`, `ROOT_BACKREF` and (without that number) `INODE_REF`, whose form is the same but for
/// where the directory is.
fn reference(key: Key, bytes: &[u8], has_directory: bool) -> Result<(u64, &[u8])> {
    let (directory, name, _) = split_reference(key, bytes, has_directory)?;
    Ok((directory, name))
}

fn split_reference(key: Key, bytes: &[u8], has_directory: bool) -> Result<(u64, &[u8], &[u8])> {
    let short = || key.wrong("size", bytes.len() as u64, "that of names");
    let mut rest = bytes;
    let mut directory = key.offset;
    if has_directory {
        let (number, behind) = U64::read_from_prefix(rest).map_err(|_| short())?;
        (directory, rest) = (number.get(), behind);
    }
    let (_index, rest) = U64::read_from_prefix(rest).map_err(|_| short())?;
    let (len, rest) = U16::read_from_prefix(rest).map_err(|_| short())?;
    let (name, rest) = rest.split_at_checked(len.get().into()).ok_or_else(short)?;
    Ok((directory, name, rest))
}

/// A file of which more items may come.
struct Open {
    file: FileId,
    kind: FileKind,
    size_bytes: u64,
    is_inline: bool,
    extents: Vec<FileExtent>,
}

struct Files<'a> {
    reader: &'a Reader,
    tree: Root,
    visitor: &'a mut dyn FileVisitor,
    open: Option<Open>,
}

impl Files<'_> {
    fn read(&mut self, range: &RangeInclusive<Key>) -> Result<()> {
        let reader = self.reader;
        reader.walk(self.tree, range, &mut |key, bytes| {
            let Some(file) = id_of(self.tree.tree, key.objectid) else {
                let special = key.objectid >= object::LAST_FREE;
                if key.kind == item::INODE && !special {
                    self.visitor
                        .doubt(None, format!("file {} of subvolume {}", key.objectid, self.tree.tree));
                }
                return Ok(());
            };
            self.item(file, key, bytes).or_else(|error| tolerate(self.visitor, Some(file), error))
        })?;
        self.close();
        Ok(())
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { file, kind, size_bytes, is_inline, extents } = open;
        let is_inline = is_inline && extents.is_empty();
        self.visitor
            .stream(FileStream { file, kind, name: StreamName::Main, size_bytes, is_inline }, &extents);
    }

    fn item(&mut self, file: FileId, key: Key, bytes: &[u8]) -> Result<()> {
        match key.kind {
            item::INODE => {
                self.close();
                let raw = RawInode::read_from_bytes(bytes)
                    .map_err(|_| key.wrong("size", bytes.len() as u64, "that of an inode"))?;
                let kind = match raw.mode.get() & mode::MASK {
                    mode::REGULAR => FileKind::Regular,
                    mode::DIRECTORY => FileKind::Directory,
                    mode::SYMLINK => FileKind::Symlink,
                    _ => FileKind::Other,
                };
                let size_bytes = raw.size.get();
                // Directories are in the tree itself.
                let is_inline = !matches!(kind, FileKind::Regular);
                self.open = Some(Open { file, kind, size_bytes, is_inline, extents: Vec::new() });
                Ok(())
            }
            item::INODE_REF => self.names(file, key, bytes, false),
            item::INODE_EXTREF => self.names(file, key, bytes, true),
            item::EXTENT_DATA => {
                let Some(open) = self.open.as_mut().filter(|open| open.file == file) else { return Ok(()) };
                match file_extent::parse(&self.reader.superblock, key, bytes)? {
                    FileExtentItem::Hole => Ok(()),
                    FileExtentItem::Inline { .. } => {
                        open.is_inline = true;
                        Ok(())
                    }
                    FileExtentItem::Data(data) => {
                        open.extents.push(shown(self.reader, key.offset, &data)?);
                        Ok(())
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// The names of a file in one directory.
    fn names(&mut self, file: FileId, key: Key, bytes: &[u8], has_directory: bool) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (directory, name, behind) = split_reference(key, rest, has_directory)?;
            rest = behind;
            // The top directory of a subvolume is named where the subvolume is.
            let is_top = directory == key.objectid;
            if let Some(parent) = id_of(self.tree.tree, directory).filter(|_| !is_top) {
                self.visitor.name(FileName { file, parent, name });
            }
        }
        Ok(())
    }
}

/// As what readers show it. A compressed part is as long as its whole extent.
pub(super) fn shown(reader: &Reader, logical: u64, data: &Data) -> Result<FileExtent> {
    let place = reader.chunks.place(data.logical, data.len_bytes)?;
    let (span, state) = match (data.packing != Packing::None, data.is_unwritten) {
        (true, _) => (place, PieceState::Compressed),
        (false, true) => (Span::new(place.start().plus(data.offset), data.part_bytes), PieceState::Unwritten),
        (false, false) => (Span::new(place.start().plus(data.offset), data.part_bytes), PieceState::Written),
    };
    Ok(FileExtent { logical: Offset::new(logical), span, state })
}
