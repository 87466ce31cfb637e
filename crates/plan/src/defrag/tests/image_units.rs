//! Plans that count blocks of the host, in images of larger units: replayed cluster by cluster.

use std::collections::BTreeSet;

use super::model::{CLUSTER, Cell, Model, clusters, options, planned, span};
use super::turns::{LEN, UNIT, in_turns_among_others, thin_options, without_free_units};
use crate::defrag::*;

/// The units that hold something of `at`.
fn units_of(at: impl Iterator<Item = usize>) -> BTreeSet<u64> {
    at.map(|at| at as u64 / UNIT).collect()
}

/// What the image of `model` has places for: each unit of which something is stored.
fn stored_units(model: &Model) -> BTreeSet<u64> {
    units_of((0..model.cells.len()).filter(|at| model.backing[*at] == Backing::Allocated))
}

fn image_of(model: &Model) -> ImageUnits {
    ImageUnits {
        unit_bytes: UNIT * CLUSTER,
        unit_skew_bytes: 0,
        present: stored_units(model).into_iter().map(|unit| span(unit * UNIT, UNIT)).collect(),
    }
}

/// Carries a plan out: the units in the end, and the most at any moment. Nothing is given back that is needed.
fn replay(model: &Model, plan: &DefragPlan) -> (BTreeSet<u64>, usize) {
    let (mut now, mut present) = (model.clone(), stored_units(model));
    let mut most = present.len();
    for (batch, release) in plan.batches.iter().zip(&plan.releases) {
        let written: Vec<_> = batch.by_source().flat_map(|each| clusters(each.to_span())).collect();
        present.extend(units_of(written.iter().copied()));
        most = most.max(present.len());
        now.apply(batch, true);
        for released in release {
            assert!(clusters(*released).all(|at| now.cells[at] == Cell::Free), "{released:?} is needed");
            let (first, end) = (released.start().get() / CLUSTER, released.end().get() / CLUSTER);
            (first.div_ceil(UNIT)..end / UNIT).for_each(|unit| _ = present.remove(&unit));
        }
    }
    (present, most)
}

/// Blocks of the host are all that counts: files come together that units leave in pieces, and units in which nothing lies any more go.
#[test]
fn what_units_leave_in_pieces_comes_together_where_blocks_count() {
    let mut has_freed = false;
    for seed in 0..8 {
        let model = without_free_units(in_turns_among_others(LEN, LEN * 75 / 100, seed));
        let wanted = DefragOptions { unit_bytes: CLUSTER, ..thin_options(LEN) };
        let (plan, _) = planned(&model, &wanted);
        let before = stored_units(&model).len();
        let (loose, _) = replay(&model, &plan);
        let plan = in_image_units(&model.layout(), &image_of(&model), u64::MAX, plan).unwrap();
        assert_eq!(plan.left, [], "{seed}");
        assert!(plan.growth_left_bytes <= wanted.growth_left_bytes_max);
        let (present, most) = replay(&model, &plan);
        assert!(
            present.is_subset(&loose) && most <= before + before / 4,
            "{seed}: {before}, {most} at the most"
        );
        has_freed |= present.len() < loose.len();
    }
    assert!(has_freed, "no unit went as a whole that did not go in blocks");
}

/// What makes the image longer than it may be in the end is no plan.
#[test]
fn an_image_that_would_stay_longer_is_not_planned() {
    let mut model = Model::new(4096);
    model.keep(0..16);
    model.backing[16..].fill(Backing::Unallocated);
    // A file whose pieces lie in many units, each full of others.
    let mut pieces = Vec::new();
    for unit in 1..64 {
        pieces.push((unit * UNIT, 4));
        model.add_dense(&[(unit * UNIT + 4, UNIT - 4)]);
    }
    model.add_dense(&pieces);
    let used = 64 * usize::try_from(UNIT).unwrap();
    model.backing[16..used].fill(Backing::Allocated);
    let wanted =
        DefragOptions { growth_bytes_max: 1 << 30, growth_left_bytes_max: 0, ..options(Goal::Files) };
    let (plan, _) = planned(&model, &wanted);
    assert_eq!((plan.left.len(), plan.growth_left_bytes), (0, 0));
    let (layout, image) = (model.layout(), image_of(&model));
    let (present, _) = replay(&model, &in_image_units(&layout, &image, 1 << 30, plan.clone()).unwrap());
    let more_bytes = (present.len() - stored_units(&model).len()) as u64 * UNIT * CLUSTER;
    assert!(more_bytes > UNIT * CLUSTER);
    let fitting = in_image_units(&layout, &image, more_bytes, plan.clone()).unwrap();
    assert_eq!((fitting.more_places_bytes, plan.more_places_bytes), (more_bytes, 0));
    assert!(in_image_units(&layout, &image, more_bytes - 1, plan).is_none());
}
