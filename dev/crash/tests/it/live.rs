//! Disks in use of every kind: nothing that was flushed is lost, whatever ends their use. `make durability` is the long one.

use std::ops::Range;

use crash::{
    BITMAP_KIND, Flushes, LIVE_KINDS, LiveKind, LiveSubject, Used, Violation, explore_bitmaps, explore_cuts,
    explore_full, explore_reuse, explore_threads, run_log,
};
use image::{FULL_MUTANTS, MUTANTS, Mutant};

/// Seeds with which something wrong must be found.
const SEED_COUNT: u64 = 40;

/// Fewer where the units are large, which take their time.
fn steps(subject: &LiveSubject, count: u64) -> u64 {
    if subject.kind.unit_bytes > 1 << 20 { count / 3 } else { count }
}

fn expect(name: &str, result: Result<Used, Violation>) -> Used {
    result.unwrap_or_else(|violation| panic!("{name}: {violation}"))
}

#[test]
fn after_a_cut_at_any_change_all_that_was_flushed_is_there() {
    for kind in LIVE_KINDS {
        let subject = LiveSubject::new(*kind);
        let began = std::time::Instant::now();
        let used = expect(kind.name, explore_cuts(&subject, 11, steps(&subject, 20), 2, Some(40)));
        println!("{} {used:?} {:?}", kind.name, began.elapsed());
        assert!(used.cuts > 20 && used.judged > 0, "{used:?}");
    }
}

#[test]
fn after_a_cut_at_any_flush_what_is_used_again_holds_what_is_its_own() {
    for kind in LIVE_KINDS {
        let subject = LiveSubject::new(*kind);
        let began = std::time::Instant::now();
        let used = expect(kind.name, explore_reuse(&subject, 11, steps(&subject, 32), 8));
        println!("{} {used:?} {:?}", kind.name, began.elapsed());
        assert!(used.cuts > 20, "{used:?}");
    }
}

#[test]
fn a_log_of_random_requests_is_kept_through_restarts() {
    for kind in LIVE_KINDS {
        let subject = LiveSubject::new(*kind);
        let began = std::time::Instant::now();
        let used = expect(kind.name, run_log(&subject, 5, steps(&subject, 3000), Some(20)));
        println!("{} {used:?} {:?}", kind.name, began.elapsed());
        assert!(used.cuts > 10 && used.kills > 2 && used.closes > 0 && used.judged > 0, "{used:?}");
    }
}

#[test]
fn a_flush_of_any_thread_covers_the_writes_of_all() {
    for kind in LIVE_KINDS {
        let subject = LiveSubject::new(*kind);
        let used = expect(kind.name, explore_threads(&subject, 3, 4, 4));
        println!("{} {used:?}", kind.name);
        assert!(used.operations > 20, "{used:?}");
    }
}

#[test]
fn a_host_without_room_ends_requests_and_nothing_else() {
    for kind in LIVE_KINDS {
        let subject = LiveSubject::new(*kind);
        let began = std::time::Instant::now();
        let mut used = Used::default();
        for seed in [20, 23] {
            used += expect(kind.name, explore_full(&subject, seed, steps(&subject, 20), Some(9)));
        }
        println!("{} {used:?} {:?}", kind.name, began.elapsed());
        assert!(used.full > 10 && used.closes > 10 && used.judged > 0, "{used:?}");
    }
}

/// Why a kind of disk is as good with a mutant as without it on a full host.
fn why_equivalent_when_full(kind: &LiveKind, mutant: Mutant) -> Option<&'static str> {
    match (kind.name, mutant) {
        ("raw" | "vhd-fixed", _) => Some("it has no tables that change"),
        ("vhdx-fixed" | "vdi", Mutant::UnpunchedIsClean) => Some("its blocks keep their places"),
        ("vhdx" | "vhdx-fixed", Mutant::HalfNamedIsUnnamed) => None,
        (_, Mutant::HalfNamedIsUnnamed) => Some("it has no log"),
        _ => None,
    }
}

/// As [`first_seed`].
fn first_seed_when_full(kind: &LiveKind, mutant: Mutant) -> u64 {
    match (kind.name, mutant) {
        // Every write is of whole units there: only zeros that keep their storage show it.
        ("qcow2-512", Mutant::UnpunchedIsClean) => 188,
        ("vhdx", Mutant::UnpunchedIsClean) => 24,
        ("vhdx" | "vhdx-fixed", Mutant::HalfNamedIsUnnamed) | (_, Mutant::UnpunchedIsClean) => 6,
        ("vdi", Mutant::FailedCommitForgotten) => 4,
        ("vhd" | "vhdx", Mutant::FailedCommitForgotten) => 3,
        _ => 2,
    }
}

#[test]
fn each_mutant_is_found_by_a_host_without_room() {
    for kind in kinds_of_small_units() {
        let subject = LiveSubject::new(*kind);
        for mutant in FULL_MUTANTS {
            let began = std::time::Instant::now();
            let why = why_equivalent_when_full(kind, mutant);
            let first = first_seed_when_full(kind, mutant);
            let mut seeds = if why.is_some() { 2..3 } else { first..first + SEED_COUNT };
            let explore = |seed| explore_full(&subject, seed, steps(&subject, 20), None).err();
            let found = mutants::with(Some(mutant), || seeds.find_map(explore));
            println!("{} {mutant:?}: {found:?} {why:?} {:?}", kind.name, began.elapsed());
            assert_eq!(found.is_some(), why.is_none(), "{}: {mutant:?}: {found:?}", kind.name);
        }
    }
}

