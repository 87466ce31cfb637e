//! What a change in place does to what a survey measures: the same figures before and after, and what reading costs.

use std::collections::BTreeMap;

use extent::{ExtentSet, Volume, VolumeOffset, VolumeSpan};
use filesystem::{Catalog, CatalogStream, FileId, FileKind, Relocation, Relocations, StreamName};
use plan::defrag::{DefragPlan, LayoutFigures};
use stack::{Totals, VolumeSurvey};

use crate::cost::{Order, Piece, ReadCost, RequestSize, SequentialRead};
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

/// What is free after relocations, one batch after the other, of a volume that is free in `free`; `freed` is what maps that
/// get smaller leave.
pub fn free_after(
    free: &ExtentSet<Volume>,
    batches: &[Relocations],
    freed: &ExtentSet<Volume>,
) -> ExtentSet<Volume> {
    let moved = batches.iter().fold(free.clone(), |free, batch| {
        let taken = batch.by_destination().map(|relocation| relocation.to_span()).collect();
        let left = batch.by_source().map(|relocation| relocation.from).collect();
        // Where all happens at once, one may go to what another leaves.
        free.union(&left).subtract(&taken)
    });
    moved.union(freed)
}

/// The figures after `plan` was carried out on a volume that has these `before`, and is then free in `free`.
pub fn predicted_figures(
    before: LayoutFigures,
    free: &ExtentSet<Volume>,
    plan: &DefragPlan,
) -> LayoutFigures {
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

/// Batches as relocations that happen at once.
pub fn at_once(batches: &[Relocations]) -> block::Result<Relocations> {
    let moved = Moved::new(batches);
    let mut all: Vec<Relocation> = Vec::new();
    for (origin, (len, place, file)) in moved.pieces {
        match all.last_mut() {
            Some(last)
                if last.file == file
                    && last.from.end().get() == origin
                    && last.to_span().end().get() == place =>
            {
                last.from = span_of(last.from.start().get(), origin + len);
            }
            _ => all.push(Relocation {
                from: span_of(origin, origin + len),
                to: VolumeOffset::new(place),
                file,
            }),
        }
    }
    all.retain(|relocation| relocation.from.start() != relocation.to);
    Relocations::new(all)
}

/// What it costs to read each regular file that is fragmented, from its beginning to its end: as the files lie, and after
/// `batches`. The virtual disk is taken to be in one piece.
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
    /// By start: length, where it goes, and whose it is.
    pieces: BTreeMap<u64, (u64, u64, FileId)>,
}

impl Moved {
    fn new(batches: &[Relocations]) -> Self {
        // By where a piece lies now: its length, where it lay at first, and whose it is.
        let mut lying: BTreeMap<u64, (u64, u64, FileId)> = BTreeMap::new();
        for batch in batches {
            let mut arrived = Vec::new();
            for relocation in batch.by_source() {
                let (from, len, to) =
                    (relocation.from.start().get(), relocation.from.len_bytes(), relocation.to.get());
                let file = relocation.file;
                let before = take(&mut lying, from, len);
                let mut at = from;
                for (start, (piece, origin, _)) in before {
                    if at < start {
                        arrived.push((to + (at - from), (start - at, at, file)));
                    }
                    arrived.push((to + (start - from), (piece, origin, file)));
                    at = start + piece;
                }
                if at < from + len {
                    arrived.push((to + (at - from), (from + len - at, at, file)));
                }
            }
            lying.extend(arrived);
        }
        let pieces =
            lying.into_iter().map(|(place, (len, origin, file))| (origin, (len, place, file))).collect();
        Self { pieces }
    }

    fn each_place(&self, span: VolumeSpan, each: &mut dyn FnMut(VolumeSpan, VolumeOffset)) {
        let mut at = span.start().get();
        let end = span.end().get();
        let before = self.pieces.range(..at).next_back().filter(|(start, (len, ..))| **start + len > at);
        for (start, (len, place, _)) in before.into_iter().chain(self.pieces.range(at..end)) {
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
fn take(
    lying: &mut BTreeMap<u64, (u64, u64, FileId)>,
    from: u64,
    len: u64,
) -> Vec<(u64, (u64, u64, FileId))> {
    let end = from + len;
    let mut cut = |at: u64| {
        let Some((&start, &(len, origin, file))) = lying.range(..at).next_back() else { return };
        if start + len > at {
            lying.insert(start, (at - start, origin, file));
            lying.insert(at, (start + len - at, origin + (at - start), file));
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
    use plan::defrag::Emptied;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batches_at_once_go_where_they_go_one_after_the_other() {
        let move_of = |file: u64, from: u64, to: u64, len: u64| Relocation {
            from: span_of(from, from + len),
            to: VolumeOffset::new(to),
            file: FileId(file),
        };
        let batch = |moves: &[Relocation]| Relocations::new(moves.to_vec()).unwrap();
        let batches = [
            batch(&[move_of(1, 0, 50, 10), move_of(2, 20, 80, 5)]),
            batch(&[
                move_of(1, 50, 20, 4),
                move_of(1, 54, 24, 6),
                move_of(2, 80, 0, 5),
                move_of(3, 90, 40, 2),
            ]),
            batch(&[move_of(3, 40, 90, 2)]),
        ];
        let all = at_once(&batches).unwrap();
        let found: Vec<_> = all.by_source().collect();
        assert_eq!(found, [move_of(1, 0, 20, 10), move_of(2, 20, 0, 5)]);
    }

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
            holes: vec![Vec::new(); 2],
            growth_bytes: 0,
            growth_left_bytes: 0,
            more_places_bytes: 0,
            trimmed: Vec::new(),
            movable_free_bytes: 0,
            changed_block_bytes: 0,
            emptied: Emptied::default(),
            unmet: None,
            left: Vec::new(),
        };
        let free = free_after(
            &[span_of(40, 80)].into_iter().collect(),
            &plan.batches,
            &[span_of(90, 95)].into_iter().collect(),
        );
        let before = LayoutFigures { fragments: 12, fragmented_files: 3, ..LayoutFigures::default() };
        let after = predicted_figures(before, &free, &plan);
        // Free: 5 to 10, 20 to 25, 40 to 50, 60 to 80, 90 to 95.
        let expected = LayoutFigures {
            fragments: 7,
            fragmented_files: 3,
            fragmented_bytes: 0,
            free_extents: 5,
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
