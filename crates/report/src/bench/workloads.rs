//! `leandisk bench workloads`: what people do on an aged disk, before and after each remedy.

use std::fmt::Write as _;

use bench::{
    Counters, DiskFacts, DiskState, Forecast, Measured, Remedy, RunFacts, Skipped, Storage, WorkloadsOutcome,
};
use serde::Serialize;
use serve::monitor::Histogram;

use super::Host;
use super::figure::{Figure, number, quotient, short};
use crate::html::{Bar, BarChart, Column, ReportPage, Table, report_html};
use crate::text::{Palette, grouped, human_bytes, painted, percent, printable, seconds, wrapped};

/// Times that differ by less are called the same.
const SAME_SHARE: f64 = 0.05;
/// With fewer runs no difference is clear.
const CLEAR_RUNS_MIN: usize = 3;

/// The document `leandisk.workloads/1`.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadsDocument {
    schema: &'static str,
    dir: String,
    host: Host,
    /// `this`: the folder's own storage. `hdd` or `san`: a model, which served what was recorded here.
    storage: &'static str,
    storage_is_modelled: bool,
    /// `fresh`, `light`, `heavy` or `nested`.
    state: &'static str,
    seed: u64,
    runs: u64,
    sizes: SizesEntry,
    disks: Vec<DiskEntry>,
    activities: Vec<ActivityEntry>,
    skipped: Vec<SkippedEntry>,
    elapsed_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct SizesEntry {
    disk_bytes: u64,
    tree_bytes: u64,
    documents: u64,
    document_bytes: u64,
    mail_bytes: u64,
    arriving_messages: u64,
    rows: u64,
    table_rows: u64,
}

