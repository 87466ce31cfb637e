//! `leandisk info`: every layer of a disk.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use block::{ErrorKind, HostFile, Result};
use claims::{Act, Claim, Claims};
use filesystem::{Check, FileSystem};
use image::Link;
use serde::Serialize;
use stack::{Stack, UsedMaps};
use volume::Scheme;

use crate::bar::{Share, bar};
use crate::shadow_copies::{self, ShadowCopyEntry};
use crate::text::{Palette, WIDTH, human_bytes, painted, printable, wrapped};
use crate::volume_groups::{self, VolumeGroupEntry};

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
    volume_groups: Vec<VolumeGroupEntry>,
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
    /// `GROUP/VOLUME` of a logical volume, or the UUID of a file system that has several devices.
    name: Option<String>,
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
    /// What `--ntfs-log join` would give.
    log_join: Option<LogJoin>,
}

/// What joining in the log of a volume would give.
#[derive(Clone, Debug, Serialize)]
struct LogJoin {
    /// `None` if nothing.
    used_bytes: Option<u64>,
    /// Why nothing.
    reason: Option<String>,
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
        volumes: (0..stack.volumes().len())
            .map(|index| volume_info(stack, maps, index))
            .collect::<Result<_>>()?,
        volume_groups: volume_groups::entries(stack),
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

fn volume_info(stack: &Stack, maps: &UsedMaps, index: usize) -> Result<VolumeInfo> {
    let volume = &stack.volumes()[index];
    let mode = &maps.modes()[index];
    let facts = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
    let state_detail = facts.and_then(|facts| match &facts.state {
        filesystem::State::JournalPending(what) => Some(what.clone()),
        _ => None,
    });
    Ok(VolumeInfo {
        index: index + 1,
        name: volume.name.clone(),
        start_bytes: volume.place.first().start().get(),
        size_bytes: volume.place.len_bytes(),
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
        log_join: volume.filesystem.as_deref().map(log_join).transpose()?.flatten(),
    })
}

fn log_join(filesystem: &dyn FileSystem) -> Result<Option<LogJoin>> {
    let Some(joined) = filesystem.log_joined()? else { return Ok(None) };
    let facts = joined.facts();
    let reason = match facts.state.doubt() {
        Some(doubt) => Some(doubt.to_owned()),
        None => match joined.used_map(Check::Glance) {
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => Some(error.to_string()),
        },
    };
    let used_bytes =
        facts.free_bytes.filter(|_| reason.is_none()).and_then(|free| facts.size_bytes.checked_sub(free));
    Ok(Some(LogJoin { used_bytes, reason }))
}

/// Whether none of a volume's clusters straddles two of the container's units or two 4096-byte sectors.
pub(crate) fn is_aligned(stack: &Stack, index: usize) -> bool {
    let volume = &stack.volumes()[index];
    let facts = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
    let cluster_bytes = facts.and_then(|facts| facts.cluster_bytes).unwrap_or(4096);
    let unit = stack.chain().facts().cluster_bytes.unwrap_or(4096).min(cluster_bytes).max(4096);
    volume.place.first().start().get().is_multiple_of(unit)
}

/// The document as a tree.
pub fn info_text(document: &InfoDocument, palette: Palette) -> String {
    let mut out = String::new();
    let InfoDocument { path, format, virtual_bytes, allocated_bytes, .. } = document;
    let path = printable(path);
    let facts = format!(
        "{format}, {} virtual, {} on the host",
        human_bytes(*virtual_bytes),
        human_bytes(*allocated_bytes)
    );
    if path.chars().count() + 2 + facts.chars().count() <= WIDTH {
        let _ = writeln!(out, "{}  {facts}", palette.strong(&path));
    } else {
        let _ = writeln!(out, "{}\n{facts}", palette.strong(&path));
    }
    if let Some(reason) = &document.unreadable {
        let text = format!("the contents cannot be read: {}", printable(reason));
        out.push_str(&painted("", Some("  "), &text, |line| palette.warning(line)));
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

/// Below a branch of the tree.
const BELOW: &str = "│    ";

fn image_text(out: &mut String, depth: usize, image: &ImageInfo, palette: Palette) {
    let role = if depth == 0 { "image " } else { "parent" };
    let mut text = format!("{} {}", image.format, printable(&image.variant));
    if depth > 0 {
        let _ = write!(text, "  {}", printable(&image.path));
    }
    let _ = write!(text, ", {}", human_bytes(image.virtual_bytes));
    if let Some(bytes) = image.cluster_bytes {
        let _ = write!(text, ", blocks of {}", human_bytes(bytes));
    }
    let _ = write!(text, " (format {})", image.format_found);
    out.push_str(&wrapped(&format!("├─ {role}  "), Some(BELOW), &text));
    let mut below =
        |text: &str, paint: &dyn Fn(&str) -> String| out.push_str(&painted(BELOW, Some(BELOW), text, paint));
    if let Some(format) = &image.looks_like {
        let note = format!("its contents look like {format}: use -f {format} to read them as that");
        below(&note, &|line| palette.warning(line));
    }
    if image.snapshots > 0 {
        below(&format!("internal snapshots: {}", image.snapshots), &str::to_owned);
    }
    for file in image.files.iter().skip(1) {
        below(&format!("file {}, {}", printable(&file.path), human_bytes(file.size_bytes)), &str::to_owned);
    }
    let details: Vec<_> =
        image.details.iter().map(|(name, value)| format!("{name} {}", printable(value).trim())).collect();
    if !details.is_empty() {
        below(&details.join(", "), &|line| palette.faint(line));
    }
}

fn claim_text(out: &mut String, claim: &ClaimInfo, palette: Palette) {
    let text = format!("{} {}", printable(&claim.path), printable(&claim.text));
    out.push_str(&painted("├─ ", Some("│  "), &text, |line| palette.warning(line)));
    let refuses = match claim.forbids.first() {
        Some(&"read") => "refused by copy (unless --in-use is given) and by everything that changes it",
        Some(_) => "can be copied; refused by everything that changes it in place",
        None => "can be copied",
    };
    out.push_str(&wrapped("│    ", Some("│    "), refuses));
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
    let doubt = table.doubt.as_ref().map(|doubt| format!("in doubt, so the disk is copied whole: {doubt}"));
    for warning in doubt.iter().chain(&table.warnings) {
        out.push_str(&painted(BELOW, Some(BELOW), &printable(warning), |line| palette.warning(line)));
    }
    if document.volumes.is_empty() && table.doubt.is_none() {
        let text = "no file system that Leandisk knows, so the disk is copied whole";
        let _ = writeln!(out, "     {}", palette.warning(text));
    }
}

fn volume_text(out: &mut String, volume: &VolumeInfo, is_last: bool, palette: Palette) {
    let (corner, below) = if is_last { ("└─", "     ") } else { ("├─", BELOW) };
    let name = volume_groups::titled(volume.name.as_deref(), volume.filesystem.as_deref());
    let mut text = name;
    if let Some(label) = volume.label.as_ref().filter(|label| !label.is_empty()) {
        let _ = write!(text, " \"{}\"", printable(label));
    }
    let _ = write!(text, ", {} at {}", human_bytes(volume.size_bytes), human_bytes(volume.start_bytes));
    if let Some(partition) = &volume.partition {
        let _ = write!(text, " (partition {}: {})", partition.number, printable(&partition.kind));
    }
    let first = format!("{corner} volume {}  ", volume.index);
    out.push_str(&painted(&first, Some(below), &text, |line| palette.strong(line)));
    if let (Some(used), Some(free)) = (volume.used_bytes, volume.free_bytes) {
        let shares =
            [Share { bytes: used, glyph: '█', color: "32" }, Share { bytes: free, glyph: '░', color: "2" }];
        let picture = bar(&shares, 40, palette);
        let _ = writeln!(out, "{below}{picture}  {} used, {} free", human_bytes(used), human_bytes(free));
    }
    let state = volume.state.unwrap_or("unknown");
    let takes = match &volume.reason {
        None => "copy leaves out free space and swap".to_owned(),
        Some(reason) => format!("copied whole: {}", printable(reason)),
    };
    let detail =
        volume.state_detail.as_ref().map(|detail| format!(" ({})", printable(detail))).unwrap_or_default();
    let is_good = state == "clean" && volume.reason.is_none();
    let text = format!("{state}{detail}; {takes}");
    out.push_str(&painted(below, Some(below), &text, |line| {
        if is_good { palette.good(line) } else { palette.warning(line) }
    }));
    if let Some(join) = &volume.log_join {
        let text = match (&join.reason, join.used_bytes) {
            (Some(reason), _) => format!("with --ntfs-log join as well: {}", printable(reason)),
            (None, Some(used)) => format!("with --ntfs-log join: {} used", human_bytes(used)),
            (None, None) => "with --ntfs-log join: free space and swap are left out".to_owned(),
        };
        out.push_str(&painted(below, Some(below), &text, |line| palette.faint(line)));
    }
    shadow_copies::list_text(out, below, &volume.shadow_copies, palette);
    if !volume.aligned {
        let text = "not aligned: its clusters straddle the image's blocks";
        let _ = writeln!(out, "{below}{}", palette.warning(text));
    }
}
