//! A short exploration of what kills, power cuts and errors leave of `copy` as the program runs it, and proof that it finds what it looks
//! for. `make crash` is the long one.

use crash::{CopySubject, Explored, Violation, explore_copies, explore_copy_faults, refuse_copies};
use leandisk::Mutant;
use sim::FileMarks;

/// Both kinds of host: one that keeps marks beside a file's contents, and one that knows files by a number that is used again.
const ALL_MARKS: [FileMarks; 2] = [FileMarks::Marks, FileMarks::Numbers];

#[test]
fn after_any_cut_there_is_a_whole_target_or_what_was_there() {
    let mut sum = Explored::default();
    for (seed, marks) in (1..7).zip(ALL_MARKS.into_iter().cycle()) {
        let subject = CopySubject::new(seed, marks);
        sum += explore_copies(&subject, 2).unwrap_or_else(|violation| panic!("{marks:?}: {violation}"));
    }
    println!("{sum:?}");
    assert!(sum.states > 100 && sum.second_cuts > 20 && sum.redone > 20, "{sum:?}");
}

#[test]
fn after_any_error_there_is_a_whole_target_or_what_was_there() {
    let mut sum = Explored::default();
    for (seed, marks) in (1..3).zip(ALL_MARKS) {
        let subject = CopySubject::new(seed, marks);
        sum += explore_copy_faults(&subject, 5).unwrap_or_else(|violation| panic!("{marks:?}: {violation}"));
    }
    println!("{sum:?}");
    assert!(sum.states > 30, "{sum:?}");
}

#[test]
fn what_is_refused_changes_nothing() {
    refuse_copies(&CopySubject::new(1, FileMarks::Marks)).unwrap();
}

#[test]
fn each_check_that_is_left_out_is_found() {
    let refusals = [
        Mutant::TargetReplacedUnasked,
        Mutant::TargetNotTold,
        Mutant::ChangeOfSourceUnnoticed,
        Mutant::PendingNotLookedFor,
    ];
    for mutant in refusals {
        let found =
            mutants::with(Some(mutant), || refuse_copies(&CopySubject::new(1, FileMarks::Marks)).err());
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
    for mutant in [Mutant::SourceNotInIdentity, Mutant::OptionsNotInIdentity] {
        let found = mutants::with(Some(mutant), first_violation);
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
    for mutant in [engine::Mutant::CheckpointOutlivesPublishing, engine::Mutant::PublishedNameNotFlushed] {
        let found = mutants::with(Some(mutant), first_violation);
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

fn first_violation() -> Option<Violation> {
    (1..40).find_map(|seed| explore_copies(&CopySubject::new(seed, FileMarks::Marks), 2).err())
}
