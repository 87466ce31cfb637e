//! A device that answers when a profile says: what recorded requests would have taken there.
//!
//! Invariants: no request ends before it was issued, nor earlier if another came before it; the same requests give the same times.
//!
//! Commands wait for a place in the queue, which is as deep as the profile has it; places are looked for at the same time by as many
//! commands, but bytes pass one after the other. Requests are served in the order in which they come.
//!
//! Writes are not in the profiles. Here an arm has to go to where they belong as for a read; where nothing rotates, a cache takes them
//! without a jump. A flush takes no time of its own. These are assumptions (`docs/decisions/cost-model.md`).

use std::collections::BTreeMap;

use crate::cost::Piece;
use crate::profile::{Profile, float};

/// A device at work. Times are in seconds, by a clock of its own.
#[derive(Clone, Debug)]
pub struct Device<'a> {
    profile: &'a Profile,
    /// When each place in the queue becomes free.
    places: Vec<f64>,
    /// When the bytes before have passed.
    passed: f64,
    head: Option<u64>,
    together_bytes: u64,
}

impl<'a> Device<'a> {
    /// Idle.
    pub fn new(profile: &'a Profile) -> Self {
        let depth = usize::try_from(profile.queue_depth.max(1)).unwrap_or(1);
        Self { profile, places: vec![0.0; depth], passed: 0.0, head: None, together_bytes: 0 }
    }

    /// A command that is issued at `at`. Answers when it ends.
    pub fn submit(&mut self, at: f64, offset: u64, len_bytes: u64, writes: bool) -> f64 {
        let profile = self.profile;
        let Some(place) = self.places.iter_mut().min_by(|one, other| one.total_cmp(other)) else { return at };
        let begun = at.max(*place);
        let continues = self.head == Some(offset);
        let move_by = self.head.map(|head| i128::from(offset) - i128::from(head));
        let is_cached = writes && profile.jump.revolution_seconds == 0.0;
        let jump = match continues || is_cached {
            true => 0.0,
            false => profile.jump_seconds(move_by, self.together_bytes),
        };
        let found = begun + profile.command_seconds + profile.access_seconds + jump;
        let ended = found.max(self.passed) + float(len_bytes) / profile.bytes_per_second;
        *place = ended;
        self.passed = ended;
        self.together_bytes = if continues { self.together_bytes } else { 0 }.saturating_add(len_bytes);
        self.head = Some(offset.saturating_add(len_bytes));
        ended
    }
}

/// A request as it was recorded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Asked {
    /// When it was issued, in seconds.
    pub issued: f64,
    /// When it ended.
    pub ended: f64,
    /// Where on the virtual disk.
    pub offset: u64,
    /// How much; 0 is a flush.
    pub len_bytes: u64,
    /// Whether it writes.
    pub writes: bool,
}

/// What recorded requests took on a device.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Replayed {
    /// The requests with their new times.
    pub requests: Vec<Asked>,
    /// From the first one's issue to the last one's end.
    pub seconds: f64,
    /// For how long at least one was under way.
    pub waiting_seconds: f64,
    /// Commands of the device: one for each place of a request.
    pub commands: u64,
}

/// Has the device serve what was recorded, on a disk that lies as `map` says (pieces by ascending logical place; without any, all lies where
/// its guest thinks). What the map leaves out is not stored: reading it asks the device for nothing, and writing gives it room behind what lies before it
/// on the disk.
///
/// A request is issued as long after the end of the request that ended last before it as it was when it was recorded: a program that
/// waited for an answer waits for it here, and what it computed in between takes the time that it took.
pub fn replay(device: &mut Device<'_>, map: &[Piece], asked: &[Asked]) -> Replayed {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by(|one, other| asked[*one].ended.total_cmp(&asked[*other].ended));
    let first = asked.first().map_or(0.0, |first| first.issued);
    let mut replayed = Replayed::default();
    let (mut ends, mut latest) = (vec![0.0; asked.len()], 0.0);
    let mut over = 0;
    let mut anchor = (first, 0.0);
    let mut written = Touched::default();
    for (index, request) in asked.iter().enumerate() {
        // What ended before it was issued was issued before it, too.
        while let Some(&earlier) = order.get(over).filter(|earlier| asked[**earlier].ended <= request.issued)
        {
            if earlier >= index {
                break;
            }
            anchor = (asked[earlier].ended, ends[earlier]);
            over += 1;
        }
        let issued = f64::max(anchor.1 + (request.issued - anchor.0).max(0.0), latest);
        latest = issued;
        let mut ended = issued;
        for part in parts(map, request.offset, request.len_bytes) {
            if !part.is_stored && request.writes {
                written.add(part.logical, part.len_bytes);
            } else if !part.is_stored && !written.overlaps(part.logical, part.len_bytes) {
                continue;
            }
            ended = device.submit(issued, part.physical, part.len_bytes, request.writes).max(ended);
            replayed.commands += 1;
        }
        ends[index] = ended;
        replayed.requests.push(Asked { issued, ended, ..*request });
    }
    replayed.seconds = ends.iter().copied().fold(0.0, f64::max);
    replayed.waiting_seconds = waiting_seconds(&replayed.requests);
    replayed
}

