//! Which stretches of a file are put together, and whether that pays. Pure.
//!
//! The rule: a stretch is a run of neighbouring pieces that are each shorter than [`SHORT_BYTES`], the length from which on no storage of
//! `predict` loses more than a few hundredths by the next jump; longer pieces stay where they are. A stretch pays if what reading the file
//! once loses by it, times [`READS`], is at least what reading and writing the stretch takes. Where only whole files can be moved, the
//! file is the stretch. What is shared stays, and ends a stretch.
//!
//! A file of at most [`SMALL_BYTES_MAX`] that lies in pieces is put together whole, whether that pays or not, though not often
//! ([`SMALL_AGAIN_MS`]): it was just written, and so is in memory, and writing it once more takes some hundredths of a second.
//!
//! Where a place can be asked for, what lies beside a longer piece in the file is put beside it on the device as well: the beginning of a file,
//! which was written before room was reserved, and its end. That takes at most [`JOIN_BYTES_MAX`] of a file each time, whatever the longer
//! piece has, which stays.

use mutants::broken;
use predict::cost::{Piece, ReadCost, RequestSize, SequentialRead};
use predict::profile::Profile;

use crate::facts::Millis;
use crate::machine::{Beside, Extent, Join};

/// Pieces of this length cost next to nothing.
pub(crate) const SHORT_BYTES: u64 = 4 << 20;
/// As often a file is thought to be read before it is written anew.
pub(crate) const READS: f64 = 32.0;
/// A stretch that is put together at once.
const STRETCH_BYTES_MAX: u64 = 64 << 20;

/// As much of a file is put beside its longer pieces at a time.
pub(crate) const JOIN_BYTES_MAX: u64 = 8 << 20;

/// What of a file that lies as `extents` say is put beside its longer pieces: the pieces next to the longest first, then what is left on
/// either side of these.
pub fn joins(extents: &[Extent]) -> Vec<Join> {
    let mut found = Vec::new();
    let mut left_bytes = JOIN_BYTES_MAX;
    let all = joined(extents);
    let mut parts = vec![&all[..]];
    while let Some(part) = parts.pop() {
        let Some(longest) = longest_of(part) else { continue };
        let before = run_before(part, longest, left_bytes);
        let (start, len) = span_of(&part[before..longest]);
        if len > 0 {
            found.push(Join { start_bytes: start, len_bytes: len, beside: Beside::Next });
            left_bytes -= len;
        }
        let behind = run_behind(part, longest, left_bytes);
        let (start, len) = span_of(&part[longest + 1..behind]);
        if len > 0 {
            found.push(Join { start_bytes: start, len_bytes: len, beside: Beside::Previous });
            left_bytes -= len;
        }
        parts.extend([&part[..before], &part[behind..]]);
    }
    found
}

/// The longest piece that others may be put beside.
fn longest_of(part: &[Extent]) -> Option<usize> {
    let lengths = part.iter().enumerate().filter(|(_, extent)| extent.is_plain && !extent.is_shared);
    lengths.max_by_key(|(_, extent)| extent.piece.len_bytes).map(|(at, _)| at)
}

fn may_join(extent: &Extent) -> bool {
    extent.is_plain && (!extent.is_shared || broken!(SharedJoined))
}

fn follows_in_file(first: &Extent, next: &Extent) -> bool {
    first.piece.logical.checked_add(first.piece.len_bytes) == Some(next.piece.logical)
}

/// Where the pieces begin that lie before this one without a hole, and have no more than so many bytes.
fn run_before(part: &[Extent], longest: usize, bytes_max: u64) -> usize {
    let (mut at, mut left) = (longest, bytes_max);
    while at > 0 && may_join(&part[at - 1]) && follows_in_file(&part[at - 1], &part[at]) {
        let Some(rest) = left.checked_sub(part[at - 1].piece.len_bytes) else { break };
        (at, left) = (at - 1, rest);
    }
    at
}

/// Where the pieces end that lie behind it, likewise.
fn run_behind(part: &[Extent], longest: usize, bytes_max: u64) -> usize {
    let (mut end, mut left) = (longest + 1, bytes_max);
    while end < part.len() && may_join(&part[end]) && follows_in_file(&part[end - 1], &part[end]) {
        let Some(rest) = left.checked_sub(part[end].piece.len_bytes) else { break };
        (end, left) = (end + 1, rest);
    }
    end
}

/// Files up to this length are put together whole: as much as moves in one step. A longer one could be stopped after a step, and would begin anew each
/// time.
pub(crate) const SMALL_BYTES_MAX: u64 = 8 << 20;
/// That is done once in so long with a file: a database that many short programs open would be written again and again.
pub(crate) const SMALL_AGAIN_MS: Millis = 3_600_000;