#[derive(Clone, Debug, Serialize)]
struct DiskEntry {
    /// `none`, `defrag`, `defrag-pack` or `copy-packed`.
    remedy: &'static str,
    remedy_seconds: f64,
    files: u64,
    fragmented_files: u64,
    fragments: u64,
    free_extents: Option<u64>,
    host_extents: Option<u64>,
    allocated_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct ActivityEntry {
    activity: &'static str,
    /// `sqlite` or `postgresql`, where it is a database's.
    engine: Option<&'static str>,
    remedy: &'static str,
    elapsed_seconds: Option<Figure>,
    /// Of the medians: of this to that without a remedy.
    ratio_to_none: Option<f64>,
    /// `faster`, `slower` or `same` as without a remedy; `unclear` if runs vary more than remedies.
    verdict: Option<&'static str>,
    /// With at least one request under way.
    storage_seconds: Option<Figure>,
    /// What was predicted before, of activities that only read files; `null` of others.
    predicted: Option<PredictedEntry>,
    cpu_seconds: Option<Figure>,
    requests: Option<Figure>,
    read_bytes: Option<Figure>,
    written_bytes: Option<Figure>,
    bytes_per_request: Option<Figure>,
    split_requests: Option<Figure>,
    cut_requests: Option<Figure>,
    sequential_share: Option<Figure>,
    response_seconds: Option<Figure>,
    /// Of all runs, in vscsiStats' bins.
    response_microseconds: Option<Histogram>,
    /// Files, messages or rows that were compared with what they were to be, in each run.
    checked: Option<Figure>,
}

/// What reading was predicted to take, beside what it took.
#[derive(Clone, Debug, Serialize)]
struct PredictedEntry {
    requests: Option<u64>,
    seconds: Option<f64>,
    /// Of the median of what came: predicted too much is positive.
    requests_error_percent: Option<f64>,
    seconds_error_percent: Option<f64>,
    /// Why nobody knows, where that is so.
    unknown: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct SkippedEntry {
    activity: &'static str,
    engine: Option<&'static str>,
    because: String,
}

/// A run.
pub struct WorkloadsSubject<'a> {
    /// The folder that was named.
    pub dir: &'a str,
    /// How the disk was used before.
    pub state: DiskState,
    /// On which storage.
    pub storage: Storage,
    /// Of all contents.
    pub seed: u64,
    /// What was measured.
    pub outcome: &'a WorkloadsOutcome,
    /// How long it took.
    pub elapsed_seconds: f64,
}

/// The document of a run.
pub fn workloads_document(subject: &WorkloadsSubject<'_>) -> WorkloadsDocument {
    let outcome = subject.outcome;
    let sizes = outcome.sizes;
    let runs = outcome.measured.iter().map(|measured| measured.runs.len()).max().unwrap_or(0);
    WorkloadsDocument {
        schema: "leandisk.workloads/1",
        dir: subject.dir.to_owned(),
        host: Host { filesystem: outcome.host_filesystem.clone(), devices: outcome.devices.clone() },
        storage: subject.storage.word(),
        storage_is_modelled: subject.storage != Storage::This,
        state: subject.state.word(),
        seed: subject.seed,
        runs: runs as u64,
        sizes: SizesEntry {
            disk_bytes: sizes.disk_bytes,
            tree_bytes: sizes.tree_bytes,
            documents: sizes.documents,
            document_bytes: sizes.document_bytes,
            mail_bytes: sizes.mail_bytes,
            arriving_messages: sizes.arriving,
            rows: sizes.rows,
            table_rows: sizes.table_rows,
        },
        disks: outcome.disks.iter().map(disk_entry).collect(),
        activities: outcome.measured.iter().map(|measured| entry(measured, &outcome.measured)).collect(),
        skipped: outcome.skipped.iter().map(skipped_entry).collect(),
        elapsed_seconds: subject.elapsed_seconds,
    }
}

fn disk_entry(disk: &DiskFacts) -> DiskEntry {
    DiskEntry {
        remedy: disk.remedy.word(),
        remedy_seconds: disk.seconds,
        files: disk.layout.files,
        fragmented_files: disk.layout.fragmented_files,
        fragments: disk.layout.fragments,
        free_extents: disk.layout.free_extents,
        host_extents: disk.host_extents,
        allocated_bytes: disk.allocated_bytes,
    }
}

fn skipped_entry(skipped: &Skipped) -> SkippedEntry {
    SkippedEntry {
        activity: skipped.activity.word(),
        engine: skipped.engine.map(bench::Engine::name),
        because: skipped.because.clone(),
    }
}

fn figure(measured: &Measured, of: impl Fn(&RunFacts) -> Option<f64>) -> Option<Figure> {
    Figure::of(measured.runs.iter().map(of))
}

fn time(measured: &Measured) -> Option<Figure> {
    figure(measured, |run| Some(run.seconds))
}

fn entry(measured: &Measured, all: &[Measured]) -> ActivityEntry {
    let without = all.iter().find(|other| {
        (other.activity, other.engine) == (measured.activity, measured.engine) && other.remedy == Remedy::None
    });
    let times = without.filter(|_| measured.remedy != Remedy::None).and_then(time).zip(time(measured));
    let ratio_to_none = times.as_ref().and_then(|(none, own)| quotient(own.median(), none.median()));
    ActivityEntry {
        activity: measured.activity.word(),
        engine: measured.engine.map(bench::Engine::name),
        remedy: measured.remedy.word(),
        elapsed_seconds: time(measured),
        ratio_to_none,
        verdict: times.as_ref().zip(ratio_to_none).map(|((none, own), ratio)| verdict(ratio, none, own)),
        storage_seconds: figure(measured, |run| run.storage_seconds),
        predicted: measured.forecast.as_ref().map(|forecast| predicted(forecast, measured)),
        cpu_seconds: figure(measured, |run| run.cpu_seconds),
        requests: figure(measured, |run| Some(number(requests(&run.guest)))),
        read_bytes: figure(measured, |run| Some(number(run.guest.read_bytes))),
        written_bytes: figure(measured, |run| Some(number(run.guest.written_bytes))),
        bytes_per_request: figure(measured, |run| {
            let bytes = number(run.guest.read_bytes) + number(run.guest.written_bytes);
            quotient(bytes, number(requests(&run.guest)))
        }),
        split_requests: figure(measured, |run| Some(number(splits(&run.guest, &run.host?)))),
        cut_requests: figure(measured, |run| run.cuts.map(number)),
        sequential_share: figure(measured, |run| {
            let counted = run.requests.as_ref()?;
            quotient(number(counted.sequential), number(counted.logical.reads + counted.logical.writes))
        }),
        response_seconds: figure(measured, |run| {
            let latency = &run.requests.as_ref()?.latency.all;
            let sum = u64::try_from(latency.sum).ok()?;
            quotient(number(sum) / 1e6, number(latency.count()))
        }),
        response_microseconds: response(measured),
        checked: figure(measured, |run| Some(number(run.checked))),
    }
}

fn predicted(forecast: &Result<Forecast, String>, measured: &Measured) -> PredictedEntry {
    let forecast = match forecast {
        Ok(forecast) => forecast,
        Err(because) => {
            return PredictedEntry {
                requests: None,
                seconds: None,
                requests_error_percent: None,
                seconds_error_percent: None,
                unknown: Some(because.clone()),
            };
        }
    };
    let error = |said: f64, came: Option<Figure>| Some((quotient(said, came?.median())? - 1.0) * 100.0);
    let commands = figure(measured, |run| run.commands.map(number));
    PredictedEntry {
        requests: Some(forecast.requests),
        seconds: Some(forecast.seconds),
        requests_error_percent: error(number(forecast.requests), commands),
        seconds_error_percent: error(forecast.seconds, figure(measured, |run| run.storage_seconds)),
        unknown: None,
    }
}

fn verdict(ratio: f64, none: &Figure, own: &Figure) -> &'static str {
    let is_same = (1.0 - SAME_SHARE..=1.0 + SAME_SHARE).contains(&ratio);
    // Fewer runs say too little of how much they vary.
    let is_clear = none.count().min(own.count()) >= CLEAR_RUNS_MIN && !none.overlaps(own);
    match (is_same, is_clear, ratio < 1.0) {
        (true, ..) => "same",
        (false, false, _) => "unclear",
        (false, true, true) => "faster",
        (false, true, false) => "slower",
    }
}