/// For how long at least one of the requests, in the order of their issue, was under way.
pub fn waiting_seconds(requests: &[Asked]) -> f64 {
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for request in requests {
        sum += (request.ended - request.issued.max(until)).max(0.0);
        until = until.max(request.ended);
    }
    sum
}

/// Bytes of a device or a disk that were asked for, in any order: starts and ends, no two of which touch.
#[derive(Default)]
pub struct Touched(BTreeMap<u64, u64>);

impl Touched {
    /// Adds `len_bytes` from `start` on.
    pub fn add(&mut self, start: u64, len_bytes: u64) {
        let (mut start, mut end) = (start, start.saturating_add(len_bytes));
        while let Some((&from, &to)) = self.0.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    /// Whether any of these bytes was.
    pub fn overlaps(&self, start: u64, len_bytes: u64) -> bool {
        let before = self.0.range(..start.saturating_add(len_bytes)).next_back();
        before.is_some_and(|(_, end)| *end > start)
    }

    /// Whether all of these bytes were.
    pub fn covers(&self, start: u64, len_bytes: u64) -> bool {
        let before = self.0.range(..=start).next_back();
        before.is_some_and(|(_, end)| start.saturating_add(len_bytes) <= *end)
    }
}

/// A part of a request that lies together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    logical: u64,
    physical: u64,
    len_bytes: u64,
    is_stored: bool,
}

