//! Which stretch of a file system becomes one free extent for the fewest bytes moved. Pure: a map and files in, a plan out.
//!
//! The rule: files that were lately written show how long a free extent should be ([`goal`]). A stretch of that length pays if what has to
//! move out of it is at most one part of [`GAIN_SHARE`] of it. Only pieces of files move that are whole within the stretch, are nobody else's,
//! and fit into one step; whatever else lies there ends a stretch, and so does what nobody is known to own.
//!
//! Invariant: a stretch is longer than every free extent that there was, so that what moves out of it never cuts a longer one.

use std::ops::Range;

use extent::{Device, DeviceOffset, FileOffset, Offset, Span};
use mutants::broken;

use crate::facts::FileId;

/// A place on the device under the file system.
pub type DeviceSpan = Span<Device>;

/// A stretch is at least so many times as long as what moves out of it.
pub const GAIN_SHARE: u64 = 4;
/// No stretch is longer.
pub const STRETCH_BYTES_MAX: u64 = 256 << 20;
/// A piece that is longer would not move in one step, and being stopped in its midst would leave its file in more pieces.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;
/// Free extents of this length are long enough for every file: a piece of this length costs a reader next to nothing.
const GOAL_BYTES_MIN: u64 = 4 << 20;
/// A stretch has at most one part of so many of all that is free.
const FREE_SHARE: u64 = 4;
/// Files are looked for in so many stretches at most.
const CANDIDATES_MAX: usize = 32;
/// What moves in a day: one part of so many of the file system, and no more than so much.
const DAY_SHARE: u64 = 16;
const DAY_BYTES_MAX: u64 = 1 << 30;

/// Bytes that may move on one day for free space, on a file system of this size.
pub fn bytes_a_day(all_bytes: u64) -> u64 {
    (all_bytes / DAY_SHARE).min(DAY_BYTES_MAX)
}

/// What a part of the file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Nobody has it.
    Free,
    /// A file may have it, or a table of the file system: that is not told.
    Taken,
    /// The file system has it for itself, or several share it.
    Fixed,
}

/// What lies where on a file system, in order and without overlaps. What is not in it is as good as fixed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpaceMap {
    parts: Vec<(DeviceSpan, Use)>,
}

impl SpaceMap {
    /// Adds what comes next; `false` if it lies before what is known: then the map cannot be believed.
    pub fn push(&mut self, place: DeviceSpan, used: Use) -> bool {
        if place.is_empty() {
            return true;
        }
        let Some((last, last_use)) = self.parts.last_mut() else {
            self.parts.push((place, used));
            return true;
        };
        if place.start() < last.end() {
            return false;
        }
        if place.start() == last.end() && *last_use == used {
            *last = Span::between(last.start(), place.end());
        } else {
            self.parts.push((place, used));
        }
        true
    }

    /// All parts.
    pub fn parts(&self) -> &[(DeviceSpan, Use)] {
        &self.parts
    }

    fn free(&self) -> impl Iterator<Item = DeviceSpan> + '_ {
        self.parts.iter().filter(|(_, used)| *used == Use::Free).map(|(place, _)| *place)
    }

    /// What is free, in numbers.
    pub fn facts(&self) -> SpaceFacts {
        self.free().fold(SpaceFacts::default(), |facts, place| SpaceFacts {
            free_bytes: facts.free_bytes.saturating_add(place.len_bytes()),
            free_extents: facts.free_extents + 1,
            largest_free_bytes: facts.largest_free_bytes.max(place.len_bytes()),
        })
    }

    /// Whether all of a stretch is free, but for what lies within these places.
    pub fn is_free_but_for(&self, stretch: DeviceSpan, places: &[DeviceSpan]) -> bool {
        let mut at = stretch.start();
        for (place, used) in &self.parts {
            let Some(part) = place.intersect(&stretch).filter(|part| !part.is_empty()) else { continue };
            let is_known = *used == Use::Free || lies_within(part, places);
            if part.start() != at || !is_known {
                return false;
            }
            at = part.end();
        }
        at == stretch.end()
    }
}

/// Whether every byte of `part` is within one of `places`.
fn lies_within(part: DeviceSpan, places: &[DeviceSpan]) -> bool {
    let mut at = part.start();
    while at < part.end() {
        let Some(place) = places.iter().find(|place| place.contains(at)) else { return false };
        at = place.end();
    }
    true
}

