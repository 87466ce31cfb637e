//! Which storage of a file was reserved and not used, and how much to reserve next. Knows no file and no clock.
//!
//! The file is seen in chunks, aligned and of 16 MiB, and these in blocks of 4 KiB. A chunk is unknown; or it is backed,
//! which means that all of it has storage that is none of ours; or it has holes, or unused blocks: those that were holes and were
//! reserved here.
//!
//! Invariants:
//! - an unused block was reserved here and never written, zeroed or given to anybody since;
//! - a block to which a write is under way is neither a hole nor unused, whatever the host says of it: the host may not know of
//!   the write yet;
//! - what was punched or cut off is a hole only once the host was asked again;
//! - memory is bounded: chunks that have holes alone are forgotten when there are too many, and asked for again.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use extent::{ExtentSet, Host, HostOffset, HostSpan, Span};
use mutants::broken;

use crate::bits::{BLOCK_COUNT, Bits, Block};
use crate::policy::Policy;

/// The unit of what is used or not.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// The least that is looked at and reserved at once.
pub(crate) const CHUNK_BYTES: u64 = BLOCK_BYTES * BLOCK_COUNT as u64;
/// Blocks of what goes to the device at once.
const STRETCH_BLOCKS: usize = BLOCK_COUNT / 4;
const STRETCH_BYTES: u64 = BLOCK_BYTES * STRETCH_BLOCKS as u64;
/// What was written outside of such stretches is much from here on.
const SCATTERED_BYTES_MAX: u64 = 128 << 20;
/// Chunks with holes that are remembered at most: some 4 MiB.
const CHUNK_COUNT_MAX: usize = 4096;
/// Reserved and unused at most, whatever room there is.
const UNUSED_BYTES_MAX: u64 = 4 << 30;
/// As much of what the file system has left is reserved at once: one part of so many.
const ROOM_SHARE: u64 = 2;
/// So many times what the file system has left may be reserved and unused: three quarters of what would be free without. With less,
/// disks that are written all over would have no room ahead in their last parts.
const LEFT_TIMES: u64 = 3;
/// Of what was reserved so much was used at least, one part of so many, or the next is less.
const WORTH_SHARE: u64 = 8;

/// Smaller holes among data are left alone unless they are written: most are what a table does not fill of its cluster.
const HOLE_BYTES_MIN: u64 = 256 << 10;

/// Milliseconds of any clock that does not go back.
pub type Millis = u64;

#[derive(Default)]
struct Chunk {
    holes: Bits,
    unused: Bits,
    /// When it was last written.
    touched: Millis,
    /// Some of its storage went: the host is to be asked again.
    is_stale: bool,
}

/// Number of a write that is under way.
pub(crate) type Number = u64;

/// What a write used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Used {
    /// Any of it was reserved and unused.
    pub(crate) was_reserved: bool,
    /// Stretches, aligned and of 4 MiB, in which nothing is left unused.
    pub(crate) whole: Vec<HostSpan>,
    /// Much was used elsewhere since this was last said.
    pub(crate) is_much_scattered: bool,
}

/// See the module's page.
#[derive(Default)]
pub(crate) struct Ledger {
    chunks: HashMap<u64, Chunk>,
    /// Writes that are under way: as many as there are threads that write, at most.
    in_flight: Vec<(Number, HostSpan)>,
    last_number: Number,
    backed: HashSet<u64>,
    unused_blocks: u64,
    /// Written into what was reserved since nothing was reserved.
    consumed_bytes: u64,
    /// Given back since then.
    returned_bytes: u64,
    /// How often in a row little of what was reserved was used.
    waste_count: u32,
    /// Written into what was reserved, outside of whole stretches.
    scattered_bytes: u64,
}

fn chunks_of(span: HostSpan) -> Range<u64> {
    span.start().get() / CHUNK_BYTES..span.end().get().div_ceil(CHUNK_BYTES)
}

/// The span of the chunk `number`.
pub(crate) fn chunk_span(number: u64) -> HostSpan {
    Span::new(HostOffset::new(number.saturating_mul(CHUNK_BYTES)), CHUNK_BYTES)
}

