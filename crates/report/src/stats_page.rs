//! What was measured as a page: one recording, or two beside each other.
//!
//! Two recordings are seldom of the same length, so histograms are drawn as shares of each one's own I/Os, and figures that
//! grow with time are given by the second.

use serve::monitor::{Histogram, Latencies, Snapshot, Split};
use serve::stats::ExportStats;

use crate::html::{BarPair, Column, PairChart, PairPage, PairSection, Recording, Table, pair_html};
use crate::stats::StatsDocument;
use crate::text::{grouped, human_bytes, percent, printable};

/// Where there is nothing to say.
const NONE: &str = "–";

/// The page of `after`, compared with `before` if there is one. Each comes with the name of where it is from.
pub fn stats_page(before: Option<(&str, &StatsDocument)>, after: (&str, &StatsDocument)) -> String {
    let title = match before {
        None => format!("I/O of {}", after.0),
        Some((name, _)) => format!("I/O of {name} and of {}", after.0),
    };
    let exports = after.1.exports().iter();
    let sections = exports.map(|export| {
        let earlier = before.and_then(|(_, document)| partner(document, after.1, export));
        section(earlier, export)
    });
    let recording = |(name, document): (&str, &StatsDocument)| Recording {
        name: printable(name),
        about: document.exports().iter().map(covers).collect::<Vec<_>>().join(", "),
    };
    pair_html(&PairPage {
        title,
        before: before.map(recording),
        after: recording(after),
        sections: sections.collect(),
        colophon: format!(
            "leandisk {} stats: the bins are those of vscsiStats. Bars are shares of a recording's own I/Os.",
            env!("CARGO_PKG_VERSION")
        ),
    })
}

/// The disk of `before` that `export` is compared with: that of the same name, or the only one with the only one.
fn partner<'a>(
    before: &'a StatsDocument,
    after: &StatsDocument,
    export: &ExportStats,
) -> Option<&'a ExportStats> {
    let only = match (before.exports(), after.exports()) {
        ([one], [_]) => Some(one),
        _ => None,
    };
    before.exports().iter().find(|other| other.name == export.name).or(only)
}

fn covers(export: &ExportStats) -> String {
    match &export.snapshot {
        Some(snapshot) => format!("{} over {}", printable(&export.name), duration(snapshot)),
        None => format!("{} not measured", printable(&export.name)),
    }
}

fn duration(snapshot: &Snapshot) -> String {
    let seconds = snapshot.elapsed_ns / 1_000_000_000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn section(before: Option<&ExportStats>, after: &ExportStats) -> PairSection {
    let earlier = before.and_then(|export| export.snapshot.as_ref());
    let later = after.snapshot.as_ref();
    let mut notes = Vec::new();
    for export in before.into_iter().chain([after]) {
        notes.extend(export.failure.as_deref().map(printable));
    }
    if later.is_none() {
        notes.push("not measured".to_owned());
    }
    PairSection {
        title: printable(&after.name),
        about: human_bytes(after.len_bytes),
        verdict: earlier.zip(later).map(|(before, after)| verdict(before, after)).unwrap_or_default(),
        figures: later.map(|after| figures(earlier, after)),
        charts: later.map(|after| charts(earlier, after)).unwrap_or_default(),
        notes,
    }
}

/// What changed most to those who look for one sentence.
fn verdict(before: &Snapshot, after: &Snapshot) -> String {
    let median = |snapshot: &Snapshot| snapshot.all_latency().quantile_ns(0.5);
    let mut said = Vec::new();
    if let (Some(then), Some(now)) = (median(before), median(after)) {
        said.push(format!("Half of the I/Os took up to {}, before {}", time(now), time(then)));
    }
    if let (Some(then), Some(now)) = (before.split_ratio(), after.split_ratio()) {
        said.push(format!("each was {now:.2} physical ones, before {then:.2}"));
    }
    if said.is_empty() { String::new() } else { said.join("; ") + "." }
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{} µs", grouped(ns / 1000)),
        _ => format!("{} ms", grouped(ns / 1_000_000)),
    }
}

/// One line of the table: a figure as text, and as a number where a change can be told.
struct Figure {
    name: &'static str,
    of: fn(&Snapshot) -> Option<(f64, String)>,
}

#[allow(clippy::cast_precision_loss)] // Figures for people.
fn number(value: u64) -> f64 {
    value as f64
}

fn count(value: u64) -> Option<(f64, String)> {
    Some((number(value), grouped(value)))
}

/// A count by the second.
fn rate(value: u64, snapshot: &Snapshot) -> Option<f64> {
    (snapshot.elapsed_ns > 0).then(|| number(value) * 1e9 / number(snapshot.elapsed_ns))
}

fn operations_rate(value: u64, snapshot: &Snapshot) -> Option<(f64, String)> {
    rate(value, snapshot).map(|rate| (rate, format!("{rate:.1}")))
}

