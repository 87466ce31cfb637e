//! Files extracted into a folder, cut, killed, failed and meddled with at every operation. `make crash` is the long one.

use std::time::Instant;

use crash::{Extracted, explore_extraction};
use extraction::{MUTANTS, Mutant};

/// Seeds with which something wrong must be found.
const SEED_COUNT: u64 = 60;

#[test]
fn nothing_leads_out_of_the_folder_and_no_file_is_half_there() {
    let (began, mut sum) = (Instant::now(), Extracted::default());
    for seed in 0..30 {
        sum += explore_extraction(seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
    println!("{sum:?} {:?}", began.elapsed());
    assert!(sum.cuts > 1000 && sum.failures > 1000 && sum.intrusions > 1000, "{sum:?}");
    assert!(sum.replaced > 20 && sum.refused > 30, "{sum:?}");
}

#[test]
fn each_mutant_is_found() {
    for mutant in MUTANTS {
        let began = Instant::now();
        let broken = |seed| mutants::with(Some(mutant), || explore_extraction(seed));
        let found = (0..SEED_COUNT).find_map(|seed| broken(seed).err());
        println!("{mutant:?}: {found:?} {:?}", began.elapsed());
        let violation = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
        let without = explore_extraction(violation.seed);
        assert!(without.is_ok(), "{mutant:?} is not the reason: {without:?}");
    }
}

#[test]
fn a_seed_repeats_what_it_found() {
    let found = |seed| {
        let found = mutants::with(Some(Mutant::StrangerKept), || explore_extraction(seed));
        found.err().map(|violation| violation.text)
    };
    for seed in 0..8 {
        assert_eq!(found(seed), found(seed), "{seed}");
    }
}
