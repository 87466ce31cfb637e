//! The control socket: a line of JSON in, a line of JSON out.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use block::{Error, Result};

use super::csv::vscsi_stats;
use super::endpoint::{CLIENT_TIME_MAX, Endpoint, Listening, Stream, read_until};
use super::export_stats::ExportStats;
use super::moment::hold;
use super::prometheus::metrics;
use super::question::{Answer, Question, read_answer};
use crate::export::Export;
use crate::nbd::Publisher;
use crate::socket::{Access, bind};

/// The longest question.
const QUESTION_BYTES_MAX: usize = 8 << 10;

/// Answers questions at a socket. Stops, and removes the socket that it made, when dropped.
pub struct StatsServer {
    made: Option<PathBuf>,
    _endpoint: Endpoint,
}

/// Where the statistics of a server at the socket `path` are: `path` with `.stats` behind it.
pub fn socket_beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".stats");
    PathBuf::from(name)
}

impl StatsServer {
    /// Answers for `exports` at a socket `path`, for the owner alone. Moments of them are kept where there is a `publisher` for these.
    pub fn start(
        path: impl Into<PathBuf>,
        exports: Vec<Arc<Export>>,
        publisher: Option<Publisher>,
    ) -> Result<Self> {
        let path = path.into();
        let listener = bind(&path, Access::default())?;
        let mut server =
            Self::start_on(listener, exports, publisher).map_err(|error| error.path(path.display()))?;
        server.made = Some(path);
        Ok(server)
    }

    /// Answers for `exports` at a socket that listens already, and stays where it is in the end.
    pub fn start_on(
        listener: UnixListener,
        exports: Vec<Arc<Export>>,
        publisher: Option<Publisher>,
    ) -> Result<Self> {
        let converse = move |stream: &mut dyn Stream| converse(stream, &exports, publisher.as_ref());
        let endpoint = Endpoint::start(Listening::Unix(listener), converse)
            .map_err(|error| Error::io("listen", error))?;
        Ok(Self { made: None, _endpoint: endpoint })
    }
}

impl Drop for StatsServer {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn converse(stream: &mut dyn Stream, exports: &[Arc<Export>], publisher: Option<&Publisher>) {
    let Some(line) = read_until(stream, b"\n", QUESTION_BYTES_MAX, Instant::now() + CLIENT_TIME_MAX) else {
        return;
    };
    let answer = match serde_json::from_slice(&line) {
        Ok(Question::Moment { export }) => match moment_of(stream, export.as_deref(), exports, publisher) {
            Some(answer) => answer,
            None => return,
        },
        Ok(question) => answer(&question, exports),
        Err(error) => Answer::Error(format!("not a question: {error}")),
    };
    if let Ok(mut json) = serde_json::to_vec(&answer) {
        json.push(b'\n');
        let _ = stream.write_all(&json);
    }
}

/// Keeps a moment of the export of that name, or of the only one. What is answered if there is none.
fn moment_of(
    stream: &mut dyn Stream,
    name: Option<&str>,
    exports: &[Arc<Export>],
    publisher: Option<&Publisher>,
) -> Option<Answer> {
    let is_wanted = |export: &&Arc<Export>| name.is_none_or(|name| export.name() == name);
    let mut found = exports.iter().filter(is_wanted);
    let (export, other) = (found.next(), found.next());
    match (export, other, publisher) {
        (Some(export), None, Some(publisher)) => hold(stream, export, exports, publisher),
        _ => Some(Answer::NoMoment {}),
    }
}

fn answer(question: &Question, exports: &[Arc<Export>]) -> Answer {
    let stats = |name: &Option<String>| -> std::result::Result<Vec<ExportStats>, Answer> {
        let is_wanted = |export: &&Arc<Export>| name.as_ref().is_none_or(|name| export.name() == name);
        let found: Vec<_> = exports.iter().filter(is_wanted).map(|export| ExportStats::of(export)).collect();
        if found.is_empty() { Err(Answer::Error("no export of this name".into())) } else { Ok(found) }
    };
    let answer = match question {
        Question::Snapshot { export } => stats(export).map(Answer::Exports),
        Question::Csv { export } => stats(export).map(|found| Answer::Text(vscsi_stats(&found))),
        Question::Metrics {} => stats(&None).map(|found| Answer::Text(metrics(&found))),
        Question::Moment { .. } => Err(Answer::Error("a moment is no answer".into())),
    };
    answer.unwrap_or_else(|error| error)
}

/// Asks the server whose statistics are at the socket `path`.
pub fn query(path: &Path, question: &Question) -> Result<Answer> {
    let failed = |error| Error::io("ask for statistics", error).path(path.display());
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(CLIENT_TIME_MAX)).map_err(failed)?;
    let mut line = serde_json::to_vec(question).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    read_answer(&stream, path)
}
