//! What lies at the end of an image's file and goes down into gaps, so that the file can be cut off.
//!
//! Invariants:
//! - what moves comes from behind the file's new end, and goes to places before it that are free from the start: no more
//!   bytes move than the file gets shorter by;
//! - what goes keeps its order, so that neighbours on the virtual disk become neighbours in the file.
//!
//! Absent on purpose: laying out units anew where the file would not get shorter.

use block::{FileIndex, Occupancy, Occupant, Occupied, Run, RunState, UnitMove, push_run};
use extent::{ExtentSet, Host, HostOffset, HostSpan, Span, Virtual, VirtualOffset};

/// Moving takes so little time that any gain is worth it.
const MOVED_BYTES_ALWAYS: u64 = 32 << 20;
/// Above that, the file must get shorter by so many times what moves: holes give the storage back already.
const GAIN_MIN: u64 = 64;
/// What the host may need beyond the disk while units lie in two places.
const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;

/// Whether units move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveWhen {
    /// Where the file gets enough shorter for it.
    Pays,
    /// Wherever the file gets shorter.
    Possible,
    /// As little as makes the file so short, or what may move at most.
    Enough {
        /// The length that is short enough.
        length_bytes: u64,
        /// The most that may move.
        moved_bytes_max: u64,
    },
    /// Never.
    Never,
}

/// What to move, and what becomes of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShortenPlan {
    /// Moves, all of whose places are free before the first.
    pub moves: Vec<UnitMove>,
    /// Bytes of the file that move.
    pub moved_bytes: u64,
    /// The file's length afterwards.
    pub length_bytes: u64,
    /// Tables that nothing is left for.
    pub dropped: Vec<HostSpan>,
    /// Nothing more could be done.
    pub is_complete: bool,
}

/// What moved, by where it is now.
pub struct Moved {
    /// By where they went.
    moves: Vec<UnitMove>,
    slot_bytes: u64,
}

impl Moved {
    /// By `moves` of slots of `slot_bytes`.
    pub fn new(mut moves: Vec<UnitMove>, slot_bytes: u64) -> Self {
        moves.sort_unstable_by_key(|moved| moved.to);
        Self { moves, slot_bytes }
    }

    /// Adds `run` to `runs` as it was before anything moved.
    pub fn push_back(&self, run: &Run, runs: &mut Vec<Run>) {
        let RunState::Data { file: FileIndex(0), offset } = run.state else { return push_run(runs, *run) };
        let place: HostSpan = Span::new(offset, run.span.len_bytes());
        let part = |place: HostSpan, offset: HostOffset| {
            let start = run.span.start().plus(place.start().get() - run_start(run));
            Run::new(Span::new(start, place.len_bytes()), RunState::Data { file: FileIndex(0), offset })
        };
        let to = |moved: &UnitMove| Span::new(moved.to, moved.count * self.slot_bytes);
        let first = self.moves.partition_point(|moved| to(moved).end() <= place.start());
        let mut at = place.start();
        for moved in &self.moves[first..] {
            let Some(there) = to(moved).intersect(&place) else { break };
            push_run(runs, part(Span::between(at, there.start()), at));
            let before = moved.from.plus(there.start().get() - moved.to.get());
            push_run(runs, part(there, before));
            at = there.end();
        }
        push_run(runs, part(Span::between(at, place.end()), at));
    }
}

fn run_start(run: &Run) -> u64 {
    match run.state {
        RunState::Data { offset, .. } => offset.get(),
        _ => 0,
    }
}

/// What to move so that the file, of which nothing is released, is of `length_bytes` at most, or as short as `moved_bytes_max` make it.
///
/// Tables are left that count what is cut off, and those without a unit stay where they are: they go when the image is closed.
pub fn shorten_to(occupancy: &Occupancy, length_bytes: u64, moved_bytes_max: u64) -> Vec<UnitMove> {
    if occupancy.is_dense {
        return Vec::new();
    }
    let units = occupancy.movable.iter().filter_map(|run| match run.first {
        Occupant::Unit(first) => Some(Span::new(
            VirtualOffset::new(first * occupancy.unit_bytes),
            run.count * occupancy.unit_bytes,
        )),
        Occupant::Map(_) | Occupant::Counts(_) => None,
    });
    let kept: ExtentSet<Virtual> = units.collect();
    let counted = Occupancy { bytes_per_counts: None, ..occupancy.clone() };
    let plan = |occupancy: &Occupancy, when| shorten(occupancy, &ExtentSet::new(), &kept, 0, when);
    let without_units = plan(&counted, MoveWhen::Never).dropped.into_iter().collect();
    let occupancy = Occupancy { fixed: counted.fixed.union(&without_units), ..counted };
    plan(&occupancy, MoveWhen::Enough { length_bytes, moved_bytes_max }).moves
}

