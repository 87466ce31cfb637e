//! `leandisk recover`: what became of an interrupted change.

use std::fmt::Write as _;

use engine::Recovery;
use serde::Serialize;

use crate::text::{Palette, human_bytes, printable};

/// The document `leandisk.recover/1`.
#[derive(Clone, Debug, Serialize)]
pub struct RecoverDocument {
    schema: &'static str,
    path: String,
    /// `none` (no change was interrupted), `whole` (the disk was whole already), `finished` or `undone`; of a running guest `none`, or
    /// `removed`.
    outcome: &'static str,
    /// The batch that was finished or undone, counted from 1.
    batch: Option<u64>,
    /// Bytes of metadata that were written.
    written_bytes: u64,
}

impl RecoverDocument {
    /// What became of the change: `none`, `whole`, `finished`, `undone` or `removed`.
    pub fn outcome(&self) -> &'static str {
        self.outcome
    }

    /// What became of what copies left in a running guest's QEMU: removed, if there was something.
    pub fn of_running(path: &str, removed_count: usize) -> Self {
        let outcome = if removed_count == 0 { "none" } else { "removed" };
        Self { schema: "leandisk.recover/1", path: path.to_owned(), outcome, batch: None, written_bytes: 0 }
    }

    /// What happened to the disk at `path`; `None` if nothing was interrupted.
    pub fn new(path: &str, recovery: Option<&Recovery>) -> Self {
        let (outcome, batch, written_bytes) = match recovery {
            None => ("none", None, 0),
            Some(Recovery::NothingToDo(_)) => ("whole", None, 0),
            Some(Recovery::Redone { sequence, written_bytes }) => {
                ("finished", Some(*sequence), *written_bytes)
            }
            Some(Recovery::Undone { sequence, written_bytes }) => ("undone", Some(*sequence), *written_bytes),
        };
        Self { schema: "leandisk.recover/1", path: path.to_owned(), outcome, batch, written_bytes }
    }
}

/// The document in words.
pub fn recover_text(document: &RecoverDocument, palette: Palette) -> String {
    let mut out = String::new();
    let what = match document.outcome {
        "none" if document.path.starts_with("qmp:") => "no interrupted copy left anything in its QEMU",
        "none" => "no change of it was interrupted",
        "whole" => "it is whole: the interrupted batch had changed nothing that counts",
        "removed" => "what an interrupted copy had left in its QEMU was removed",
        "finished" => "it is whole: the interrupted batch was finished",
        _ => "it is whole: the interrupted batch was undone",
    };
    let _ = writeln!(out, "{}", palette.strong(&printable(&document.path)));
    let _ = write!(out, "  {}", palette.good(what));
    if let Some(batch) = document.batch {
        let _ = write!(out, " (batch {batch}, {} written)", human_bytes(document.written_bytes));
    }
    let _ = writeln!(out);
    out
}
