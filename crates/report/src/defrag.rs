//! `leandisk defrag`: what moved, or would, and what it gained.

use std::fmt::Write as _;

use plan::defrag::{DefragPlan, LayoutFigures, WhyLeft, WhyUnmet};
use predict::cost::ReadCost;
use serde::Serialize;

use crate::bar::{Share, bar};
use crate::failure::Failure;
use crate::text::{Palette, counted, grouped, human_bytes, painted, printable, wrapped};

/// The most files that are named in a document.
const LEFT_NAMED_MAX: usize = 20;

/// What keeps free space apart is told if less than this much of it could be in one piece.
const ENOUGH_PERCENT: u128 = 95;

/// Columns of the bar, which has its meaning beside it.
const PICTURE_COLUMNS: usize = 36;

/// The document `leandisk.defrag/1`.
#[derive(Clone, Debug, Serialize)]
pub struct DefragDocument {
    schema: &'static str,
    /// Nothing was changed: the figures are the plan's.
    dry_run: bool,
    path: String,
    format: String,
    /// `files`, `free` or `pack`.
    goal: &'static str,
    elapsed_seconds: f64,
    /// With `--verify`: files that were read before and after, and are what they were; else `null`.
    verified_files: Option<u64>,
    volumes: Vec<VolumeDefrag>,
    /// Why the command failed although there is a document; `null` if it did not.
    error: Option<Failure>,
}

impl DefragDocument {
    /// Has the document say that the command failed.
    pub fn fail(&mut self, error: &block::Error) {
        self.error = Some(error.into());
    }
}

#[derive(Clone, Debug, Serialize)]
struct VolumeDefrag {
    index: usize,
    filesystem: Option<String>,
    label: Option<String>,
    size_bytes: u64,
    /// Why the volume is left as it is; `null` if it is not.
    refused: Option<String>,
    before: Option<Figures>,
    /// After the moves; as the plan says in a dry run.
    after: Option<Figures>,
    /// Bytes of files that moved.
    moved_bytes: u64,
    /// Bytes of the file system's own structures that were written, without the journal.
    metadata_written_bytes: u64,
    /// Bytes written to the journal beside the disk.
    journal_written_bytes: u64,
    /// Bytes that a thin disk grows by at most.
    growth_bytes: u64,
    /// What of the free space could be in one piece afterwards: all of it, or the longest stretch without anything that stays.
    movable_free_bytes: u64,
    /// What an incremental backup by blocks of 64 KiB sees as changed, metadata not counted.
    changed_block_bytes: u64,
    /// Steps, each of which leaves a whole volume.
    batches: usize,
    /// Bytes that are free afterwards.
    free_bytes: u64,
    /// Why nothing moves for the free space, though it was asked for; `null` if it was not, or is together.
    unmet: Option<Unmet>,
    /// Fragmented files and streams that are left.
    left: u64,
    /// The first of them.
    left_files: Vec<LeftFile>,
    /// Reading each file that is fragmented before, from its beginning to its end, on a modelled hard disk.
    reading: Option<Reading>,
}

/// [`LayoutFigures`] in a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Figures {
    /// Contiguous runs of all main streams of regular files.
    pub fragments: u64,
    /// Those of them in more than one run.
    pub fragmented_files: u64,
    /// Bytes of all streams in more than one run.
    pub fragmented_bytes: u64,
    /// Free extents.
    pub free_extents: u64,
    /// The largest of them.
    pub largest_free_extent_bytes: u64,
}

/// What moving files would come to, where that would not reach the goal.
#[derive(Clone, Debug, Serialize)]
struct Unmet {
    /// `growth`, `growth-left`, `room` or `files`.
    bound: &'static str,
    reason: String,
    /// The volume as it would be.
    would_be: Figures,
    /// What of the free space could be in one piece then.
    movable_free_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct LeftFile {
    path: String,
    reason: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Reading {
    bytes: u64,
    requests_before: u64,
    requests_after: u64,
    seconds_before: f64,
    seconds_after: f64,
}

/// What was, or would be, done to a disk.
pub struct DefragSubject<'a> {
    /// Its path.
    pub path: &'a str,
    /// Its format.
    pub format: &'a str,
    /// What was to be reached.
    pub goal: &'static str,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// How long it took.
    pub elapsed_seconds: f64,
    /// How many files were read before and after, if any were to be.
    pub verified_files: Option<u64>,
    /// Its volumes.
    pub volumes: Vec<DefragVolume<'a>>,
}

/// One volume of the subject.
pub struct DefragVolume<'a> {
    /// Counted from 1.
    pub index: usize,
    /// What is on it.
    pub facts: Option<&'a filesystem::Facts>,
    /// Its length.
    pub size_bytes: u64,
    /// What was planned for it and done, or why nothing was.
    pub work: Result<DefragWork<'a>, String>,
}

