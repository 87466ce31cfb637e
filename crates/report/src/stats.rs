//! `leandisk stats`: what was measured of disks that are being served.

use std::fmt::Write as _;

use block::{Error, Result};
use serde::{Deserialize, Serialize};
use serve::monitor::{Histogram, Latencies, Snapshot, Split};
use serve::stats::{Corrupt, ExportStats};

use crate::bar::{Share, bar};
use crate::text::{Palette, grouped, human_bytes, painted, percent, printable, wrapped};

/// The document `leandisk.stats/1`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatsDocument {
    schema: String,
    exports: Vec<ExportStats>,
}

/// The name and version of the document.
const SCHEMA: &str = "leandisk.stats/1";
/// Counts of a recording that is read back are no larger, so that all of them can be added up.
const COUNT_MAX: u64 = 1 << 48;
/// Bins of latencies that a recording has at most; a server makes some thousands.
const LATENCY_BIN_COUNT_MAX: usize = 1 << 12;

impl StatsDocument {
    /// Of what a server told.
    pub fn new(exports: Vec<ExportStats>) -> Self {
        Self { schema: SCHEMA.to_owned(), exports }
    }

    /// A document that was kept. `Corrupt` if it is none, or holds what no server measures.
    pub fn from_json(text: &str) -> Result<Self> {
        let document: Self = serde_json::from_str(text)
            .map_err(|error| Error::corrupt(Corrupt::Document(error.to_string())))?;
        if document.schema != SCHEMA {
            return Err(Error::unsupported("recording").field("schema", document.schema, SCHEMA));
        }
        document.exports.iter().filter_map(|export| export.snapshot.as_ref()).try_for_each(check)?;
        Ok(document)
    }

    /// What was measured, disk by disk.
    pub fn exports(&self) -> &[ExportStats] {
        &self.exports
    }

    /// The same, without the document around it.
    pub fn into_exports(self) -> Vec<ExportStats> {
        self.exports
    }
}

/// Nothing that would overflow, and the bins that there are.
fn check(snapshot: &Snapshot) -> Result<()> {
    let model = Snapshot::default();
    let all = [&snapshot, &&model].map(|snapshot| {
        [
            &snapshot.io_length,
            &snapshot.seek_distance,
            &snapshot.seek_distance_last16,
            &snapshot.latency,
            &snapshot.interarrival,
            &snapshot.outstanding,
        ]
        .map(|split| [&split.all, &split.reads, &split.writes])
    });
    let [found, expected] = all;
    let has_bins =
        found.into_iter().flatten().zip(expected.into_iter().flatten()).all(|(found, expected)| {
            found.limits == expected.limits && found.counts.len() == expected.counts.len()
        });
    let latencies = [&snapshot.read_latency, &snapshot.write_latency];
    let counts = found.into_iter().flatten().flat_map(|histogram| &histogram.counts);
    let fine = latencies.iter().flat_map(|latencies| latencies.bins.iter().map(|(_, count)| count));
    let is_small = counts.chain(fine).all(|count| *count <= COUNT_MAX)
        && latencies.iter().all(|latencies| latencies.bins.len() <= LATENCY_BIN_COUNT_MAX);
    match has_bins && is_small {
        true => Ok(()),
        false => Err(Error::corrupt(Corrupt::Bins)),
    }
}

/// Characters of the longest bar.
const BAR_WIDTH: u64 = 30;

/// The document in words, numbers and bars.
pub fn stats_text(document: &StatsDocument, palette: Palette) -> String {
    let mut out = String::new();
    for export in &document.exports {
        let read_only = if export.is_read_only { ", read-only" } else { "" };
        let heading = format!("{} ({}{read_only})", printable(&export.name), human_bytes(export.len_bytes));
        out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
        if let Some(failure) = &export.failure {
            out.push_str(&painted("  ", None, &printable(failure), |line| palette.warning(line)));
        }
        match &export.snapshot {
            Some(snapshot) => push_snapshot(&mut out, snapshot, palette),
            None => out.push_str("  not measured\n"),
        }
    }
    out
}

/// The columns of [`watch_lines`].
pub fn watch_heading(palette: Palette) -> String {
    let line = format!(
        "{:>9}  {:>10}  {:>9}  {:>11}  {:>9}  {:>9}  {:>10}  export",
        "reads/s", "read MiB/s", "writes/s", "write MiB/s", "p50 us", "p99 us", "sequential"
    );
    palette.strong(&line) + "\n"
}

/// A line for each export: what was asked of it in the time that its snapshot covers.
pub fn watch_lines(document: &StatsDocument) -> String {
    let mut out = String::new();
    for export in &document.exports {
        let Some(snapshot) = &export.snapshot else { continue };
        // Rates to look at: the places that a float lacks do not matter.
        #[allow(clippy::cast_precision_loss)]
        let rate = |count: u64| count as f64 * 1e9 / snapshot.elapsed_ns.max(1) as f64;
        let mib = |bytes: u64| rate(bytes) / f64::from(1 << 20);
        let (counts, latency) = (&snapshot.logical, snapshot.all_latency());
        let tail = |share| latency.quantile_ns(share).map_or("-".into(), |ns| (ns / 1000).to_string());
        let sequential = snapshot.sequential_share().map_or("-".into(), percent);
        let _ = writeln!(
            out,
            "{:>9.0}  {:>10.1}  {:>9.0}  {:>11.1}  {:>9}  {:>9}  {:>10}  {}",
            rate(counts.reads),
            mib(counts.read_bytes),
            rate(counts.writes),
            mib(counts.written_bytes),
            tail(0.5),
            tail(0.99),
            sequential,
            printable(&export.name)
        );
    }
    out
}

