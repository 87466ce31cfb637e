//! A short exploration of what servers' faults leave of copies to exports and from them, and proof that it finds what it looks for. `make
//! crash` is the long one.

use crash::{Explored, ExportSubject, Violation, explore_export_source, explore_export_target};
use nbd::Mutant;

/// With few requests and many, on one connection and on several; the last with as many requests as there may be connections.
const SEEDS: [u64; 4] = [16, 1, 3, 50];

#[test]
fn a_copy_to_an_export_is_whole_and_stored_or_said_to_be_incomplete() {
    let mut sum = Explored::default();
    for seed in SEEDS {
        let explored = explore_export_target(&ExportSubject::new(seed), 4);
        sum += explored.unwrap_or_else(|violation| panic!("{violation}"));
    }
    println!("{sum:?}");
    assert!(sum.states > 80, "{sum:?}");
}

#[test]
fn a_copy_from_an_export_goes_on_or_leaves_nothing() {
    let mut sum = Explored::default();
    for seed in SEEDS {
        let explored = explore_export_source(&ExportSubject::new(seed), 13);
        sum += explored.unwrap_or_else(|violation| panic!("{violation}"));
    }
    println!("{sum:?}");
    assert!(sum.states > 50, "{sum:?}");
}

#[test]
fn each_rule_that_is_left_out_is_found() {
    for mutant in nbd::MUTANTS {
        let found = mutants::with(Some(mutant), || first_violation(mutant));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

fn first_violation(mutant: Mutant) -> Option<Violation> {
    let explore = match mutant {
        Mutant::BrokenReplyTaken => explore_export_source,
        _ => explore_export_target,
    };
    SEEDS.into_iter().find_map(|seed| explore(&ExportSubject::new(seed), 2).err())
}
