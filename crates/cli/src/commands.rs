//! The commands: a use case each, and what is printed of its outcome.

use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use block::{Error, Result};
use clap::ValueEnum;
use leandisk::running::Address;
use leandisk::{
    Observer, Reported, analyze, backup, bench, compact, confine, coordinate, copy, create, defrag, files,
    folder, guard, increment, info, map, recover, running, serve, stats, worth,
};
use report::{
    ASSUMPTIONS_TOML, BackupDocument, DiskEntry, DiskReport, age_text, analyze_full_text, analyze_text,
    appliance_text, backup_text, check_text, compact_text, copy_text, create_text, defrag_text,
    first_write_text, folder_text, fragmentation_text, guard_report_text, guard_text, info_text, list_text,
    map_text, printable, recover_text, restore_text, snapshots_text, stats_text, to_json, to_json_line,
    vm_text, watch_heading, watch_lines, workloads_text, worth_text,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failed;
use crate::arguments::{
    AnalyzeArguments, BackupArguments, BenchCommand, Command, CoordinateArguments, CopyArguments,
    ExtractArguments, GuardArguments, GuardCommand, InfoArguments, ProgressStyle, ReportArguments,
    ServeArguments, StatsArguments,
};
use crate::copying;
use crate::generate;
use crate::output::{is_quiet, print, print_aside, stderr_palette, stdout_palette, tell};
use crate::places::{Place, Places, at, looking};
use crate::progress::{Ending, Terminal, cancel_on_signal, columns_of, watching};
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
        Command::Info(arguments) => info(arguments)?,
        Command::Analyze(arguments) => analyze(arguments)?,
        Command::Map(arguments) => {
            at(&arguments.disk, &looking(), &TERMINAL, |place| {
                let mut options = arguments.options();
                place.put_in(&mut options.disk, &mut options.open);
                confine::run(arguments.confine.into(), confine::map(&options).removing(place.made()))?;
                map::run(&options, &TERMINAL)
            })?;
        }
        Command::List(arguments) => {
            let Reported { document, ended } = reading_files(arguments.disk(), |mut disk, place| {
                place.put_in(&mut disk.disk, &mut disk.open);
                confine::run(arguments.confine.into(), confine::files(&disk).removing(place.made()))?;
                files::list(files::open(&disk)?.stack(), &arguments.options(), &TERMINAL)
            })?;
            print(&if arguments.json { to_json(&document) } else { list_text(&document, palette) })?;
            ended.map_err(Failed::Told)?;
        }
        Command::Cat(arguments) => {
            let path = arguments.path.as_bytes();
            reading_files(arguments.disk(), |mut disk, place| {
                place.put_in(&mut disk.disk, &mut disk.open);
                confine::run(arguments.confine.into(), confine::files(&disk).removing(place.made()))?;
                let disk = files::open(&disk)?;
                read_by_others(files::cat(disk.stack(), path, &mut std::io::stdout().lock(), &TERMINAL))
            })?;
        }
        Command::Extract(arguments) => extract(arguments)?,
        Command::Copy(arguments) if arguments.into.is_some() => copying::into(arguments)?,
        Command::Copy(arguments) => copy(arguments, command.fills_stdout())?,
        Command::Backup(arguments) => {
            let document =
                back_up(arguments, &*watching(arguments.progress, arguments.background, &arguments.paths()))?;
            print(&if arguments.json { to_json(&document) } else { backup_text(&document, palette) })?;
        }
        Command::Snapshots(arguments) => {
            let document = backup::snapshots(&arguments.options()?)?;
            print(&if arguments.json { to_json(&document) } else { snapshots_text(&document, palette) })?;
        }
        Command::Restore(arguments) => {
            let document = backup::restore(
                &arguments.options()?,
                &*watching(arguments.progress, arguments.background, &arguments.paths()),
            )?;
            print(&if arguments.json { to_json(&document) } else { restore_text(&document, palette) })?;
        }
        Command::Check(arguments) => {
            let Reported { document, ended } =
                backup::check(&arguments.options()?, &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { check_text(&document, palette) })?;
            ended.map_err(Failed::Told)?;
        }
        Command::Create(arguments) => {
            let document = create::run(&arguments.options(), &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { create_text(&document, palette) })?;
        }
        Command::Compact(arguments) => {
            let Reported { document, ended } = compact::run(
                &arguments.options(),
                &*watching(arguments.progress, arguments.background, from_ref(&arguments.disk)),
            )?;
            print(&if arguments.json { to_json(&document) } else { compact_text(&document, palette) })?;
            ended.map_err(Failed::Told)?;
        }
        Command::Defrag(arguments) => {
            let Reported { document, ended } = defrag::run(
                &arguments.options(),
                &*watching(arguments.progress, arguments.background, from_ref(&arguments.disk)),
            )?;
            print(&if arguments.json { to_json(&document) } else { defrag_text(&document, palette) })?;
            ended.map_err(Failed::Told)?;
        }
        Command::Recover(arguments) => {
            let document = match Address::of(&arguments.disk) {
                Some(address) => running::recover(&address?)?,
                None => recover::run(&arguments.options())?,
            };
            print(&if arguments.json { to_json(&document) } else { recover_text(&document, palette) })?;
        }
        Command::Serve(arguments) => serve(arguments)?,
        Command::Stats(arguments) => stats(arguments)?,
        Command::Report(ReportArguments { print_assumptions: true, .. }) => print(ASSUMPTIONS_TOML)?,
        Command::Report(arguments) => {
            let document = worth::run(&arguments.options(), &TERMINAL)?;
            print(&if arguments.json { to_json(&document) } else { worth_text(&document, palette) })?;
        }
        Command::Guard(GuardArguments { command: Some(GuardCommand::Status(arguments)), .. }) => {
            let document = guard::status(arguments.state.state.as_deref())?;
            print(&if arguments.json { to_json(&document) } else { guard_text(&document, palette) })?;
        }
        Command::Guard(GuardArguments { command: Some(GuardCommand::Report(arguments)), .. }) => {
            let document = guard::report(&arguments.options(), &TERMINAL)?;
            print(&if arguments.json { to_json(&document) } else { guard_report_text(&document, palette) })?;
        }
        Command::Guard(arguments) => run_guard(arguments)?,
        Command::Coordinate(arguments) => run_coordinator(arguments)?,
        Command::Completions(arguments) => generate::completions(arguments.shell)?,
        Command::Man(arguments) => generate::manual(&arguments.dir)?,
        Command::Bench(BenchCommand::Age(arguments)) => {
            let document = bench::age(&arguments.options(), &shown(arguments.progress))?;
            print(&if arguments.json { to_json(&document) } else { age_text(&document, palette) })?;
        }
        Command::Bench(BenchCommand::FirstWrite(arguments)) => {
            let document = bench::first_write(&arguments.options(), &shown(arguments.results.progress))?;
            print(&if arguments.results.json {
                to_json(&document)
            } else {
                first_write_text(&document, palette)
            })?;
        }
        Command::Bench(BenchCommand::Fragmentation(arguments)) => {
            let document = bench::fragmentation(&arguments.options()?, &shown(arguments.results.progress))?;
            print(&if arguments.results.json {
                to_json(&document)
            } else {
                fragmentation_text(&document, palette)
            })?;
        }
        Command::Bench(BenchCommand::Workloads(arguments)) => {
            let document = bench::workloads(&arguments.options(), &shown(arguments.results.progress))?;
            print(&if arguments.results.json {
                to_json(&document)
            } else {
                workloads_text(&document, palette)
            })?;
        }
    }
    Ok(())
}

