//! The document on one screen.

use std::fmt::Write as _;

use super::{AnalyzeDocument, CostFigures, ReadingCost, VolumeAnalysis};
use crate::bar::{Share, bar};
use crate::text::{Palette, human_bytes, printable};

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
            count(files),
            count(directories),
            count(fragmented),
            percent(fragmented, files),
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
            count(extents),
            human_bytes(largest),
            percent(largest, free)
        );
    }
    if volume.doubts > 0 {
        let first = volume.first_doubts.first().map(|doubt| printable(doubt)).unwrap_or_default();
        let text = format!("{} not understood, first {first}", count(volume.doubts));
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
        count(guest),
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
    let _ = writeln!(out, "  {:<12} {:>12}  {}", "image", count(document.image.runs), palette.faint(&image));
    if let Some(host) = &document.host {
        let name = host.filesystem.as_deref().map_or("the host's file system".into(), printable);
        let text = format!("extents of the image on {name}");
        let _ = writeln!(out, "  {:<12} {:>12}  {}", "host", count(host.extents), palette.faint(&text));
    }
    let text = "what reading every file from end to end meets";
    let _ = writeln!(out, "  {:<12} {:>12}  {}", "whole stack", count(below), palette.faint(text));
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
            count(file.fragments),
            count(file.image_fragments),
            count(file.whole_stack_fragments),
            human_bytes(file.size_bytes),
            shortened(&printable(&file.path))
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
        count(figures.requests),
        count(figures.unfragmented_requests),
        seconds(figures.model_seconds),
        seconds(figures.unfragmented_model_seconds)
    )
}

pub(super) fn seconds(value: f64) -> String {
    if value < 0.001 {
        format!("{:.0} µs", value * 1e6)
    } else if value < 1.0 {
        format!("{:.0} ms", value * 1e3)
    } else if value < 100.0 {
        format!("{value:.1} s")
    } else {
        format!("{:.0} min", value / 60.0)
    }
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
fn shortened(path: &str) -> String {
    let len = path.chars().count();
    if len <= PATH_WIDTH {
        return path.to_owned();
    }
    let end: String = path.chars().skip(len - PATH_WIDTH + 1).collect();
    format!("…{end}")
}

/// A count with its thousands apart.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "0 %".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn ratio(value: u64, of: u64) -> String {
    if of == 0 { "0".to_owned() } else { format!("{:.2}", value as f64 / of as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 0), "0 %");
        assert_eq!(ratio(3, 2), "1.50");
    }

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("extraordinary", 5), ["extraordinary"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn times_are_easy_to_read() {
        assert_eq!([0.000_5, 0.25, 12.34, 600.0].map(seconds), ["500 µs", "250 ms", "12.3 s", "10 min"]);
    }

    #[test]
    fn long_paths_keep_their_end() {
        let path = format!("/{}/file.txt", "x".repeat(100));
        let short = shortened(&path);
        assert_eq!(short.chars().count(), PATH_WIDTH);
        assert!(short.starts_with('…') && short.ends_with("/file.txt"));
        assert_eq!(shortened("/a"), "/a");
    }
}
