//! Where files should lie, and the moves that bring them there.
//!
//! Facts are a [`Layout`]: all streams of a volume, what of them may move, what is free, and which of that its container
//! already holds. Two planners share it: one for volumes changed in place, in batches each of which leaves a whole
//! volume; one for volumes written anew, where everything may move at once.
//!
//! Rooms import downwards alone, and so do the files of a room:
//!
//! ```text
//! goals    pack, free, exchange -> files; units; anchored
//!   |
//! moves    give_back -> clear -> ways, widen; roll -> widen -> aside; slide; shift
//!   |
//! state    cells -> work -> space -> spans -> layout; work -> figures; units; effort; first_fit
//!   |
//! plan     what is asked for, and what is answered
//! ```
//!
//! `schedule` lays a plan that counts no growth over batches that do, and `image_units` one that counts what the host stores over an image. [`packed`], the second planner, stands on `state` as `moves` does.
//!
//! No I/O, no clock, no threads: the same facts and options give the same plan.

mod goals;
mod image_units;
mod moves;
mod packed;
mod plan;
mod schedule;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use block::Result;
use filesystem::FileId;

use goals::exchange::Packing;
use goals::{anchored, exchange, files, free, pack, units};
use moves::give_back;
use state::{Growth, Storage, Work};

pub use image_units::{ImageUnits, in_image_units};
pub use packed::{Packed, plan_packed};
pub use plan::{
    Backing, BackingMap, DefragOptions, DefragPlan, Emptied, Goal, Hints, LayoutFigures, Unmet, WhyLeft,
    WhyUnmet,
};
pub use state::{BrokenLayout, Layout};

/// Where too much of a growth would be left in the end, so many times less is tried next.
const GROWTH_STEP: u64 = 4;

