//! Several disks copied by one command.

use std::fmt::Write as _;

use block::Error;
use serde::Serialize;

use crate::copy::{CopyDocument, copy_text};
use crate::failure::Failure;
use crate::text::{Palette, counted, human_bytes, painted, printable};

/// The document `leandisk.copy-all/1`.
#[derive(Clone, Debug, Serialize)]
pub struct CopyAllDocument {
    schema: &'static str,
    dry_run: bool,
    /// The folder, or the appliance, that holds the targets.
    into: String,
    disks: Vec<CopyAllEntry>,
    totals: Totals,
    elapsed_seconds: f64,
    /// What was left out or not checked of appliances.
    notes: Vec<String>,
}

/// One of the disks.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum CopyAllEntry {
    /// It was copied.
    Copied(Box<CopyDocument>),
    /// It was not.
    Failed(Box<FailedCopy>),
}

/// A disk that was not copied.
#[derive(Clone, Debug, Serialize)]
pub struct FailedCopy {
    source: Named,
    target: Named,
    /// In words.
    error: String,
    failure: Failure,
}

#[derive(Clone, Debug, Serialize)]
struct Named {
    path: String,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Totals {
    disks: usize,
    failed: usize,
    virtual_bytes: u64,
    used_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl CopyAllEntry {
    /// A disk that was not copied.
    pub fn failed(source: String, target: String, error: &Error) -> Self {
        let named = |path| Named { path };
        let (failure, error) = (Failure::from(error), error.to_string());
        Self::Failed(Box::new(FailedCopy { source: named(source), target: named(target), error, failure }))
    }
}

impl CopyAllDocument {
    /// Of the disks in their order.
    pub fn new(
        into: String,
        disks: Vec<CopyAllEntry>,
        notes: Vec<String>,
        dry_run: bool,
        elapsed_seconds: f64,
    ) -> Self {
        let mut totals = Totals { disks: disks.len(), ..Totals::default() };
        for disk in &disks {
            match disk {
                CopyAllEntry::Copied(copy) => copy.add_to(&mut |virtual_bytes, used, read, written| {
                    totals.virtual_bytes += virtual_bytes;
                    totals.used_bytes += used;
                    totals.read_bytes += read;
                    totals.written_bytes += written;
                }),
                CopyAllEntry::Failed(_) => totals.failed += 1,
            }
        }
        Self { schema: "leandisk.copy-all/1", dry_run, into, disks, totals, elapsed_seconds, notes }
    }
}

/// The document in words and numbers: each disk, then all of them.
pub fn copy_all_text(document: &CopyAllDocument, palette: Palette) -> String {
    let mut out = String::new();
    for disk in &document.disks {
        match disk {
            CopyAllEntry::Copied(copy) => out.push_str(&copy_text(copy, palette)),
            CopyAllEntry::Failed(failed) => {
                let heading = format!("not copied: {}", printable(&failed.source.path));
                out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
                out.push_str(&painted("  ", None, &printable(&failed.error), |line| palette.warning(line)));
            }
        }
    }
    let Totals { disks, failed, virtual_bytes, used_bytes, read_bytes, written_bytes } = &document.totals;
    let copied = counted((disks - failed) as u64, "disk", "disks");
    let verb = if document.dry_run { "would be copied" } else { "copied" };
    let missing = if *failed > 0 { format!(", {failed} not") } else { String::new() };
    let heading = format!("{copied} {verb}{missing}, to {}", printable(&document.into));
    out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
    let _ =
        writeln!(out, "  used     {} of {} virtual", human_bytes(*used_bytes), human_bytes(*virtual_bytes));
    let _ = writeln!(out, "  read     {}", human_bytes(*read_bytes));
    let most = if document.dry_run { "at most " } else { "" };
    let _ = writeln!(out, "  written  {most}{}", human_bytes(*written_bytes));
    if !document.dry_run {
        let _ = writeln!(out, "  time     {:.1} s", document.elapsed_seconds);
    }
    for note in &document.notes {
        out.push_str(&painted("  ", None, &printable(note), |line| palette.warning(line)));
    }
    out
}