/// The plan that puts a small file together whole; `None` if it is not small, lies in one piece, has holes, or shares something.
pub fn whole(extents: &[Extent]) -> Option<Plan> {
    let all = joined(extents);
    let (start, len) = span_of(&all);
    let is_movable = |extent: &Extent| extent.is_plain && (!extent.is_shared || broken!(SharedMoved));
    let is_whole = start == 0 && all.windows(2).all(|pair| follows_in_file(&pair[0], &pair[1]));
    let piece_count = count(extents);
    let does = len <= SMALL_BYTES_MAX && piece_count > 1 && is_whole && all.iter().all(is_movable);
    does.then(|| Plan { stretches: vec![(start, len)], piece_count, shared_count: 0 })
}

/// What of a file to put together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// Where in the file, and how much.
    pub stretches: Vec<(u64, u64)>,
    /// Pieces that the file has.
    pub piece_count: u64,
    /// Extents that stay because they are shared.
    pub shared_count: u64,
}

/// How many runs of blocks the pieces are.
pub fn count(extents: &[Extent]) -> u64 {
    let follows = |pair: &&[Extent]| {
        pair[0].piece.physical.checked_add(pair[0].piece.len_bytes) == Some(pair[1].piece.physical)
    };
    let joined = extents.windows(2).filter(follows).count();
    (extents.len() - joined) as u64
}

/// Extents that follow each other in the file and on the device are one.
pub fn joined(extents: &[Extent]) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        if let Some(last) = joined.last_mut() {
            let goes_on = |at: u64, len: u64, next: u64| at.checked_add(len) == Some(next);
            let is_same = last.is_shared == extent.is_shared && last.is_plain == extent.is_plain;
            if is_same
                && goes_on(last.piece.physical, last.piece.len_bytes, extent.piece.physical)
                && goes_on(last.piece.logical, last.piece.len_bytes, extent.piece.logical)
            {
                last.piece.len_bytes = last.piece.len_bytes.saturating_add(extent.piece.len_bytes);
                continue;
            }
        }
        joined.push(*extent);
    }
    joined
}

/// What to put together of a file that lies as `extents` say.
pub fn plan(extents: &[Extent], profile: &Profile, whole_files: bool) -> Plan {
    let all = joined(extents);
    let is_shared = |extent: &Extent| extent.is_shared && !broken!(SharedMoved);
    let shared_count = all.iter().filter(|extent| extent.is_shared).count() as u64;
    let mut plan = Plan { piece_count: count(extents), shared_count, ..Plan::default() };
    let is_movable = |extent: &Extent| extent.is_plain && !is_shared(extent);
    let pays = |run: &[Extent]| run.len() > 1 && count(run) > 1 && pays(run, profile);
    if whole_files {
        let has_holes = all.windows(2).any(|pair| !follows_in_file(&pair[0], &pair[1]));
        let is_whole = !has_holes && all.first().is_some_and(|first| first.piece.logical == 0);
        // What moves as a whole is copied as a whole, and its holes would be filled.
        if (is_whole || broken!(HolesFilled)) && all.iter().all(is_movable) && pays(&all) {
            plan.stretches.push(span_of(&all));
        }
        return plan;
    }
    let mut run: Vec<Extent> = Vec::new();
    for extent in &all {
        let begins_anew = run.last().is_some_and(|last| {
            let is_long = |extent: &Extent| extent.piece.len_bytes >= SHORT_BYTES;
            let (start, len) = span_of(&run);
            is_long(last)
                || is_long(extent)
                || !is_movable(extent)
                || extent.piece.logical != start.saturating_add(len)
                || len.saturating_add(extent.piece.len_bytes) > STRETCH_BYTES_MAX
        });
        if begins_anew {
            if pays(&run) {
                plan.stretches.push(span_of(&run));
            }
            run.clear();
        }
        if is_movable(extent) {
            run.push(*extent);
        }
    }
    if pays(&run) {
        plan.stretches.push(span_of(&run));
    }
    plan
}

fn span_of(run: &[Extent]) -> (u64, u64) {
    let start = run.first().map_or(0, |first| first.piece.logical);
    let end = run.last().map_or(0, |last| last.piece.logical.saturating_add(last.piece.len_bytes));
    (start, end.saturating_sub(start))
}

fn pays(run: &[Extent], profile: &Profile) -> bool {
    let pieces = run.iter().map(|extent| extent.piece);
    let ReadCost { seconds, unfragmented_seconds, .. } = reading(profile, pieces);
    let gained = (seconds - unfragmented_seconds).max(0.0);
    // Read as it lies, and written in one piece.
    gained * READS >= seconds + unfragmented_seconds
}