/// Where a part of the virtual disk lies; what is not stored, where it would come to lie.
fn parts(map: &[Piece], offset: u64, len_bytes: u64) -> Vec<Part> {
    let end = offset.saturating_add(len_bytes);
    let mut found: Vec<Part> = Vec::new();
    let mut push = |part: Part| match found.last_mut() {
        Some(last)
            if last.physical.saturating_add(last.len_bytes) == part.physical
                && last.is_stored == part.is_stored =>
        {
            last.len_bytes += part.len_bytes;
        }
        _ => found.push(part),
    };
    let first = map.partition_point(|piece| piece.logical.saturating_add(piece.len_bytes) <= offset);
    let mut before = first.checked_sub(1).map(|index| map[index]);
    let behind = |before: Option<Piece>, at: u64| match (before, map.first()) {
        (Some(before), _) => before.physical.saturating_add(at - before.logical),
        (None, Some(first)) => first.physical.saturating_sub(first.logical.saturating_sub(at)),
        (None, None) => at,
    };
    let is_known = !map.is_empty();
    let mut at = offset;
    for piece in map[first..].iter().take_while(|piece| piece.logical < end) {
        let from = piece.logical.max(at);
        if from > at {
            let physical = behind(before, at);
            push(Part { logical: at, physical, len_bytes: from - at, is_stored: false });
        }
        let to = piece.logical.saturating_add(piece.len_bytes).min(end);
        let physical = piece.physical.saturating_add(from - piece.logical);
        push(Part { logical: from, physical, len_bytes: to - from, is_stored: true });
        (before, at) = (Some(*piece), to);
    }
    if at < end {
        let physical = behind(before, at);
        push(Part { logical: at, physical, len_bytes: end - at, is_stored: !is_known });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Order, QueueLimits, RequestSize, SequentialRead};
    use crate::profile::{HDD, PROFILES, SAN};
    use proptest::prelude::*;

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9
    }

    #[test]
    fn an_arm_serves_one_after_the_other_and_an_array_many_at_once() {
        let mut disk = Device::new(&HDD);
        let one = disk.submit(0.0, 1 << 30, 4096, false);
        let other = disk.submit(0.0, 1 << 40, 4096, false);
        assert!(other > 1.7 * one, "{one} {other}");
        let mut array = Device::new(&SAN);
        let ends: Vec<f64> = (0..32).map(|index| array.submit(0.0, index << 30, 4096, false)).collect();
        assert!(ends.iter().all(|end| *end < 2.0 * ends[0]), "{ends:?}");
        assert!(array.submit(0.0, 99 << 30, 4096, false) > 1.9 * ends[0], "the queue is full");
    }

    /// A file in pieces that is read as the cost model thinks takes what that says.
    #[test]
    fn the_device_and_the_cost_model_agree_on_one_reader() {
        for profile in [&HDD, &SAN] {
            let pieces: Vec<_> = (0..200)
                .map(|index| Piece {
                    logical: index * 65536,
                    physical: (index * 7919 % 200) << 24,
                    len_bytes: 65536,
                })
                .collect();
            let size = RequestSize::new(65536, QueueLimits::DEFAULT);
            let mut read = SequentialRead::new(profile, size, Order::AsTold);
            pieces.iter().for_each(|piece| read.piece(*piece));
            let said = read.end_file();
            let mut device = Device::new(profile);
            let mut at = 0.0;
            for piece in &pieces {
                at = device.submit(at, piece.physical, piece.len_bytes, false);
            }
            assert!((at / said.seconds - 1.0).abs() < 0.01, "{}: {at} and {}", profile.name, said.seconds);
        }
    }

    #[test]
    fn what_a_program_computed_between_requests_is_kept() {
        let asked = |issued: f64, ended: f64, offset: u64| Asked {
            issued,
            ended,
            offset,
            len_bytes: 4096,
            writes: false,
        };
        // The second waits for the first, the third for none.
        let recorded = [asked(5.0, 5.1, 0), asked(5.3, 5.4, 1 << 30), asked(5.35, 5.5, 2 << 30)];
        let replayed = replay(&mut Device::new(&SAN), &[], &recorded);
        let [one, two, three] = replayed.requests[..] else { panic!("three") };
        assert!(near(two.issued - one.ended, 0.2) && near(three.issued - one.ended, 0.25));
        assert!(near(one.issued, 0.0) && replayed.commands == 3);
        assert!(replayed.waiting_seconds < 0.01 && replayed.seconds > 0.25);
    }

    #[test]
    fn a_request_has_a_command_for_each_place() {
        let piece = |logical, physical, len_bytes| Piece { logical, physical, len_bytes };
        let map = [piece(0, 1000, 10), piece(10, 1010, 10), piece(20, 5000, 10), piece(40, 7000, 10)];
        let found = |map: &[Piece], offset, len_bytes| -> Vec<(u64, u64, bool)> {
            let parts = parts(map, offset, len_bytes);
            parts.iter().map(|part| (part.physical, part.len_bytes, part.is_stored)).collect()
        };
        assert_eq!(found(&map, 5, 10), [(1005, 10, true)]);
        assert_eq!(
            found(&map, 15, 30),
            [(1015, 5, true), (5000, 10, true), (5010, 10, false), (7000, 5, true)]
        );
        assert_eq!(found(&map, 100, 5), [(7060, 5, false)]);
        assert_eq!(found(&map[2..], 10, 5), [(4990, 5, false)]);
        assert_eq!(found(&[], 3, 0), []);
        assert_eq!(found(&[], 3, 2), [(3, 2, true)]);
    }

    #[test]
    fn what_is_not_stored_is_read_from_nowhere_until_it_is_written() {
        let map = [Piece { logical: 0, physical: 1 << 40, len_bytes: 4096 }];
        let asked = |issued: f64, offset: u64, writes| Asked {
            issued,
            ended: issued + 0.1,
            offset,
            len_bytes: 4096,
            writes,
        };
        let recorded = [asked(0.0, 8192, false), asked(1.0, 8192, true), asked(2.0, 8192, false)];
        let replayed = replay(&mut Device::new(&HDD), &map, &recorded);
        let took = |index: usize| replayed.requests[index].ended - replayed.requests[index].issued;
        assert!(took(0) == 0.0 && took(1) > 0.0 && took(2) > 0.0, "{replayed:?}");
        assert_eq!(replayed.commands, 2);
        let mut written = Touched::default();
        for start in [50, 10, 30, 20] {
            written.add(start, 10);
        }
        let held: Vec<u64> = (0..80).filter(|at| written.overlaps(*at, 1)).collect();
        assert_eq!(held, (10..40).chain(50..60).collect::<Vec<_>>());
        assert_eq!(written.0.len(), 2);
        assert!(written.covers(15, 25) && !written.covers(15, 26) && !written.covers(45, 10));
    }

    proptest! {
        #[test]
        fn times_go_forward(
            requests in prop::collection::vec((0u64..1 << 40, 1u64..1 << 20, any::<bool>(), 0f64..0.01, 0f64..0.1), 0..50),
        ) {
            let mut issued = 0.0;
            let asked: Vec<_> = requests
                .iter()
                .map(|&(offset, len_bytes, writes, after, takes)| {
                    issued += after;
                    Asked { issued, ended: issued + takes, offset, len_bytes, writes }
                })
                .collect();
            for profile in PROFILES {
                let replayed = replay(&mut Device::new(profile), &[], &asked);
                prop_assert!(replayed.requests.iter().all(|request| request.ended >= request.issued));
                prop_assert!(replayed.requests.windows(2).all(|pair| pair[0].issued <= pair[1].issued));
                prop_assert!(replayed.waiting_seconds <= replayed.seconds + 1e-9);
                prop_assert_eq!(replayed.requests.len(), asked.len());
            }
        }
    }
}
