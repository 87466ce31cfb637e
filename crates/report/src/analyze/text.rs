//! The document in a few lines, and in full.

use std::fmt::Write as _;

use super::command::quoted;
use super::{AdviceEntry, AnalyzeDocument, CostFigures, ReadingCost, VolumeAnalysis};
use crate::bar::{Share, bar};
use crate::shadow_copies;
use crate::text::{
    Palette, WIDTH, counted, grouped, human_bytes, lines_of, painted, percent, printable, seconds, wrapped,
};
use crate::volume_groups;

/// What is left of a line for a file's path.
const PATH_WIDTH: usize = 38;
/// The most volumes that a summary names.
const VOLUMES_MAX: usize = 2;
/// The most lines that a summary gives to reasons.
const REASON_LINES_MAX: usize = 3;

/// What to do, what it gains and costs, and how: at most twelve lines, whatever the disk.
pub fn analyze_text(document: &AnalyzeDocument, palette: Palette) -> String {
    let mut out = heading(document, palette);
    for volume in document.volumes.iter().take(VOLUMES_MAX) {
        let line = format!("  volume {}  {}", volume.index, volume_summary(volume));
        let _ = writeln!(out, "{}", shortened(&line, WIDTH));
    }
    if document.volumes.len() > VOLUMES_MAX {
        let _ = writeln!(out, "  and {} more volumes", document.volumes.len() - VOLUMES_MAX);
    }
    let reclaimable = human_bytes(document.reclaimable_bytes);
    let _ = writeln!(out, "  {:<13}{reclaimable}  {}", "reclaimable", palette.faint(RECLAIMABLE));
    if let Some(first) = document.advice.first() {
        verdict(&mut out, document, first, palette);
    }
    let full = format!("leandisk analyze --full {}", quoted(&printable(&document.path)));
    let _ = writeln!(out, "{}", palette.faint(&format!("more: {full}")));
    out
}

/// What the word means, wherever it stands.
pub(super) const RECLAIMABLE: &str = "held in whole blocks, not used by the guest";

fn heading(document: &AnalyzeDocument, palette: Palette) -> String {
    let text = format!(
        "{}: {}, {} virtual, {} on the host",
        printable(&document.path),
        document.format,
        human_bytes(document.virtual_bytes),
        human_bytes(document.image.allocated_bytes)
    );
    painted("", Some("  "), &text, |line| palette.strong(line))
}

fn volume_summary(volume: &VolumeAnalysis) -> String {
    let name = volume_groups::titled(volume.name.as_deref(), volume.filesystem.as_deref());
    let mut text = format!("{name}, {}", human_bytes(volume.size_bytes));
    if let Some(free) = volume.free_bytes {
        let _ = write!(text, ", {} free", human_bytes(free));
    }
    if !volume.shadow_copies.is_empty() {
        let _ = write!(text, ", {}", shadow_copies::counted(volume.shadow_copies.len()));
    }
    match (volume.fragmented_files, volume.files) {
        (_, Some(0)) if volume.directories == Some(0) => {}
        (_, Some(0)) => text.push_str(", no files"),
        (Some(fragmented), Some(files)) => {
            let files = counted(files, "file", "files");
            let _ = write!(text, ", {} of {files} fragmented", grouped(fragmented));
        }
        _ => {}
    }
    if let Some(state) = volume.state.filter(|state| *state != "clean") {
        let _ = write!(text, ", {state}");
    }
    if !volume.shadow_copies.is_empty() {
        let _ = write!(text, ", {}", shadow_copies::counted(volume.shadow_copies.len()));
    }
    text
}

