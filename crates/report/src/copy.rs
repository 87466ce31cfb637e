//! `leandisk copy`: what was read, written and avoided.

use std::fmt::Write as _;

use engine::CopyTotals;
use image::Extras;
use plan::{Avoided, CopyPlan};
use serde::Serialize;
use stack::{Stack, UsedMaps};

use crate::bar::{Share, bar};
use crate::defrag::Figures;
use crate::shadow_copies::ShadowCopyCare;
use crate::text::{Palette, counted, grouped, human_bytes, painted, printable, wrapped};
use crate::volume_groups::{self, VolumeGroupEntry};

/// Columns of the bar, which has a legend beside it.
const PICTURE_COLUMNS: usize = 38;

/// The most names of snapshots, and of bitmaps, in the text. The document has all.
const DROPPED_NAME_COUNT_MAX: usize = 10;

/// The document `leandisk.copy/1`.
#[derive(Clone, Debug, Serialize)]
pub struct CopyDocument {
    /// Empty as a part of another document.
    #[serde(skip_serializing_if = "str::is_empty")]
    schema: &'static str,
    /// Nothing was read or written: the figures are the plan's.
    dry_run: bool,
    /// When the target's storage is found: `thin`, `lazy` or `eager`.
    provision: String,
    source: End,
    target: End,
    /// Bytes of the virtual disk read (or to be read).
    read_bytes: u64,
    /// Bytes of the virtual disk whose storage the target shares (or will share) with the source: neither read nor written.
    cloned_bytes: u64,
    /// Bytes of `read_bytes` that an interrupted copy had read, with which this one went on.
    kept_bytes: u64,
    /// Bytes written to the target. In a dry run the most that can be: zeros are found while reading.
    written_bytes: u64,
    /// Bytes that the guest uses and of which the container holds more than that they are zeros.
    used_bytes: u64,
    elapsed_seconds: f64,
    avoided: AvoidedBytes,
    /// Bytes read that turned out to be zeros, and were not written.
    zeros_found_bytes: u64,
    /// Whether the target was read back and compared.
    verified: bool,
    /// Internal snapshots of the source's images, which the target does not have.
    dropped_snapshots: Vec<Dropped>,
    /// Persistent bitmaps of the source's images, which the target does not have.
    dropped_bitmaps: Vec<Dropped>,
    /// Why the disk as a whole was taken without regard to its volumes.
    doubt: Option<String>,
    volumes: Vec<VolumeCopy>,
    volume_groups: Vec<VolumeGroupEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct End {
    path: String,
    format: String,
    virtual_bytes: u64,
    allocated_bytes: u64,
}

impl CopyDocument {
    /// Calls the source so: where it was opened by a name that means nothing to the user.
    pub fn name_source(&mut self, name: &str) {
        name.clone_into(&mut self.source.path);
    }
}

/// Something that a copy leaves behind in the source.
#[derive(Clone, Debug, Serialize)]
struct Dropped {
    /// The image that has it.
    path: String,
    name: String,
}

#[derive(Clone, Debug, Serialize)]
struct AvoidedBytes {
    unallocated_bytes: u64,
    free_bytes: u64,
    swap_bytes: u64,
    zero_bytes: u64,
    /// Empty logs, written as such without being read.
    log_bytes: u64,
    /// What the target has already: of an incremental copy.
    unchanged_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct VolumeCopy {
    index: usize,
    /// `GROUP/VOLUME` of a logical volume, or the UUID of a file system that has several devices.
    name: Option<String>,
    filesystem: Option<String>,
    label: Option<String>,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    swap_bytes: u64,
    mode: &'static str,
    reason: Option<String>,
    #[serde(flatten)]
    shadow_copies: ShadowCopyCare,
    /// How files lie in the target: `null` as in the source, because nothing else was asked for.
    layout: Option<LayoutOfCopy>,
}

/// How the files of a volume lie in the target.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "is")]
pub enum LayoutOfCopy {
    /// As in the source, although they were to be packed.
    Kept(LayoutKept),
    /// Laid out contiguously.
    Packed(LayoutPacked),
}

/// See [`LayoutOfCopy::Kept`].
#[derive(Clone, Debug, Serialize)]
pub struct LayoutKept {
    /// Why.
    pub reason: String,
}

/// See [`LayoutOfCopy::Packed`].
#[derive(Clone, Debug, Serialize)]
pub struct LayoutPacked {
    /// Bytes of files that lie elsewhere.
    pub moved_bytes: u64,
    /// The source.
    pub before: Figures,
    /// The target.
    pub after: Figures,
    /// Fragmented streams that are left.
    pub left: u64,
}

/// What a copy was, or would be.
pub struct CopySubject<'a> {
    /// The source's path.
    pub source_path: &'a str,
    /// The source.
    pub stack: &'a Stack,
    /// How its volumes were taken.
    pub maps: &'a UsedMaps,
    /// What was planned.
    pub plan: &'a CopyPlan,
    /// The source's bytes on the host.
    pub source_allocated_bytes: u64,
    /// The target's path.
    pub target_path: &'a str,
    /// The target's format.
    pub target_format: &'a str,
    /// When its storage is found: `thin`, `lazy` or `eager`.
    pub provision: &'a str,
    /// The target's bytes on the host (0 in a dry run).
    pub target_allocated_bytes: u64,
    /// What was done; `None` in a dry run.
    pub totals: Option<CopyTotals>,
    /// What of that an interrupted copy had read, with which this one went on.
    pub kept_bytes: u64,
    /// How long it took.
    pub elapsed_seconds: f64,
    /// Whether the target was read back and compared.
    pub verified: bool,
    /// How each volume's files lie in the target; `None` as in the source.
    pub layouts: Option<&'a [LayoutOfCopy]>,
    /// What is done for the snapshots that each volume keeps of itself.
    pub shadow_copies: &'a [ShadowCopyCare],
}

/// What an incremental copy was, or would be.
pub struct IncrementSubject<'a> {
    /// The source's name.
    pub source_path: &'a str,
    /// The target's path.
    pub target_path: &'a str,
    /// The length of both.
    pub virtual_bytes: u64,
    /// The source's bytes that are not known to be zeros.
    pub source_allocated_bytes: u64,
    /// The target's bytes on the host.
    pub target_allocated_bytes: u64,
    /// Bytes that the bitmap says were written.
    pub used_bytes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Whether nothing was done.
    pub dry_run: bool,
    /// How long it took.
    pub elapsed_seconds: f64,
}

