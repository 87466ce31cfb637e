//! One example for each rule.

use extent::{Offset, VolumeSpan};
use filesystem::{
    FileExtent, FileId, FileKind, FileStream, Fragments, Mobility, PieceState, StreamName, StreamVisitor,
};

use super::model::{CLUSTER, Cell, Model, Stream, options, planned, span};
use crate::defrag::*;

/// Fills `range` with the file system's own, so that nothing can go there or leave it.
fn keep(model: &mut Model, ranges: &[std::ops::Range<usize>]) {
    ranges.iter().for_each(|range| model.keep(range.clone()));
}

#[test]
fn the_largest_run_stays_where_the_rest_fits_beside_it() {
    let mut model = Model::new(200);
    let file = model.add_dense(&[(100, 2), (20, 50), (150, 3)]);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!(now.streams[file].extents, [(0, 18, 2), (2, 20, 50), (52, 70, 3)]);
    assert_eq!(plan.moved_bytes, 5 * CLUSTER);
    assert_eq!(plan.batches.len(), 1);
}

#[test]
fn a_stream_goes_whole_to_the_tightest_free_extent() {
    let mut model = Model::new(100);
    let file = model.add_dense(&[(1, 2), (4, 2)]);
    // Nothing fits beside its runs; of the free extents of 10, 5 and 40 the second is the tightest.
    keep(&mut model, &[0..1, 3..4, 6..7, 17..18, 23..24, 64..100]);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!(now.streams[file].extents, [(0, 18, 2), (2, 20, 2)]);
    assert_eq!(plan.moved_bytes, 4 * CLUSTER);
}

#[test]
fn the_largest_stream_is_placed_first() {
    let mut model = Model::new(100);
    keep(&mut model, &[1..2, 3..4, 5..6, 7..8, 9..10, 20..21, 27..28, 50..100]);
    // The gap of 10 fits either; the one of 6 fits the smaller alone.
    let small = model.add_dense(&[(0, 1), (2, 1), (4, 1)]);
    let large = model.add_dense(&[(6, 1), (28, 7)]);
    (35..50).for_each(|at| model.cells[at] = Cell::Kept);
    let (_, now) = planned(&model, &options(Goal::Files));
    assert_eq!((now.run_count(small), now.run_count(large)), (1, 1));
    assert_eq!(now.streams[large].extents[0].1, 10);
    assert_eq!(now.streams[small].extents[0].1, 21);
}

#[test]
fn what_others_leave_is_used_in_the_next_batch() {
    let mut model = Model::new(40);
    keep(&mut model, &[0..1, 19..20, 33..40]);
    // Ten clusters are free in one piece; the smaller stream fits once the larger has left its own.
    let large = model.add_dense(&[(1, 5), (11, 4)]);
    let small = model.add_dense(&[(6, 5), (15, 3)]);
    (18..19).for_each(|at| model.cells[at] = Cell::Kept);
    model.add_dense(&[(30, 3)]);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!((now.run_count(large), now.run_count(small)), (1, 1));
    assert_eq!(plan.made_room_bytes, 0);
    assert!(plan.moved_bytes <= plan.before.fragmented_bytes);
}

#[test]
fn a_small_file_in_the_way_of_a_large_one_moves_away() {
    let mut model = Model::new(1000);
    let large = model.add_dense(&[(0, 400), (402, 3)]);
    let small = model.add_dense(&[(400, 2)]);
    keep(&mut model, std::slice::from_ref(&(405..406)));
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!((now.run_count(large), now.run_count(small)), (1, 1));
    assert_eq!(now.streams[large].extents[0].1, 0, "what is large stays");
    assert!(plan.moved_bytes <= 8 * CLUSTER, "{plan:?}");
    assert!(plan.made_room_bytes > 0);
}

#[test]
fn others_make_room_where_no_free_extent_is_large_enough() {
    let mut model = Model::new(40);
    // Free: 4 at 10, 4 at 16, between them a file of 2, which fits behind the eight that are needed.
    let file = model.add_dense(&[(0, 4), (5, 4)]);
    let other = model.add_dense(&[(14, 2)]);
    keep(&mut model, &[4..5, 9..10, 20..40]);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!(now.streams[file].extents[0].1, 10);
    assert_eq!(now.streams[other].extents[0].1, 18);
    assert_eq!((plan.made_room_bytes, plan.batches.len()), (2 * CLUSTER, 2));
}