fn requests(guest: &Counters) -> u64 {
    guest.reads + guest.writes
}

/// Transfers of the host beyond one for each request of the guest, in the same direction.
fn splits(guest: &Counters, host: &Counters) -> u64 {
    host.reads.saturating_sub(guest.reads) + host.writes.saturating_sub(guest.writes)
}

/// Response times of all runs together.
fn response(measured: &Measured) -> Option<Histogram> {
    let mut runs = measured.runs.iter().map(|run| run.requests.as_ref().map(|counted| &counted.latency.all));
    let mut sum = runs.next()??.clone();
    for run in runs {
        sum.merge(run?);
    }
    Some(sum)
}

fn about(document: &WorkloadsDocument) -> String {
    let modelled = match document.storage {
        "hdd" => {
            "; times are those of a MODELLED hard disk, which serves the requests that were recorded here"
        }
        "san" => {
            "; times are those of a MODELLED array behind a network, which serves the requests that were recorded here"
        }
        _ => "",
    };
    format!(
        "a disk of {} ({}, ext4) in {}, {} of each activity, nothing of it in memory at first{modelled}",
        human_bytes(document.sizes.disk_bytes),
        document.state,
        document.host.said(&document.dir),
        if document.runs == 1 { "one run".to_owned() } else { format!("medians of {} runs", document.runs) }
    )
}

/// Such as `insert (sqlite)`.
fn name(entry: &ActivityEntry) -> String {
    entry.engine.map_or_else(|| entry.activity.to_owned(), |engine| format!("{} ({engine})", entry.activity))
}

fn said_of(entry: &ActivityEntry) -> String {
    match (entry.ratio_to_none, entry.verdict) {
        (Some(ratio), Some(verdict)) => format!("{ratio:.2}x, {verdict}"),
        _ => "-".into(),
    }
}

fn median(figure: Option<&Figure>) -> Option<f64> {
    figure.map(Figure::median)
}

