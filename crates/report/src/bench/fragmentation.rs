//! `leandisk bench fragmentation`: in how many pieces images end that grow side by side, and what that costs.

use std::fmt::Write as _;

use bench::{
    FragmentationFacts, FragmentationOutcome, FragmentationRun, HostVolume, Order, Traffic, Workload,
};
use serde::Serialize;

use super::Host;
use super::figure::{Figure, count, number, quotient, short};
use crate::html::{Bar, BarChart, Column, ReportPage, Table, report_html};
use crate::text::{Palette, human_bytes, painted, percent, printable, seconds, wrapped};

/// The document `leandisk.bench-fragmentation/1`.
#[derive(Clone, Debug, Serialize)]
pub struct FragmentationDocument {
    schema: &'static str,
    dir: String,
    host: Host,
    /// Whether the host's file system was made for the run, and filled and thinned out before.
    host_is_made: bool,
    host_is_aged: bool,
    workload: WorkloadEntry,
    iterations: u64,
    /// Why there is nothing to compare with, if there is nothing.
    missing: Option<String>,
    runs: Vec<RunEntry>,
    /// Leandisk against the other server, for each format.
    compared: Vec<Compared>,
    /// Figures that others published of the same kind.
    published: [Published; 2],
    /// Where the images are, if they were kept.
    kept: Option<String>,
    elapsed_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct WorkloadEntry {
    files: u64,
    size_bytes: u64,
    write_bytes: u64,
    read_bytes: u64,
    flush_bytes: u64,
    /// `turns`, `random` or `churn`.
    order: &'static str,
}

#[derive(Clone, Debug, Serialize)]
struct RunEntry {
    format: &'static str,
    server: &'static str,
    writing: PhaseEntry,
    reading: PhaseEntry,
    container_runs: Option<Figure>,
    host_extents: Option<Figure>,
    allocated_bytes: Option<Figure>,
    server_cpu_seconds: Option<Figure>,
}

#[derive(Clone, Debug, Serialize)]
struct PhaseEntry {
    elapsed_seconds: Option<Figure>,
    /// What the guests asked for.
    requests: Option<Figure>,
    bytes_per_second: Option<Figure>,
    /// Transfers of the device beyond one for each request of the guests.
    split_ios: Option<Figure>,
    split_ios_per_second: Option<Figure>,
    /// All transfers of the device.
    physical_transfers: Option<Figure>,
    physical_transfers_per_second: Option<Figure>,
    physical_transfer_bytes: Option<Figure>,
    average_queue_length: Option<Figure>,
    /// As a share of one.
    cpu_idle: Option<Figure>,
}

/// Leandisk against qemu-nbd. The same work is done by both, so that counts are compared and not rates.
#[derive(Clone, Debug, Serialize)]
struct Compared {
    format: &'static str,
    /// Extents and runs, as a share of the other's.
    pieces_ratio: Option<f64>,
    writing: ComparedPhase,
    reading: ComparedPhase,
}

#[derive(Clone, Debug, Serialize)]
struct ComparedPhase {
    /// As shares of the other's; negative if there are more.
    split_ios_fewer: Option<f64>,
    physical_transfers_fewer: Option<f64>,
    physical_transfer_bytes_ratio: Option<f64>,
    bytes_per_second_ratio: Option<f64>,
}

/// What was published of a defragmenter that prevents fragments inside a guest.
#[derive(Clone, Debug, Serialize)]
struct Published {
    machine: &'static str,
    split_ios_fewer: f64,
    physical_transfers_fewer: f64,
    physical_transfer_bytes_ratio: f64,
    bytes_per_second_ratio: f64,
}

const PUBLISHED: [Published; 2] = [
    Published {
        machine: "server",
        split_ios_fewer: 0.98,
        physical_transfers_fewer: 0.97,
        physical_transfer_bytes_ratio: 42.7,
        bytes_per_second_ratio: 1.3,
    },
    Published {
        machine: "desktop",
        split_ios_fewer: 0.89,
        physical_transfers_fewer: 0.58,
        physical_transfer_bytes_ratio: 12.7,
        bytes_per_second_ratio: 5.2,
    },
];

/// A run.
pub struct FragmentationSubject<'a> {
    /// The folder that was named.
    pub dir: &'a str,
    /// What the guests did.
    pub workload: Workload,
    /// The file system that was made, if one was.
    pub host: Option<HostVolume>,
    /// How often all was measured.
    pub iterations: u64,
    /// What was measured.
    pub outcome: &'a FragmentationOutcome,
    /// How long it took.
    pub elapsed_seconds: f64,
}

