//! Files that were written in turns, on containers that must not grow by much.

use super::model::{CLUSTER, Cell, Model, options, planned};
use crate::defrag::*;

/// The clusters of a unit: 64 KiB.
pub(super) const UNIT: u64 = 16;
/// The clusters of a volume.
pub(super) const LEN: u64 = 20_000;

/// A volume of `len` clusters, on which files grew in turns until so much of it was full. File `n` of `count` has `sizes[n % ..]`: pieces of
/// so many clusters, so many times.
fn in_turns(len: u64, count: usize, sizes: &[(u64, u64)]) -> Model {
    let mut model = Model::new(usize::try_from(len).unwrap());
    model.keep(0..24);
    let mut pieces = vec![Vec::new(); count];
    let mut at = 24;
    let rounds = sizes.iter().map(|(_, times)| *times).max().unwrap();
    for round in 0..rounds {
        for (file, pieces) in pieces.iter_mut().enumerate() {
            let (piece, times) = sizes[file % sizes.len()];
            if round < times {
                pieces.push((at, piece));
                at += piece;
            }
        }
    }
    pieces.iter().for_each(|pieces| _ = model.add_dense(pieces));
    let used = usize::try_from(at.div_ceil(UNIT) * UNIT).unwrap();
    model.backing[used..].fill(Backing::Unallocated);
    model
}

pub(super) fn thin_options(len: u64) -> DefragOptions {
    DefragOptions {
        growth_bytes_max: len * CLUSTER / 50,
        growth_left_bytes_max: len * CLUSTER / 1000,
        unit_bytes: UNIT * CLUSTER,
        moves_holes: true,
        batch_bytes_max: 64 << 20,
        ..options(Goal::Files)
    }
}

/// As [`in_turns`], with whole files, gaps, and what stays strewn among them, by a rule that `seed` varies.
pub(super) fn in_turns_among_others(len: u64, used: u64, seed: u64) -> Model {
    let mut state = seed;
    let mut any = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut model = Model::new(usize::try_from(len).unwrap());
    model.keep(0..24);
    let mut pieces = vec![Vec::new(); 24];
    let mut whole = Vec::new();
    let mut at = 24;
    while at < used {
        match any(200) {
            0..5 => {
                let size = 1 + any(600);
                whole.push((at, size));
                at += size;
            }
            5..10 => at += 1 + any(30),
            10 => {
                let start = usize::try_from(at).unwrap();
                model.keep(start..start + 1);
                at += 1;
            }
            _ => {
                let size = 1 + any(24);
                let file = usize::try_from(any(24)).unwrap();
                pieces[file].push((at, size));
                at += size;
            }
        }
    }
    pieces.iter().filter(|pieces| !pieces.is_empty()).for_each(|pieces| _ = model.add_dense(pieces));
    whole.into_iter().for_each(|piece| _ = model.add_dense(&[piece]));
    model
}

/// As if the container had storage for no unit in which nothing lies.
pub(super) fn without_free_units(mut model: Model) -> Model {
    let unit = usize::try_from(UNIT).unwrap();
    for start in (0..model.cells.len() - unit).step_by(unit) {
        let range = start..start + unit;
        if model.cells[range.clone()].iter().all(|cell| *cell == Cell::Free) {
            model.backing[range].fill(Backing::Unallocated);
        }
    }
    model
}

#[test]
fn files_come_together_where_next_to_nothing_is_free() {
    for seed in 0..8 {
        let model = in_turns_among_others(LEN, LEN * 88 / 100, seed);
        let (plan, _) = planned(&model, &thin_options(LEN));
        assert!(plan.before.fragmented_files >= 23, "{seed}: {:?}", plan.before);
        assert_eq!(plan.left, [], "{seed}");
    }
}

/// Little of what is strewn on a thin disk with units of many clusters stays in pieces, and the disk is as small as it was.
#[test]
fn most_files_come_together_among_others_on_a_thin_disk() {
    let (mut left, mut all) = (0, 0);
    for seed in 0..8 {
        let model = without_free_units(in_turns_among_others(LEN, LEN * 75 / 100, seed));
        let options = thin_options(LEN);
        let (plan, _) = planned(&model, &options);
        assert!(plan.growth_left_bytes <= options.growth_left_bytes_max);
        left += plan.left.len() as u64;
        all += plan.before.fragmented_files;
    }
    assert!(left <= all / 24, "{left} of {all}");
}

