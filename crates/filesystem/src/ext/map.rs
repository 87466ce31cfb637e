//! The used map: which bytes of the volume are free by the block bitmaps, or swap by a swap file. Where a journal is pending,
//! what the volume uses without it is used, too.

use std::sync::{Arc, Mutex};

use block::Result;
use extent::{Extent, ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};

use super::bitmap::{self, Bits};
use super::group;
use super::superblock::{GroupNumber, Superblock};
use crate::{Source, Use, UsedMap};

/// Answers from the bitmaps, a group at a time.
pub(super) struct Map {
    source: Source,
    superblock: Arc<Superblock>,
    swap: ExtentSet<Volume>,
    /// What is used although it is free or swap: by the volume as it is before its journal is replayed.
    kept: ExtentSet<Volume>,
    /// The group that was looked at last: callers ask window by window.
    last: Mutex<Option<(GroupNumber, Arc<Bits>)>>,
}

impl Map {
    pub(super) fn new(
        source: Source,
        superblock: Arc<Superblock>,
        swap: ExtentSet<Volume>,
        kept: ExtentSet<Volume>,
    ) -> Self {
        Self { source, superblock, swap, kept, last: Mutex::default() }
    }

    fn bits(&self, number: GroupNumber) -> Result<Arc<Bits>> {
        if let Some((last, bits)) = &*self.last.lock().expect("no reader panicked")
            && *last == number
        {
            return Ok(bits.clone());
        }
        let group = group::read(&self.source, &self.superblock, number)?;
        let bits = bitmap::read_blocks(&self.source, &self.superblock, number, &group)?;
        *self.last.lock().expect("no reader panicked") = Some((number, bits.clone()));
        Ok(bits)
    }

    /// The free spans of the group's part of `window`.
    fn push_free(&self, number: GroupNumber, window: VolumeSpan, free: &mut ExtentSet<Volume>) -> Result<()> {
        let bits = self.bits(number)?;
        let cluster_bytes =
            u64::from(self.superblock.cluster_blocks) * u64::from(self.superblock.block_bytes);
        let start = self.superblock.offset_of(self.superblock.group_start(number));
        let bit_of = |at: VolumeOffset| (at.get() - start.get()) / cluster_bytes;
        let from = u32::try_from(bit_of(window.start())).expect("within the group");
        let end = u32::try_from(bit_of(window.end()) + 1).expect("within the group").min(bits.len());
        for run in bits.runs(from, end, false) {
            let first = start.plus(u64::from(run.start) * cluster_bytes);
            let span = Span::new(first, u64::from(run.end - run.start) * cluster_bytes);
            if let Some(part) = span.intersect(&window) {
                free.push(part);
            }
        }
        Ok(())
    }

    /// The part of `span` that the groups manage.
    fn managed(&self, span: VolumeSpan) -> Option<VolumeSpan> {
        let start = self.superblock.offset_of(self.superblock.first_data_block);
        span.intersect(&Span::between(start, Offset::new(self.superblock.end_bytes())))
    }
}

impl UsedMap for Map {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        let mut free = ExtentSet::new();
        let mut rest = self.managed(span);
        while let Some(window) = rest {
            let number =
                self.superblock.group_of(window.start().get() / u64::from(self.superblock.block_bytes));
            let group_end =
                self.superblock.group_start(number) + u64::from(self.superblock.group_blocks(number));
            let end = self.superblock.offset_of(group_end).min(window.end());
            self.push_free(number, Span::between(window.start(), end), &mut free)?;
            rest = Some(Span::between(end, window.end())).filter(|rest| !rest.is_empty());
        }
        Ok(join(span, &free, &self.swap, &self.kept))
    }
}

/// Covers `span` with what is free, what is swap, and what is neither or `kept`.
fn join(
    span: VolumeSpan,
    free: &ExtentSet<Volume>,
    swap: &ExtentSet<Volume>,
    kept: &ExtentSet<Volume>,
) -> Vec<Extent<Volume, Use>> {
    let kept: ExtentSet<Volume> = kept.within(span).collect();
    let swap = swap.within(span).collect::<ExtentSet<Volume>>().subtract(&kept);
    let free = free.subtract(&swap).subtract(&kept);
    let mut uses: Vec<_> = free.iter().map(|part| Extent::new(part, Use::Free)).collect();
    uses.extend(swap.iter().map(|part| Extent::new(part, Use::Swap)));
    let used = free.union(&swap).invert(span);
    uses.extend(used.iter().map(|part| Extent::new(part, Use::Used)));
    uses.sort_unstable_by_key(|part| part.span);
    uses
}