/// Time, spread, compared, requests, KB a request, split, sequential, response, processors.
fn cells(entry: &ActivityEntry) -> [String; 9] {
    let ms = |figure: Option<&Figure>| median(figure).map(|time| time * 1e3);
    [
        median(entry.elapsed_seconds.as_ref()).map_or("-".into(), |time| format!("{time:.3}")),
        entry.elapsed_seconds.as_ref().map_or("-".into(), |time| format!("{:.0} %", time.spread() * 100.0)),
        said_of(entry),
        short(median(entry.requests.as_ref()).map(f64::round)),
        short(median(entry.bytes_per_request.as_ref()).map(|bytes| bytes / 1024.0)),
        short(median(entry.split_requests.as_ref()).map(f64::round)),
        median(entry.sequential_share.as_ref()).map_or("-".into(), percent),
        short(ms(entry.response_seconds.as_ref())),
        median(entry.cpu_seconds.as_ref()).map_or("-".into(), |time| format!("{time:.2}")),
    ]
}

fn layout_of(disk: &DiskEntry) -> String {
    let host = disk.host_extents.map(|count| format!("; the image in {} on the host", grouped(count)));
    let took = match disk.remedy {
        "none" => String::new(),
        _ => format!(" (took {})", seconds(disk.remedy_seconds)),
    };
    format!(
        "{} of {} files in pieces, {} pieces, free space in {}{}{took}",
        grouped(disk.fragmented_files),
        grouped(disk.files),
        grouped(disk.fragments),
        disk.free_extents.map_or_else(|| "-".to_owned(), grouped),
        host.unwrap_or_default(),
    )
}

/// The answer in a sentence: how many activities each remedy made faster, and slower.
fn verdicts(document: &WorkloadsDocument) -> Vec<String> {
    let of = |remedy: &'static str, verdict: &str| {
        let of_remedy = document.activities.iter().filter(move |entry| entry.remedy == remedy);
        of_remedy.filter(|entry| entry.verdict == Some(verdict)).count()
    };
    let remedies = document.disks.iter().filter(|disk| disk.remedy != "none");
    let sentences = remedies.map(|disk| {
        let kinds = ["faster", "same", "slower", "unclear"];
        let [faster, same, slower, unclear] = kinds.map(|verdict| of(disk.remedy, verdict));
        let counts = format!("{faster} faster, {same} the same, {slower} slower, {unclear} unclear");
        let is_idle = faster == 0 && unclear == 0;
        let nothing = if is_idle { ": nothing became faster, doing nothing is as good" } else { "" };
        format!("{}: {counts}{nothing}", disk.remedy)
    });
    sentences.collect()
}

/// What the figures leave open.
fn notes(document: &WorkloadsDocument) -> Vec<String> {
    let mut notes = vec![
        "requests, their length, order and response times are of the guest's device; split requests are those of the host's devices beyond \
         one for each of the guest's, whoever asked for them"
            .to_owned(),
        "times that differ by less than 5 % are called the same; unclear is a difference that is no larger than that between runs".to_owned(),
    ];
    if document.activities.iter().any(|entry| entry.response_microseconds.is_none()) {
        notes.push("this kernel keeps no record of single requests: how sequential they are, and how long they took, is not known".to_owned());
    }
    notes.extend(document.skipped.iter().map(|skipped| {
        let engine = skipped.engine.map(|engine| format!(" ({engine})")).unwrap_or_default();
        format!("not measured: {}{engine}: {}", skipped.activity, skipped.because)
    }));
    notes
}