impl CopyDocument {
    /// Bytes of the disk that hold data: what was copied, less what turned out to be zeros.
    pub fn populated_bytes(&self) -> u64 {
        (self.read_bytes + self.cloned_bytes).saturating_sub(self.zeros_found_bytes)
    }

    /// Size of the disk.
    pub fn virtual_bytes(&self) -> u64 {
        self.source.virtual_bytes
    }

    /// Tells virtual, used, read and written bytes.
    pub(crate) fn add_to(&self, add: &mut dyn FnMut(u64, u64, u64, u64)) {
        add(self.source.virtual_bytes, self.used_bytes, self.read_bytes, self.written_bytes);
    }

    /// The document of an incremental copy: of volumes it knows nothing.
    pub fn of_increment(subject: &IncrementSubject<'_>) -> Self {
        let &IncrementSubject { virtual_bytes, used_bytes, read_bytes, written_bytes, .. } = subject;
        let end = |path: &str, allocated_bytes| End {
            path: path.to_owned(),
            format: "raw".to_owned(),
            virtual_bytes,
            allocated_bytes,
        };
        Self {
            schema: "leandisk.copy/1",
            dry_run: subject.dry_run,
            provision: "thin".to_owned(),
            source: end(subject.source_path, subject.source_allocated_bytes),
            target: end(subject.target_path, subject.target_allocated_bytes),
            read_bytes,
            cloned_bytes: 0,
            kept_bytes: 0,
            written_bytes,
            used_bytes,
            elapsed_seconds: subject.elapsed_seconds,
            avoided: AvoidedBytes {
                unallocated_bytes: 0,
                free_bytes: 0,
                swap_bytes: 0,
                zero_bytes: 0,
                log_bytes: 0,
                unchanged_bytes: virtual_bytes - used_bytes.min(virtual_bytes),
            },
            zeros_found_bytes: read_bytes - written_bytes.min(read_bytes),
            verified: false,
            dropped_snapshots: Vec::new(),
            dropped_bitmaps: Vec::new(),
            doubt: None,
            volumes: Vec::new(),
            volume_groups: Vec::new(),
        }
    }