#[test]
fn a_stream_rolls_into_what_it_leaves_itself() {
    let mut model = Model::new(40);
    // Six are free in one piece, which take what is between the first four pieces, one after the other.
    let file = model.add_dense(&[(0, 2), (4, 2), (8, 2), (12, 2)]);
    let others = [2, 6, 10, 14].map(|start| model.add_dense(&[(start, 2)]));
    keep(&mut model, std::slice::from_ref(&(22..40)));
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!(now.streams[file].extents, [(0, 0, 2), (2, 2, 2), (4, 4, 2), (6, 6, 2)]);
    assert_eq!(now.streams[others[2]].extents[0].1, 10, "what is not in the way stays");
    assert_eq!((plan.moved_bytes, plan.made_room_bytes), (10 * CLUSTER, 4 * CLUSTER));
}

#[test]
fn gaps_are_joined_for_what_fits_none() {
    let mut model = Model::new(20);
    let file = model.add_dense(&[(0, 3), (6, 3)]);
    let between = model.add_dense(&[(3, 3)]);
    // Free are two, two, and one; what is between the first two fits into the last.
    let small = model.add_dense(&[(12, 1)]);
    keep(&mut model, &[9..10, 15..16, 17..20]);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!(now.run_count(file), 1, "{plan:?}");
    assert_eq!((now.streams[small].extents[0].1, now.streams[between].extents[0].1), (16, 10));
    assert_eq!((plan.moved_bytes, plan.made_room_bytes), (7 * CLUSTER, 4 * CLUSTER));
}

#[test]
fn what_moves_together_gets_the_free_space_that_others_can_do_without() {
    let mut model = Model::new(40);
    // Both fit into what is free in one piece; only the first can come together where it lies.
    let file = model.add_dense(&[(0, 4), (8, 4)]);
    let other = model.add_dense(&[(4, 4)]);
    let bound = model.add_dense(&[(12, 3), (16, 4)]);
    model.streams[bound].moves_together = true;
    keep(&mut model, &[15..16, 20..22, 30..40]);
    let (_, now) = planned(&model, &options(Goal::Files));
    assert_eq!((now.run_count(file), now.run_count(other), now.run_count(bound)), (1, 1, 1));
}

#[test]
fn a_window_takes_a_little_storage_at_a_time() {
    let mut model = Model::new(60);
    let file = model.add_dense(&[(0, 2), (4, 2), (8, 2), (12, 2)]);
    for start in [2, 6, 10, 14] {
        model.add_dense(&[(start, 1)]);
    }
    keep(&mut model, std::slice::from_ref(&(24..60)));
    // One cluster of each gap is without storage.
    [3, 7, 11, 15].into_iter().for_each(|at| model.backing[at] = Backing::Unallocated);
    (17..24).step_by(2).for_each(|at| model.cells[at] = Cell::Kept);
    let options = DefragOptions { growth_bytes_max: 16 * CLUSTER, ..options(Goal::Files) };
    let (plan, now) = planned(&model, &options);
    assert_eq!(now.run_count(file), 1, "{plan:?}");
    assert_eq!(plan.growth_left_bytes, 0, "{plan:?}");
    assert!((1..=2 * CLUSTER).contains(&plan.growth_bytes), "{plan:?}");
}

#[test]
fn what_goes_back_to_the_container_is_in_few_pieces() {
    let mut model = Model::new(146);
    let file = model.add_dense(&[(1, 16), (18, 16)]);
    keep(&mut model, &[0..1, 17..18, 34..35, 104..105, 145..146]);
    // Twenty free clusters apart from each other, a gap that is too small, and one that is large enough and has no storage.
    (36..76).step_by(2).for_each(|at| model.cells[at] = Cell::Kept);
    (105..145).for_each(|at| model.backing[at] = Backing::Unallocated);
    let options =
        DefragOptions { growth_bytes_max: 40 * CLUSTER, growth_left_bytes_max: 0, ..options(Goal::Files) };
    let (plan, now) = planned(&model, &options);
    assert_eq!((now.run_count(file), plan.growth_left_bytes), (1, 0), "{plan:?}");
    assert_eq!(plan.releases, [[span(1, 16), span(18, 16)]]);
}

