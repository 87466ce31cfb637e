//! Addresses of a layer as they are drawn: long stretches without data of the disk are left out.
//!
//! An image's few extents may lie terabytes apart on the host's device. Drawn to scale they would be specks in an empty row. Only
//! the host's row is folded: a container's gaps are what the guest never wrote, and stand below the guest's row.
//!
//! Invariant: addresses keep their order, and what the layer holds keeps its length; `map.js` folds by the same rule.

use super::model::{HOST, MapLayer, MapRun};

/// A gap is drawn no longer than the data divided by this.
const DATA_PARTS: u64 = 32;
/// Nor shorter than this, if it is that long.
const GAP_BYTES_MIN: u64 = 64 << 10;
/// A gap is folded if it is so many times longer than it would be drawn.
const GAP_FACTOR: u64 = 2;

/// The rest of a gap that is drawn in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fold {
    /// Where the gap begins.
    gap_at: u64,
    /// Where its middle is drawn.
    middle_at: u64,
    /// Bytes left out so far, those of this gap included.
    left_out_bytes: u64,
}

/// What is left out of a row.
#[derive(Clone, Default, Debug)]
pub(crate) struct Folds {
    folds: Vec<Fold>,
}

impl Folds {
    /// What is left out of the row of `layer`.
    pub(crate) fn of(layer: &MapLayer) -> Self {
        if layer.name != HOST {
            return Self::default();
        }
        let mut spans: Vec<_> = layer.runs.iter().map(MapRun::stored).collect();
        spans.sort_unstable();
        let data_bytes = spans.iter().fold(0, |sum: u64, (start, end)| sum.saturating_add(end - start));
        let gap_bytes = (data_bytes / DATA_PARTS).max(GAP_BYTES_MIN);
        let mut folds: Vec<Fold> = Vec::new();
        let mut last_end = None;
        for (start, end) in spans {
            let gap_at = last_end.unwrap_or(start);
            if start.saturating_sub(gap_at) > gap_bytes.saturating_mul(GAP_FACTOR) {
                let before = folds.last().map_or(0, |fold| fold.left_out_bytes);
                let left_out_bytes = before + (start - gap_at - gap_bytes);
                folds.push(Fold { gap_at, middle_at: gap_at - before + gap_bytes / 2, left_out_bytes });
            }
            last_end = Some(gap_at.max(end));
        }
        Self { folds }
    }

    /// All that is left out.
    pub(crate) fn left_out_bytes(&self) -> u64 {
        self.folds.last().map_or(0, |fold| fold.left_out_bytes)
    }

    /// Where an address is drawn at which data lie or end.
    pub(crate) fn drawn(&self, address: u64) -> u64 {
        let before = self.folds.partition_point(|fold| fold.gap_at < address);
        address - before.checked_sub(1).map_or(0, |last| self.folds[last].left_out_bytes)
    }

    /// The address that is drawn at a place.
    pub(crate) fn address(&self, drawn: u64) -> u64 {
        let before = self.folds.partition_point(|fold| fold.middle_at <= drawn);
        drawn.saturating_add(before.checked_sub(1).map_or(0, |last| self.folds[last].left_out_bytes))
    }

    /// Where a mark is drawn for each stretch that is left out.
    pub(crate) fn marks(&self) -> impl Iterator<Item = u64> + '_ {
        self.folds.iter().map(|fold| fold.middle_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::{Offset, VirtualSpan};

    const MIB: u64 = 1 << 20;

    fn layer(name: &str, places: &[(u64, u64)]) -> MapLayer {
        let run = |(place, len): &(u64, u64)| MapRun::plain(VirtualSpan::new(Offset::ZERO, *len), *place);
        MapLayer { name: name.into(), about: String::new(), runs: places.iter().map(run).collect() }
    }

    #[test]
    fn long_gaps_are_drawn_short_and_addresses_come_back() {
        let far = 1 << 40;
        let host = layer(HOST, &[(far, 32 * MIB), (MIB, 32 * MIB), (40 * MIB, 64 * MIB)]);
        let folds = Folds::of(&host);
        // The data are 128 MiB, so that gaps are drawn 4 MiB long. The first is 7 MiB, and stays.
        assert_eq!(folds.drawn(MIB), MIB);
        assert_eq!(folds.drawn(104 * MIB), 104 * MIB);
        assert_eq!(folds.drawn(far), 108 * MIB);
        assert_eq!(folds.left_out_bytes(), far - 108 * MIB);
        assert_eq!(folds.marks().collect::<Vec<_>>(), [106 * MIB]);
        for address in [MIB, 33 * MIB, 40 * MIB, 104 * MIB, far, far + 32 * MIB] {
            assert_eq!(folds.address(folds.drawn(address)), address);
        }
    }

    #[test]
    fn what_touches_or_belongs_to_the_container_is_drawn_as_it_is() {
        let folds = Folds::of(&layer("container", &[(0, MIB), (1 << 40, MIB)]));
        assert_eq!((folds.left_out_bytes(), folds.drawn(1 << 40)), (0, 1 << 40));
        assert_eq!(Folds::of(&layer(HOST, &[])).left_out_bytes(), 0);
        // Overlapping and enclosed runs, as a broken map may have them.
        let folds = Folds::of(&layer(HOST, &[(0, 100 * MIB), (MIB, MIB), (u64::MAX - MIB, MIB)]));
        assert_eq!(folds.drawn(100 * MIB), 100 * MIB);
        assert!(folds.drawn(u64::MAX - MIB) < 110 * MIB);
    }
}
