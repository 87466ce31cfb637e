//! Units of the container that hold little are emptied into those that stay, so that the container can give them back.
//!
//! A *unit* is what the container allocates at once. One that holds something that stays remains, and so does one that holds
//! parts of what cannot go anywhere. Of the others those with the least in them for what they hold are chosen, as many as
//! the free space of the rest could take; then, one after the other, each is emptied:
//! 1. what lies in it goes, largest first, to the tightest free extent of the units that remain. A unit for which something
//!    does not fit stays as it was, and others may go there;
//! 2. where the free space of those is in too small pieces, a unit that is free takes what is in several others.
//!
//! Invariants:
//! - nothing goes to what the container does not hold, nor to a unit that is or becomes free, but by rule 2;
//! - whole runs move, so that no stream is in more of them than before, and each once in a round;
//! - every step moves fewer bytes than it frees; a unit that is filled again counts against what filling it frees.
//!
//! Absent on purpose: putting fragments together; units of which a part lies outside of the volume: what is there is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use block::Result;
use extent::VolumeSpan;

use crate::defrag::plan::DefragOptions;
use crate::defrag::state::{Effort, Growth, Run, Units, Work};

/// Units that stayed are looked at again this often, with what others left.
const ROUNDS_MAX: usize = 4;

/// For one free unit so many others are looked at that could go there.
const LOOKED_AT_MAX: usize = 256;

/// Extents that are looked at: about a second.
const EFFORT_MAX: u64 = 4_000_000;

/// Empties units as long as that frees more than it moves.
pub(crate) fn empty_units(work: &mut Work<'_>, options: &DefragOptions) -> Result<()> {
    let units = Units::new(work.layout, options);
    let mut emptying = Emptying {
        work,
        units,
        chosen: BTreeMap::new(),
        spares: Vec::new(),
        effort: Effort::new(EFFORT_MAX),
        is_sorted_out: false,
    };
    for _ in 0..ROUNDS_MAX {
        let mut has_emptied = emptying.empty_into_gaps()?;
        has_emptied |= emptying.empty_into_spares()?;
        if !has_emptied {
            break;
        }
    }
    emptying.work.close()
}

/// A unit in which nothing has to stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unit {
    number: u64,
    span: VolumeSpan,
    /// What the container holds of it, and would give back.
    held_bytes: u64,
    /// What of that has to move away first.
    used_bytes: u64,
    /// What of it could take something instead.
    free_bytes: u64,
}

impl Unit {
    /// Used bytes, as a part of what is held; without units to be compared with.
    fn fill(&self) -> u128 {
        (u128::from(self.used_bytes) << 64) / u128::from(self.held_bytes.max(1))
    }
}

/// Runs, and the places that were taken for them.
struct Placed {
    /// What moves, where to, and what of that is not stored then.
    runs: Vec<(Run, VolumeSpan, Vec<VolumeSpan>)>,
    /// The places that are in units that stay, and not in a spare one.
    in_gaps: Vec<VolumeSpan>,
}

/// A unit with what leaves it.
struct Leaving {
    unit: Unit,
    /// What was free in the unit.
    parts: Vec<VolumeSpan>,
    placed: Placed,
}

struct Emptying<'w, 'a> {
    work: &'w mut Work<'a>,
    units: Units,
    /// Units that are to be emptied, with what was free in them; nothing goes there.
    chosen: BTreeMap<u64, (Unit, Vec<VolumeSpan>)>,
    /// Units that are free and held in full; nothing goes there but by rule 2.
    spares: Vec<Range<u64>>,
    effort: Effort,
    is_sorted_out: bool,
}

impl Emptying<'_, '_> {
    /// Chooses units and empties each into the free space of those that stay. Whether any became empty.
    fn empty_into_gaps(&mut self) -> Result<bool> {
        let mut has_emptied = false;
        for _ in 0..ROUNDS_MAX {
            let candidates = self.candidates();
            let count = self.count_that_fits(&candidates);
            let chosen = &candidates[..count];
            for unit in chosen {
                let parts = self.work.reserve(unit.span);
                self.chosen.insert(unit.number, (*unit, parts));
            }
            let mut has_emptied_now = false;
            for unit in chosen {
                // Another one took it along.
                let Some((unit, parts)) = self.chosen.remove(&unit.number) else { continue };
                if self.empty(unit)? {
                    has_emptied_now = true;
                } else {
                    self.work.unreserve(unit.span, &parts);
                }
            }
            self.work.close()?;
            has_emptied |= has_emptied_now;
            if !has_emptied_now {
                break;
            }
        }
        Ok(has_emptied)
    }

