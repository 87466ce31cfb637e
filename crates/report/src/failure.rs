//! Why a command failed, for programs.

use block::{Error, ErrorKind};
use serde::Serialize;

/// What a document says of a failure.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// `usage`, `refused`, `unsupported`, `corrupt`, `io`, `mismatch` or `interrupted`.
    kind: &'static str,
    message: String,
    /// What to do next.
    hint: Option<String>,
    /// The file that it is about.
    path: Option<String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: kind_word(error.kind()),
            message: error.to_string(),
            hint: error.hint_text().map(str::to_owned),
            path: error.path_text().map(str::to_owned),
        }
    }
}

/// The document `leandisk.error/1`: what `--json` prints where no other document was.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorDocument {
    schema: &'static str,
    #[serde(flatten)]
    failure: Failure,
}

impl ErrorDocument {
    /// The document of a failure.
    pub fn new(error: &Error) -> Self {
        Self { schema: "leandisk.error/1", failure: error.into() }
    }
}

/// As in documents.
fn kind_word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "usage",
        ErrorKind::Refused => "refused",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Mismatch => "mismatch",
        ErrorKind::Interrupted => "interrupted",
        _ => "io",
    }
}
