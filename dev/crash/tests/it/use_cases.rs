//! A short exploration of what power cuts leave of `defrag` and `compact` as the program runs them, and proof that it finds what it
//! looks for. `make crash` is the long one.

use crash::{
    Asked, Explored, Real, UseCase, UseCaseKind, UseCaseOptions, explore_use_case, explore_use_case_faults,
    run_undisturbed,
};
use image::Format;
use leandisk::Mutant;
use leandisk::defrag::Goal;

/// At every eleventh change, from one that the seed decides on.
const OPTIONS: UseCaseOptions = UseCaseOptions { cuts_per_change: 2, stride: 11, judged_every: 32 };

#[test]
fn undisturbed_a_disk_is_what_it_was_in_other_places() {
    for kind in UseCaseKind::all() {
        run_undisturbed(&UseCase::new(kind, 1)).unwrap_or_else(|why| panic!("{kind:?}: {why}"));
    }
}

fn explore(volume: Real) {
    let mut sum = Explored::default();
    for (seed, kind) in (1..).zip(UseCaseKind::all().into_iter().filter(|kind| kind.volume == volume)) {
        let use_case = UseCase::new(kind, seed);
        sum +=
            explore_use_case(&use_case, OPTIONS).unwrap_or_else(|violation| panic!("{kind:?}: {violation}"));
    }
    println!("{sum:?}");
    assert!(sum.states > 300 && sum.second_cuts > 60 && sum.redone > 20, "{sum:?}");
}

#[test]
fn after_any_cut_an_ntfs_disk_is_whole_or_recovered() {
    explore(Real::Ntfs);
}

#[test]
fn after_any_cut_an_ext4_disk_is_whole_or_recovered() {
    explore(Real::Ext4);
}

#[test]
fn after_any_error_a_disk_is_whole_or_recovered() {
    let mut sum = Explored::default();
    for (seed, kind) in (1..).zip(UseCaseKind::all()) {
        let use_case = UseCase::new(kind, seed);
        sum += explore_use_case_faults(&use_case, 47)
            .unwrap_or_else(|violation| panic!("{kind:?}: {violation}"));
    }
    println!("{sum:?}");
    // Where an operation's number falls depends on the fixtures, and they on the tools that made them.
    assert!(sum.states > 300 && sum.redone > 4, "{sum:?}");
}

#[test]
fn another_order_of_safety_is_found() {
    let every = UseCaseOptions { stride: 1, ..OPTIONS };
    let asked = Asked::Defrag(Goal::Files);
    let vmdk = UseCase::new(UseCaseKind { volume: Real::Ext4, format: Format::Vmdk, asked }, 1);
    for mutant in [Mutant::JournalRemovedBeforeClose, Mutant::PendingNotLookedFor] {
        let found = mutants::with(Some(mutant), || explore_use_case(&vmdk, every));
        assert!(found.is_err(), "{mutant:?} is not found");
    }
}
