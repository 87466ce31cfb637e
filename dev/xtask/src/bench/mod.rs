//! The benchmark: each case is a work, the contenders that do it, and the bar that Leandisk has to meet.
//!
//! Contenders take turns, each run on a cold page cache, so that whatever the machine does meanwhile hits all of them;
//! what counts is the ratio of medians within one session. Figures of different sessions are not compared.

mod backups;
mod cases;
mod compacting;
mod earlier;
mod inputs;
mod measure;
mod moving;
mod planning;
mod processor;
mod restoring;
mod roads;
mod serving;
mod volumes;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::overhead::median;
use cases::{Case, Verdict};
pub(crate) use inputs::{Inputs, Scale};
pub(crate) use measure::shell_as_root;
use measure::{Cache, Contender, Reading, Sample, free_bytes};

/// What the disks of a full-size run take, with the targets beside them.
const FULL_SIZE_BYTES: f64 = 90e9;
/// The same of those of any one case.
const FULL_CASE_BYTES: f64 = 45e9;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Size of the disks, as a share of the full size
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Tiny disks, one case of each kind, one run each: shows that the benchmark runs, and says nothing of speed
    #[arg(long)]
    smoke: bool,
    /// Runs of each contender
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only the cases whose name contains this. May be repeated
    #[arg(long)]
    only: Vec<String>,
    /// The program to measure
    #[arg(long, default_value = "target/release/leandisk")]
    program: PathBuf,
    /// An earlier build of the program, which does the same work in turns with it: a change is no slower than what was before it
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Where disks and targets are put. A fast disk of its own gives the steadiest figures
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let scale = if arguments.smoke { 1.0 / 128.0 } else { arguments.scale };
    let (runs, cache) = match arguments.smoke {
        true => (1, Cache::AsItIs),
        false => (arguments.runs.max(1), Cache::Cold),
    };
    fs::create_dir_all(&arguments.dir)?;
    let needed = scale * if arguments.only.is_empty() { FULL_SIZE_BYTES } else { FULL_CASE_BYTES };
    let free = free_bytes(&arguments.dir)?;
    ensure!(
        free >= needed,
        "{} has {:.1} GB free, and this needs about {:.1} GB: say --scale {:.2} for smaller disks, or --dir",
        arguments.dir.display(),
        free / 1e9,
        needed / 1e9,
        scale * free / needed * 0.9
    );
    let program = arguments.program.canonicalize().context("the program is not built")?;
    let is_named = |name: &str| arguments.only.iter().any(|only| name.contains(only.as_str()));
    let wanted = |name: &str| arguments.only.is_empty() || is_named(name);
    let inputs = Inputs::new(&arguments.dir, Scale(scale));
    let mut documents = Vec::new();
    let mut missed = 0;
    let mut ratios = Vec::new();
    let mut cases = all_cases(&program, &inputs);
    cases.retain(|case| wanted(&case.name));
    if arguments.smoke {
        one_of_each_kind(&mut cases);
    }
    for mut case in cases {
        if arguments.smoke {
            one_of_each(&mut case.contenders);
        }
        let count = case.contenders.len();
        if let Some(before) = &arguments.before {
            let before = before.canonicalize().context("there is no earlier program")?;
            case.contenders.extend(earlier::contenders(&before, &inputs, &case.name));
        }
        let results = measure_case(&case, runs, cache).with_context(|| case.name.clone())?;
        let (own, others) = results.split_at(count);
        let verdicts = if arguments.smoke { Vec::new() } else { (case.judge)(own) };
        missed += verdicts.iter().filter(|verdict| !verdict.met()).count();
        show(&results, &verdicts);
        ratios.extend(earlier::show(own, others));
        documents.push(document(&case, &results, &verdicts));
    }
    inputs.remove_targets()?;
    let document = json!({ "schema": "leandisk.bench/1", "scale": scale, "runs": runs, "cases": documents });
    let path = arguments.dir.join("bench.json");
    fs::write(&path, serde_json::to_string_pretty(&document)?)?;
    match arguments.smoke {
        true => println!("\none case of each kind ran; figures of a smoke run mean nothing"),
        false => println!("\n{missed} bars missed; all figures in {}", path.display()),
    }
    if !ratios.is_empty() {
        println!(
            "time to that of the earlier program, over {} works: median {:.3}",
            ratios.len(),
            median(ratios)
        );
    }
    Ok(())
}

