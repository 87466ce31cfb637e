//! Why one attempt failed, and whether another one is worth it.

use std::io;

use block::Error;
use repository::Denied;

/// What one attempt came to.
pub(crate) type Attempt<T> = Result<T, Fault>;

/// Why it failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It may pass: a time-out, a server that is busy, a connection that broke.
    Passing(Error),
    /// It will be the same the next time.
    Final(Error),
}

impl Fault {
    pub(crate) fn passing(what: impl Into<String>, kind: io::ErrorKind) -> Self {
        Self::Passing(Error::io(what.into(), kind.into()))
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Final(Error::corrupt(what.into()))
    }

    pub(crate) fn denied(what: impl Into<String>) -> Self {
        Self::Final(Error::refused(Denied(what.into())))
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::Final(Error::io(what.into(), io::ErrorKind::NotFound.into()))
    }

    /// A file that ends before what is asked of it.
    pub(crate) fn too_short(what: impl Into<String>) -> Self {
        Self::Final(Error::io(what.into(), io::ErrorKind::UnexpectedEof.into()))
    }

    pub(crate) fn is_not_found(&self) -> bool {
        let (Self::Passing(error) | Self::Final(error)) = self;
        error.io_source().is_some_and(|io| io.kind() == io::ErrorKind::NotFound)
    }
}

/// What came from a server and goes into a message: short, and nothing that a terminal obeys.
pub(crate) fn shown(text: &str) -> String {
    let is_plain = |letter: &char| !letter.is_control();
    text.chars().filter(is_plain).take(200).collect::<String>().trim().to_owned()
}