    /// As a part of another document, which has a schema of its own.
    pub(crate) fn without_schema(self) -> Self {
        Self { schema: "", ..self }
    }
}

/// The document of one copy.
pub fn copy_document(subject: &CopySubject<'_>) -> CopyDocument {
    let CopySubject { stack, plan, .. } = subject;
    let Avoided { unallocated_bytes, zero_bytes, free_bytes, swap_bytes, log_bytes } = plan.avoided;
    let cloned_bytes = plan.cloned_bytes();
    let planned_bytes = plan.reads.total_bytes() - cloned_bytes;
    let planned = CopyTotals {
        read_bytes: planned_bytes,
        cloned_bytes,
        written_bytes: planned_bytes + log_bytes,
        zeros_found_bytes: 0,
    };
    let totals = subject.totals.unwrap_or(planned);
    let end = |path: &str, format: &str, allocated_bytes| End {
        path: path.to_owned(),
        format: format.to_owned(),
        virtual_bytes: plan.virtual_bytes,
        allocated_bytes,
    };
    CopyDocument {
        schema: "leandisk.copy/1",
        dry_run: subject.totals.is_none(),
        provision: subject.provision.to_owned(),
        source: end(subject.source_path, stack.chain().facts().format.name(), subject.source_allocated_bytes),
        target: end(subject.target_path, subject.target_format, subject.target_allocated_bytes),
        read_bytes: totals.read_bytes,
        cloned_bytes: totals.cloned_bytes,
        kept_bytes: subject.kept_bytes,
        written_bytes: totals.written_bytes,
        used_bytes: plan.used_bytes,
        elapsed_seconds: subject.elapsed_seconds,
        avoided: AvoidedBytes {
            unallocated_bytes,
            free_bytes,
            swap_bytes,
            zero_bytes,
            log_bytes,
            unchanged_bytes: 0,
        },
        zeros_found_bytes: totals.zeros_found_bytes,
        verified: subject.verified,
        dropped_snapshots: dropped(stack, |extras| extras.snapshots),
        dropped_bitmaps: dropped(stack, |extras| extras.bitmaps),
        doubt: stack.table().doubt.clone(),
        volumes: (0..stack.volumes().len()).map(|index| volume_copy(subject, index)).collect(),
        volume_groups: volume_groups::entries(stack),
    }
}

/// What the images of all layers have of one kind.
fn dropped(stack: &Stack, of: impl Fn(Extras) -> Vec<String>) -> Vec<Dropped> {
    let links = stack.chain().links().iter();
    links
        .flat_map(|link| {
            let path = link.layer.files()[0].name().to_owned();
            of(link.layer.extras()).into_iter().map(move |name| Dropped { path: path.clone(), name })
        })
        .collect()
}

fn volume_copy(subject: &CopySubject<'_>, index: usize) -> VolumeCopy {
    let volume = &subject.stack.volumes()[index];
    let share = &subject.plan.volumes[index];
    let reason = subject.maps.modes()[index].reason();
    let facts = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
    VolumeCopy {
        index: index + 1,
        name: volume.name.clone(),
        filesystem: facts.map(|facts| facts.filesystem.clone()),
        label: facts.and_then(|facts| facts.label.clone()),
        size_bytes: volume.place.len_bytes(),
        used_bytes: share.used_bytes,
        free_bytes: share.free_bytes,
        swap_bytes: share.swap_bytes,
        mode: if reason.is_some() { "whole" } else { "used-only" },
        reason: reason.map(str::to_owned),
        shadow_copies: subject.shadow_copies[index],
        layout: subject.layouts.map(|layouts| layouts[index].clone()),
    }
}