#[test]
fn a_stream_that_cannot_be_whole_gets_fewer_runs_and_is_counted() {
    let mut model = Model::new(100);
    // 95 % full: free are 3 and 2, and of its runs of 1, 2, 3 and 5 the first two fit together.
    keep(&mut model, &[0..40, 43..44, 45..46, 48..52, 55..60, 65..98]);
    let file = model.add_dense(&[(44, 1), (46, 2), (52, 3), (60, 5)]);
    let before = model.run_count(file);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert!((2..before).contains(&now.run_count(file)), "{} of {before} runs", now.run_count(file));
    assert_eq!(plan.left, [(FileId(10), WhyLeft::NoRoom)]);
    assert!(plan.moved_bytes <= plan.before.fragmented_bytes);
}

#[test]
fn what_is_left_names_the_bound_that_it_met() {
    // Twenty clusters are free in one piece, and the file has eight.
    let left = |backing: Backing, growth_bytes_max: u64| {
        let mut model = Model::new(60);
        model.add_dense(&[(0, 4), (8, 4)]);
        keep(&mut model, &[4..8, 12..30, 50..60]);
        model.backing[30..50].fill(backing);
        planned(&model, &DefragOptions { growth_bytes_max, ..options(Goal::Files) }).0.left
    };
    let bytes_max = 2 * CLUSTER;
    assert_eq!(left(Backing::Allocated, bytes_max), []);
    assert_eq!(left(Backing::Unallocated, 20 * CLUSTER), []);
    assert_eq!(
        left(Backing::Unallocated, bytes_max),
        [(FileId(10), WhyLeft::Growth { bytes_max, needed_bytes: 8 * CLUSTER })]
    );
    assert_eq!(left(Backing::Fixed, bytes_max), [(FileId(10), WhyLeft::NotWritable)]);
    assert_eq!(left(Backing::Withheld, bytes_max), left(Backing::Unallocated, bytes_max));
}

#[test]
fn what_is_pinned_is_left_and_says_why() {
    let mut model = Model::new(100);
    model.add_dense(&[(0, 2), (4, 2)]);
    model.streams[0].pinned = Some("the journal");
    let (plan, _) = planned(&model, &options(Goal::Files));
    assert!(plan.batches.is_empty());
    assert_eq!(plan.left, [(FileId(10), WhyLeft::Pinned("the journal"))]);
}

#[test]
fn what_the_container_keeps_for_others_is_neither_left_nor_entered() {
    let mut model = Model::new(60);
    let (touching, free) = (model.add_dense(&[(0, 2), (4, 2)]), model.add_dense(&[(10, 2), (14, 2)]));
    model.backing[5] = Backing::Fixed;
    model.backing[16..40].fill(Backing::Fixed);
    keep(&mut model, &[8..10, 12..14]);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!((now.run_count(touching), now.run_count(free)), (2, 1));
    assert!(matches!(plan.left[..], [(FileId(10), WhyLeft::Pinned(_))]));
    // Nothing is known of what lies under the volume: nothing moves.
    let mut unknown = Layout::new(CLUSTER, Fragments::of_adjacent(), Vec::new());
    unknown.add_room(span(50, 10));
    let plan = plan_in_place(&unknown, &options(Goal::Free), &Hints::default()).unwrap();
    assert!(plan.batches.is_empty());
}