/// What goes to standard output is enough once its reader says so.
fn read_by_others(done: Result<()>) -> Result<()> {
    done.or_else(|error| match error.io_source().map(std::io::Error::kind) {
        Some(std::io::ErrorKind::BrokenPipe) => Ok(()),
        _ => Err(error),
    })
}

fn extract(arguments: &ExtractArguments) -> Result<()> {
    let options = arguments.options();
    let mut stdout = std::io::stdout();
    if options.into == files::Destination::Stdout && stdout.is_terminal() {
        return Err(
            Error::invalid("a tar is not written onto a terminal").hint("--tar FILE, or a pipe behind it")
        );
    }
    reading_files(arguments.disk(), |mut disk, place| {
        place.put_in(&mut disk.disk, &mut disk.open);
        confine::run(arguments.confine.into(), confine::extract(&disk, &options).removing(place.made()))?;
        let disk = files::open(&disk)?;
        read_by_others(files::extract(disk.stack(), &options, &mut stdout, &TERMINAL))
    })
}

/// Does something with the files of a disk, wherever that is read.
fn reading_files<T>(
    disk: files::DiskOptions,
    act: impl FnOnce(files::DiskOptions, &Place) -> Result<T>,
) -> Result<T> {
    let named = disk.disk.clone();
    at(&named, &looking(), &TERMINAL, |place| act(disk, place))
}

