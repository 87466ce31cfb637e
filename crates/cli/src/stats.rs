//! `leandisk stats`: asks a server what it measured, or reads what it measured then, or measures a recording of requests; compares two
//! of them.

use std::path::{Path, PathBuf};

use block::{Error, Result};
use report::{StatsDocument, stats_page, stats_text, to_json};
use serve::stats::{Answer, ExportStats, Question, query, socket_beside};

use crate::arguments::StatsArguments;
use crate::output::OutputFile;
use crate::{print, recording, stdout_palette};

/// A recording is no larger.
const RECORDING_BYTES_MAX: u64 = 64 << 20;

pub(crate) fn run(arguments: &StatsArguments) -> Result<()> {
    if arguments.csv {
        let socket = control_socket(&arguments.source);
        return match query(&socket, &Question::Csv { export: None })? {
            Answer::Text(text) => print(&text),
            other => Err(unexpected(&socket, other)),
        };
    }
    let sources: Vec<&Path> = [Some(&arguments.source), arguments.later.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let page = arguments
        .html
        .as_deref()
        .map(|path| OutputFile::prepare(path, arguments.force, &sources))
        .transpose()?;
    let document = measured(&arguments.source)?;
    let later = arguments.later.as_deref().map(measured).transpose()?;
    if let Some(file) = page {
        let first = (&*arguments.source.to_string_lossy(), &document);
        let second = arguments.later.as_ref().map(|path| path.to_string_lossy()).zip(later.as_ref());
        let page = match &second {
            None => stats_page(None, first),
            Some((name, later)) => stats_page(Some(first), (name, later)),
        };
        file.write_page(&page, arguments.later.as_deref().unwrap_or(&arguments.source))?;
    }
    if later.is_some() {
        return Ok(());
    }
    print(&if arguments.json { to_json(&document) } else { stats_text(&document, stdout_palette()) })
}

/// What a server tells, or told when it was recorded.
fn measured(source: &Path) -> Result<StatsDocument> {
    let metadata = source.metadata().ok().filter(std::fs::Metadata::is_file);
    if let Some(metadata) = metadata {
        if let Some(export) = recording::measured(source)? {
            return Ok(StatsDocument::new(vec![export]));
        }
        if metadata.len() > RECORDING_BYTES_MAX {
            return Err(Error::corrupt("no recording is that large").path(source.display()));
        }
        let text = std::fs::read(source).map_err(|error| Error::io("read", error).path(source.display()))?;
        let document = StatsDocument::from_json(&String::from_utf8_lossy(&text));
        let document = document.map_err(|error| error.path(source.display()))?;
        check_snapshots(document.exports()).map_err(|error| error.path(source.display()))?;
        return Ok(document);
    }
    let socket = control_socket(source);
    let exports = match query(&socket, &Question::Snapshot { export: None })? {
        Answer::Exports(exports) => exports,
        other => return Err(unexpected(&socket, other)),
    };
    check_snapshots(&exports).map_err(|error| error.path(socket.display()))?;
    Ok(StatsDocument::new(exports))
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
        Answer::Exports(_) | Answer::Text(_) => "the server answered something else".into(),
    };
    Error::corrupt(format!("answer about statistics: {why}")).path(socket.display())
}

/// A server of another version may measure other things.
fn check_snapshots(exports: &[ExportStats]) -> Result<()> {
    for snapshot in exports.iter().filter_map(|export| export.snapshot.as_ref()) {
        if snapshot.schema != serve::monitor::SCHEMA {
            return Err(Error::unsupported("statistics").field(
                "schema",
                &snapshot.schema,
                serve::monitor::SCHEMA,
            ));
        }
    }
    Ok(())
}