#[test]
fn the_container_grows_within_the_limit_and_only_if_it_must() {
    let mut model = Model::new(60);
    keep(&mut model, &[0..10, 12..13, 15..16]);
    model.add_dense(&[(10, 2), (13, 2)]);
    (16..60).for_each(|at| model.backing[at] = Backing::Unallocated);
    let limit =
        |clusters: u64| DefragOptions { growth_bytes_max: clusters * CLUSTER, ..options(Goal::Files) };
    let (plan, _) = planned(&model, &limit(1));
    assert_eq!((plan.growth_bytes, plan.left.len()), (0, 1), "its parts have two clusters each");
    let (plan, _) = planned(&model, &limit(3));
    assert_eq!((plan.growth_bytes, plan.left.len()), (2 * CLUSTER, 0), "one part after the other");
    assert_eq!(plan.batches.len(), 2);
    // A place that is allocated is preferred, however much larger it is.
    model.backing[30..60].fill(Backing::Allocated);
    let (plan, now) = planned(&model, &limit(40));
    assert_eq!((plan.growth_bytes, now.streams[0].extents[0].1), (0, 30));
}

#[test]
fn small_files_go_near_their_home() {
    let mut model = Model::new(100);
    keep(&mut model, &[0..10, 12..13, 15..16, 30..31]);
    model.add_dense(&[(10, 2), (13, 2)]);
    let home = |_| Some(span(40, 20));
    let hints = Hints { home: Some(&home), folder: None };
    let plan = plan_in_place(&model.layout(), &options(Goal::Files), &hints).unwrap();
    let now = model.run(&plan, &options(Goal::Files));
    assert_eq!(now.streams[0].extents[0].1, 40);
}

#[test]
fn gaps_are_filled_from_the_tail() {
    let mut model = Model::new(100);
    model.add_dense(&[(0, 20)]);
    model.add_dense(&[(25, 35)]);
    // The window with the least in it is emptied into the gap of 5: the free space is in one piece, at a cost of 5.
    model.add_dense(&[(70, 5)]);
    let (plan, _) = planned(&model, &options(Goal::Free));
    assert_eq!(plan.after.free_extents, 1);
    assert_eq!(plan.moved_bytes, 5 * CLUSTER);
}

#[test]
fn free_space_comes_together_on_a_thin_disk_by_little_and_little() {
    let mut model = Model::new(100);
    for start in (0..80).step_by(4) {
        model.add_dense(&[(start, 2)]);
    }
    model.backing = (0..100)
        .map(|at| if at < 80 && at % 4 < 2 { Backing::Allocated } else { Backing::Unallocated })
        .collect();
    let options = DefragOptions { growth_bytes_max: 3 * CLUSTER, ..options(Goal::Free) };
    let (plan, now) = planned(&model, &options);
    assert_eq!(plan.growth_left_bytes, 0, "{plan:?}");
    assert!(plan.growth_bytes <= 3 * CLUSTER);
    assert!(plan.after.largest_free_extent_bytes >= 57 * CLUSTER, "{plan:?}");
    let allocated = now.backing.iter().filter(|backing| **backing == Backing::Allocated).count();
    assert!(allocated <= 40, "{allocated}");
}

#[test]
fn what_a_thin_disk_cannot_take_in_one_piece_stays() {
    let mut model = Model::new(100);
    model.add_dense(&[(40, 5)]);
    (0..100).filter(|at| !(40..45).contains(at)).for_each(|at| model.backing[at] = Backing::Unallocated);
    let limited =
        |clusters: u64| DefragOptions { growth_bytes_max: clusters * CLUSTER, ..options(Goal::Free) };
    let (plan, _) = planned(&model, &limited(4));
    assert_eq!((plan.moved_bytes, plan.movable_free_bytes), (0, 55 * CLUSTER));
    let (plan, _) = planned(&model, &limited(5));
    assert_eq!(plan.movable_free_bytes, 95 * CLUSTER);
    assert!(plan.after.largest_free_extent_bytes >= 91 * CLUSTER, "{plan:?}");
}

