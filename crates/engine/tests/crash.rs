//! A short exploration of what power cuts and errors leave of a change in place, and proof that it finds what it looks for.
//! `make crash` is the long one.

#![allow(clippy::unwrap_used)]

use crash::{Explored, Options, Scenario, Subject, Toy, explore, explore_faults};

const OPTIONS: Options = Options { cuts_per_change: 24, forges_checksums: false };

fn explore_all(subject: &Subject, seeds: std::ops::Range<u64>, options: Options) -> Explored {
    let mut sum = Explored::default();
    for seed in seeds {
        let scenario = Scenario::new(subject, seed, 3);
        sum +=
            explore(&scenario, options).unwrap_or_else(|violation| panic!("{}: {violation}", subject.name));
    }
    sum
}

#[test]
fn after_any_cut_a_disk_is_old_or_new() {
    let explored = explore_all(&Toy::subject(1), 0..12, OPTIONS);
    println!("{explored:?}");
    assert!(explored.states > 5000 && explored.second_cuts > 1000 && explored.redone > 300, "{explored:?}");
}

#[test]
fn after_any_error_a_disk_is_whole_or_recovered() {
    let subject = Toy::subject(2);
    for seed in 0..6 {
        let explored = explore_faults(&Scenario::new(&subject, seed, 2))
            .unwrap_or_else(|violation| panic!("{violation}"));
        assert!(explored.states > 50, "{explored:?}");
    }
}
