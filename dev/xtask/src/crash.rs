//! The long exploration of power cuts: of files that move, of images that are compacted, of copies that are resumed, of disks that are
//! filled while they are used, of copies to servers, from them and to streams, of files that are extracted, and of the use cases as the program runs them. Scenario after scenario, until so many states were compared.
//!
//! What fails is told with the command that repeats it. Scenarios differ by their seed alone; the real volumes are made
//! once and kept in `target/fixtures`.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};
use crash::{
    CompactOptions, Compaction, CopySubject, Explored, ExportSubject, Extracted, FILL_FORMATS, IMAGE_KINDS,
    Image, ImageKind, Options, RESUME_KINDS, Real, ResumeOptions, ResumeSubject, Scenario, Subject, Toy,
    UseCase, UseCaseKind, UseCaseOptions, Violation, explore, explore_compact, explore_copies,
    explore_copy_faults, explore_export_source, explore_export_target, explore_extraction, explore_fill,
    explore_life, explore_resume, explore_streams, explore_use_case, explore_use_case_faults, meet_strangers,
};
use sim::FileMarks;

/// Ways of losing writes that are tried at each change.
const CUTS_PER_CHANGE: u64 = 64;

/// Batches of a scenario, at most.
const BATCH_COUNT: u64 = 4;

/// Every so many states of a compacted image QEMU judges it.
const JUDGED_STATES: u64 = 256;

/// Every so many scenarios the tools of a real volume judge it, too.
const JUDGED_EVERY: u64 = 50;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many states are compared in all, at least
    #[arg(long, default_value_t = 1_000_000)]
    states: u64,
    /// The first scenario's seed
    #[arg(long, default_value = "0", value_parser = parse_seed)]
    seed: u64,
    /// Only this kind of volume
    #[arg(long)]
    subject: Option<Kind>,
    /// How many scenarios run beside each other
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    Toy,
    Ntfs,
    Ext4,
    Compact,
    Resume,
    /// Disks that are filled while they are used
    Fill,
    /// Changes in place as the program runs them
    Program,
    /// Copies as the program runs them
    Copy,
    /// Copies to exports of servers and from them, and to streams
    Export,
    /// Files that are extracted into a folder
    Extract,
}

/// What is explored.
enum Work {
    Moves(Option<Real>, Box<Subject>),
    Compact(Vec<(ImageKind, Image)>),
    Resume,
    Fill,
    UseCases,
    Copies,
    Exports,
    Extractions,
}

pub(crate) fn parse_seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16))
}

struct Shared {
    next: u64,
    explored: Explored,
    failure: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let began = Instant::now();
    let kinds = [(Kind::Toy, None), (Kind::Ntfs, Some(Real::Ntfs)), (Kind::Ext4, Some(Real::Ext4))];
    let is_wanted = |kind: Kind| arguments.subject.is_none_or(|only| only == kind);
    let mut subjects: Vec<(Kind, Work)> = kinds
        .into_iter()
        .filter(|(kind, _)| is_wanted(*kind))
        .map(|(kind, real)| {
            (kind, Work::Moves(real, Box::new(real.map_or_else(|| Toy::subject(1), Real::subject))))
        })
        .collect();
    if is_wanted(Kind::Compact) {
        let images = IMAGE_KINDS.map(|kind| (kind, Image::new(kind, 1)));
        subjects.push((Kind::Compact, Work::Compact(images.into())));
    }
    if is_wanted(Kind::Resume) {
        subjects.push((Kind::Resume, Work::Resume));
    }
    if is_wanted(Kind::Fill) {
        subjects.push((Kind::Fill, Work::Fill));
    }
    if is_wanted(Kind::Program) {
        subjects.push((Kind::Program, Work::UseCases));
    }
    if is_wanted(Kind::Copy) {
        subjects.push((Kind::Copy, Work::Copies));
    }
    if is_wanted(Kind::Export) {
        subjects.push((Kind::Export, Work::Exports));
    }
    if is_wanted(Kind::Extract) {
        subjects.push((Kind::Extract, Work::Extractions));
    }
    let shared = Mutex::new(Shared { next: 0, explored: Explored::default(), failure: None });
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| work(arguments, &subjects, &shared, began));
        }
    });
    let Shared { next, explored, failure } = shared.into_inner().expect("no worker panicked");
    let Explored { states, second_cuts, redone, changes } = explored;
    println!(
        "{states} states of {next} scenarios from seed {:#x} in {:.0} s: power cut at {changes} changes, \
         {second_cuts} second cuts in the recovery, {redone} batches redone",
        arguments.seed,
        began.elapsed().as_secs_f64()
    );
    match failure {
        Some(failure) => bail!("{failure}"),
        None => Ok(()),
    }
}