/// The document of a run.
pub fn fragmentation_document(subject: &FragmentationSubject<'_>) -> FragmentationDocument {
    let FragmentationSubject { workload, host, outcome, .. } = subject;
    let runs: Vec<_> = outcome.runs.iter().map(run_entry).collect();
    FragmentationDocument {
        schema: "leandisk.bench-fragmentation/1",
        dir: subject.dir.to_owned(),
        host: Host { filesystem: outcome.host_filesystem.clone(), devices: outcome.devices.clone() },
        host_is_made: host.is_some(),
        host_is_aged: host.is_some_and(|host| host.is_aged),
        workload: WorkloadEntry {
            files: workload.files as u64,
            size_bytes: workload.size_bytes,
            write_bytes: workload.write_bytes,
            read_bytes: outcome.read_bytes,
            flush_bytes: workload.flush_bytes,
            order: match workload.order {
                _ if workload.churns => "churn",
                Order::Turns => "turns",
                Order::Random => "random",
            },
        },
        iterations: subject.iterations,
        missing: outcome.missing.clone(),
        compared: compared(&runs),
        runs,
        published: PUBLISHED,
        kept: outcome.kept.as_ref().map(|path| path.display().to_string()),
        elapsed_seconds: subject.elapsed_seconds,
    }
}

fn run_entry(run: &FragmentationRun) -> RunEntry {
    let figure = |of: &dyn Fn(&FragmentationFacts) -> Option<f64>| Figure::of(run.iterations.iter().map(of));
    RunEntry {
        format: run.format.name(),
        server: run.server.name(),
        writing: phase_entry(run.iterations.iter().map(|facts| &facts.writing), |counters| counters.writes),
        reading: phase_entry(run.iterations.iter().map(|facts| &facts.reading), |counters| counters.reads),
        container_runs: figure(&|facts| Some(number(facts.container_runs))),
        host_extents: figure(&|facts| facts.host_extents.map(number)),
        allocated_bytes: figure(&|facts| Some(number(facts.allocated_bytes))),
        server_cpu_seconds: figure(&|facts| facts.server_cpu_seconds),
    }
}

/// `own` are the transfers of the same direction as the guests' requests.
fn phase_entry<'a>(
    iterations: impl Iterator<Item = &'a Traffic> + Clone,
    own: impl Fn(&bench::Counters) -> u64,
) -> PhaseEntry {
    let figure = |of: &dyn Fn(&Traffic) -> Option<f64>| Figure::of(iterations.clone().map(of));
    let per_second = |count: Option<f64>, traffic: &Traffic| quotient(count?, traffic.interval.seconds);
    let splits = |traffic: &Traffic| {
        traffic.interval.device.map(|device| number(own(&device).saturating_sub(traffic.requests)))
    };
    let transfers = |traffic: &Traffic| {
        traffic.interval.device.map(|device| number(device.reads.saturating_add(device.writes)))
    };
    let moved = |traffic: &Traffic| {
        traffic.interval.device.map(|device| number(device.read_bytes.saturating_add(device.written_bytes)))
    };
    PhaseEntry {
        elapsed_seconds: figure(&|traffic| Some(traffic.interval.seconds)),
        requests: figure(&|traffic| Some(number(traffic.requests))),
        bytes_per_second: figure(&|traffic| per_second(Some(number(traffic.bytes)), traffic)),
        split_ios: figure(&splits),
        split_ios_per_second: figure(&|traffic| per_second(splits(traffic), traffic)),
        physical_transfers: figure(&transfers),
        physical_transfers_per_second: figure(&|traffic| per_second(transfers(traffic), traffic)),
        physical_transfer_bytes: figure(&|traffic| quotient(moved(traffic)?, transfers(traffic)?)),
        average_queue_length: figure(&|traffic| {
            let queued = traffic.interval.device.map(|device| number(device.queued_ms) / 1000.0);
            per_second(queued, traffic)
        }),
        cpu_idle: figure(&|traffic| traffic.interval.cpu_idle),
    }
}

