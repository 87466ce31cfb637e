//! What reading files costs as they lie, and what it would cost if each lay in one piece.
//!
//! Invariants:
//! - one pass, no memory for a file, whatever its length: a piece costs the same to look at if it is a terabyte;
//! - no arithmetic fails on what a broken disk says: it saturates;
//! - a file in one piece costs the same in both counts; cutting a piece never makes it cheaper.
//!
//! Counted is what a program causes that reads through direct I/O, one request after the other: each request becomes as
//! many requests of the device as it has places there, and more if one is longer than the device takes. Pieces of
//! one request that lie one behind the other are merged, as the kernel does. Holes and what is unwritten are not read:
//! the caller leaves them out.

use std::iter::Sum;

use crate::profile::{Profile, READ_AHEAD_BYTES, float};

/// A page, which is what each part of a request's memory is at worst.
const PAGE_BYTES: u64 = 4096;

/// Bytes that lie together: `len_bytes` of a file (or a virtual disk) from `logical` on, on the device at `physical`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where in the file.
    pub logical: u64,
    /// Where on the lowest layer.
    pub physical: u64,
    /// How long.
    pub len_bytes: u64,
}

/// What a device takes at once, as `/sys/block/<device>/queue` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// `max_sectors_kb`, in bytes.
    pub request_bytes: u64,
    /// `max_segments`: the pieces of memory that one request may fill.
    pub segments: u64,
}

impl QueueLimits {
    /// Where nothing is known: 1280 KiB, the kernel's default (`BLK_DEF_MAX_SECTORS_CAP`; 4 MiB since Linux
    /// 6.17), and memory that does not matter.
    pub const DEFAULT: Self = Self { request_bytes: 1280 << 10, segments: u64::MAX };

    /// The longest request that surely fits, into memory whose pages are anywhere.
    pub fn longest_bytes(self) -> u64 {
        self.request_bytes.min(self.segments.saturating_mul(PAGE_BYTES)).max(1)
    }
}

/// In which requests is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestSize {
    asked_bytes: u64,
    longest_bytes: u64,
}

impl RequestSize {
    /// The program asks for `asked_bytes` at a time, at multiples of it; the device takes what `limits` says.
    pub fn new(asked_bytes: u64, limits: QueueLimits) -> Self {
        Self { asked_bytes: asked_bytes.max(1), longest_bytes: limits.longest_bytes() }
    }

    /// As read-ahead does on a device of which nothing is known.
    pub fn read_ahead() -> Self {
        Self::new(READ_AHEAD_BYTES, QueueLimits::DEFAULT)
    }
}

/// What reading costs, as it lies and in one piece each.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct ReadCost {
    /// Bytes that are read.
    pub bytes: u64,
    /// Requests of the device.
    pub requests: u64,
    /// The same, were each file in one piece.
    pub unfragmented_requests: u64,
    /// How long it takes.
    pub seconds: f64,
    /// The same, were each file in one piece that begins where its first begins.
    pub unfragmented_seconds: f64,
}

impl ReadCost {
    /// Requests that fragments cause.
    pub fn extra_requests(&self) -> u64 {
        self.requests.saturating_sub(self.unfragmented_requests)
    }

    /// Time that fragments cost.
    pub fn extra_seconds(&self) -> f64 {
        (self.seconds - self.unfragmented_seconds).max(0.0)
    }
}

impl Sum for ReadCost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |sum, cost| Self {
            bytes: sum.bytes.saturating_add(cost.bytes),
            requests: sum.requests.saturating_add(cost.requests),
            unfragmented_requests: sum.unfragmented_requests.saturating_add(cost.unfragmented_requests),
            seconds: sum.seconds + cost.seconds,
            unfragmented_seconds: sum.unfragmented_seconds + cost.unfragmented_seconds,
        })
    }
}

/// Where the head is when a file begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Anywhere: each file for itself. Costs add up.
    EachAlone,
    /// Where the file before ended: the files are read in the order in which they are told, as a backup does in the
    /// order of directories.
    AsTold,
}

/// Adds up the cost of reading files from their beginning to their end.
#[derive(Clone, Debug)]
pub struct SequentialRead<'a> {
    size: RequestSize,
    order: Order,
    now: Pass<'a>,
    ideal: Pass<'a>,
    /// Where the file in one piece goes on. `None` before its first piece.
    ideal_at: Option<u64>,
}

