//! Quota files, which count the bytes that owners occupy: blocks of maps that are freed are to be taken off there.
//!
//! Deliberately absent: quota files of the old kind, which are users' files and are made anew by `quotacheck`; limits.

use std::collections::BTreeMap;

use block::{Error, ReadAt, Result};
use extent::Volume;
use zerocopy::{FromBytes, IntoBytes};

use super::super::inode::Inode;
use super::super::layout::{RawQuotaEntry, RawQuotaHeader, quota};
use super::super::superblock::{BlockNumber, Superblock};
use super::super::tree::{self, Collector, FileExtent};
use super::metadata_edits::MetadataEdits;
use crate::ext::corrupt::Corrupt;

/// A quota file in more pieces than that is no quota file that any tool makes.
const PIECES_MAX: usize = 1 << 16;

/// Bytes that owners do not occupy any more: by the kind of owner (user, group, project), then by its number.
#[derive(Default)]
pub(super) struct Released([BTreeMap<u32, u64>; 3]);

impl Released {
    /// Enters that the map of `inode` occupies so many bytes less.
    pub(super) fn add(&mut self, inode: &Inode, bytes: u64) {
        if bytes > 0 {
            for (owners, id) in self.0.iter_mut().zip([inode.uid, inode.gid, inode.project]) {
                *owners.entry(id).or_default() += bytes;
            }
        }
    }

    /// Takes it all off in the quota files that the volume has.
    pub(super) fn apply(&self, metadata: &mut MetadataEdits<'_>) -> Result<()> {
        let inodes = metadata.superblock().quota_inodes();
        for ((owners, number), magic) in self.0.iter().zip(inodes).zip(quota::MAGICS) {
            if number != 0 && !owners.is_empty() {
                let file = QuotaFile::open(metadata.volume(), metadata.superblock(), number, magic)?;
                owners.iter().try_for_each(|(id, bytes)| file.release(metadata, *id, *bytes))?;
            }
        }
        Ok(())
    }
}

struct QuotaFile {
    number: u32,
    extents: Vec<FileExtent>,
    blocks: u32,
}

/// A place in a file: a block of the volume, and where in it.
struct Place {
    block: BlockNumber,
    at: usize,
}

impl QuotaFile {
    fn open(volume: &dyn ReadAt<Volume>, superblock: &Superblock, number: u32, magic: u32) -> Result<Self> {
        let inode = Inode::read(volume, superblock, number)?;
        let blocks = inode.size_bytes.div_ceil(u64::from(superblock.block_bytes));
        let mut collector = Collector::new(superblock, blocks, PIECES_MAX);
        tree::walk(volume, superblock, &inode, &mut collector)?;
        let mut file = Self { number, extents: collector.extents, blocks: 1 };
        let bytes = file.read(volume, superblock, 0)?;
        let (header, _) =
            RawQuotaHeader::read_from_prefix(&bytes).expect("a block is larger than the header");
        if (header.magic.get(), header.version.get()) != (magic, quota::VERSION) {
            let found = format!("{:#x} of version {}", header.magic, header.version);
            let expected = format!("{magic:#x} of version {}", quota::VERSION);
            return Err(file.corrupt().field("magic", found, expected));
        }
        file.blocks = header.blocks.get();
        Ok(file)
    }

    fn corrupt(&self) -> Error {
        Error::corrupt(Corrupt::QuotaFile { inode: self.number })
    }

    /// Where a block of 1 KiB of the file lies.
    fn place(&self, superblock: &Superblock, block: u32) -> Result<Place> {
        let block_bytes = u64::from(superblock.block_bytes);
        let at = u64::from(block) * quota::BLOCK_BYTES;
        let logical = at / block_bytes;
        let index = self.extents.partition_point(|extent| extent.logical + extent.count <= logical);
        match self.extents.get(index).filter(|extent| extent.logical <= logical && !extent.unwritten) {
            Some(extent) if block < self.blocks => Ok(Place {
                block: extent.start + (logical - extent.logical),
                at: usize::try_from(at % block_bytes).expect("within a block"),
            }),
            _ => Err(self.corrupt().field("block", block, format!("one of its {}", self.blocks))),
        }
    }

    fn read(&self, volume: &dyn ReadAt<Volume>, superblock: &Superblock, block: u32) -> Result<[u8; 1024]> {
        let place = self.place(superblock, block)?;
        let mut bytes = [0; 1024];
        volume.read_at(superblock.offset_of(place.block).plus(place.at as u64), &mut bytes)?;
        Ok(bytes)
    }

    /// Takes `bytes` off what the owner `id` occupies.
    fn release(&self, metadata: &mut MetadataEdits<'_>, id: u32, bytes: u64) -> Result<()> {
        let block = self.find(metadata.volume(), metadata.superblock(), id)?;
        let place = self.place(metadata.superblock(), block)?;
        let data = metadata.block(place.block)?;
        let entries = &mut data[place.at..][..1024][quota::ENTRIES_AT..];
        for place in entries.chunks_exact_mut(size_of::<RawQuotaEntry>()) {
            let mut entry = RawQuotaEntry::read_from_bytes(place).expect("exactly an entry's size");
            // Of number 0 only that is an entry which is not all zeros.
            if entry.id.get() != id || place.iter().all(|byte| *byte == 0) {
                continue;
            }
            let found = entry.curspace.get();
            let left = found.checked_sub(bytes).ok_or_else(|| {
                let field = format!("space of owner {id}");
                self.corrupt().field(field, found, format!("at least {bytes}"))
            })?;
            entry.curspace.set(left);
            place.copy_from_slice(entry.as_bytes());
            return Ok(());
        }
        Err(self.corrupt().field("entry", "missing", format!("one of owner {id}")))
    }

    /// The block that holds the entry of an owner.
    fn find(&self, volume: &dyn ReadAt<Volume>, superblock: &Superblock, id: u32) -> Result<u32> {
        let mut block = quota::ROOT_BLOCK;
        for byte in id.to_be_bytes() {
            let bytes = self.read(volume, superblock, block)?;
            block = u32::from_le_bytes(bytes.as_chunks::<4>().0[usize::from(byte)]);
            if block == 0 {
                return Err(self.corrupt().field("entry", "missing", format!("one of owner {id}")));
            }
        }
        Ok(block)
    }
}
