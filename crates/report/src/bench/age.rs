//! `leandisk bench age`: what a file system became after months of use.

use std::fmt::Write as _;

use bench::{AgeOutcome, AgedLayout, Stated};
use serde::Serialize;

use crate::text::{Palette, grouped, human_bytes, painted, percent, printable, wrapped};

/// The document `leandisk.age/1`.
#[derive(Clone, Debug, Serialize)]
pub struct AgeDocument {
    schema: &'static str,
    /// The image, or the new folder.
    path: String,
    /// `image` or `folder`.
    target: &'static str,
    filesystem: Option<String>,
    seed: u64,
    size_bytes: u64,
    /// Room for files, of which the fill is a part: a function of the size alone.
    capacity_bytes: u64,
    fill_percent: u64,
    stated: StatedEntry,
    /// Whether all that was stated came out; `null` if nothing was.
    reached: Option<bool>,
    /// Months after the fill.
    months: u64,
    operations: u64,
    /// Stands for all operations in their order.
    operations_digest: String,
    written_bytes: u64,
    /// Bytes of the files that are there.
    files_bytes: u64,
    files: u64,
    fragmented_files: u64,
    fragments: u64,
    pieces_per_file: f64,
    free_bytes: Option<u64>,
    free_extents: Option<u64>,
    largest_free_extent_bytes: Option<u64>,
    /// Who told of the files, and of the free extents.
    files_told_by: Option<&'static str>,
    free_told_by: Option<&'static str>,
    elapsed_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct StatedEntry {
    fragmented_percent: Option<u64>,
    pieces_per_file: Option<f64>,
    free_extents: Option<u64>,
}

/// A run.
pub struct AgeSubject<'a> {
    /// Whether an image was made, rather than a folder.
    pub is_image: bool,
    /// Of the operations.
    pub seed: u64,
    /// Of the image, or of the files.
    pub size_bytes: u64,
    /// How full it was to be.
    pub fill_percent: u64,
    /// What was to come out.
    pub stated: Stated,
    /// What came out.
    pub outcome: &'a AgeOutcome,
    /// How long it took.
    pub elapsed_seconds: f64,
}

/// The document of a run.
pub fn age_document(subject: &AgeSubject<'_>) -> AgeDocument {
    let outcome = subject.outcome;
    let AgedLayout { files, fragmented_files, fragments, free_extents, largest_free_bytes, free_bytes } =
        outcome.layout;
    let [files_told_by, free_told_by] = outcome.told_by;
    AgeDocument {
        schema: "leandisk.age/1",
        path: outcome.made.display().to_string(),
        target: if subject.is_image { "image" } else { "folder" },
        filesystem: outcome.filesystem.clone(),
        seed: subject.seed,
        size_bytes: subject.size_bytes,
        capacity_bytes: outcome.capacity_bytes,
        fill_percent: subject.fill_percent,
        stated: StatedEntry {
            fragmented_percent: subject.stated.fragmented_percent,
            pieces_per_file: subject.stated.pieces_per_file,
            free_extents: subject.stated.free_extents,
        },
        reached: outcome.is_reached,
        months: outcome.months,
        operations: outcome.operations,
        operations_digest: format!("{:016x}", outcome.operations_digest),
        written_bytes: outcome.written_bytes,
        files_bytes: outcome.live_bytes,
        files,
        fragmented_files,
        fragments,
        pieces_per_file: outcome.layout.pieces_per_file(),
        free_bytes,
        free_extents,
        largest_free_extent_bytes: largest_free_bytes,
        files_told_by,
        free_told_by,
        elapsed_seconds: subject.elapsed_seconds,
    }
}

/// The document in words and numbers.
pub fn age_text(document: &AgeDocument, palette: Palette) -> String {
    let mut out = painted("", Some("  "), &printable(&document.path), |line| palette.strong(line));
    let filesystem = document.filesystem.as_deref().unwrap_or("unknown file system");
    let by = |told: Option<&str>| told.map(|told| format!(" (by {told})")).unwrap_or_default();
    let free = document.free_extents.map_or_else(
        || "not told".to_owned(),
        |count| {
            let largest = document.largest_free_extent_bytes.map(human_bytes);
            let largest = largest.map(|bytes| format!(", the largest {bytes}")).unwrap_or_default();
            format!("{} pieces{largest}{}", grouped(count), by(document.free_told_by))
        },
    );
    let lines = [
        (
            "done",
            format!(
                "{} operations of seed {}, {} written; {} months after the fill of {} %",
                grouped(document.operations),
                document.seed,
                human_bytes(document.written_bytes),
                document.months,
                document.fill_percent
            ),
        ),
        (
            "holds",
            format!(
                "{} in {} files, {filesystem}",
                human_bytes(document.files_bytes),
                grouped(document.files)
            ),
        ),
        (
            "files",
            format!(
                "{} in pieces ({}), {} pieces, {:.2} a file{}",
                grouped(document.fragmented_files),
                share(document.fragmented_files, document.files),
                grouped(document.fragments),
                document.pieces_per_file,
                by(document.files_told_by)
            ),
        ),
        ("free space", free),
    ];
    for (name, said) in lines {
        out.push_str(&wrapped(&format!("  {name:<12}"), None, &said));
    }
    if document.reached == Some(false) {
        let said = "what was stated did not come out within these months: more of them, or a larger fill, bring it nearer";
        out.push_str(&painted("  ", None, said, |line| palette.warning(line)));
    }
    let _ = writeln!(out, "  {}", palette.faint(&format!("operations {}", document.operations_digest)));
    out
}

#[allow(clippy::cast_precision_loss)] // A figure for people.
fn share(part: u64, all: u64) -> String {
    percent(if all == 0 { 0.0 } else { part as f64 / all as f64 })
}