impl<'a> SequentialRead<'a> {
    /// Nothing read yet.
    pub fn new(profile: &'a Profile, size: RequestSize, order: Order) -> Self {
        let pass = Pass::new(profile, size.longest_bytes);
        Self { size, order, now: pass.clone(), ideal: pass, ideal_at: None }
    }

    /// The next piece of the file. Pieces come in the order of the file, without holes.
    pub fn piece(&mut self, piece: Piece) {
        let at = *self.ideal_at.get_or_insert(piece.physical);
        self.now.piece(piece, self.size.asked_bytes);
        self.ideal.piece(Piece { physical: at, ..piece }, self.size.asked_bytes);
        self.ideal_at = Some(at.saturating_add(piece.len_bytes));
    }

    /// The file is over. Answers what all of them cost so far.
    pub fn end_file(&mut self) -> ReadCost {
        self.ideal_at = None;
        for pass in [&mut self.now, &mut self.ideal] {
            pass.end_request();
            if self.order == Order::EachAlone {
                pass.head = None;
            }
        }
        self.total()
    }

    /// What everything so far costs.
    pub fn total(&self) -> ReadCost {
        ReadCost {
            bytes: self.now.bytes,
            requests: self.now.requests,
            unfragmented_requests: self.ideal.requests,
            seconds: self.now.seconds(),
            unfragmented_seconds: self.ideal.seconds(),
        }
    }

    /// What one file costs for itself.
    pub fn of_file(profile: &'a Profile, size: RequestSize, pieces: impl Iterator<Item = Piece>) -> ReadCost {
        let mut read = Self::new(profile, size, Order::EachAlone);
        pieces.for_each(|piece| read.piece(piece));
        read.end_file()
    }
}

/// One access of a trace to a virtual disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Where on the virtual disk.
    pub offset: u64,
    /// How long.
    pub len_bytes: u64,
}

/// What `accesses` cost one after the other on a disk that lies as `map` says: pieces in ascending order of their
/// logical place, without overlaps; what they leave out is not read. `None` if the map is not so.
///
/// The cost in one piece is that of a disk whose bytes all lie where its guest thinks.
pub fn trace_cost(
    profile: &Profile,
    limits: QueueLimits,
    map: &[Piece],
    accesses: impl IntoIterator<Item = Access>,
) -> Option<ReadCost> {
    let end = |piece: &Piece| piece.logical.checked_add(piece.len_bytes);
    let follows = |pair: &[Piece]| end(&pair[0]).is_some_and(|end| end <= pair[1].logical);
    if !map.windows(2).all(follows) || map.last().is_some_and(|last| end(last).is_none()) {
        return None;
    }
    let mut now = Pass::new(profile, limits.longest_bytes());
    let mut ideal = now.clone();
    for access in accesses {
        let access_end = access.offset.saturating_add(access.len_bytes);
        let first = map.partition_point(|piece| end(piece).is_some_and(|end| end <= access.offset));
        for piece in map[first..].iter().take_while(|piece| piece.logical < access_end) {
            let from = piece.logical.max(access.offset);
            let to = (piece.logical + piece.len_bytes).min(access_end);
            let physical = piece.physical.saturating_add(from - piece.logical);
            now.place(physical, to - from);
            ideal.place(from, to - from);
        }
        now.end_request();
        ideal.end_request();
    }
    Some(ReadCost {
        bytes: now.bytes,
        requests: now.requests,
        unfragmented_requests: ideal.requests,
        seconds: now.seconds(),
        unfragmented_seconds: ideal.seconds(),
    })
}

/// One way of reading: counts what a device does.
#[derive(Clone, Debug)]
struct Pass<'a> {
    profile: &'a Profile,
    longest_bytes: u64,
    /// Bytes of the program's current request that lie together with the last one; `None` between requests.
    run_bytes: Option<u64>,
    /// The number of the current request within its file.
    window: u64,
    jumps_in_request: u32,
    /// Where the last byte read ends.
    head: Option<u64>,
    /// How many bytes before the head lie together.
    together_bytes: u64,
    bytes: u64,
    asked: u64,
    requests: u64,
    jump_seconds: f64,
}