fn blocks_span(number: u64, range: &Range<Block>) -> HostSpan {
    let start = chunk_span(number).start();
    let at = |block: Block| start.plus(block as u64 * BLOCK_BYTES);
    Span::between(at(range.start), at(range.end))
}

/// The blocks of chunk `number` that `span` touches.
fn touched(number: u64, span: HostSpan) -> Range<Block> {
    blocks(number, span, u64::div_ceil)
}

/// The blocks of chunk `number` that lie within `span` as a whole.
fn within(number: u64, span: HostSpan) -> Range<Block> {
    let start = span.start().get().next_multiple_of(BLOCK_BYTES);
    let end = span.end().get() / BLOCK_BYTES * BLOCK_BYTES;
    if start >= end {
        return 0..0;
    }
    touched(number, Span::between(HostOffset::new(start), HostOffset::new(end)))
}

fn blocks(number: u64, span: HostSpan, end_of: impl Fn(u64, u64) -> u64) -> Range<Block> {
    let chunk = chunk_span(number);
    let Some(both) = chunk.intersect(&span) else { return 0..0 };
    let from = (both.start().get() - chunk.start().get()) / BLOCK_BYTES;
    let to = end_of(both.end().get() - chunk.start().get(), BLOCK_BYTES);
    index(from)..index(to)
}

fn index(block: u64) -> Block {
    usize::try_from(block).expect("at most a chunk's blocks")
}

impl Ledger {
    /// The chunks of `span` that are unknown, or not known any more.
    pub(crate) fn unknown(&self, span: HostSpan) -> Vec<u64> {
        let is_known = |number: &u64| {
            self.backed.contains(number) || self.chunks.get(number).is_some_and(|chunk| !chunk.is_stale)
        };
        chunks_of(span).filter(|number| !is_known(number)).collect()
    }

    /// Chunk `number`, so far unknown, has storage where `allocated` says so, and where it is being written.
    pub(crate) fn learn(&mut self, number: u64, allocated: &ExtentSet<Host>, now: Millis) {
        let mut holes = Bits::default();
        for hole in allocated.invert(chunk_span(number)).iter() {
            holes.set(&within(number, hole));
        }
        for (_, span) in self.in_flight.iter().filter(|_| !broken!(InFlightForgotten)) {
            holes.clear(&touched(number, *span));
        }
        if let Some(chunk) = self.chunks.get_mut(&number) {
            // What was reserved may have been punched since.
            self.unused_blocks -= holes.runs().iter().map(|run| chunk.unused.clear(run)).sum::<u64>();
            (chunk.holes, chunk.is_stale) = (holes, false);
            self.mark_backed_if_so(number);
            return;
        }
        if holes.is_empty() {
            self.backed.insert(number);
            return;
        }
        if self.chunks.len() >= CHUNK_COUNT_MAX {
            self.chunks.retain(|_, chunk| !chunk.unused.is_empty());
        }
        self.chunks.insert(number, Chunk { holes, touched: now, ..Chunk::default() });
    }

    /// All of chunk `number` may have storage that is none of ours.
    fn mark_backed_if_so(&mut self, number: u64) {
        let is_backed = |chunk: &Chunk| !chunk.is_stale && chunk.holes.is_empty() && chunk.unused.is_empty();
        if self.chunks.get(&number).is_some_and(is_backed) {
            self.chunks.remove(&number);
            self.backed.insert(number);
        }
    }

    /// The first chunk of `span` with a hole in it there.
    pub(crate) fn first_hole(&self, span: HostSpan) -> Option<u64> {
        chunks_of(span).find(|number| {
            self.chunks.get(number).is_some_and(|chunk| chunk.holes.any(&touched(*number, span)))
        })
    }

