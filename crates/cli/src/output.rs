//! What leaves the program: documents on standard output, messages on standard error.
//!
//! Invariants:
//! - a document that could not be written is an error; a closed pipe is none, since its reader had enough;
//! - a message that nobody can read stops nothing: standard error may be closed or full.

use std::io::{ErrorKind as IoErrorKind, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, Result};
use report::{Palette, printable};

/// Has a write beyond the shell's limit of a file's size (`ulimit -f`) fail as any write fails, instead of ending the program
/// before it can clean up.
pub(crate) fn outlive_file_size_limit() {
    // Without the handler the program works as well; it only ends less tidily.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Prints a document for programs or people.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush());
    read_enough(written)
}

/// Prints a document on standard error: standard output is what was asked for.
pub(crate) fn print_aside(text: &str) -> Result<()> {
    let mut out = std::io::stderr().lock();
    read_enough(writeln!(out, "{}", text.trim_end_matches('\n')))
}

/// `Io` if standard output could not be written; a closed pipe is no error.
pub(crate) fn read_enough(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != IoErrorKind::BrokenPipe => {
            Err(Error::io("write", error).path("standard output"))
        }
        _ => Ok(()),
    }
}

/// Whether a bar was ever drawn, which may stand on the terminal still.
pub(crate) static BAR_WAS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Whether nothing but errors is wanted on standard error.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves only errors on standard error from here on.
pub(crate) fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// A line for people, on standard error: what went wrong.
pub(crate) fn say(text: &str) {
    write_line("leandisk: ", text);
}

/// The same of what did not go wrong, for those who want to know.
pub(crate) fn tell(text: &str) {
    if !is_quiet() {
        say(text);
    }
}

/// A line on standard error, which comes in one piece: who reads along sees all of it or nothing.
pub(crate) fn write_line(from: &str, text: &str) {
    // A bar stands in a line without an end, and is drawn anew below.
    let clear = if BAR_WAS_DRAWN.load(Ordering::Relaxed) { "\r\x1b[2K" } else { "" };
    let line = format!("{clear}{from}{}\n", printable(text));
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

pub(crate) fn stderr_palette() -> Palette {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Palette { colors: wanted && std::io::stderr().is_terminal() }
}

pub(crate) fn stdout_palette() -> Palette {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Palette { colors: wanted && std::io::stdout().is_terminal() }
}
