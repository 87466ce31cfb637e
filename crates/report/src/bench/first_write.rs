//! `leandisk bench first-write`: what the first write to each place costs.

use std::fmt::Write as _;

use bench::{FirstDisk, FirstWriteOutcome, Pass, PassFacts};
use engine::Provision;
use serde::Serialize;

use super::Host;
use super::figure::{Figure, count, number, quotient, short};
use crate::html::{Bar, BarChart, Column, ReportPage, Table, report_html};
use crate::text::{Palette, human_bytes, painted, printable, seconds, wrapped};

/// The document `leandisk.bench-first-write/1`.
#[derive(Clone, Debug, Serialize)]
pub struct FirstWriteDocument {
    schema: &'static str,
    dir: String,
    host: Host,
    virtual_bytes: u64,
    /// What was written at a time.
    write_bytes: u64,
    iterations: u64,
    disks: Vec<DiskEntry>,
    /// Figures that others published of the same comparison.
    published: Published,
    /// Where the disks are, if they were kept.
    kept: Option<String>,
    elapsed_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct DiskEntry {
    format: &'static str,
    /// `thin`, `lazy` or `eager`.
    provision: &'static str,
    create_seconds: Option<Figure>,
    passes: Vec<PassEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct PassEntry {
    elapsed_seconds: Option<Figure>,
    bytes_per_second: Option<Figure>,
    /// Of the times: of the same pass over an eager disk of the same format.
    ratio_to_eager: Option<f64>,
    guest_writes: Option<Figure>,
    host_writes: Option<Figure>,
    host_written_bytes: Option<Figure>,
    host_writes_per_guest_write: Option<Figure>,
    host_bytes_per_guest_byte: Option<Figure>,
    host_extents: Option<Figure>,
    allocated_bytes: Option<Figure>,
}

/// A published comparison of disks of 40 GB on a SAN: the first pass of a full format. The later passes took the same time.
#[derive(Clone, Debug, Serialize)]
struct Published {
    virtual_bytes: u64,
    eager_seconds: f64,
    lazy_seconds: f64,
    thin_seconds: f64,
}

const PUBLISHED: Published = Published {
    virtual_bytes: 40_000_000_000,
    eager_seconds: 537.0,
    lazy_seconds: 667.0,
    thin_seconds: 784.0,
};

/// Where passes that should be alike differ more, figures are doubtful.
const DOUBTFUL_RATIO: f64 = 1.3;

/// A run.
pub struct FirstWriteSubject<'a> {
    /// The folder that was named.
    pub dir: &'a str,
    /// The disks' size.
    pub virtual_bytes: u64,
    /// What was written at a time.
    pub write_bytes: u64,
    /// How often all was measured.
    pub iterations: u64,
    /// What was measured.
    pub outcome: &'a FirstWriteOutcome,
    /// How long it took.
    pub elapsed_seconds: f64,
}

/// The document of a run.
pub fn first_write_document(subject: &FirstWriteSubject<'_>) -> FirstWriteDocument {
    let outcome = subject.outcome;
    FirstWriteDocument {
        schema: "leandisk.bench-first-write/1",
        dir: subject.dir.to_owned(),
        host: Host { filesystem: outcome.host_filesystem.clone(), devices: outcome.devices.clone() },
        virtual_bytes: subject.virtual_bytes,
        write_bytes: subject.write_bytes,
        iterations: subject.iterations,
        disks: outcome.disks.iter().map(|disk| disk_entry(disk, &outcome.disks)).collect(),
        published: PUBLISHED,
        kept: outcome.kept.as_ref().map(|path| path.display().to_string()),
        elapsed_seconds: subject.elapsed_seconds,
    }
}

fn word(provision: Provision) -> &'static str {
    match provision {
        Provision::Thin => "thin",
        Provision::Lazy => "lazy",
        Provision::Eager => "eager",
    }
}

fn disk_entry(disk: &FirstDisk, all: &[FirstDisk]) -> DiskEntry {
    let eager = all.iter().find(|other| other.format == disk.format && other.provision == Provision::Eager);
    let passes = disk.passes.iter().enumerate().map(|(index, pass)| {
        let same = eager.and_then(|eager| eager.passes.get(index));
        let ratio =
            same.and_then(time).zip(time(pass)).and_then(|(eager, own)| quotient(own.mean(), eager.mean()));
        pass_entry(pass, ratio)
    });
    DiskEntry {
        format: disk.format.name(),
        provision: word(disk.provision),
        create_seconds: Figure::of(disk.create_seconds.iter().copied().map(Some)),
        passes: passes.collect(),
    }
}