fn info(arguments: &InfoArguments) -> Result<()> {
    if let Some(address) = Address::of(&arguments.disk).transpose()?.filter(|address| address.disk.is_none())
    {
        let document = running::list(&address)?;
        return print(&if arguments.json {
            to_json(&document)
        } else {
            vm_text(&document, stdout_palette())
        });
    }
    let text = at(&arguments.disk, &looking(), &TERMINAL, |place| {
        let mut options = arguments.options();
        place.put_in(&mut options.disk, &mut options.open);
        confine::run(arguments.confine.into(), confine::info(&options).removing(place.made()))?;
        let palette = stdout_palette();
        if let (Place::Here, Some(document)) = (&*place, info::appliance(&options)?) {
            return Ok(if arguments.json { to_json(&document) } else { appliance_text(&document, palette) });
        }
        let document = info::run(&options)?;
        Ok(if arguments.json { to_json(&document) } else { info_text(&document, palette) })
    })?;
    print(&text)
}

/// Copies a disk. Where standard output is the target, what is told of it goes to standard error.
fn copy(arguments: &CopyArguments, is_stream: bool) -> Result<()> {
    let observer = watching(arguments.progress, arguments.background, &arguments.paths());
    let document = at(&arguments.source, &arguments.of_guest()?, &*observer, |place| {
        if let (Place::Guest(guest), true) = (&mut *place, arguments.since.is_some()) {
            return increment::run(guest, &arguments.increment()?, &*observer);
        }
        let mut options = arguments.options()?;
        place.put_in(&mut options.source, &mut options.open);
        let input = copy::take_input(&mut options)?;
        confine::run(arguments.confine.into(), confine::copy(&options).removing(place.made()))?;
        let mut document = copy::run(&options, &*observer)?;
        if input.is_some() {
            document.name_source("-");
        }
        Ok(document)
    })?;
    let palette = if is_stream { stderr_palette() } else { stdout_palette() };
    let text = if arguments.json { to_json(&document) } else { copy_text(&document, palette) };
    match is_stream {
        false => print(&text),
        true if arguments.json || !is_quiet() => print_aside(&text),
        true => Ok(()),
    }
}

