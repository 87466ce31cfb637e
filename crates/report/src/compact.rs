//! `leandisk compact`: what was given back, or would be.

use std::fmt::Write as _;

use plan::compact::{CompactPlan, CompactShare};
use serde::Serialize;

use crate::failure::Failure;
use crate::text::{Palette, grouped, human_bytes, printable};

/// The document `leandisk.compact/1`.
#[derive(Clone, Debug, Serialize)]
pub struct CompactDocument {
    schema: &'static str,
    /// Nothing was changed: the figures are the plan's.
    dry_run: bool,
    path: String,
    format: String,
    virtual_bytes: u64,
    /// What the image gives back at once.
    unit_bytes: u64,
    /// What the image's files take on the host.
    allocated_before_bytes: u64,
    /// The same afterwards; as the plan says in a dry run.
    allocated_after_bytes: u64,
    /// The length of the image's files.
    length_before_bytes: u64,
    /// The same afterwards; as the plan says in a dry run.
    length_after_bytes: u64,
    /// Units that moved from the file's end into gaps, in bytes of the file.
    settled_bytes: u64,
    /// Storage of the host that was given back, as the plan says.
    freed_bytes: u64,
    /// Bytes that were written: the image's tables and headers, and what of the moved units does not read as zeros.
    written_bytes: u64,
    /// Whether files were moved first, out of units that hold little.
    defrag: bool,
    /// Bytes of files that moved; 0 without.
    moved_bytes: u64,
    /// Units that were emptied so, less those that were filled instead.
    emptied_units: u64,
    /// Bytes of file systems' structures that were written for that.
    metadata_written_bytes: u64,
    /// Bytes that were written to the journal for that.
    journal_written_bytes: u64,
    /// Free or swap, but in units that hold used bytes as well.
    partial_bytes: u64,
    /// How many units those are.
    partial_units: u64,
    /// What else would gain something.
    advice: Option<String>,
    /// Why nothing was done; `null` if something could be.
    refused: Option<String>,
    elapsed_seconds: f64,
    volumes: Vec<VolumeCompact>,
    /// Why the command failed although there is a document; `null` if it did not.
    error: Option<Failure>,
}

impl CompactDocument {
    /// Has the document say that the command failed.
    pub fn fail(&mut self, error: &block::Error) {
        self.error = Some(error.into());
    }
}

#[derive(Clone, Debug, Serialize)]
struct VolumeCompact {
    index: usize,
    filesystem: Option<String>,
    label: Option<String>,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    swap_bytes: u64,
    /// Why all of the volume is kept; `null` if it is not.
    refused: Option<String>,
    /// Bytes of its files that moved.
    moved_bytes: u64,
    /// Units that were emptied so.
    emptied_units: u64,
    /// Why its files were not to be moved; `null` if they were, or nobody asked for that.
    not_moved: Option<String>,
}

/// What was, or would be, given back.
pub struct CompactSubject<'a> {
    /// The disk's path.
    pub path: &'a str,
    /// Its format.
    pub format: &'a str,
    /// What was planned.
    pub plan: &'a CompactPlan,
    /// What the image's files took on the host, and their length.
    pub before: (u64, u64),
    /// The same afterwards, and what was written; `None` in a dry run.
    pub after: Option<(u64, u64, u64)>,
    /// Why nothing is done.
    pub refused: Option<String>,
    /// Whether units leave the image's tables when they are given back.
    pub frees_units: bool,
    /// What was, or would be, moved first on each volume; `None` if nothing was to be.
    pub consolidated: Option<Vec<CompactMoves>>,
    /// The image's volumes.
    pub volumes: Vec<CompactVolume<'a>>,
    /// How long it took.
    pub elapsed_seconds: f64,
}

/// One volume of the subject.
pub struct CompactVolume<'a> {
    /// What is on it.
    pub facts: Option<&'a filesystem::Facts>,
    /// Its length.
    pub size_bytes: u64,
    /// Why all of it is kept.
    pub refused: Option<String>,
}

/// What was, or would be, moved on a volume.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct CompactMoves {
    /// Bytes of files.
    pub moved_bytes: u64,
    /// Units of the image that hold nothing needed any more, less those that were filled instead.
    pub emptied_units: u64,
    /// Bytes of metadata that were written.
    pub metadata_written_bytes: u64,
    /// Bytes that were written to the journal.
    pub journal_written_bytes: u64,
    /// Why nothing is moved.
    pub refused: Option<String>,
}

