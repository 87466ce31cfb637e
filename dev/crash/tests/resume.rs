//! A copy that was interrupted twice, at any of its changes, and then finished, is the source. `make crash` is the long one.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::ops::Range;
use std::time::Instant;

use crash::{RESUME_KINDS, ResumeKind, ResumeOptions, ResumeSubject, Violation, explore_resume};
use engine::Mutant;
use sim::FileMarks;

/// Both kinds of host: one that keeps marks beside a file's contents, and one that knows files by a number that is used again.
const ALL_MARKS: [FileMarks; 2] = [FileMarks::Marks, FileMarks::Numbers];

/// Seeds with which something wrong must be found.
const SEED_COUNT: u64 = 100;

fn options(marks: FileMarks) -> ResumeOptions {
    ResumeOptions { first_stride: 4, second_stride: 4, tries: 1, marks }
}

#[test]
fn interrupted_twice_anywhere_the_copy_is_the_source() {
    for kind in RESUME_KINDS {
        let subject = ResumeSubject::new(kind, 1);
        for marks in ALL_MARKS {
            let began = Instant::now();
            let explored = explore_resume(&subject, 5, options(marks))
                .unwrap_or_else(|violation| panic!("{} {marks:?}: {violation}", kind.name));
            println!("{} {marks:?} {explored:?} {:?}", kind.name, began.elapsed());
            assert!(explored.changes > 6 && explored.states > 40 && explored.redone > 10, "{explored:?}");
        }
    }
}

fn first_violation(kind: ResumeKind, marks: FileMarks, mut seeds: Range<u64>) -> Option<Violation> {
    seeds.find_map(|seed| explore_resume(&ResumeSubject::new(kind, seed), seed, options(marks)).err())
}

/// Why a host is as good with a mutant as without it.
fn why_equivalent(marks: FileMarks, mutant: Mutant) -> Option<&'static str> {
    match (marks, mutant) {
        (FileMarks::Marks, Mutant::RemovedNamesNotFlushed) => {
            Some("a checkpoint that comes back has another mark than the new partial target")
        }
        _ => None,
    }
}

/// Where to begin, to be quick: a mutant may be found with few seeds alone.
fn first_seed(mutant: Mutant) -> u64 {
    match mutant {
        Mutant::CheckpointOfAnyFile => 29,
        Mutant::RemovedNamesNotFlushed => 23,
        _ => 0,
    }
}

#[test]
fn each_mutant_is_found() {
    let all = [
        Mutant::CheckpointBeforeFlush,
        Mutant::CheckpointOfAnyFile,
        Mutant::CheckpointOfAnySource,
        Mutant::OldCheckpointStays,
        Mutant::RemovedNamesNotFlushed,
    ];
    for marks in ALL_MARKS {
        for mutant in all {
            let began = Instant::now();
            let why = why_equivalent(marks, mutant);
            let first = first_seed(mutant);
            let seeds = if why.is_some() { 0..8 } else { first..first + SEED_COUNT };
            let found = mutants::with(Some(mutant), || first_violation(RESUME_KINDS[0], marks, seeds));
            println!("{marks:?} {mutant:?}: {found:?} {why:?} {:?}", began.elapsed());
            assert_eq!(found.is_some(), why.is_none(), "{marks:?} {mutant:?}: {found:?}");
        }
    }
}
