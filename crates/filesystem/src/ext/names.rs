//! The names in directories, read in the order in which the directories' blocks lie, whatever that of the inodes.
//!
//! Bounded whatever the disk says: blocks wait in a list of fixed length, no more of them are read than the volume has,
//! and a directory with too many broken blocks is given up.

use block::Result;

use super::directory::{Directory, inline_parts};
use super::gather;
use super::inode::Inode;
use super::superblock::{BlockNumber, Superblock};
use super::tree::FileExtent;
use crate::Source;
use crate::files::{FileId, FileName, FileVisitor};

/// The most blocks that wait to be read, in 24 bytes each.
const WAITING_COUNT_MAX: usize = 1 << 16;
/// A directory of which so many blocks are broken is read no further.
const BROKEN_COUNT_MAX: u32 = 16;

/// A block of a directory that waits to be read.
struct Waiting {
    block: BlockNumber,
    /// Its place in the directory, in blocks.
    logical: u64,
    /// Index of its directory.
    directory: usize,
}

/// A directory with blocks that wait.
struct Listed {
    directory: Directory,
    broken_count: u32,
}

/// Collects the blocks of directories, and reads them.
pub(super) struct Names<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    directories: Vec<Listed>,
    waiting: Vec<Waiting>,
    /// How many more blocks may be blocks of directories.
    blocks_left: u64,
}

impl<'a> Names<'a> {
    pub(super) fn new(source: &'a Source, superblock: &'a Superblock) -> Self {
        Self {
            source,
            superblock,
            directories: Vec::new(),
            waiting: Vec::new(),
            blocks_left: superblock.blocks_count,
        }
    }

    /// Takes a directory whose entries lie in `extents`.
    pub(super) fn push(
        &mut self,
        inode: &Inode,
        size_bytes: u64,
        extents: &[FileExtent],
        visitor: &mut dyn FileVisitor,
    ) -> Result<()> {
        let directory = Directory::new(inode, self.superblock.features.metadata_csum());
        let end = size_bytes.div_ceil(u64::from(self.superblock.block_bytes));
        self.directories.push(Listed { directory, broken_count: 0 });
        let mut mapped = 0;
        for extent in extents.iter().filter(|extent| extent.logical < end && !extent.unwritten) {
            for index in 0..extent.count.min(end - extent.logical) {
                let Some(left) = self.blocks_left.checked_sub(1) else {
                    visitor
                        .doubt(Some(id(inode.number)), "directories have more blocks than the volume".into());
                    return Ok(());
                };
                self.blocks_left = left;
                if self.waiting.len() >= WAITING_COUNT_MAX {
                    let broken_count = self.read(visitor)?;
                    if broken_count >= BROKEN_COUNT_MAX {
                        return Ok(());
                    }
                    self.directories.push(Listed { directory, broken_count });
                }
                let (block, logical) = (extent.start + index, extent.logical + index);
                self.waiting.push(Waiting { block, logical, directory: self.directories.len() - 1 });
                mapped += 1;
            }
        }
        if mapped < end {
            let why = format!("ext directory {} has {} holes", inode.number, end - mapped);
            visitor.doubt(Some(id(inode.number)), why);
        }
        Ok(())
    }

    /// Shows the names of an inline directory, given the inode's bytes in the table.
    pub(super) fn show_inline(&self, inode: &Inode, bytes: &[u8], visitor: &mut dyn FileVisitor) {
        let directory = Directory::new(inode, false);
        for part in inline_parts(bytes) {
            show(&directory, part, self.superblock, visitor);
        }
    }

    /// Reads all that waits; returns how many blocks of the last directory were broken.
    pub(super) fn read(&mut self, visitor: &mut dyn FileVisitor) -> Result<u32> {
        let superblock = self.superblock;
        let mut waiting = std::mem::take(&mut self.waiting);
        let directories = &mut self.directories;
        waiting.sort_unstable_by_key(|waiting| waiting.block);
        gather::each_block(
            self.source,
            superblock,
            &waiting,
            |waiting| waiting.block,
            |waiting, bytes| {
                let listed = &mut directories[waiting.directory];
                if listed.broken_count < BROKEN_COUNT_MAX
                    && !listed.show(bytes, waiting.logical, superblock, visitor)
                {
                    listed.broken_count += 1;
                }
            },
        )?;
        let broken_count = self.directories.last().map_or(0, |last| last.broken_count);
        self.directories.clear();
        waiting.clear();
        self.waiting = waiting;
        Ok(broken_count)
    }
}

impl Listed {
    /// Shows the names of one block; returns whether all of it was understood.
    fn show(
        &self,
        bytes: &[u8],
        logical: u64,
        superblock: &Superblock,
        visitor: &mut dyn FileVisitor,
    ) -> bool {
        if let Err(error) = self.directory.verify(bytes, logical) {
            visitor.doubt(Some(id(self.directory.number)), error.to_string());
            return false;
        }
        show(&self.directory, bytes, superblock, visitor)
    }
}

fn id(number: u32) -> FileId {
    FileId(number.into())
}

/// Shows the names among `bytes` of a directory; returns whether all was understood.
fn show(directory: &Directory, bytes: &[u8], superblock: &Superblock, visitor: &mut dyn FileVisitor) -> bool {
    let parent = id(directory.number);
    let mut doubt = None;
    for entry in directory.entries(bytes) {
        match entry {
            Err(error) => doubt = Some(error.to_string()),
            Ok(entry) if entry.inode > superblock.inodes_count => {
                doubt = Some(format!(
                    "ext directory {}: a name of inode {}, of {}",
                    directory.number, entry.inode, superblock.inodes_count
                ));
            }
            Ok(entry) => {
                if directory.is_improper(entry.name) {
                    doubt = Some(format!("ext directory {}: a name with a slash or a NUL", directory.number));
                }
                visitor.name(FileName { file: id(entry.inode), parent, name: entry.name });
            }
        }
    }
    let is_whole = doubt.is_none();
    doubt.into_iter().for_each(|why| visitor.doubt(Some(parent), why));
    is_whole
}
