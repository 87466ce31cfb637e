//! `leandisk guard report`: what guards of a machine did, by day.

use std::fmt::Write as _;

use serde::Serialize;

use crate::html::{Column, DayBar, DayChart, ReportPage, Table, report_html};
use crate::listing::moment;
use crate::text::{Palette, grouped, human_bytes, printable};

/// The name and version of the document.
const SCHEMA: &str = "leandisk.guard-report/1";
/// Where there is nothing to say.
const NONE: &str = "–";

/// The document `leandisk.guard-report/1`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GuardReport {
    schema: &'static str,
    /// Whether a guard runs now. What it did in the last minute may not be in the history yet.
    pub running: bool,
    /// Whether there is a history at all.
    pub has_history: bool,
    /// The days that were asked for, from the first to the last one; days without a guard are among them, with zeros.
    pub days: Vec<GuardDay>,
    /// What was done on each file system in these days.
    pub filesystems: Vec<GuardedTotal>,
    /// All of it.
    pub total: GuardTotal,
}

/// What was done in some time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct GuardTotal {
    /// Fragments that did not form: an estimate.
    pub prevented: u64,
    /// Fragments that are no more.
    pub repaired: u64,
    /// Bytes that moved for that.
    pub moved_bytes: u64,
    /// Bytes that moved so that free space is in fewer pieces.
    pub space_moved_bytes: u64,
    /// How long work waited for others.
    pub asleep_seconds: f64,
}

/// One day.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct GuardDay {
    /// Such as `2026-11-25`, in UTC.
    pub day: String,
    /// What was done.
    #[serde(flatten)]
    pub total: GuardTotal,
    /// Why work waited, and how long, the longest first.
    pub asleep: Vec<Asleep>,
    /// What was done for free space, by file system, the most first.
    pub space: Vec<GuardedSpace>,
    /// Requests of the storage below what was guarded, and how long they took, as the kernel counts them while a guard runs: everybody's,
    /// the guard's own among them.
    pub reads: u64,
    /// How long a read took on average, in milliseconds; `None` if there was none.
    pub read_ms: Option<f64>,
    /// The same of writes.
    pub writes: u64,
    /// The same of writes.
    pub write_ms: Option<f64>,
}

/// How long work waited for a reason.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Asleep {
    /// In words.
    pub reason: String,
    /// How long.
    pub seconds: f64,
}

/// What was done for the free space of a file system on a day.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GuardedSpace {
    /// Where it was found last.
    pub path: String,
    /// Such as `ext4`.
    pub filesystem: String,
    /// Bytes that moved for it.
    pub space_moved_bytes: u64,
    /// Stretches that became one free extent by that.
    pub space_stretches: u64,
    /// The largest free extent before the first of them; `None` if there was none.
    pub largest_free_before_bytes: Option<u64>,
    /// The largest free extent right after the last of them; `None` if there was none.
    pub largest_free_after_bytes: Option<u64>,
}

/// What was done on a file system.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GuardedTotal {
    /// Where it was found last.
    pub path: String,
    /// Such as `ext4`.
    pub filesystem: String,
    /// Fragments that did not form: an estimate.
    pub prevented: u64,
    /// Fragments that are no more.
    pub repaired: u64,
    /// Bytes that moved for that.
    pub moved_bytes: u64,
}

impl GuardTotal {
    /// With what another time had.
    pub fn plus(self, other: Self) -> Self {
        Self {
            prevented: self.prevented.saturating_add(other.prevented),
            repaired: self.repaired.saturating_add(other.repaired),
            moved_bytes: self.moved_bytes.saturating_add(other.moved_bytes),
            space_moved_bytes: self.space_moved_bytes.saturating_add(other.space_moved_bytes),
            asleep_seconds: self.asleep_seconds + other.asleep_seconds,
        }
    }

    /// Of the fragments that formed or would have, those that did not, in hundredths.
    fn prevented_percent(self) -> Option<f64> {
        let all = self.prevented.saturating_add(self.repaired);
        #[allow(clippy::cast_precision_loss)]
        (all > 0).then(|| self.prevented as f64 * 100.0 / all as f64)
    }
}

impl GuardReport {
    /// Of these days.
    pub fn new(
        running: bool,
        has_history: bool,
        days: Vec<GuardDay>,
        filesystems: Vec<GuardedTotal>,
    ) -> Self {
        let total = days.iter().fold(GuardTotal::default(), |sum, day| sum.plus(day.total));
        Self { schema: SCHEMA, running, has_history, days, filesystems, total }
    }

