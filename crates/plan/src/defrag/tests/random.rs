//! Random volumes.

use filesystem::{FileId, FileKind, Fragments};
use proptest::prelude::*;

use super::model::{CLUSTER, Cell, Model, Stream, options, planned};
use crate::defrag::*;

/// What a random volume is like.
#[derive(Clone, Debug)]
struct Kind {
    seed: u64,
    len: usize,
    fill_percent: u64,
    extents_max: u64,
    extent_len_max: u64,
    pinned_percent: u64,
    kept: u64,
    spans_holes: bool,
    fixed_percent: u64,
    thin_percent: u64,
    holes: u64,
}

fn any_kind() -> impl Strategy<Value = Kind> {
    let shape = (any::<u64>(), 40..400usize, 50..100u64, 1..8u64, 1..12u64);
    let rest = (
        0..20u64,
        0..6u64,
        any::<bool>(),
        prop::sample::select(vec![0, 0, 10]),
        prop::sample::select(vec![0, 0, 30]),
        prop::sample::select(vec![0, 0, 3, 20]),
    );
    (shape, rest).prop_map(|((seed, len, fill_percent, extents_max, extent_len_max), rest)| {
        let (pinned_percent, kept, spans_holes, fixed_percent, thin_percent, holes) = rest;
        Kind {
            seed,
            len,
            fill_percent,
            extents_max,
            extent_len_max,
            pinned_percent,
            kept,
            spans_holes,
            fixed_percent,
            thin_percent,
            holes,
        }
    })
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    fn is(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

impl Kind {
    fn model(&self) -> Model {
        let mut dice = Dice(self.seed);
        let mut model = Model::new(self.len);
        if self.spans_holes {
            model.rule = Fragments::as_filefrag();
        }
        for _ in 0..self.kept {
            let at = usize::try_from(dice.roll(self.len as u64 - 3)).unwrap();
            model.keep(at..at + 1 + usize::try_from(dice.roll(3)).unwrap());
        }
        let mut at = 0;
        while at < self.len {
            // Whole units, as containers have it.
            let unit = usize::try_from(self.unit_clusters()).unwrap();
            let skew = usize::try_from(self.skew_clusters()).unwrap();
            let end = at + 1 + usize::try_from(dice.roll(40)).unwrap();
            let end = ((end + skew).next_multiple_of(unit) - skew).min(self.len);
            if dice.is(self.fixed_percent) {
                model.backing[at..end].fill(Backing::Fixed);
            } else if dice.is(self.thin_percent) {
                model.backing[at..end].fill(Backing::Unallocated);
            }
            at = end;
        }
        for _ in 0..self.holes {
            let start = usize::try_from(dice.roll(self.len as u64)).unwrap();
            let end = start + 1 + usize::try_from(dice.roll(12)).unwrap();
            let those = model.backing[start..end.min(self.len)].iter_mut();
            those.filter(|at| **at == Backing::Allocated).for_each(|at| *at = Backing::Hole);
        }
        let free_goal = self.len as u64 * (100 - self.fill_percent) / 100;
        let mut file = 10;
        while model.free_runs().iter().map(|(_, len)| len).sum::<u64>() > free_goal {
            file += dice.roll(3);
            let extents = self.extents(&mut dice, &model);
            let kinds = [FileKind::Regular, FileKind::Regular, FileKind::Regular, FileKind::Directory];
            let stream = Stream {
                file,
                kind: kinds[usize::try_from(dice.roll(4)).unwrap()],
                is_main: !dice.is(10),
                pinned: dice.is(self.pinned_percent).then_some("a test says so"),
                moves_together: !self.spans_holes && dice.is(20),
                is_anchored: false,
                extents,
            };
            model.add_stream(stream);
        }
        model
    }

    fn extents(&self, dice: &mut Dice, model: &Model) -> Vec<(u64, u64, u64)> {
        let mut taken = model.clone();
        let mut extents: Vec<(u64, u64, u64)> = Vec::new();
        let mut logical = 0;
        for _ in 0..=dice.roll(self.extents_max) {
            let free = taken.free_runs();
            if free.is_empty() {
                break;
            }
            let hole = if dice.is(20) { 1 + dice.roll(4) } else { 0 };
            logical += hole;
            // Behind the piece before, as far behind it as the hole is large, or anywhere.
            let behind =
                extents.last().map(|(_, start, len)| start + len + if dice.is(50) { hole } else { 0 });
            let behind = behind.filter(|_| dice.is(40));
            let behind =
                behind.filter(|at| taken.cells.get(usize::try_from(*at).unwrap()) == Some(&Cell::Free));
            let run = free[usize::try_from(dice.roll(free.len() as u64)).unwrap()];
            let start = behind.unwrap_or(run.0 + dice.roll(run.1));
            let run = free.iter().find(|run| run.0 <= start && start < run.0 + run.1).unwrap();
            let len = (1 + dice.roll(self.extent_len_max)).min(run.0 + run.1 - start);
            (start..start + len).for_each(|at| taken.cells[usize::try_from(at).unwrap()] = Cell::Kept);
            extents.push((logical, start, len));
            logical += len;
        }
        extents
    }

    fn unit_clusters(&self) -> u64 {
        1 << (self.seed >> 30 & 3)
    }

    fn skew_clusters(&self) -> u64 {
        (self.seed >> 35) % self.unit_clusters()
    }

    fn growth_bytes_max(&self) -> u64 {
        (self.seed >> 20) % 40 * CLUSTER
    }
}

fn some_options(kind: &Kind, goal: Goal) -> DefragOptions {
    let batch_bytes_max = [1, 5, 1 << 20][usize::try_from(kind.seed % 3).unwrap()] * CLUSTER;
    DefragOptions {
        moves_holes: !kind.seed.is_multiple_of(4),
        goal,
        growth_bytes_max: kind.growth_bytes_max(),
        growth_left_bytes_max: [u64::MAX, 0, 3 * CLUSTER][usize::try_from(kind.seed >> 40).unwrap() % 3],
        unit_bytes: kind.unit_clusters() * CLUSTER,
        unit_skew_bytes: kind.skew_clusters() * CLUSTER,
        batch_bytes_max,
        moves_anchored: false,
    }
}

fn fragmented_movable_bytes(model: &Model) -> u64 {
    let movable = |stream: &usize| model.run_count(*stream) > 1 && !model.is_pinned(*stream, true);
    let streams = (0..model.streams.len()).filter(movable);
    streams.map(|stream| model.clusters_of(stream) * CLUSTER).sum()
}

/// Whether the goal is out of reach. If so nothing moves but what `files` moves; if not, there are no more fragments, and the free space
/// is in one piece.
fn is_unmet(plan: &DefragPlan, files: &DefragPlan, goal: Goal) -> bool {
    assert!(plan.after.fragments <= plan.before.fragments.min(files.after.fragments));
    // What is sorted has gaps.
    let enough = if goal == Goal::Pack { 85 } else { 95 };
    let is_together = |largest: u64, movable: u64| largest >= movable * enough / 100;
    let Some(unmet) = &plan.unmet else {
        assert!(is_together(plan.after.largest_free_extent_bytes, plan.movable_free_bytes));
        return false;
    };
    assert_eq!(&DefragPlan { unmet: None, ..plan.clone() }, files);
    let is_together = is_together(unmet.would_be.largest_free_extent_bytes, unmet.movable_free_bytes);
    assert!(!is_together || unmet.would_be.fragments > files.after.fragments);
    assert!(match unmet.why {
        WhyUnmet::Growth { bytes_max, needed_bytes } => needed_bytes > bytes_max,
        _ => true,
    });
    true
}

/// The longest stretch of the volume without anything that stays.
fn longest_region(model: &Model) -> u64 {
    let moves = |at: usize, cell| match cell {
        Cell::Free => model.backing[at] != Backing::Fixed,
        Cell::Kept => false,
        Cell::Data { stream, .. } => !model.is_pinned(stream, true),
    };
    model.runs_where(moves).into_iter().map(|(_, len)| len).max().unwrap_or(0)
}

/// The units that lie on the volume in full.
fn whole_units(model: &Model, options: &DefragOptions) -> Vec<std::ops::Range<usize>> {
    let at = |bytes: u64| usize::try_from(bytes / CLUSTER).unwrap();
    let (unit, skew) = (at(options.unit_bytes), at(options.unit_skew_bytes));
    let starts =
        (0..).map(|number| number * unit).skip_while(|start| *start < skew).map(|start| start - skew);
    starts.map(|start| start..start + unit).take_while(|range| range.end <= model.cells.len()).collect()
}

/// Units of which the container holds something, and that hold nothing; and how much it holds of them.
fn free_units(model: &Model, options: &DefragOptions) -> (u64, u64) {
    let held = |unit: &std::ops::Range<usize>| {
        let held = unit.clone().filter(|at| model.backing[*at] == Backing::Allocated);
        (held.clone().all(|at| model.cells[at] == Cell::Free), held.count() as u64 * CLUSTER)
    };
    let has_fixed = |unit: &std::ops::Range<usize>| model.backing[unit.clone()].contains(&Backing::Fixed);
    let units = whole_units(model, options);
    let held: Vec<_> = units.iter().filter(|unit| !has_fixed(unit)).map(held).collect();
    let free = held.into_iter().filter(|(is_free, held)| *is_free && *held > 0);
    free.fold((0, 0), |(units, bytes), (_, held)| (units + 1, bytes + held))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn files_are_whole_as_far_as_space_allows(kind in any_kind()) {
        let model = kind.model();
        let options = some_options(&kind, Goal::Files);
        let (plan, now) = planned(&model, &options);
        prop_assert!(plan.moved_bytes <= fragmented_movable_bytes(&model) + plan.made_room_bytes);
        let held = now.runs_where(|at, cell| cell == Cell::Free && now.backing[at] == Backing::Allocated);
        let largest = held.iter().map(|(_, len)| *len).max().unwrap_or(0);
        for stream in (0..now.streams.len()).filter(|stream| now.run_count(*stream) > 1) {
            prop_assert!(
                now.is_pinned(stream, true) || now.clusters_of(stream) > largest,
                "stream {} of {} clusters is left, {} are free in one piece", stream, now.clusters_of(stream), largest
            );
        }
    }

    #[test]
    fn free_space_is_consolidated_as_far_as_space_allows(kind in any_kind()) {
        let model = kind.model();
        let options = some_options(&kind, Goal::Free);
        let (files, whole) = planned(&model, &DefragOptions { goal: Goal::Files, ..options });
        let (plan, now) = planned(&model, &options);
        let largest_run = (0..whole.streams.len()).map(|stream| whole.clusters_of(stream)).max().unwrap_or(0);
        // Nothing slides past a sparse run whose pieces lie as far apart as its holes.
        let is_stored = kind.thin_percent == 0 && kind.holes == 0;
        let is_plain = is_stored
            && !kind.spans_holes
            && longest_region(&model) == model.cells.len() as u64;
        let is_in_reach = is_plain && files.after.largest_free_extent_bytes >= 2 * largest_run * CLUSTER;
        if is_unmet(&plan, &files, Goal::Free) {
            prop_assert!(!is_in_reach);
            return Ok(());
        }
        let usable = |at: usize, cell, model: &Model| cell == Cell::Free && model.backing[at] != Backing::Fixed;
        let largest = |model: &Model| {
            let free = model.runs_where(|at, cell| usable(at, cell, model));
            free.into_iter().map(|(_, len)| len).max()
        };
        // What came together after all took of it.
        let is_less_scattered = plan.left.len() < files.left.len() || plan.after.fragments < files.after.fragments;
        let as_good = largest(&whole).map(|len| len - len / AS_GOOD_PART);
        // The guest counts what the container keeps for others as free, too.
        let is_larger = plan.after.largest_free_extent_bytes >= files.after.largest_free_extent_bytes;
        prop_assert!(largest(&now) >= as_good || is_larger || is_less_scattered);
        prop_assert!(plan.after.fragments <= files.after.fragments);
        let free: u64 = now.free_runs().iter().map(|(_, len)| len).sum();
        if is_stored && plan.left.is_empty() {
            let again = plan_in_place(&now.layout(), &options, &Hints::default()).unwrap();
            let is_enough = plan.after.largest_free_extent_bytes >= plan.movable_free_bytes * 95 / 100;
            prop_assert!(again.batches.is_empty() || !is_enough, "{again:?}");
        }
        if is_in_reach {
            prop_assert!(plan.after.largest_free_extent_bytes >= free * CLUSTER * 95 / 100);
        }
    }

    #[test]
    fn units_are_emptied_for_less_than_they_free(kind in any_kind()) {
        let kind = Kind { fill_percent: 20 + kind.fill_percent / 2, ..kind };
        let model = kind.model();
        let options = some_options(&kind, Goal::Units);
        let (plan, now) = planned(&model, &options);
        let (units, bytes) = free_units(&model, &options);
        let (units_now, bytes_now) = free_units(&now, &options);
        prop_assert_eq!((units + plan.emptied.units, bytes + plan.emptied.bytes), (units_now, bytes_now));
        prop_assert!(plan.moved_bytes < plan.emptied.bytes || plan.batches.is_empty());
        prop_assert!(now.backing == model.backing, "nothing is allocated, and nothing given back");
        prop_assert_eq!(plan_in_place(&model.layout(), &options, &Hints::default()).unwrap(), plan);
    }

    #[test]
    fn what_is_small_and_movable_takes_as_few_units_as_it_can(kind in any_kind()) {
        let kind = Kind {
            fill_percent: kind.fill_percent - 40, extents_max: 1, extent_len_max: 1, pinned_percent: 0, kept: 0, fixed_percent: 0,
            thin_percent: 0, holes: 0, ..kind
        };
        let mut model = kind.model();
        model.streams.iter_mut().for_each(|stream| stream.moves_together = false);
        // Several runs of one stream may lie side by side, and then are one run.
        model.streams.iter_mut().for_each(|stream| assert!(stream.extents.len() <= 2));
        let options = some_options(&kind, Goal::Units);
        let (_, now) = planned(&model, &options);
        let used = now.cells.iter().filter(|cell| **cell != Cell::Free).count() as u64;
        let whole = whole_units(&now, &options);
        let taken = whole.iter().filter(|unit| now.cells[(*unit).clone()].iter().any(|cell| *cell != Cell::Free));
        let least = used.div_ceil(kind.unit_clusters());
        prop_assert!(taken.count() as u64 <= least + 1, "{least} units would do");
    }

    #[test]
    fn sorting_keeps_everything(kind in any_kind()) {
        let model = kind.model();
        let options = some_options(&kind, Goal::Pack);
        let layout = model.layout();
        let folder = |file: FileId| Some(FileId(file.0 % 5));
        let hints = Hints { folder: Some(&folder), home: None };
        let plan = plan_in_place(&layout, &options, &hints).unwrap();
        model.run(&plan, &options);
        let files = plan_in_place(&layout, &DefragOptions { goal: Goal::Files, ..options }, &hints).unwrap();
        is_unmet(&plan, &files, Goal::Pack);
        prop_assert_eq!(plan_in_place(&layout, &options, &hints).unwrap(), plan);
    }

    #[test]
    fn with_enough_room_all_is_sorted_and_stays_so(kind in any_kind()) {
        let len = 200 + kind.len;
        let kind = Kind { len, fill_percent: 50, pinned_percent: 0, kept: 0, fixed_percent: 0, thin_percent: 0, holes: 0, ..kind };
        let mut model = kind.model();
        // What moves together may be too large to get out of the way.
        model.streams.iter_mut().for_each(|stream| stream.moves_together = false);
        let options = some_options(&kind, Goal::Pack);
        let (plan, now) = planned(&model, &options);
        prop_assert!(plan.left.is_empty());
        let mut order: Vec<_> = (0..now.streams.len()).collect();
        order.sort_by_key(|stream| {
            let is_large = now.clusters_of(*stream) * CLUSTER > 256 << 10;
            let is_directory = now.streams[*stream].kind == FileKind::Directory;
            (!is_directory, !is_directory && is_large, *stream)
        });
        let places: Vec<_> = order.iter().map(|stream| now.streams[*stream].extents[0].1).collect();
        prop_assert!(places.is_sorted(), "{places:?}");
        let (again, _) = planned(&now, &options);
        prop_assert!(again.batches.is_empty());
    }

    #[test]
    fn a_volume_written_anew_has_all_in_one_piece(kind in any_kind()) {
        let model = kind.model();
        let layout = model.layout();
        let packed = plan_packed(&layout).unwrap();
        prop_assert_eq!(&plan_packed(&layout).unwrap(), &packed);
        let mut now = model.clone();
        now.apply(&packed.relocations, false);
        prop_assert_eq!(packed.before, model.figures());
        prop_assert_eq!(packed.after, now.figures());
        model.check_left(&packed.left, &now, false);
        for stream in 0..now.streams.len() {
            prop_assert!(now.run_count(stream) <= model.run_count(stream));
        }
        let has_pins = now.cells.contains(&Cell::Kept) || (0..now.streams.len()).any(|stream| now.is_pinned(stream, false));
        if !has_pins {
            prop_assert!(packed.left.is_empty());
            prop_assert!(packed.after.free_extents <= 1);
            let mut in_order: Vec<_> = (0..now.streams.len()).collect();
            in_order.sort_by_key(|stream| model.streams[*stream].extents[0].1);
            let places = in_order.iter().map(|stream| now.streams[*stream].extents[0].1);
            prop_assert!(places.is_sorted());
        }
    }

    #[test]
    fn plans_are_the_same_each_time(kind in any_kind()) {
        let model = kind.model();
        let home = |file: FileId| Some(super::model::span(file.0 % 30, 20));
        let hints = Hints { home: Some(&home), folder: None };
        for goal in [Goal::Files, Goal::Free] {
            let options = some_options(&kind, goal);
            let plan = plan_in_place(&model.layout(), &options, &hints).unwrap();
            model.run(&plan, &options);
            prop_assert_eq!(plan_in_place(&model.layout(), &options, &hints).unwrap(), plan);
        }
    }
}

#[test]
fn what_is_whole_and_free_stays() {
    let mut model = Model::new(100);
    model.add_dense(&[(0, 30)]);
    model.add_dense(&[(30, 20)]);
    for goal in [Goal::Files, Goal::Free, Goal::Pack] {
        let (plan, _) = planned(&model, &options(goal));
        assert!(plan.batches.is_empty(), "{plan:?}");
    }
    assert!(plan_packed(&model.layout()).unwrap().relocations.is_empty());
}
