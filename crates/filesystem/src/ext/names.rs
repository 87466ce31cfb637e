//! The names in directories, read in the order in which the directories' blocks lie, whatever that of the inodes.
//!
//! Bounded whatever the disk says: blocks wait in a list of fixed length, no more of them are read than the volume has,
//! and a directory with too many broken blocks is given up.

use std::cell::Cell;

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
/// How many times blocks that were not read are allowed for again: a bound on the work, as each time costs some.
const REFUND_COUNT_MAX: u32 = 64;

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
    broken_count: Cell<u32>,
}

/// Collects the blocks of directories, and reads them.
pub(super) struct Names<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    directories: Vec<Listed>,
    waiting: Vec<Waiting>,
    /// How many more blocks may be blocks of directories.
    blocks_left: u64,
    refunds_left: u32,
}

impl<'a> Names<'a> {
    pub(super) fn new(source: &'a Source, superblock: &'a Superblock) -> Self {
        Self {
            source,
            superblock,
            directories: Vec::new(),
            waiting: Vec::new(),
            blocks_left: superblock.blocks_count,
            refunds_left: REFUND_COUNT_MAX,
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
        self.directories.push(Listed { directory, broken_count: 0.into() });
        let mut mapped = 0;
        for extent in extents.iter().filter(|extent| extent.logical < end && !extent.unwritten) {
            for index in 0..extent.count.min(end - extent.logical) {
                if self.waiting.len() >= WAITING_COUNT_MAX || self.blocks_left == 0 {
                    let broken_count = self.read(visitor)?;
                    self.directories.push(Listed { directory, broken_count: broken_count.into() });
                    if broken_count >= BROKEN_COUNT_MAX {
                        return Ok(());
                    }
                }
                let Some(left) = self.blocks_left.checked_sub(1) else {
                    let why = "directories have more blocks than the volume".into();
                    visitor.doubt(Some(id(inode.number)), why);
                    return Ok(());
                };
                self.blocks_left = left;
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
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut seen_count = 0;
        waiting.sort_unstable_by_key(|waiting| waiting.block);
        gather::each_block(
            self.source,
            self.superblock,
            &waiting,
            |waiting| waiting.block,
            |waiting| self.directories[waiting.directory].broken_count.get() < BROKEN_COUNT_MAX,
            |waiting, bytes| {
                seen_count += 1;
                self.directories[waiting.directory].show(bytes, waiting.logical, self.superblock, visitor);
            },
        )?;
        // What was not read does not count: else a broken directory could take what all others need.
        if seen_count < waiting.len() && self.refunds_left > 0 {
            self.refunds_left -= 1;
            self.blocks_left += (waiting.len() - seen_count) as u64;
        }
        let broken_count = self.directories.last().map_or(0, |last| last.broken_count.get());
        self.directories.clear();
        waiting.clear();
        self.waiting = waiting;
        Ok(broken_count)
    }
}

impl Listed {
    /// Shows the names of one block.
    fn show(&self, bytes: &[u8], logical: u64, superblock: &Superblock, visitor: &mut dyn FileVisitor) {
        let is_whole = match self.directory.verify(bytes, logical) {
            Ok(()) => show(&self.directory, bytes, superblock, visitor),
            Err(error) => {
                visitor.doubt(Some(id(self.directory.number)), error.to_string());
                false
            }
        };
        self.broken_count.set(self.broken_count.get() + u32::from(!is_whole));
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