    fn verdict(&self) -> String {
        let GuardTotal { prevented, repaired, .. } = self.total;
        match (self.has_history, self.total.prevented_percent()) {
            (false, _) => {
                "There is no history here: no guard ran with this state folder, or only a dry run.".to_owned()
            }
            (true, None) => format!("In {} no fragment was prevented or repaired.", self.span()),
            (true, Some(percent)) => format!(
                "In {} {} fragments did not form, and {} were repaired: {percent:.1} % of all were prevented.",
                self.span(),
                grouped(prevented),
                grouped(repaired)
            ),
        }
    }

    fn span(&self) -> String {
        match self.days.len() {
            1 => "one day".to_owned(),
            count => format!("{count} days"),
        }
    }

    /// What was done for free space, the latest day last.
    fn space(&self) -> impl DoubleEndedIterator<Item = (&str, &GuardedSpace)> {
        self.days.iter().flat_map(|day| day.space.iter().map(|space| (day.day.as_str(), space)))
    }

    /// Why work waited in all days, the longest first.
    fn asleep(&self) -> Vec<Asleep> {
        let mut sums: Vec<Asleep> = Vec::new();
        for one in self.days.iter().flat_map(|day| &day.asleep) {
            match sums.iter_mut().find(|sum| sum.reason == one.reason) {
                Some(sum) => sum.seconds += one.seconds,
                None => sums.push(one.clone()),
            }
        }
        sums.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
        sums
    }
}

impl GuardedSpace {
    fn text(&self) -> String {
        let moved = format!("{} moved for free space", human_bytes(self.space_moved_bytes));
        match (self.largest_free_before_bytes, self.largest_free_after_bytes) {
            (Some(before), Some(after)) => {
                format!(
                    "{moved}, largest free extent {} before, {} after",
                    human_bytes(before),
                    human_bytes(after)
                )
            }
            _ => moved,
        }
    }
}

/// A day since 1970 as documents have it.
pub fn guard_day(day: i64) -> String {
    moment(day.saturating_mul(86_400)).split(' ').next().unwrap_or_default().to_owned()
}

/// The report for people.
pub fn guard_report_text(report: &GuardReport, palette: Palette) -> String {
    let mut text = format!("{}\n", palette.strong(&report.verdict()));
    if !report.has_history {
        return text;
    }
    let _ = writeln!(text, "\nday         prevented    repaired       moved      asleep");
    for day in report.days.iter().filter(|day| day.total != GuardTotal::default()) {
        let GuardTotal { prevented, repaired, moved_bytes, asleep_seconds, .. } = day.total;
        let _ = writeln!(
            text,
            "{}  {:>9}  {:>10}  {:>10}  {:>10}",
            printable(&day.day),
            grouped(prevented),
            grouped(repaired),
            human_bytes(moved_bytes),
            duration(asleep_seconds)
        );
    }
    for (at, (day, space)) in report.space().enumerate() {
        let gap = if at == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{gap}{}, {}: {}", printable(day), printable(&space.path), space.text());
    }
    for Asleep { reason, seconds } in report.asleep() {
        let _ = writeln!(text, "\nasleep {}: {}", duration(seconds), printable(&reason));
    }
    text
}

fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 0.05 => NONE.to_owned(),
        _ if seconds < 120.0 => format!("{seconds:.1} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

fn milliseconds(mean: Option<f64>) -> String {
    mean.map_or(NONE.to_owned(), |mean| format!("{mean:.2} ms"))
}

/// The report as a page.
pub fn guard_report_page(report: &GuardReport) -> String {
    let has_any = report.has_history;
    report_html(
        &ReportPage {
            title: "Fragments prevented and repaired".to_owned(),
            about: if report.running { "A guard runs." } else { "No guard runs." }.to_owned(),
            verdict: report.verdict(),
            summary: if has_any { summary(report) } else { Vec::new() },
            days: has_any.then(|| chart(report)).into_iter().collect(),
            layers: if has_any { tables(report) } else { Vec::new() },
            notes: notes(report),
            colophon: format!("leandisk {} guard report", env!("CARGO_PKG_VERSION")),
            ..ReportPage::default()
        },
        None,
    )
}

fn summary(report: &GuardReport) -> Vec<(String, String)> {
    let GuardTotal { prevented, repaired, moved_bytes, space_moved_bytes, asleep_seconds } = report.total;
    let of = |what: &str, said: String| (what.to_owned(), said);
    vec![
        of("Fragments prevented", grouped(prevented)),
        of("Fragments repaired", grouped(repaired)),
        of("Moved for that", human_bytes(moved_bytes)),
        of("Moved for free space", human_bytes(space_moved_bytes)),
        of("Asleep, for others' sake", duration(asleep_seconds)),
    ]
}

fn chart(report: &GuardReport) -> DayChart {
    let bar = |day: &GuardDay| DayBar {
        label: day.day.clone(),
        prevented: day.total.prevented,
        repaired: day.total.repaired,
    };
    DayChart {
        title: "Fragments by day".to_owned(),
        names: ["prevented".to_owned(), "repaired".to_owned()],
        bars: report.days.iter().map(bar).collect(),
    }
}

fn tables(report: &GuardReport) -> Vec<Table> {
    vec![days_table(report), space_table(report), asleep_table(report), filesystems_table(report)]
}

fn days_table(report: &GuardReport) -> Table {
    let row = |day: &GuardDay| {
        let GuardTotal { prevented, repaired, moved_bytes, asleep_seconds, .. } = day.total;
        let read = milliseconds(day.read_ms);
        let write = milliseconds(day.write_ms);
        let figures =
            [grouped(prevented), grouped(repaired), human_bytes(moved_bytes), duration(asleep_seconds)];
        std::iter::once(day.day.clone()).chain(figures).chain([read, write]).collect()
    };
    let numbers = ["prevented", "repaired", "moved", "asleep", "read took", "write took"];
    Table {
        title: "Day by day".to_owned(),
        columns: std::iter::once(Column::text("day (UTC)")).chain(numbers.map(Column::number)).collect(),
        rows: report.days.iter().rev().map(row).collect(),
        remark: Some(
            "How long reads and writes took is what the kernel counted for all requests of the storage below, everybody's, while a guard ran."
                .to_owned(),
        ),
        empty: None,
    }
}

fn space_table(report: &GuardReport) -> Table {
    let known = |bytes: Option<u64>| bytes.map_or(NONE.to_owned(), human_bytes);
    let row = |(day, space): (&str, &GuardedSpace)| {
        vec![
            day.to_owned(),
            space.path.clone(),
            space.filesystem.clone(),
            human_bytes(space.space_moved_bytes),
            grouped(space.space_stretches),
            known(space.largest_free_before_bytes),
            known(space.largest_free_after_bytes),
        ]
    };
    let texts = ["day (UTC)", "path", "type"].map(Column::text);
    let numbers = ["moved", "stretches freed", "largest before", "largest after"].map(Column::number);
    Table {
        title: "Free space brought together".to_owned(),
        columns: texts.into_iter().chain(numbers).collect(),
        rows: report.space().rev().map(row).collect(),
        remark: Some(
            "The largest free extent is that before the first stretch of the day became free, and right after the last one did."
                .to_owned(),
        ),
        empty: Some("Nothing moved for free space in these days.".to_owned()),
    }
}

fn asleep_table(report: &GuardReport) -> Table {
    let row = |asleep: Asleep| vec![asleep.reason, duration(asleep.seconds)];
    Table {
        title: "Why it slept".to_owned(),
        columns: vec![Column::text("reason"), Column::number("for")],
        rows: report.asleep().into_iter().map(row).collect(),
        remark: None,
        empty: Some("Nothing that was to be repaired had to wait.".to_owned()),
    }
}

fn filesystems_table(report: &GuardReport) -> Table {
    let row = |total: &GuardedTotal| {
        let [prevented, repaired] = [grouped(total.prevented), grouped(total.repaired)];
        vec![
            total.path.clone(),
            total.filesystem.clone(),
            prevented,
            repaired,
            human_bytes(total.moved_bytes),
        ]
    };
    Table {
        title: "File systems".to_owned(),
        columns: vec![
            Column::text("path"),
            Column::text("type"),
            Column::number("prevented"),
            Column::number("repaired"),
            Column::number("moved"),
        ],
        rows: report.filesystems.iter().map(row).collect(),
        remark: None,
        empty: Some("None was guarded in these days.".to_owned()),
    }
}

fn notes(report: &GuardReport) -> Vec<String> {
    let mut notes = Vec::new();
    if report.has_history {
        notes.push(
            "Prevented fragments are an estimate: times that a file grew within room that was reserved for it. Repaired ones are counted."
                .to_owned(),
        );
    }
    if report.running {
        notes.push("What the guard did in the last minute may not be in the history yet.".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> GuardReport {
        let day = |at: i64, prevented, repaired| GuardDay {
            day: guard_day(20_000 + at),
            total: GuardTotal {
                prevented,
                repaired,
                moved_bytes: repaired << 16,
                asleep_seconds: 90.0,
                ..GuardTotal::default()
            },
            asleep: vec![Asleep { reason: "files were being written".to_owned(), seconds: 90.0 }],
            reads: 10,
            read_ms: Some(1.5),
            ..GuardDay::default()
        };
        let days = (0..14)
            .map(|at| day(at, if at == 3 { 0 } else { 40_000 + 1000 * at.unsigned_abs() }, 50))
            .collect();
        let total = GuardedTotal {
            path: "/srv/<script>alert(1)</script>\u{202e}".to_owned(),
            filesystem: "xfs".to_owned(),
            prevented: 1,
            repaired: 2,
            moved_bytes: 3,
        };
        GuardReport::new(true, true, days, vec![total])
    }

    #[test]
    fn days_have_names() {
        assert_eq!((guard_day(0), guard_day(20_000)), ("1970-01-01".to_owned(), "2024-10-04".to_owned()));
    }

    #[test]
    fn a_page_stands_alone_and_shows_names_as_text() {
        let page = guard_report_page(&report());
        assert!(!page.contains("<script") && !page.contains('\u{202e}') && page.contains("&lt;script&gt;"));
        assert!(!page.contains("://") && page.contains("default-src 'none'"));
        assert_eq!(page.matches("<rect class=\"bar\"").count(), 13, "a bar for each day with any");
        assert_eq!(page.matches("<rect class=\"repaired bar\"").count(), 14);
        assert!(page.contains("98.8 %") || page.contains("99."), "{}", report().verdict());
    }

    #[test]
    fn free_space_is_shown_by_day_and_file_system() {
        let empty = guard_report_page(&report());
        assert!(empty.contains("Nothing moved for free space"));
        let space = |path: &str, largest: Option<(u64, u64)>| GuardedSpace {
            path: path.to_owned(),
            filesystem: "ext4".to_owned(),
            space_moved_bytes: 3 << 20,
            space_stretches: u64::from(largest.is_some()),
            largest_free_before_bytes: largest.map(|(before, _)| before),
            largest_free_after_bytes: largest.map(|(_, after)| after),
        };
        let GuardReport { mut days, filesystems, .. } = report();
        days[2].space = vec![space("/<b>", Some((5 << 20, 64 << 20))), space("/srv", None)];
        days[2].total.space_moved_bytes = 6 << 20;
        let report = GuardReport::new(false, true, days, filesystems);
        assert_eq!(report.total.space_moved_bytes, 6 << 20);
        let json: serde_json::Value = serde_json::from_str(&crate::to_json(&report)).unwrap();
        let day = &json["days"][2];
        assert_eq!(
            (day["space_moved_bytes"].as_u64(), day["moved_bytes"].as_u64()),
            (Some(6 << 20), Some(50 << 16))
        );
        assert_eq!(day["space"][0]["largest_free_after_bytes"], 64 << 20);
        assert!(day["space"][1]["largest_free_before_bytes"].is_null());
        let page = guard_report_page(&report);
        assert!(page.contains("/&lt;b&gt;") && !page.contains("Nothing moved for free space"), "{page}");
        for bytes in [3 << 20, 5 << 20, 6 << 20, 64 << 20] {
            assert!(page.contains(&human_bytes(bytes)), "{bytes}");
        }
        let text = guard_report_text(&report, Palette { colors: false });
        let largest =
            format!("largest free extent {} before, {} after", human_bytes(5 << 20), human_bytes(64 << 20));
        assert!(
            text.contains(&format!(
                "2024-10-06, /<b>: {} moved for free space, {largest}",
                human_bytes(3 << 20)
            )),
            "{text}"
        );
    }

    #[test]
    fn a_folder_without_history_says_so() {
        let none = GuardReport::new(false, false, Vec::new(), Vec::new());
        assert!(guard_report_page(&none).contains("There is no history here"));
        assert!(guard_report_text(&none, Palette { colors: false }).contains("There is no history here"));
        let idle = GuardReport::new(false, true, vec![GuardDay::default()], Vec::new());
        assert!(guard_report_page(&idle).contains("In one day no fragment"));
    }

    #[test]
    fn the_text_has_a_line_a_day_and_the_reasons() {
        let text = guard_report_text(&report(), Palette { colors: false });
        assert_eq!(text.lines().filter(|line| line.starts_with("2024-10-")).count(), 14, "{text}");
        assert!(text.contains("asleep 21 min: files were being written"), "{text}");
    }
}
