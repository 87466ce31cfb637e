//! The long exploration of power cuts: scenario after scenario, until so many states were compared.
//!
//! What fails is told with the command that repeats it. Scenarios differ by their seed alone; the real volumes are made
//! once and kept in `target/fixtures`.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};
use crash::{Explored, Options, Real, Scenario, Subject, Toy, explore};

/// Ways of losing writes that are tried at each change.
const CUTS_PER_CHANGE: u64 = 64;

/// Batches of a scenario, at most.
const BATCH_COUNT: u64 = 4;

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
    let subjects: Vec<(Kind, Option<Real>, Subject)> = kinds
        .into_iter()
        .filter(|(kind, _)| arguments.subject.is_none_or(|only| only == *kind))
        .map(|(kind, real)| (kind, real, real.map_or_else(|| Toy::subject(1), Real::subject)))
        .collect();
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
fn work(
    arguments: &Arguments,
    subjects: &[(Kind, Option<Real>, Subject)],
    shared: &Mutex<Shared>,
    began: Instant,
) {
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
        let (kind, real, subject) = &subjects[at];
        let seed = arguments.seed.wrapping_add(number);
        let result = one(subject, *real, seed, number);
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
                let kept = keep(&subject.disk.to_vec(), &kind).unwrap_or_else(|error| format!("{error:#}"));
                shared.failure.get_or_insert(format!(
                    "{kind}: {error:#}\nthe disk before: {kept}\nagain: cargo run --release -p leandisk-xtask -- \
                     crash --subject {kind} --seed {seed:#x} --states 1 --threads 1"
                ));
            }
        }
    }
}

fn one(subject: &Subject, real: Option<Real>, seed: u64, number: u64) -> anyhow::Result<Explored> {
    let scenario = Scenario::new(subject, seed, BATCH_COUNT);
    if let Some(real) = real.filter(|_| (number / 3).is_multiple_of(JUDGED_EVERY)) {
        for count in 0..=scenario.batch_count() {
            let volume = subject.volume_of(scenario.disk_after(count));
            real.judge(&volume)
                .map_err(anyhow::Error::msg)
                .with_context(|| format!("after {count} batches of scenario {seed:#x}"))?;
        }
    }
    let options = Options { cuts_per_change: CUTS_PER_CHANGE, forges_checksums: false };
    explore(&scenario, options).map_err(|violation| anyhow::Error::msg(violation.to_string()))
}

/// Keeps the disk that failed.
fn keep(disk: &[u8], kind: &str) -> anyhow::Result<String> {
    let path = Path::new("target").join(format!("crash-{kind}.raw"));
    std::fs::write(&path, disk).with_context(|| path.display().to_string())?;
    Ok(path.display().to_string())
}
