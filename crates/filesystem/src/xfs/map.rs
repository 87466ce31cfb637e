//! The used map: what the trees of free space by place call free, and the blocks that are kept for the trees.

use std::sync::{Arc, Mutex};

use block::Result;
use extent::{Extent, Offset, Span, Volume, VolumeSpan};

use super::group;
use super::space::{self, Blocks};
use super::superblock::{GroupNumber, Superblock};
use crate::bits::Bits;
use crate::uses::Uses;
use crate::{Source, Use, UsedMap};

/// Answers from the trees, a group at a time.
pub(super) struct Map {
    source: Source,
    superblock: Arc<Superblock>,
    /// Blocks that are used besides, as long as the log is not replayed.
    kept: Option<Bits>,
    /// The group that was looked at last: callers ask window by window.
    last: Mutex<Option<(GroupNumber, Arc<Vec<Blocks>>)>>,
}

impl Map {
    pub(super) fn new(source: Source, superblock: Arc<Superblock>, kept: Option<Bits>) -> Self {
        Self { source, superblock, kept, last: Mutex::default() }
    }

    fn free(&self, number: GroupNumber) -> Result<Arc<Vec<Blocks>>> {
        if let Some((last, free)) = &*self.last.lock().expect("no reader panicked")
            && *last == number
        {
            return Ok(free.clone());
        }
        let free = free_of(&self.source, &self.superblock, number)?;
        let found = Arc::new(match &self.kept {
            Some(kept) => without(&free, &self.superblock, number, kept),
            None => free,
        });
        *self.last.lock().expect("no reader panicked") = Some((number, found.clone()));
        Ok(found)
    }
}

/// What is free and not kept.
fn without(free: &[Blocks], superblock: &Superblock, number: GroupNumber, kept: &Bits) -> Vec<Blocks> {
    let start = number * superblock.group_blocks;
    let left = free.iter().flat_map(|blocks| kept.runs(start + blocks.first, start + blocks.end(), false));
    left.map(|run| Blocks { first: run.start - start, count: run.end - run.start }).collect()
}

/// What is free of a group, in order.
pub(super) fn free_of(source: &Source, superblock: &Superblock, number: GroupNumber) -> Result<Vec<Blocks>> {
    space::free_of(source, superblock, number, &group::read_free(source, superblock, number)?)
}

/// Where blocks of a group lie.
pub(super) fn span_of(superblock: &Superblock, number: GroupNumber, blocks: Blocks) -> VolumeSpan {
    let start = u64::from(number) * u64::from(superblock.group_blocks);
    superblock.span_of(start + u64::from(blocks.first), blocks.count.into())
}

impl UsedMap for Map {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        let superblock = &self.superblock;
        let group_bytes = u64::from(superblock.group_blocks) * u64::from(superblock.block_bytes);
        let (mut uses, mut at) = (Uses::starting_at(span.start()), span.start());
        while at < span.end() {
            let number = at.get() / group_bytes;
            let number = u32::try_from(number).ok().filter(|number| *number < superblock.group_count);
            let Some(number) = number else { break };
            let end = span.end().min(Offset::new((u64::from(number) + 1) * group_bytes));
            let free = self.free(number)?;
            let window = Span::between(at, end);
            let first = free.partition_point(|blocks| span_of(superblock, number, *blocks).end() <= at);
            let parts = free[first..].iter();
            let parts = parts.map_while(|blocks| span_of(superblock, number, *blocks).intersect(&window));
            uses.push_within(end, parts, Use::Free);
            at = end;
        }
        uses.push(span.end(), Use::Used);
        Ok(uses.into_extents())
    }
}