impl<'a> Pass<'a> {
    fn new(profile: &'a Profile, longest_bytes: u64) -> Self {
        Self {
            profile,
            longest_bytes,
            run_bytes: None,
            window: 0,
            jumps_in_request: 0,
            head: None,
            together_bytes: 0,
            bytes: 0,
            asked: 0,
            requests: 0,
            jump_seconds: 0.0,
        }
    }

    /// Reads a piece of a file in requests of `asked_bytes`.
    fn piece(&mut self, piece: Piece, asked_bytes: u64) {
        let Piece { logical, physical, len_bytes } = piece;
        if len_bytes == 0 {
            return;
        }
        if logical / asked_bytes != self.window {
            self.end_request();
        }
        let head_bytes = (asked_bytes - logical % asked_bytes).min(len_bytes);
        self.place(physical, head_bytes);
        let rest_bytes = len_bytes - head_bytes;
        let (whole, tail_bytes) = (rest_bytes / asked_bytes, rest_bytes % asked_bytes);
        if rest_bytes > 0 {
            // All but the last request lie together with what was read before: nothing to look at one by one.
            let last_bytes = if tail_bytes == 0 { asked_bytes } else { tail_bytes };
            let before = if tail_bytes == 0 { whole - 1 } else { whole };
            self.skip_over(before, asked_bytes);
            self.end_request();
            self.place(physical.saturating_add(len_bytes - last_bytes), last_bytes);
        }
        self.window = logical.saturating_add(len_bytes - 1) / asked_bytes;
    }

    /// `count` whole requests that go on where the head is.
    fn skip_over(&mut self, count: u64, asked_bytes: u64) {
        let bytes = count.saturating_mul(asked_bytes);
        self.requests =
            self.requests.saturating_add(count.saturating_mul(asked_bytes.div_ceil(self.longest_bytes)));
        self.asked = self.asked.saturating_add(count);
        self.bytes = self.bytes.saturating_add(bytes);
        self.together_bytes = self.together_bytes.saturating_add(bytes);
        self.head = self.head.map(|head| head.saturating_add(bytes));
    }

    /// Reads `len_bytes` at `physical` in the program's current request.
    fn place(&mut self, physical: u64, len_bytes: u64) {
        let is_new_request = self.run_bytes.is_none();
        let continues = self.head == Some(physical);
        if !continues {
            self.jump(physical, is_new_request);
            self.together_bytes = 0;
        }
        let run_bytes = self.run_bytes.filter(|_| continues).unwrap_or(0);
        let grown_bytes = run_bytes.saturating_add(len_bytes);
        let more = grown_bytes.div_ceil(self.longest_bytes) - run_bytes.div_ceil(self.longest_bytes);
        self.requests = self.requests.saturating_add(more);
        self.asked = self.asked.saturating_add(u64::from(is_new_request));
        self.bytes = self.bytes.saturating_add(len_bytes);
        self.together_bytes = self.together_bytes.saturating_add(len_bytes);
        self.run_bytes = Some(grown_bytes);
        self.head = Some(physical.saturating_add(len_bytes));
    }

    fn jump(&mut self, physical: u64, is_new_request: bool) {
        if is_new_request && !self.profile.jump.counts_between_requests {
            return;
        }
        let move_by = self.head.map(|head| i128::from(physical) - i128::from(head));
        let seconds = self.profile.jump_seconds(move_by, self.together_bytes);
        // The device knows all places of a request: it waits for the first, and fetches the others meanwhile.
        let at_once = if self.jumps_in_request == 0 { 1 } else { self.profile.queue_depth.max(1) };
        self.jump_seconds += seconds / f64::from(at_once);
        self.jumps_in_request = self.jumps_in_request.saturating_add(1);
    }

    fn end_request(&mut self) {
        self.run_bytes = None;
        self.jumps_in_request = 0;
    }