/// The free space of a file system, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceFacts {
    /// All of it.
    pub free_bytes: u64,
    /// In so many pieces.
    pub free_extents: u64,
    /// The longest of these.
    pub largest_free_bytes: u64,
}

/// How long a free extent is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Goal {
    /// Less is not worth it.
    pub least_bytes: u64,
    /// Enough for the files that were lately written.
    pub most_bytes: u64,
}

/// What is to be reached where files of `lately_bytes` are written; `None` if such a file finds room in one piece, or too little is free.
pub fn goal(facts: &SpaceFacts, lately_bytes: u64) -> Option<Goal> {
    let most_bytes = lately_bytes.min(STRETCH_BYTES_MAX).min(facts.free_bytes / FREE_SHARE);
    if most_bytes < GOAL_BYTES_MIN || most_bytes <= facts.largest_free_bytes {
        return None;
    }
    let least_bytes = facts.largest_free_bytes.saturating_mul(2).clamp(GOAL_BYTES_MIN, most_bytes);
    Some(Goal { least_bytes, most_bytes })
}

/// A piece of a file that was found within a stretch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owned {
    /// Where it lies.
    pub place: DeviceSpan,
    /// Whose it is.
    pub file: FileId,
    /// Where in the file.
    pub start: FileOffset,
    /// It is a piece of its own, nobody shares it, and the machine can move it by itself.
    pub is_movable: bool,
}

/// One piece that moves out of the stretch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceMove {
    /// Whose it is.
    pub file: FileId,
    /// Where in the file.
    pub start: FileOffset,
    /// Where it lies.
    pub place: DeviceSpan,
}

/// What makes one free extent. Does nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpacePlan {
    /// What will be free.
    pub stretch: DeviceSpan,
    /// What moves out of it, in the order of the device.
    pub moves: Vec<SpaceMove>,
    /// How much that is.
    pub moved_bytes: u64,
    /// What was free before.
    pub before: SpaceFacts,
}

impl SpacePlan {
    /// Where the pieces lie that move.
    pub fn places(&self) -> Vec<DeviceSpan> {
        self.moves.iter().map(|one| one.place).collect()
    }
}

/// A part of the file system as a search for stretches sees it.
#[derive(Clone, Copy, Debug)]
enum Part {
    Free(DeviceSpan),
    /// And which of the owned pieces it is, if that is known.
    Moves(DeviceSpan, Option<usize>),
    Ends,
}

/// Parts that follow each other, and how much of them has to move.
#[derive(Clone, Debug)]
struct Window {
    parts: Range<usize>,
    place: DeviceSpan,
    moved_bytes: u64,
}

/// Stretches in which files are worth looking for: those that would pay if all that is taken in them could move.
pub fn candidates(map: &SpaceMap, goal: &Goal, bytes_max: u64) -> Vec<DeviceSpan> {
    let parts: Vec<Part> = map
        .parts
        .iter()
        .map(|(place, used)| match used {
            Use::Free => Part::Free(*place),
            Use::Taken => Part::Moves(*place, None),
            Use::Fixed => Part::Ends,
        })
        .collect();
    let mut all: Vec<DeviceSpan> = Vec::new();
    for len_bytes in lengths(goal) {
        let mut found = windows(&parts, len_bytes, goal.most_bytes, bytes_max);
        found.sort_by_key(|window| (window.moved_bytes, window.place.start()));
        for window in found {
            let is_apart =
                |other: &DeviceSpan| window.place.intersect(other).is_none_or(|both| both.is_empty());
            if all.len() < CANDIDATES_MAX && all.iter().all(is_apart) {
                all.push(window.place);
            }
        }
    }
    all.sort_unstable_by_key(Span::start);
    all
}