/// Takes scenarios until there were enough states or one failed.
fn work(arguments: &Arguments, subjects: &[(Kind, Work)], shared: &Mutex<Shared>, began: Instant) {
    loop {
        let number = {
            let mut shared = shared.lock().expect("no worker panicked");
            if shared.failure.is_some() || shared.explored.states >= arguments.states {
                return;
            }
            shared.next += 1;
            shared.next - 1
        };
        let at = usize::try_from(number % subjects.len() as u64).expect("an index");
        let (kind, work) = &subjects[at];
        let seed = arguments.seed.wrapping_add(number);
        let result = one(work, seed, number);
        let mut shared = shared.lock().expect("no worker panicked");
        match result {
            Ok(explored) => {
                shared.explored += explored;
                if number % 16 == 0 {
                    let states = shared.explored.states;
                    eprintln!("{states} states, scenario {number}, {:.0} s", began.elapsed().as_secs_f64());
                }
            }
            Err(error) => {
                let kind = format!("{kind:?}").to_lowercase();
                let (name, disk) = match work {
                    Work::Moves(_, subject) => (subject.name.as_str(), subject.disk.to_vec()),
                    Work::Compact(images) => {
                        let (kind, image) = image_of(images, seed);
                        (kind.name, image.bytes())
                    }
                    // The seed makes the disk.
                    Work::Resume | Work::Copies | Work::Fill | Work::Exports => ("copy", Vec::new()),
                    Work::Extractions => ("extraction", Vec::new()),
                    Work::UseCases => ("use case", use_case(seed).bytes()),
                };
                let kept = keep(&disk, &kind).unwrap_or_else(|error| format!("{error:#}"));
                shared.failure.get_or_insert(format!(
                    "{kind} ({name}): {error:#}\nthe disk before: {kept}\nagain: cargo run --release -p leandisk-xtask -- \
                     crash --subject {kind} --seed {seed:#x} --states 1 --threads 1"
                ));
            }
        }
    }
}

/// The seed says which, so that it repeats what failed.
fn image_of(images: &[(ImageKind, Image)], seed: u64) -> &(ImageKind, Image) {
    &images[usize::try_from(seed % images.len() as u64).expect("an index")]
}

fn one(work: &Work, seed: u64, number: u64) -> anyhow::Result<Explored> {
    match work {
        Work::Moves(real, subject) => moves(subject, *real, seed, number),
        Work::Compact(images) => {
            let (kind, image) = image_of(images, seed);
            let options = CompactOptions {
                cuts_per_change: if kind.is_small() { CUTS_PER_CHANGE / 4 } else { 2 },
                stride: 1,
                judged_every: Some(JUDGED_STATES),
            };
            explore_compact(&Compaction::new(image, seed), options).map_err(failed)
        }
        Work::Resume => resume(seed),
        Work::Fill => fill(seed),
        Work::Copies => copies(seed),
        Work::Exports => exports(seed).map_err(failed),
        Work::Extractions => extractions(seed).map_err(failed),
        Work::UseCases => {
            let use_case = use_case(seed);
            let options = UseCaseOptions { cuts_per_change: 4, stride: 1, judged_every: JUDGED_STATES };
            let faults = explore_use_case_faults(&use_case, 1 + seed % 16);
            explore_use_case(&use_case, options)
                .and_then(|explored| faults.map(|faults| explored + faults))
                .map_err(|violation| anyhow::Error::msg(format!("{:?}: {violation}", use_case.kind())))
        }
    }
}

