//! `leandisk compact`: what was given back, or would be.

use std::fmt::Write as _;

use plan::compact::{CompactPlan, CompactShare};
use serde::Serialize;

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
    moved_bytes: u64,
    /// Storage of the host that was given back, as the plan says.
    freed_bytes: u64,
    /// Bytes that were written: the image's tables and headers, and what of the moved units does not read as zeros.
    written_bytes: u64,
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

/// The document of what was given back.
pub fn compact_document(subject: &CompactSubject<'_>) -> CompactDocument {
    let plan = subject.plan;
    let (allocated_before_bytes, length_before_bytes) = subject.before;
    let predicted = allocated_before_bytes.saturating_sub(plan.freed_bytes);
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
        moved_bytes: plan.moved_bytes,
        freed_bytes: plan.freed_bytes,
        written_bytes: subject.after.map_or(0, |(_, _, written)| written),
        partial_bytes: plan.partial_bytes,
        partial_units: plan.partial_units,
        advice: advice(plan),
        refused: subject.refused.clone(),
        elapsed_seconds: subject.elapsed_seconds,
        volumes: volumes.map(|(index, (volume, share))| volume_document(index + 1, volume, *share)).collect(),
    }
}

fn volume_document(index: usize, volume: &CompactVolume<'_>, share: CompactShare) -> VolumeCompact {
    VolumeCompact {
        index,
        filesystem: volume.facts.map(|facts| facts.filesystem.clone()),
        label: volume.facts.and_then(|facts| facts.label.clone()),
        size_bytes: volume.size_bytes,
        used_bytes: share.used_bytes,
        free_bytes: share.free_bytes,
        swap_bytes: share.swap_bytes,
        refused: volume.refused.clone(),
    }
}

fn advice(plan: &CompactPlan) -> Option<String> {
    (plan.partial_bytes > 0).then(|| {
        format!(
            "{} more are free in {} units that hold a little as well: 'leandisk defrag --goal pack' empties such units",
            human_bytes(plan.partial_bytes),
            grouped(plan.partial_units)
        )
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
    let freed = if document.dry_run { "would free" } else { "freed" };
    let _ = writeln!(out, "  {freed:<13}{}", palette.good(&human_bytes(document.freed_bytes)));
    let before = human_bytes(document.allocated_before_bytes);
    let _ = writeln!(out, "  on the host  {before} -> {}", human_bytes(document.allocated_after_bytes));
    let before = human_bytes(document.length_before_bytes);
    let _ = writeln!(out, "  file length  {before} -> {}", human_bytes(document.length_after_bytes));
    if document.moved_bytes > 0 {
        let moved = if document.dry_run { "would move" } else { "moved" };
        let _ = writeln!(out, "  {moved:<13}{} into gaps", human_bytes(document.moved_bytes));
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
    }
    if let Some(advice) = &document.advice {
        let _ = writeln!(out, "  {}", palette.faint(advice));
    }
    out
}