    /// What to reserve around chunk `number`, in which a hole is about to be written, if `room_bytes` are left and the file
    /// will end at `limit_bytes`. It doubles as what was reserved is used. `None` if there is not enough room.
    pub(crate) fn window(
        &self,
        number: u64,
        policy: &Policy,
        room_bytes: u64,
        limit_bytes: u64,
    ) -> Option<HostSpan> {
        let may_bytes = self.may_bytes(room_bytes)?;
        if chunk_span(number).start().get() >= limit_bytes {
            return None;
        }
        // A quarter each time that it was not worth it.
        let first = policy.first_bytes.checked_shr(self.waste_count.saturating_mul(2)).unwrap_or(0);
        let wanted = self.consumed_bytes.saturating_mul(2).max(first).checked_next_power_of_two()?;
        let mut len_bytes = wanted.clamp(policy.least_bytes.max(CHUNK_BYTES), policy.most_bytes);
        while len_bytes >= policy.least_bytes.max(CHUNK_BYTES) {
            let start = HostOffset::new(chunk_span(number).start().get() / len_bytes * len_bytes);
            let window = Span::checked(start, len_bytes)?.intersect(&Span::from_zero(limit_bytes))?;
            if window.len_bytes() <= may_bytes {
                return Some(window);
            }
            len_bytes /= 2;
        }
        None
    }

    /// What may be reserved at once if `room_bytes` are left; these get less by it.
    fn may_bytes(&self, room_bytes: u64) -> Option<u64> {
        let unused_bytes = self.unused_bytes();
        let at_all = UNUSED_BYTES_MAX.checked_sub(unused_bytes)?;
        let beside_others =
            room_bytes.saturating_mul(LEFT_TIMES).checked_sub(unused_bytes)? / (LEFT_TIMES + 1);
        Some((room_bytes / ROOM_SHARE).min(at_all).min(beside_others))
    }

    /// Whether little was used of what was reserved last.
    pub(crate) fn is_wasteful(&self) -> bool {
        self.waste_count > 0
    }

    /// The holes of `window` that are worth reserving for a write of `span`, in order.
    pub(crate) fn holes(&self, window: HostSpan, span: HostSpan) -> Vec<HostSpan> {
        let mut holes = Vec::new();
        for number in chunks_of(window) {
            let Some(chunk) = self.chunks.get(&number) else { continue };
            let runs = chunk.holes.runs().into_iter().map(|run| blocks_span(number, &run));
            holes.extend(runs.filter_map(|hole| hole.intersect(&window)));
        }
        let joined: ExtentSet<Host> = holes.into_iter().collect();
        joined
            .iter()
            .filter(|hole| hole.len_bytes() >= HOLE_BYTES_MIN || hole.intersect(&span).is_some())
            .collect()
    }

    /// What were holes of `span` has storage now.
    pub(crate) fn reserved(&mut self, span: HostSpan, now: Millis) {
        for number in chunks_of(span) {
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            for run in chunk.holes.runs() {
                let part = within(number, span);
                let part = run.start.max(part.start)..run.end.min(part.end);
                if part.start < part.end {
                    self.unused_blocks += chunk.holes.clear(&part);
                    chunk.unused.set(&part);
                }
            }
            chunk.touched = now;
        }
    }

    /// A write to `span` begins, and is under way until [`Ledger::ended`].
    pub(crate) fn began(&mut self, span: HostSpan, now: Millis) -> (Used, Number) {
        self.last_number += 1;
        self.in_flight.push((self.last_number, span));
        (self.used(span, now), self.last_number)
    }

    /// The write of that number is over, however it ended.
    pub(crate) fn ended(&mut self, number: Number) {
        self.in_flight.retain(|(other, _)| *other != number);
    }

