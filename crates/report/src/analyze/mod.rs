//! `leandisk analyze`: what is fragmented in which layer, and what is held for nothing.

mod command;
mod files;
mod folder;
mod page;
mod text;

use std::cmp::Reverse;

use block::Result;
use engine::ZeroCount;
use filesystem::{Catalog, Facts};
use predict::advice::Advice;
use predict::cost::ReadCost;
use serde::Serialize;
use stack::{FreeSpace, LayerFragments, Stack, Survey, Totals, UsedMaps, VolumeSurvey};

use crate::shadow_copies::{self, ShadowCopyEntry};
use crate::volume_groups::{self, VolumeGroupEntry};

pub use files::write_file_lines;
pub use folder::{
    DiskEntry, DiskReport, FileIdentity, FolderDocument, folder_document, folder_page, folder_text,
};
pub use page::analyze_page;
pub use text::{analyze_full_text, analyze_text};

/// The most doubts of one volume that a document repeats.
const DOUBTS_SHOWN: usize = 10;

/// The document `leandisk.analyze/1`.
#[derive(Clone, Debug, Serialize)]
pub struct AnalyzeDocument {
    schema: &'static str,
    path: String,
    format: String,
    virtual_bytes: u64,
    volumes: Vec<VolumeAnalysis>,
    volume_groups: Vec<VolumeGroupEntry>,
    image: ImageAnalysis,
    /// `None` where the stack ends at the image: on a block device, or where the host does not tell.
    host: Option<HostAnalysis>,
    whole_stack: WholeStack,
    /// In whole units of the image: allocated there, free or swap to the guest.
    reclaimable_bytes: u64,
    worst_files: Vec<WorstFile>,
    /// The profile that advice is about.
    device: String,
    /// Why a measured profile may not be that of the storage.
    device_doubts: Vec<String>,
    /// Reading every regular file from its beginning to its end, on each profile.
    reading: Vec<ReadingCost>,
    /// The trace that was asked about, on the profile that advice is about.
    trace: Option<CostFigures>,
    /// Best first.
    advice: Vec<AdviceEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct ReadingCost {
    device: String,
    #[serde(flatten)]
    figures: CostFigures,
}

/// Requests to the device and modelled seconds: as all lies now, and if each file (or the virtual disk, for a trace) lay
/// in one piece.
#[derive(Clone, Copy, Debug, Serialize)]
struct CostFigures {
    read_bytes: u64,
    requests: u64,
    unfragmented_requests: u64,
    model_seconds: f64,
    unfragmented_model_seconds: f64,
}

impl From<ReadCost> for CostFigures {
    fn from(cost: ReadCost) -> Self {
        Self {
            read_bytes: cost.bytes,
            requests: cost.requests,
            unfragmented_requests: cost.unfragmented_requests,
            model_seconds: cost.seconds,
            unfragmented_model_seconds: cost.unfragmented_seconds,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct AdviceEntry {
    action: &'static str,
    worth_it: bool,
    refused: bool,
    gain: AdviceGain,
    cost: AdviceCost,
    because: String,
    /// The command that does it, for a shell; `null` if nothing is to be done.
    command: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct AdviceGain {
    bytes: u64,
    requests: u64,
    seconds: f64,
    device: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct AdviceCost {
    moved_bytes: u64,
    growth_bytes: u64,
    changed_bytes: u64,
    new_to_dedup_bytes: u64,
    seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct VolumeAnalysis {
    index: usize,
    /// `GROUP/VOLUME` of a logical volume, or the UUID of a file system that has several devices.
    name: Option<String>,
    filesystem: Option<String>,
    label: Option<String>,
    state: Option<&'static str>,
    /// What the state means, or why the files could not be listed.
    reason: Option<String>,
    cluster_bytes: Option<u64>,
    size_bytes: u64,
    start_bytes: u64,
    aligned: bool,
    free_bytes: Option<u64>,
    files: Option<u64>,
    directories: Option<u64>,
    fragmented_files: Option<u64>,
    fragmented_files_bytes: Option<u64>,
    /// Of all regular files.
    fragments: Option<u64>,
    whole_stack_fragments: Option<u64>,
    fragmented_directories: Option<u64>,
    directory_fragments: Option<u64>,
    metadata_fragments: Option<u64>,
    stream_fragments: Option<u64>,
    free_extents: Option<u64>,
    largest_free_extent_bytes: Option<u64>,
    free_extents_by_size: Vec<FreeBin>,
    /// Files that could not be understood, and what else is wrong.
    doubts: u64,
    first_doubts: Vec<String>,
    /// Snapshots that the volume keeps of itself.
    shadow_copies: Vec<ShadowCopyEntry>,
    /// Bytes that are free or swap to the volume, and needed by them.
    kept_for_shadow_copies_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct FreeBin {
    from_bytes: u64,
    extents: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct ImageAnalysis {
    format: String,
    unit_bytes: u64,
    allocated_bytes: u64,
    /// Contiguous runs of the virtual disk in the image's files.
    runs: u64,
    parents: usize,
    snapshots: u32,
    /// Free or swap to the guest, in units that hold used bytes as well.
    partly_used_units_bytes: u64,
    /// Used, but in units that hold zeros only; `None` if the data were not looked at.
    zero_bytes: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct HostAnalysis {
    filesystem: Option<String>,
    extents: u64,
}

#[derive(Clone, Debug, Serialize)]
struct WholeStack {
    /// Of all files, directories, streams and metadata.
    extents: u64,
}

#[derive(Clone, Debug, Serialize)]
struct WorstFile {
    volume: usize,
    path: String,
    size_bytes: u64,
    fragments: u64,
    image_fragments: u64,
    whole_stack_fragments: u64,
}

/// What a document is made of.
pub struct AnalyzeSubject<'a> {
    /// The disk as the user named it.
    pub path: &'a str,
    /// The format that the user said it has.
    pub format_option: Option<&'a str>,
    /// The disk.
    pub stack: &'a Stack,
    /// How its volumes are taken, quickly checked.
    pub maps: &'a UsedMaps,
    /// What was found.
    pub survey: &'a Survey,
    /// What the files of the chain take on the host.
    pub allocated_bytes: u64,
    /// What a look at the data found, if there was one.
    pub zeros: Option<ZeroCount>,
    /// How many files in the most fragments to name.
    pub top: usize,
    /// Profiles with what reading all files costs on each; advice is about the first.
    pub reading: Vec<(String, ReadCost)>,
    /// Why the first profile, if it was measured, may not be that of the storage.
    pub device_doubts: Vec<String>,
    /// What a trace costs on the first profile.
    pub trace: Option<ReadCost>,
    /// Best first.
    pub advice: Vec<Advice>,
}

/// What was found, as a document.
pub fn analyze_document(subject: &AnalyzeSubject<'_>) -> Result<AnalyzeDocument> {
    let &AnalyzeSubject { path, stack, survey, allocated_bytes, zeros, top, .. } = subject;
    let chain = stack.chain();
    let facts = chain.facts();
    let host = survey.layers.host_extent_count().map(|extents| HostAnalysis {
        filesystem: survey.layers.host_filesystem().map(str::to_owned),
        extents,
    });
    Ok(AnalyzeDocument {
        schema: "leandisk.analyze/1",
        path: path.to_owned(),
        format: facts.format.name().to_owned(),
        virtual_bytes: facts.virtual_bytes,
        volumes: (0..survey.volumes.len())
            .map(|index| volume_analysis(subject, index))
            .collect::<Result<_>>()?,
        volume_groups: volume_groups::entries(stack),
        image: ImageAnalysis {
            format: facts.format.name().to_owned(),
            unit_bytes: survey.waste.unit_bytes,
            allocated_bytes,
            runs: survey.layers.image_runs().len() as u64,
            parents: chain.links().len() - 1,
            snapshots: facts.snapshot_count,
            partly_used_units_bytes: survey.waste.in_partly_used_units_bytes,
            zero_bytes: zeros.map(|zeros| zeros.zero_bytes),
        },
        host,
        whole_stack: WholeStack { extents: survey.fragments().whole_stack },
        reclaimable_bytes: survey.waste.reclaimable_bytes,
        worst_files: worst_files(survey, top),
        device: subject.reading.first().map(|(name, _)| name.clone()).unwrap_or_default(),
        device_doubts: subject.device_doubts.clone(),
        reading: subject
            .reading
            .iter()
            .map(|(device, cost)| ReadingCost { device: device.clone(), figures: (*cost).into() })
            .collect(),
        trace: subject.trace.map(CostFigures::from),
        advice: subject.advice.iter().map(|advice| advice_entry(subject, advice)).collect(),
    })
}

fn advice_entry(subject: &AnalyzeSubject<'_>, advice: &Advice) -> AdviceEntry {
    let Advice { action, gain, cost, because, worth_it, is_refused } = advice;
    AdviceEntry {
        action: action.word(),
        worth_it: *worth_it,
        refused: *is_refused,
        gain: AdviceGain {
            bytes: gain.bytes,
            requests: gain.requests,
            seconds: gain.seconds,
            device: gain.profile.clone(),
        },
        cost: AdviceCost {
            moved_bytes: cost.moved_bytes,
            growth_bytes: cost.growth_bytes,
            changed_bytes: cost.changed_bytes,
            new_to_dedup_bytes: cost.new_to_dedup_bytes,
            seconds: cost.seconds,
        },
        because: because.clone(),
        command: command::of(*action, subject.path, subject.format_option).filter(|_| !is_refused),
    }
}

fn volume_analysis(subject: &AnalyzeSubject<'_>, index: usize) -> Result<VolumeAnalysis> {
    let &AnalyzeSubject { stack, survey, maps, .. } = subject;
    let volume = &stack.volumes()[index];
    let VolumeSurvey { catalog, free, unlisted, totals, .. } = &survey.volumes[index];
    let facts: Option<&Facts> = volume.filesystem.as_ref().map(|filesystem| filesystem.facts());
    let listed = |value: fn(&Totals) -> u64| catalog.as_ref().map(|_| value(totals));
    let reason = facts
        .and_then(|facts| match &facts.state {
            filesystem::State::JournalPending(what) => Some(what.clone()),
            state => state.doubt().map(str::to_owned),
        })
        .or_else(|| volume.doubt.clone())
        .or_else(|| unlisted.clone())
        .or_else(|| maps.modes()[index].reason().filter(|_| facts.is_some()).map(str::to_owned))
        // Swap has no files, and lacks none.
        .filter(|_| facts.is_none_or(|facts| facts.filesystem != "swap" || facts.state.doubt().is_some()));
    Ok(VolumeAnalysis {
        index: index + 1,
        name: volume.name.clone(),
        filesystem: facts.map(|facts| facts.filesystem.clone()),
        label: facts.and_then(|facts| facts.label.clone()),
        state: facts.map(|facts| facts.state.word()),
        reason,
        cluster_bytes: facts.and_then(|facts| facts.cluster_bytes),
        size_bytes: volume.place.len_bytes(),
        start_bytes: volume.place.first().start().get(),
        aligned: crate::info::is_aligned(stack, index),
        free_bytes: free.as_ref().map(|free| free.bytes).or_else(|| facts.and_then(|facts| facts.free_bytes)),
        files: listed(|totals| totals.files.count),
        directories: listed(|totals| totals.directories.count),
        fragmented_files: listed(|totals| totals.files.fragmented),
        fragmented_files_bytes: listed(|totals| totals.files.fragmented_bytes),
        fragments: listed(|totals| totals.files.fragments.guest),
        whole_stack_fragments: listed(|totals| totals.files.fragments.whole_stack),
        fragmented_directories: listed(|totals| totals.directories.fragmented),
        directory_fragments: listed(|totals| totals.directories.fragments.guest),
        metadata_fragments: listed(|totals| totals.metadata.fragments.guest),
        stream_fragments: listed(|totals| totals.streams.fragments.guest),
        free_extents: free.as_ref().map(|free| free.extents),
        largest_free_extent_bytes: free.as_ref().map(|free| free.largest_bytes),
        free_extents_by_size: free.as_ref().map(free_bins).unwrap_or_default(),
        doubts: catalog.as_ref().map_or(0, Catalog::doubt_count),
        first_doubts: catalog.as_ref().map(first_doubts).unwrap_or_default(),
        shadow_copies: shadow_copies::entries(volume.filesystem.as_deref()),
        kept_for_shadow_copies_bytes: maps.kept_for_shadow_copies_bytes(index)?,
    })
}

fn free_bins(free: &FreeSpace) -> Vec<FreeBin> {
    (0..64)
        .zip(free.by_size)
        .filter(|(_, (extents, _))| *extents > 0)
        .map(|(log, (extents, bytes))| FreeBin { from_bytes: 1 << log, extents, bytes })
        .collect()
}

fn first_doubts(catalog: &Catalog) -> Vec<String> {
    let text = |doubt: &filesystem::Doubt| match doubt.file {
        Some(file) => format!("{}: {}", String::from_utf8_lossy(&catalog.path(file)), doubt.why),
        None => doubt.why.clone(),
    };
    catalog.doubts().iter().take(DOUBTS_SHOWN).map(text).collect()
}

/// The streams in the most runs on their volume, then in the whole stack; none that is in one piece everywhere.
fn worst_files(survey: &Survey, top: usize) -> Vec<WorstFile> {
    let mut worst: Vec<(LayerFragments, usize, usize)> = Vec::new();
    for (index, volume) in survey.volumes.iter().enumerate() {
        let Some(catalog) = &volume.catalog else { continue };
        for (number, fragments) in volume.fragments.iter().enumerate() {
            let fragments = LayerFragments::from(*fragments);
            // What has no name, such as the blocks that ext keeps to be resized with, is in nobody's way.
            let is_named = || catalog.is_named(catalog.get(number).stream.file);
            if (fragments.guest > 1 || fragments.whole_stack > 1) && is_named() {
                worst.push((fragments, index, number));
            }
        }
        let order = |(fragments, index, number): &(LayerFragments, usize, usize)| {
            (Reverse(fragments.guest), Reverse(fragments.whole_stack), *index, *number)
        };
        if worst.len() > top && top > 0 {
            worst.select_nth_unstable_by_key(top - 1, order);
        }
        worst.truncate(top);
        worst.sort_unstable_by_key(order);
    }
    let file = |(fragments, index, number): (LayerFragments, usize, usize)| {
        let catalog = survey.volumes[index].catalog.as_ref().expect("its streams were counted");
        let stream = catalog.get(number);
        WorstFile {
            volume: index + 1,
            path: String::from_utf8_lossy(&stream.path()).into_owned(),
            size_bytes: stream.stream.size_bytes,
            fragments: fragments.guest,
            image_fragments: fragments.image,
            whole_stack_fragments: fragments.whole_stack,
        }
    };
    worst.into_iter().map(file).collect()
}
