//! What a change in place does to what a survey measures: the same figures before and after, and what reading costs.

use std::collections::BTreeMap;

use extent::{ExtentSet, Volume, VolumeOffset, VolumeSpan};
use filesystem::{Catalog, CatalogStream, FileKind, Relocations, StreamName};
use stack::{Totals, VolumeSurvey};

use crate::cost::{Order, Piece, ReadCost, RequestSize, SequentialRead};
use crate::defrag::{DefragPlan, LayoutFigures};
use crate::profile::Profile;

/// The figures of a volume as it was found.
pub fn surveyed_figures(found: &VolumeSurvey) -> LayoutFigures {
    let Totals { files, directories, others, streams, .. } = found.totals;
    let free = found.free.as_ref();
    LayoutFigures {
        fragments: files.fragments.guest,
        fragmented_files: files.fragmented,
        fragmented_bytes: [files, directories, others, streams].iter().map(|sum| sum.fragmented_bytes).sum(),
        free_extents: free.map_or(0, |free| free.extents),
        largest_free_extent_bytes: free.map_or(0, |free| free.largest_bytes),
    }
}

/// The figures after `plan` was carried out on a volume that has these `before`, and is free in `free`.
pub fn predicted_figures(before: LayoutFigures, free: ExtentSet<Volume>, plan: &DefragPlan) -> LayoutFigures {
    let free = plan.batches.iter().fold(free, |free, batch| {
        let taken = batch.by_destination().map(|relocation| relocation.to_span()).collect();
        let left = batch.by_source().map(|relocation| relocation.from).collect();
        free.subtract(&taken).union(&left)
    });
    // The plan may count more than the survey, such as a file system's own files, which can be all that is left: so the sum
    // comes first.
    let changed = |before: u64, of: fn(&LayoutFigures) -> u64| {
        before.saturating_add(of(&plan.after)).saturating_sub(of(&plan.before))
    };
    LayoutFigures {
        fragments: changed(before.fragments, |figures| figures.fragments),
        fragmented_files: changed(before.fragmented_files, |figures| figures.fragmented_files),
        fragmented_bytes: changed(before.fragmented_bytes, |figures| figures.fragmented_bytes),
        free_extents: free.count() as u64,
        largest_free_extent_bytes: free.iter().map(|span| span.len_bytes()).max().unwrap_or(0),
    }
}

/// What it costs to read each regular file that is fragmented, from its beginning to its end: as the files lie, and after
/// `batches`. The volume begins at `start_bytes` of the virtual disk, which is taken to be in one piece.
pub fn fragmented_reading(
    found: &VolumeSurvey,
    catalog: &Catalog,
    batches: &[Relocations],
    profile: &Profile,
) -> (ReadCost, ReadCost) {
    let cost = || SequentialRead::new(profile, RequestSize::read_ahead(), Order::EachAlone);
    let (mut before, mut after) = (cost(), cost());
    let moved = Moved::new(batches);
    for (stream, fragments) in catalog.streams().zip(&found.fragments) {
        let is_main = stream.stream.kind == FileKind::Regular && stream.stream.name == StreamName::Main;
        let runs = stack::LayerFragments::from(*fragments).guest;
        if !is_main || runs < 2 {
            continue;
        }
        read(&mut before, &stream, |span, each| each(span, span.start()));
        read(&mut after, &stream, |span, each| moved.each_place(span, each));
    }
    (before.total(), after.total())
}

fn read(
    cost: &mut SequentialRead<'_>,
    stream: &CatalogStream<'_>,
    place: impl Fn(VolumeSpan, &mut dyn FnMut(VolumeSpan, VolumeOffset)),
) {
    for extent in stream.extents() {
        place(extent.span, &mut |piece, to| {
            let skipped = piece.start().get() - extent.span.start().get();
            let logical = extent.logical.get() + skipped;
            cost.piece(Piece { logical, physical: to.get(), len_bytes: piece.len_bytes() });
        });
    }
    cost.end_file();
}

/// Where bytes lie after all batches, by where each of them lay before.
struct Moved {
    /// By start: length, and where it goes.
    pieces: BTreeMap<u64, (u64, u64)>,
}

impl Moved {
    fn new(batches: &[Relocations]) -> Self {
        // By where a piece lies now: its length, and where it lay at first.
        let mut lying: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for batch in batches {
            let mut arrived = Vec::new();
            for relocation in batch.by_source() {
                let (from, len, to) =
                    (relocation.from.start().get(), relocation.from.len_bytes(), relocation.to.get());
                let before = take(&mut lying, from, len);
                let mut at = from;
                for (start, (piece, origin)) in before {
                    if at < start {
                        arrived.push((to + (at - from), (start - at, at)));
                    }
                    arrived.push((to + (start - from), (piece, origin)));
                    at = start + piece;
                }
                if at < from + len {
                    arrived.push((to + (at - from), (from + len - at, at)));
                }
            }
            lying.extend(arrived);
        }
        let pieces = lying.into_iter().map(|(place, (len, origin))| (origin, (len, place))).collect();
        Self { pieces }
    }

