//! The used map: clusters whose entries in the FAT are 0 are free. All else is used: what lies outside the clusters, bad clusters,
//! and chains that no directory names.

use block::Result;
use extent::{Extent, Offset, Volume, VolumeSpan};

use super::boot::{FIRST_CLUSTER, Geometry};
use super::table::Table;
use crate::uses::Uses;
use crate::{Source, Use, UsedMap};

/// Answers from the FAT, which is read as it is asked for.
pub(super) struct Map {
    pub(super) source: Source,
    pub(super) geometry: Geometry,
}

impl UsedMap for Map {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        let mut uses = Uses::starting_at(span.start());
        let clustered = self.geometry.clustered();
        uses.push(span.end().min(clustered.start()), Use::Used);
        if let Some(inside) = span.intersect(&clustered) {
            self.clustered_uses(inside, &mut uses)?;
        }
        uses.push(span.end(), Use::Used);
        Ok(uses.into_extents())
    }
}

impl Map {
    fn clustered_uses(&self, inside: VolumeSpan, uses: &mut Uses) -> Result<()> {
        let from_start = |at: Offset<Volume>| at.get() - self.geometry.data_at;
        let number = |index: u64| FIRST_CLUSTER + u32::try_from(index).expect("within the clusters");
        let from = number(from_start(inside.start()) / self.geometry.cluster_bytes);
        let end = number(from_start(inside.end()).div_ceil(self.geometry.cluster_bytes));
        Table::new(&self.source, &self.geometry).each_run(from, end, |is_free, first, count| {
            let end = self.geometry.span_of(first, count).end().min(inside.end());
            uses.push(end, if is_free { Use::Free } else { Use::Used });
        })
    }
}