#[test]
fn what_is_anchored_comes_behind_its_beginning_last_and_alone() {
    let mut model = Model::new(100);
    model.add_dense(&[(10, 4), (30, 3), (50, 2)]);
    model.streams[0].is_anchored = true;
    model.streams[0].pinned = Some("until it is asked for");
    model.add_dense(&[(15, 3)]);
    model.add_dense(&[(60, 1), (62, 1)]);
    let (plan, now) = planned(&model, &options(Goal::Files));
    assert_eq!(now.streams[0].extents, model.streams[0].extents, "nobody asked");
    assert!(plan.left.iter().all(|(_, why)| matches!(why, WhyLeft::Pinned(_))), "{plan:?}");
    model.streams[0].pinned = None;
    let asked = DefragOptions { moves_anchored: true, ..options(Goal::Files) };
    let (plan, now) = planned(&model, &asked);
    let last = plan.batches.last().unwrap();
    assert_eq!(last.files().len(), 1);
    let places: Vec<_> = now.streams[0].extents.iter().map(|(_, at, len)| (*at, *len)).collect();
    assert_eq!(places, [(10, 4), (14, 3), (17, 2)], "{plan:?}");
    // What stays right behind it: all but the first piece together.
    keep(&mut model, std::slice::from_ref(&(14..15)));
    let (_, now) = planned(&model, &asked);
    assert_eq!((now.run_count(0), now.streams[0].extents[0].1), (2, 10));
}

#[test]
fn what_fits_no_gap_slides() {
    let mut model = Model::new(100);
    for start in [3, 15, 27, 39] {
        model.add_dense(&[(start, 9)]);
    }
    keep(&mut model, std::slice::from_ref(&(90..100)));
    let (plan, _) = planned(&model, &options(Goal::Free));
    assert_eq!(plan.after.free_extents, 1, "{plan:?}");
    assert!(plan.moved_bytes <= 36 * CLUSTER);
}

#[test]
fn sorting_brings_directories_then_folders_then_large_files() {
    let mut model = Model::new(1000);
    let kinds =
        [FileKind::Regular, FileKind::Regular, FileKind::Directory, FileKind::Regular, FileKind::Regular];
    let starts = [(300, 80), (500, 3), (600, 2), (700, 3), (800, 3)];
    for (index, (kind, (start, len))) in kinds.into_iter().zip(starts).enumerate() {
        let extents = vec![(0, start, len)];
        model.add_stream(Stream {
            file: 10 + index as u64,
            kind,
            is_main: true,
            pinned: None,
            moves_together: false,
            is_anchored: false,
            extents,
        });
    }
    let folder = |file: FileId| Some(FileId(if file.0 == 13 { 2 } else { 3 }));
    let hints = Hints { folder: Some(&folder), home: None };
    let plan = plan_in_place(&model.layout(), &options(Goal::Pack), &hints).unwrap();
    let now = model.run(&plan, &options(Goal::Pack));
    let places: Vec<_> = [2, 3, 1, 4, 0].map(|stream: usize| now.streams[stream].extents[0].1).to_vec();
    assert!(places.is_sorted(), "{places:?}");
    assert!(places[3] - places[1] == 6, "the small files of one directory lie together: {places:?}");
    let again = plan_in_place(&now.layout(), &options(Goal::Pack), &hints).unwrap();
    assert!(again.batches.is_empty(), "sorted twice: {again:?}");
}

#[test]
fn many_small_files_are_sorted_in_few_batches() {
    let mut model = Model::new(2000);
    // In no order at all, and some of them in the way of others wherever these go.
    for file in 0..1000u64 {
        model.add_stream(Stream {
            file: 10 + file * 387 % 1000,
            kind: FileKind::Regular,
            is_main: true,
            pinned: None,
            moves_together: false,
            is_anchored: false,
            extents: vec![(0, 17 + file + file / 10, 1)],
        });
    }
    let (plan, now) = planned(&model, &options(Goal::Pack));
    let mut places: Vec<_> = now.streams.iter().map(|stream| (stream.file, stream.extents[0].1)).collect();
    places.sort_unstable();
    assert!(places.is_sorted_by_key(|(_, at)| *at), "{places:?}");
    assert!(plan.batches.len() <= 12, "{} batches", plan.batches.len());
}

#[test]
fn room_is_left_behind_what_grows() {
    let mut model = Model::new(2000);
    let pieces: Vec<_> = (0..10).map(|piece| (1000 + piece * 20, 16)).collect();
    let log = model.add_dense(&pieces);
    let next = model.add_dense(&[(1900, 70)]);
    let (_, now) = planned(&model, &options(Goal::Pack));
    assert_eq!(now.run_count(log), 1);
    assert_eq!(now.streams[next].extents[0].1, now.streams[log].extents[0].1 + 160 + 20);
}