/// The longest stretch up to the goal that pays, and among these the one with the fewest bytes to move; `None` if there is none. `owned` is
/// what was found of files.
pub fn space_plan(map: &SpaceMap, owned: &[Owned], goal: &Goal, bytes_max: u64) -> Option<SpacePlan> {
    let mut owned = owned.to_vec();
    owned.sort_by_key(|piece| piece.place.start());
    let parts = parts_of(map, &owned);
    let best = lengths(goal).find_map(|len_bytes| {
        let found = windows(&parts, len_bytes, goal.most_bytes, bytes_max);
        found.into_iter().min_by_key(|window| (window.moved_bytes, window.place.start()))
    })?;
    let one = |part: &Part| match part {
        Part::Moves(place, Some(at)) => {
            let Owned { file, start, .. } = owned.get(*at)?;
            Some(SpaceMove { file: file.clone(), start: *start, place: *place })
        }
        _ => None,
    };
    let moves = parts[best.parts].iter().filter_map(one).collect();
    Some(SpacePlan { stretch: best.place, moves, moved_bytes: best.moved_bytes, before: map.facts() })
}

/// From the goal down to what is still worth it.
fn lengths(goal: &Goal) -> impl Iterator<Item = u64> {
    let least = goal.least_bytes.max(1);
    let halved = std::iter::successors(Some(goal.most_bytes), |len| Some(len / 2));
    halved.take_while(move |len| *len > least).chain(std::iter::once(least))
}

/// What is taken becomes what moves, as far as files own it.
fn parts_of(map: &SpaceMap, owned: &[Owned]) -> Vec<Part> {
    let mut parts = Vec::new();
    for (place, used) in &map.parts {
        match used {
            Use::Free => parts.push(Part::Free(*place)),
            Use::Fixed => parts.push(Part::Ends),
            Use::Taken => taken_parts(*place, owned, &mut parts),
        }
    }
    parts
}

fn taken_parts(place: DeviceSpan, owned: &[Owned], parts: &mut Vec<Part>) {
    let first = owned.partition_point(|piece| piece.place.start() < place.start());
    let mut at = place.start();
    for (index, piece) in owned.iter().enumerate().skip(first) {
        if piece.place.start() >= place.end() {
            break;
        }
        // Two that claim the same, or one that reaches beyond what is taken: what was found is not what is there.
        let overlaps_next = owned.get(index + 1).is_some_and(|next| next.place.start() < piece.place.end());
        let is_whole = piece.place.start() >= at && piece.place.end() <= place.end() && !overlaps_next;
        if piece.place.start() > at && !broken!(StrangersMoved) {
            parts.push(Part::Ends);
        }
        let moves = is_whole && piece.is_movable && piece.place.len_bytes() <= PIECE_BYTES_MAX;
        parts.push(if moves { Part::Moves(piece.place, Some(index)) } else { Part::Ends });
        at = at.max(piece.place.end());
    }
    if at < place.end() {
        parts.push(if broken!(StrangersMoved) {
            Part::Moves(Span::between(at, place.end()), None)
        } else {
            Part::Ends
        });
    }
}

/// All stretches of at least `len_bytes` that pay: for each beginning the shortest.
fn windows(parts: &[Part], len_bytes: u64, most_bytes: u64, bytes_max: u64) -> Vec<Window> {
    let most_bytes = most_bytes.saturating_mul(2).min(STRETCH_BYTES_MAX);
    let mut found = Vec::new();
    let mut first = 0;
    let mut moved_bytes = 0;
    for (last, part) in parts.iter().enumerate() {
        let Some((place, moves)) = place_of(part) else {
            (first, moved_bytes) = (last + 1, 0);
            continue;
        };
        let follows = last == first || end_of(&parts[last - 1]) == Some(place.start());
        if !follows {
            (first, moved_bytes) = (last, 0);
        }
        moved_bytes += if moves { place.len_bytes() } else { 0 };
        // The shortest that ends here.
        while let Some((begin, begin_moves)) = place_of(&parts[first]) {
            let rest = place.end().get().saturating_sub(begin.end().get());
            if first == last || rest < len_bytes {
                break;
            }
            moved_bytes -= if begin_moves { begin.len_bytes() } else { 0 };
            first += 1;
        }
        let Some((begin, _)) = place_of(&parts[first]) else { continue };
        let stretch = Span::between(begin.start(), place.end());
        let len = stretch.len_bytes();
        let pays = moved_bytes <= len / GAIN_SHARE && moved_bytes <= bytes_max && moved_bytes > 0;
        if len >= len_bytes && len <= most_bytes && pays {
            found.push(Window { parts: first..last + 1, place: stretch, moved_bytes });
        }
    }
    found
}

