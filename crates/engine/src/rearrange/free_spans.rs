//! What is free before each batch: the engine's own account, so that a planner's mistake is found before it does harm.
//!
//! What changes of metadata free is never counted as free: nobody who plans knows of it.

use block::{Error, Result};
use extent::{ExtentSet, Span, Volume, VolumeSpan};
use filesystem::{Rearrange, Relocations};

/// `Invalid` unless all of `spans` is where `batch` moves something.
pub(super) fn check_moved(batch: &Relocations, spans: &[VolumeSpan]) -> Result<()> {
    let moved: ExtentSet<Volume> = batch.by_destination().map(|each| each.to_span()).collect();
    let spans: ExtentSet<Volume> = spans.iter().copied().collect();
    match spans.subtract(&moved).iter().next() {
        Some(wrong) => Err(Error::invalid("nothing moves to what is not to be stored").at(wrong.start())),
        None => Ok(()),
    }
}

/// The spans that files may go to.
pub(super) struct FreeSpans {
    free: ExtentSet<Volume>,
    cluster_bytes: u64,
    first_cluster: u64,
}

impl FreeSpans {
    /// The room of a volume as it is now.
    pub(super) fn of(rearrange: &dyn Rearrange, volume_bytes: u64) -> Result<Self> {
        let mut free = Vec::new();
        rearrange.each_room(&mut |span| free.push(span))?;
        let volume = Span::from_zero(volume_bytes);
        let free = free.into_iter().filter_map(|span: VolumeSpan| span.intersect(&volume)).collect();
        let cluster_bytes = rearrange.cluster_bytes();
        if cluster_bytes == 0 {
            return Err(Error::invalid("a cluster of no bytes"));
        }
        Ok(Self { free, cluster_bytes, first_cluster: rearrange.first_cluster().get() })
    }

    /// The room after `batch`. `Invalid` if the batch goes to what is not free before it, which includes what it leaves
    /// itself, or moves parts of clusters.
    pub(super) fn take(&mut self, batch: &Relocations) -> Result<()> {
        for relocation in batch.by_source() {
            for span in [relocation.from, relocation.to_span()] {
                if !self.is_whole_clusters(span) {
                    return Err(Error::invalid("a relocation is not of whole clusters").at(span.start()));
                }
            }
        }
        let left: ExtentSet<Volume> = batch.by_source().map(|each| each.from).collect();
        let taken: ExtentSet<Volume> = batch.by_destination().map(|each| each.to_span()).collect();
        if let Some(wrong) = taken.subtract(&self.free).iter().next() {
            return Err(Error::invalid("a relocation goes to what is not free").at(wrong.start()));
        }
        if let Some(wrong) = left.intersect(&self.free).iter().next() {
            return Err(Error::invalid("a relocation moves what is free").at(wrong.start()));
        }
        self.free = self.free.subtract(&taken).union(&left);
        Ok(())
    }

    /// `Invalid` unless all of `spans` is free.
    pub(super) fn check_free(&self, spans: &[VolumeSpan]) -> Result<()> {
        let spans: ExtentSet<Volume> = spans.iter().copied().collect();
        match spans.subtract(&self.free).iter().next() {
            Some(wrong) => Err(Error::invalid("what is given back is not free").at(wrong.start())),
            None => Ok(()),
        }
    }

    fn is_whole_clusters(&self, span: VolumeSpan) -> bool {
        let offset = span.start().get().checked_sub(self.first_cluster);
        offset.is_some_and(|offset| offset.is_multiple_of(self.cluster_bytes))
            && span.len_bytes().is_multiple_of(self.cluster_bytes)
    }
}