#[test]
fn a_volume_written_anew_is_filled_around_what_stays() {
    let mut model = Model::new(100);
    keep(&mut model, &[20..22, 60..62]);
    let first = model.add_dense(&[(2, 10)]);
    let large = model.add_dense(&[(25, 15), (70, 5)]);
    let late = model.add_dense(&[(80, 8)]);
    let packed = plan_packed(&model.layout()).unwrap();
    let mut now = model.clone();
    now.apply(&packed.relocations, false);
    // The large one does not fit in front of what stays at 20; the late one does, behind the first.
    assert_eq!(now.streams[first].extents, [(0, 0, 10)]);
    assert_eq!(now.streams[late].extents, [(0, 10, 8)]);
    assert_eq!(now.streams[large].extents, [(0, 22, 15), (15, 37, 5)]);
    assert!(packed.left.is_empty());
}

#[test]
fn what_fits_no_gap_between_pins_stays_in_pieces() {
    let mut model = Model::new(40);
    keep(&mut model, &[10..11, 21..22, 32..40]);
    model.add_dense(&[(2, 8), (13, 8)]);
    let packed = plan_packed(&model.layout()).unwrap();
    assert_eq!(packed.left, [(FileId(10), WhyLeft::NoRoom)]);
    assert_eq!(packed.after.fragments, 2);
}

#[test]
fn sparse_runs_count_as_the_file_system_counts_them() {
    let mut model = Model::new(100);
    // Five clusters of hole, and as many between the pieces on the volume.
    model.add(&[(0, 10, 5), (10, 20, 5)]);
    keep(&mut model, std::slice::from_ref(&(15..20)));
    let (plan, _) = planned(&model, &options(Goal::Files));
    assert_eq!(plan.before.fragments, 2);
    assert_eq!(plan.after.fragments, 1);
    model.rule = Fragments::as_filefrag();
    let (plan, _) = planned(&model, &options(Goal::Files));
    assert_eq!(plan.before.fragments, 1);
    assert!(plan.batches.is_empty());
}

#[test]
fn two_owners_of_one_place_are_refused() {
    let mut model = Model::new(100);
    model.add_dense(&[(10, 5)]);
    let mut layout = model.layout();
    layout.add_room(span(14, 1));
    assert!(plan_in_place(&layout, &options(Goal::Files), &Hints::default()).is_err());
    assert!(plan_packed(&layout).is_err());
}

#[test]
fn batches_are_bounded_and_a_large_extent_stands_alone() {
    let mut model = Model::new(200);
    model.add_dense(&[(0, 3), (4, 3), (8, 30), (40, 3)]);
    keep(&mut model, &[3..4, 7..8, 38..40, 43..44]);
    let options = DefragOptions { batch_bytes_max: 6 * CLUSTER, ..options(Goal::Files) };
    let (plan, _) = planned(&model, &options);
    let sizes: Vec<_> = plan.batches.iter().map(|batch| batch.total_bytes() / CLUSTER).collect();
    assert_eq!(sizes, [6, 30, 3]);
}

#[test]
fn a_unit_that_holds_little_goes_into_those_that_stay() {
    let mut model = Model::new(40);
    // Units of ten: one with what stays, one with a little, one that is nearly full, one that is free.
    keep(&mut model, std::slice::from_ref(&(0..2)));
    let (small, large) = (model.add_dense(&[(12, 2)]), model.add_dense(&[(20, 9)]));
    let options = DefragOptions { unit_bytes: 10 * CLUSTER, ..options(Goal::Units) };
    let (plan, now) = planned(&model, &options);
    assert_eq!(now.streams[small].extents, [(0, 2, 2)]);
    assert_eq!(now.streams[large].extents, model.streams[large].extents);
    assert_eq!((plan.emptied, plan.moved_bytes), (Emptied { units: 1, bytes: 10 * CLUSTER }, 2 * CLUSTER));
}