/// What is left of an image, in order of place.
struct Left<'a> {
    occupancy: &'a Occupancy,
    movable: Vec<Occupied>,
    fixed_end: HostOffset,
}

/// The best way to shorten a file.
#[derive(Clone, Copy)]
struct Cut {
    count: u64,
    end: HostOffset,
    is_deepest: bool,
}

/// What to move once the units that lie wholly in `released` are gone, and with them the tables without any unit in `kept`.
/// `freed_bytes` of the host's storage are free by then.
pub fn shorten(
    occupancy: &Occupancy,
    released: &ExtentSet<Virtual>,
    kept: &ExtentSet<Virtual>,
    freed_bytes: u64,
    when: MoveWhen,
) -> ShortenPlan {
    let mut left = Left::new(occupancy, released, kept);
    let is_too_large = occupancy.slot_bytes() > IN_FLIGHT_BYTES_MAX.max(freed_bytes);
    let when = if is_too_large { MoveWhen::Never } else { when };
    let mut cut = left.cut(when);
    // A table of counts for what is cut off goes with it, so more can be cut off than with it.
    while left.drop_counts(cut.end) {
        cut = left.cut(when);
    }
    let tables = occupancy.movable.iter().filter(|run| !matches!(run.first, Occupant::Unit(_)));
    let tables: ExtentSet<Host> = tables.map(|run| left.span(run)).collect();
    let rest: ExtentSet<Host> = left.movable.iter().map(|run| left.span(run)).collect();
    let dropped = tables.subtract(&rest).iter().collect();
    let moves = left.moves(cut.count);
    ShortenPlan {
        moved_bytes: cut.count * occupancy.slot_bytes(),
        moves,
        length_bytes: occupancy.length_behind(cut.end),
        dropped,
        is_complete: cut.is_deepest,
    }
}

impl<'a> Left<'a> {
    fn new(occupancy: &'a Occupancy, released: &ExtentSet<Virtual>, kept: &ExtentSet<Virtual>) -> Self {
        let unit_bytes = occupancy.unit_bytes;
        let units =
            |first: u64, count: u64| Span::new(VirtualOffset::new(first * unit_bytes), count * unit_bytes);
        let mut movable = Vec::new();
        for run in &occupancy.movable {
            match run.first {
                Occupant::Unit(first) => {
                    for part in released.invert(units(first, run.count)).iter() {
                        // The disk's last unit may end early.
                        let from = part.start().get().div_ceil(unit_bytes) - first;
                        let to = part.end().get().div_ceil(unit_bytes) - first;
                        push_part(&mut movable, run, from, to, occupancy.slot_bytes());
                    }
                }
                Occupant::Map(first) => {
                    let per_map = occupancy.units_per_map.unwrap_or(1);
                    for index in 0..run.count {
                        if kept.within(units((first + index) * per_map, per_map)).next().is_some() {
                            push_part(&mut movable, run, index, index + 1, occupancy.slot_bytes());
                        }
                    }
                }
                Occupant::Counts(_) => movable.push(*run),
            }
        }
        let fixed_end = occupancy.fixed.iter().last().map_or(HostOffset::ZERO, |span| span.end());
        Self { occupancy, movable, fixed_end }
    }

    fn span(&self, run: &Occupied) -> HostSpan {
        Span::new(run.at, run.count * self.occupancy.slot_bytes())
    }

    /// Where what is left ends.
    fn end(&self) -> HostOffset {
        let last = self.movable.last().map_or(HostOffset::ZERO, |run| {
            let last = run.at.plus((run.count - 1) * self.occupancy.slot_bytes());
            self.occupancy.slot(last).end()
        });
        last.max(self.fixed_end)
    }

    /// Drops tables of counts of nothing but what lies behind `end`; says whether there were any.
    fn drop_counts(&mut self, end: HostOffset) -> bool {
        let Some(per_table) = self.occupancy.bytes_per_counts else { return false };
        let slot_bytes = self.occupancy.slot_bytes();
        let mut is_any = false;
        let mut movable = Vec::with_capacity(self.movable.len());
        for run in &self.movable {
            let Occupant::Counts(first) = run.first else {
                movable.push(*run);
                continue;
            };
            for index in 0..run.count {
                if (first + index).saturating_mul(per_table) >= end.get() {
                    is_any = true;
                } else {
                    push_part(&mut movable, run, index, index + 1, slot_bytes);
                }
            }
        }
        self.movable = movable;
        is_any
    }

