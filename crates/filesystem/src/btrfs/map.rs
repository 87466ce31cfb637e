//! The used map: what the extent tree does not list, and no log refers to, is free.

use std::sync::{Arc, Mutex};

use block::Result;
use extent::{Extent, Volume, VolumeOffset, VolumeSpan};

use super::chunk::{self, Chunk};
use super::extents::{self, Met};
use super::key::Root;
use super::log::Stretches;
use super::tree::Reader;
use crate::uses::Uses;
use crate::{Use, UsedMap};

/// How many chunks are kept that were looked at last: callers ask window by window, and of chunks with two copies twice.
const KEPT: usize = 4;

/// Answers from the extent tree, a chunk at a time.
pub(super) struct Map {
    reader: Reader,
    extent_tree: Root,
    logs: Stretches,
    /// Copies of chunks by where they lie.
    places: Vec<(VolumeSpan, usize)>,
    /// What the file system keeps of its devices for itself.
    kept: Vec<VolumeSpan>,
    last: Mutex<Vec<(usize, Arc<Stretches>)>>,
}

impl Map {
    pub(super) fn new(reader: Reader, extent_tree: Root, logs: Stretches) -> Self {
        let places = chunk::by_place(&reader.chunks);
        let kept = reader.layout.kept(&reader.superblock.devices);
        Self { reader, extent_tree, logs, places, kept, last: Mutex::default() }
    }

    fn free(&self, index: usize) -> Result<Arc<Stretches>> {
        let mut last = self.last.lock().expect("no reader panicked");
        if let Some((_, free)) = last.iter().find(|(kept, _)| *kept == index) {
            return Ok(free.clone());
        }
        let found = Arc::new(self.free_of(&self.reader.chunks.all()[index])?);
        if last.len() == KEPT {
            last.remove(0);
        }
        last.push((index, found.clone()));
        Ok(found)
    }

    /// What is free of a chunk: addresses from its beginning.
    fn free_of(&self, chunk: &Chunk) -> Result<Stretches> {
        let (mut free, mut at) = (Stretches::new(), chunk.logical);
        let mut logs = self.logs[self.logs.partition_point(|log| log.1 <= chunk.logical)..].iter().peekable();
        let mut take = |start: u64, end: u64, at: &mut u64| {
            if start > *at {
                free.push((*at - chunk.logical, start.min(chunk.end()) - chunk.logical));
            }
            *at = (*at).max(end);
        };
        extents::each(&self.reader, self.extent_tree, chunk.logical, chunk.end(), &mut |met| {
            if let Met::Extent { extent, .. } = met {
                while let Some(log) = logs.next_if(|log| log.0 < extent.logical) {
                    take(log.0, log.1, &mut at);
                }
                take(extent.logical, extent.end(), &mut at);
            }
            Ok(())
        })?;
        for log in logs.take_while(|log| log.0 < chunk.end()) {
            take(log.0, log.1, &mut at);
        }
        take(chunk.end(), chunk.end(), &mut at);
        Ok(free)
    }

    /// Enters a part of the volume where nothing lies but what the file system keeps for itself.
    fn push_unallocated(&self, uses: &mut Uses, end: VolumeOffset) {
        uses.push(end.min(self.reader.layout.span().end()), Use::Free);
        uses.push(end, Use::Used);
    }
}

impl UsedMap for Map {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        let mut uses = Uses::starting_at(span.start());
        let first = self.places.partition_point(|(place, _)| place.end() <= span.start());
        for (place, index) in &self.places[first..] {
            let Some(part) = place.intersect(&span) else { break };
            self.push_unallocated(&mut uses, part.start());
            let free = self.free(*index)?;
            let behind = part.start().get() - place.start().get();
            for (start, end) in &free[free.partition_point(|(_, end)| *end <= behind)..] {
                if place.start().plus(*start) >= part.end() {
                    break;
                }
                uses.push(place.start().plus(*start), Use::Used);
                uses.push(place.start().plus(*end).min(part.end()), Use::Free);
            }
            uses.push(part.end(), Use::Used);
        }
        self.push_unallocated(&mut uses, span.end());
        let kept = self.kept.iter().copied().filter(|kept| kept.intersect(&span).is_some());
        Ok(kept.fold(uses, Uses::with_used).into_extents())
    }
}