/// What was planned for a volume, and what became of it.
pub struct DefragWork<'a> {
    /// The plan.
    pub plan: &'a DefragPlan,
    /// The volume before.
    pub before: LayoutFigures,
    /// The volume after: found, or predicted in a dry run.
    pub after: LayoutFigures,
    /// Bytes that are free afterwards, as predicted.
    pub free_bytes: u64,
    /// Bytes of metadata and of journal that were written.
    pub written: (u64, u64),
    /// The path of what is left, in the plan's order.
    pub left_paths: Vec<String>,
    /// What reading the files costs that are fragmented before: before, and after.
    pub reading: (ReadCost, ReadCost),
}

/// The document of a change in place.
pub fn defrag_document(subject: &DefragSubject<'_>) -> DefragDocument {
    DefragDocument {
        schema: "leandisk.defrag/1",
        dry_run: subject.dry_run,
        path: subject.path.to_owned(),
        format: subject.format.to_owned(),
        goal: subject.goal,
        elapsed_seconds: subject.elapsed_seconds,
        verified_files: subject.verified_files,
        volumes: subject.volumes.iter().map(volume_defrag).collect(),
        error: None,
    }
}

fn volume_defrag(volume: &DefragVolume<'_>) -> VolumeDefrag {
    let mut document = VolumeDefrag {
        index: volume.index,
        filesystem: volume.facts.map(|facts| facts.filesystem.clone()),
        label: volume.facts.and_then(|facts| facts.label.clone()),
        size_bytes: volume.size_bytes,
        refused: None,
        before: None,
        after: None,
        moved_bytes: 0,
        metadata_written_bytes: 0,
        journal_written_bytes: 0,
        growth_bytes: 0,
        movable_free_bytes: 0,
        changed_block_bytes: 0,
        batches: 0,
        free_bytes: 0,
        unmet: None,
        left: 0,
        left_files: Vec::new(),
        reading: None,
    };
    match &volume.work {
        Err(reason) => document.refused = Some(reason.clone()),
        Ok(work) => add_work(&mut document, work),
    }
    document
}

fn add_work(document: &mut VolumeDefrag, work: &DefragWork<'_>) {
    let plan = work.plan;
    document.before = Some(work.before.into());
    document.after = Some(work.after.into());
    document.moved_bytes = plan.moved_bytes;
    (document.metadata_written_bytes, document.journal_written_bytes) = work.written;
    document.growth_bytes = plan.growth_bytes;
    document.movable_free_bytes = plan.movable_free_bytes;
    document.changed_block_bytes = plan.changed_block_bytes;
    document.batches = plan.batches.len();
    document.free_bytes = work.free_bytes;
    document.unmet = plan.unmet.as_ref().map(Unmet::from);
    document.left = plan.left.len() as u64;
    let named = work.left_paths.iter().zip(&plan.left).take(LEFT_NAMED_MAX);
    document.left_files =
        named.map(|(path, (_, why))| LeftFile { path: path.clone(), reason: reason(why) }).collect();
    let (before, after) = work.reading;
    document.reading = Some(Reading {
        bytes: before.bytes,
        requests_before: before.requests,
        requests_after: after.requests,
        seconds_before: before.seconds,
        seconds_after: after.seconds,
    });
}

impl From<&plan::defrag::Unmet> for Unmet {
    fn from(unmet: &plan::defrag::Unmet) -> Self {
        let (bound, reason) = why_unmet(&unmet.why);
        Self { bound, reason, would_be: unmet.would_be.into(), movable_free_bytes: unmet.movable_free_bytes }
    }
}

