//! What the records of the log name.

use std::collections::BTreeSet;

use extent::{ExtentSet, Volume, VolumeSpan};

use crate::ntfs::boot::Geometry;
use crate::ntfs::record::RecordNumber;

/// Clusters and file records that records of the log name.
pub(in crate::ntfs) struct Named {
    geometry: Geometry,
    spans: Vec<VolumeSpan>,
    records: BTreeSet<u64>,
    /// How many records the log holds.
    pub(in crate::ntfs) record_count: u64,
}

/// So many spans are kept before they are put together.
const SPANS_MAX: usize = 1 << 20;

impl Named {
    pub(super) fn none(geometry: Geometry) -> Self {
        Self { geometry, spans: Vec::new(), records: BTreeSet::new(), record_count: 0 }
    }

    /// Clusters that are set, cleared or mapped somewhere. `Err` if they are not on the volume.
    pub(super) fn clusters(&mut self, first: u64, count: u64) -> Result<(), u64> {
        let end = first.checked_add(count).filter(|end| *end <= self.geometry.cluster_count);
        if end.is_none() {
            return Err(first.saturating_add(count));
        }
        if count > 0 {
            self.spans.push(self.geometry.span_of(first, count));
        }
        if self.spans.len() >= SPANS_MAX {
            let joined: ExtentSet<Volume> = self.spans.drain(..).collect();
            self.spans.extend(joined.iter());
        }
        Ok(())
    }

    pub(super) fn record(&mut self, number: u64) {
        self.records.insert(number);
    }

    /// Whether some record of the log changes a file record.
    pub(in crate::ntfs) fn changes(&self, record: RecordNumber) -> bool {
        self.records.contains(&record.0)
    }

    /// All clusters that were named.
    pub(in crate::ntfs) fn into_clusters(self) -> ExtentSet<Volume> {
        self.spans.into_iter().collect()
    }
}