fn mean(figure: Option<&Figure>) -> Option<f64> {
    figure.map(Figure::mean)
}

fn compared(runs: &[RunEntry]) -> Vec<Compared> {
    let ours = runs.iter().filter(|run| run.server == "leandisk");
    let pairs = ours.filter_map(|our| {
        let other = runs.iter().find(|other| other.format == our.format && other.server != our.server)?;
        let pieces =
            |run: &RunEntry| Some(mean(run.container_runs.as_ref())? + mean(run.host_extents.as_ref())?);
        Some(Compared {
            format: our.format,
            pieces_ratio: pieces(our).zip(pieces(other)).and_then(|(our, other)| quotient(our, other)),
            writing: compared_phase(&our.writing, &other.writing),
            reading: compared_phase(&our.reading, &other.reading),
        })
    });
    pairs.collect()
}

fn compared_phase(our: &PhaseEntry, other: &PhaseEntry) -> ComparedPhase {
    let ratio = |of: fn(&PhaseEntry) -> Option<&Figure>| quotient(mean(of(our))?, mean(of(other))?);
    ComparedPhase {
        split_ios_fewer: ratio(|phase| phase.split_ios.as_ref()).map(|ratio| 1.0 - ratio),
        physical_transfers_fewer: ratio(|phase| phase.physical_transfers.as_ref()).map(|ratio| 1.0 - ratio),
        physical_transfer_bytes_ratio: ratio(|phase| phase.physical_transfer_bytes.as_ref()),
        bytes_per_second_ratio: ratio(|phase| phase.bytes_per_second.as_ref()),
    }
}

/// A phase in words: splits, transfers, KB a transfer, MB/s, queue, idle, spread.
fn cells(phase: &PhaseEntry) -> [String; 7] {
    let spread = phase.elapsed_seconds.as_ref().map_or(0.0, Figure::spread);
    [
        short(mean(phase.split_ios_per_second.as_ref())),
        short(mean(phase.physical_transfers_per_second.as_ref())),
        short(mean(phase.physical_transfer_bytes.as_ref()).map(|bytes| bytes / 1024.0)),
        short(mean(phase.bytes_per_second.as_ref()).map(|rate| rate / 1e6)),
        short(mean(phase.average_queue_length.as_ref())),
        mean(phase.cpu_idle.as_ref()).map_or("-".into(), percent),
        format!("{:.0} %", spread * 100.0),
    ]
}

fn about(document: &FragmentationDocument) -> String {
    let WorkloadEntry { files, size_bytes, write_bytes, order, .. } = document.workload;
    let how = match order {
        "churn" => "under small files that come, change and go".to_owned(),
        "random" => format!("growing in turns, {} anywhere", human_bytes(write_bytes)),
        _ => format!("growing in turns, {} at a time", human_bytes(write_bytes)),
    };
    let made = match (document.host_is_made, document.host_is_aged) {
        (_, true) => ", aged",
        (true, false) => ", fresh",
        _ => "",
    };
    format!(
        "{files} disks of {} {how}, in {}{made}",
        human_bytes(size_bytes),
        document.host.said(&document.dir)
    )
}

