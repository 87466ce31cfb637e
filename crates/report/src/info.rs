//! `leandisk info`: every layer of a disk.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use block::{HostFile, Result};
use claims::{Act, Claim, Claims};
use image::Link;
use serde::Serialize;
use stack::{Stack, UsedMaps};
use volume::Scheme;

use crate::bar::{Share, bar};
use crate::shadow_copies::{self, ShadowCopyEntry};
use crate::text::{Palette, human_bytes, printable};

/// The document `leandisk.info/1`.
#[derive(Clone, Debug, Serialize)]
pub struct InfoDocument {
    schema: &'static str,
    path: String,
    format: String,
    virtual_bytes: u64,
    allocated_bytes: u64,
    sector_bytes: u32,
    /// Why the contents cannot be read, if so.
    unreadable: Option<String>,
    /// Top first, each parent after its child.
    images: Vec<ImageInfo>,
    /// Who else needs the disk's files.
    claims: Vec<ClaimInfo>,
    partition_table: TableInfo,
    volumes: Vec<VolumeInfo>,
}

#[derive(Clone, Debug, Serialize)]
struct ImageInfo {
    path: String,
    format: String,
    variant: String,
    format_found: &'static str,
    looks_like: Option<String>,
    virtual_bytes: u64,
    cluster_bytes: Option<u64>,
    id: Option<String>,
    snapshots: u32,
    files: Vec<FileInfo>,
    details: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug, Serialize)]