fn figure(pass: &Pass, of: impl Fn(&PassFacts) -> Option<f64>) -> Option<Figure> {
    Figure::of(pass.iterations.iter().map(of))
}

fn time(pass: &Pass) -> Option<Figure> {
    figure(pass, |facts| Some(facts.interval.seconds))
}

fn pass_entry(pass: &Pass, ratio_to_eager: Option<f64>) -> PassEntry {
    let host_writes = |facts: &PassFacts| facts.interval.device.map(|device| number(device.writes));
    let host_bytes = |facts: &PassFacts| facts.interval.device.map(|device| number(device.written_bytes));
    PassEntry {
        elapsed_seconds: time(pass),
        bytes_per_second: figure(pass, |facts| quotient(number(facts.guest_bytes), facts.interval.seconds)),
        ratio_to_eager,
        guest_writes: figure(pass, |facts| Some(number(facts.guest_writes))),
        host_writes: figure(pass, host_writes),
        host_written_bytes: figure(pass, host_bytes),
        host_writes_per_guest_write: figure(pass, |facts| {
            quotient(host_writes(facts)?, number(facts.guest_writes))
        }),
        host_bytes_per_guest_byte: figure(pass, |facts| {
            quotient(host_bytes(facts)?, number(facts.guest_bytes))
        }),
        host_extents: figure(pass, |facts| facts.host_extents.map(number)),
        allocated_bytes: figure(pass, |facts| Some(number(facts.allocated_bytes))),
    }
}

fn mean(figure: Option<&Figure>) -> Option<f64> {
    figure.map(Figure::mean)
}

/// A pass in words: time, MB/s, ratio, host writes, host bytes, extents, spread.
fn cells(pass: &PassEntry) -> [String; 7] {
    let spread = pass.elapsed_seconds.as_ref().map_or(0.0, Figure::spread);
    [
        mean(pass.elapsed_seconds.as_ref()).map_or("-".into(), |time| format!("{time:.2} s")),
        short(mean(pass.bytes_per_second.as_ref()).map(|rate| rate / 1e6)),
        pass.ratio_to_eager.map_or("-".into(), |ratio| format!("{ratio:.2}x")),
        short(mean(pass.host_writes_per_guest_write.as_ref())),
        short(mean(pass.host_bytes_per_guest_byte.as_ref())),
        count(pass.host_extents.as_ref()),
        format!("{:.0} %", spread * 100.0),
    ]
}

fn about(document: &FirstWriteDocument) -> String {
    format!(
        "disks of {} in {}, written {} at a time, past the page cache",
        human_bytes(document.virtual_bytes),
        document.host.said(&document.dir),
        human_bytes(document.write_bytes)
    )
}

fn published(published: &Published) -> String {
    let times = |seconds: f64| seconds / published.eager_seconds;
    format!(
        "published for 40 GB: eager {:.0} s, lazy {:.0} s ({:.2}x), thin {:.0} s ({:.2}x) in the first pass; equal in the \
         second and third",
        published.eager_seconds,
        published.lazy_seconds,
        times(published.lazy_seconds),
        published.thin_seconds,
        times(published.thin_seconds)
    )
}

/// What the figures leave open.
fn notes(document: &FirstWriteDocument) -> Vec<String> {
    let mut notes = Vec::new();
    if document.host.devices.is_empty() {
        notes.push("no block device beneath is known: what it was asked is not counted".to_owned());
    } else {
        notes.push("host writes are all that the device did meanwhile, whoever asked for it".to_owned());
    }
    if let Some(doubt) = doubt(document) {
        notes.push(doubt);
    }
    if let Some(kept) = &document.kept {
        notes.push(format!("the disks are in {}", printable(kept)));
    }
    notes
}

/// Where passes over one eager disk, which should take the same time, differ much.
fn doubt(document: &FirstWriteDocument) -> Option<String> {
    let eager = document.disks.iter().filter(|disk| disk.provision == "eager");
    let worst = eager.filter_map(|disk| {
        let times = disk.passes.iter().filter_map(|pass| mean(pass.elapsed_seconds.as_ref()));
        let (fastest, slowest) =
            times.fold((f64::INFINITY, 0.0), |(low, high), time| (f64::min(low, time), f64::max(high, time)));
        quotient(slowest, fastest).filter(|ratio| *ratio > DOUBTFUL_RATIO)
    });
    let worst = worst.fold(0.0, f64::max);
    (worst > 0.0).then(|| {
        format!(
            "passes over an eager disk should take the same time, and differ {worst:.1}x here: the storage or this machine is \
             busy; measure again with a larger --size, or --iterations 3"
        )
    })
}