/// Every case.
fn all_cases(program: &Path, inputs: &Inputs) -> Vec<Case> {
    [
        cases::all,
        moving::all,
        planning::all,
        serving::all,
        processor::all,
        compacting::all,
        volumes::all,
        roads::all,
        backups::all,
        restoring::all,
    ]
    .into_iter()
    .flat_map(|all| all(program, inputs))
    .collect()
}

/// The median of the ratios of `one` to `other`, run by run: what the machine did meanwhile hit both of a pair alike.
fn median_ratio(one: &Measured, other: &Measured, of: fn(&Sample) -> f64) -> f64 {
    median(one.samples.iter().zip(&other.samples).map(|(one, other)| of(one) / of(other)).collect())
}

/// A contender with its runs.
struct Measured {
    name: String,
    samples: Vec<Sample>,
}

impl Measured {
    /// The median of something.
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of).collect())
    }

    /// What shows how steady a figure is.
    fn least_and_most(&self, of: impl Fn(&Sample) -> f64) -> (f64, f64) {
        let all = self.samples.iter().map(of);
        all.fold((f64::INFINITY, 0.0), |(least, most), one| (least.min(one), most.max(one)))
    }

    /// The last run.
    fn last(&self) -> &Sample {
        self.samples.last().expect("each contender ran")
    }

    fn seconds(&self) -> f64 {
        self.median(|sample| sample.seconds)
    }
}

/// Leaves the first case of those that differ in formats, file systems and numbers alone.
fn one_of_each_kind(cases: &mut Vec<Case>) {
    let mut seen = Vec::new();
    cases.retain(|case| {
        let kind = kind(&case.name);
        let is_new = !seen.contains(&kind);
        seen.push(kind);
        is_new
    });
}

