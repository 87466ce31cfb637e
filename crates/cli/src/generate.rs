//! What else is made of the definition of the command line: completions for shells, and manual pages.
//!
//! Invariant: a page says what the help says, so that there is one text to keep true.

use std::path::Path;

use block::{Error, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::{Arguments, Shell};
use crate::output::print;

/// The first line of what stands below the help of a command.
const EXAMPLES: &str = "Examples:\n";

/// Prints the script that completes commands and options in the shell.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::whole(), "leandisk", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes the page of every command to the folder: `leandisk.1`, `leandisk-copy.1` and so on.
pub(crate) fn manual(dir: &Path) -> Result<()> {
    let mut program = Arguments::whole().version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    program.build();
    write_pages(&program, None, dir)
}

fn write_pages(command: &Command, parent: Option<&str>, dir: &Path) -> Result<()> {
    let name = page_name(command);
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command, parent))
        .map_err(|error| Error::io("write", error).path(path.display()))?;
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.into_iter().try_for_each(|command| write_pages(command, Some(name), dir))
}

fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: &Command, parent: Option<&str>) -> Vec<u8> {
    let mut page = Vec::new();
    let mut shown = command.clone().after_help(None);
    let usage = shown.render_usage().to_string();
    Man::new(shown.override_usage(usage.trim_start_matches("Usage: ").to_owned()))
        .source(concat!("leandisk ", env!("CARGO_PKG_VERSION")))
        .manual("Leandisk")
        .date(env!("LEANDISK_DATE"))
        .render(&mut page)
        .expect("memory takes all");
    let mut rest = Roff::new();
    if let Some(text) = command.get_after_help() {
        examples(&mut rest, &text.to_string());
    }
    if let Some(parent) = parent {
        rest.control("SH", ["SEE ALSO"]).text([bold(parent), roman("(1)")]);
    }
    page.extend(rest.to_roff().into_bytes());
    page
}

/// The examples line by line, as they are below the help.
fn examples(page: &mut Roff, text: &str) {
    page.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.strip_prefix(EXAMPLES).unwrap_or(text).lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}