    /// Free slots, the lowest first.
    fn slots(&self) -> impl Iterator<Item = HostSpan> {
        let Occupancy { align_bytes, phase_bytes, slots_from, .. } = *self.occupancy;
        let movable = self.movable.iter().map(|run| self.span(run));
        let occupied: ExtentSet<Host> =
            movable.chain(self.occupancy.fixed.iter()).chain(self.occupancy.unusable.iter()).collect();
        let end = self.end().max(slots_from);
        let gaps = occupied.invert(Span::between(slots_from, end));
        let slot_bytes = self.occupancy.slot_bytes();
        let gaps: Vec<_> = gaps.iter().collect();
        gaps.into_iter().flat_map(move |gap| {
            let up = gap.start().get().saturating_sub(phase_bytes).next_multiple_of(align_bytes);
            let first = up + phase_bytes;
            let step = slot_bytes.next_multiple_of(align_bytes);
            let room = (gap.end().get() + step).saturating_sub(first + slot_bytes) / step;
            (0..room).map(move |index| Span::new(HostOffset::new(first + index * step), slot_bytes))
        })
    }

    /// Every movable slot, the highest first.
    fn highest_first(&self) -> impl Iterator<Item = HostSpan> {
        let slot_bytes = self.occupancy.slot_bytes();
        self.movable.iter().rev().flat_map(move |run| {
            (0..run.count).rev().map(move |index| self.occupancy.slot(run.at.plus(index * slot_bytes)))
        })
    }

    /// How many of the highest go down.
    fn cut(&self, when: MoveWhen) -> Cut {
        let unmoved = Cut { count: 0, end: self.end(), is_deepest: false };
        if when == MoveWhen::Never {
            return unmoved;
        }
        let length_before = self.occupancy.length_behind(unmoved.end);
        let gain = |cut: &Cut| length_before.saturating_sub(self.occupancy.length_behind(cut.end));
        let moved = |cut: &Cut| cut.count * self.occupancy.slot_bytes();
        let (mut deepest, mut cheap) = (unmoved, unmoved);
        let mut sources = self.highest_first().peekable();
        for slot in self.slots() {
            let Some(source) = sources.next() else { break };
            if slot.end() > source.start() || source.end() <= self.fixed_end || self.is_enough(&deepest, when)
            {
                break;
            }
            let below = sources.peek().map_or(HostOffset::ZERO, Span::end);
            let end = below.max(slot.end()).max(self.fixed_end);
            deepest = Cut { count: deepest.count + 1, end, is_deepest: false };
            if moved(&deepest).saturating_mul(GAIN_MIN) <= gain(&deepest) {
                cheap = deepest;
            }
        }
        let is_worth_it = match when {
            MoveWhen::Never => false,
            MoveWhen::Pays => moved(&deepest) <= MOVED_BYTES_ALWAYS || cheap.count == deepest.count,
            MoveWhen::Possible | MoveWhen::Enough { .. } => true,
        };
        match is_worth_it && moved(&deepest) <= gain(&deepest) {
            true => Cut { is_deepest: true, ..deepest },
            // What may have no gaps is moved as a whole, or not at all.
            false if self.occupancy.is_dense || when == MoveWhen::Possible => unmoved,
            false => cheap,
        }
    }

    fn is_enough(&self, cut: &Cut, when: MoveWhen) -> bool {
        let MoveWhen::Enough { length_bytes, moved_bytes_max } = when else { return false };
        self.occupancy.length_behind(cut.end) <= length_bytes
            || (cut.count + 1) * self.occupancy.slot_bytes() > moved_bytes_max
    }