/// The document in words and numbers.
pub fn copy_text(document: &CopyDocument, palette: Palette) -> String {
    let mut out = String::new();
    let CopyDocument { source, target, .. } = document;
    let verb = if document.dry_run { "would copy" } else { "copied" };
    let heading = format!(
        "{verb} {} ({}) to {} ({})",
        printable(&source.path),
        source.format,
        printable(&target.path),
        target.format
    );
    out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
    let _ = writeln!(out, "  {}", picture(document, palette));
    let share =
        |bytes: u64| format!("{} of {} virtual", human_bytes(bytes), human_bytes(source.virtual_bytes));
    let _ = writeln!(out, "  used     {}", share(document.used_bytes));
    let _ = writeln!(out, "  read     {}", human_bytes(document.read_bytes));
    if document.cloned_bytes > 0 {
        let cloned = human_bytes(document.cloned_bytes);
        let _ = writeln!(out, "  cloned   {cloned}, which the target shares with the source");
    }
    let written = human_bytes(document.written_bytes);
    if document.dry_run {
        let _ = writeln!(out, "  written  at most {written}; zeros are found while reading");
    } else {
        let zeros = human_bytes(document.zeros_found_bytes);
        let on_host = human_bytes(target.allocated_bytes);
        let text = format!("{written} ({zeros} of what was read were zeros); {on_host} on the host");
        out.push_str(&wrapped("  written  ", None, &text));
    }
    if document.provision != "thin" {
        let _ = writeln!(out, "  storage  allocated before the copy began ({})", document.provision);
    }
    out.push_str(&wrapped("  avoided  ", None, &avoided_text(document)));
    if !document.dry_run {
        let _ = writeln!(out, "  time     {}", speed(document));
    }
    if document.verified {
        let _ = writeln!(out, "  {}", palette.good("verified: the target, read back, is what was read"));
    }
    dropped_text(&mut out, "snapshot", &document.dropped_snapshots, palette);
    dropped_text(&mut out, "bitmap", &document.dropped_bitmaps, palette);
    if let Some(doubt) = &document.doubt {
        let text = format!("the whole disk is copied: {}", printable(doubt));
        out.push_str(&painted("  ", None, &text, |line| palette.warning(line)));
    }
    for volume in &document.volumes {
        volume_text(&mut out, volume, palette);
    }
    out
}

/// Names what the copy leaves behind; the rest of many is counted.
fn dropped_text(out: &mut String, what: &str, dropped: &[Dropped], palette: Palette) {
    if dropped.is_empty() {
        return;
    }
    let names: Vec<String> = dropped
        .iter()
        .take(DROPPED_NAME_COUNT_MAX)
        .map(|dropped| format!("\"{}\"", printable(&dropped.name)))
        .collect();
    let more = dropped.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let plural = if dropped.len() == 1 { "" } else { "s" };
    let text =
        format!("not copied: {} {what}{plural} of the source: {}{more}", dropped.len(), names.join(", "));
    out.push_str(&painted("  ", None, &text, |line| palette.warning(line)));
}

/// What was not read, by reason.
fn avoided_text(document: &CopyDocument) -> String {
    let AvoidedBytes { unallocated_bytes, free_bytes, swap_bytes, zero_bytes, log_bytes, unchanged_bytes } =
        document.avoided;
    let reasons = [
        (unallocated_bytes, "not allocated in the image"),
        (free_bytes, "free"),
        (swap_bytes, "swap"),
        (zero_bytes, "zeros"),
        (log_bytes, "empty log"),
        (unchanged_bytes, "unchanged"),
    ];
    let said = reasons.iter().filter(|(bytes, _)| *bytes > 0);
    let said: Vec<_> = said.map(|(bytes, what)| format!("{} {what}", human_bytes(*bytes))).collect();
    let total = human_bytes(
        document.source.virtual_bytes.saturating_sub(document.read_bytes + document.cloned_bytes),
    );
    if said.is_empty() { total } else { format!("{total}: {}", said.join(", ")) }
}