/// One plan, whatever it leaves.
type PlanOnce = fn(&Layout, &DefragOptions, &Hints<'_>, Storage) -> Result<DefragPlan>;

/// So few of the files in pieces, one part in so many, are worth bringing free space together for.
const FEW_PART: usize = 8;

/// The same in files: for each of them all that lies on the volume is looked at.
const FEW_MAX: usize = 16;

/// A free extent that lacks less than one part in so many of the largest that could be had is as good.
const AS_GOOD_PART: u64 = 8;

/// Plans a change in place. `Corrupt` if two things share a place of the volume.
pub fn plan_in_place(layout: &Layout, options: &DefragOptions, hints: &Hints<'_>) -> Result<DefragPlan> {
    layout.check()?;
    match options.goal {
        Goal::Files | Goal::Units => plan_all(layout, options, hints, None),
        Goal::Free | Goal::Pack => plan_or_files(layout, options, hints),
    }
}

/// The plan that [`plan_in_place`] tries first for [`Goal::Files`], which is found soon; none if it leaves a file that could be reached, or for
/// another goal.
pub fn plan_soon(layout: &Layout, options: &DefragOptions, hints: &Hints<'_>) -> Result<Option<DefragPlan>> {
    layout.check()?;
    if options.goal != Goal::Files {
        return Ok(None);
    }
    Ok(Some(plan_sparing(layout, options, hints, plan_once)?).filter(DefragPlan::is_complete))
}

/// A plan for the goal; or for files alone, and why the goal is out of reach.
fn plan_or_files(layout: &Layout, options: &DefragOptions, hints: &Hints<'_>) -> Result<DefragPlan> {
    let plan_files = || plan_all(layout, &DefragOptions { goal: Goal::Files, ..*options }, hints, None);
    // What more is asked for must not leave more in pieces, and free space is no less whole than it is without asking for it.
    let files = if options.goal == Goal::Free { Some(plan_files()?) } else { None };
    let plan = plan_all(layout, options, hints, files.as_ref())?;
    let serves = free::serves(&plan, options.goal);
    if serves && plan.is_complete() {
        return Ok(plan);
    }
    let files = files.map_or_else(plan_files, Ok)?;
    let why = match serves {
        true if plan.after.fragments <= files.after.fragments => return Ok(plan),
        true => WhyUnmet::Files,
        false => why_unmet(layout, options, hints)?,
    };
    let unmet = Unmet { would_be: plan.after, movable_free_bytes: plan.movable_free_bytes, why };
    Ok(DefragPlan { unmet: Some(unmet), ..files })
}

/// The bound that a goal meets which no plan reaches: how a plan fails that counts no growth.
fn why_unmet(layout: &Layout, options: &DefragOptions, hints: &Hints<'_>) -> Result<WhyUnmet> {
    if !layout.is_thin() {
        return Ok(WhyUnmet::NoRoom);
    }
    let mut plan = plan_once(layout, options, hints, Storage::Ignored)?;
    if options.goal == Goal::Free && !free::serves(&plan, options.goal) {
        plan = plan_sorted(layout, options, hints, Storage::Ignored)?;
    }
    if !free::serves(&plan, options.goal) {
        return Ok(WhyUnmet::NoRoom);
    }
    let (bytes_max, left_bytes_max) = (options.growth_bytes_max, options.growth_left_bytes_max);
    Ok(match needed_growth(layout, options, &plan)? {
        Some(needed_bytes) => WhyUnmet::Growth { bytes_max, needed_bytes },
        None => WhyUnmet::GrowthStays { left_bytes_max },
    })
}

/// How much growth meanwhile suffices for a plan that counts none, by doubling what there is. `None` if too much would stay however much
/// that is.
fn needed_growth(layout: &Layout, options: &DefragOptions, plan: &DefragPlan) -> Result<Option<u64>> {
    let mut growth_bytes_max = options.growth_bytes_max.max(options.unit_bytes);
    while growth_bytes_max < layout.end().get() {
        growth_bytes_max = growth_bytes_max.saturating_mul(2);
        let lavish = DefragOptions { growth_bytes_max, ..*options };
        if schedule::within_growth(layout, &lavish, plan)?.is_some() {
            return Ok(Some(growth_bytes_max));
        }
    }
    Ok(None)
}

/// Says of files that `plan` leaves for lack of room that the growth is the bound, where it is: where `ignoring`, which counts none, leaves them
/// not.
fn name_growth(
    layout: &Layout,
    options: &DefragOptions,
    ignoring: &DefragPlan,
    plan: &mut DefragPlan,
) -> Result<()> {
    let (bytes_max, left_bytes_max) = (options.growth_bytes_max, options.growth_left_bytes_max);
    // As much as is needed for a file by itself may be there, and yet not when all others have had theirs.
    let is_enough =
        |why: &WhyLeft| matches!(why, WhyLeft::Growth { needed_bytes, .. } if *needed_bytes <= bytes_max);
    let left: BTreeSet<_> = ignoring.left.iter().map(|(file, _)| *file).collect();
    for (_, why) in plan.left.iter_mut().filter(|(file, why)| is_enough(why) && left.contains(file)) {
        *why = WhyLeft::NoRoom;
    }
    let is_for_growth =
        |file: &FileId, why: &WhyLeft| (*why == WhyLeft::NoRoom || is_enough(why)) && !left.contains(file);
    if !plan.left.iter().any(|(file, why)| is_for_growth(file, why)) {
        return Ok(());
    }
    let bound = match needed_growth(layout, options, ignoring)? {
        Some(needed_bytes) => WhyLeft::Growth { bytes_max, needed_bytes },
        None => WhyLeft::GrowthStays { left_bytes_max },
    };
    let named = plan.left.iter_mut().filter(|(file, why)| is_for_growth(file, why));
    named.for_each(|(_, why)| *why = bound.clone());
    Ok(())
}

/// The plan that does the most for the goal, or `without` it, if that is no worse.
fn plan_all(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
    without: Option<&DefragPlan>,
) -> Result<DefragPlan> {
    let sparing = plan_sparing(layout, options, hints, plan_once)?;
    let is_thin = layout.is_thin() && options.growth_bytes_max > 0;
    let is_enough = match options.goal {
        Goal::Files => sparing.is_complete(),
        Goal::Free => !is_thin && sparing.is_complete() && free::is_together(&sparing),
        Goal::Pack => !is_thin,
        Goal::Units => true,
    };
    if is_enough {
        return Ok(sparing);
    }
    let ignoring = if is_thin { Some(plan_once(layout, options, hints, Storage::Ignored)?) } else { None };
    let mut plans = Vec::new();
    if let Some(ignoring) = &ignoring {
        plans.extend(plan_lavish(layout, options, hints, ignoring, plan_once)?);
    }
    plans.push(sparing);
    if options.goal != Goal::Pack && !plans.iter().any(DefragPlan::is_complete) {
        plans.extend(plan_exchange(layout, options, hints, Packing::Never)?);
        if is_thin && !plans.iter().any(DefragPlan::is_complete) {
            plans.extend(plan_lavish_exchange(layout, options, hints)?);
        }
        if is_thin && !plans.iter().any(DefragPlan::is_complete) {
            plans.extend(plan_exchange(layout, options, hints, Packing::Allowed)?);
        }
    }
    if options.goal == Goal::Files {
        let mut plan = best(plans, |plan| (plan.left.len(), plan.after.fragments, plan.moved_bytes));
        if let Some(ignoring) = &ignoring {
            name_growth(layout, options, ignoring, &mut plan)?;
        }
        return Ok(plan);
    }
    let is_reached = |plan: &DefragPlan| plan.is_complete() && free::is_together(plan);
    if options.goal == Goal::Free && !plans.iter().any(is_reached) {
        // What is sorted leaves the free space together, but for a little.
        if is_thin {
            let ignoring = plan_sorted(layout, options, hints, Storage::Ignored)?;
            plans.extend(plan_lavish(layout, options, hints, &ignoring, plan_sorted)?);
        }
        plans.push(plan_sparing(layout, options, hints, plan_sorted)?);
    }
    let largest = |plan: &DefragPlan| plan.after.largest_free_extent_bytes;
    let least = without.map_or(0, largest);
    plans.extend(without.cloned());
    // A plan that leaves more in pieces is no measure.
    let fewest = plans.iter().map(|plan| plan.after.fragments).min();
    let most =
        plans.iter().filter(|plan| Some(plan.after.fragments) == fewest).map(largest).max().unwrap_or(0);
    let is_scattered = |plan: &DefragPlan| largest(plan) < least.max(most - most / AS_GOOD_PART);
    // Of plans that sort, the one with more room sorts better.
    let of_free = |plan: &DefragPlan| match options.goal {
        Goal::Free => (!free::is_together(plan), plan.moved_bytes),
        _ => (false, 0),
    };
    Ok(best(plans, |plan| {
        let (is_apart, moved_bytes) = of_free(plan);
        (plan.after.fragments, is_scattered(plan), is_apart, moved_bytes)
    }))
}

/// The first of those of which `rank` says the least.
fn best<R: Ord>(plans: Vec<DefragPlan>, rank: impl Fn(&DefragPlan) -> R) -> DefragPlan {
    plans.into_iter().min_by_key(rank).expect("there is at least one plan")
}

/// Plans as if the container held all that is free, as `ignoring` does; what it does not is taken and given back a little at a time. No plan if
/// that does not fit the limits.
fn plan_lavish(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
    ignoring: &DefragPlan,
    plan_once: PlanOnce,
) -> Result<Option<DefragPlan>> {
    if let Some(plan) = schedule::within_growth(layout, options, ignoring)? {
        return Ok(Some(plan));
    }
    let in_steps = plan_once(layout, options, hints, Storage::InSteps)?;
    let plan = schedule::within_growth(layout, options, &in_steps)?;
    if plan.is_some() || options.goal != Goal::Files {
        return Ok(plan);
    }
    // Free space in few pieces has fewer units of which only a part is needed.
    let mut work = Work::new(layout, options, hints, Storage::InSteps);
    files::counting_room(&mut work, |work| {
        files::gather(work)?;
        free::consolidate_and_gather(work)?;
        files::place_left(work, Growth::Limited)
    })?;
    schedule::within_growth(layout, options, &finish(work, options)?)
}

/// Plans with streams that exchange places. No plan if too much of the growth would be left in the end.
fn plan_exchange(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
    packing: Packing,
) -> Result<Option<DefragPlan>> {
    let mut plan = plan_exchange_once(layout, options, hints, Storage::Counted, packing)?;
    let (growth_max, left_max) = (options.growth_bytes_max, options.growth_left_bytes_max);
    plan.left.iter_mut().for_each(|(_, why)| why.stays(growth_max, left_max));
    Ok((plan.growth_left_bytes <= left_max).then_some(plan))
}

/// The same as if the container held all that is free. No plan if that does not fit the limits.
fn plan_lavish_exchange(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
) -> Result<Option<DefragPlan>> {
    for storage in [Storage::Ignored, Storage::InSteps] {
        let plan = plan_exchange_once(layout, options, hints, storage, Packing::Never)?;
        let plan = schedule::within_growth(layout, options, &plan)?;
        if plan.is_some() {
            return Ok(plan);
        }
    }
    Ok(None)
}

fn plan_exchange_once(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
    storage: Storage,
    packing: Packing,
) -> Result<DefragPlan> {
    let mut work = Work::new(layout, options, hints, storage);
    let fragmented_count = work.fragmented().len();
    files::counting_room(&mut work, |work| {
        exchange::gather(work, options, packing)?;
        let few = fragmented_count.div_ceil(FEW_PART).min(FEW_MAX);
        if (1..=few).contains(&work.fragmented().len()) { place_last(work, options) } else { Ok(()) }
    })?;
    if options.goal == Goal::Free {
        free::consolidate_and_gather(&mut work)?;
    }
    finish(work, options)
}

/// Places the last few that are in pieces a step at a time: in what is free, in what others are shifted for, or in free space that comes together for
/// them; if the container is no larger for it than it may be.
fn place_last(work: &mut Work<'_>, options: &DefragOptions) -> Result<()> {
    let ways: [fn(&mut Work<'_>) -> Result<()>; 3] =
        [|_| Ok(()), files::shift_for_left, free::consolidate_and_gather];
    for make_room in ways {
        let mut trial = work.clone();
        make_room(&mut trial)?;
        files::place_in_steps(&mut trial)?;
        if trial.fragmented().len() < work.fragmented().len() && exchange::fits(&trial, options) {
            *work = trial;
        }
    }
    exchange::trim(work, options);
    Ok(())
}

/// Plans with what the container holds, and with growth where that is not enough.
fn plan_sparing(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
    plan_once: PlanOnce,
) -> Result<DefragPlan> {
    let left_max = options.growth_left_bytes_max;
    let wanted = options.growth_bytes_max;
    let mut options = *options;
    loop {
        let mut plan = plan_once(layout, &options, hints, Storage::Counted)?;
        // What may be left may be taken.
        if plan.growth_left_bytes <= left_max || options.growth_bytes_max <= left_max {
            if options.growth_bytes_max < wanted {
                plan.left.iter_mut().for_each(|(_, why)| why.stays(wanted, left_max));
            }
            return Ok(plan);
        }
        options.growth_bytes_max = (options.growth_bytes_max / GROWTH_STEP).max(left_max);
    }
}

fn plan_once(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
    storage: Storage,
) -> Result<DefragPlan> {
    let mut work = Work::new(layout, options, hints, storage);
    match options.goal {
        Goal::Files => files::counting_room(&mut work, |work| gather_and_give_back(work, options))?,
        Goal::Free => {
            files::gather(&mut work)?;
            free::consolidate_and_gather(&mut work)?;
        }
        Goal::Units => units::empty_units(&mut work, options)?,
        Goal::Pack => {
            pack::sort_and_gather(&mut work)?;
            // Where much is not allocated there was little room to sort in.
            if work.space.is_mostly_thin() || !work.fragmented().is_empty() {
                free::consolidate_and_gather(&mut work)?;
            }
        }
    }
    finish(work, options)
}

/// Sorts everything, and brings together what is free then.
fn plan_sorted(
    layout: &Layout,
    options: &DefragOptions,
    hints: &Hints<'_>,
    storage: Storage,
) -> Result<DefragPlan> {
    let mut work = Work::new(layout, options, hints, storage);
    pack::sort_and_gather(&mut work)?;
    work.unlock();
    free::consolidate_and_gather(&mut work)?;
    finish(work, options)
}

/// Brings files together as far as the container may grow, has it shrink again, and so on.
fn gather_and_give_back(work: &mut Work<'_>, options: &DefragOptions) -> Result<()> {
    let mut left = usize::MAX;
    loop {
        files::gather(work)?;
        let is_larger = work.space.growth_bytes() > options.growth_left_bytes_max;
        give_back(work, options)?;
        let before = std::mem::replace(&mut left, work.fragmented().len());
        if !is_larger || left == 0 || left >= before {
            return Ok(());
        }
    }
}

fn finish(mut work: Work<'_>, options: &DefragOptions) -> Result<DefragPlan> {
    if options.moves_anchored {
        anchored::gather(&mut work)?;
    }
    work.close()?;
    if options.goal == Goal::Files {
        // Giving back leaves free space elsewhere than before, which may hold another.
        files::place_again(&mut work, Growth::Never)?;
    }
    if options.goal == Goal::Pack {
        // What was sorted stayed from then on, but need not.
        work.unlock();
    }
    let movable_free_bytes = free::movable_bytes(&work);
    Ok(work.finish(movable_free_bytes))
}