/// The bound that a goal meets, and what it is in words.
fn why_unmet(why: &WhyUnmet) -> (&'static str, String) {
    match why {
        WhyUnmet::NoRoom => (
            "room",
            "what lies between the free extents fits nowhere else on the volume, or cannot move".into(),
        ),
        WhyUnmet::Files => ("files", "more files would be in pieces than without it".into()),
        WhyUnmet::Growth { bytes_max, needed_bytes } => (
            "growth",
            format!(
                "the image may grow by {} meanwhile, and {} would suffice (--grow, and twice as much free on the host)",
                human_bytes(*bytes_max),
                human_bytes(*needed_bytes)
            ),
        ),
        WhyUnmet::GrowthStays { left_bytes_max } => (
            "growth-left",
            format!(
                "the image would stay larger by more than {}, since what moves shares blocks of it with other files",
                human_bytes(*left_bytes_max)
            ),
        ),
    }
}

/// Why a file is left, in words.
fn reason(why: &WhyLeft) -> String {
    match why {
        WhyLeft::Pinned(reason) => (*reason).to_owned(),
        WhyLeft::NoRoom => "no free space that it could use is large enough".into(),
        WhyLeft::Crowded => {
            "its records have no room for the steps in which it would move part by part, and no free space is large enough for all of it"
                .into()
        }
        WhyLeft::NotWritable => {
            "free space that is large enough lies where the image is compressed, shared or only zeros".into()
        }
        WhyLeft::GrowthStays { left_bytes_max } => format!(
            "the image would stay larger by more than {}, since what moves shares blocks of it with other files; 'leandisk copy --layout \
             packed' has no such limit",
            human_bytes(*left_bytes_max)
        ),
        WhyLeft::Growth { bytes_max, needed_bytes } => format!(
            "the image may grow by {} meanwhile, and this needs up to {} (--grow); 'leandisk copy --layout packed' has no such limit",
            human_bytes(*bytes_max),
            human_bytes(*needed_bytes)
        ),
    }
}

impl From<LayoutFigures> for Figures {
    fn from(figures: LayoutFigures) -> Self {
        let LayoutFigures {
            fragments,
            fragmented_files,
            fragmented_bytes,
            free_extents,
            largest_free_extent_bytes,
        } = figures;
        Self { fragments, fragmented_files, fragmented_bytes, free_extents, largest_free_extent_bytes }
    }
}

/// The document in words and numbers.
pub fn defrag_text(document: &DefragDocument, palette: Palette) -> String {
    let mut out = String::new();
    let is_changed = document.volumes.iter().any(|volume| volume.refused.is_none());
    let verb = match (is_changed, document.dry_run) {
        (false, true) => "would not change",
        (false, false) => "did not change",
        (true, true) => "would defragment",
        (true, false) => "defragmented",
    };
    let heading = format!("{verb} {} ({})", printable(&document.path), document.format);
    out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
    for volume in &document.volumes {
        let name = volume.filesystem.as_deref().map_or("unknown contents".into(), printable);
        let label = volume.label.as_ref().filter(|label| !label.is_empty());
        let label = label.map(|label| format!(" \"{}\"", printable(label))).unwrap_or_default();
        let size = human_bytes(volume.size_bytes);
        let first = format!("  volume {}  ", volume.index);
        out.push_str(&wrapped(&first, None, &format!("{name}{label}, {size}")));
        match &volume.refused {
            Some(reason) => {
                let reason = format!("left as it is: {}", printable(reason));
                out.push_str(&painted("    ", None, &reason, |line| palette.warning(line)));
            }
            None => volume_text(&mut out, volume, document, palette),
        }
    }
    if let Some(files) = document.verified_files {
        let text = format!(
            "verified: {} what they were",
            counted(files, "file or directory is", "files and directories are")
        );
        let _ = writeln!(out, "  {}", palette.good(&text));
    }
    if !document.dry_run {
        let _ = writeln!(out, "  {:.1} s", document.elapsed_seconds);
    }
    out
}

