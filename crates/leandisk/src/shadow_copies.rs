//! What becomes of the snapshots that Windows keeps on its volumes.

use block::Result;
use report::ShadowCopyCare;
use stack::{ShadowCopies, Stack, UsedMaps, Volume};

/// For the used maps.
pub(crate) fn what(are_dropped: bool) -> ShadowCopies {
    if are_dropped { ShadowCopies::Dropped } else { ShadowCopies::Kept }
}

/// What is done for the copies of each volume, to be told.
pub(crate) fn care(are_dropped: bool, stack: &Stack, maps: &UsedMaps) -> Result<Vec<ShadowCopyCare>> {
    let care = |(index, volume): (usize, &Volume)| {
        let kept_bytes = maps.kept_for_shadow_copies_bytes(index)?;
        Ok(ShadowCopyCare::new(volume.filesystem.as_deref(), kept_bytes, are_dropped))
    };
    stack.volumes().iter().enumerate().map(care).collect()
}
