//! The used map: clusters whose bits are clear in the bitmap are free. All else is used: what lies outside the clusters, and
//! clusters that no directory names.

use block::Result;
use extent::{Extent, Volume, VolumeOffset, VolumeSpan};

use super::boot::Geometry;
use super::table::each_run;
use crate::{Source, Use, UsedMap};

/// Answers from the bitmap, which is read as it is asked for.
pub(super) struct Map {
    pub(super) source: Source,
    pub(super) geometry: Geometry,
    pub(super) bitmap_at: VolumeOffset,
}

impl UsedMap for Map {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        self.geometry
            .clusters
            .uses(span, |clusters, each| each_run(&self.source, self.bitmap_at, clusters, each))
    }
}