    /// The moves of the highest `count`, in the order of what they are, into the lowest slots.
    fn moves(&self, count: u64) -> Vec<UnitMove> {
        let slot_bytes = self.occupancy.slot_bytes();
        let mut sources: Vec<Occupied> = Vec::new();
        let mut rest = count;
        for run in self.movable.iter().rev() {
            if rest == 0 {
                break;
            }
            let part = run.count.min(rest);
            push_part(&mut sources, run, run.count - part, run.count, slot_bytes);
            rest -= part;
        }
        sources.sort_unstable_by_key(|run| run.first);
        let each = sources.iter().flat_map(|run| {
            (0..run.count).map(move |index| (run.first.plus(index), run.at.plus(index * slot_bytes)))
        });
        let mut moves: Vec<UnitMove> = Vec::new();
        for ((who, from), slot) in each.zip(self.slots()) {
            let to = slot.start();
            let distance = |last: &UnitMove| last.count * slot_bytes;
            match moves.last_mut() {
                Some(last)
                    if last.first.plus(last.count) == who
                        && last.from.plus(distance(last)) == from
                        && last.to.plus(distance(last)) == to =>
                {
                    last.count += 1;
                }
                _ => moves.push(UnitMove { first: who, count: 1, from, to }),
            }
        }
        moves
    }
}

/// Those of `run` from number `from` up to `to`.
fn push_part(runs: &mut Vec<Occupied>, run: &Occupied, from: u64, to: u64, slot_bytes: u64) {
    if from >= to {
        return;
    }
    let part = Occupied { first: run.first.plus(from), count: to - from, at: run.at.plus(from * slot_bytes) };
    match runs.last_mut() {
        Some(last)
            if last.first.plus(last.count) == part.first
                && last.at.plus(last.count * slot_bytes) == part.at =>
        {
            last.count += part.count;
        }
        _ => runs.push(part),
    }
}

#[cfg(test)]
mod tests {
    use block::FileIndex;
    use proptest::prelude::*;

    use super::*;

    const SLOT: u64 = 4096;

    fn at(slot: u64) -> HostOffset {
        HostOffset::new(slot * SLOT)
    }

    /// A file of slots: `Some(who)` lies in each that is not free, `Some(None)` is fixed.
    fn occupancy(slots: &[Option<Option<Occupant>>]) -> Occupancy {
        let mut movable: Vec<Occupied> = Vec::new();
        let mut fixed = ExtentSet::new();
        for (number, slot) in (0..).zip(slots) {
            match slot {
                Some(Some(who)) => {
                    push_part(&mut movable, &Occupied { first: *who, count: 1, at: at(number) }, 0, 1, SLOT);
                }
                Some(None) => fixed.push(Span::new(at(number), SLOT)),
                None => {}
            }
        }
        Occupancy {
            unit_bytes: SLOT,
            head_bytes: 0,
            align_bytes: SLOT,
            phase_bytes: 0,
            slots_from: HostOffset::ZERO,
            movable,
            fixed,
            unusable: ExtentSet::new(),
            cut_off: None,
            units_per_map: Some(8),
            bytes_per_counts: None,
            length_multiple_bytes: SLOT,
            tail_bytes: 0,
            length_bytes: slots.len() as u64 * SLOT,
            is_dense: false,
        }
    }

    fn virtual_of(units: impl IntoIterator<Item = u64>) -> ExtentSet<Virtual> {
        units.into_iter().map(|unit| Span::new(VirtualOffset::new(unit * SLOT), SLOT)).collect()
    }

    fn units(slots: &[Option<Option<Occupant>>]) -> impl Iterator<Item = u64> {
        slots.iter().filter_map(|slot| match slot {
            Some(Some(Occupant::Unit(unit))) => Some(*unit),
            _ => None,
        })
    }

    const FIXED: Option<Option<Occupant>> = Some(None);

    fn unit(number: u64) -> Option<Option<Occupant>> {
        Some(Some(Occupant::Unit(number)))
    }

    #[test]
    fn what_lies_at_the_end_fills_gaps_in_its_own_order() {
        let slots = [FIXED, unit(9), None, unit(1), None, None, unit(5), unit(4), unit(6)];
        let shortening =
            shorten(&occupancy(&slots), &virtual_of([1]), &virtual_of([4, 5, 6, 9]), 0, MoveWhen::Pays);
        let moves: Vec<_> = shortening
            .moves
            .iter()
            .map(|moved| (moved.first, moved.count, moved.from.get() / SLOT, moved.to.get() / SLOT))
            .collect();
        let who = Occupant::Unit;
        assert_eq!(moves, [(who(4), 1, 7, 2), (who(5), 1, 6, 3), (who(6), 1, 8, 4)]);
        assert_eq!((shortening.moved_bytes, shortening.length_bytes), (3 * SLOT, 5 * SLOT));
        assert!(shortening.is_complete);
    }

