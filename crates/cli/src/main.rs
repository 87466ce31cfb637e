//! The `leandisk` program: parses the command line, calls the use cases of the library, prints what they report.
//!
//! Invariants: data goes to stdout, all else to stderr, both through [`output`]; the exit status is the error's kind; with
//! `--json` exactly one document is printed, whatever happens.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod commands;
mod copying;
mod generate;
mod log;
mod options;
mod output;
mod places;
mod progress;
mod service;
mod sizes;

use std::path::Path;
use std::process::ExitCode;

use block::{Error, ErrorKind};
use report::{ErrorDocument, to_json};

use arguments::Arguments;
use output::{print, print_aside, read_enough, say};

fn main() -> ExitCode {
    output::outlive_file_size_limit();
    let arguments = match Arguments::of_this_process() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    if arguments.messages.quiet {
        output::be_quiet();
    }
    log::begin(arguments.messages);
    let wants_json = arguments.command.wants_json();
    match commands::run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            let failed = failed.named(arguments.command.disk());
            let (Failed::Untold(error) | Failed::Told(error)) = &failed;
            complain(error);
            if wants_json && matches!(failed, Failed::Untold(_)) {
                // If that cannot be printed either, the status says enough.
                let document = to_json(&ErrorDocument::new(error));
                let _ =
                    if arguments.command.fills_stdout() { print_aside(&document) } else { print(&document) };
            }
            ExitCode::from(error.kind().exit_status())
        }
    }
}

/// A command that did not do what it was asked for.
pub(crate) enum Failed {
    /// No document was printed.
    Untold(Error),
    /// The document that was printed says it.
    Told(Error),
}

impl Failed {
    /// With the disk's name, if the disk is what is wrong and a deeper layer did not name the file.
    fn named(self, disk: Option<&Path>) -> Self {
        let name = |error| match disk {
            Some(disk) => leandisk::name_disk(error, disk),
            None => error,
        };
        match self {
            Self::Untold(error) => Self::Untold(name(error)),
            Self::Told(error) => Self::Told(name(error)),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Untold(error)
    }
}

fn complain(error: &Error) {
    say(&error.to_string());
    if let Some(hint) = error.hint_text() {
        say(hint);
    }
}

/// Help where it was asked for, else what is wrong with the command line.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if !error.use_stderr() {
        return match read_enough(printed) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => ExitCode::from(error.kind().exit_status()),
        };
    }
    // Which command was meant is not known then.
    if std::env::args_os().any(|argument| argument == "--json") {
        let rendered = error.render().to_string();
        let message = rendered.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let invalid = Error::invalid(message.trim()).hint("--help after the command shows what it takes");
        let _ = print(&to_json(&ErrorDocument::new(&invalid)));
    }
    ExitCode::from(ErrorKind::Invalid.exit_status())
}
