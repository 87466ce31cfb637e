//! What is asked at the control socket, and what is answered, each a line of JSON.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;

use block::{Error, Result};
use serde::{Deserialize, Serialize};

use super::corrupt::Corrupt;
use super::export_stats::ExportStats;

/// The longest answer that a client takes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What may be asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Question {
    /// What was measured of every export, or of one.
    Snapshot {
        /// The export's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        export: Option<String>,
    },
    /// The same as vscsiStats prints it.
    Csv {
        /// The export's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        export: Option<String>,
    },
    /// The same for Prometheus.
    Metrics {},
    /// A disk as it is now, under a name that is answered, for as long as the connection lasts. A file is passed along, which takes what
    /// changes meanwhile.
    Moment {
        /// The export's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        export: Option<String>,
    },
}

/// What is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To `snapshot`.
    Exports(Vec<ExportStats>),
    /// To `csv` and `metrics`.
    Text(String),
    /// To `moment`: the name of the export that shows the disk as it was.
    Moment {
        /// That name.
        export: String,
    },
    /// To `moment`, where there is no such export, or none of which moments are kept.
    NoMoment {},
    /// To what makes no sense.
    Error(String),
}

/// Reads the line that a server answers.
pub(super) fn read_answer(stream: &UnixStream, path: &Path) -> Result<Answer> {
    let failed = |error| Error::io("ask the server", error).path(path.display());
    let mut answer = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_until(b'\n', &mut answer).map_err(failed)?;
    serde_json::from_slice(&answer)
        .map_err(|error| Error::corrupt(Corrupt::Answer(error.to_string())).path(path.display()))
}