    #[test]
    fn a_table_without_units_goes_and_others_move() {
        let map = |number| Some(Some(Occupant::Map(number)));
        let slots = [FIXED, unit(1), map(1), unit(8), map(0), None];
        let shortening = shorten(&occupancy(&slots), &virtual_of([8]), &virtual_of([1]), 0, MoveWhen::Pays);
        assert_eq!(shortening.dropped, [Span::new(at(2), SLOT)]);
        assert_eq!(
            shortening.moves,
            [UnitMove { first: Occupant::Map(0), count: 1, from: at(4), to: at(2) }]
        );
        assert_eq!(shortening.length_bytes, 3 * SLOT);
    }

    #[test]
    fn as_little_moves_as_is_enough() {
        let slots = [FIXED, None, unit(1), None, None, unit(3), None, unit(2), None];
        let moves = |length, moved_max| {
            let moves = shorten_to(&occupancy(&slots), length * SLOT, moved_max * SLOT);
            moves.iter().map(|moved| (moved.first, moved.to.get() / SLOT)).collect::<Vec<_>>()
        };
        let [two, three] = [2, 3].map(Occupant::Unit);
        assert_eq!(moves(8, 9), []);
        assert_eq!(moves(6, 9), [(two, 1)]);
        assert_eq!(moves(4, 9), [(two, 1), (three, 3)]);
        assert_eq!(moves(4, 1), [(two, 1)]);
        assert_eq!(moves(1, 9), [(two, 1), (three, 3)]);
    }

    #[test]
    fn tables_that_are_not_needed_stay_where_a_disk_is_in_use() {
        let (map, counts) = (Some(Some(Occupant::Map(1))), Some(Some(Occupant::Counts(1))));
        let slots = [FIXED, map, None, None, counts, None, unit(3), None];
        let occupancy = Occupancy { bytes_per_counts: Some(4 * SLOT), ..occupancy(&slots) };
        let moves = shorten_to(&occupancy, 0, u64::MAX);
        let to: Vec<_> = moves.iter().map(|moved| (moved.first, moved.to.get() / SLOT)).collect();
        assert_eq!(to, [(Occupant::Counts(1), 2), (Occupant::Unit(3), 3)]);
    }

    #[test]
    fn counts_of_what_is_cut_off_are_cut_off() {
        let counts = |number| Some(Some(Occupant::Counts(number)));
        let slots = [FIXED, counts(0), None, None, counts(1), unit(3), None];
        let occupancy = Occupancy { bytes_per_counts: Some(4 * SLOT), ..occupancy(&slots) };
        let shortening = shorten(&occupancy, &ExtentSet::new(), &virtual_of([3]), 0, MoveWhen::Pays);
        assert_eq!(
            shortening.moves,
            [UnitMove { first: Occupant::Unit(3), count: 1, from: at(5), to: at(2) }]
        );
        assert_eq!(shortening.length_bytes, 3 * SLOT);
        assert_eq!(shortening.dropped, [Span::new(at(4), SLOT)]);
    }

    #[test]
    fn much_moves_only_for_a_file_that_gets_much_shorter() {
        let slot_count = 2 * MOVED_BYTES_ALWAYS / SLOT + 100;
        // Every second one is free: half as much would move as the file gets shorter.
        let slots: Vec<_> =
            (0..2 * slot_count).map(|number| if number % 2 == 0 { None } else { unit(number) }).collect();
        let kept = virtual_of(units(&slots));
        let of = |when| shorten(&occupancy(&slots), &ExtentSet::new(), &kept, 0, when);
        let pays = of(MoveWhen::Pays);
        assert_eq!((pays.moves.len(), pays.is_complete), (0, false));
        let possible = of(MoveWhen::Possible);
        assert_eq!((possible.moved_bytes, possible.length_bytes), (slot_count / 2 * SLOT, slot_count * SLOT));
        assert_eq!(of(MoveWhen::Never).length_bytes, 2 * slot_count * SLOT);
        // A little at a far end is worth it.
        let mut far = slots.clone();
        far.extend(vec![None; usize::try_from(4 * slot_count).unwrap()]);
        far.push(unit(0));
        let shortening =
            shorten(&occupancy(&far), &ExtentSet::new(), &virtual_of(units(&far)), 0, MoveWhen::Pays);
        assert!(shortening.moved_bytes * GAIN_MIN <= far.len() as u64 * SLOT - shortening.length_bytes);
        assert!(shortening.length_bytes < 2 * slot_count * SLOT);
    }