/// What the program is asked to do, and with which disk: both follow from the seed.
fn use_case(seed: u64) -> UseCase {
    let kinds = UseCaseKind::all();
    let at = usize::try_from(seed % kinds.len() as u64).expect("an index");
    UseCase::new(kinds[at], seed)
}

/// A small copy, whose kind and host the seed chooses.
fn resume(seed: u64) -> anyhow::Result<Explored> {
    let kinds = RESUME_KINDS.len() as u64;
    let kind = RESUME_KINDS[usize::try_from(seed % kinds).expect("an index")];
    let marks = if (seed / kinds).is_multiple_of(2) { FileMarks::Marks } else { FileMarks::Numbers };
    let options = ResumeOptions { first_stride: 1, second_stride: 1, tries: 1, marks };
    explore_resume(&ResumeSubject::new(kind, seed), seed, options)
        .map_err(|violation| anyhow::Error::msg(format!("{} {marks:?}: {violation}", kind.name)))
}

/// A small disk that is filled, whose format and host the seed chooses.
fn fill(seed: u64) -> anyhow::Result<Explored> {
    const ROUNDS: u64 = 16;
    let format = FILL_FORMATS[usize::try_from(seed % 2).expect("an index")];
    let marks = if (seed / 2).is_multiple_of(2) { FileMarks::Marks } else { FileMarks::Numbers };
    let filled = explore_fill(format, seed.wrapping_mul(ROUNDS), ROUNDS, marks, &|act| act())
        .map_err(|violation| anyhow::Error::msg(format!("{format} {marks:?}: {violation}")))?;
    Ok(Explored { states: ROUNDS + filled.deaths, changes: filled.deaths, ..Explored::default() })
}

/// Small copies as the program makes them, on a host that the seed chooses.
fn copies(seed: u64) -> anyhow::Result<Explored> {
    let marks = if seed.is_multiple_of(2) { FileMarks::Marks } else { FileMarks::Numbers };
    let subject = CopySubject::new(seed, marks);
    let faults = explore_copy_faults(&subject, 1 + seed % 16);
    explore_copies(&subject, 1)
        .and_then(|explored| faults.map(|faults| explored + faults))
        .map_err(|violation| anyhow::Error::msg(format!("{marks:?}: {violation}")))
}

/// A small copy to a server and one from it, which does everything wrong that it can at each request.
fn exports(seed: u64) -> Result<Explored, Violation> {
    let subject = ExportSubject::new(seed);
    let streams = explore_streams(seed, 64)?;
    Ok(explore_export_target(&subject, 1)? + explore_export_source(&subject, 1)? + streams)
}

/// A guest's files, extracted and disturbed at every operation.
fn extractions(seed: u64) -> Result<Explored, Violation> {
    let Extracted { runs, cuts, .. } = explore_extraction(seed)?;
    Ok(Explored { states: runs + cuts, changes: cuts, ..Explored::default() })
}

fn moves(subject: &Subject, real: Option<Real>, seed: u64, number: u64) -> anyhow::Result<Explored> {
    let scenario = Scenario::new(subject, seed, BATCH_COUNT);
    if let Some(real) = real.filter(|_| (number / 4).is_multiple_of(JUDGED_EVERY)) {
        for count in 0..=scenario.batch_count() {
            let volume = subject.volume_of(scenario.disk_after(count));
            real.judge(&volume)
                .map_err(anyhow::Error::msg)
                .with_context(|| format!("after {count} batches of scenario {seed:#x}"))?;
        }
    }
    let options = Options { cuts_per_change: CUTS_PER_CHANGE, forges_checksums: false };
    let mut explored = explore(&scenario, options).map_err(failed)?;
    for is_elsewhere in [false, true] {
        explored += explore_life(&scenario, options, is_elsewhere).map_err(failed)?;
    }
    meet_strangers(&scenario).map_err(failed)?;
    Ok(explored)
}

fn failed(violation: Violation) -> anyhow::Error {
    anyhow::Error::msg(violation.to_string())
}

/// Keeps the disk that failed.
fn keep(disk: &[u8], kind: &str) -> anyhow::Result<String> {
    let path = Path::new("target").join(format!("crash-{kind}.raw"));
    std::fs::write(&path, disk).with_context(|| path.display().to_string())?;
    Ok(path.display().to_string())
}