    fn seconds(&self) -> f64 {
        let profile = self.profile;
        profile.command_seconds * float(self.requests)
            + profile.access_seconds * float(self.asked)
            + float(self.bytes) / profile.bytes_per_second
            + self.jump_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{HDD, NVME, PROFILES, SAN, SATA_SSD};
    use proptest::prelude::*;

    const BLOCK: u64 = 4096;

    /// Pieces of these lengths in blocks, each so many blocks behind the end of the one before.
    fn scattered(lengths_and_gaps: &[(u64, u64)]) -> Vec<Piece> {
        let (mut logical, mut physical) = (0, 1 << 30);
        let place = |&(length, gap): &(u64, u64)| {
            let piece = Piece { logical, physical: physical + gap * BLOCK, len_bytes: length * BLOCK };
            logical += piece.len_bytes;
            physical = piece.physical + piece.len_bytes;
            piece
        };
        lengths_and_gaps.iter().map(place).collect()
    }

    fn even(count: usize, piece_bytes: u64) -> Vec<Piece> {
        scattered(&vec![(piece_bytes / BLOCK, 5000); count])
    }

    fn cost(profile: &Profile, asked_bytes: u64, pieces: &[Piece]) -> ReadCost {
        let size = RequestSize::new(asked_bytes, QueueLimits::DEFAULT);
        SequentialRead::of_file(profile, size, pieces.iter().copied())
    }

    /// Requests counted block by block.
    fn naive_requests(pieces: &[Piece], asked_bytes: u64, longest_bytes: u64) -> u64 {
        let blocks = pieces.iter().flat_map(|piece| {
            let bytes = (0..piece.len_bytes).step_by(512);
            bytes.map(move |by| (piece.logical + by, piece.physical + by))
        });
        let (mut count, mut run_bytes, mut last) = (0, 0, None);
        for (logical, physical) in blocks {
            let window = logical / asked_bytes;
            let goes_on = last == Some((window, physical)) && run_bytes < longest_bytes;
            run_bytes = if goes_on { run_bytes + 512 } else { 512 };
            count += u64::from(!goes_on);
            last = Some((window, physical + 512));
        }
        count
    }

    #[test]
    fn requests_are_split_where_a_person_would_say() {
        /// Lengths and gaps in blocks, what is asked for in blocks, requests, requests in one piece.
        type Case<'a> = (&'a [(u64, u64)], u64, u64, u64);
        let cases: [Case; 8] = [
            (&[], 8, 0, 0),
            (&[(8, 0)], 8, 1, 1),
            (&[(9, 0)], 8, 2, 2),
            (&[(4, 0), (4, 1)], 8, 2, 1),
            (&[(4, 0), (4, 0)], 8, 1, 1),
            (&[(8, 0), (8, 9)], 8, 2, 2),
            (&[(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)], 4, 8, 2),
            (&[(1024, 0)], 1024, 4, 4),
        ];
        for (pieces, asked_blocks, requests, unfragmented) in cases {
            let cost = cost(&HDD, asked_blocks * BLOCK, &scattered(pieces));
            assert_eq!(cost.requests, requests, "{pieces:?}");
            assert_eq!(cost.unfragmented_requests, unfragmented, "{pieces:?}");
        }
    }

    #[test]
    fn a_hole_splits_nothing_that_lies_together() {
        let pieces = [
            Piece { logical: 0, physical: 1 << 20, len_bytes: 4096 },
            Piece { logical: 8192, physical: (1 << 20) + 4096, len_bytes: 4096 },
        ];
        let cost = cost(&HDD, 16 << 10, &pieces);
        assert_eq!((cost.requests, cost.unfragmented_requests), (1, 1));
        assert_eq!(cost.bytes, 8192);
    }

    #[test]
    fn a_device_of_small_requests_splits_large_ones() {
        let limits = QueueLimits { request_bytes: 1280 << 10, segments: 128 };
        assert_eq!(limits.longest_bytes(), 512 << 10);
        let size = RequestSize::new(1 << 20, limits);
        let cost = SequentialRead::of_file(&HDD, size, scattered(&[(512, 0)]).into_iter());
        assert_eq!((cost.requests, cost.unfragmented_requests), (4, 4));
    }

    /// The calibration of the jump on flash, see `profile::FLASH_JUMP`.
    #[test]
    fn nvme_loses_what_fast_24_measured() {
        let piece_bytes = 16 << 10;
        let cost = cost(&NVME, READ_AHEAD_BYTES, &even(10_011, piece_bytes));
        let slower = 1.0 - cost.unfragmented_seconds / cost.seconds;
        assert!((0.38..0.42).contains(&slower), "{slower}");
    }

