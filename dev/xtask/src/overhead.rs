//! What parts of serving cost in processor time: the same server in this process with the part and without it, on the same disk and
//! under the same load. Run by `bench`, and prints JSON.
//!
//! Rounds are short and take turns, so that whatever the machine does meanwhile hits all of them; what counts is the median of
//! the ratios of neighbours. The processor time is that of the server's threads alone, as the scheduler counts it, in nanoseconds.

mod load;
mod served;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use serve::monitor::Monitor;

use load::{Ask, Load, Random};
use served::{Host, Served};

/// Bytes of a request.
const REQUEST_BYTES: u64 = 4096;
/// Requests of a round: so few that the machine seldom changes within one.
const ROUND_REQUESTS: usize = 4000;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// What measuring costs: random reads and writes of a raw disk in the page cache
    Statistics {
        /// The disk; made if it is not there
        image: PathBuf,
        /// How long rounds are run
        #[arg(long, default_value_t = 20.0)]
        seconds: f64,
    },
    /// What first writes to all of a disk, in random order, take
    FirstWrites {
        /// The disk
        image: PathBuf,
        /// Its format
        #[arg(long, short)]
        format: image::Format,
        /// Without reserving storage of the host's file system ahead
        #[arg(long)]
        without_reserving: bool,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let told = match &arguments.what {
        What::Statistics { image, seconds } => statistics(image, Duration::try_from_secs_f64(*seconds)?)?,
        What::FirstWrites { image, format, without_reserving } => {
            let host = if *without_reserving { Host::Plain } else { Host::Reserved };
            first_writes(image, *format, host)?
        }
    };
    println!("{told}");
    Ok(())
}

/// What a round took.
#[derive(Clone, Copy)]
struct Round {
    processor: f64,
    wall: f64,
}

fn statistics(image: &Path, time: Duration) -> Result<serde_json::Value> {
    const BYTES: u64 = 64 << 20;
    if !image.exists() {
        std::fs::write(image, vec![0x5a; usize::try_from(BYTES)?])?;
    }
    // Without twice: how far the same is from itself.
    let monitor = Monitor::new();
    served::stay_on(0)?;
    let served = Served::start(
        image,
        image::Format::Raw,
        Host::Plain,
        &[("without", None), ("with", Some(monitor.clone())), ("again", None)],
    )?;
    served::stay_on(1)?;
    let names = ["without", "with", "again"];
    let mut random = Random::new(1);
    let mut rounds: [Vec<Round>; 3] = Default::default();
    let began = Instant::now();
    let mut turn = 0;
    // The first turn is for caches and threads.
    while turn < 2 || began.elapsed() < time {
        let seed = random.next();
        // Each comes first as often as the others.
        for place in 0..names.len() {
            let who = (turn + if turn / 3 % 2 == 0 { place } else { names.len() - place }) % names.len();
            let round = round(&served, names[who], seed)?;
            if turn > 0 {
                rounds[who].push(round);
            }
        }
        turn += 1;
    }
    let snapshot = monitor.snapshot();
    ensure!(
        snapshot.latency.all.count() == (turn * ROUND_REQUESTS) as u64,
        "{} requests were measured, of {}",
        snapshot.latency.all.count(),
        turn * ROUND_REQUESTS
    );
    served.stop()?;
    let ratio = |who: usize, of: fn(&Round) -> f64| {
        median(rounds[who].iter().zip(&rounds[0]).map(|(one, other)| of(one) / of(other)).collect())
    };
    let requests = f64::from(u32::try_from(ROUND_REQUESTS)?);
    Ok(json!({
        "rounds": rounds[0].len(),
        "processor_us_per_request": median(rounds[0].iter().map(|round| round.processor).collect()) / requests * 1e6,
        "processor": ratio(1, |round| round.processor),
        "wall": ratio(1, |round| round.wall),
        "processor_of_the_same": ratio(2, |round| round.processor),
        "wall_of_the_same": ratio(2, |round| round.wall),
    }))
}

/// On a connection of its own: whatever is peculiar to its threads differs from round to round.
fn round(served: &Served, export: &str, seed: u64) -> Result<Round> {
    let mut load = Load::connect(served.socket(), export)?;
    let mut random = Random::new(seed);
    let places = load.len_bytes() / REQUEST_BYTES;
    let asks = (0..ROUND_REQUESTS).map(|_| {
        let drawn = random.next();
        let offset = (drawn >> 1) % places * REQUEST_BYTES;
        if drawn & 1 == 0 { Ask::Read { offset } } else { Ask::Write { offset } }
    });
    let before = served::processor_seconds()?;
    let began = Instant::now();
    load.run(asks)?;
    let wall = began.elapsed().as_secs_f64();
    // What the last reply's sender does after it is its own, too.
    std::thread::sleep(Duration::from_micros(200));
    let processor = served::processor_seconds()? - before;
    drop(load);
    served.wait_for_silence();
    Ok(Round { processor, wall })
}

fn first_writes(image: &Path, format: image::Format, host: Host) -> Result<serde_json::Value> {
    let began = Instant::now();
    let served = Served::start(image, format, host, &[("", Some(Monitor::new()))])?;
    let mut load = Load::connect(served.socket(), "")?;
    let mut places: Vec<u64> = (0..load.len_bytes() / REQUEST_BYTES).collect();
    let mut random = Random::new(1);
    for index in (1..places.len()).rev() {
        let other = random.next() % (index as u64 + 1);
        places.swap(index, usize::try_from(other)?);
    }
    load.run(places.iter().map(|place| Ask::Write { offset: place * REQUEST_BYTES }))?;
    load.run([Ask::Flush])?;
    let serving = served::processor_seconds()?;
    drop(load);
    let before = served::own_processor_seconds()?;
    served.stop()?;
    let closing = served::own_processor_seconds()? - before;
    Ok(json!({
        "processor_seconds": serving + closing,
        "closing_processor_seconds": closing,
        "seconds": began.elapsed().as_secs_f64(),
    }))
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The socket of a disk.
fn socket_of(image: &Path) -> Result<PathBuf> {
    let name = image.file_name().context("a file's name")?.to_string_lossy();
    Ok(std::env::temp_dir().join(format!("leandisk-{}-{name}.sock", std::process::id())))
}
