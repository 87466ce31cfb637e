//! The long log of random requests to disks in use, of every kind: restarts, kills, power cuts and full hosts between them, and after
//! each a comparison with what the log allows. Then threads by turns on a file whose storage is reserved ahead.
//!
//! What fails is told with the command that repeats it.

use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};
use crash::{
    LIVE_KINDS, LiveKind, LiveSubject, Reserved, Used, explore_cuts, explore_full, explore_reserving,
    explore_reuse, explore_threads, live_kind, run_log,
};

/// Requests that a worker takes at a time.
const SHARE: u64 = 20_000;
/// Every so many disks that a cut left QEMU judges one.
const JUDGED_EVERY: u64 = 1000;
/// Threads that write one disk at once.
const THREAD_COUNT: u64 = 6;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many requests each kind of disk is asked, at least
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// The first seed
    #[arg(long, default_value = "0", value_parser = crate::crash::parse_seed)]
    seed: u64,
    /// Only this kind of disk
    #[arg(long)]
    kind: Option<String>,
    /// How many logs run beside each other
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let kinds = match &arguments.kind {
        Some(name) => vec![live_kind(name).with_context(|| format!("no kind of disk is called {name}"))?],
        None => LIVE_KINDS.to_vec(),
    };
    let mut sum = Used::default();
    for kind in kinds {
        let began = Instant::now();
        let used = one_kind(arguments, kind)?;
        println!("{:<12} {} in {:.0} s", kind.name, told(&used), began.elapsed().as_secs_f64());
        sum += used;
    }
    println!("{:<12} {}", "all", told(&sum));
    if arguments.kind.is_none() { reserving(arguments) } else { Ok(()) }
}

/// Requests of one file whose storage is reserved ahead, at least: its threads' steps.
const RESERVING_STEPS: u64 = 60;

fn reserving(arguments: &Arguments) -> anyhow::Result<()> {
    let (began, mut sum, mut seed) = (Instant::now(), Reserved::default(), arguments.seed);
    while sum.requests < arguments.operations {
        match explore_reserving(seed, RESERVING_STEPS, &|act| act()) {
            Ok(used) => sum += used,
            Err(violation) => bail!(
                "reserving: {violation}\nagain: cargo run --release -p leandisk-xtask -- durability --seed {seed:#x} --operations 1"
            ),
        }
        seed += 1;
    }
    let Reserved { requests, full, continued } = sum;
    println!(
        "{:<12} {requests} requests, {full} of them on a full host, {continued} found their storage, in {:.0} s",
        "reserving",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn told(used: &Used) -> String {
    let Used { operations, flushes, cuts, kills, closes, full, moved_bytes, judged } = used;
    format!(
        "{operations} requests, {flushes} flushes, {cuts} power cuts, {kills} kills, {closes} clean ends, \
         {full} refused on a full host, {moved_bytes} bytes moved in the end, {judged} judged by QEMU"
    )
}

struct Shared {
    next_seed: u64,
    begun: u64,
    used: Used,
    failure: Option<String>,
}

fn one_kind(arguments: &Arguments, kind: LiveKind) -> anyhow::Result<Used> {
    let shared =
        Mutex::new(Shared { next_seed: arguments.seed, begun: 0, used: Used::default(), failure: None });
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| work(arguments, kind, &shared));
        }
    });
    let Shared { used, failure, .. } = shared.into_inner().expect("no worker panicked");
    match failure {
        Some(failure) => bail!("{failure}"),
        None => Ok(used),
    }
}

fn work(arguments: &Arguments, kind: LiveKind, shared: &Mutex<Shared>) {
    let subject = LiveSubject::new(kind);
    loop {
        let (seed, share) = {
            let mut shared = shared.lock().expect("no worker panicked");
            let share = SHARE.min(arguments.operations.saturating_sub(shared.begun));
            if shared.failure.is_some() || share == 0 {
                return;
            }
            shared.begun += share;
            shared.next_seed += SHARE;
            (shared.next_seed - SHARE, share)
        };
        let result = run_log(&subject, seed, share, Some(JUDGED_EVERY)).and_then(|mut used| {
            used += explore_cuts(&subject, seed, 24, 2, None)?;
            used += explore_reuse(&subject, seed, 32, 8)?;
            used += explore_full(&subject, seed, 24, None)?;
            used += explore_threads(&subject, seed, THREAD_COUNT, 2)?;
            Ok(used)
        });
        let mut shared = shared.lock().expect("no worker panicked");
        match result {
            Ok(used) => shared.used += used,
            Err(violation) => {
                shared.failure.get_or_insert(format!(
                    "{}: {violation}\nagain: LEANDISK_KEEP_DIR=. cargo run --release -p leandisk-xtask -- durability \
                     --kind {} --seed {seed:#x} --operations {share} --threads 1",
                    kind.name, kind.name
                ));
            }
        }
    }
}