fn verdict(out: &mut String, document: &AnalyzeDocument, first: &AdviceEntry, palette: Palette) {
    let others = document.advice.iter().skip(1).filter(|entry| entry.worth_it);
    let others: Vec<_> = others.map(|entry| entry.action).collect();
    let said = match (&first.command, &others[..]) {
        (None, _) => palette.good("nothing is worth doing"),
        (Some(_), []) => palette.warning(&format!("worth doing: {}", first.action)),
        (Some(_), others) => {
            palette.warning(&format!("worth doing: {}, then {}", first.action, others.join(", ")))
        }
    };
    let _ = writeln!(out, "{said}");
    if let Some(command) = &first.command {
        for (what, said) in [("gain", first.gains()), ("cost", first.costs())] {
            let _ = writeln!(out, "  {what:<9}{}", as_many_as_fit(&said, WIDTH - 11));
        }
        let _ = writeln!(out, "  {:<9}{}", "command", palette.strong(&printable(command)));
    }
    let mut lines = lines_of(&printable(&first.because), WIDTH - 11);
    if lines.len() > REASON_LINES_MAX {
        lines.truncate(REASON_LINES_MAX);
        let last = lines.pop().unwrap_or_default();
        lines.push(format!("{last} …"));
    }
    for (index, line) in lines.iter().enumerate() {
        let _ = writeln!(out, "  {:<9}{line}", if index == 0 { "because" } else { "" });
    }
}

/// The first of `said`, and the others as far as they fit.
fn as_many_as_fit(said: &[String], width: usize) -> String {
    let mut out = said.first().cloned().unwrap_or_else(|| "nothing".to_owned());
    for more in said.iter().skip(1) {
        if out.chars().count() + 2 + more.chars().count() > width {
            break;
        }
        let _ = write!(out, ", {more}");
    }
    out
}

/// The start of a line that is too long.
fn shortened(line: &str, width: usize) -> String {
    crate::escape::shortened(line, width)
}

/// The document as text, with a map of the disk as [`map_text`](crate::map_text) draws it, if there is one.
pub fn analyze_full_text(document: &AnalyzeDocument, map: Option<&str>, palette: Palette) -> String {
    let mut out = heading(document, palette) + "\n";
    for volume in &document.volumes {
        volume_text(&mut out, volume, palette);
    }
    if let Some(map) = map {
        let _ = writeln!(out, "{map}");
    }
    layers_text(&mut out, document, palette);
    zeros_text(&mut out, document, palette);
    worst_text(&mut out, document, palette);
    reading_text(&mut out, document, palette);
    advice_text(&mut out, document, palette);
    out
}

fn volume_text(out: &mut String, volume: &VolumeAnalysis, palette: Palette) {
    let name = volume_groups::titled(volume.name.as_deref(), volume.filesystem.as_deref());
    let mut line = name;
    if let Some(label) = volume.label.as_ref().filter(|label| !label.is_empty()) {
        let _ = write!(line, " \"{}\"", printable(label));
    }
    let _ = write!(line, ", {}, {}", human_bytes(volume.size_bytes), volume.state.unwrap_or("unknown"));
    out.push_str(&painted(&format!("volume {}  ", volume.index), Some("  "), &line, |line| {
        palette.strong(line)
    }));
    if let Some(reason) = &volume.reason {
        out.push_str(&painted("  ", None, &printable(reason), |line| palette.warning(line)));
    }
    if !volume.aligned {
        let text = "not aligned: its clusters straddle the image's blocks";
        let _ = writeln!(out, "  {}", palette.warning(text));
    }
    if let (Some(files), Some(directories), Some(fragmented), Some(fragments)) =
        (volume.files, volume.directories, volume.fragmented_files, volume.fragments)
        && files + directories > 0
    {
        let mut text = format!(
            "{}, {}",
            counted(files, "file", "files"),
            counted(directories, "directory", "directories")
        );
        if files > 0 {
            let (share, ratio) = (share(fragmented, files), ratio(fragments, files));
            let _ = write!(text, "; {} fragmented ({share}), {ratio} fragments a file", grouped(fragmented));
        }
        out.push_str(&wrapped("  ", None, &text));
    }
    if let (Some(free), Some(extents), Some(largest)) =
        (volume.free_bytes, volume.free_extents, volume.largest_free_extent_bytes)
    {
        let used = volume.size_bytes.saturating_sub(free);
        let shares =
            [Share { bytes: used, glyph: '█', color: "32" }, Share { bytes: free, glyph: '░', color: "2" }];
        let extents = counted(extents, "extent", "extents");
        let picture = bar(&shares, 24, palette);
        let _ = writeln!(out, "  {picture}  {} free in {extents},", human_bytes(free));
        let _ = writeln!(
            out,
            "  {:24}  the largest {} ({} of it)",
            "",
            human_bytes(largest),
            share(largest, free)
        );
    }
    shadow_copies::list_text(out, "  ", &volume.shadow_copies, palette);
    if volume.kept_for_shadow_copies_bytes > 0 {
        let kept = human_bytes(volume.kept_for_shadow_copies_bytes);
        let _ = writeln!(out, "    they need {kept} of what is free");
    }
    if volume.doubts > 0 {
        let first = volume.first_doubts.first().map(|doubt| printable(doubt)).unwrap_or_default();
        let text = format!("{} not understood, first {first}", grouped(volume.doubts));
        out.push_str(&painted("  ", None, &text, |line| palette.warning(line)));
    }
    out.push('\n');
}

