//! A copy that was interrupted twice, at any of its changes, and then finished, is the source. `make crash` is the long one.

use std::ops::Range;
use std::time::Instant;

use crash::{RESUME_KINDS, ResumeKind, ResumeOptions, ResumeSubject, Violation, explore_resume};
use engine::Mutant;
use sim::FileMarks;

/// Both kinds of host: one that keeps marks beside a file's contents, and one that knows files by a number that is used again.
const ALL_MARKS: [FileMarks; 2] = [FileMarks::Marks, FileMarks::Numbers];

/// Seeds with which something wrong must be found.
const SEED_COUNT: u64 = 100;

/// Both attempts end at every so manieth change.
const STRIDE: u64 = 4;

fn options(marks: FileMarks, stride: u64) -> ResumeOptions {
    ResumeOptions { first_stride: stride, second_stride: stride, tries: 1, marks }
}

#[test]
fn interrupted_twice_anywhere_the_copy_is_the_source() {
    for kind in RESUME_KINDS {
        let subject = ResumeSubject::new(kind, 1);
        for marks in ALL_MARKS {
            let began = Instant::now();
            let explored = explore_resume(&subject, 5, options(marks, STRIDE))
                .unwrap_or_else(|violation| panic!("{} {marks:?}: {violation}", kind.name));
            println!("{} {marks:?} {explored:?} {:?}", kind.name, began.elapsed());
            assert!(explored.changes > 6 && explored.states > 40 && explored.redone > 10, "{explored:?}");
        }
    }
}

fn first_violation(kind: ResumeKind, options: ResumeOptions, mut seeds: Range<u64>) -> Option<Violation> {
    seeds.find_map(|seed| explore_resume(&ResumeSubject::new(kind, seed), seed, options).err())
}

/// Why a host is as good with a mutant as without it.
fn why_equivalent(marks: FileMarks, mutant: Mutant) -> Option<&'static str> {
    match (marks, mutant) {
        (FileMarks::Marks, Mutant::RemovedNamesNotFlushed) => {
            Some("a checkpoint that comes back has another mark than the new partial target")
        }
        (FileMarks::Marks, Mutant::NewNameNotFlushed) => {
            Some("a partial target that comes back has another mark than the new one")
        }
        _ => None,
    }
}

/// The kind of target, the seed to begin with, and the stride, to be quick: a mutant may be found with few of them alone.
fn where_found(mutant: Mutant) -> (ResumeKind, u64, u64) {
    let [raw, raw_long, raw_cloned, qcow2, _] = RESUME_KINDS;
    match mutant {
        Mutant::CheckpointOfAnyFile => (raw, 29, STRIDE),
        Mutant::RemovedNamesNotFlushed => (qcow2, 8, STRIDE),
        Mutant::NewNameNotFlushed => (qcow2, 4, 1),
        Mutant::RoomOfDataGivenBack => (raw_long, 0, STRIDE),
        Mutant::ClonesNotNoted | Mutant::ClonedBeyondThePlan => (raw_cloned, 0, STRIDE),
        _ => (raw, 0, STRIDE),
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
        Mutant::NewNameNotFlushed,
        Mutant::CheckpointOutlivesPublishing,
        Mutant::PublishedNameNotFlushed,
        Mutant::RoomOfDataGivenBack,
        Mutant::ClonesNotNoted,
        Mutant::ClonedBeyondThePlan,
    ];
    for marks in ALL_MARKS {
        for mutant in all {
            let began = Instant::now();
            let why = why_equivalent(marks, mutant);
            let (kind, first, stride) = where_found(mutant);
            let (seeds, stride) = match why {
                Some(_) => (0..8, STRIDE),
                None => (first..first + SEED_COUNT, stride),
            };
            let found = mutants::with(Some(mutant), || first_violation(kind, options(marks, stride), seeds));
            println!("{marks:?} {mutant:?}: {found:?} {why:?} {:?}", began.elapsed());
            assert_eq!(found.is_some(), why.is_none(), "{marks:?} {mutant:?}: {found:?}");
        }
    }
}
