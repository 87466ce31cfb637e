//! Clusters as FAT and exFAT number them: from 2 on, one behind the other.

use std::ops::Range;

use block::Result;
use extent::{Extent, Offset, Span, Volume, VolumeSpan};

use crate::Use;
use crate::files::{FileExtent, PieceState};
use crate::uses::Uses;

/// The number of a cluster.
pub(crate) type Cluster = u32;

/// The first cluster's number.
pub(crate) const FIRST_CLUSTER: Cluster = 2;

/// Clusters in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) first: Cluster,
    pub(crate) count: u32,
}

/// How many clusters runs have.
pub(crate) fn count_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.count)).sum()
}

/// Appends a cluster, joining it to the last run if it follows that.
pub(crate) fn push(runs: &mut Vec<Run>, cluster: Cluster) {
    match runs.last_mut() {
        Some(run) if run.first + run.count == cluster => run.count += 1,
        _ => runs.push(Run { first: cluster, count: 1 }),
    }
}

/// Where the clusters of a volume lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Clusters {
    /// Where the first one begins.
    pub(crate) at: u64,
    /// Of each.
    pub(crate) bytes: u64,
    pub(crate) count: u32,
}

impl Clusters {
    /// One past the last cluster's number.
    pub(crate) fn end(&self) -> Cluster {
        self.count + FIRST_CLUSTER
    }

    /// The numbers of all of them.
    pub(crate) fn numbers(&self) -> Range<Cluster> {
        FIRST_CLUSTER..self.end()
    }

    /// Whether there is a cluster of this number.
    pub(crate) fn holds(&self, cluster: Cluster) -> bool {
        self.numbers().contains(&cluster)
    }

    /// Where `count` clusters from `first` on lie. They are on the volume.
    pub(crate) fn span_of(&self, first: Cluster, count: u32) -> VolumeSpan {
        let at = self.at + u64::from(first - FIRST_CLUSTER) * self.bytes;
        VolumeSpan::new(Offset::new(at), u64::from(count) * self.bytes)
    }

    /// Where runs lie, as extents of a file from its beginning on. Those behind `written_bytes` read as zeros.
    pub(crate) fn extents_of(&self, runs: &[Run], written_bytes: u64) -> Vec<FileExtent> {
        let (mut logical, mut extents) = (0, Vec::new());
        for run in runs {
            let span = self.span_of(run.first, run.count);
            let written = written_bytes.saturating_sub(logical).min(span.len_bytes());
            let border = span.start().plus(written);
            for (part, state) in [
                (Span::between(span.start(), border), PieceState::Written),
                (Span::between(border, span.end()), PieceState::Unwritten),
            ] {
                if !part.is_empty() {
                    extents.push(FileExtent { logical: Offset::new(logical), span: part, state });
                    logical += part.len_bytes();
                }
            }
        }
        extents
    }

    /// The numbers of the clusters that a span, which lies among them, touches.
    fn touched(&self, span: VolumeSpan) -> Range<Cluster> {
        let number = |index: u64| FIRST_CLUSTER + u32::try_from(index).expect("within the clusters");
        let from_start = |at: Offset<Volume>| at.get() - self.at;
        number(from_start(span.start()) / self.bytes)..number(from_start(span.end()).div_ceil(self.bytes))
    }

    /// The uses of `span`: clusters that `each_run` tells to be free are, all else is used. It is asked about clusters, and tells runs
    /// of those that are free, or are not, in order.
    pub(crate) fn uses(
        &self,
        span: VolumeSpan,
        each_run: impl FnOnce(Range<Cluster>, &mut dyn FnMut(bool, Cluster, u32)) -> Result<()>,
    ) -> Result<Vec<Extent<Volume, Use>>> {
        let mut uses = Uses::starting_at(span.start());
        let all = self.span_of(FIRST_CLUSTER, self.count);
        uses.push(span.end().min(all.start()), Use::Used);
        if let Some(inside) = span.intersect(&all) {
            each_run(self.touched(inside), &mut |is_free, first, count| {
                let end = self.span_of(first, count).end().min(inside.end());
                uses.push(end, if is_free { Use::Free } else { Use::Used });
            })?;
        }
        uses.push(span.end(), Use::Used);
        Ok(uses.into_extents())
    }
}