#[test]
fn files_written_in_turns_come_together_on_a_thin_disk() {
    for sizes in [
        &[(16, 48), (32, 16)][..],
        &[(16, 40)],
        &[(1, 50), (3, 30), (7, 20)],
        &[(5, 40), (16, 20), (40, 10)],
        &[(2, 100), (64, 8), (1, 160)],
    ] {
        let total: u64 =
            (0..64).map(|file| sizes[file % sizes.len()]).map(|(piece, times)| piece * times).sum();
        let len = total * 100 / 78;
        let options = thin_options(len);
        let (plan, _) = planned(&in_turns(len, 64, sizes), &options);
        assert_eq!(plan.before.fragmented_files, 64, "{sizes:?}");
        assert_eq!(plan.left, [], "{sizes:?}");
        assert!(plan.moved_bytes <= 2 * plan.before.fragmented_bytes, "{sizes:?}: each moves aside and in");
    }
}

/// Files of pieces of any size that grew in turns, with small whole ones among them, on a volume without a gap.
fn in_turns_with_whole_ones(len: u64, used: u64, seed: u64) -> Model {
    let mut state = seed;
    let mut any = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut model = Model::new(usize::try_from(len).unwrap());
    model.keep(0..24);
    let mut pieces = vec![Vec::new(); 64];
    let mut at = 24;
    while at < used {
        for pieces in &mut pieces {
            if any(10) == 0 {
                let size = 1 + any(16);
                model.add_dense(&[(at, size)]);
                at += size;
            }
            let size = 1 + any(10);
            pieces.push((at, size));
            at += size;
        }
    }
    pieces.iter().for_each(|pieces| _ = model.add_dense(pieces));
    without_free_units(model)
}

/// Whole files among those in pieces are packed along with them, so that no unit stays because of a gap.
#[test]
fn files_come_together_among_small_whole_ones_on_a_full_thin_disk() {
    for seed in 0..3 {
        let model = in_turns_with_whole_ones(LEN, LEN * 90 / 100, seed);
        let options = thin_options(LEN);
        let (plan, _) = planned(&model, &options);
        assert_eq!(plan.before.fragmented_files, 64, "{seed}");
        assert_eq!(plan.left, [], "{seed}");
        assert!(plan.growth_left_bytes <= options.growth_left_bytes_max, "{seed}");
        assert!(plan.moved_bytes <= plan.before.fragmented_bytes * 5 / 2, "{seed}");
    }
}

/// Where most of what is free has no storage, a file goes there a step at a time, and what it leaves goes back in between.
#[test]
fn the_last_file_goes_where_nothing_is_stored_in_steps() {
    let mut model = Model::new(4000);
    model.keep(0..24);
    // Two files of 400 clusters in turns, with what stays behind each piece, and then nothing that is stored.
    let pieces = |first: u64| (0..100).map(|turn| (24 + turn * 12 + first, 4)).collect::<Vec<_>>();
    (0..100).for_each(|turn: usize| model.keep(24 + turn * 12 + 8..24 + turn * 12 + 12));
    model.add_dense(&pieces(0));
    model.add_dense(&pieces(4));
    model.backing[1232..].fill(Backing::Unallocated);
    let options = DefragOptions {
        growth_bytes_max: 64 * CLUSTER,
        growth_left_bytes_max: 4 * CLUSTER,
        unit_bytes: CLUSTER,
        ..thin_options(4000)
    };
    let (plan, _) = planned(&model, &options);
    assert_eq!((plan.before.fragmented_files, plan.left.as_slice()), (2, &[][..]));
    assert!(plan.growth_left_bytes <= options.growth_left_bytes_max);
    assert_eq!(plan.moved_bytes, plan.before.fragmented_bytes);
}

/// Whole files are shifted together until the last one in pieces has room, where no gap is large enough and nothing of them is stored.
#[test]
fn whole_files_are_shifted_for_the_last_one() {
    let mut model = Model::new(3000);
    model.keep(0..24);
    let mut at = 24;
    for _ in 0..20 {
        // In one piece, though it is told of in several.
        model.add_dense(&(0..25).map(|part| (at + part * 4, 4)).collect::<Vec<_>>());
        let gap = usize::try_from(at + 100).unwrap();
        model.backing[gap..gap + 20].fill(Backing::Unallocated);
        at += 120;
    }
    // What stays is behind each piece.
    let pieces: Vec<_> = (0..25).map(|piece| (at + piece * 8, 4)).collect();
    let stays = usize::try_from(at).unwrap();
    (0..25).for_each(|piece| model.keep(stays + piece * 8 + 4..stays + piece * 8 + 8));
    model.add_dense(&pieces);
    model.keep(stays + 200..3000);
    let options = DefragOptions {
        growth_bytes_max: 60 * CLUSTER,
        growth_left_bytes_max: 3 * CLUSTER,
        unit_bytes: CLUSTER,
        ..thin_options(3000)
    };
    let (plan, _) = planned(&model, &options);
    assert_eq!((plan.before.fragmented_files, plan.left.as_slice()), (1, &[][..]));
    assert!(plan.growth_left_bytes <= options.growth_left_bytes_max);
    assert!(plan.moved_bytes <= 800 * CLUSTER, "{}", plan.moved_bytes / CLUSTER);
}
