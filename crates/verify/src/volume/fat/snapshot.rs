//! What of FAT stays when nothing moves: every entry with its long name, every chain, and contents.

use block::Result;

use super::{ENTRY_BYTES, geometry, walk};
use crate::volume::Source;
use crate::volume::snapshot::{Aspect, Collector};

/// Tells `collector` every file.
pub(in crate::volume) fn collect(source: &Source, collector: &mut Collector<'_>) -> Result<()> {
    let mut geometry = geometry(source)?;
    walk(&mut geometry, &mut |geometry, node| {
        let file = node.entry_at / ENTRY_BYTES;
        let parent = (node.parent_at / ENTRY_BYTES).to_le_bytes();
        collector.tell(file, Aspect::Head, &[&node.entry]);
        collector.tell(file, Aspect::Names, &[&parent, &node.long_name]);
        let mut logical = 0;
        for (first, count) in &node.pieces {
            collector.tell(file, Aspect::Layout, &[&first.to_le_bytes(), &count.to_le_bytes()]);
            let len = u64::from(*count) * geometry.cluster_bytes;
            if collector.contents.includes(file) {
                collector.piece(file, 0, logical, geometry.place_of(*first), len)?;
            }
            logical += len;
        }
        Ok(())
    })
    .map(drop)
}
