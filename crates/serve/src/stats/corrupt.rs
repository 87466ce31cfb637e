//! What is wrong with statistics that were asked for or kept, as values.

/// How statistics contradict what a server measures.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// The answer at a control socket is none.
    #[error("answer about statistics: {0}")]
    Answer(String),
    /// The document is not what `leandisk stats --json` prints.
    #[error("not a recording of 'leandisk stats --json': {0}")]
    Document(String),
    /// A histogram has other bins than a server's, or counts that no server reaches.
    #[error("recording of statistics: its bins are not those of a server")]
    Bins,
    /// The file is larger than any recording.
    #[error("no recording is that large")]
    TooLarge,
}
