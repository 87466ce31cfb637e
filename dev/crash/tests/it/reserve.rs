//! Storage that is reserved ahead: nothing that was written is taken for unused, whatever is under way. `make durability` is the
//! long one.

use crash::{Reserved, Violation, explore_reserving};
use preallocate::{MUTANTS, Mutant};

const STEP_COUNT: u64 = 60;

fn explore(seed: u64, mutant: Option<Mutant>) -> Result<Reserved, Violation> {
    explore_reserving(seed, STEP_COUNT, &move |act| mutants::with(mutant, act))
}

#[test]
fn what_was_written_stays_and_what_was_not_used_goes_back() {
    let mut sum = Reserved::default();
    for seed in 0..120 {
        sum += explore(seed, None).unwrap_or_else(|violation| panic!("{violation}"));
    }
    println!("{sum:?}");
    assert!(sum.requests > 10_000 && sum.full > 100 && sum.continued > 1000, "{sum:?}");
}

#[test]
fn each_mutant_is_found() {
    for mutant in MUTANTS {
        let found = (0..300).find_map(|seed| explore(seed, Some(mutant)).err());
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?}");
    }
}

#[test]
fn a_seed_repeats_what_it_found() {
    let found = |seed| explore(seed, Some(Mutant::InFlightForgotten)).err().map(|violation| violation.text);
    for seed in 0..30 {
        assert_eq!(found(seed), found(seed), "{seed}");
    }
}