/// Backs disks up, wherever they are read.
fn back_up(arguments: &BackupArguments, observer: &dyn Observer) -> Result<BackupDocument> {
    let mut options = arguments.options()?;
    let names: Vec<_> = options.sources.iter().map(|source| source.disk.clone()).collect();
    let mut places = Places::begin(&names, &arguments.of_guests(&names)?, observer)?;
    options.sources = places.disks.iter().map(|disk| options.sources[disk.named].found(disk)).collect();
    let done = backup::run(&options, &mut places.guests, observer);
    places.end(done)
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
    let analyze::Analysis { document, map } = at(&arguments.disk, &looking(), &TERMINAL, |place| {
        let mut options = arguments.options(looks);
        place.put_in(&mut options.disk, &mut options.open);
        confine::run(arguments.confine.into(), confine::analyze(&options).removing(place.made()))?;
        analyze::run(&options, &TERMINAL)
    })?;
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
    let observer: Arc<dyn Observer> = Arc::new(Ending(TERMINAL));
    let mut options = arguments.options()?;
    let places = places_to_serve(&mut options)?;
    let served = serve::run_confined(&options, arguments.confine.into(), &observer, |disks| {
        for serve::ServedAt { disk, places } in disks {
            tell(&format!("serving {} at {}", disk.display(), places.join(" and ")));
        }
        manager.notify(service::READY);
        let _ = signals.forever().next();
        manager.notify(service::STOPPING);
    });
    places.end(served)
}

/// Where the disks are read that are served, if they are only read: those of one guest as of one moment.
fn places_to_serve(options: &mut serve::Options) -> Result<Places> {
    let disks = options.disks.iter().filter(|_| options.read_only);
    let names: Vec<_> = disks.map(|served| served.disk.clone()).collect();
    let places = Places::begin(&names, &looking(), &TERMINAL)?;
    if places.disks.len() > names.len() {
        let several = Error::invalid("this guest has several disks");
        return places.end(Err(several.hint("name each that is to be served: qmp:SOCKET?disk=NAME")));
    }
    for (served, found) in options.disks.iter_mut().zip(&places.disks) {
        (served.read_at, served.disk) = (found.read_at.clone(), found.disk.clone());
    }
    Ok(places)
}

fn run_guard(arguments: &GuardArguments) -> Result<()> {
    let manager = service::Manager::find();
    let stop = cancel_on_signal()?;
    let ready = |paths: &[PathBuf]| {
        let paths: Vec<_> = paths.iter().map(|path| printable(&path.display().to_string())).collect();
        tell(&format!("guarding {}", paths.join(" and ")));
        manager.notify(service::READY);
    };
    guard::run(&arguments.options(), &TERMINAL, &stop, ready, || manager.notify(service::STOPPING))
}

/// Lines of statistics between two headings, as on a terminal of 24.
const LINES_OF_HEADING: usize = 20;

fn watch(arguments: &StatsArguments, interval: Duration) -> Result<()> {
    let mut lines = 0;
    let mut stdout = std::io::stdout().lock();
    read_by_others(stats::watch(&arguments.options(), interval, &TERMINAL, |document| {
        let text = match arguments.json {
            true => to_json_line(document),
            false if lines % LINES_OF_HEADING == 0 => {
                watch_heading(stdout_palette()) + &watch_lines(document)
            }
            false => watch_lines(document),
        };
        lines += 1;
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        written.map_err(|error| Error::io("write to standard output", error))
    }))
}

fn run_coordinator(arguments: &CoordinateArguments) -> Result<()> {
    let manager = service::Manager::find();
    let stop = cancel_on_signal()?;
    coordinate::run(&arguments.options(), &stop, |sockets| {
        let sockets: Vec<_> = sockets.iter().map(|path| printable(&path.display().to_string())).collect();
        tell(&format!("coordinating at {}", sockets.join(" and ")));
        manager.notify(service::READY);
    })
}

fn stats(arguments: &StatsArguments) -> Result<()> {
    if arguments.csv {
        return print(&stats::csv(&arguments.options())?);
    }
    if let Some(interval) = arguments.watch {
        return watch(arguments, interval);
    }
    let document = stats::run(&arguments.options(), &TERMINAL)?;
    // Two are compared on a page.
    if arguments.later.is_some() {
        return Ok(());
    }
    print(&if arguments.json { to_json(&document) } else { stats_text(&document, stdout_palette()) })
}