    /// Units that could be emptied, those with the least in them first. What is free already is kept from being filled.
    fn candidates(&mut self) -> Vec<Unit> {
        let mut partial: Vec<u64> = Vec::new();
        let mut free: Vec<Range<u64>> = Vec::new();
        for span in self.work.space.held().iter() {
            let numbers = self.units.numbers(span);
            let (first, last) = (numbers.start, numbers.end - 1);
            for number in [first, last] {
                if partial.last() != Some(&number) {
                    partial.push(number);
                }
            }
            if last > first + 1 {
                free.push(first + 1..last);
            }
        }
        let mut candidates = Vec::new();
        for number in partial {
            match self.look_at(number) {
                Some(unit) if unit.used_bytes > 0 => candidates.push(unit),
                Some(unit) => free.push(unit.number..unit.number + 1),
                None => {}
            }
        }
        for numbers in free {
            self.keep_free(numbers);
        }
        self.is_sorted_out = true;
        // Of equals the last first: the front of the volume, where most lies, stays.
        candidates.sort_by_key(|unit| (unit.fill(), std::cmp::Reverse(unit.number)));
        candidates
    }

    /// Keeps free units from being filled. What is found so after the first time was emptied along with others.
    fn keep_free(&mut self, numbers: Range<u64>) {
        let span = self.units.span(numbers.clone());
        let free_bytes = self.work.space.held().bytes_within(span);
        self.work.reserve(span);
        if self.is_sorted_out && self.units.is_whole(numbers.start) {
            let held = self.units.allocated.within(span);
            self.work.emptied.bytes += held.map(|held| held.len_bytes()).sum::<u64>();
            self.work.emptied.units += numbers.end - numbers.start;
        }
        if free_bytes == (numbers.end - numbers.start).saturating_mul(self.units.unit_bytes) {
            self.spares.push(numbers);
        }
    }

    /// A unit as it is by now; `None` if something in it stays. One that lies on the volume in part is as good as free if
    /// nothing of it is used there.
    fn look_at(&self, number: u64) -> Option<Unit> {
        let span = self.units.span(number..number + 1);
        let mut unit = Unit { number, span, held_bytes: 0, used_bytes: 0, free_bytes: 0 };
        if self.units.fixed.within(span).next().is_some() {
            return None;
        }
        for part in self.units.allocated.within(span) {
            let used =
                self.work.extents_within(part).filter_map(|extent| self.work.span(extent).intersect(&part));
            let used_bytes = used.map(|used| used.len_bytes()).sum::<u64>();
            if used_bytes + self.work.space.free().bytes_within(part) < part.len_bytes() {
                return None;
            }
            unit.used_bytes += used_bytes;
            unit.held_bytes += part.len_bytes();
        }
        unit.free_bytes = self.work.space.held().bytes_within(span);
        (unit.used_bytes == 0 || self.units.is_whole(number)).then_some(unit)
    }

    /// How many of the first units the free space of all others could take, if it were in one piece.
    fn count_that_fits(&self, candidates: &[Unit]) -> usize {
        let (mut need, mut room) = (0, self.work.space.held().total_bytes());
        let fits = |unit: &&Unit| {
            need += unit.used_bytes;
            room -= unit.free_bytes;
            need <= room && unit.used_bytes < unit.held_bytes
        };
        candidates.iter().take_while(fits).count()
    }