/// The document as a table.
pub fn workloads_text(document: &WorkloadsDocument, palette: Palette) -> String {
    let mut out = painted("", Some("  "), &about(document), |line| palette.strong(line));
    for disk in &document.disks {
        out.push_str(&wrapped(&format!("  {:<12}", disk.remedy), None, &layout_of(disk)));
    }
    let head = format!(
        "  {:<12} {:>8} {:>7} {:>14} {:>8} {:>7} {:>7} {:>6} {:>7} {:>6}",
        "remedy", "seconds", "spread", "to none", "requests", "KB each", "split*", "seq.", "ms each", "CPU s"
    );
    let mut last = String::new();
    for entry in &document.activities {
        let name = name(entry);
        if name != last {
            let _ = writeln!(out, "{}", palette.strong(&name));
            let _ = writeln!(out, "{}", palette.faint(&head));
            last = name;
        }
        let [time, spread, to_none, requests, kb, split, sequential, response, cpu] = cells(entry);
        let line = format!(
            "  {:<12} {time:>8} {spread:>7} {to_none:>14} {requests:>8} {kb:>7} {split:>7} {sequential:>6} {response:>7} {cpu:>6}",
            entry.remedy
        );
        let line = if entry.verdict == Some("slower") { palette.warning(&line) } else { line };
        let _ = writeln!(out, "{line}");
    }
    out.push_str(&predictions_text(document, palette));
    for line in verdicts(document) {
        out.push_str(&wrapped("  ", None, &line));
    }
    let _ = writeln!(out, "  * see the last lines");
    for line in notes(document) {
        out.push_str(&painted("  ", None, &printable(&line), |line| palette.faint(line)));
    }
    let _ = writeln!(out, "  took {}", seconds(document.elapsed_seconds));
    out
}

/// What was predicted of reading beside what came: requests and seconds of the storage, each with the error.
fn prediction_cells(entry: &ActivityEntry) -> Option<[String; 6]> {
    let predicted = entry.predicted.as_ref()?;
    let percent = |error: Option<f64>| error.map_or("-".into(), |error| format!("{error:+.0} %"));
    let seconds = |seconds: Option<f64>| seconds.map_or("-".into(), |seconds| format!("{seconds:.3}"));
    let came = median(entry.storage_seconds.as_ref());
    let requests = predicted.requests.zip(predicted.requests_error_percent);
    let came_requests = requests.map(|(said, error)| number(said) / (1.0 + error / 100.0));
    Some([
        predicted.requests.map_or("-".into(), grouped),
        short(came_requests.map(f64::round)),
        percent(predicted.requests_error_percent),
        seconds(predicted.seconds),
        seconds(came),
        percent(predicted.seconds_error_percent),
    ])
}

fn predictions_text(document: &WorkloadsDocument, palette: Palette) -> String {
    let mut out = String::new();
    let rows = document.activities.iter().filter_map(|entry| Some((entry, prediction_cells(entry)?)));
    for (index, (entry, [requests, came_requests, of_requests, said, came, of_seconds])) in rows.enumerate() {
        if index == 0 {
            let _ = writeln!(out, "{}", palette.strong("predicted of reading, and what came"));
            let head = format!(
                "  {:<11} {:<12} {:>9} {:>8} {:>7} {:>10} {:>8} {:>7}",
                "activity", "remedy", "requests", "came", "error", "storage s", "came", "error"
            );
            let _ = writeln!(out, "{}", palette.faint(&head));
        }
        let _ = writeln!(
            out,
            "  {:<11} {:<12} {requests:>9} {came_requests:>8} {of_requests:>7} {said:>10} {came:>8} {of_seconds:>7}",
            entry.activity, entry.remedy
        );
    }
    if let Some(because) = unknown(document) {
        out.push_str(&wrapped(
            "  ",
            None,
            &format!("where nothing is predicted, the model does not know: {because}"),
        ));
    }
    out
}

fn unknown(document: &WorkloadsDocument) -> Option<&str> {
    document.activities.iter().find_map(|entry| entry.predicted.as_ref()?.unknown.as_deref())
}

fn predictions_table(document: &WorkloadsDocument) -> Table {
    let rows = document.activities.iter().filter_map(|entry| {
        let mut row = vec![name(entry), entry.remedy.to_owned()];
        row.extend(prediction_cells(entry)?);
        Some(row)
    });
    let mut columns = vec![Column::text("Activity"), Column::text("Remedy")];
    columns.extend(
        ["Requests predicted", "Came", "Error", "Storage seconds predicted", "Came", "Error"]
            .map(Column::number),
    );
    Table {
        title: "What was predicted of reading, and what came".into(),
        columns,
        rows: rows.collect(),
        remark: unknown(document)
            .map(|because| format!("Where nothing is predicted, the model does not know: {because}")),
        empty: Some("Nothing that only reads files was measured.".into()),
    }
}

