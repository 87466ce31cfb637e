//! Statistics of a disk that is served: asks a server what it measured, or reads what it measured then, or measures a recording of requests; compares two
//! of them.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use block::{Error, Result};
use report::{StatsDocument, stats_page};
use serve::stats::{Answer, Corrupt, ExportStats, Question, query, socket_beside};

use crate::output::OutputFile;
use crate::{Observer, recording};

/// A recording is no larger.
const RECORDING_BYTES_MAX: u64 = 64 << 20;

/// How soon it stops that is asked to.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The socket of a server; or a file with a document that was printed before, or a recording of requests.
    pub source: PathBuf,
    /// Which of several exports; `None` for the only one.
    pub export: Option<String>,
    /// A second source, to compare with the first.
    pub later: Option<PathBuf>,
    /// Where the statistics go as a page, if anywhere.
    pub html: Option<PathBuf>,
    /// Whether that replaces a file that is there.
    pub force: bool,
}

/// The histograms of the server behind the first source, in the form of `vscsiStats -p all -c`.
pub fn csv(options: &Options) -> Result<String> {
    let socket = control_socket(&options.source);
    let exports = chosen(asked(&socket)?, options.export.as_deref(), &options.source)?;
    let export = exports.into_iter().next().map(|export| export.name);
    match query(&socket, &Question::Csv { export })? {
        Answer::Text(text) => Ok(text),
        other => Err(unexpected(&socket, other)),
    }
}

/// What the first source says. The second is only on the page.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<StatsDocument> {
    let sources: Vec<&Path> =
        [Some(&options.source), options.later.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect();
    let page =
        options.html.as_deref().map(|path| OutputFile::prepare(path, options.force, &sources)).transpose()?;
    let of_export = |path: &Path| -> Result<StatsDocument> {
        let exports = chosen(measured(path, observer)?, options.export.as_deref(), path)?;
        Ok(StatsDocument::new(exports))
    };
    let document = of_export(&options.source)?;
    let later = options.later.as_deref().map(of_export).transpose()?;
    if let Some(file) = page {
        let first = (&*options.source.to_string_lossy(), &document);
        let second = options.later.as_ref().map(|path| path.to_string_lossy()).zip(later.as_ref());
        let page = match &second {
            None => stats_page(None, first),
            Some((name, later)) => stats_page(Some(first), (name, later)),
        };
        file.write_page(&page, options.later.as_deref().unwrap_or(&options.source), observer)?;
    }
    Ok(document)
}

/// Has `each` told what was asked of the disks of a server in each `interval`, until that fails, the user asks to stop, or the server ends.
pub fn watch(
    options: &Options,
    interval: Duration,
    observer: &dyn Observer,
    mut each: impl FnMut(&StatsDocument) -> Result<()>,
) -> Result<()> {
    let cancelled = observer.cancel()?;
    let socket = control_socket(&options.source);
    let ask = || -> Result<Vec<ExportStats>> {
        let exports = asked(&socket)?;
        check_snapshots(&exports).map_err(|error| error.path(socket.display()))?;
        match &options.export {
            Some(_) => chosen(exports, options.export.as_deref(), &options.source),
            None => Ok(exports),
        }
    };
    let mut before = ask()?;
    loop {
        let until = Instant::now() + interval;
        while !cancelled.load(Relaxed) && Instant::now() < until {
            std::thread::sleep((until - Instant::now()).min(LOOKS_EVERY));
        }
        if cancelled.load(Relaxed) {
            return Ok(());
        }
        // A server that was there and is not any more has ended.
        let Ok(now) = ask() else { return Ok(()) };
        each(&StatsDocument::new(between(&before, &now)))?;
        before = now;
    }
}

/// What was measured between two looks.
fn between(before: &[ExportStats], now: &[ExportStats]) -> Vec<ExportStats> {
    let of_export = |now: &ExportStats| {
        let before = before.iter().find(|before| before.name == now.name);
        let before = before.and_then(|before| before.snapshot.as_ref());
        let snapshot = now.snapshot.as_ref().zip(before).map(|(now, before)| now.since(before));
        ExportStats { snapshot, ..now.clone() }
    };
    now.iter().map(of_export).collect()
}

/// What a server tells, or told when it was recorded.
fn measured(source: &Path, observer: &dyn Observer) -> Result<Vec<ExportStats>> {
    let metadata = source.metadata().ok().filter(std::fs::Metadata::is_file);
    if let Some(metadata) = metadata {
        if let Some(export) = recording::measured(source, observer)? {
            return Ok(vec![export]);
        }
        if metadata.len() > RECORDING_BYTES_MAX {
            return Err(Error::corrupt(Corrupt::TooLarge).path(source.display()));
        }
        let text = std::fs::read(source).map_err(|error| Error::io("read", error).path(source.display()))?;
        let document = StatsDocument::from_json(&String::from_utf8_lossy(&text));
        let document = document.map_err(|error| error.path(source.display()))?;
        check_snapshots(document.exports()).map_err(|error| error.path(source.display()))?;
        return Ok(document.into_exports());
    }
    let socket = control_socket(source);
    let exports = asked(&socket)?;
    check_snapshots(&exports).map_err(|error| error.path(socket.display()))?;
    Ok(exports)
}

/// What a server tells of all its exports.
fn asked(socket: &Path) -> Result<Vec<ExportStats>> {
    match query(socket, &Question::Snapshot { export: None })? {
        Answer::Exports(exports) => Ok(exports),
        other => Err(unexpected(socket, other)),
    }
}

/// The export of this name, or the only one. `Invalid` if that is none.
fn chosen(exports: Vec<ExportStats>, name: Option<&str>, source: &Path) -> Result<Vec<ExportStats>> {
    let names: Vec<_> = exports.iter().map(|export| format!("'{}'", export.name)).collect();
    let names = names.join(", ");
    let Some(name) = name else {
        return match exports.len() {
            0 | 1 => Ok(exports),
            count => Err(Error::invalid(format!("there are {count} exports: {names}"))
                .hint("say which with --export NAME")
                .path(source.display())),
        };
    };
    let found: Vec<_> = exports.into_iter().filter(|export| export.name == name).collect();
    if found.is_empty() {
        let what = format!("no export is called '{name}'");
        return Err(Error::invalid(what).hint(format!("there is: {names}")).path(source.display()));
    }
    Ok(found)
}

/// The control socket itself, or the one beside the socket at which the disk is served.
fn control_socket(path: &Path) -> PathBuf {
    if path.extension().is_some_and(|extension| extension == "stats") {
        path.to_owned()
    } else {
        socket_beside(path)
    }
}

fn unexpected(socket: &Path, answer: Answer) -> Error {
    let why = match answer {
        Answer::Error(why) => why,
        Answer::Exports(_) | Answer::Text(_) | Answer::Moment { .. } | Answer::NoMoment {} => {
            "the server answered something else".into()
        }
    };
    Error::corrupt(Corrupt::Answer(why)).path(socket.display())
}

/// A server of another version may measure other things.
fn check_snapshots(exports: &[ExportStats]) -> Result<()> {
    for snapshot in exports.iter().filter_map(|export| export.snapshot.as_ref()) {
        if snapshot.schema != serve::monitor::SCHEMA {
            return Err(Error::unsupported("statistics").field(
                "schema",
                snapshot.schema.as_str(),
                serve::monitor::SCHEMA,
            ));
        }
    }
    Ok(())
}