/// The document of what was given back.
pub fn compact_document(subject: &CompactSubject<'_>) -> CompactDocument {
    let plan = subject.plan;
    let (allocated_before_bytes, length_before_bytes) = subject.before;
    let predicted = allocated_before_bytes.saturating_sub(plan.freed_bytes);
    let nothing = CompactMoves::default();
    let moves = subject.consolidated.as_deref().unwrap_or_default();
    let sum = |of: fn(&CompactMoves) -> u64| moves.iter().map(of).fold(0, u64::saturating_add);
    let planned_length = plan.length_bytes.unwrap_or(length_before_bytes);
    let volumes = subject.volumes.iter().zip(&plan.volumes).enumerate();
    CompactDocument {
        schema: "leandisk.compact/1",
        dry_run: subject.after.is_none(),
        path: subject.path.to_owned(),
        format: subject.format.to_owned(),
        virtual_bytes: plan.virtual_bytes,
        unit_bytes: plan.unit_bytes,
        allocated_before_bytes,
        allocated_after_bytes: subject.after.map_or(predicted, |(allocated, _, _)| allocated),
        length_before_bytes,
        length_after_bytes: subject.after.map_or(planned_length, |(_, length, _)| length),
        settled_bytes: plan.moved_bytes,
        freed_bytes: plan.freed_bytes,
        written_bytes: subject.after.map_or(0, |(_, _, written)| written),
        defrag: subject.consolidated.is_some(),
        moved_bytes: sum(|moves| moves.moved_bytes),
        emptied_units: sum(|moves| moves.emptied_units),
        metadata_written_bytes: sum(|moves| moves.metadata_written_bytes),
        journal_written_bytes: sum(|moves| moves.journal_written_bytes),
        partial_bytes: plan.partial_bytes,
        partial_units: plan.partial_units,
        advice: advice(subject),
        refused: subject.refused.clone(),
        elapsed_seconds: subject.elapsed_seconds,
        volumes: volumes
            .map(|(index, (volume, share))| {
                volume_document(index + 1, volume, *share, moves.get(index).unwrap_or(&nothing))
            })
            .collect(),
        error: None,
    }
}

fn volume_document(
    index: usize,
    volume: &CompactVolume<'_>,
    share: CompactShare,
    moves: &CompactMoves,
) -> VolumeCompact {
    VolumeCompact {
        index,
        filesystem: volume.facts.map(|facts| facts.filesystem.clone()),
        label: volume.facts.and_then(|facts| facts.label.clone()),
        size_bytes: volume.size_bytes,
        used_bytes: share.used_bytes,
        free_bytes: share.free_bytes,
        swap_bytes: share.swap_bytes,
        refused: volume.refused.clone(),
        moved_bytes: moves.moved_bytes,
        emptied_units: moves.emptied_units,
        not_moved: moves.refused.clone(),
    }
}

fn advice(subject: &CompactSubject<'_>) -> Option<String> {
    let plan = subject.plan;
    let what = match (&subject.consolidated, subject.frees_units) {
        (Some(_), _) => "what is in them cannot move, or would cost more to move than it frees",
        (None, true) => "'leandisk compact --defrag' empties such units",
        (None, false) => "'leandisk defrag --goal pack' empties such units",
    };
    (plan.partial_bytes > 0).then(|| {
        let (bytes, units) = (human_bytes(plan.partial_bytes), grouped(plan.partial_units));
        format!("{bytes} more are free in {units} units that hold a little as well: {what}")
    })
}

/// The document in words and numbers.
pub fn compact_text(document: &CompactDocument, palette: Palette) -> String {
    let mut out = String::new();
    let what = if document.dry_run { "compacting" } else { "compacted" };
    let heading = format!("{what} {} ({})", printable(&document.path), document.format);
    let _ = writeln!(out, "{}", palette.strong(&heading));
    if let Some(reason) = &document.refused {
        let _ = writeln!(out, "  {}", palette.warning(&format!("nothing is changed: {}", printable(reason))));
    }
    if document.defrag {
        let moved = if document.dry_run { "would move" } else { "moved" };
        let (bytes, units) = (human_bytes(document.moved_bytes), grouped(document.emptied_units));
        let _ = writeln!(out, "  {moved:<13}{bytes}, which empties {units} units");
    }
    let freed = if document.dry_run { "would free" } else { "freed" };
    let _ = writeln!(out, "  {freed:<13}{}", palette.good(&human_bytes(document.freed_bytes)));
    let before = human_bytes(document.allocated_before_bytes);
    let _ = writeln!(out, "  on the host  {before} -> {}", human_bytes(document.allocated_after_bytes));
    let before = human_bytes(document.length_before_bytes);
    let _ = writeln!(out, "  file length  {before} -> {}", human_bytes(document.length_after_bytes));
    if document.settled_bytes > 0 {
        let moved = if document.dry_run { "would move" } else { "moved" };
        let _ =
            writeln!(out, "  {moved:<13}{} of the file's end into gaps", human_bytes(document.settled_bytes));
    }
    if !document.dry_run {
        let _ = writeln!(out, "  written      {}", human_bytes(document.written_bytes));
    }
    let _ = writeln!(out, "  time         {:.1} s", document.elapsed_seconds);
    for volume in &document.volumes {
        let name = volume.filesystem.as_deref().unwrap_or("unknown");
        let what = match &volume.refused {
            Some(reason) => palette.warning(&format!("kept whole: {}", printable(reason))),
            None => format!(
                "{} used, {} free, {} swap",
                human_bytes(volume.used_bytes),
                human_bytes(volume.free_bytes),
                human_bytes(volume.swap_bytes)
            ),
        };
        let _ = writeln!(
            out,
            "  volume {:<5} {} {}  {what}",
            volume.index,
            printable(name),
            human_bytes(volume.size_bytes)
        );
        if let Some(reason) = &volume.not_moved {
            let _ = writeln!(out, "    {}", palette.faint(&format!("nothing moves: {}", printable(reason))));
        }
    }
    if let Some(advice) = &document.advice {
        let _ = writeln!(out, "  {}", palette.faint(advice));
    }
    out
}