    #[test]
    fn on_flash_pieces_of_a_mebibyte_cost_nothing_and_on_a_disk_they_do() {
        let share = |profile: &Profile, piece_bytes: u64| {
            // Pieces that begin where no request does: the worst case.
            let mut pieces = even(200, piece_bytes);
            pieces.iter_mut().for_each(|piece| piece.logical += 20 << 10);
            let cost = cost(profile, READ_AHEAD_BYTES, &pieces);
            cost.seconds / cost.unfragmented_seconds - 1.0
        };
        for profile in [&SATA_SSD, &NVME] {
            assert!(share(profile, 1 << 20) < 0.01, "{}: {}", profile.name, share(profile, 1 << 20));
            assert!(share(profile, 4 << 20) < 0.005);
            assert!(share(profile, 16 << 10) > 0.1);
        }
        assert!(share(&HDD, 1 << 20) > 0.5);
        assert!(share(&SAN, 16 << 10) > share(&SATA_SSD, 16 << 10));
        assert!(share(&HDD, 16 << 10) > 10.0 * share(&SAN, 16 << 10));
    }

    #[test]
    fn files_read_in_order_cost_the_way_from_one_to_the_next() {
        let size = RequestSize::read_ahead();
        let read = |order, places: &[u64]| {
            let mut read = SequentialRead::new(&HDD, size, order);
            for &physical in places {
                read.piece(Piece { logical: 0, physical, len_bytes: 4096 });
                read.end_file();
            }
            read.total()
        };
        let beside = [0, 4096, 8192, 12288];
        let far = [0, 3 << 40, 4096, (3 << 40) + 4096];
        assert!(read(Order::AsTold, &beside).seconds < 0.02);
        assert!(read(Order::AsTold, &far).seconds > 0.05);
        let alone = read(Order::EachAlone, &beside);
        assert!((alone.seconds - read(Order::EachAlone, &far).seconds).abs() < 1e-9);
        assert_eq!(alone.requests, 4);
        assert!(alone.extra_seconds() < 1e-9 && alone.extra_requests() == 0);
    }

    #[test]
    fn a_trace_meets_the_places_of_its_map() {
        let map = [
            Piece { logical: 0, physical: 1 << 40, len_bytes: 8192 },
            Piece { logical: 8192, physical: 0, len_bytes: 8192 },
            Piece { logical: 1 << 20, physical: 8192, len_bytes: 8192 },
        ];
        let trace = |accesses: &[(u64, u64)]| {
            let accesses = accesses.iter().map(|&(offset, len_bytes)| Access { offset, len_bytes });
            trace_cost(&HDD, QueueLimits::DEFAULT, &map, accesses).unwrap()
        };
        let across = trace(&[(4096, 8192)]);
        assert_eq!((across.requests, across.unfragmented_requests, across.bytes), (2, 1, 8192));
        assert!(across.extra_seconds() > 0.004);
        let hole = trace(&[(64 << 10, 4096), (u64::MAX - 1, 4096)]);
        assert_eq!((hole.requests, hole.bytes), (0, 0));
        let merged = trace(&[(8192, 1 << 30)]);
        assert_eq!((merged.requests, merged.bytes), (1, 16384), "they lie together behind a hole");
        let twice = trace(&[(0, 4096), (0, 4096)]);
        assert_eq!(twice.requests, 2);

        let unsorted = [map[1], map[0]];
        assert!(trace_cost(&HDD, QueueLimits::DEFAULT, &unsorted, []).is_none());
        let endless = [Piece { logical: u64::MAX, physical: 0, len_bytes: 2 }];
        assert!(trace_cost(&HDD, QueueLimits::DEFAULT, &endless, []).is_none());
    }

    #[test]
    fn a_file_of_exabytes_takes_no_longer_than_a_small_one() {
        let piece = Piece { logical: 0, physical: 0, len_bytes: u64::MAX };
        let cost = cost(&NVME, 4096, &[piece, piece]);
        assert!(cost.requests >= u64::MAX / 4096 && cost.seconds.is_finite());
    }

