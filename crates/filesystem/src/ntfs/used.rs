//! The used map: `$Bitmap`, and over it what page files and an empty log occupy, and what shadow copies need.

use block::Result;
use extent::{Extent, ExtentSet, Volume, VolumeOffset, VolumeSpan};

use super::bitmap::Bitmap;
use super::boot::Geometry;
use super::logfile::EMPTY_BYTE;
use super::shadow::Needs;
use crate::uses::Uses;
use crate::{Use, UsedMap};

pub(super) struct NtfsUsedMap {
    pub(super) geometry: Geometry,
    pub(super) clusters: Bitmap,
    pub(super) swap: ExtentSet<Volume>,
    /// The log, if it is empty.
    pub(super) empty_log: ExtentSet<Volume>,
    pub(super) shadow: Shadow,
    /// What records of an open log name: used, whatever the bitmap says.
    pub(super) named: ExtentSet<Volume>,
}

/// What shadow copies need.
pub(super) enum Shadow {
    /// Nothing: there are none, or they are not to survive.
    None,
    /// There are some, and what they need was not read: it may be anything.
    Unread,
    /// All but this.
    Needs(Needs),
}

impl UsedMap for NtfsUsedMap {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        let mut uses = Uses::starting_at(span.start());
        let clustered = VolumeSpan::from_zero(self.geometry.clustered_bytes());
        if let Some(inside) = span.intersect(&clustered) {
            self.clustered_uses(inside, &mut uses)?;
        }
        // The backup boot sector, and whatever else no bit speaks of.
        uses.push(span.end(), Use::Used);
        Ok(uses.into_extents())
    }

    fn kept_for_shadow_copies_bytes(&self) -> Result<u64> {
        let Shadow::Needs(needs) = &self.shadow else { return Ok(0) };
        let kept = |span: VolumeSpan, dropped: &ExtentSet<Volume>| {
            span.len_bytes() - dropped.within(span).map(|span| span.len_bytes()).sum::<u64>()
        };
        let mut bytes: u64 = self.swap.iter().map(|span| kept(span, &needs.unneeded)).sum();
        let mut at = 0;
        self.clusters.each_run(0, self.geometry.cluster_count, |is_used, end| {
            if !is_used {
                bytes += kept(self.geometry.span_of(at, end - at), &needs.unclaimed);
            }
            at = end;
        })?;
        Ok(bytes)
    }
}

impl NtfsUsedMap {
    fn clustered_uses(&self, inside: VolumeSpan, uses: &mut Uses) -> Result<()> {
        let cluster_bytes = self.geometry.cluster_bytes;
        let first = inside.start().get() / cluster_bytes;
        let last = inside.end().get().div_ceil(cluster_bytes);
        let mut at = inside.start();
        self.clusters.each_run(first, last, |is_used, end| {
            let end = VolumeOffset::new((end * cluster_bytes).min(inside.end().get()));
            let run = VolumeSpan::between(at, end);
            at = end;
            if is_used {
                self.push_used(uses, run);
            } else {
                self.push_free(uses, run);
            }
        })
    }

    fn push_free(&self, uses: &mut Uses, run: VolumeSpan) {
        match &self.shadow {
            Shadow::None => {
                for named in self.named.within(run) {
                    uses.push(named.start(), Use::Free);
                    uses.push(named.end(), Use::Used);
                }
                uses.push(run.end(), Use::Free);
            }
            Shadow::Unread => uses.push(run.end(), Use::Used),
            Shadow::Needs(needs) => uses.push_within(run.end(), needs.unclaimed.within(run), Use::Free),
        }
    }

    fn push_swap(&self, uses: &mut Uses, run: VolumeSpan) {
        match &self.shadow {
            Shadow::None => uses.push(run.end(), Use::Swap),
            Shadow::Unread => uses.push(run.end(), Use::Used),
            Shadow::Needs(needs) => uses.push_within(run.end(), needs.unneeded.within(run), Use::Swap),
        }
    }

    fn push_used(&self, uses: &mut Uses, run: VolumeSpan) {
        let swap = self.swap.within(run).map(|span| (span, Use::Swap));
        let log = self.empty_log.within(run).map(|span| (span, Use::EmptyLog(EMPTY_BYTE)));
        let mut special: Vec<_> = swap.chain(log).collect();
        special.sort_unstable_by_key(|(span, _)| span.start());
        for (span, state) in special {
            uses.push(span.start(), Use::Used);
            match state {
                Use::Swap => self.push_swap(uses, span),
                // Written as it is, whoever needs it.
                state => uses.push(span.end(), state),
            }
        }
        uses.push(run.end(), Use::Used);
    }
}