/// The document as a page.
pub fn workloads_page(document: &WorkloadsDocument) -> String {
    let mut page = ReportPage {
        title: "What people do on an aged disk".into(),
        about: about(document),
        verdict: verdicts(document).join(". "),
        notes: notes(document),
        colophon: "made by leandisk bench workloads".into(),
        ..ReportPage::default()
    };
    page.layers.push(disks_table(document));
    let mut names: Vec<String> = document.activities.iter().map(name).collect();
    names.dedup();
    for wanted in &names {
        let entries = || document.activities.iter().filter(|entry| name(entry) == *wanted);
        page.charts.push(times(wanted, entries()));
    }
    page.files.push(figures_table(document));
    page.costs.push(predictions_table(document));
    page.costs.push(response_table(document));
    report_html(&page, None)
}

fn disks_table(document: &WorkloadsDocument) -> Table {
    let rows = document.disks.iter().map(|disk| vec![disk.remedy.to_owned(), layout_of(disk)]);
    Table {
        title: "The disk after each remedy".into(),
        columns: vec![Column::text("Remedy"), Column::text("How it lies")],
        rows: rows.collect(),
        ..Table::default()
    }
}

fn times<'a>(name: &str, entries: impl Iterator<Item = &'a ActivityEntry>) -> BarChart {
    let bars = entries.map(|entry| {
        let value = median(entry.elapsed_seconds.as_ref()).unwrap_or(0.0);
        let compared = entry.verdict.map(|_| format!(", {}", said_of(entry))).unwrap_or_default();
        let is_other = entry.remedy != "none";
        Bar { label: entry.remedy.to_owned(), value, said: format!("{value:.3} s{compared}"), is_other }
    });
    BarChart { title: name.to_owned(), bars: bars.collect() }
}

fn figures_table(document: &WorkloadsDocument) -> Table {
    let rows = document.activities.iter().map(|entry| {
        let mut row = vec![name(entry), entry.remedy.to_owned()];
        row.extend(cells(entry));
        row
    });
    let numbers =
        ["Seconds", "Spread", "To none", "Requests", "KB each", "Split", "Sequential", "ms each", "CPU s"];
    let mut columns = vec![Column::text("Activity"), Column::text("Remedy")];
    columns.extend(numbers.map(Column::number));
    Table { title: "All figures".into(), columns, rows: rows.collect(), ..Table::default() }
}

/// Response times of all activities together, a column a remedy.
fn response_table(document: &WorkloadsDocument) -> Table {
    let of = |remedy: &str| {
        let own = document.activities.iter().filter(|entry| entry.remedy == remedy);
        let mut histograms = own.filter_map(|entry| entry.response_microseconds.as_ref());
        let mut sum = histograms.next()?.clone();
        histograms.for_each(|histogram| sum.merge(histogram));
        Some(sum)
    };
    let sums: Vec<(&str, Histogram)> =
        document.disks.iter().filter_map(|disk| Some((disk.remedy, of(disk.remedy)?))).collect();
    let limits: Vec<i64> = sums.first().map(|(_, sum)| sum.limits.clone()).unwrap_or_default();
    let labels = limits.iter().map(|limit| format!("up to {} µs", grouped(limit.unsigned_abs())));
    let rows = labels.chain(["more".to_owned()]).enumerate().map(|(bin, label)| {
        let counts = sums.iter().map(|(_, sum)| sum.counts.get(bin).copied().map_or("-".into(), grouped));
        std::iter::once(label).chain(counts).collect()
    });
    let mut columns = vec![Column::text("Response time")];
    columns.extend(sums.iter().map(|(remedy, _)| Column::number(remedy)));
    Table {
        title: "Requests by response time, all activities".into(),
        columns,
        rows: if sums.is_empty() { Vec::new() } else { rows.collect() },
        empty: Some("this kernel keeps no record of single requests".into()),
        remark: None,
    }
}
