//! The used map: clusters whose entries in the FAT are 0 are free. All else is used: what lies outside the clusters, bad clusters,
//! and chains that no directory names.

use block::Result;
use extent::{Extent, Volume, VolumeSpan};

use super::boot::Geometry;
use super::table::Table;
use crate::{Source, Use, UsedMap};

/// Answers from the FAT, which is read as it is asked for.
pub(super) struct Map {
    pub(super) source: Source,
    pub(super) geometry: Geometry,
}

impl UsedMap for Map {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        self.geometry
            .clusters
            .uses(span, |clusters, each| Table::new(&self.source, &self.geometry).each_run(clusters, each))
    }
}