fn reading(profile: &Profile, pieces: impl Iterator<Item = Piece>) -> ReadCost {
    SequentialRead::of_file(profile, RequestSize::read_ahead(), pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use predict::profile::{HDD, NVME, SATA_SSD};

    fn extents(pieces: &[(u64, u64, u64)]) -> Vec<Extent> {
        let extent = |&(logical, physical, len_bytes): &(u64, u64, u64)| Extent {
            piece: Piece { logical, physical, len_bytes },
            is_shared: false,
            is_plain: true,
        };
        pieces.iter().map(extent).collect()
    }

    fn scattered(count: u64, len: u64) -> Vec<Extent> {
        let pieces: Vec<_> = (0..count).map(|at| (at * len, at * len * 3 + (1 << 30), len)).collect();
        extents(&pieces)
    }

    #[test]
    fn small_pieces_pay_on_every_storage_and_large_ones_on_none() {
        for profile in [&HDD, &SATA_SSD, &NVME] {
            assert_eq!(
                plan(&scattered(64, 64 << 10), profile, false).stretches,
                [(0, 4 << 20)],
                "{}",
                profile.name
            );
            assert!(plan(&scattered(64, 8 << 20), profile, false).stretches.is_empty(), "{}", profile.name);
            assert!(plan(&scattered(1, 4096), profile, true).stretches.is_empty());
        }
    }

    #[test]
    fn only_what_is_split_is_moved() {
        let mib = 1 << 20;
        let mut pieces = vec![(0, 0, 100 * mib)];
        pieces.extend((0..10).map(|at| (100 * mib + at * 65536, 300 * mib + at * 200_000, 65536)));
        pieces.push((100 * mib + 655_360, 800 * mib, 50 * mib));
        let found = plan(&extents(&pieces), &HDD, false);
        assert_eq!(found.stretches, [(100 * mib, 655_360)]);
        assert_eq!(found.piece_count, 12);
        assert_eq!(plan(&extents(&pieces), &HDD, true).stretches, [], "all of it would be too much");
    }

    #[test]
    fn what_is_shared_stays() {
        let mut all = scattered(64, 64 << 10);
        all[10].is_shared = true;
        let found = plan(&all, &HDD, false);
        assert_eq!(found.stretches, [(0, 10 << 16), (11 << 16, 53 << 16)]);
        assert_eq!(found.shared_count, 1);
        assert!(plan(&all, &HDD, true).stretches.is_empty());
    }

    #[test]
    fn what_lies_beside_a_longer_piece_is_put_there() {
        let mib = 1 << 20;
        let pieces = [
            (0, 10 * mib, mib / 4),
            (mib / 4, 100 * mib, 64 * mib),
            (64 * mib + mib / 4, 300 * mib, 30 * mib),
            (94 * mib + mib / 4, 500 * mib, 5 * mib),
            (99 * mib + mib / 4, 600 * mib, mib),
        ];
        let join = |start_bytes, len_bytes, beside| Join { start_bytes, len_bytes, beside };
        assert_eq!(
            joins(&extents(&pieces)),
            [join(0, mib / 4, Beside::Next), join(94 * mib + mib / 4, 6 * mib, Beside::Previous)]
        );
        let mut shared = extents(&pieces);
        (shared[0].is_shared, shared[4].is_shared) = (true, true);
        assert_eq!(joins(&shared), [join(94 * mib + mib / 4, 5 * mib, Beside::Previous)]);
        assert!(joins(&extents(&pieces[1..3])).is_empty(), "30 MiB are too much");
        assert!(joins(&extents(&[(0, 0, 64 * mib), (65 * mib, mib, mib)])).is_empty(), "a hole");
        assert!(joins(&[]).is_empty() && joins(&extents(&pieces[..1])).is_empty());
        let many = joins(&scattered(1000, 64 << 10));
        assert_eq!(many.iter().map(|join| join.len_bytes).sum::<u64>(), JOIN_BYTES_MAX);
    }

    #[test]
    fn a_small_file_is_put_together_whole() {
        let kib = 1 << 10;
        let log = extents(&[(0, 0, 8 * kib), (8 * kib, 1 << 30, 1500 * kib)]);
        assert!(plan(&log, &NVME, false).stretches.is_empty(), "it does not pay");
        assert_eq!(whole(&log).unwrap().stretches, [(0, 1508 * kib)]);
        assert_eq!(whole(&log[..1]), None, "one piece");
        assert_eq!(whole(&log[1..]), None, "a hole");
        assert_eq!(whole(&scattered(3, SMALL_BYTES_MAX / 2)), None, "not small");
        let mut shared = log;
        shared[1].is_shared = true;
        assert_eq!(whole(&shared), None);
        assert_eq!(whole(&[]), None);
    }

    #[test]
    fn neighbours_are_one_piece() {
        let all = extents(&[(0, 100, 50), (50, 150, 50), (100, 200, 1)]);
        assert_eq!(count(&all), 1);
        assert_eq!(count(&[]), 0);
        assert!(plan(&all, &HDD, false).stretches.is_empty());
    }
}
