//! What of exFAT stays when nothing moves: every set of entries, every chain, and contents.

use block::Result;

use super::geometry::Geometry;
use super::walk;
use crate::volume::Source;
use crate::volume::snapshot::{Aspect, Collector};

/// Tells `collector` every file.
pub(in crate::volume) fn collect(source: &Source, collector: &mut Collector<'_>) -> Result<()> {
    walk(&mut Geometry::open(source)?, &mut |geometry, node| {
        let (file, parent) = (node.at / 32, (node.parent_at / 32).to_le_bytes());
        collector.tell(file, Aspect::Head, &[node.set.get(..64).unwrap_or(&[])]);
        collector.tell(file, Aspect::Names, &[&parent, node.set.get(64..).unwrap_or(&[])]);
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
