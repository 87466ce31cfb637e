//! How a call ended: null, or an error that C asks and frees. Panics end here.

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};

use block::{Error, ErrorKind, Result};

use crate::registry::Registry;

static ERRORS: Registry<Failure> = Registry::new();

/// What went wrong, as far as a program may act on it. The numbers are the exit statuses of the program leandisk.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing.
    None = 0,
    /// The call makes no sense: a null pointer, an option out of range, a handle that was closed.
    Invalid = 2,
    /// Leandisk will not do it, since it is unsafe or not granted, or cannot. Nothing was changed.
    Refused = 3,
    /// The disk contradicts its format.
    Corrupt = 4,
    /// The machine failed: a read, a write, no space left.
    Io = 5,
    /// A check of the result found a difference.
    Mismatch = 6,
    /// A fault of the library itself. What it was doing is left as if the machine had stopped then.
    Internal = 101,
    /// A callback asked to stop.
    Interrupted = 130,
}

impl From<ErrorKind> for Kind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::Refused | ErrorKind::Unsupported => Self::Refused,
            ErrorKind::Corrupt => Self::Corrupt,
            ErrorKind::Mismatch => Self::Mismatch,
            ErrorKind::Interrupted => Self::Interrupted,
            _ => Self::Io,
        }
    }
}

/// An error. Its texts are good until it is freed.
pub struct ErrorHandle(());

/// What a handle of an error stands for.
struct Failure {
    kind: Kind,
    message: CString,
    hint: Option<CString>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            kind: error.kind().into(),
            message: c_text(&error.to_string()),
            hint: error.hint_text().map(c_text),
        }
    }
}

impl Failure {
    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason was given");
        Self { kind: Kind::Internal, message: c_text(&format!("a fault of libleandisk: {text}")), hint: None }
    }
}

/// Names of files come from everywhere: a NUL, which would end the text, is shown as a character that stands for none.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).expect("no NUL is left")
}

/// Does the work of a call, and answers how it ended.
///
/// What a panic leaves behind is dropped here or is a registry, which nothing leaves halfway.
pub(crate) fn guarded(work: impl FnOnce() -> Result<()>) -> *mut ErrorHandle {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return null_mut(),
        Ok(Err(error)) => error.into(),
        Err(panic) => Failure::of_panic(&*panic),
    };
    ERRORS.insert(failure)
}

/// The kind of an error: LEANDISK_KIND_NONE of null, LEANDISK_KIND_INVALID of what is no error, or was freed.
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_error_kind(error: *const ErrorHandle) -> Kind {
    match ERRORS.get(error) {
        Some(failure) => failure.kind,
        None if error.is_null() => Kind::None,
        None => Kind::Invalid,
    }
}

/// What went wrong, for people: UTF-8, never null.
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_error_message(error: *const ErrorHandle) -> *const c_char {
    const NONE: &CStr = c"no error";
    const UNKNOWN: &CStr = c"not an error of libleandisk, or one that was freed";
    match ERRORS.get(error) {
        Some(failure) => failure.message.as_ptr(),
        None if error.is_null() => NONE.as_ptr(),
        None => UNKNOWN.as_ptr(),
    }
}

/// What to do next, for people; null if there is nothing to say. Options have the names that they have on the command line.
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_error_hint(error: *const ErrorHandle) -> *const c_char {
    ERRORS.get(error).map_or(null(), |failure| failure.hint.as_ref().map_or(null(), |hint| hint.as_ptr()))
}

/// Frees an error. Null is fine. Answers whether there was nothing wrong with that: false if it is none, or was freed before.
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_error_free(error: *mut ErrorHandle) -> bool {
    error.is_null() || ERRORS.remove(error).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic)]
    fn a_panic_becomes_an_error() {
        let error = guarded(|| panic!("number {}", 7));
        assert_eq!(leandisk_error_kind(error), Kind::Internal);
        assert!(leandisk_error_free(error) && !leandisk_error_free(error));
        assert_eq!(leandisk_error_kind(error), Kind::Invalid);
    }

    #[test]
    fn kinds_are_the_exit_statuses() {
        use ErrorKind::{Corrupt, Interrupted, Invalid, Io, Mismatch, Refused, Unsupported};
        for kind in [Io, Corrupt, Unsupported, Refused, Invalid, Mismatch, Interrupted] {
            assert_eq!(Kind::from(kind) as u8, kind.exit_status(), "{kind:?}");
        }
    }

    #[test]
    fn no_error_is_null() {
        let error = guarded(|| Ok(()));
        assert!(error.is_null() && leandisk_error_hint(error).is_null() && leandisk_error_free(error));
        assert_eq!(leandisk_error_kind(error), Kind::None);
    }
}