    fn each_place(&self, span: VolumeSpan, each: &mut dyn FnMut(VolumeSpan, VolumeOffset)) {
        let mut at = span.start().get();
        let end = span.end().get();
        let before = self.pieces.range(..at).next_back().filter(|(start, (len, _))| **start + len > at);
        for (start, (len, place)) in before.into_iter().chain(self.pieces.range(at..end)) {
            let from = at.max(*start);
            if at < from {
                each(span_of(at, from), VolumeOffset::new(at));
            }
            let to = end.min(start + len);
            each(span_of(from, to), VolumeOffset::new(place + (from - start)));
            at = to;
        }
        if at < end {
            each(span_of(at, end), VolumeOffset::new(at));
        }
    }
}

/// Takes out what lies within a span; what it cuts is cut there.
fn take(lying: &mut BTreeMap<u64, (u64, u64)>, from: u64, len: u64) -> Vec<(u64, (u64, u64))> {
    let end = from + len;
    let mut cut = |at: u64| {
        let Some((&start, &(len, origin))) = lying.range(..at).next_back() else { return };
        if start + len > at {
            lying.insert(start, (at - start, origin));
            lying.insert(at, (start + len - at, origin + (at - start)));
        }
    };
    cut(from);
    cut(end);
    let keys: Vec<u64> = lying.range(from..end).map(|(start, _)| *start).collect();
    keys.into_iter().filter_map(|start| lying.remove_entry(&start)).collect()
}

fn span_of(start: u64, end: u64) -> VolumeSpan {
    VolumeSpan::between(VolumeOffset::new(start), VolumeOffset::new(end))
}

#[cfg(test)]
mod tests {
    use filesystem::{FileId, Relocation};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn free_space_is_that_after_all_batches() {
        let batch = |from: u64, len: u64, to: u64| {
            let from = VolumeSpan::new(VolumeOffset::new(from), len);
            Relocations::new(vec![Relocation { from, to: VolumeOffset::new(to), file: FileId(1) }]).unwrap()
        };
        let plan = DefragPlan {
            batches: vec![batch(0, 10, 50), batch(20, 5, 0)],
            before: LayoutFigures { fragments: 9, ..LayoutFigures::default() },
            after: LayoutFigures { fragments: 4, ..LayoutFigures::default() },
            moved_bytes: 15,
            made_room_bytes: 0,
            releases: vec![Vec::new(); 2],
            growth_bytes: 0,
            growth_left_bytes: 0,
            changed_block_bytes: 0,
            left: Vec::new(),
        };
        let free = [span_of(40, 80)].into_iter().collect();
        let before = LayoutFigures { fragments: 12, fragmented_files: 3, ..LayoutFigures::default() };
        let after = predicted_figures(before, free, &plan);
        // Free: 5 to 10, 20 to 25, 40 to 50, 60 to 80.
        let expected = LayoutFigures {
            fragments: 7,
            fragmented_files: 3,
            fragmented_bytes: 0,
            free_extents: 4,
            largest_free_extent_bytes: 20,
        };
        assert_eq!(after, expected);
    }

    proptest! {
        #[test]
        fn bytes_are_followed_through_all_batches(
            moves in prop::collection::vec((0..500u64, 1..20u64, 0..500u64), 1..40), start in 0..200u64, len in 1..60u64
        ) {
            let mut places: Vec<u64> = (0..300).collect();
            let mut batches = Vec::new();
            for (from, len, to) in moves {
                // Only places that nothing lies in are moved to, as batches do.
                let lies = |at: u64| places.contains(&at);
                if (to..to + len).any(lies) || !(from..from + len).all(lies) {
                    continue;
                }
                let from_span = span_of(from, from + len);
                let relocation = Relocation { from: from_span, to: VolumeOffset::new(to), file: FileId(1) };
                batches.push(Relocations::new(vec![relocation]).unwrap());
                for place in &mut places {
                    if (from..from + len).contains(place) {
                        *place = *place - from + to;
                    }
                }
            }
            let moved = Moved::new(&batches);
            let mut at = start;
            moved.each_place(span_of(start, start + len), &mut |piece, to| {
                assert_eq!(piece.start().get(), at);
                for byte in 0..piece.len_bytes() {
                    assert_eq!(places[usize::try_from(at + byte).unwrap()], to.get() + byte);
                }
                at += piece.len_bytes();
            });
            prop_assert_eq!(at, start + len);
        }
    }
}