fn layers_text(out: &mut String, document: &AnalyzeDocument, palette: Palette) {
    let guest: u64 = document.volumes.iter().filter_map(|volume| volume.fragments).sum();
    let below: u64 = document.volumes.iter().filter_map(|volume| volume.whole_stack_fragments).sum();
    let _ = writeln!(out, "{}", palette.strong("fragments in each layer"));
    let _ = writeln!(
        out,
        "  {:<12} {:>12}  {}",
        "guest",
        grouped(guest),
        palette.faint("contiguous runs of its files")
    );
    let image = format!(
        "runs in the image{}",
        match document.image.parents {
            0 => String::new(),
            1 => " and its parent".to_owned(),
            many => format!(" and its {many} parents"),
        }
    );
    let _ =
        writeln!(out, "  {:<12} {:>12}  {}", "image", grouped(document.image.runs), palette.faint(&image));
    if let Some(host) = &document.host {
        let name = host.filesystem.as_deref().map_or("the host's file system".into(), printable);
        let text = format!("extents of the image on {name}");
        let _ = writeln!(out, "  {:<12} {:>12}  {}", "host", grouped(host.extents), palette.faint(&text));
    }
    let text = "what reading every file from end to end meets";
    let _ = writeln!(out, "  {:<12} {:>12}  {}", "whole stack", grouped(below), palette.faint(text));
    let _ = writeln!(
        out,
        "\n{} {}  {}",
        palette.strong("reclaimable"),
        human_bytes(document.reclaimable_bytes),
        palette.faint(RECLAIMABLE)
    );
    if document.image.partly_used_units_bytes > 0 {
        let text = format!(
            "not counted: {} that are free, but in blocks of {} that are partly in use",
            human_bytes(document.image.partly_used_units_bytes),
            human_bytes(document.image.unit_bytes)
        );
        out.push_str(&painted("  ", None, &text, |line| palette.faint(line)));
    }
}

fn zeros_text(out: &mut String, document: &AnalyzeDocument, palette: Palette) {
    let Some(zero_bytes) = document.image.zero_bytes else { return };
    let text = format!("not counted: {} in use, but zeros throughout", human_bytes(zero_bytes));
    let _ = writeln!(out, "  {}", palette.faint(&text));
}

