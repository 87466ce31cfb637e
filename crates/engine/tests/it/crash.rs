//! A short exploration of what power cuts and errors leave of a change in place, and proof that it finds what it looks for.
//! `make crash` is the long one.

use crash::{
    CompactOptions, Compaction, Explored, IMAGE_KINDS, Image, Options, Real, Scenario, Subject, Toy,
    Violation, explore, explore_compact, explore_faults, explore_life, meet_strangers,
};
use engine::Mutant;

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
    for seed in 0..4 {
        let explored = explore_faults(&Scenario::new(&subject, seed, 2))
            .unwrap_or_else(|violation| panic!("{violation}"));
        assert!(explored.states > 50, "{explored:?}");
    }
}

/// A volume made by the real tools: the same, and the tools accept the volume after each batch.
fn a_real_volume(real: Real) {
    let subject = real.subject();
    let scenario = Scenario::new(&subject, 7, 2);
    assert!(scenario.batch_count() > 0, "something moves");
    for count in 0..=scenario.batch_count() {
        real.judge(&subject.volume_of(scenario.disk_after(count))).unwrap();
    }
    let explored = explore_all(&subject, 0..8, Options { cuts_per_change: 16, ..OPTIONS });
    println!("{explored:?}");
    assert!(explored.states > 2000 && explored.redone > 200, "{explored:?}");
    explore_faults(&scenario).unwrap_or_else(|violation| panic!("{real:?}: {violation}"));
}

#[test]
fn after_any_cut_an_ntfs_volume_is_old_or_new() {
    a_real_volume(Real::Ntfs);
}

#[test]
fn after_any_cut_an_ext4_volume_is_old_or_new() {
    a_real_volume(Real::Ext4);
}

/// The first violation that the exploration finds in an engine broken in this way.
fn first_violation(mutant: Mutant, options: Options) -> Option<Violation> {
    let subject = Toy::subject(1);
    let scenarios = (0..12).map(|seed| Scenario::new(&subject, seed, 3));
    mutants::with(Some(mutant), || {
        scenarios.into_iter().find_map(|scenario| explore(&scenario, options).err())
    })
}

#[test]
fn a_missing_flush_is_found() {
    let of_runs = [Mutant::NoFlushOfData, Mutant::NoFlushOfRecord, Mutant::NoFlushOfMetadata];
    for mutant in of_runs.into_iter().chain([Mutant::RedoneFromCache, Mutant::RecoveryNotFlushed]) {
        let violation = first_violation(mutant, OPTIONS);
        println!("{mutant:?}: {violation:?}");
        assert!(violation.is_some(), "{mutant:?} is not found");
    }
}

#[test]
fn changes_before_the_commit_are_found() {
    assert!(first_violation(Mutant::AppliedBeforeCommit, OPTIONS).is_some());
}

#[test]
fn bytes_of_others_that_were_read_along_are_found() {
    assert!(first_violation(Mutant::GapsNotSkipped, OPTIONS).is_some());
}

#[test]
fn stale_bytes_below_holes_are_found() {
    let subject = Toy::subject(1);
    let hole_bytes: u64 = (0..12).map(|seed| Scenario::new(&subject, seed, 3).hole_bytes()).sum();
    assert!(hole_bytes > 0);
    assert!(first_violation(Mutant::StaleBelowHoles, OPTIONS).is_some());
}

#[test]
fn checksums_that_nobody_looks_at_are_found() {
    let subject = Toy::subject(1);
    let options = Options { forges_checksums: true, ..OPTIONS };
    let violation = (0..12).find_map(|seed| explore(&Scenario::new(&subject, seed, 3), options).err());
    println!("{violation:?}");
    assert!(violation.is_some());
}

#[test]
fn places_used_again_too_soon_are_refused_and_would_be_found() {
    let subject = Toy::subject(1);
    let (mut refused, mut found) = (0, 0);
    for seed in 0..12 {
        let scenario = Scenario::that_reuses(&subject, seed);
        let Err(refusal) = explore(&scenario, OPTIONS) else { continue };
        assert!(refusal.text.contains("goes to what is not free"), "{refusal}");
        refused += 1;
        found +=
            u64::from(mutants::with(Some(Mutant::PlacesNotChecked), || explore(&scenario, OPTIONS)).is_err());
    }
    assert!(refused > 3 && found == refused, "{found} of {refused}");
}

const LIFE: Options = Options { cuts_per_change: 12, forges_checksums: false };

/// The journal's file and names, from before they are made until they are gone.
fn explore_lives(subject: &Subject, seeds: std::ops::Range<u64>) -> Result<Explored, Violation> {
    let mut sum = Explored::default();
    for seed in seeds {
        let scenario = Scenario::new(subject, seed, 2);
        for is_elsewhere in [false, true] {
            sum += explore_life(&scenario, LIFE, is_elsewhere)?;
        }
        meet_strangers(&scenario)?;
    }
    Ok(sum)
}

#[test]
fn whatever_is_left_of_a_journal_s_names_the_disk_is_recovered_and_no_other_file_touched() {
    let explored = explore_lives(&Toy::subject(1), 0..4).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{explored:?}");
    assert!(explored.states > 2000 && explored.second_cuts > 200 && explored.redone > 500, "{explored:?}");
}

#[test]
fn a_journal_s_life_that_is_broken_is_found() {
    let subject = Toy::subject(1);
    for mutant in journal::MUTANTS {
        let violation = mutants::with(Some(mutant), || explore_lives(&subject, 0..4)).err();
        println!("{mutant:?}: {violation:?}");
        assert!(violation.is_some(), "{mutant:?} is not found");
    }
}

#[test]
fn after_any_cut_a_compacted_image_is_whole_and_recovered() {
    let mut moved_bytes = 0;
    for kind in IMAGE_KINDS {
        let began = std::time::Instant::now();
        let image = Image::new(kind, 1);
        let compaction = Compaction::new(&image, 1);
        moved_bytes += compaction.moved_bytes();
        // Large units take their time.
        let options = match kind.is_small() {
            true => CompactOptions { cuts_per_change: 2, stride: 1, judged_every: Some(64) },
            false => CompactOptions { cuts_per_change: 1, stride: 2, judged_every: Some(8) },
        };
        let sum = explore_compact(&compaction, options)
            .unwrap_or_else(|violation| panic!("{}: {violation}", kind.name));
        println!("{}: {sum:?} {:?}", kind.name, began.elapsed());
        assert!(sum.states > 5 && sum.second_cuts > 1, "{}: {sum:?}", kind.name);
    }
    assert!(moved_bytes > 1 << 20, "something moves");
}

#[test]
fn a_missing_flush_of_a_compact_is_found() {
    for kind in IMAGE_KINDS {
        let image = Image::new(kind, 1);
        let violation = (0..8).find_map(|seed| {
            let compaction = Compaction::new(&image, seed).without_flushes();
            let options = CompactOptions { cuts_per_change: 4, stride: 1, judged_every: None };
            explore_compact(&compaction, options).err()
        });
        println!("{}: {violation:?}", kind.name);
        assert!(violation.is_some(), "{}: nobody noticed that flushes were left out", kind.name);
    }
}
