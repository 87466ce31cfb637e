//! A short exploration of what streams that fail get of copies, and proof that it finds what it looks for. `make crash` is the long one.

use crash::{Explored, explore_streams};

#[test]
fn a_stream_gets_all_or_the_copy_fails() {
    let mut sum = Explored::default();
    for seed in 0..6 {
        sum += explore_streams(seed, 12).unwrap_or_else(|violation| panic!("{violation}"));
    }
    assert!(sum.states == 72, "{sum:?}");
}

#[test]
fn each_rule_that_is_left_out_is_found() {
    for mutant in os::MUTANTS {
        let found = mutants::with(Some(mutant), || (0..6).find_map(|seed| explore_streams(seed, 12).err()));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}
