//! What of XFS stays when nothing moves: every inode as it is, where its extents lie, directories, attributes and contents.

use block::Result;

use super::inode::Stretch;
use super::walk;
use crate::volume::Source;
use crate::volume::snapshot::{Aspect, Collector, Contents};

/// Tells `collector` every file.
pub(in crate::volume) fn collect(source: &Source, collector: &mut Collector<'_>) -> Result<()> {
    walk(source, &mut |geometry, inode| {
        let file = inode.number;
        collector.tell(file, Aspect::Head, &[&inode.bytes]);
        let is_read = match inode.is_regular() {
            true => collector.contents.includes(file),
            // Names, and where links lead.
            false => collector.contents != Contents::Owners,
        };
        let has_attributes = collector.contents != Contents::Owners;
        for (fork, stretches, is_read) in [(0, &inode.data, is_read), (1, &inode.attributes, has_attributes)]
        {
            for Stretch { logical, block, count, is_written } in stretches {
                let numbers = [*logical, *block, *count, u64::from(*is_written)].map(u64::to_le_bytes);
                collector.tell(file, Aspect::Layout, &[&[fork], numbers.as_flattened()]);
                if is_read && *is_written {
                    let (at, len) = (geometry.place_of(*block), count * geometry.block_bytes);
                    collector.piece(file, fork.into(), logical * geometry.block_bytes, at, len)?;
                }
            }
        }
        Ok(())
    })
    .map(drop)
}