    /// `span` is about to be written.
    fn used(&mut self, span: HostSpan, now: Millis) -> Used {
        let mut taken = 0;
        let mut whole = Vec::new();
        for number in chunks_of(span) {
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            let blocks = touched(number, span);
            chunk.holes.clear(&blocks);
            let taken_here = if broken!(UsedStaysUnused) { 0 } else { chunk.unused.clear(&blocks) };
            if taken_here > 0 {
                let stretches = blocks.start / STRETCH_BLOCKS..blocks.end.div_ceil(STRETCH_BLOCKS);
                let stretches = stretches.map(|index| index * STRETCH_BLOCKS..(index + 1) * STRETCH_BLOCKS);
                let is_whole = |blocks: &Range<Block>| !chunk.unused.any(blocks) && !chunk.holes.any(blocks);
                whole.extend(stretches.filter(is_whole).map(|blocks| blocks_span(number, &blocks)));
            }
            taken += taken_here;
            chunk.touched = now;
            self.mark_backed_if_so(number);
        }
        self.unused_blocks -= taken;
        self.consumed_bytes = self.consumed_bytes.saturating_add(taken * BLOCK_BYTES);
        self.scattered_bytes += taken * BLOCK_BYTES;
        self.scattered_bytes = self.scattered_bytes.saturating_sub(whole.len() as u64 * STRETCH_BYTES);
        let is_much_scattered = self.scattered_bytes >= SCATTERED_BYTES_MAX;
        if is_much_scattered {
            self.scattered_bytes = 0;
        }
        Used { was_reserved: taken > 0, whole, is_much_scattered }
    }

    /// Storage of `span` went, or may have. What of it is a hole the host says when it is asked next.
    pub(crate) fn freed(&mut self, span: HostSpan) {
        for number in chunks_of(span) {
            self.backed.remove(&number);
            if let Some(chunk) = self.chunks.get_mut(&number) {
                chunk.is_stale = true;
            }
        }
    }

    /// Everything from `len_bytes` on went.
    pub(crate) fn cut(&mut self, len_bytes: u64) {
        let last = len_bytes / CHUNK_BYTES;
        self.backed.retain(|number| *number < last);
        self.freed(Span::between(HostOffset::new(len_bytes), chunk_span(last).end()));
        let unused_blocks = &mut self.unused_blocks;
        self.chunks.retain(|number, chunk| {
            let stays = *number <= last;
            *unused_blocks -= if stays { 0 } else { chunk.unused.count() };
            stays
        });
    }