    fn layout() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((1u64..40, prop_oneof![Just(0), 1u64..5000]), 1..20)
    }

    proptest! {
        #[test]
        fn requests_are_those_counted_block_by_block(
            layout in layout(),
            holes in prop::collection::vec(0u64..4, 20),
            asked_blocks in 1u64..40,
            longest_blocks in 1u64..20,
        ) {
            let mut pieces = scattered(&layout);
            let mut hole_bytes = 0;
            for (piece, hole) in pieces.iter_mut().zip(holes) {
                hole_bytes += hole * BLOCK;
                piece.logical += hole_bytes;
            }
            let asked_bytes = asked_blocks * BLOCK;
            let limits = QueueLimits { request_bytes: longest_blocks * BLOCK, segments: u64::MAX };
            let size = RequestSize::new(asked_bytes, limits);
            let cost = SequentialRead::of_file(&HDD, size, pieces.iter().copied());
            prop_assert_eq!(cost.requests, naive_requests(&pieces, asked_bytes, longest_blocks * BLOCK));
            let mut at = 0;
            for piece in &mut pieces {
                piece.physical = at;
                at += piece.len_bytes;
            }
            let together = naive_requests(&pieces, asked_bytes, longest_blocks * BLOCK);
            prop_assert_eq!(cost.unfragmented_requests, together);
        }

        /// How a caller cuts what lies together changes nothing.
        #[test]
        fn pieces_that_lie_together_are_one(layout in layout(), cut in any::<prop::sample::Index>()) {
            let pieces = scattered(&layout);
            let mut cut_in_two = pieces.clone();
            let index = cut.index(pieces.len());
            let first_bytes = pieces[index].len_bytes / 2 / 512 * 512;
            let rest = Piece {
                logical: pieces[index].logical + first_bytes,
                physical: pieces[index].physical + first_bytes,
                len_bytes: pieces[index].len_bytes - first_bytes,
            };
            cut_in_two[index].len_bytes = first_bytes;
            cut_in_two.insert(index + 1, rest);
            for profile in PROFILES {
                let (whole, cut) = (cost(profile, 64 << 10, &pieces), cost(profile, 64 << 10, &cut_in_two));
                prop_assert_eq!(whole.requests, cut.requests);
                prop_assert!((whole.seconds - cut.seconds).abs() < 1e-9);
            }
        }

        #[test]
        fn fragments_never_make_a_file_cheaper(
            layout in layout(),
            cut in any::<prop::sample::Index>(),
            shift in prop_oneof![-1_000_000_000i64..0, 1i64..1_000_000_000_000],
            asked_blocks in 1u64..300,
        ) {
            let pieces = scattered(&layout);
            // The tail of the file, from the middle of a piece on, moves elsewhere as it is.
            let index = cut.index(pieces.len());
            let first_bytes = pieces[index].len_bytes / BLOCK / 2 * BLOCK;
            let moved = |piece: Piece| Piece { physical: piece.physical.saturating_add_signed(shift), ..piece };
            let rest = Piece {
                logical: pieces[index].logical + first_bytes,
                physical: pieces[index].physical + first_bytes,
                len_bytes: pieces[index].len_bytes - first_bytes,
            };
            let mut more = pieces[..index].to_vec();
            more.push(Piece { len_bytes: first_bytes, ..pieces[index] });
            more.push(moved(rest));
            more.extend(pieces[index + 1..].iter().copied().map(moved));
            prop_assume!(first_bytes > 0);
            for profile in PROFILES {
                let before = cost(profile, asked_blocks * BLOCK, &pieces);
                let after = cost(profile, asked_blocks * BLOCK, &more);
                prop_assert!(after.requests >= before.requests, "{}", profile.name);
                prop_assert!(after.seconds >= before.seconds - 1e-9, "{}: {before:?} {after:?}", profile.name);
                prop_assert!(before.seconds >= before.unfragmented_seconds - 1e-9, "{}: {before:?}", profile.name);
                prop_assert!(before.requests >= before.unfragmented_requests);
            }
        }

        #[test]
        fn nonsense_does_no_harm(
            pieces in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..10),
            asked_bytes in any::<u64>(),
            request_bytes in any::<u64>(),
            segments in any::<u64>(),
        ) {
            let pieces = pieces.into_iter();
            let piece = |(logical, physical, len_bytes)| Piece { logical, physical, len_bytes };
            let pieces: Vec<_> = pieces.map(piece).collect();
            let limits = QueueLimits { request_bytes, segments };
            for profile in PROFILES {
                let size = RequestSize::new(asked_bytes, limits);
                let cost = SequentialRead::of_file(profile, size, pieces.iter().copied());
                prop_assert!(cost.seconds.is_finite() && cost.seconds >= 0.0);
                let access = |piece: &Piece| Access { offset: piece.physical, len_bytes: piece.len_bytes };
                let accesses = pieces.iter().map(access);
                let _ = trace_cost(profile, limits, &pieces, accesses);
            }
        }
    }
}