fn picture(document: &CopyDocument, palette: Palette) -> String {
    let AvoidedBytes { unallocated_bytes, free_bytes, swap_bytes, zero_bytes, log_bytes, unchanged_bytes } =
        document.avoided;
    let share = |bytes, glyph, color| Share { bytes, glyph, color };
    let shares = [
        share(document.read_bytes + document.cloned_bytes, '█', "32"),
        share(swap_bytes, '▒', "35"),
        share(free_bytes + log_bytes, '░', "33"),
        share(zero_bytes + unallocated_bytes + unchanged_bytes, '·', "2"),
    ];
    let copied = if document.cloned_bytes > 0 { "copied" } else { "read" };
    let words = [copied, "swap", "free", "nothing there"];
    let legend = shares.iter().zip(words).map(|(share, word)| {
        format!(" {} {word}", palette.cell(share.color, share.glyph.encode_utf8(&mut [0; 4])))
    });
    bar(&shares, PICTURE_COLUMNS, palette) + " " + &legend.collect::<String>()
}

fn speed(document: &CopyDocument) -> String {
    let seconds = document.elapsed_seconds.max(0.001);
    let rate = |bytes: u64| {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rate = (bytes as f64 / seconds) as u64;
        human_bytes(rate)
    };
    if document.kept_bytes > 0 {
        // What came before took time that is not known.
        let read = document.read_bytes.saturating_sub(document.kept_bytes);
        return format!(
            "{seconds:.1} s: {}/s read, after the {} that were kept",
            rate(read),
            human_bytes(document.kept_bytes)
        );
    }
    format!(
        "{seconds:.1} s: {}/s read, {}/s of virtual disk",
        rate(document.read_bytes),
        rate(document.source.virtual_bytes)
    )
}

fn volume_text(out: &mut String, volume: &VolumeCopy, palette: Palette) {
    let name = volume_groups::titled(volume.name.as_deref(), volume.filesystem.as_deref());
    let label = volume.label.as_ref().filter(|label| !label.is_empty());
    let label = label.map(|label| format!(" \"{}\"", printable(label))).unwrap_or_default();
    let what = match &volume.reason {
        Some(_) => "copied whole".to_owned(),
        None => format!("{} used, {} free", human_bytes(volume.used_bytes), human_bytes(volume.free_bytes)),
    };
    let swap = match volume.swap_bytes {
        0 => String::new(),
        bytes => format!(", {} swap", human_bytes(bytes)),
    };
    let size = human_bytes(volume.size_bytes);
    let first = format!("  volume {}  ", volume.index);
    out.push_str(&wrapped(&first, None, &format!("{name}{label}, {size}: {what}{swap}")));
    volume.shadow_copies.text(out, "            ", palette);
    let mut add = |text: &str, paint: &dyn Fn(&str) -> String| {
        out.push_str(&painted(&" ".repeat(first.len()), None, text, paint));
    };
    let warning = |line: &str| palette.warning(line);
    if let Some(reason) = &volume.reason {
        add(&printable(reason), &warning);
    }
    match &volume.layout {
        None => {}
        Some(LayoutOfCopy::Kept(kept)) => {
            add(&format!("files stay where they were: {}", printable(&kept.reason)), &warning);
        }
        Some(LayoutOfCopy::Packed(LayoutPacked { moved_bytes, before, after, left })) => {
            let text = format!(
                "packed, moving {}: fragmented files {} → {}, fragments {} → {}, free extents {} → {}",
                human_bytes(*moved_bytes),
                grouped(before.fragmented_files),
                grouped(after.fragmented_files),
                grouped(before.fragments),
                grouped(after.fragments),
                grouped(before.free_extents),
                grouped(after.free_extents)
            );
            add(&text, &str::to_owned);
            if *left > 0 {
                let files = counted(*left, "fragmented file or stream", "fragmented files or streams");
                add(&format!("{files} could not move"), &warning);
            }
        }
    }
}
