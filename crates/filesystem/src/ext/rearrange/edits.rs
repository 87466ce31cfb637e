//! The metadata that change where a volume is rearranged in place.
//!
//! All is read from the volume as it is at that time; only its geometry is taken as known, and is compared.

use block::{Error, ReadAt, Result, read_struct};
use extent::{Volume, VolumeOffset};

use super::super::group;
use super::super::inode::{Inode, InodeNumber, inode_at, replace_root};
use super::super::layout::{RawSuperblock, SUPERBLOCK_OFFSET};
use super::super::superblock::{BlockNumber, Superblock};
use super::groups::{Changes, freed_clusters};
use super::metadata_edits::MetadataEdits;
use super::place::{Places, moved_bytes};
use super::quota::Released;
use super::remap::{map_pointers, remap};
use super::streams::Pins;
use crate::rearrange::{Edits, Relocations};

/// See [`crate::Rearrange::edits`].
pub(super) fn edits(
    volume: &dyn ReadAt<Volume>,
    pins: &Pins<'_>,
    relocations: &Relocations,
) -> Result<Edits> {
    let superblock = pins.superblock;
    check_same(volume, superblock)?;
    let mut metadata = MetadataEdits::new(volume, superblock);
    let mut released = Released::default();
    let mut freed = Vec::new();
    for (number, bytes) in moved_bytes(superblock, relocations)? {
        freed.extend(metadata.inode(pins, relocations, number, bytes, &mut released)?);
    }
    released.apply(&mut metadata)?;
    let freed = freed_clusters(superblock, freed);
    let changes = Changes { superblock, relocations, freed: &freed, may_reuse: false };
    metadata.groups(&changes)?;
    Ok(Edits { patches: metadata.into_patches(&freed, relocations)?, freed: freed.iter().collect() })
}

/// Fails unless the volume is still the one that was opened.
fn check_same(volume: &dyn ReadAt<Volume>, superblock: &Superblock) -> Result<()> {
    let raw: RawSuperblock = read_struct(volume, VolumeOffset::new(SUPERBLOCK_OFFSET), "ext superblock")?;
    let now = Superblock::parse(&raw, volume.len_bytes())?;
    let is_same = (now.uuid, now.blocks_count, now.features, now.inodes_count)
        == (superblock.uuid, superblock.blocks_count, superblock.features, superblock.inodes_count);
    match is_same {
        true => Ok(()),
        false => Err(Error::refused("the ext volume is not the one that was opened")),
    }
}

impl MetadataEdits<'_> {
    /// Changes an inode and its map; answers the blocks that its map does not need any more.
    fn inode(
        &mut self,
        pins: &Pins<'_>,
        relocations: &Relocations,
        number: InodeNumber,
        moved_bytes: u64,
        released: &mut Released,
    ) -> Result<Vec<BlockNumber>> {
        let superblock = self.superblock();
        let group = group::read(self.volume(), superblock, superblock.group_of_inode(number))?;
        let at = inode_at(superblock, group.inode_table, (number - 1) % superblock.inodes_per_group);
        let block = at.get() / u64::from(superblock.block_bytes);
        let within = usize::try_from(at.get() % u64::from(superblock.block_bytes)).expect("within a block");
        let range = within..within + usize::from(superblock.inode_bytes);
        let inode = Inode::parse(&self.block(block)?[range.clone()], superblock, number)?;
        let map = remap(self.volume(), superblock, pins, &inode, relocations, moved_bytes)?;
        let freed_count = map.freed.len() as u64;
        replace_root(&mut self.block(block)?[range], superblock, &inode, &map.root, freed_count)?;
        released.add(&inode, superblock.clusters_bytes(freed_count));
        for (block, bytes) in map.nodes {
            *self.block(block)? = bytes;
        }
        let places = Places::new(superblock, relocations, number);
        for block in map.pointers {
            map_pointers(self.block(block)?, &places)?;
        }
        Ok(map.freed)
    }

    fn groups(&mut self, changes: &Changes<'_>) -> Result<()> {
        let superblock = self.superblock();
        for number in changes.groups() {
            let bitmap = changes.bitmap(self.volume(), number)?;
            *self.block(bitmap.block)? = bitmap.bytes;
            let at = superblock.descriptor_at(number).get();
            let block_bytes = u64::from(superblock.block_bytes);
            let within = usize::try_from(at % block_bytes).expect("within a block");
            let len = usize::try_from(superblock.descriptor_bytes).expect("at most 1024");
            let block = self.block(at / block_bytes)?;
            bitmap.update.apply(&mut block[within..within + len], superblock, number);
        }
        if !changes.freed.is_empty() {
            let len_bytes = size_of::<RawSuperblock>() as u64;
            changes.update_superblock(self.piece(VolumeOffset::new(SUPERBLOCK_OFFSET), len_bytes)?)?;
        }
        Ok(())
    }
}
