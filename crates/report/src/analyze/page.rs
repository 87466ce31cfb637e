//! The document as a page.

use super::text::{RECLAIMABLE, ratio};
use super::{AdviceEntry, AnalyzeDocument, CostFigures, VolumeAnalysis};
use crate::html::{Advice, Column, Histogram, HistogramBin, ReportPage, Table, report_html};
use crate::map::DiskMap;
use crate::text::{counted, grouped, human_bytes, percent, seconds};
use crate::volume_groups;

/// The whole analysis as one page that stands alone, with the map.
pub fn analyze_page(document: &AnalyzeDocument, map: &DiskMap) -> String {
    let page = ReportPage {
        title: document.path.clone(),
        about: format!(
            "{}, {} virtual, {} on the host",
            document.format,
            human_bytes(document.virtual_bytes),
            human_bytes(document.image.allocated_bytes)
        ),
        verdict: verdict(document),
        summary: summary(document),
        advice: document.advice.iter().map(advice).collect(),
        layers: vec![volumes(document), layers(document)],
        days: Vec::new(),
        charts: Vec::new(),
        histograms: document.volumes.iter().filter_map(histogram).collect(),
        files: vec![worst(document)],
        costs: vec![costs(document)],
        notes: notes(document),
        colophon: format!(
            "leandisk {} analyze: metadata alone were read, and nothing was written. Times are a model's; \
             docs/decisions/cost-model.md says what it leaves out.",
            env!("CARGO_PKG_VERSION")
        ),
    };
    report_html(&page, Some(map))
}

fn verdict(document: &AnalyzeDocument) -> String {
    match document.advice.first() {
        Some(first) if first.action == "nothing" => format!("Nothing is worth doing. {}", first.because),
        Some(first) => format!("Worth doing: {}. {}", first.action, first.because),
        None => String::new(),
    }
}

fn summary(document: &AnalyzeDocument) -> Vec<(String, String)> {
    let sum = |of: fn(&VolumeAnalysis) -> Option<u64>| document.volumes.iter().filter_map(of).sum::<u64>();
    let files = sum(|volume| volume.files);
    let mut figures = vec![
        ("files".to_owned(), grouped(files)),
        ("fragmented".to_owned(), grouped(sum(|volume| volume.fragmented_files))),
        ("fragments a file".to_owned(), ratio(sum(|volume| volume.fragments), files)),
        ("runs in the image".to_owned(), grouped(document.image.runs)),
    ];
    if let Some(host) = &document.host {
        figures.push(("extents on the host".to_owned(), grouped(host.extents)));
    }
    figures.push(("in the whole stack".to_owned(), grouped(sum(|volume| volume.whole_stack_fragments))));
    figures.push(("reclaimable".to_owned(), human_bytes(document.reclaimable_bytes)));
    figures
}

fn advice(entry: &AdviceEntry) -> Advice {
    let AdviceEntry { action, worth_it, refused, because, command, .. } = entry;
    let state = match (*action, worth_it, refused) {
        ("nothing", true, _) => "leave the disk as it is",
        ("nothing", false, _) => "leave the disk as it is: not the best choice",
        (_, true, _) => "worth it",
        (_, false, true) => "not possible",
        (_, false, false) => "not worth it",
    };
    Advice {
        action: format!("{action} ({state})"),
        gain: entry.gain_said(),
        cost: entry.cost_said(),
        because: because.clone(),
        command: command.clone().filter(|_| *worth_it).unwrap_or_default(),
    }
}

impl AdviceEntry {
    /// What it gains, in a few words; empty if that is nothing.
    fn gain_said(&self) -> String {
        self.gains().join(", ")
    }

    /// What it costs, in a few words; empty if that is nothing.
    fn cost_said(&self) -> String {
        self.costs().join(", ")
    }

    /// What it gains, most important first.
    pub(super) fn gains(&self) -> Vec<String> {
        let gain = &self.gain;
        said([
            (gain.bytes > 0, format!("{} on the host", human_bytes(gain.bytes))),
            (
                gain.seconds > 0.0,
                format!("{} less to read all files on {}", seconds(gain.seconds), gain.device),
            ),
            (gain.requests > 0, counted(gain.requests, "request fewer", "requests fewer")),
        ])
    }

    /// What it costs, most important first.
    pub(super) fn costs(&self) -> Vec<String> {
        let cost = &self.cost;
        said([
            (
                cost.moved_bytes > 0,
                format!("up to {} moved in {}", human_bytes(cost.moved_bytes), seconds(cost.seconds)),
            ),
            (cost.growth_bytes > 0, format!("{} more space meanwhile", human_bytes(cost.growth_bytes))),
            (cost.changed_bytes > 0, format!("{} in the next backup", human_bytes(cost.changed_bytes))),
        ])
    }
}

fn said(parts: [(bool, String); 3]) -> Vec<String> {
    parts.into_iter().filter(|(is_any, _)| *is_any).map(|(_, text)| text).collect()
}