    /// What has to leave a unit: runs, the largest first, but for those of `gone`. `None` if one fits nowhere, or if that takes too
    /// long to find out.
    fn runs_in(&mut self, span: VolumeSpan, longest_bytes: u64, gone: &BTreeSet<usize>) -> Option<Vec<Run>> {
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        let mut runs = Vec::new();
        for part in self.units.allocated.within(span) {
            for extent in self.work.extents_within(part) {
                if seen.contains(&extent) {
                    continue;
                }
                let run = self.work.moving_with(extent);
                let looked_at = run.extents.len() as u64;
                if run.bytes > longest_bytes || !self.effort.spend(looked_at) {
                    return None;
                }
                seen.extend(run.extents.clone());
                if !gone.contains(&run.extents.start) {
                    runs.push(run);
                }
            }
        }
        runs.sort_by_key(|run| (std::cmp::Reverse(run.bytes), run.extents.start));
        Some(runs)
    }

    fn longest_gap(&self) -> u64 {
        self.work.space.held().largest().map_or(0, |span| span.len_bytes())
    }

    /// Empties a unit that was chosen. `false`, and nothing moved, if that cannot be done or does not pay.
    fn empty(&mut self, unit: Unit) -> Result<bool> {
        let longest = self.longest_gap();
        let Some(runs) = self.runs_in(unit.span, longest, &BTreeSet::new()) else { return Ok(false) };
        let others = self.emptied_along(unit, &runs);
        let moved_bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        let freed_bytes = others.iter().map(|other| other.held_bytes).sum::<u64>() + unit.held_bytes;
        if moved_bytes >= freed_bytes {
            return Ok(false);
        }
        let mut kept = Vec::new();
        for other in others.iter().filter(|other| !self.chosen.contains_key(&other.number)) {
            kept.push((other.span, self.work.reserve(other.span)));
        }
        let Some(placed) = self.find_places(runs, None) else {
            kept.into_iter().for_each(|(span, parts)| self.work.unreserve(span, &parts));
            return Ok(false);
        };
        for other in &others {
            self.chosen.remove(&other.number);
        }
        self.carry_out(placed)?;
        others.into_iter().chain([unit]).for_each(|unit| self.count_emptied(unit));
        Ok(true)
    }

    /// Other units in which nothing is left once `runs` moved.
    fn emptied_along(&self, unit: Unit, runs: &[Run]) -> Vec<Unit> {
        let moving: BTreeSet<usize> = runs.iter().map(|run| run.extents.start).collect();
        let spans = runs.iter().flat_map(|run| run.extents.clone()).map(|extent| self.work.span(extent));
        let touched: BTreeSet<u64> = spans.flat_map(|span| self.units.numbers(span)).collect();
        let is_emptied = |other: &Unit| {
            let parts = self.units.allocated.within(other.span);
            let mut extents = parts.flat_map(|part| self.work.extents_within(part));
            extents.all(|extent| moving.contains(&self.work.moving_with(extent).extents.start))
        };
        let known = |number: u64| match self.chosen.get(&number) {
            Some((other, _)) => Some(*other),
            None => self.look_at(number),
        };
        let others = touched.into_iter().filter(|number| *number != unit.number).filter_map(known);
        others.filter(|other| other.used_bytes > 0 && is_emptied(other)).collect()
    }

    /// Takes a place for each run: the tightest in what stays, else the next in `spare`. `None`, and nothing is taken, if one does
    /// not fit.
    fn find_places(&mut self, runs: Vec<Run>, mut spare: Option<&mut VolumeSpan>) -> Option<Placed> {
        let spare_before = spare.as_deref().copied();
        let mut placed = Placed { runs: Vec::with_capacity(runs.len()), in_gaps: Vec::new() };
        for run in runs {
            if let Some(place) = self.work.space.find(run.bytes, Growth::Never) {
                let holes = self.work.take(run.extents.clone(), place);
                placed.in_gaps.push(place);
                placed.runs.push((run, place, holes));
                continue;
            }
            match spare.as_deref_mut().filter(|rest| rest.len_bytes() >= run.bytes) {
                Some(rest) => {
                    let place = VolumeSpan::new(rest.start(), run.bytes);
                    *rest = VolumeSpan::between(place.end(), rest.end());
                    placed.runs.push((run, place, Vec::new()));
                }
                None => {
                    placed.in_gaps.into_iter().for_each(|place| self.work.space.give(place));
                    if let (Some(rest), Some(before)) = (spare, spare_before) {
                        *rest = before;
                    }
                    return None;
                }
            }
        }
        Some(placed)
    }