    /// Reserved and not used.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.unused_blocks * BLOCK_BYTES
    }

    /// Whether [`Ledger::take_idle`] would find anything.
    pub(crate) fn has_idle(&self, before: Millis) -> bool {
        self.chunks.values().any(|chunk| chunk.touched < before && !chunk.unused.is_empty())
    }

    /// What is unused of chunks that were last written before `before`, which is no longer counted as reserved: it is
    /// about to go.
    pub(crate) fn take_idle(&mut self, before: Millis) -> ExtentSet<Host> {
        let mut spans = Vec::new();
        for (number, chunk) in &mut self.chunks {
            if chunk.touched >= before || chunk.unused.is_empty() {
                continue;
            }
            for run in chunk.unused.runs() {
                spans.push(blocks_span(*number, &run));
                self.unused_blocks -= chunk.unused.clear(&run);
                chunk.holes.set(&run);
            }
        }
        let idle: ExtentSet<Host> = spans.into_iter().collect();
        self.returned_bytes = self.returned_bytes.saturating_add(idle.total_bytes());
        if self.unused_blocks == 0 && !idle.is_empty() {
            let was_worth_it = self.consumed_bytes >= self.returned_bytes / WORTH_SHARE;
            self.waste_count = if was_worth_it { 0 } else { self.waste_count.saturating_add(1) };
            (self.consumed_bytes, self.returned_bytes) = (0, 0);
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::policy_of;

    const XFS: u64 = 0x5846_5342;
    const MIB: u64 = 1 << 20;
    const LIMIT: u64 = 1 << 50;

    fn span(start: u64, len_bytes: u64) -> HostSpan {
        Span::new(HostOffset::new(start), len_bytes)
    }

    /// Writes as the file does: looks, reserves, uses. What was reserved for it, if anything.
    fn write(ledger: &mut Ledger, at: HostSpan, free_bytes: u64, now: Millis) -> Option<HostSpan> {
        write_below(LIMIT, ledger, at, free_bytes, now)
    }

    /// The same of a file that will end at `limit_bytes`.
    fn write_below(
        limit_bytes: u64,
        ledger: &mut Ledger,
        at: HostSpan,
        free_bytes: u64,
        now: Millis,
    ) -> Option<HostSpan> {
        for number in ledger.unknown(at) {
            ledger.learn(number, &ExtentSet::new(), now);
        }
        let policy = policy_of(XFS).unwrap();
        let window =
            ledger.first_hole(at).and_then(|number| ledger.window(number, &policy, free_bytes, limit_bytes));
        if let Some(window) = window {
            for number in ledger.unknown(window) {
                ledger.learn(number, &ExtentSet::new(), now);
            }
            ledger.reserved(window, now);
        }
        ledger.used(at, now);
        window
    }

    #[test]
    fn a_growing_stream_gets_twice_the_room_each_time_up_to_a_cap() {
        let mut ledger = Ledger::default();
        let windows: Vec<u64> = (0..64 * 1024)
            .filter_map(|number| write(&mut ledger, span(number << 16, 1 << 16), 1 << 40, 0))
            .map(|window| window.len_bytes() / MIB)
            .collect();
        assert_eq!(windows, [256, 512, 1024, 1024, 1024, 1024]);
        assert_eq!(ledger.unused_bytes(), 0, "4 GiB were written, which end with a window");
    }

    #[test]
    fn scattered_writes_share_the_windows_around_them() {
        let mut ledger = Ledger::default();
        let count = (0..4096)
            .filter_map(|number| write(&mut ledger, span((number * 1201 % 4096) << 16, 1 << 16), 1 << 40, 0))
            .count();
        assert_eq!(count, 1);
        assert_eq!(ledger.unused_bytes(), 0);
    }

    #[test]
    fn stretches_are_whole_once_their_last_block_is_used() {
        let mut ledger = Ledger::default();
        write(&mut ledger, span(5 * MIB, MIB), 1 << 40, 0);
        let whole = |ledger: &mut Ledger, start, len_bytes| ledger.used(span(start, len_bytes), 0).whole;
        assert_eq!(whole(&mut ledger, 0, 3 * MIB), []);
        assert_eq!(whole(&mut ledger, 2 * MIB, 3 * MIB), [span(0, 4 * MIB)], "the second lacks two MiB");
        assert_eq!(
            whole(&mut ledger, 6 * MIB, 6 * MIB + 1),
            [span(4 * MIB, 4 * MIB), span(8 * MIB, 4 * MIB)]
        );
        assert_eq!(whole(&mut ledger, 0, 12 * MIB), [], "once");
        assert_eq!(whole(&mut ledger, 12 * MIB, 4 * MIB), [span(12 * MIB, 4 * MIB)], "a chunk's last");
        ledger.learn(100, &[chunk_span(100)].into_iter().collect(), 0);
        assert_eq!(ledger.used(chunk_span(100), 0), Used::default(), "it was not reserved here");
    }

    #[test]
    fn what_is_scattered_adds_up() {
        let mut ledger = Ledger::default();
        let steps = (0..2 * SCATTERED_BYTES_MAX).step_by(1 << 20);
        let much: Vec<u64> = steps
            .filter(|start| {
                write(&mut ledger, span(start * 2, 4096), 1 << 40, 0);
                ledger.used(span(start * 2, 1 << 20), 0).is_much_scattered
            })
            .collect();
        assert_eq!(much, [SCATTERED_BYTES_MAX, 2 * SCATTERED_BYTES_MAX].map(|bytes| bytes - MIB));
        let steps = (0..2 * SCATTERED_BYTES_MAX).step_by(1 << 20);
        assert!(
            !steps.map(|start| (2 << 30) + start).any(|start| {
                write(&mut ledger, span(start, 4096), 1 << 40, 0);
                ledger.used(span(start, 1 << 20), 0).is_much_scattered
            }),
            "a stream is not scattered"
        );
    }

    #[test]
    fn what_is_unused_never_exceeds_a_share_of_the_room() {
        let mut ledger = Ledger::default();
        let free_bytes = 1 << 30;
        for number in 0..1000 {
            let room_bytes = free_bytes - ledger.unused_bytes();
            let window = write(&mut ledger, span(number << 30, 4096), room_bytes, 0);
            assert!(window.is_none_or(|window| window.len_bytes() <= room_bytes / ROOM_SHARE));
            assert!(ledger.unused_bytes() <= free_bytes / 4 * 3);
        }
        assert!(ledger.unused_bytes() > free_bytes / 2, "what is written all over has most of it");
        assert_eq!(write(&mut ledger, span(5 << 40, 4096), 31 * MIB, 0), None, "too little room for any");
    }

    #[test]
    fn two_disks_that_take_most_of_the_room_have_all_of_theirs_ahead() {
        // Each has a window of 256 MiB and a rest of 44 MiB, and 780 MiB were free.
        let mut ledgers = [Ledger::default(), Ledger::default()];
        for at in [0, 256 * MIB] {
            for index in 0..ledgers.len() {
                let unused_bytes: u64 = ledgers.iter().map(Ledger::unused_bytes).sum();
                let room_bytes = 780 * MIB - unused_bytes;
                let window = write_below(300 * MIB, &mut ledgers[index], span(at, 4096), room_bytes, 0);
                assert_eq!(
                    window,
                    Some(Span::between(
                        HostOffset::new(at),
                        HostOffset::new((at + 256 * MIB).min(300 * MIB))
                    ))
                );
            }
        }
    }

    #[test]
    fn idle_chunks_alone_give_back_and_only_what_nobody_wrote() {
        let mut ledger = Ledger::default();
        write(&mut ledger, span(MIB, 4096), 1 << 40, 10);
        write(&mut ledger, span(100 * MIB + 1, 4096), 1 << 40, 20);
        let idle = ledger.take_idle(20);
        let [second, after] = [6, 7].map(|number| chunk_span(number).start().get());
        let expected = [span(0, MIB), span(MIB + 4096, second - MIB - 4096), span(after, 256 * MIB - after)];
        assert_eq!(idle, expected.into_iter().collect());
        let idle = ledger.take_idle(21);
        assert_eq!(idle.total_bytes(), CHUNK_BYTES - 8192, "a write touches two blocks");
        assert_eq!(ledger.unused_bytes(), 0);
        assert!(ledger.take_idle(99).is_empty());
    }

    #[test]
    fn who_uses_little_gets_less_and_who_uses_much_gets_more_again() {
        let mut ledger = Ledger::default();
        let sizes: Vec<u64> = (0..5)
            .map(|turn| {
                let window = write(&mut ledger, span(turn << 30, 4096), 1 << 40, turn);
                ledger.take_idle(turn + 1);
                window.unwrap().len_bytes() / MIB
            })
            .collect();
        assert_eq!(sizes, [256, 64, 16, 16, 16]);
        assert!(ledger.is_wasteful());
        write(&mut ledger, span(7 << 30, 8 * MIB), 1 << 40, 7);
        ledger.take_idle(8);
        assert!(!ledger.is_wasteful());
        assert_eq!(write(&mut ledger, span(8 << 30, 4096), 1 << 40, 8).unwrap().len_bytes(), 256 * MIB);
    }

    #[test]
    fn a_window_ends_where_the_file_will() {
        let (mut ledger, policy) = (Ledger::default(), policy_of(XFS).unwrap());
        ledger.learn(6, &ExtentSet::new(), 0);
        let window = ledger.window(6, &policy, 1 << 40, 100 * MIB + 5);
        assert_eq!(window, Some(span(0, 100 * MIB + 5)));
        assert_eq!(ledger.window(6, &policy, 1 << 40, 5), None);
        let small = ledger.window(6, &policy, 40 * MIB, 100 * MIB + 5);
        assert_eq!(small, Some(span(96 * MIB, 4 * MIB + 5)), "all that fits");
    }

    #[test]
    fn what_has_storage_already_is_neither_reserved_nor_given_back() {
        let mut ledger = Ledger::default();
        let has: ExtentSet<Host> =
            [span(0, MIB), span(3 * MIB, 100), span(3 * MIB + (200 << 10), 4096)].into_iter().collect();
        ledger.learn(0, &has, 0);
        assert_eq!(ledger.first_hole(span(0, MIB)), None);
        assert_eq!(ledger.first_hole(span(3 * MIB, 50)), None, "a block in part");
        let after = 3 * MIB + (204 << 10);
        let expected = [span(MIB, 2 * MIB), span(after, CHUNK_BYTES - after)];
        assert_eq!(ledger.holes(chunk_span(0), span(MIB, 1)), expected, "49 blocks are too few");
        assert_eq!(ledger.holes(chunk_span(0), span(3 * MIB + 9000, 1)).len(), 3, "but for a write to them");
        expected.iter().for_each(|hole| ledger.reserved(*hole, 0));
        assert_eq!(ledger.take_idle(1), expected.into_iter().collect());
        ledger.learn(7, &[chunk_span(7)].into_iter().collect(), 0);
        assert!(ledger.unknown(chunk_span(7)).is_empty());
        ledger.freed(span(7 * CHUNK_BYTES, 4096));
        assert_eq!(ledger.unknown(chunk_span(7)), [7]);
    }

    #[test]
    fn what_was_freed_or_cut_off_is_looked_at_again() {
        let mut ledger = Ledger::default();
        write(&mut ledger, span(0, 4096), 1 << 40, 0);
        let unused_bytes = ledger.unused_bytes();
        ledger.freed(span(MIB, 2 * MIB));
        assert_eq!(ledger.unknown(span(0, 256 * MIB)), [0]);
        let host = [span(0, MIB), span(3 * MIB, CHUNK_BYTES - 3 * MIB)];
        ledger.learn(0, &host.into_iter().collect(), 0);
        assert_eq!(ledger.unused_bytes(), unused_bytes - 2 * MIB);
        assert_eq!(ledger.holes(chunk_span(0), chunk_span(0)), [span(MIB, 2 * MIB)]);
        ledger.cut(8 * MIB);
        assert_eq!(ledger.unknown(span(0, 256 * MIB)), (0..16).collect::<Vec<_>>());
        ledger.learn(0, &[span(0, MIB), span(3 * MIB, 5 * MIB)].into_iter().collect(), 0);
        let expected = [span(4096, MIB - 4096), span(3 * MIB, 5 * MIB)].into_iter().collect();
        assert_eq!(ledger.take_idle(1), expected);
    }

    #[test]
    fn what_is_being_written_is_no_hole_whatever_the_host_says() {
        let nothing = ExtentSet::new();
        let written = span(MIB + 5, 4096);
        let mut ledger = Ledger::default();
        // Nothing is known of its chunk, as after a back-off.
        let (_, number) = ledger.began(written, 0);
        ledger.learn(0, &nothing, 0);
        let around = [span(0, MIB), span(MIB + 8192, CHUNK_BYTES - MIB - 8192)];
        assert_eq!(ledger.holes(chunk_span(0), chunk_span(0)), around);
        around.iter().for_each(|hole| ledger.reserved(*hole, 0));
        // Its chunk is looked at again because others were punched in it.
        ledger.freed(span(0, MIB));
        assert_eq!(ledger.unknown(written), [0]);
        ledger.learn(0, &[around[1]].into_iter().collect(), 0);
        assert_eq!(ledger.holes(chunk_span(0), chunk_span(0)), [span(0, MIB)]);
        ledger.ended(number);
        assert_eq!(ledger.take_idle(1), [around[1]].into_iter().collect());
        ledger.freed(span(0, 4096));
        ledger.learn(0, &[span(MIB, 8192)].into_iter().collect(), 0);
        assert_eq!(ledger.holes(chunk_span(0), chunk_span(0)), around, "now the host knows of it");
    }

    #[test]
    fn what_could_not_be_punched_may_have_storage_and_stays_unused() {
        let mut ledger = Ledger::default();
        write(&mut ledger, span(0, 4096), 1 << 40, 0);
        let unused_bytes = ledger.unused_bytes();
        ledger.freed(span(0, MIB));
        assert_eq!(ledger.unknown(span(0, MIB)), [0]);
        assert_eq!(ledger.unused_bytes(), unused_bytes);
        ledger.learn(0, &[chunk_span(0)].into_iter().collect(), 0);
        assert_eq!(ledger.first_hole(span(0, MIB)), None);
    }
}