/// The first violation that explorations with these seeds find. With half of the seeds units lie in disorder.
fn first_violation(subject: &LiveSubject, seeds: Range<u64>) -> Option<Violation> {
    let cuts = |seed| explore_cuts(subject, seed, steps(subject, 24), 2, None).err();
    let reuse = |seed| explore_reuse(subject, seed, steps(subject, 32), 8).err();
    seeds.into_iter().find_map(|seed| reuse(seed).or_else(|| cuts(seed)))
}

/// The kinds that mutants are looked for in: what goes wrong in large units does in small ones, too, and these take less time.
fn kinds_of_small_units() -> impl Iterator<Item = &'static LiveKind> {
    LIVE_KINDS.iter().filter(|kind| kind.unit_bytes <= 1 << 20)
}

/// Why a kind of disk is as good with a mutant as without it.
fn why_equivalent(kind: &LiveKind, mutant: Mutant) -> Option<&'static str> {
    match (kind.name, mutant) {
        (_, Mutant::NoFlushOfData) => None,
        ("raw" | "vhd-fixed", _) => Some("it has no tables that change"),
        ("vhdx-fixed", Mutant::ReusedTooSoon) => Some("its blocks keep their places"),
        ("vhdx-fixed", Mutant::PlaceNotAskedFor) => Some("all of its blocks have their places"),
        ("vdi", Mutant::PlaceNotAskedFor) => {
            Some("its blocks follow each other in the order of their first writes")
        }
        ("vdi", Mutant::ReusedTooSoon) => {
            Some("its blocks keep their places, unless somebody fills the gaps")
        }
        _ => None,
    }
}

/// Where to begin, to be quick: a mutant may be found with few seeds alone.
fn first_seed(kind: &LiveKind, mutant: Mutant) -> u64 {
    match (kind.name, mutant) {
        ("vhdx", Mutant::ReusedTooSoon) => 15,
        ("vhdx", Mutant::NoFlushOfData | Mutant::TablesBeforeData | Mutant::PlaceNotAskedFor)
        | ("vhd", Mutant::PlaceNotAskedFor)
        | ("qcow2-v2" | "qcow2-4k" | "qcow2-child", Mutant::ReusedTooSoon) => 1,
        ("vmdk" | "vmdk-zeroed", Mutant::ReusedTooSoon) => 3,
        ("vhd", Mutant::ReusedTooSoon) => 9,
        ("vhdx-fixed", Mutant::NoFlushOfData | Mutant::TablesBeforeData) => 8,
        _ => 0,
    }
}

#[test]
fn each_mutant_is_found_in_each_kind() {
    for kind in kinds_of_small_units() {
        let subject = LiveSubject::new(*kind);
        for mutant in MUTANTS {
            let began = std::time::Instant::now();
            let why = why_equivalent(kind, mutant);
            let first = first_seed(kind, mutant);
            let seeds = if why.is_some() { 0..1 } else { first..first + SEED_COUNT };
            let found = mutants::with(Some(mutant), || first_violation(&subject, seeds));
            println!("{} {mutant:?}: {found:?} {why:?} {:?}", kind.name, began.elapsed());
            assert_eq!(found.is_some(), why.is_none(), "{}: {mutant:?}: {found:?}", kind.name);
        }
    }
}

/// The host carries out no flush, or none but the last of those that a client's flush asks for.
#[test]
fn a_host_that_leaves_out_flushes_is_found_in_each_kind() {
    for kind in kinds_of_small_units() {
        let mut subject = LiveSubject::new(*kind);
        for flushes in [Flushes::AtTheEnd, Flushes::ForClients] {
            subject = subject.with(flushes);
            let began = std::time::Instant::now();
            // Without tables there is no order to keep: one flush is all that a client's flush asks for.
            let is_equivalent = flushes == Flushes::ForClients && ["raw", "vhd-fixed"].contains(&kind.name);
            let first =
                if flushes == Flushes::ForClients && ["vhd", "vdi"].contains(&kind.name) { 2 } else { 0 };
            let found =
                first_violation(&subject, if is_equivalent { 0..1 } else { first..first + SEED_COUNT });
            println!("{} {flushes:?}: {found:?} {:?}", kind.name, began.elapsed());
            assert_eq!(found.is_none(), is_equivalent, "{}: {flushes:?}: {found:?}", kind.name);
        }
    }
}

#[test]
fn after_a_cut_a_bitmap_has_every_change_or_is_not_to_be_believed() {
    let subject = LiveSubject::new(BITMAP_KIND);
    let mut used = Used::default();
    for seed in 0..8 {
        used += expect("bitmaps", explore_bitmaps(&subject, seed, 10, 2, 60));
    }
    println!("{used:?}");
    assert!(used.cuts > 500 && used.judged > 5 && used.closes == 16, "{used:?}");
}

#[test]
fn what_is_not_noted_in_bitmaps_is_found() {
    let subject = LiveSubject::new(BITMAP_KIND);
    for mutant in [Mutant::DiscardNotNoted, Mutant::NotedTooSoon] {
        let explore = |seed| explore_bitmaps(&subject, seed, 10, 3, u64::MAX).err();
        let found = mutants::with(Some(mutant), || (0..SEED_COUNT).find_map(explore));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?}");
    }
}
