//! The commands: a use case each, and what is printed of its outcome.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::Arc;

use block::{Error, Result};
use clap::ValueEnum;
use leandisk::{
    Observer, Reported, analyze, bench, compact, confine, copy, create, defrag, folder, info, map, recover,
    serve, stats,
};
use report::{
    DiskEntry, DiskReport, analyze_full_text, analyze_text, appliance_text, compact_text, copy_text,
    create_text, defrag_text, first_write_text, folder_text, fragmentation_text, info_text, map_text,
    recover_text, stats_text, to_json,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failed;
use crate::arguments::{
    AnalyzeArguments, BenchCommand, Command, ProgressStyle, ServeArguments, StatsArguments,
};
use crate::copying;
use crate::generate;
use crate::output::{is_quiet, print, print_aside, stderr_palette, stdout_palette, tell};
use crate::progress::{Terminal, cancel_on_signal, columns_of};
use crate::service;

/// Columns of the map on a terminal.
const MAP_COLUMNS_MIN: usize = 40;
const MAP_COLUMNS_MAX: usize = 96;

/// Of commands that have no option for it.
const TERMINAL: Terminal = Terminal { style: ProgressStyle::Auto };

pub(crate) fn run(command: &Command) -> Result<(), Failed> {
    let shown = |style| Terminal { style };
    let palette = stdout_palette();
    match command {
        Command::Info(arguments) => {
            let options = arguments.options();
            confine::run(arguments.confine.into(), confine::info(&options))?;
            if let Some(document) = info::appliance(&options, &TERMINAL)? {
                let text = || appliance_text(&document, palette);
                return Ok(print(&if arguments.json { to_json(&document) } else { text() })?);
            }
            let document = info::run(&options)?;
            print(&if arguments.json { to_json(&document) } else { info_text(&document, palette) })?;
        }
        Command::Analyze(arguments) => analyze(arguments)?,
        Command::Map(arguments) => {
            let options = arguments.options();
            confine::run(arguments.confine.into(), confine::map(&options))?;
            map::run(&options, &TERMINAL)?;
        }
        Command::Copy(arguments) if arguments.into.is_some() => copying::into(arguments)?,
        Command::Copy(arguments) => {
            let mut options = arguments.options()?;
            let input = copy::take_input(&mut options)?;
            confine::run(arguments.confine.into(), confine::copy(&options))?;
            let mut document = copy::run(&options, &shown(arguments.progress))?;
            if input.is_some() {
                document.name_source("-");
            }
            let is_stream = command.fills_stdout();
            let palette = if is_stream { stderr_palette() } else { palette };
            let text = if arguments.json { to_json(&document) } else { copy_text(&document, palette) };
            match is_stream {
                false => print(&text)?,
                true if arguments.json || !is_quiet() => print_aside(&text)?,
                true => {}
            }
        }
        Command::Create(arguments) => {
            let document = create::run(&arguments.options(), &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { create_text(&document, palette) })?;
        }
        Command::Compact(arguments) => {
            let Reported { document, ended } =
                compact::run(&arguments.options(), &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { compact_text(&document, palette) })?;
            ended.map_err(Failed::Told)?;
        }
        Command::Defrag(arguments) => {
            let Reported { document, ended } = defrag::run(&arguments.options(), &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { defrag_text(&document, palette) })?;
            ended.map_err(Failed::Told)?;
        }
        Command::Recover(arguments) => {
            let document = recover::run(&arguments.options())?;
            print(&if arguments.json { to_json(&document) } else { recover_text(&document, palette) })?;
        }
        Command::Serve(arguments) => serve(arguments)?,
        Command::Stats(arguments) => stats(arguments)?,
        Command::Completions(arguments) => generate::completions(arguments.shell)?,
        Command::Man(arguments) => generate::manual(&arguments.dir)?,
        Command::Bench(BenchCommand::FirstWrite(arguments)) => {
            let document = bench::first_write(&arguments.options(), &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { first_write_text(&document, palette) })?;
        }
        Command::Bench(BenchCommand::Fragmentation(arguments)) => {
            let document = bench::fragmentation(&arguments.options()?, &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { fragmentation_text(&document, palette) })?;
        }
    }
    Ok(())
}

/// Analyses each disk of a folder in a process of its own, so that none is in another's way.
fn analyze_folder(arguments: &AnalyzeArguments) -> Result<()> {
    let document = folder::run(&arguments.folder_options(), &|disk| summary_of(arguments, disk), &TERMINAL)?;
    print(&if arguments.json { to_json(&document) } else { folder_text(&document, stdout_palette()) })
}

/// What `analyze --summary` prints of a disk.
fn summary_of(arguments: &AnalyzeArguments, disk: &Path) -> Result<DiskReport> {
    let fail = |error| Error::io("run leandisk", error);
    let mut command = Process::new(std::env::current_exe().map_err(fail)?);
    command.args(["analyze", "--summary", "--json"]);
    let confine = arguments.confine.confine.to_possible_value().expect("all of its values are shown");
    command.args(["--confine", confine.get_name()]);
    command.args(arguments.device.iter().flat_map(|device| ["--device", device]));
    let granted =
        arguments.open.allow_path.iter().flat_map(|path| [OsStr::new("--allow-path"), path.as_os_str()]);
    command.args(granted).arg("--").arg(disk);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().map_err(fail)?;
    if let Ok(report) = serde_json::from_slice(&output.stdout) {
        return Ok(report);
    }
    let said: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
    let message = said.as_ref().and_then(|said| said["message"].as_str()).map(str::to_owned);
    let message =
        message.unwrap_or_else(|| format!("{}: its analysis ended without an answer", disk.display()));
    let entry = DiskEntry { error: Some(message), ..DiskEntry::default() };
    Ok(DiskReport { is_disk: true, entry, ..DiskReport::default() })
}

fn analyze(arguments: &AnalyzeArguments) -> Result<()> {
    if arguments.recursive {
        return analyze_folder(arguments);
    }
    if arguments.summary {
        let options = arguments.options(false);
        confine::run(arguments.confine.into(), confine::analyze(&options))?;
        return print(&to_json(&analyze::summarize(&options)?));
    }
    let looks = arguments.full && !arguments.json && std::io::stdout().is_terminal();
    let options = arguments.options(looks);
    confine::run(arguments.confine.into(), confine::analyze(&options))?;
    let analyze::Analysis { document, map } = analyze::run(&options, &TERMINAL)?;
    if arguments.json {
        return print(&to_json(&document));
    }
    let palette = stdout_palette();
    if !arguments.full {
        return print(&analyze_text(&document, palette));
    }
    let columns = columns_of(&std::io::stdout()).clamp(MAP_COLUMNS_MIN, MAP_COLUMNS_MAX);
    let strips = map.filter(|_| looks).map(|map| map_text(&map, columns, palette));
    print(&analyze_full_text(&document, strips.as_deref(), palette))
}

fn serve(arguments: &ServeArguments) -> Result<()> {
    let manager = service::Manager::find();
    // A second signal ends the program at once.
    let _ends_on_second = cancel_on_signal()?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| Error::io("signal handler", error))?;
    let observer: Arc<dyn Observer> = Arc::new(TERMINAL);
    let options = arguments.options()?;
    serve::run_confined(&options, arguments.confine.into(), &observer, |disks| {
        for serve::ServedAt { disk, places } in disks {
            tell(&format!("serving {} at {}", disk.display(), places.join(" and ")));
        }
        manager.notify(service::READY);
        let _ = signals.forever().next();
        manager.notify(service::STOPPING);
    })
}

fn stats(arguments: &StatsArguments) -> Result<()> {
    if arguments.csv {
        return print(&stats::csv(&arguments.options())?);
    }
    let document = stats::run(&arguments.options(), &TERMINAL)?;
    // Two are compared on a page.
    if arguments.later.is_some() {
        return Ok(());
    }
    print(&if arguments.json { to_json(&document) } else { stats_text(&document, stdout_palette()) })
}
