//! The document on one screen.

use std::fmt::Write as _;

use super::{AnalyzeDocument, CostFigures, ReadingCost, VolumeAnalysis};
use crate::bar::{Share, bar};
use crate::shadow_copies;
use crate::text::{Palette, grouped, human_bytes, percent, printable, seconds};

const PATH_WIDTH: usize = 56;
const TEXT_WIDTH: usize = 88;

/// The document as text, with a map of the disk as [`map_text`](crate::map_text) draws it, if there is one.
pub fn analyze_text(document: &AnalyzeDocument, map: Option<&str>, palette: Palette) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}  {}, {} virtual, {} on the host\n",
        palette.strong(&printable(&document.path)),
        document.format,
        human_bytes(document.virtual_bytes),
        human_bytes(document.image.allocated_bytes)
    );
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
    let name = volume.filesystem.as_deref().map_or("unknown contents".into(), printable);
    let mut line = format!("volume {}  {}", volume.index, palette.strong(&name));
    if let Some(label) = volume.label.as_ref().filter(|label| !label.is_empty()) {
        let _ = write!(line, " \"{}\"", printable(label));
    }
    let _ = write!(line, ", {}", human_bytes(volume.size_bytes));
    if let Some(state) = volume.state {
        let state = if state == "clean" { palette.good(state) } else { palette.warning(state) };
        let _ = write!(line, ", {state}");
    }
    let _ = writeln!(out, "{line}");
    if let Some(reason) = &volume.reason {
        let _ = writeln!(out, "  {}", palette.warning(&printable(reason)));
    }
    if !volume.aligned {
        let _ = writeln!(
            out,
            "  {}",
            palette.warning("not aligned: its clusters straddle the container's units")
        );
    }
    if let (Some(files), Some(directories), Some(fragmented), Some(fragments)) =
        (volume.files, volume.directories, volume.fragmented_files, volume.fragments)
    {
        let _ = writeln!(
            out,
            "  {} files, {} directories; fragmented: {} of the files ({}), {} fragments a file",
            grouped(files),
            grouped(directories),
            grouped(fragmented),
            share(fragmented, files),
            ratio(fragments, files)
        );
    }
    if let (Some(free), Some(extents), Some(largest)) =
        (volume.free_bytes, volume.free_extents, volume.largest_free_extent_bytes)
    {
        let used = volume.size_bytes.saturating_sub(free);
        let shares =
            [Share { bytes: used, glyph: '█', color: "32" }, Share { bytes: free, glyph: '░', color: "2" }];
        let _ = writeln!(
            out,
            "  {}  {} free in {} extents, the largest {} ({} of it)",
            bar(&shares, 24, palette),
            human_bytes(free),
            grouped(extents),
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
        let _ = writeln!(out, "  {}", palette.warning(&text));
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
        "runs of the virtual disk in the image{}",
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
        palette.faint("held by the image, free or swap to the guest")
    );
    if document.image.partly_used_units_bytes > 0 {
        let text = format!(
            "and {} more in units of {} that are used in part",
            human_bytes(document.image.partly_used_units_bytes),
            human_bytes(document.image.unit_bytes)
        );
        let _ = writeln!(out, "  {}", palette.faint(&text));
    }
}

fn zeros_text(out: &mut String, document: &AnalyzeDocument, palette: Palette) {
    let Some(zero_bytes) = document.image.zero_bytes else { return };
    let text = format!("and {} used, but zeros throughout", human_bytes(zero_bytes));
    let _ = writeln!(out, "  {}", palette.faint(&text));
}

fn worst_text(out: &mut String, document: &AnalyzeDocument, palette: Palette) {
    if document.worst_files.is_empty() {
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
        let _ = writeln!(out, "  {}", palette.warning(&printable(doubt)));
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
        for line in wrapped(&printable(&entry.because), TEXT_WIDTH) {
            let _ = writeln!(out, "      {line}");
        }
    }
}

/// Lines of words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
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
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("extraordinary", 5), ["extraordinary"]);
        assert_eq!(wrapped("", 5), [""]);
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
