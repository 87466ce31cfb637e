//! Disks in use of every kind: nothing that was flushed is lost, whatever ends their use. `make durability` is the long one.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use crash::{LIVE_KINDS, LiveSubject, Used, Violation, explore_cuts, explore_threads, live_kind, run_log};
use image::Mutant;

fn expect(name: &str, result: Result<Used, Violation>) -> Used {
    result.unwrap_or_else(|violation| panic!("{name}: {violation}"))
}

#[test]
fn after_a_cut_at_any_change_all_that_was_flushed_is_there() {
    for kind in LIVE_KINDS {
        let subject = LiveSubject::new(*kind);
        let began = std::time::Instant::now();
        let used = expect(kind.name, explore_cuts(&subject, 11, 20, 2, Some(40)));
        println!("{} {used:?} {:?}", kind.name, began.elapsed());
        assert!(used.cuts > 20 && used.judged > 0, "{used:?}");
    }
}

#[test]
fn a_log_of_random_requests_is_kept_through_restarts() {
    for kind in LIVE_KINDS {
        let subject = LiveSubject::new(*kind);
        let began = std::time::Instant::now();
        let used = expect(kind.name, run_log(&subject, 5, 2000, Some(20)));
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

/// Whether the exploration of this kind finds the mutant. With half of the seeds units lie in disorder.
fn finds(name: &str, mutant: Mutant) -> bool {
    let subject = LiveSubject::new(live_kind(name).unwrap());
    let cuts = |seed| explore_cuts(&subject, seed, 24, 2, None).err();
    let log = |seed: u64| run_log(&subject, seed * 100 + seed % 2, 1000, None).err();
    let found = mutants::with(Some(mutant), || (0..2).find_map(cuts).or_else(|| (0..200).find_map(log)));
    println!("{name} {mutant:?}: {}", found.as_ref().map_or("not found".into(), ToString::to_string));
    found.is_some()
}

/// Where a mutant is found soon. A VDI's places are never another block's, and VHDX's log brings an order of its own.
const FINDERS: [(Mutant, &[&str]); 4] = [
    (
        Mutant::NoFlushOfData,
        &["raw", "qcow2", "qcow2-4k", "qcow2-512", "qcow2-v2", "qcow2-child", "vhd", "vdi"],
    ),
    (
        Mutant::NoFlushOfTables,
        &["qcow2", "qcow2-4k", "qcow2-child", "vhdx", "vhd", "vdi", "vmdk", "vmdk-zeroed"],
    ),
    (
        Mutant::TablesBeforeData,
        &["qcow2", "qcow2-4k", "qcow2-512", "qcow2-v2", "qcow2-child", "vhd", "vmdk", "vmdk-zeroed"],
    ),
    (Mutant::ReusedTooSoon, &["qcow2", "qcow2-4k", "qcow2-512", "qcow2-v2", "qcow2-child", "vhdx", "vmdk"]),
];

#[test]
fn each_mutant_is_found() {
    for (mutant, kinds) in FINDERS {
        for kind in kinds {
            assert!(finds(kind, mutant), "{kind}: {mutant:?} is not found");
        }
    }
}
