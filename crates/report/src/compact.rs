//! `leandisk compact`: what was given back, or would be.

use std::fmt::Write as _;

use plan::compact::{CompactPlan, CompactShare};
use serde::Serialize;

use crate::failure::Failure;
use crate::shadow_copies::ShadowCopyCare;
use crate::text::{Palette, counted, human_bytes, painted, printable, wrapped};
use crate::volume_groups;

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
    /// With `--verify`: files that were read before and after, and are what they were; else `null`.
    verified_files: Option<u64>,
    volumes: Vec<VolumeCompact>,
    /// Why the command failed although there is a document; `null` if it did not.
    error: Option<Failure>,
}

impl CompactDocument {
    /// What the image's files took on the host, and take.
    pub fn allocated_bytes(&self) -> (u64, u64) {
        (self.allocated_before_bytes, self.allocated_after_bytes)
    }

    /// How long the image's files were, and are.
    pub fn length_bytes(&self) -> (u64, u64) {
        (self.length_before_bytes, self.length_after_bytes)
    }

    /// Has the document say that the command failed.
    pub fn fail(&mut self, error: &block::Error) {
        self.error = Some(error.into());
    }
}

#[derive(Clone, Debug, Serialize)]
struct VolumeCompact {
    index: usize,
    /// `GROUP/VOLUME` of a logical volume, or the UUID of a file system that has several devices.
    name: Option<String>,
    filesystem: Option<String>,
    label: Option<String>,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    swap_bytes: u64,
    /// Why all of the volume is kept; `null` if it is not.
    refused: Option<String>,
    #[serde(flatten)]
    shadow_copies: ShadowCopyCare,
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
    /// How many files were read before and after, if any were to be.
    pub verified_files: Option<u64>,
}

/// One volume of the subject.
pub struct CompactVolume<'a> {
    /// What is on it.
    pub facts: Option<&'a filesystem::Facts>,
    /// Its name, if it is a logical volume or has several devices.
    pub name: Option<&'a str>,
    /// Its length.
    pub size_bytes: u64,
    /// Why all of it is kept.
    pub refused: Option<String>,
    /// What is done for the snapshots that it keeps of itself.
    pub shadow_copies: ShadowCopyCare,
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
        verified_files: subject.verified_files,
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
        name: volume.name.map(str::to_owned),
        filesystem: volume.facts.map(|facts| facts.filesystem.clone()),
        label: volume.facts.and_then(|facts| facts.label.clone()),
        size_bytes: volume.size_bytes,
        used_bytes: share.used_bytes,
        free_bytes: share.free_bytes,
        swap_bytes: share.swap_bytes,
        refused: volume.refused.clone(),
        shadow_copies: volume.shadow_copies,
        moved_bytes: moves.moved_bytes,
        emptied_units: moves.emptied_units,
        not_moved: moves.refused.clone(),
    }
}

fn advice(subject: &CompactSubject<'_>) -> Option<String> {
    let plan = subject.plan;
    let what = match (&subject.consolidated, subject.frees_units) {
        (Some(_), _) => "what is in use there cannot move, or would cost more to move than it frees",
        (None, true) => "'leandisk compact --defrag' moves files out of such blocks",
        (None, false) => "'leandisk defrag --goal pack' moves files out of such blocks",
    };
    (plan.partial_bytes > 0).then(|| {
        let units = counted(plan.partial_units, "block of the image that is", "blocks of the image that are");
        format!("{} more are free, but in {units} partly in use: {what}", human_bytes(plan.partial_bytes))
    })
}

/// The document in words and numbers.
pub fn compact_text(document: &CompactDocument, palette: Palette) -> String {
    let mut out = String::new();
    let what = match (&document.refused, document.dry_run) {
        (Some(_), _) => "did not change",
        (None, true) => "would compact",
        (None, false) => "compacted",
    };
    let heading = format!("{what} {} ({})", printable(&document.path), document.format);
    out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
    if document.refused.is_none() {
        figures_text(&mut out, document, palette);
    }
    for volume in &document.volumes {
        volume_text(&mut out, volume, palette);
    }
    if let Some(advice) = &document.advice {
        out.push_str(&painted("  ", None, advice, |line| palette.faint(line)));
    }
    if let Some(files) = document.verified_files {
        let text = format!(
            "verified: {} what they were",
            counted(files, "file or directory is", "files and directories are")
        );
        let _ = writeln!(out, "  {}", palette.good(&text));
    }
    out
}

fn figures_text(out: &mut String, document: &CompactDocument, palette: Palette) {
    let mut row = |what: &str, text: &str| out.push_str(&wrapped(&format!("  {what:<13}"), None, text));
    let moved = if document.dry_run { "would move" } else { "moved" };
    if document.defrag {
        let units = counted(document.emptied_units, "block", "blocks");
        row(moved, &format!("{} of files, which empties {units}", human_bytes(document.moved_bytes)));
    }
    let freed = if document.dry_run { "would free" } else { "freed" };
    row(freed, &palette.good(&human_bytes(document.freed_bytes)));
    let change = |before: u64, after: u64| match before == after {
        true => human_bytes(before),
        false => format!("{} -> {}", human_bytes(before), human_bytes(after)),
    };
    row("on the host", &change(document.allocated_before_bytes, document.allocated_after_bytes));
    row("file length", &change(document.length_before_bytes, document.length_after_bytes));
    if document.settled_bytes > 0 {
        row(moved, &format!("{} from the end of the file into gaps", human_bytes(document.settled_bytes)));
    }
    if !document.dry_run {
        row("written", &human_bytes(document.written_bytes));
    }
    row("time", &format!("{:.1} s", document.elapsed_seconds));
}

fn volume_text(out: &mut String, volume: &VolumeCompact, palette: Palette) {
    let name = volume_groups::titled(volume.name.as_deref(), volume.filesystem.as_deref());
    let label = volume.label.as_ref().filter(|label| !label.is_empty());
    let label = label.map(|label| format!(" \"{}\"", printable(label))).unwrap_or_default();
    let size = human_bytes(volume.size_bytes);
    let what = match &volume.refused {
        Some(_) => "kept whole".to_owned(),
        None => format!("{} used, {} free", human_bytes(volume.used_bytes), human_bytes(volume.free_bytes)),
    };
    let swap = match volume.swap_bytes {
        0 => String::new(),
        bytes => format!(", {} swap", human_bytes(bytes)),
    };
    let first = format!("  volume {}  ", volume.index);
    out.push_str(&wrapped(&first, None, &format!("{name}{label}, {size}: {what}{swap}")));
    let indent = " ".repeat(first.len());
    volume.shadow_copies.text(out, &indent, palette);
    if let Some(reason) = &volume.refused {
        out.push_str(&painted(&indent, None, &printable(reason), |line| palette.warning(line)));
    } else if let Some(reason) = &volume.not_moved {
        let text = format!("no files were moved: {}", printable(reason));
        out.push_str(&painted(&indent, None, &text, |line| palette.faint(line)));
    }
}