#[test]
fn a_unit_is_left_where_emptying_it_would_tear_a_file() {
    let mut model = Model::new(40);
    keep(&mut model, &[0..6, 30..36]);
    // Of eight, while two times four are free elsewhere; and one of which a part lies in a unit that stays.
    let (whole, torn) = (model.add_dense(&[(10, 8)]), model.add_dense(&[(25, 5), (36, 1)]));
    model.cells[24] = Cell::Kept;
    let options = DefragOptions { unit_bytes: 10 * CLUSTER, ..options(Goal::Units) };
    let (plan, now) = planned(&model, &options);
    assert_eq!((plan.emptied, plan.moved_bytes), (Emptied::default(), 0));
    assert_eq!(now.streams[whole].extents, model.streams[whole].extents);
    assert_eq!(now.streams[torn].extents, model.streams[torn].extents);
}

#[test]
fn units_that_fit_no_gaps_go_together_into_a_free_one() {
    let mut model = Model::new(60);
    // Five have three of ten used, and of the rest four in two gaps; one is free.
    for unit in (0..50).step_by(10) {
        model.add_dense(&[(unit + 3, 3)]);
        let at = usize::try_from(unit).unwrap();
        [at, at + 8, at + 9].into_iter().for_each(|at| model.backing[at] = Backing::Unallocated);
    }
    let options = DefragOptions { unit_bytes: 10 * CLUSTER, ..options(Goal::Units) };
    let (plan, now) = planned(&model, &options);
    let is_used = |unit: &usize| now.cells[unit * 10..unit * 10 + 10].iter().any(|cell| *cell != Cell::Free);
    assert_eq!((0..6).filter(is_used).count(), 3);
    // Three became free, and the one that was is none any more.
    assert_eq!(plan.emptied, Emptied { units: 2, bytes: 11 * CLUSTER });
    assert_eq!(plan.moved_bytes, 9 * CLUSTER);
}

/// Of as many files as a large guest has, six in ten were deleted.
#[test]
fn units_of_an_aged_volume_are_emptied_in_a_moment() {
    for (unit_bytes, file_count, least_percent) in
        [(64 << 10, 30_000, 20), (2 << 20, 150_000, 85), (32 << 20, 30_000, 85)]
    {
        let mut state = 11u64;
        let mut roll = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut at, mut files, mut room) = (0, Vec::new(), Vec::new());
        while files.len() < file_count {
            let len = if roll(20) == 0 { 1 + roll(500) } else { 1 + roll(12) };
            let is_there = roll(10) < 4;
            if is_there {
                files.push((at, len));
            } else {
                room.push(span(at, len));
            }
            at += len;
        }
        let whole = vec![(span(0, at), Backing::Allocated)];
        let mut layout = Layout::new(CLUSTER, Fragments::of_adjacent(), whole);
        for (number, (start, len)) in (0u64..).zip(files) {
            let file = FileStream {
                file: FileId(number),
                kind: FileKind::Regular,
                name: StreamName::Main,
                size_bytes: 1,
                is_inline: false,
            };
            let extent =
                FileExtent { logical: Offset::ZERO, span: span(start, len), state: PieceState::Written };
            let mobility = match number % 5000 {
                0 => Mobility::Pinned("a test says so"),
                _ => Mobility::Movable,
            };
            layout.stream(file, &[extent], mobility);
        }
        let free_bytes: u64 = room.iter().map(VolumeSpan::len_bytes).sum();
        room.into_iter().for_each(|span| layout.add_room(span));
        let options = DefragOptions { unit_bytes, batch_bytes_max: 256 << 20, ..options(Goal::Units) };
        let started = std::time::Instant::now();
        let plan = plan_in_place(&layout, &options, &Hints::default()).unwrap();
        let (emptied, moved_bytes) = (plan.emptied, plan.moved_bytes);
        println!("{unit_bytes}: {emptied:?} of {free_bytes}, {moved_bytes} moved in {:?}", started.elapsed());
        assert!(moved_bytes < emptied.bytes / 2);
        assert!(emptied.bytes > free_bytes * least_percent / 100);
    }
}