fn place_of(part: &Part) -> Option<(DeviceSpan, bool)> {
    match part {
        Part::Free(place) => Some((*place, false)),
        Part::Moves(place, _) => Some((*place, true)),
        Part::Ends => None,
    }
}

fn end_of(part: &Part) -> Option<DeviceOffset> {
    place_of(part).map(|(place, _)| place.end())
}

/// A place on the device; `None` if there is none so far out.
pub fn place(start: u64, len_bytes: u64) -> Option<DeviceSpan> {
    Span::checked(Offset::new(start), len_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn id(number: u8) -> FileId {
        FileId::new(&[number]).unwrap()
    }

    fn at(start: u64, len: u64) -> DeviceSpan {
        place(start * MIB, len * MIB).unwrap()
    }

    /// Parts of so many MiB one behind the other.
    fn map(parts: &[(u64, Use)]) -> SpaceMap {
        let mut map = SpaceMap::default();
        let mut start = 0;
        for (len, used) in parts {
            assert!(map.push(at(start, *len), *used));
            start += len;
        }
        map
    }

    fn owned(start: u64, len: u64, number: u8) -> Owned {
        Owned { place: at(start, len), file: id(number), start: Offset::new(0), is_movable: true }
    }

    const GOAL: Goal = Goal { least_bytes: 32 * MIB, most_bytes: 64 * MIB };

    #[test]
    fn there_is_a_goal_where_a_new_file_would_find_no_room_in_one_piece() {
        let facts = |free, largest| SpaceFacts {
            free_bytes: free * MIB,
            free_extents: 9,
            largest_free_bytes: largest * MIB,
        };
        assert_eq!(goal(&facts(1000, 20), 64 * MIB), Some(Goal { least_bytes: 40 * MIB, ..GOAL }));
        assert_eq!(goal(&facts(1000, 64), 64 * MIB), None, "it would find room");
        assert_eq!(goal(&facts(1000, 0), 2 * MIB), None, "too short to matter");
        assert_eq!(goal(&facts(100, 2), 64 * MIB).unwrap().most_bytes, 25 * MIB, "a part of what is free");
        let long = goal(&facts(100_000, 200), u64::MAX).unwrap();
        assert_eq!((long.least_bytes, long.most_bytes), (STRETCH_BYTES_MAX, STRETCH_BYTES_MAX));
    }

    #[test]
    fn the_stretch_with_the_fewest_bytes_is_chosen_and_what_is_no_files_own_ends_it() {
        use Use::{Fixed, Free, Taken};
        let map = map(&[
            (30, Free),
            (2, Taken),
            (32, Free),
            (1, Fixed),
            (31, Free),
            (1, Taken),
            (32, Free),
            (3, Taken),
            (29, Free),
        ]);
        let all = [owned(30, 2, 1), owned(96, 1, 2), owned(129, 3, 3)];
        let plan = space_plan(&map, &all, &GOAL, u64::MAX).unwrap();
        assert_eq!((plan.stretch, plan.moved_bytes), (at(65, 64), MIB));
        assert_eq!(plan.moves, [SpaceMove { file: id(2), start: Offset::new(0), place: at(96, 1) }]);
        let plan = space_plan(&map, &all[..1], &GOAL, u64::MAX).unwrap();
        assert_eq!(
            (plan.stretch, plan.moved_bytes),
            (at(0, 64), 2 * MIB),
            "nobody is known to own the other"
        );
        assert_eq!(space_plan(&map, &[], &GOAL, u64::MAX), None);
        assert_eq!(space_plan(&map, &all, &GOAL, MIB - 1), None, "more than may move");
        let halves = [owned(30, 1, 1), owned(31, 1, 1)];
        assert_eq!(space_plan(&map, &halves, &GOAL, u64::MAX).unwrap().moves.len(), 2);
        assert_eq!(space_plan(&map, &halves[..1], &GOAL, u64::MAX), None, "a part of it is a stranger's");
        let twice = [owned(30, 2, 1), owned(30, 2, 2)];
        assert_eq!(space_plan(&map, &twice, &GOAL, u64::MAX), None, "two say that it is theirs");
    }

    #[test]
    fn a_shorter_stretch_is_better_than_none() {
        use Use::{Fixed, Free, Taken};
        let map = map(&[(20, Free), (2, Taken), (18, Free), (1, Fixed), (20, Free)]);
        let plan = space_plan(&map, &[owned(20, 2, 1)], &GOAL, u64::MAX).unwrap();
        assert_eq!(plan.stretch, at(0, 40));
        let goal = Goal { least_bytes: 41 * MIB, ..GOAL };
        assert_eq!(space_plan(&map, &[owned(20, 2, 1)], &goal, u64::MAX), None);
    }

    #[test]
    fn a_stretch_is_free_but_for_what_is_named() {
        use Use::{Free, Taken};
        let map = map(&[(4, Free), (2, Taken), (4, Free), (1, Taken)]);
        assert!(map.is_free_but_for(at(0, 10), &[at(4, 1), at(5, 1)]));
        for (stretch, places) in [(at(0, 10), at(4, 1)), (at(0, 11), at(4, 2)), (at(0, 12), at(4, 8))] {
            assert!(!map.is_free_but_for(stretch, &[places]), "{stretch:?}");
        }
    }

    /// Parts of a file system, and which files own what of it.
    fn systems() -> impl Strategy<Value = (SpaceMap, Vec<Owned>)> {
        let part = (1_u64..12, 0_u8..8, any::<bool>(), any::<bool>());
        proptest::collection::vec(part, 1..80).prop_map(|parts| {
            let (mut map, mut all, mut start) = (SpaceMap::default(), Vec::new(), 0);
            for (len, kind, is_known, is_movable) in parts {
                let used = match kind {
                    0 => Use::Fixed,
                    1..=3 => Use::Taken,
                    _ => Use::Free,
                };
                map.push(at(start, len), used);
                if used == Use::Taken && is_known {
                    all.push(Owned {
                        is_movable,
                        ..owned(start, len.div_ceil(1 + u64::from(kind == 3)), kind)
                    });
                }
                // Now and then nothing is told of a part.
                start += len + u64::from(kind == 7);
            }
            (map, all)
        })
    }

    proptest! {
        #[test]
        fn a_plan_moves_files_alone_and_gains_what_it_says(
            (map, all) in systems(),
            lately in 4_u64..200,
            budget in 0_u64..40,
        ) {
            let facts = map.facts();
            let Some(goal) = goal(&facts, lately * MIB) else { return Ok(()) };
            prop_assert!(goal.least_bytes > facts.largest_free_bytes && goal.least_bytes <= goal.most_bytes);
            let Some(plan) = space_plan(&map, &all, &goal, budget * MIB) else { return Ok(()) };
            // A stretch in which files are looked for pays if all of what is taken in it moves.
            for stretch in candidates(&map, &goal, budget * MIB) {
                let taken = stretch.len_bytes() - map.free().filter_map(|place| place.intersect(&stretch)).map(|part| part.len_bytes()).sum::<u64>();
                prop_assert!(taken <= budget * MIB && taken * GAIN_SHARE <= stretch.len_bytes());
            }
            let len = plan.stretch.len_bytes();
            prop_assert!(len > facts.largest_free_bytes && len >= goal.least_bytes);
            prop_assert!(len <= STRETCH_BYTES_MAX && len <= 2 * goal.most_bytes);
            prop_assert!(plan.moved_bytes <= budget * MIB && plan.moved_bytes * GAIN_SHARE <= len);
            let moved: u64 = plan.places().iter().map(DeviceSpan::len_bytes).sum();
            prop_assert_eq!(moved, plan.moved_bytes);
            for one in &plan.moves {
                let known = all.iter().any(|own| own.place == one.place && own.file == one.file && own.is_movable);
                prop_assert!(known && plan.stretch.covers(&one.place));
                prop_assert!(one.place.len_bytes() <= PIECE_BYTES_MAX);
            }
            // By bytes: what is not free in the stretch is exactly what moves.
            prop_assert!(map.is_free_but_for(plan.stretch, &plan.places()));
            let free: u64 = map.free().filter_map(|place| place.intersect(&plan.stretch)).map(|part| part.len_bytes()).sum();
            prop_assert_eq!(free + moved, len);
        }
    }
}