struct FileInfo {
    path: String,
    size_bytes: u64,
    allocated_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct ClaimInfo {
    kind: &'static str,
    path: String,
    /// Follows the path: `is in use by ...`.
    text: String,
    /// What is refused for it: `read`, `change`, `replace`.
    forbids: Vec<&'static str>,
    /// What ends it.
    hint: String,
}

#[derive(Clone, Debug, Serialize)]
struct TableInfo {
    scheme: &'static str,
    sector_bytes: u32,
    id: Option<String>,
    doubt: Option<String>,
    warnings: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct VolumeInfo {
    index: usize,
    start_bytes: u64,
    size_bytes: u64,
    /// Whether none of its clusters straddles two of the container's units or two 4096-byte sectors.
    aligned: bool,
    partition: Option<PartitionInfo>,
    filesystem: Option<String>,
    label: Option<String>,
    uuid: Option<String>,
    cluster_bytes: Option<u64>,
    used_bytes: Option<u64>,
    free_bytes: Option<u64>,
    state: Option<&'static str>,
    /// What the state means, such as which journal was replayed.
    state_detail: Option<String>,
    /// How `copy` would take it, as far as a few reads can tell.
    mode: &'static str,
    /// Why whole.
    reason: Option<String>,
    details: BTreeMap<&'static str, String>,
    /// Snapshots that the volume keeps of itself.
    shadow_copies: Vec<ShadowCopyEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct PartitionInfo {
    number: u32,
    kind: String,
    name: Option<String>,
}

/// The facts of an open disk. `maps` are quickly checked ones.
pub fn info_document(path: &str, stack: &Stack, maps: &UsedMaps, claims: &Claims) -> Result<InfoDocument> {
    let chain = stack.chain();
    let facts = chain.facts();
    let mut allocated_bytes = 0;
    for file in chain.files() {
        allocated_bytes += file.allocated_bytes()?;
    }
    let table = stack.table();
    Ok(InfoDocument {
        schema: "leandisk.info/1",
        path: path.to_owned(),
        format: facts.format.name().to_owned(),
        virtual_bytes: facts.virtual_bytes,
        allocated_bytes,
        sector_bytes: facts.sector_bytes,
        unreadable: chain.check_readable().err().map(|error| error.to_string()),
        images: chain.links().iter().map(image_info).collect::<Result<_>>()?,
        claims: claims.iter().map(claim_info).collect(),
        partition_table: TableInfo {
            scheme: match table.scheme {
                Scheme::None => "none",
                Scheme::Mbr => "mbr",
                Scheme::Gpt => "gpt",
            },
            sector_bytes: table.sector_bytes,
            id: table.id.clone(),
            doubt: table.doubt.clone(),
            warnings: table.warnings.clone(),
        },
        volumes: (0..stack.volumes().len()).map(|index| volume_info(stack, maps, index)).collect(),
    })
}

fn image_info(link: &Link) -> Result<ImageInfo> {
    let facts = link.layer.facts();
    Ok(ImageInfo {
        path: link.layer.files()[0].name().to_owned(),
        format: facts.format.name().to_owned(),
        variant: facts.variant.clone(),
        format_found: link.found.text(),
        looks_like: link.looks_like.map(|format| format.name().to_owned()),
        virtual_bytes: facts.virtual_bytes,
        cluster_bytes: facts.cluster_bytes,
        id: facts.id.clone(),
        snapshots: facts.snapshot_count,
        files: link.layer.files().iter().map(|file| file_info(&**file)).collect::<Result<_>>()?,
        details: facts.details.iter().cloned().collect(),
    })
}

fn claim_info(claim: &Claim) -> ClaimInfo {
    let acts = [(Act::Read, "read"), (Act::Change, "change"), (Act::Replace, "replace")];
    ClaimInfo {
        kind: claim.kind.word(),
        path: claim.file.clone(),
        text: claim.text.clone(),
        forbids: acts.into_iter().filter(|(act, _)| claim.forbids(*act)).map(|(_, word)| word).collect(),
        hint: claim.hint.clone(),
    }
}

fn file_info(file: &dyn HostFile) -> Result<FileInfo> {
    let allocated_bytes = file.allocated_bytes()?;
    Ok(FileInfo { path: file.name().to_owned(), size_bytes: file.len_bytes(), allocated_bytes })
}

fn volume_info(stack: &Stack, maps: &UsedMaps, index: usize) -> VolumeInfo {
    let volume = &stack.volumes()[index];
    let mode = &maps.modes()[index];
    let facts = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
    let state_detail = facts.and_then(|facts| match &facts.state {
        filesystem::State::JournalPending(what) => Some(what.clone()),
        _ => None,
    });
    VolumeInfo {
        index: index + 1,
        start_bytes: volume.span.start().get(),
        size_bytes: volume.span.len_bytes(),
        aligned: is_aligned(stack, index),
        partition: volume.partition.as_ref().map(|partition| PartitionInfo {
            number: partition.number,
            kind: partition.kind.clone(),
            name: partition.name.clone(),
        }),
        filesystem: facts.map(|facts| facts.filesystem.clone()),
        label: facts.and_then(|facts| facts.label.clone()),
        uuid: facts.and_then(|facts| facts.uuid.clone()),
        cluster_bytes: facts.and_then(|facts| facts.cluster_bytes),
        used_bytes: facts.and_then(|facts| facts.size_bytes.checked_sub(facts.free_bytes?)),
        free_bytes: facts.and_then(|facts| facts.free_bytes),
        state: facts.map(|facts| facts.state.word()),
        state_detail,
        mode: if mode.reason().is_some() { "whole" } else { "used-only" },
        reason: mode.reason().map(str::to_owned),
        details: facts.map(|facts| facts.details.iter().cloned().collect()).unwrap_or_default(),
        shadow_copies: shadow_copies::entries(volume.filesystem.as_deref()),
    }
}

/// Whether none of a volume's clusters straddles two of the container's units or two 4096-byte sectors.
pub(crate) fn is_aligned(stack: &Stack, index: usize) -> bool {
    let volume = &stack.volumes()[index];
    let facts = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
    let cluster_bytes = facts.and_then(|facts| facts.cluster_bytes).unwrap_or(4096);
    let unit = stack.chain().facts().cluster_bytes.unwrap_or(4096).min(cluster_bytes).max(4096);
    volume.span.start().get().is_multiple_of(unit)
}

/// The document as a tree.
pub fn info_text(document: &InfoDocument, palette: Palette) -> String {
    let mut out = String::new();
    let InfoDocument { path, format, virtual_bytes, allocated_bytes, .. } = document;
    let _ = writeln!(
        out,
        "{}  {format}, {} virtual, {} on the host",
        palette.strong(&printable(path)),
        human_bytes(*virtual_bytes),
        human_bytes(*allocated_bytes)
    );
    if let Some(reason) = &document.unreadable {
        let _ =
            writeln!(out, "{}", palette.warning(&format!("contents cannot be read: {}", printable(reason))));
    }
    for (depth, image) in document.images.iter().enumerate() {
        image_text(&mut out, depth, image, palette);
    }
    for claim in &document.claims {
        claim_text(&mut out, claim, palette);
    }
    table_text(&mut out, document, palette);
    let last = document.volumes.len();
    for volume in &document.volumes {
        volume_text(&mut out, volume, volume.index == last, palette);
    }
    out
}

fn image_text(out: &mut String, depth: usize, image: &ImageInfo, palette: Palette) {
    let role = if depth == 0 { "image " } else { "parent" };
    let mut line = format!("├─ {role}  {} {}", image.format, printable(&image.variant));
    if depth > 0 {
        let _ = write!(line, "  {}", printable(&image.path));
    }
    let _ = write!(line, ", {}", human_bytes(image.virtual_bytes));
    if let Some(bytes) = image.cluster_bytes {
        let _ = write!(line, ", units of {}", human_bytes(bytes));
    }
    let _ = write!(line, "  {}", palette.faint(&format!("(format {})", image.format_found)));
    let _ = writeln!(out, "{line}");
    if let Some(format) = &image.looks_like {
        let note = format!("its contents look like {format}; say -f {format} to read it so");
        let _ = writeln!(out, "│    {}", palette.warning(&note));
    }
    if image.snapshots > 0 {
        let _ = writeln!(out, "│    internal snapshots: {}", image.snapshots);
    }
    for file in image.files.iter().skip(1) {
        let _ = writeln!(out, "│    file {}, {}", printable(&file.path), human_bytes(file.size_bytes));
    }
    let details: Vec<_> =
        image.details.iter().map(|(name, value)| format!("{name} {}", printable(value))).collect();
    if !details.is_empty() {
        let _ = writeln!(out, "│    {}", palette.faint(&details.join(", ")));
    }
}

fn claim_text(out: &mut String, claim: &ClaimInfo, palette: Palette) {
    let text = format!("{} {}", printable(&claim.path), printable(&claim.text));
    let _ = writeln!(out, "├─ {}", palette.warning(&text));
    let refuses = match claim.forbids.first() {
        Some(&"read") => "copy refuses it (--in-use copies it all the same), and nothing changes it",
        Some(_) => "copy takes it; nothing changes it in place",
        None => "copy takes it",
    };
    let _ = writeln!(out, "│    {refuses}");
}

fn table_text(out: &mut String, document: &InfoDocument, palette: Palette) {
    let table = &document.partition_table;
    let corner = if document.volumes.is_empty() { "└─" } else { "├─" };
    let name = match table.scheme {
        "mbr" => "MBR",
        "gpt" => "GPT",
        _ => "no partition table",
    };
    let _ = writeln!(out, "{corner} table   {name}, sectors of {} bytes", table.sector_bytes);
    if let Some(doubt) = &table.doubt {
        let _ = writeln!(
            out,
            "│    {}",
            palette.warning(&format!("in doubt, so the disk is taken whole: {}", printable(doubt)))
        );
    }
    for warning in &table.warnings {
        let _ = writeln!(out, "│    {}", palette.warning(&printable(warning)));
    }
}

fn volume_text(out: &mut String, volume: &VolumeInfo, is_last: bool, palette: Palette) {
    let (corner, side) = if is_last { ("└─", "  ") } else { ("├─", "│ ") };
    let name = volume.filesystem.as_deref().map_or("unknown contents".into(), printable);
    let mut line = format!("{corner} volume {}  {}", volume.index, palette.strong(&name));
    if let Some(label) = volume.label.as_ref().filter(|label| !label.is_empty()) {
        let _ = write!(line, " \"{}\"", printable(label));
    }
    let _ = write!(line, ", {} at {}", human_bytes(volume.size_bytes), human_bytes(volume.start_bytes));
    if let Some(partition) = &volume.partition {
        let _ = write!(
            line,
            "  {}",
            palette.faint(&format!("(partition {}: {})", partition.number, printable(&partition.kind)))
        );
    }
    let _ = writeln!(out, "{line}");
    if let (Some(used), Some(free)) = (volume.used_bytes, volume.free_bytes) {
        let shares =
            [Share { bytes: used, glyph: '█', color: "32" }, Share { bytes: free, glyph: '░', color: "2" }];
        let picture = bar(&shares, 40, palette);
        let _ = writeln!(out, "{side}   {picture}  {} used, {} free", human_bytes(used), human_bytes(free));
    }
    let state = volume.state.unwrap_or("unknown");
    let state = if matches!(state, "clean") { palette.good(state) } else { palette.warning(state) };
    let takes = match &volume.reason {
        None => "copy skips what is free and swap".to_owned(),
        Some(reason) => format!("copy takes it whole: {}", printable(reason)),
    };
    let detail =
        volume.state_detail.as_ref().map(|detail| format!(" ({})", printable(detail))).unwrap_or_default();
    let _ = writeln!(out, "{side}   {state}{detail}; {takes}");
    shadow_copies::list_text(out, &format!("{side}   "), &volume.shadow_copies, palette);
    if !volume.aligned {
        let _ = writeln!(
            out,
            "{side}   {}",
            palette.warning("not aligned: its clusters straddle the container's units")
        );
    }
}