    #[test]
    fn what_may_have_no_gaps_is_moved_as_a_whole_or_not_at_all() {
        let slots = [FIXED, None, unit(1), None, unit(2)];
        let dense = Occupancy { is_dense: true, ..occupancy(&slots) };
        let shortening = shorten(&dense, &ExtentSet::new(), &virtual_of([1, 2]), 0, MoveWhen::Pays);
        assert_eq!((shortening.length_bytes, shortening.is_complete), (3 * SLOT, true));
        let shortening = shorten(&dense, &ExtentSet::new(), &virtual_of([1, 2]), 0, MoveWhen::Never);
        assert_eq!((shortening.moves.len(), shortening.is_complete), (0, false));
    }

    #[test]
    fn a_unit_for_which_the_host_may_have_no_room_stays() {
        let slots = [FIXED, None, unit(1)];
        let unit_bytes = 2 * IN_FLIGHT_BYTES_MAX;
        let large = Occupancy {
            unit_bytes,
            align_bytes: 1,
            movable: vec![Occupied {
                first: Occupant::Unit(1),
                count: 1,
                at: HostOffset::new(3 * unit_bytes),
            }],
            length_bytes: 4 * unit_bytes,
            ..occupancy(&slots)
        };
        let kept = [Span::new(VirtualOffset::new(unit_bytes), unit_bytes)].into_iter().collect();
        let moves =
            |freed_bytes| shorten(&large, &ExtentSet::new(), &kept, freed_bytes, MoveWhen::Possible).moves;
        assert_eq!((moves(0).len(), moves(unit_bytes).len()), (0, 1));
    }

    proptest! {
        /// Against a model that moves one by one.
        #[test]
        fn a_file_gets_as_short_as_the_naive_model_says(
            kinds in prop::collection::vec((0..8u8, any::<bool>()), 1..60),
        ) {
            let slots: Vec<_> = (0..).zip(&kinds).map(|(number, (kind, _))| match kind {
                0..4 => unit(number),
                4 => FIXED,
                _ => None,
            }).collect();
            let released = (0..).zip(&kinds).filter(|(_, (_, gone))| *gone).map(|(number, _)| number);
            let released = virtual_of(released.filter(|number| slots[usize::try_from(*number).unwrap()] == unit(*number)));
            let is_gone = |number: u64| released.contains(VirtualOffset::new(number * SLOT));
            let left: Vec<_> = slots.iter().map(|slot| slot.filter(|who| !matches!(who, Some(Occupant::Unit(unit)) if is_gone(*unit)))).collect();
            let shortening = shorten(&occupancy(&slots), &released, &virtual_of(units(&left)), 0, MoveWhen::Possible);
            let mut model = left.clone();
            while let (Some(free), Some(last)) = (
                model.iter().position(Option::is_none),
                model.iter().rposition(Option::is_some).filter(|last| model[*last] != FIXED),
            ) {
                if free > last {
                    break;
                }
                model.swap(free, last);
            }
            let end = model.iter().rposition(Option::is_some).map_or(0, |last| last as u64 + 1);
            prop_assert_eq!(shortening.length_bytes, end * SLOT);
            // Each move is from where it lies behind the end to where nothing lies before it.
            let mut after = left.clone();
            for moved in &shortening.moves {
                for index in 0..moved.count {
                    let number = |at: HostOffset| usize::try_from(at.get() / SLOT + index).unwrap();
                    prop_assert_eq!(left[number(moved.from)], Some(Some(moved.first.plus(index))));
                    prop_assert!(left[number(moved.to)].is_none() && after[number(moved.to)].is_none());
                    prop_assert!(number(moved.to) as u64 * SLOT < shortening.length_bytes);
                    prop_assert!(number(moved.from) as u64 * SLOT >= shortening.length_bytes);
                    after.swap(number(moved.from), number(moved.to));
                }
            }
            let after_bytes = after.iter().rposition(Option::is_some).map_or(0, |last| last as u64 + 1) * SLOT;
            prop_assert_eq!(after_bytes, shortening.length_bytes);
            // Seen from where they are, all lie where they did.
            let moved = Moved::new(shortening.moves.clone(), SLOT);
            for (number, slot) in (0..).zip(&after) {
                let Some(Some(Occupant::Unit(unit))) = slot else { continue };
                let state = |at| RunState::Data { file: FileIndex(0), offset: at };
                let span = Span::new(VirtualOffset::new(unit * SLOT), SLOT);
                let mut runs = Vec::new();
                moved.push_back(&Run::new(span, state(at(number))), &mut runs);
                let before = left.iter().position(|other| other == slot).unwrap() as u64;
                prop_assert_eq!(runs, [Run::new(span, state(at(before)))]);
            }
        }
    }
}