fn volume_text(out: &mut String, volume: &VolumeDefrag, document: &DefragDocument, palette: Palette) {
    let is_planned = document.dry_run;
    let (Some(before), Some(after)) = (volume.before, volume.after) else { return };
    let _ = writeln!(out, "    {:23} {:>12} {:>12}", "", "before", "after");
    let mut row = |what: &str, before: String, after: String| {
        let _ = writeln!(out, "    {what:23} {before:>12} {after:>12}");
    };
    row("fragmented files", grouped(before.fragmented_files), grouped(after.fragmented_files));
    row("fragments", grouped(before.fragments), grouped(after.fragments));
    row("free extents", grouped(before.free_extents), grouped(after.free_extents));
    row(
        "largest free extent",
        human_bytes(before.largest_free_extent_bytes),
        human_bytes(after.largest_free_extent_bytes),
    );
    if let Some(reading) = volume.reading.filter(|reading| reading.bytes > 0) {
        let seconds = |seconds: f64| format!("{seconds:.2} s");
        row("reading them, hard disk", seconds(reading.seconds_before), seconds(reading.seconds_after));
    }
    let _ = writeln!(out, "    {}", gain_bar(volume, palette));
    out.push_str(&wrapped("    ", None, &work_text(volume, is_planned)));
    match &volume.unmet {
        Some(unmet) => {
            let text = unmet_text(unmet, document.goal);
            out.push_str(&painted("    ", None, &text, |line| palette.warning(line)));
        }
        None if document.goal != "files" => {
            out.push_str(&wrapped("    ", None, &free_text(volume, after)));
        }
        None => {}
    }
    if volume.left > 0 {
        let files = counted(volume.left, "file or stream stays", "files or streams stay");
        let _ = writeln!(out, "    {}", palette.warning(&format!("{files} fragmented:")));
    }
    for left in &volume.left_files {
        out.push_str(&wrapped("      ", Some("        "), &printable(&left.path)));
        out.push_str(&painted("        ", None, &printable(&left.reason), |line| palette.faint(line)));
    }
    let unnamed = volume.left.saturating_sub(volume.left_files.len() as u64);
    if unnamed > 0 {
        let _ = writeln!(out, "      and {} more", grouped(unnamed));
    }
}

/// What a goal that is out of reach would have come to, and why it is.
fn unmet_text(unmet: &Unmet, goal: &str) -> String {
    let would_be = unmet.would_be;
    format!(
        "nothing moves for --goal {goal}, which is out of reach: {}. The free space would be in {}, the largest of {}, of {} that could be in \
         one piece. 'leandisk copy --layout packed' has no such limit",
        unmet.reason,
        counted(would_be.free_extents, "extent", "extents"),
        human_bytes(would_be.largest_free_extent_bytes),
        human_bytes(unmet.movable_free_bytes)
    )
}

/// How much of the free space is in one piece, and what keeps the rest of it apart.
fn free_text(volume: &VolumeDefrag, after: Figures) -> String {
    let [free, movable, largest] =
        [volume.free_bytes, volume.movable_free_bytes, after.largest_free_extent_bytes].map(human_bytes);
    let text = format!("of {free} that are free, {movable} could be in one piece, and {largest} are");
    let enough = u128::from(volume.free_bytes) * ENOUGH_PERCENT;
    if u128::from(volume.movable_free_bytes) * 100 >= enough {
        return text;
    }
    format!(
        "{text}; the rest is kept apart by what cannot move, or lies where the image must not grow (--grow) or be written"
    )
}

/// What was, or would be, written.
fn work_text(volume: &VolumeDefrag, is_planned: bool) -> String {
    if volume.batches == 0 {
        return "nothing moves".to_owned();
    }
    let steps = counted(volume.batches as u64, "batch", "batches");
    let verb = if is_planned { "moves" } else { "moved" };
    let mut said = vec![format!("{verb} {} in {steps}", human_bytes(volume.moved_bytes))];
    if !is_planned {
        let metadata = human_bytes(volume.metadata_written_bytes);
        let journal = human_bytes(volume.journal_written_bytes);
        said.push(format!("wrote {metadata} of metadata and {journal} of journal"));
    }
    said.push(match volume.growth_bytes {
        0 => "the image does not grow".to_owned(),
        bytes => format!("the image grows by {} at most", human_bytes(bytes)),
    });
    let changed = human_bytes(volume.changed_block_bytes);
    said.push(format!("the next incremental backup has {changed} more"));
    said.join("; ")
}

/// Bytes in fragmented files of before: what became whole, and what is left.
fn gain_bar(volume: &VolumeDefrag, palette: Palette) -> String {
    let of = |figures: Option<Figures>| figures.map_or(0, |figures| figures.fragmented_bytes);
    let (before, after) = (of(volume.before), of(volume.after));
    if before == 0 {
        return palette.good("no file is fragmented");
    }
    let whole = before.saturating_sub(after);
    let shares = [
        Share { bytes: whole, glyph: '█', color: "32" },
        Share { bytes: before - whole, glyph: '▒', color: "33" },
    ];
    format!(
        "{} {} of {} made contiguous",
        bar(&shares, PICTURE_COLUMNS, palette),
        human_bytes(whole),
        human_bytes(before)
    )
}
