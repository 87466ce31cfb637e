//! Which stretches of a file are put together, and whether that pays. Pure.
//!
//! The rule: a stretch is a run of neighbouring pieces that are each shorter than [`SHORT_BYTES`], the length from which on no storage of
//! `predict` loses more than a few hundredths by the next jump; longer pieces stay where they are. A stretch pays if what reading the file
//! once loses by it, times [`READS`], is at least what reading and writing the stretch takes. Where only whole files can be moved, the
//! file is the stretch. What is shared stays, and ends a stretch.

use mutants::broken;
use predict::cost::{Piece, ReadCost, RequestSize, SequentialRead};
use predict::profile::Profile;

use crate::machine::Extent;

/// Pieces of this length cost next to nothing.
pub(crate) const SHORT_BYTES: u64 = 4 << 20;
/// As often a file is thought to be read before it is written anew.
pub(crate) const READS: f64 = 32.0;
/// A stretch that is put together at once.
const STRETCH_BYTES_MAX: u64 = 64 << 20;

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
fn joined(extents: &[Extent]) -> Vec<Extent> {
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
        if all.iter().all(is_movable) && pays(&all) {
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
    fn neighbours_are_one_piece() {
        let all = extents(&[(0, 100, 50), (50, 150, 50), (100, 200, 1)]);
        assert_eq!(count(&all), 1);
        assert_eq!(count(&[]), 0);
        assert!(plan(&all, &HDD, false).stretches.is_empty());
    }
}