/// A case's name without formats, file systems and numbers.
fn kind(name: &str) -> String {
    const VARIANTS: [&str; 12] =
        ["raw", "qcow2", "vhd", "vhdx", "vmdk", "vdi", "ntfs", "ext4", "xfs", "btrfs", "fat", "exfat"];
    name.split([' ', ',', ':'])
        .map(str::to_lowercase)
        .filter(|word| {
            !VARIANTS.contains(&word.as_str()) && !word.starts_with(|first: char| first.is_ascii_digit())
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Leaves ours, and each peer with one of its settings.
fn one_of_each(contenders: &mut Vec<Contender>) {
    let program = |name: &str| name.split([' ', ',']).next().unwrap_or_default().to_owned();
    let mut peers = Vec::new();
    contenders.retain(|contender| {
        let program = program(&contender.name);
        let is_new = !peers.contains(&program);
        peers.push(program.clone());
        is_new || program == "leandisk"
    });
}

fn measure_case(case: &Case, runs: usize, cache: Cache) -> Result<Vec<Measured>> {
    println!("\n{}", case.name);
    case.input.prepare()?;
    let mut results: Vec<Measured> = case
        .contenders
        .iter()
        .map(|contender| Measured { name: contender.name.clone(), samples: Vec::new() })
        .collect();
    for run in 0..runs {
        for (contender, result) in case.contenders.iter().zip(&mut results) {
            if run > 0 && result.samples.is_empty() {
                continue;
            }
            match contender.run(cache) {
                Ok(sample) => result.samples.push(sample),
                Err(error) if run == 0 && earlier::is_earlier(&contender.name) => {
                    println!("  {} cannot do this, and is not compared: {error:#}", contender.name);
                }
                Err(error) => return Err(error.context(contender.name.clone())),
            }
        }
    }
    results.retain(|result| !result.samples.is_empty());
    case.contenders.iter().try_for_each(Contender::clean)?;
    Ok(results)
}

fn show(results: &[Measured], verdicts: &[Verdict]) {
    let ours = results[0].seconds();
    println!(
        "  {:28} {:>9} {:>17} {:>7} {:>12} {:>12} {:>10} {:>12}",
        "", "seconds", "from to", "ratio", "from disk", "to disk", "memory", "target"
    );
    for result in results {
        println!(
            "  {:28} {:>9.3} {:>8.3} {:>8.3} {:>6.2}x {:>8.0} MiB {:>8.0} MiB {:>6.0} MiB {:>8.0} MiB",
            result.name,
            result.seconds(),
            result.least_and_most(|sample| sample.seconds).0,
            result.least_and_most(|sample| sample.seconds).1,
            ours / result.seconds(),
            mib(result.median(|sample| sample.device_read_bytes)),
            mib(result.median(|sample| sample.device_written_bytes)),
            mib(result.median(|sample| sample.peak_memory_bytes)),
            mib(result.median(|sample| sample.target_bytes)),
        );
    }
    for result in results.iter().filter(|result| result.last().reading.is_some()) {
        show_reading(result);
    }
    for verdict in verdicts {
        let Verdict { what, value, bar } = verdict;
        let word = if verdict.met() { "met" } else { "MISSED" };
        println!("  {word:6} {what}: {value:.3}, at most {bar:.3}");
    }
}

/// Reading what was fragmented: measured through a mount, and as the program models it.
fn show_reading(result: &Measured) {
    let measured =
        |of: fn(&Reading) -> f64| result.median(|sample| sample.reading.as_ref().map_or(f64::NAN, of));
    let (before, after) = (measured(|it| it.before_seconds), measured(|it| it.after_seconds));
    let predicted = &result.last().printed["volumes"][0]["reading"];
    let model = |field: &str| predicted[field].as_f64().unwrap_or(f64::NAN);
    let (model_before, model_after) = (model("seconds_before"), model("seconds_after"));
    if model_before == 0.0 {
        println!("  {:28} nothing was fragmented", result.name);
        return;
    }
    println!(
        "  {:28} what was fragmented is read in {before:.3} s before, {after:.3} s after ({:.1}x); on the modelled hard disk \
         {model_before:.2} s, {model_after:.2} s ({:.1}x)",
        result.name,
        before / after,
        model_before / model_after,
    );
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

fn document(case: &Case, results: &[Measured], verdicts: &[Verdict]) -> Value {
    let contenders: Vec<_> = results
        .iter()
        .map(|result| {
            json!({
                "name": result.name,
                "median_seconds": result.seconds(),
                "seconds": result.samples.iter().map(|sample| sample.seconds).collect::<Vec<_>>(),
                "read_bytes": result.median(|sample| sample.reported_read_bytes),
                "device_read_bytes": result.median(|sample| sample.device_read_bytes),
                "device_written_bytes": result.median(|sample| sample.device_written_bytes),
                "peak_memory_bytes": result.median(|sample| sample.peak_memory_bytes),
                "target_bytes": result.median(|sample| sample.target_bytes),
                "reading": result.last().reading.as_ref().map(|reading| json!({
                    "measured_seconds_before": reading.before_seconds,
                    "measured_seconds_after": reading.after_seconds,
                    "modelled": result.last().printed["volumes"][0]["reading"],
                })),
            })
        })
        .collect();
    let verdicts: Vec<_> = verdicts
        .iter()
        .map(|verdict| json!({ "what": verdict.what, "value": verdict.value, "bar": verdict.bar, "met": verdict.met() }))
        .collect();
    json!({ "name": case.name, "contenders": contenders, "verdicts": verdicts })
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn formats_file_systems_and_numbers_make_no_kind() {
        assert_eq!(kind("no waste, qcow2 to vhdx"), kind("no waste, raw to vmdk"));
        assert_eq!(kind("aged NTFS, 80 % full, in place"), kind("aged ext4, 95 % full, in place"));
        assert_ne!(kind("served raw: reads, 1 at a time"), kind("served raw: writes, 1 at a time"));
        assert_ne!(kind("copy of aged ext4 that packs"), kind("aged ext4, 95 % full, in place"));
    }
}
