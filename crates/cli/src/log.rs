//! What the libraries tell of their work (`-v`, `RUST_LOG`), as lines on standard error.
//!
//! Invariants: without either there is not one line; a line that cannot be written stops nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::arguments::MessageArguments;
use crate::output::{tell, write_line};

/// Begins to log, if that is asked for.
pub(crate) fn begin(arguments: MessageArguments) {
    if arguments.quiet {
        return;
    }
    let Some(filter) = filter(arguments.verbose) else { return };
    // Colours would have to be taken out of names that were chosen to look like them.
    let lines =
        tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false).with_writer(|| Line);
    // Else it says so on standard error, and panics if that is closed.
    let lines = lines.log_internal_errors(false);
    // Nobody else in this program has begun one.
    let _ = match is_journal() {
        true => lines.without_time().finish().with(filter).try_init(),
        false => lines.finish().with(filter).try_init(),
    };
}

/// What is told: what `RUST_LOG` says, else by how often `-v` was given.
fn filter(verbose: u8) -> Option<Targets> {
    let wanted = std::env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty());
    if let Some(text) = wanted {
        match text.parse() {
            Ok(filter) => return Some(filter),
            Err(error) => tell(&format!("RUST_LOG is not understood, and is ignored: {error}")),
        }
    }
    let level = match verbose {
        0 => return None,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Some(Targets::new().with_default(level))
}

/// Whether standard error is the journal of systemd, which has times of its own (systemd.exec(5), `JOURNAL_STREAM`).
fn is_journal() -> bool {
    let Some(named) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let owned = io::stderr().as_fd().try_clone_to_owned();
    let metadata = owned.and_then(|stderr| File::from(stderr).metadata());
    metadata.is_ok_and(|metadata| named == format!("{}:{}", metadata.dev(), metadata.ino()))
}

/// Where one line goes, which comes in one piece.
struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_line("", String::from_utf8_lossy(bytes).trim_end());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