fn worst_text(out: &mut String, document: &AnalyzeDocument, palette: Palette) {
    if document.worst_files.is_empty() {
        let _ = writeln!(out, "\nno file is fragmented in any layer");
        return;
    }
    let _ = writeln!(
        out,
        "\n{}\n  {}",
        palette.strong("files in the most fragments"),
        palette.faint(&format!("{:>8} {:>8} {:>8} {:>9}  path", "guest", "image", "stack", "size"))
    );
    let many_volumes = document.volumes.len() > 1;
    for file in &document.worst_files {
        let volume = if many_volumes { format!("{}:", file.volume) } else { String::new() };
        let _ = writeln!(
            out,
            "  {:>8} {:>8} {:>8} {:>9}  {volume}{}",
            grouped(file.fragments),
            grouped(file.image_fragments),
            grouped(file.whole_stack_fragments),
            human_bytes(file.size_bytes),
            end_of(&printable(&file.path))
        );
    }
}

fn reading_text(out: &mut String, document: &AnalyzeDocument, palette: Palette) {
    let _ = writeln!(
        out,
        "\n{}\n  {}",
        palette.strong("reading every file from end to end, by the model"),
        palette.faint(&format!(
            "{:<10} {:>12} {:>12} {:>10} {:>10}",
            "storage", "requests", "at best", "time", "at best"
        ))
    );
    for ReadingCost { device, figures } in &document.reading {
        let _ = writeln!(out, "  {device:<10} {}", figures_text(figures));
    }
    if let Some(figures) = &document.trace {
        let _ =
            writeln!(out, "  {:<10} {}  {}", "trace", figures_text(figures), palette.faint(&document.device));
    }
    for doubt in &document.device_doubts {
        out.push_str(&painted("  ", None, &printable(doubt), |line| palette.warning(line)));
    }
}

fn figures_text(figures: &CostFigures) -> String {
    format!(
        "{:>12} {:>12} {:>10} {:>10}",
        grouped(figures.requests),
        grouped(figures.unfragmented_requests),
        seconds(figures.model_seconds),
        seconds(figures.unfragmented_model_seconds)
    )
}

fn advice_text(out: &mut String, document: &AnalyzeDocument, palette: Palette) {
    let _ =
        writeln!(out, "\n{} {}", palette.strong("advice"), palette.faint(&format!("on {}", document.device)));
    for entry in &document.advice {
        let (mark, action) = match (entry.worth_it, entry.refused) {
            (true, _) => ("→", palette.good(entry.action)),
            (false, true) => ("✗", palette.warning(entry.action)),
            (false, false) => ("·", palette.faint(entry.action)),
        };
        let _ = writeln!(out, "  {mark} {action}");
        out.push_str(&wrapped("      ", None, &printable(&entry.because)));
        if let Some(command) = entry.command.as_ref().filter(|_| entry.worth_it) {
            let _ = writeln!(out, "      {}", palette.strong(&printable(command)));
        }
    }
}

/// The end of a path is what tells most.
fn end_of(path: &str) -> String {
    let len = path.chars().count();
    if len <= PATH_WIDTH {
        return path.to_owned();
    }
    let end: String = path.chars().skip(len - PATH_WIDTH + 1).collect();
    format!("…{end}")
}

#[allow(clippy::cast_precision_loss)]
fn share(part: u64, whole: u64) -> String {
    percent(if whole == 0 { 0.0 } else { part as f64 / whole as f64 })
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn ratio(value: u64, of: u64) -> String {
    if of == 0 { "0".to_owned() } else { format!("{:.2}", value as f64 / of as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_nothing_are_nothing() {
        assert_eq!([share(1, 3), share(1, 0)], ["33 %", "0 %"]);
        assert_eq!([ratio(3, 2), ratio(0, 0)], ["1.50", "0"]);
    }

    #[test]
    fn long_paths_keep_their_end() {
        let path = format!("/{}/file.txt", "x".repeat(100));
        let short = end_of(&path);
        assert_eq!(short.chars().count(), PATH_WIDTH);
        assert!(short.starts_with('…') && short.ends_with("/file.txt"));
        assert_eq!(end_of("/a"), "/a");
    }
}