fn push_snapshot(out: &mut String, snapshot: &Snapshot, palette: Palette) {
    let counts = &snapshot.logical;
    let _ = writeln!(out, "  measured for  {} s", snapshot.elapsed_ns / 1_000_000_000);
    let lines = [
        ("reads", counts.reads, counts.read_bytes, &snapshot.read_latency),
        ("writes", counts.writes, counts.written_bytes, &snapshot.write_latency),
    ];
    for (name, count, bytes, latencies) in lines {
        let text = format!("{}, {}{}", grouped(count), human_bytes(bytes), tails(latencies));
        out.push_str(&wrapped(&format!("  {name:<12}  "), None, &text));
    }
    let _ = writeln!(
        out,
        "  others        {} flushes, {} zeroed or discarded, {} failed",
        grouped(snapshot.flushes),
        grouped(snapshot.zeroed),
        grouped(snapshot.failed)
    );
    if let Some(share) = snapshot.sequential_share() {
        let _ = writeln!(out, "  sequential    {}", percent(share));
    }
    let splits = [
        ("length, bytes", &snapshot.io_length),
        ("latency, microseconds", &snapshot.latency),
        ("outstanding", &snapshot.outstanding),
        ("between arrivals, microseconds", &snapshot.interarrival),
        ("distance to the I/O before, blocks of 512", &snapshot.seek_distance),
        ("distance to the closest of 16, blocks of 512", &snapshot.seek_distance_last16),
    ];
    for (title, split) in splits {
        push_split(out, title, split, palette);
    }
}

/// What most I/Os did not exceed, and what few did.
fn tails(latencies: &Latencies) -> String {
    let quantile = |share| latencies.quantile_ns(share).map(|ns| ns / 1000);
    match (quantile(0.5), quantile(0.99), quantile(0.999)) {
        (Some(half), Some(most), Some(nearly_all)) => {
            format!("; p50 {half} us, p99 {most} us, p99.9 {nearly_all} us")
        }
        _ => String::new(),
    }
}

/// A histogram as a line for each bin from the first that holds something to the last.
fn push_split(out: &mut String, title: &str, split: &Split, palette: Palette) {
    let counts = &split.all.counts;
    let (Some(first), Some(last), Some(max)) = (
        counts.iter().position(|count| *count > 0),
        counts.iter().rposition(|count| *count > 0),
        counts.iter().max(),
    ) else {
        return;
    };
    let columns = format!("{:>10} {:>10} {:>10}", "all", "reads", "writes");
    let _ = writeln!(out, "\n  {}", palette.strong(title));
    let _ = writeln!(out, "  {:>11} {}", "", palette.faint(&columns));
    for index in first..=last {
        let of = |histogram: &Histogram| grouped(histogram.counts.get(index).copied().unwrap_or(0));
        let bytes = counts.get(index).copied().unwrap_or(0);
        let width = u128::from(bytes) * u128::from(BAR_WIDTH) / u128::from(*max);
        let width = usize::try_from(width).unwrap_or(0).max(usize::from(bytes > 0));
        let bar = bar(&[Share { bytes, glyph: '█', color: "36" }], width, palette);
        let line = format!(
            "  {:>11} {:>10} {:>10} {:>10}  {bar}",
            limit(&split.all, index),
            of(&split.all),
            of(&split.reads),
            of(&split.writes)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

pub(crate) fn limit(histogram: &Histogram, index: usize) -> String {
    match (histogram.limits.get(index), histogram.limits.last()) {
        (Some(limit), _) => format!("<= {limit}"),
        (None, Some(last)) => format!("> {last}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_read_back_and_a_broken_one_is_not() {
        let export = ExportStats {
            name: "disk".into(),
            len_bytes: 1,
            is_read_only: false,
            failure: None,
            snapshot: Some(Snapshot::default()),
        };
        let document = StatsDocument::new(vec![export]);
        let text = crate::to_json(&document);
        assert_eq!(StatsDocument::from_json(&text).unwrap().exports(), document.exports());
        let error = |text: &str| StatsDocument::from_json(text).err().unwrap();
        assert!(matches!(error("{}").cause(), Some(Corrupt::Document(_))));
        assert_eq!(error(&text.replace("stats/1", "stats/9")).kind(), block::ErrorKind::Unsupported);
        let counts = text.replacen("        0", &format!("        {}", u64::MAX), 40);
        assert_eq!(error(&counts).cause(), Some(&Corrupt::Bins));
    }

    #[test]
    fn bars_show_what_bins_hold() {
        let mut snapshot = Snapshot::default();
        snapshot.io_length.all.counts[4] = 40;
        snapshot.io_length.all.counts[17] = 1;
        snapshot.io_length.writes.counts[4] = 39;
        snapshot.logical.writes = 39;
        let export = ExportStats {
            name: "a\x1b[2J".into(),
            len_bytes: 1 << 20,
            is_read_only: true,
            failure: None,
            snapshot: Some(snapshot),
        };
        let text = stats_text(&StatsDocument::new(vec![export]), Palette { colors: false });
        assert!(text.starts_with("a\\u{1b}[2J (1 MiB, read-only)\n"), "{text}");
        let words = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words("<= 4096"), ["<=", "4096", "40", "0", "39", &"█".repeat(30)]);
        assert_eq!(words("> 524288"), [">", "524288", "1", "0", "0", "█"]);
        assert!(!text.contains("<= 2048"), "bins before the first are left out");
    }
}
