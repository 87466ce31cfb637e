//! One error for every layer: a stable kind, where it happened, what was found, what to do next.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use extent::{Offset, Space};

use crate::field::{Field, FieldValue};

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

impl ErrorKind {
    /// The exit status of the program, which scripts rely on.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Invalid => 2,
            Self::Refused | Self::Unsupported => 3,
            Self::Corrupt => 4,
            Self::Io => 5,
            Self::Mismatch => 6,
            Self::Interrupted => 130,
        }
    }
}

/// The result of anything that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, said by a text for people, or by a value that a caller can match ([`Error::cause`]) and whose
/// `Display` is that text. Rooms that parse have an enum of such values, called `Corrupt`.
pub type Cause = Box<dyn StdError + Send + Sync>;

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
    what: Cause,
    path: Option<String>,
    offset: Option<(&'static str, u64)>,
    field: Option<Field>,
    hint: Option<String>,
    source: Option<io::Error>,
    because: Option<Arc<Error>>,
}

impl Error {
    fn new(kind: ErrorKind, what: impl Into<Cause>) -> Self {
        let inner = Inner {
            kind,
            what: what.into(),
            path: None,
            offset: None,
            field: None,
            hint: None,
            source: None,
            because: None,
        };
        Self(Box::new(inner))
    }

    /// The operating system refused `what`.
    pub fn io(what: impl Into<Cause>, source: io::Error) -> Self {
        let mut error = Self::new(ErrorKind::Io, what);
        error.0.source = Some(source);
        error
    }

    /// `what` contradicts its format.
    pub fn corrupt(what: impl Into<Cause>) -> Self {
        Self::new(ErrorKind::Corrupt, what)
    }

    /// `what` is beyond Leandisk.
    pub fn unsupported(what: impl Into<Cause>) -> Self {
        Self::new(ErrorKind::Unsupported, what)
    }

    /// Leandisk will not do `what`.
    pub fn refused(what: impl Into<Cause>) -> Self {
        Self::new(ErrorKind::Refused, what)
    }

    /// The request `what` makes no sense.
    pub fn invalid(what: impl Into<Cause>) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }

    /// The result differs from what it must be.
    pub fn mismatch(what: impl Into<Cause>) -> Self {
        Self::new(ErrorKind::Mismatch, what)
    }

    /// The user asked to stop.
    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "interrupted")
    }

    /// The same once more, for another who needs to be told.
    pub fn again(error: &Arc<Self>) -> Self {
        let Inner { kind, what, path, offset, field: _, hint, source, because: _ } = &*error.0;
        let mut again = Self::new(*kind, what.to_string());
        again.0.path.clone_from(path);
        again.0.offset = *offset;
        again.0.hint.clone_from(hint);
        again.0.source = source.as_ref().map(|source| io::Error::new(source.kind(), source.to_string()));
        again.because(error.clone())
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
        found: impl Into<FieldValue>,
        expected: impl fmt::Display,
    ) -> Self {
        self.0.field = Some(Field::new(name, found, expected));
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

    /// Adds the error that this one tells in other words, for those who match its cause.
    #[must_use]
    pub fn because(mut self, deeper: impl Into<Arc<Self>>) -> Self {
        self.0.because = Some(deeper.into());
        self
    }

    /// What went wrong, without where and in which field.
    pub fn message(&self) -> String {
        self.0.what.to_string()
    }

    /// What went wrong as a value, if it is one of `C`: of this error, or of the one that it tells in other words.
    pub fn cause<C: StdError + 'static>(&self) -> Option<&C> {
        let deeper = || Self::cause(self.0.because.as_deref()?);
        self.0.what.downcast_ref().or_else(deeper)
    }

    /// The field that holds what it must not.
    pub fn wrong_field(&self) -> Option<&Field> {
        let deeper = || self.0.because.as_deref()?.wrong_field();
        self.0.field.as_ref().or_else(deeper)
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
        if let Some(field) = field {
            write!(f, ": {field}")?;
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

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Eq, Debug)]
    struct Checksum(u32);

    impl fmt::Display for Checksum {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "checksum of inode {}", self.0)
        }
    }

    impl StdError for Checksum {}

    #[test]
    fn a_cause_is_found_by_its_type_and_reads_as_its_text() {
        let error = Error::corrupt(Checksum(12)).path("disk");
        assert_eq!(error.cause(), Some(&Checksum(12)));
        assert_eq!(error.cause::<io::Error>().map(io::Error::kind), None);
        assert_eq!(
            (error.message().as_str(), error.to_string().as_str()),
            ("checksum of inode 12", "disk: checksum of inode 12",)
        );
        assert_eq!(Error::corrupt("text").cause(), None::<&Checksum>);
        let other_words = Error::refused("not changed").because(error);
        assert_eq!(
            (other_words.cause(), other_words.to_string().as_str()),
            (Some(&Checksum(12)), "not changed")
        );
    }

    #[test]
    fn a_field_keeps_its_number() {
        let error = Error::corrupt("header").field("version", FieldValue::hex(9_u8), "1 to 3");
        assert_eq!(error.wrong_field(), Some(&Field::new("version", FieldValue::hex(9_u64), "1 to 3")));
        assert_eq!(error.wrong_field().and_then(|field| field.found().number()), Some(9));
        assert_eq!(error.to_string(), "header: version is 0x9, expected 1 to 3");
        let text = Error::corrupt("header").field("magic", "none", "some");
        assert_eq!(text.wrong_field().and_then(|field| field.found().number()), None);
    }
}