/// The document as a table.
pub fn first_write_text(document: &FirstWriteDocument, palette: Palette) -> String {
    let mut out = String::new();
    out.push_str(&painted("", Some("  "), &about(document), |line| palette.strong(line)));
    let head = format!(
        "  {:<6} {:<5} {:>4} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "format", "kind", "pass", "time", "MB/s", "to eager", "writes*", "bytes*", "extents"
    );
    let spread = if document.iterations > 1 { " spread" } else { "" };
    let _ = writeln!(out, "{}", palette.faint(&format!("{head}{spread}")));
    for disk in &document.disks {
        for (index, pass) in disk.passes.iter().enumerate() {
            let [time, rate, ratio, writes, bytes, extents, spread] = cells(pass);
            let line = format!(
                "  {:<6} {:<5} {:>4} {time:>8} {rate:>8} {ratio:>8} {writes:>8} {bytes:>8} {extents:>8}",
                disk.format,
                disk.provision,
                index + 1
            );
            let spread = if document.iterations > 1 { format!(" {spread:>6}") } else { String::new() };
            let _ = writeln!(out, "{line}{spread}");
        }
    }
    let _ = writeln!(out, "  * on the host, for each write or byte of the guest");
    for line in notes(document) {
        out.push_str(&wrapped("  ", None, &line));
    }
    out.push_str(&painted("  ", None, &published(&document.published), |line| palette.faint(line)));
    let _ = writeln!(out, "  took {}", seconds(document.elapsed_seconds));
    out
}

/// The document as a page.
pub fn first_write_page(document: &FirstWriteDocument) -> String {
    let number = |name| Column::number(name);
    let mut table = Table {
        title: "Passes".into(),
        columns: vec![
            Column::text("Format"),
            Column::text("Provision"),
            number("Pass"),
            number("Time"),
            number("MB/s"),
            number("To eager"),
            number("Host writes*"),
            number("Host bytes*"),
            number("Host extents"),
            number("Spread"),
        ],
        rows: Vec::new(),
        empty: None,
        remark: Some(
            "To eager: the time as a multiple of the same pass over an eager disk. * For one of the guest's."
                .into(),
        ),
    };
    let mut charts: Vec<BarChart> = Vec::new();
    for disk in &document.disks {
        for (index, pass) in disk.passes.iter().enumerate() {
            let own = [disk.format.to_owned(), disk.provision.to_owned(), (index + 1).to_string()];
            table.rows.push(own.into_iter().chain(cells(pass)).collect());
            if charts.last().is_none_or(|chart| chart.title != title(disk.format)) {
                charts.push(BarChart { title: title(disk.format), bars: Vec::new() });
            }
            let value = mean(pass.elapsed_seconds.as_ref()).unwrap_or(0.0);
            let said = match pass.ratio_to_eager {
                Some(ratio) => format!("{value:.2} s, {ratio:.2}x"),
                None => format!("{value:.2} s"),
            };
            let label = format!("{}, pass {}", disk.provision, index + 1);
            let bar = Bar { label, value, said, is_other: disk.provision != "thin" };
            charts.last_mut().expect("there is one now").bars.push(bar);
        }
    }
    let page = ReportPage {
        title: "What the first write costs".into(),
        about: about(document),
        verdict: verdict(document),
        charts,
        layers: vec![table],
        notes: [notes(document), vec![published(&document.published)]].concat(),
        colophon: format!(
            "leandisk {} bench first-write; iterations: {}, which took {}",
            env!("CARGO_PKG_VERSION"),
            document.iterations,
            seconds(document.elapsed_seconds)
        ),
        ..ReportPage::default()
    };
    report_html(&page, None)
}

fn title(format: &str) -> String {
    format!("{format}: seconds of each pass")
}

fn verdict(document: &FirstWriteDocument) -> String {
    let said = document.disks.iter().filter(|disk| disk.provision != "eager").filter_map(|disk| {
        let first = disk.passes.first()?.ratio_to_eager?;
        Some(format!("{} {} takes {first:.2}x the time of eager", disk.format, disk.provision))
    });
    let said: Vec<_> = said.collect();
    if said.is_empty() { String::new() } else { format!("In the first pass {}.", said.join(", ")) }
}