    fn carry_out(&mut self, placed: Placed) -> Result<()> {
        placed
            .runs
            .into_iter()
            .try_for_each(|(run, place, holes)| self.work.move_to_taken(run.extents, place.start(), &holes))
    }

    /// Nothing is in a unit any more. It stays reserved, and is a spare one once the batch was closed.
    fn count_emptied(&mut self, unit: Unit) {
        self.work.emptied.units += 1;
        self.work.emptied.bytes += unit.held_bytes;
        if unit.held_bytes == self.units.unit_bytes {
            self.spares.push(unit.number..unit.number + 1);
        }
    }

    /// Fills free units with what is in several others each, as long as that pays. Whether any became empty.
    fn empty_into_spares(&mut self) -> Result<bool> {
        let mut candidates = self.candidates();
        let mut has_emptied = false;
        while let Some(spare) = self.take_spare() {
            let unit = self.units.span(spare..spare + 1);
            if !self.fill(unit, &mut candidates)? {
                self.spares.push(spare..spare + 1);
                break;
            }
            has_emptied = true;
        }
        self.work.close()?;
        Ok(has_emptied)
    }

    fn take_spare(&mut self) -> Option<u64> {
        let mut numbers = self.spares.pop()?;
        let first = numbers.next();
        if !numbers.is_empty() {
            self.spares.push(numbers);
        }
        first
    }

    /// Moves what is in the first of `candidates` into `spare`, with the gaps' help. Whether that paid; nothing moved if not.
    fn fill(&mut self, spare: VolumeSpan, candidates: &mut Vec<Unit>) -> Result<bool> {
        let mut rest = spare;
        let mut all: Vec<Leaving> = Vec::new();
        let mut gone = BTreeSet::new();
        for candidate in candidates.iter().take(LOOKED_AT_MAX) {
            if rest.len_bytes() < self.work.layout.cluster_bytes() {
                break;
            }
            // Something may have come there since.
            let Some(unit) = self.look_at(candidate.number).filter(|unit| unit.used_bytes > 0) else {
                continue;
            };
            let longest = self.longest_gap().max(rest.len_bytes());
            let Some(runs) = self.runs_in(unit.span, longest, &gone) else { continue };
            let moved_bytes: u64 = runs.iter().map(|run| run.bytes).sum();
            let starts: Vec<usize> = runs.iter().map(|run| run.extents.start).collect();
            let is_busy =
                runs.iter().flat_map(|run| run.extents.clone()).any(|extent| self.work.is_in_batch(extent));
            if moved_bytes >= unit.held_bytes || is_busy {
                continue;
            }
            let parts = self.work.reserve(unit.span);
            match self.find_places(runs, Some(&mut rest)) {
                Some(placed) => {
                    gone.extend(starts);
                    all.push(Leaving { unit, parts, placed });
                }
                None => self.work.unreserve(unit.span, &parts),
            }
        }
        let freed_bytes: u64 = all.iter().map(|leaving| leaving.unit.held_bytes).sum();
        let moved_bytes: u64 =
            all.iter().flat_map(|leaving| &leaving.placed.runs).map(|(run, ..)| run.bytes).sum();
        if freed_bytes <= moved_bytes.saturating_add(spare.len_bytes()) {
            for leaving in all {
                leaving.placed.in_gaps.into_iter().for_each(|place| self.work.space.give(place));
                self.work.unreserve(leaving.unit.span, &leaving.parts);
            }
            return Ok(false);
        }
        // What was emptied a moment ago is free only once the batch is closed.
        self.work.close()?;
        self.work.claim(spare);
        if !rest.is_empty() {
            self.work.space.give(rest);
        }
        let numbers: BTreeSet<u64> = all.iter().map(|leaving| leaving.unit.number).collect();
        candidates.retain(|unit| !numbers.contains(&unit.number));
        for leaving in all {
            self.count_emptied(leaving.unit);
            self.carry_out(leaving.placed)?;
        }
        self.work.emptied.units -= 1;
        self.work.emptied.bytes -= spare.len_bytes();
        Ok(true)
    }
}