fn bytes_rate(value: u64, snapshot: &Snapshot) -> Option<(f64, String)> {
    rate(value, snapshot).map(|rate| (rate, format!("{:.2}", rate / number(1 << 20))))
}

fn quantile(latencies: &Latencies, share: f64) -> Option<(f64, String)> {
    latencies.quantile_ns(share).map(|ns| (number(ns), time(ns)))
}

/// The bin that holds the median. Bins are too wide for a change to be told.
fn median(histogram: &Histogram) -> Option<(f64, String)> {
    let half = histogram.count().div_ceil(2).max(1);
    let mut seen = 0;
    let index = histogram.counts.iter().position(|count| {
        seen += count;
        seen >= half
    })?;
    Some((f64::NAN, limit(histogram, index)))
}

/// What a bin holds, in words.
fn limit(histogram: &Histogram, index: usize) -> String {
    crate::stats::limit(histogram, index).replace("<=", "≤")
}

const FIGURES: &[Figure] = &[
    Figure { name: "reads", of: |s| count(s.logical.reads) },
    Figure { name: "writes", of: |s| count(s.logical.writes) },
    Figure { name: "reads a second", of: |s| operations_rate(s.logical.reads, s) },
    Figure { name: "writes a second", of: |s| operations_rate(s.logical.writes, s) },
    Figure { name: "MiB read a second", of: |s| bytes_rate(s.logical.read_bytes, s) },
    Figure { name: "MiB written a second", of: |s| bytes_rate(s.logical.written_bytes, s) },
    Figure { name: "read latency, median", of: |s| quantile(&s.read_latency, 0.5) },
    Figure { name: "read latency, 99 % up to", of: |s| quantile(&s.read_latency, 0.99) },
    Figure { name: "read latency, 99.9 % up to", of: |s| quantile(&s.read_latency, 0.999) },
    Figure { name: "write latency, median", of: |s| quantile(&s.write_latency, 0.5) },
    Figure { name: "write latency, 99 % up to", of: |s| quantile(&s.write_latency, 0.99) },
    Figure { name: "write latency, 99.9 % up to", of: |s| quantile(&s.write_latency, 0.999) },
    Figure { name: "length, median, bytes", of: |s| median(&s.io_length.all) },
    Figure { name: "outstanding, median", of: |s| median(&s.outstanding.all) },
    Figure { name: "distance to the I/O before, median, blocks", of: |s| median(&s.seek_distance.all) },
    Figure { name: "sequential", of: |s| s.sequential_share().map(|share| (share, percent(share))) },
    Figure {
        name: "split ratio: physical I/Os for each",
        of: |s| s.split_ratio().map(|ratio| (ratio, format!("{ratio:.2}"))),
    },
    Figure {
        name: "KiB of each physical I/O",
        of: |s| s.bytes_per_transfer().map(|bytes| (bytes, format!("{:.1}", bytes / 1024.0))),
    },
    Figure { name: "fragments prevented", of: |s| count(s.fragments_prevented) },
    Figure { name: "flushes", of: |s| count(s.flushes) },
    Figure { name: "zeroed or discarded", of: |s| count(s.zeroed) },
    Figure { name: "failed", of: |s| count(s.failed) },
];

fn figures(before: Option<&Snapshot>, after: &Snapshot) -> Table {
    let mut columns = vec![Column::text("figure")];
    let names: &[&str] = if before.is_some() { &["before", "after", "change"] } else { &["value"] };
    columns.extend(names.iter().map(|name| Column::number(name)));
    let row = |figure: &Figure| {
        let said =
            |found: &Option<(f64, String)>| found.as_ref().map_or(NONE.to_owned(), |found| found.1.clone());
        let now = (figure.of)(after);
        let then = before.map(|before| (figure.of)(before));
        // What never happened is left out.
        let is_there = |found: &Option<(f64, String)>| found.as_ref().is_some_and(|(value, _)| *value != 0.0);
        if !is_there(&now) && !then.as_ref().is_some_and(is_there) {
            return None;
        }
        let mut row = vec![figure.name.to_owned()];
        match then {
            Some(then) => row.extend([said(&then), said(&now), change(then, now)]),
            None => row.push(said(&now)),
        }
        Some(row)
    };
    Table {
        title: "Figures".to_owned(),
        columns,
        rows: FIGURES.iter().filter_map(row).collect(),
        remark: None,
        empty: Some("No I/O was measured.".into()),
    }
}

fn change(then: Option<(f64, String)>, now: Option<(f64, String)>) -> String {
    let (Some((then, _)), Some((now, _))) = (then, now) else { return NONE.to_owned() };
    if !then.is_finite() || !now.is_finite() || then <= 0.0 {
        return NONE.to_owned();
    }
    let share = (now - then) / then * 100.0;
    match share {
        -0.5..0.5 => "0 %".to_owned(),
        1000.0.. => format!("{:.0} times", now / then),
        _ => format!("{}{:.0} %", if share < 0.0 { "−" } else { "+" }, share.abs()),
    }
}

