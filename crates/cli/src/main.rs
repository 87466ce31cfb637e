//! The `leandisk` program: parses the command line, puts the pieces together, and reports.
//!
//! Invariants: data goes to stdout, all else to stderr; the exit status is the error's kind.

#![allow(clippy::print_stdout)]

mod analyze;
mod arguments;
mod bench_command;
mod compact;
mod consolidate;
mod copy;
mod create;
mod defrag;
mod disk;
mod info;
mod map;
mod pack;
mod places;
mod progress;
mod serve;
mod stats;
mod target;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use block::{Error, ErrorKind};
use clap::Parser;
use report::{Palette, printable};

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Info(arguments) => info::run(&arguments),
        Command::Analyze(arguments) => analyze::run(&arguments),
        Command::Map(arguments) => map::run(&arguments),
        Command::Copy(arguments) => copy::run(&arguments),
        Command::Create(arguments) => create::run(&arguments),
        Command::Compact(arguments) => compact::run(&arguments),
        Command::Defrag(arguments) => defrag::run(&arguments),
        Command::Recover(arguments) => defrag::recover(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Bench(command) => bench_command::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(exit_status(error.kind()))
        }
    }
}

/// The exit statuses that scripts rely on.
fn exit_status(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 2,
        ErrorKind::Refused | ErrorKind::Unsupported => 3,
        ErrorKind::Corrupt => 4,
        ErrorKind::Mismatch => 6,
        ErrorKind::Interrupted => 130,
        _ => 5,
    }
}

fn complain(error: &Error) {
    eprintln!("leandisk: {}", printable(&error.to_string()));
    if let Some(hint) = error.hint_text() {
        eprintln!("leandisk: {}", printable(hint));
    }
}

/// Prints a document for programs or people. A closed pipe is no error: the reader had enough.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", text.trim_end_matches('\n'));
}

fn stdout_palette() -> Palette {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Palette { colors: wanted && std::io::stdout().is_terminal() }
}
