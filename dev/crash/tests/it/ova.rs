//! A short exploration of what kills, power cuts and errors leave of an OVA in the making, and proof that it finds what it looks for.

use crash::{OvaSubject, explore_ova};
use leandisk::Mutant;

#[test]
fn after_any_cut_or_error_there_is_a_whole_ova_or_what_was_there() {
    for seed in 1..4 {
        let explored =
            explore_ova(&OvaSubject::new(seed), 3).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(explored.states > 10, "{explored:?}");
    }
}

#[test]
fn a_name_that_comes_early_is_found() {
    let found = mutants::with(Some(Mutant::ApplianceNamedEarly), || {
        (1..4).find_map(|seed| explore_ova(&OvaSubject::new(seed), 1).err())
    });
    println!("{found:?}");
    assert!(found.is_some());
}
