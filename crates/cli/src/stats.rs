//! `leandisk stats`: asks a server what it measured.

use std::path::{Path, PathBuf};

use block::{Error, Result};
use report::{StatsDocument, stats_text, to_json};
use serve::stats::{Answer, ExportStats, Question, query, socket_beside};

use crate::arguments::StatsArguments;
use crate::{print, stdout_palette};

pub(crate) fn run(arguments: &StatsArguments) -> Result<()> {
    let socket = control_socket(&arguments.socket);
    if arguments.csv {
        return match query(&socket, &Question::Csv { export: None })? {
            Answer::Text(text) => {
                print(&text);
                Ok(())
            }
            other => Err(unexpected(&socket, other)),
        };
    }
    let exports = match query(&socket, &Question::Snapshot { export: None })? {
        Answer::Exports(exports) => exports,
        other => return Err(unexpected(&socket, other)),
    };
    check_snapshots(&exports).map_err(|error| error.path(socket.display()))?;
    let document = StatsDocument::new(exports);
    print(&if arguments.json { to_json(&document) } else { stats_text(&document, stdout_palette()) });
    Ok(())
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
