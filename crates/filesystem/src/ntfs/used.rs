//! The used map: `$Bitmap`, and over it what page files and an empty log occupy, and what shadow copies need.

use block::Result;
use extent::{Extent, ExtentSet, Volume, VolumeOffset, VolumeSpan};

use super::bitmap::Bitmap;
use super::boot::Geometry;
use super::logfile::EMPTY_BYTE;
use super::shadow::Needs;
use crate::{Use, UsedMap};

pub(super) struct NtfsUsedMap {
    pub(super) geometry: Geometry,
    pub(super) clusters: Bitmap,
    pub(super) swap: ExtentSet<Volume>,
    /// The log, if it is empty.
    pub(super) empty_log: ExtentSet<Volume>,
    pub(super) shadow: Shadow,
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
        let mut uses = Vec::new();
        let clustered = VolumeSpan::from_zero(self.geometry.clustered_bytes());
        if let Some(inside) = span.intersect(&clustered) {
            self.clustered_uses(inside, &mut uses)?;
        }
        // The backup boot sector, and whatever else no bit speaks of.
        let beyond = VolumeSpan::between(span.start().max(clustered.end()), span.end());
        push(&mut uses, beyond, Use::Used);
        Ok(uses)
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
    fn clustered_uses(&self, inside: VolumeSpan, uses: &mut Vec<Extent<Volume, Use>>) -> Result<()> {
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

    fn push_free(&self, uses: &mut Vec<Extent<Volume, Use>>, run: VolumeSpan) {
        match &self.shadow {
            Shadow::None => push(uses, run, Use::Free),
            Shadow::Unread => push(uses, run, Use::Used),
            Shadow::Needs(needs) => push_cut(uses, run, &needs.unclaimed, Use::Free),
        }
    }

    fn push_swap(&self, uses: &mut Vec<Extent<Volume, Use>>, run: VolumeSpan) {
        match &self.shadow {
            Shadow::None => push(uses, run, Use::Swap),
            Shadow::Unread => push(uses, run, Use::Used),
            Shadow::Needs(needs) => push_cut(uses, run, &needs.unneeded, Use::Swap),
        }
    }

    fn push_used(&self, uses: &mut Vec<Extent<Volume, Use>>, run: VolumeSpan) {
        let swap = self.swap.within(run).map(|span| (span, Use::Swap));
        let log = self.empty_log.within(run).map(|span| (span, Use::EmptyLog(EMPTY_BYTE)));
        let mut special: Vec<_> = swap.chain(log).collect();
        special.sort_unstable_by_key(|(span, _)| span.start());
        let mut at = run.start();
        for (span, state) in special {
            push(uses, VolumeSpan::between(at, span.start()), Use::Used);
            match state {
                Use::Swap => self.push_swap(uses, span),
                // Written as it is, whoever needs it.
                state => push(uses, span, state),
            }
            at = span.end();
        }
        push(uses, VolumeSpan::between(at, run.end()), Use::Used);
    }
}

/// Appends `run` as `state` where it is in `dropped`, and as used elsewhere.
fn push_cut(uses: &mut Vec<Extent<Volume, Use>>, run: VolumeSpan, dropped: &ExtentSet<Volume>, state: Use) {
    let mut at = run.start();
    for span in dropped.within(run) {
        push(uses, VolumeSpan::between(at, span.start()), Use::Used);
        push(uses, span, state);
        at = span.end();
    }
    push(uses, VolumeSpan::between(at, run.end()), Use::Used);
}

/// Appends a span, joining it to the last one if that is the same.
fn push(uses: &mut Vec<Extent<Volume, Use>>, span: VolumeSpan, state: Use) {
    if span.is_empty() {
        return;
    }
    match uses.last_mut() {
        Some(last) if last.state == state => last.span = VolumeSpan::between(last.span.start(), span.end()),
        _ => uses.push(Extent::new(span, state)),
    }
}