type SplitOf = fn(&Snapshot) -> &Split;
type KindOf = fn(&Split) -> &Histogram;

/// A chart for each histogram that has something.
pub(crate) fn charts(before: Option<&Snapshot>, after: &Snapshot) -> Vec<PairChart> {
    let of: [(&str, SplitOf); 6] = [
        ("Latency, microseconds", |s| &s.latency),
        ("Length, bytes", |s| &s.io_length),
        ("Outstanding", |s| &s.outstanding),
        ("Between arrivals, microseconds", |s| &s.interarrival),
        ("Distance to the I/O before, blocks of 512", |s| &s.seek_distance),
        ("Distance to the closest of 16, blocks of 512", |s| &s.seek_distance_last16),
    ];
    let kinds: [(&str, KindOf); 3] =
        [("all", |split| &split.all), ("reads", |split| &split.reads), ("writes", |split| &split.writes)];
    let mut charts = Vec::new();
    for (name, split) in of {
        for (kind, histogram) in kinds {
            let before = before.map(|before| histogram(split(before)));
            charts.extend(chart(format!("{name}: {kind}"), before, histogram(split(after))));
        }
    }
    charts
}

/// A pair of bars for each bin from the first that holds something to the last. `None` if none does.
fn chart(title: String, before: Option<&Histogram>, after: &Histogram) -> Option<PairChart> {
    // Other bins could not stand beside these.
    let before = before.filter(|before| before.limits == after.limits);
    let count = |histogram: &Histogram, index: usize| histogram.counts.get(index).copied().unwrap_or(0);
    let is_used =
        |index: &usize| count(after, *index) > 0 || before.is_some_and(|before| count(before, *index) > 0);
    let first = (0..after.counts.len()).find(is_used)?;
    let last = (0..after.counts.len()).rfind(is_used)?;
    let share = |histogram: &Histogram, index: usize| {
        let all = histogram.count();
        if all == 0 { 0.0 } else { number(count(histogram, index)) / number(all) }
    };
    let bar = |index: usize| BarPair {
        label: limit(after, index),
        before: before.map(|before| share(before, index)),
        after: share(after, index),
    };
    Some(PairChart { title, bars: (first..=last).map(bar).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, quick: u64, slow: u64) -> ExportStats {
        let mut snapshot = Snapshot { elapsed_ns: 60_000_000_000, ..Snapshot::default() };
        snapshot.latency.all.counts[3] = quick;
        snapshot.latency.all.counts[5] = slow;
        snapshot.io_length.all.counts[4] = quick + slow;
        snapshot.logical.writes = quick + slow;
        snapshot.physical.writes = (quick + slow) * 2;
        snapshot.write_latency.bins = vec![(400_000, quick), (4_000_000, slow)];
        ExportStats {
            name: name.into(),
            len_bytes: 1 << 30,
            is_read_only: false,
            failure: None,
            snapshot: Some(snapshot),
        }
    }

    #[test]
    fn two_recordings_stand_beside_each_other() {
        let before = StatsDocument::new(vec![export("disk", 10, 90)]);
        let after = StatsDocument::new(vec![export("disk", 300, 100)]);
        let page = stats_page(Some(("a.json", &before)), ("b.json", &after));
        let row = |cells: &[&str]| {
            let cells = cells.iter().enumerate().map(|(index, cell)| match index {
                0 => format!("<td>{cell}</td>"),
                _ => format!("<td class=\"number\">{cell}</td>"),
            });
            format!("<tr>{}</tr>", cells.collect::<String>())
        };
        for expected in [
            row(&["writes", "100", "400", "+300 %"]),
            row(&["write latency, median", "4,000 µs", "400 µs", "−90 %"]),
            row(&["split ratio: physical I/Os for each", "2.00", "2.00", "0 %"]),
            row(&["length, median, bytes", "≤ 4096", "≤ 4096", NONE]),
        ] {
            assert!(page.contains(&expected), "{expected} in {page}");
        }
        assert!(page.contains("Half of the I/Os took up to 400 µs, before 4,000 µs"), "{page}");
        assert!(page.contains(">90.0 %<") && page.contains(">75.0 %<"), "shares of the bars");
    }

    #[test]
    fn one_recording_stands_alone_and_names_are_text() {
        let page = stats_page(None, ("x", &StatsDocument::new(vec![export("<i>\u{202e}", 1, 0)])));
        assert!(page.contains("&lt;i&gt;\\u{202e}") && !page.contains("<i>"), "{page}");
        assert!(!page.contains("before</th>"));
    }

    #[test]
    fn disks_are_matched_by_their_names() {
        let before = StatsDocument::new(vec![export("a", 1, 0), export("b", 0, 1)]);
        let after = StatsDocument::new(vec![export("b", 1, 0), export("c", 1, 0)]);
        let partner = |index: usize| partner(&before, &after, &after.exports()[index]);
        assert_eq!(partner(0).map(|export| export.name.as_str()), Some("b"));
        assert!(partner(1).is_none());
    }
}
