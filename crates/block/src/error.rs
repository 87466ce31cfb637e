//! One error for every layer: a stable kind, where it happened, what was found, what to do next.

use std::fmt;
use std::io;

use extent::{Offset, Space};

/// What went wrong, as far as a caller may act on it. Each maps to one exit status of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The machine failed: a read, a write, no space left.
    Io,
    /// The disk contradicts its format. The disk's fault.
    Corrupt,
    /// The disk may be right, but Leandisk cannot handle it. Our fault.
    Unsupported,
    /// Leandisk could, but will not: unsafe, or not granted.
    Refused,
    /// The request makes no sense: an argument out of range.
    Invalid,
    /// A check of the result found a difference.
    Mismatch,
    /// The user asked to stop.
    Interrupted,
}

/// The result of anything that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error with its context. Built by a constructor for its kind, then refined:
///
/// ```
/// # use block::Error; use extent::{Offset, Host};
/// let error = Error::corrupt("VHDX BAT entry")
///     .at(Offset::<Host>::new(0x300008))
///     .field("state", 5, "0 to 3, 6 or 7");
/// assert_eq!(error.to_string(), "VHDX BAT entry: state is 5, expected 0 to 3, 6 or 7 (at offset 0x300008)");
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: String,
    path: Option<String>,
    offset: Option<(&'static str, u64)>,
    field: Option<(String, String, String)>,
    hint: Option<String>,
    source: Option<io::Error>,
}

impl Error {
    fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        let inner = Inner {
            kind,
            what: what.into(),
            path: None,
            offset: None,
            field: None,
            hint: None,
            source: None,
        };
        Self(Box::new(inner))
    }

    /// The operating system refused `what`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        let mut error = Self::new(ErrorKind::Io, what);
        error.0.source = Some(source);
        error
    }

    /// `what` contradicts its format.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, what)
    }

    /// `what` is beyond Leandisk.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, what)
    }

    /// Leandisk will not do `what`.
    pub fn refused(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, what)
    }

    /// The request `what` makes no sense.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }

    /// The result differs from what it must be.
    pub fn mismatch(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Mismatch, what)
    }

    /// The user asked to stop.
    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "interrupted")
    }

    /// Adds where it happened.
    #[must_use]
    pub fn at<S: Space>(mut self, offset: Offset<S>) -> Self {
        self.0.offset = Some((S::NAME, offset.get()));
        self
    }

    /// Adds the field, what it holds and what it may hold.
    #[must_use]
    pub fn field(
        mut self,
        name: impl fmt::Display,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        self.0.field = Some((name.to_string(), found.to_string(), expected.to_string()));
        self
    }

    /// Adds the file's name, unless a deeper layer already did.
    #[must_use]
    pub fn path(mut self, path: impl fmt::Display) -> Self {
        self.0.path.get_or_insert_with(|| path.to_string());
        self
    }

    /// Adds what the user can do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// What went wrong, without where and in which field.
    pub fn message(&self) -> &str {
        &self.0.what
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the user can do next.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Whether the host has no space left, or grants none.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        self.io_source().is_some_and(|io| matches!(io.kind(), StorageFull | QuotaExceeded))
    }

    /// The file that it is about.
    pub fn path_text(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// The operating system's error behind it.
    pub fn io_source(&self) -> Option<&io::Error> {
        self.0.source.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { what, path, offset, field, source, .. } = &*self.0;
        if let Some(path) = path {
            write!(f, "{path}: ")?;
        }
        write!(f, "{what}")?;
        if let Some((name, found, expected)) = field {
            write!(f, ": {name} is {found}, expected {expected}")?;
        }
        if let Some(source) = source {
            write!(f, ": {source}")?;
        }
        if let Some((space, offset)) = offset {
            write!(f, " (at {space} {offset:#x})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}