fn volumes(document: &AnalyzeDocument) -> Table {
    let or_dash = |value: Option<u64>| value.map_or("–".to_owned(), grouped);
    let row = |volume: &VolumeAnalysis| {
        let name = volume_groups::titled(volume.name.as_deref(), volume.filesystem.as_deref());
        let label = volume.label.as_ref().filter(|label| !label.is_empty());
        vec![
            volume.index.to_string(),
            label.map_or(name.clone(), |label| format!("{name} \"{label}\"")),
            volume.state.unwrap_or("–").to_owned(),
            human_bytes(volume.size_bytes),
            or_dash(volume.files),
            or_dash(volume.directories),
            or_dash(volume.fragmented_files),
            or_dash(volume.fragments),
            or_dash(volume.whole_stack_fragments),
            volume.free_bytes.map_or("–".to_owned(), human_bytes),
            or_dash(volume.free_extents),
            volume.largest_free_extent_bytes.map_or("–".to_owned(), human_bytes),
        ]
    };
    let numbers = [
        "size",
        "files",
        "directories",
        "fragmented",
        "fragments",
        "whole stack",
        "free",
        "free extents",
        "largest",
    ];
    let mut columns = vec![Column::number("volume"), Column::text("file system"), Column::text("state")];
    columns.extend(numbers.map(Column::number));
    Table {
        title: "Volumes".into(),
        columns,
        rows: document.volumes.iter().map(row).collect(),
        empty: Some("No volume with a file system that Leandisk knows was found on the disk.".into()),
        remark: Some(
            "Fragments are contiguous runs of regular files: on the volume, and in the lowest layer that is known."
                .into(),
        ),
    }
}

fn layers(document: &AnalyzeDocument) -> Table {
    let image = &document.image;
    let mut rows = vec![vec![
        "image".to_owned(),
        match image.parents {
            0 => image.format.clone(),
            parents => format!("{}, parents: {parents}", image.format),
        },
        human_bytes(image.allocated_bytes),
        grouped(image.runs),
    ]];
    if let Some(host) = &document.host {
        let name = host.filesystem.clone().unwrap_or_else(|| "unknown".to_owned());
        rows.push(vec!["host".into(), name, human_bytes(image.allocated_bytes), grouped(host.extents)]);
    }
    let mut remark = format!(
        "Reclaimable: {}, {RECLAIMABLE}. Not counted: {} that are free, but in blocks of {} that are partly in use.",
        human_bytes(document.reclaimable_bytes),
        human_bytes(image.partly_used_units_bytes),
        human_bytes(image.unit_bytes),
    );
    if let Some(zero_bytes) = image.zero_bytes {
        remark.push_str(&format!(" Nor: {} in use, but zeros throughout.", human_bytes(zero_bytes)));
    }
    Table {
        title: "Below the guest".into(),
        columns: vec![
            Column::text("layer"),
            Column::text("kind"),
            Column::number("allocated"),
            Column::number("runs"),
        ],
        rows,
        remark: Some(remark),
        empty: None,
    }
}

fn histogram(volume: &VolumeAnalysis) -> Option<Histogram> {
    let bins: Vec<_> = volume
        .free_extents_by_size
        .iter()
        .map(|bin| HistogramBin {
            label: format!("from {}", human_bytes(bin.from_bytes)),
            count: bin.extents,
            bytes: bin.bytes,
        })
        .collect();
    (!bins.is_empty()).then(|| Histogram { title: format!("Volume {}: free extents", volume.index), bins })
}

fn worst(document: &AnalyzeDocument) -> Table {
    let row = |file: &super::WorstFile| {
        vec![
            file.volume.to_string(),
            file.path.clone(),
            human_bytes(file.size_bytes),
            grouped(file.fragments),
            grouped(file.image_fragments),
            grouped(file.whole_stack_fragments),
        ]
    };
    Table {
        title: "Files in the most fragments".into(),
        columns: vec![
            Column::number("volume"),
            Column::text("path"),
            Column::number("size"),
            Column::number("guest"),
            Column::number("image"),
            Column::number("whole stack"),
        ],
        rows: document.worst_files.iter().map(row).collect(),
        remark: None,
        empty: Some("No file is fragmented in any layer.".into()),
    }
}

fn costs(document: &AnalyzeDocument) -> Table {
    let row = |name: &str, figures: &CostFigures| {
        vec![
            name.to_owned(),
            grouped(figures.requests),
            grouped(figures.unfragmented_requests),
            seconds(figures.model_seconds),
            seconds(figures.unfragmented_model_seconds),
            percent_more(figures),
        ]
    };
    let mut rows: Vec<_> =
        document.reading.iter().map(|reading| row(&reading.device, &reading.figures)).collect();
    if let Some(trace) = &document.trace {
        rows.push(row(&format!("the trace, on {}", document.device), trace));
    }
    Table {
        title: "Reading every file from end to end".into(),
        columns: vec![
            Column::text("storage"),
            Column::number("requests"),
            Column::number("at best"),
            Column::number("time"),
            Column::number("at best"),
            Column::number("lost to fragments"),
        ],
        rows,
        empty: None,
        remark: Some("At best: if each file lay in one piece. Times are modelled, not measured.".into()),
    }
}

fn percent_more(figures: &CostFigures) -> String {
    let extra = (figures.model_seconds - figures.unfragmented_model_seconds).max(0.0);
    percent(if figures.model_seconds > 0.0 { extra / figures.model_seconds } else { 0.0 })
}

fn notes(document: &AnalyzeDocument) -> Vec<String> {
    let mut notes = document.device_doubts.clone();
    for volume in &document.volumes {
        let about = |text: &str| format!("Volume {}: {text}", volume.index);
        notes.extend(volume.reason.as_deref().map(about));
        if !volume.shadow_copies.is_empty() {
            let copies = crate::shadow_copies::counted(volume.shadow_copies.len());
            let kept = human_bytes(volume.kept_for_shadow_copies_bytes);
            notes.push(about(&format!("{copies}, which need {kept} of what is free.")));
        }
        if !volume.aligned {
            notes.push(about("not aligned: its clusters straddle the image's blocks."));
        }
        if volume.doubts > 0 {
            notes.push(about(&format!("{} not understood, and missing here:", grouped(volume.doubts))));
            notes.extend(volume.first_doubts.iter().cloned());
        }
    }
    notes
}