fn less(share: Option<f64>) -> String {
    match share {
        None => "-".into(),
        Some(share) if share < 0.0 => format!("{} more", percent(-share)),
        Some(share) => format!("{} fewer", percent(share)),
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{}x", short(Some(ratio))))
}

/// What changes with Leandisk, a line for each format and phase.
fn comparison(document: &FragmentationDocument) -> Vec<String> {
    let mut lines = Vec::new();
    for Compared { format, pieces_ratio, writing, reading } in &document.compared {
        for (name, phase) in [("writing", writing), ("reading", reading)] {
            lines.push(format!(
                "{format}, {name}: split I/Os {}, physical transfers {}, KB per transfer {}, MB/s {}",
                less(phase.split_ios_fewer),
                less(phase.physical_transfers_fewer),
                times(phase.physical_transfer_bytes_ratio),
                times(phase.bytes_per_second_ratio)
            ));
        }
        if let Some(ratio) = pieces_ratio {
            lines.push(format!("{format}: {} of the extents and runs", percent(*ratio)));
        }
    }
    lines
}

fn published(document: &FragmentationDocument) -> String {
    let one = |one: &Published| {
        format!(
            "{}: split I/Os {}, physical transfers {}, KB per transfer {:.1}x, MB/s {:.1}x",
            one.machine,
            less(Some(one.split_ios_fewer)),
            less(Some(one.physical_transfers_fewer)),
            one.physical_transfer_bytes_ratio,
            one.bytes_per_second_ratio
        )
    };
    let said: Vec<_> = document.published.iter().map(one).collect();
    format!("published of prevention inside guests: {}", said.join("; "))
}

fn notes(document: &FragmentationDocument) -> Vec<String> {
    let mut notes = vec![
        "split I/Os are transfers of the device beyond one for each request of the guests; while these write, those of \
         metadata are among them"
            .to_owned(),
    ];
    if document.host.devices.is_empty() {
        notes.push("no block device beneath is known: its transfers are not counted".to_owned());
    } else {
        notes.push("transfers are all that the device did meanwhile, whoever asked for them".to_owned());
    }
    notes.extend(document.missing.clone());
    notes.extend(document.kept.as_ref().map(|kept| format!("the disks are in {}", printable(kept))));
    notes
}

/// The document as a table.
pub fn fragmentation_text(document: &FragmentationDocument, palette: Palette) -> String {
    let mut out = String::new();
    out.push_str(&painted("", Some("  "), &about(document), |line| palette.strong(line)));
    let head = format!(
        "  {:<6} {:<8} {:<7} {:>8} {:>9} {:>8} {:>6} {:>5} {:>6} {:>6}",
        "format", "server", "phase", "splits/s", "transf./s", "KB each", "MB/s", "queue", "idle", "spread"
    );
    let _ = writeln!(out, "{}", palette.faint(&head));
    for run in &document.runs {
        for (name, phase) in [("writing", &run.writing), ("reading", &run.reading)] {
            let [splits, transfers, kb, rate, queue, idle, spread] = cells(phase);
            let _ = writeln!(
                out,
                "  {:<6} {:<8} {name:<7} {splits:>8} {transfers:>9} {kb:>8} {rate:>6} {queue:>5} {idle:>6} {spread:>6}",
                run.format, run.server
            );
        }
        let (runs, extents) = (count(run.container_runs.as_ref()), count(run.host_extents.as_ref()));
        let _ = writeln!(out, "{:18}runs in the images: {runs}, extents on the host: {extents}", "");
    }
    let lines = comparison(document);
    if !lines.is_empty() {
        let _ = writeln!(out, "  {}", palette.strong("leandisk compared with qemu-nbd"));
        for line in lines {
            out.push_str(&wrapped("  ", Some("    "), &line));
        }
    }
    for line in notes(document) {
        out.push_str(&wrapped("  ", None, &line));
    }
    out.push_str(&painted("  ", None, &published(document), |line| palette.faint(line)));
    let took = seconds(document.elapsed_seconds);
    let _ = writeln!(out, "  iterations: {}, which took {took}", document.iterations);
    out
}

/// The document as a page.
pub fn fragmentation_page(document: &FragmentationDocument) -> String {
    let page = ReportPage {
        title: "What fragmentation costs, and what prevents it".into(),
        about: about(document),
        verdict: verdict(document),
        charts: charts(document),
        layers: vec![table(document), compared_table(document)],
        notes: notes(document),
        colophon: format!(
            "leandisk {} bench fragmentation; iterations: {}, which took {}",
            env!("CARGO_PKG_VERSION"),
            document.iterations,
            seconds(document.elapsed_seconds)
        ),
        ..ReportPage::default()
    };
    report_html(&page, None)
}

fn verdict(document: &FragmentationDocument) -> String {
    let said: Vec<_> = document
        .compared
        .iter()
        .filter_map(|one| Some(format!("{} of those of {}", percent(one.pieces_ratio?), one.format)))
        .collect();
    if said.is_empty() {
        return String::new();
    }
    format!("Of the extents and runs that qemu-nbd leaves, Leandisk leaves {}.", said.join(", "))
}

fn charts(document: &FragmentationDocument) -> Vec<BarChart> {
    type Of = fn(&RunEntry) -> Option<f64>;
    let charts: [(&str, Of); 5] = [
        ("Host extents and container runs", |run| {
            Some(mean(run.host_extents.as_ref())? + mean(run.container_runs.as_ref())?)
        }),
        ("Physical transfers while writing", |run| mean(run.writing.physical_transfers.as_ref())),
        ("Physical transfers while reading", |run| mean(run.reading.physical_transfers.as_ref())),
        ("MB/s written", |run| Some(mean(run.writing.bytes_per_second.as_ref())? / 1e6)),
        ("MB/s read", |run| Some(mean(run.reading.bytes_per_second.as_ref())? / 1e6)),
    ];
    let bars = |of: Of| {
        let bar = |run: &RunEntry| {
            let value = of(run)?;
            let label = format!("{} {}", run.format, run.server);
            Some(Bar { label, value, said: short(Some(value)), is_other: run.server != "leandisk" })
        };
        document.runs.iter().filter_map(bar).collect::<Vec<_>>()
    };
    charts.into_iter().map(|(title, of)| BarChart { title: title.to_owned(), bars: bars(of) }).collect()
}

fn table(document: &FragmentationDocument) -> Table {
    let numbers = [
        "Split I/Os/s",
        "Transfers/s",
        "KB/transfer",
        "MB/s",
        "Queue",
        "CPU idle",
        "Spread",
        "Runs",
        "Extents",
    ];
    let texts = ["Format", "Server", "Phase"].map(Column::text);
    let mut rows = Vec::new();
    for run in &document.runs {
        for (name, phase) in [("writing", &run.writing), ("reading", &run.reading)] {
            let own = [run.format, run.server, name].map(str::to_owned);
            let pieces = [count(run.container_runs.as_ref()), count(run.host_extents.as_ref())];
            rows.push(own.into_iter().chain(cells(phase)).chain(pieces).collect());
        }
    }
    Table {
        title: "Servers".into(),
        columns: texts.into_iter().chain(numbers.map(Column::number)).collect(),
        rows,
        empty: None,
        remark: Some(format!(
            "Means of all iterations ({}); the spread is that of the times. Transfers are those of the device, the queue is its \
             average length, runs are in the images, extents on the host. Images are read {} at a time.",
            document.iterations,
            human_bytes(document.workload.read_bytes)
        )),
    }
}

fn compared_table(document: &FragmentationDocument) -> Table {
    let numbers = ["Split I/Os", "Physical transfers", "KB per transfer", "MB/s"].map(Column::number);
    let row = |name: String, phase: &ComparedPhase| {
        vec![
            name,
            less(phase.split_ios_fewer),
            less(phase.physical_transfers_fewer),
            times(phase.physical_transfer_bytes_ratio),
            times(phase.bytes_per_second_ratio),
        ]
    };
    let mut rows = Vec::new();
    for one in &document.compared {
        rows.push(row(format!("{}, writing", one.format), &one.writing));
        rows.push(row(format!("{}, reading", one.format), &one.reading));
    }
    for one in &document.published {
        let phase = ComparedPhase {
            split_ios_fewer: Some(one.split_ios_fewer),
            physical_transfers_fewer: Some(one.physical_transfers_fewer),
            physical_transfer_bytes_ratio: Some(one.physical_transfer_bytes_ratio),
            bytes_per_second_ratio: Some(one.bytes_per_second_ratio),
        };
        rows.push(row(format!("published: {}", one.machine), &phase));
    }
    Table {
        title: "Leandisk against qemu-nbd".into(),
        columns: [Column::text("What")].into_iter().chain(numbers).collect(),
        rows,
        empty: Some("There is nothing to compare.".into()),
        remark: Some("Published figures are those of prevention inside guests.".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::{Counters, HostKind, Interval, ServerKind};

    /// Two seconds in which 10 requests were made, and `writes` and `reads` transfers of 4 KiB.
    fn traffic(reads: u64, writes: u64) -> Traffic {
        let device = Counters {
            reads,
            read_bytes: reads * 4096,
            writes,
            written_bytes: writes * 4096,
            queued_ms: 3000,
        };
        let interval = Interval { seconds: 2.0, device: Some(device), cpu_idle: Some(0.5) };
        Traffic { interval, requests: 10, bytes: 10 << 20 }
    }

    fn run(server: ServerKind, transfers: [u64; 2], extents: u64) -> FragmentationRun {
        let iteration = |transfers| FragmentationFacts {
            writing: traffic(2, transfers),
            reading: traffic(transfers, 0),
            container_runs: 4,
            host_extents: Some(extents),
            allocated_bytes: 1 << 20,
            server_cpu_seconds: None,
        };
        let iterations = transfers.map(iteration).into();
        FragmentationRun { format: image::Format::Qcow2, server, iterations }
    }

    fn document(runs: Vec<FragmentationRun>) -> FragmentationDocument {
        let workload = Workload {
            files: 2,
            size_bytes: 1 << 20,
            write_bytes: 4096,
            order: Order::Turns,
            churns: false,
            flush_bytes: 4096,
        };
        let outcome = FragmentationOutcome {
            host_filesystem: Some("xfs".into()),
            devices: vec!["<loop>".into()],
            missing: None,
            read_bytes: 1 << 20,
            kept: None,
            runs,
        };
        fragmentation_document(&FragmentationSubject {
            dir: "/a<b",
            workload,
            host: Some(HostVolume { kind: HostKind::Xfs, is_aged: true }),
            iterations: 2,
            outcome: &outcome,
            elapsed_seconds: 1.0,
        })
    }

    fn both() -> FragmentationDocument {
        let other = run(ServerKind::QemuNbd("q".into()), [30, 50], 96);
        document(vec![other, run(ServerKind::Leandisk("l".into()), [8, 12], 1)])
    }

    #[test]
    fn figures_are_those_of_the_counters() {
        let json = serde_json::to_value(both()).unwrap();
        let writing = &json["runs"][0]["writing"];
        for (name, values) in [
            ("split_ios", [20.0, 40.0]),
            ("split_ios_per_second", [10.0, 20.0]),
            ("physical_transfers", [32.0, 52.0]),
            ("physical_transfers_per_second", [16.0, 26.0]),
            ("physical_transfer_bytes", [4096.0, 4096.0]),
            ("average_queue_length", [1.5, 1.5]),
            ("cpu_idle", [0.5, 0.5]),
            ("bytes_per_second", [5_242_880.0, 5_242_880.0]),
        ] {
            assert_eq!(writing[name]["values"], serde_json::json!(values), "{name}");
        }
        assert_eq!(json["runs"][1]["writing"]["split_ios"]["values"], serde_json::json!([0.0, 2.0]));
        let compared = &json["compared"][0];
        assert_eq!(compared["pieces_ratio"], 0.05);
        assert_eq!(compared["reading"]["physical_transfers_fewer"], 0.75);
        assert!((compared["writing"]["split_ios_fewer"].as_f64().unwrap() - 29.0 / 30.0).abs() < 1e-9);
        assert!(json["runs"][0]["server_cpu_seconds"].is_null());
    }

    #[test]
    fn text_and_page_say_the_same() {
        let text = fragmentation_text(&both(), Palette { colors: false });
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.starts_with(
            "2 disks of 1 MiB growing in turns, 4 KiB at a time, in /a<b (xfs on <loop>), aged"
        ));
        assert!(
            text.contains("qcow2, reading: split I/Os 97 % fewer, physical transfers 75 % fewer"),
            "{text}"
        );
        assert!(text.contains("KB per transfer 42.7x, MB/s 1.3x; desktop"), "{text}");
        let page = fragmentation_page(&both());
        assert!(page.contains("/a&lt;b (xfs on &lt;loop&gt;)") && page.contains("97 % fewer"));
        assert_eq!(page.matches("<rect class=\"bar\"").count(), 5, "a bar for each chart");
        let alone = document(vec![run(ServerKind::Leandisk("l".into()), [1, 1], 1)]);
        assert!(!fragmentation_text(&alone, Palette { colors: false }).contains("compared with"));
    }
}
