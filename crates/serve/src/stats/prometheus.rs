//! Metrics for Prometheus: its text format (version 0.0.4), and a server of one page on loopback.

use std::fmt::Write;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use block::{Error, Result};

use super::endpoint::{CLIENT_TIME_MAX, Endpoint, Listening, Stream, read_until};
use super::export_stats::ExportStats;
use crate::export::Export;
use crate::monitor::{Histogram, Snapshot, Split};

/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
const MICROSECONDS_PER_SECOND: i64 = 1_000_000;

/// Serves `/metrics`. Stops when dropped.
pub struct MetricsServer {
    address: SocketAddr,
    _endpoint: Endpoint,
}

impl MetricsServer {
    /// Serves the metrics of `exports` at `address`, which must be of loopback: anyone who can connect may read.
    pub fn start(address: SocketAddr, exports: Vec<Arc<Export>>) -> Result<Self> {
        Self::bind(address).and_then(|listener| Self::start_on(listener, exports))
    }

    /// A socket for it at `address`, which must be of loopback. Who connects waits until it is served.
    pub fn bind(address: SocketAddr) -> Result<TcpListener> {
        if !address.ip().is_loopback() {
            return Err(Error::refused(format!("metrics are for loopback, and {address} is not"))
                .hint("use 127.0.0.1 or [::1], and a proxy if others shall read them"));
        }
        TcpListener::bind(address).map_err(|error| Error::io(format!("listen on {address}"), error))
    }

    /// Serves them at a socket of [`Self::bind`].
    pub fn start_on(listener: TcpListener, exports: Vec<Arc<Export>>) -> Result<Self> {
        let failed = |error: io::Error| Error::io("listen", error);
        let address = listener.local_addr().map_err(failed)?;
        let endpoint = Endpoint::start(Listening::Tcp(listener), move |stream| serve(stream, &exports));
        Ok(Self { address, _endpoint: endpoint.map_err(failed)? })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn serve(stream: &mut dyn Stream, exports: &[Arc<Export>]) {
    let Some(head) = read_until(stream, b"\r\n\r\n", HEAD_BYTES_MAX, Instant::now() + CLIENT_TIME_MAX) else {
        return;
    };
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => {
            let stats: Vec<ExportStats> = exports.iter().map(|export| ExportStats::of(export)).collect();
            ("200 OK", metrics(&stats))
        }
        (b"GET" | b"HEAD", _) => ("404 Not Found", "See /metrics.\n".to_owned()),
        _ => ("405 Method Not Allowed", "Only GET.\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if method == b"HEAD" { "" } else { &body };
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

/// The metrics of `exports`, each metric's samples together as the format wants them.
pub fn metrics(exports: &[ExportStats]) -> String {
    let mut text = String::new();
    let measured: Vec<(String, &Snapshot)> =
        exports.iter().filter_map(|export| Some((escape(&export.name), export.snapshot.as_ref()?))).collect();
    for (name, help, get) in COUNTERS {
        let _ = writeln!(text, "# HELP leandisk_{name} {help}\n# TYPE leandisk_{name} counter");
        for (export, snapshot) in &measured {
            let _ = writeln!(text, "leandisk_{name}{{export=\"{export}\"}} {}", get(snapshot));
        }
    }
    for (name, help, is_time, get) in HISTOGRAMS {
        let _ = writeln!(text, "# HELP leandisk_{name} {help}\n# TYPE leandisk_{name} histogram");
        for (export, snapshot) in &measured {
            let split = get(snapshot);
            for (direction, histogram) in [("read", &split.reads), ("write", &split.writes)] {
                push_histogram(
                    &mut text,
                    name,
                    &format!("export=\"{export}\",direction=\"{direction}\""),
                    histogram,
                    is_time,
                );
            }
        }
    }
    text.push_str("# HELP leandisk_export_failed Whether the export failed for good.\n# TYPE leandisk_export_failed gauge\n");
    for export in exports {
        let failed = u8::from(export.failure.is_some());
        let _ = writeln!(text, "leandisk_export_failed{{export=\"{}\"}} {failed}", escape(&export.name));
    }
    text
}

type Counter = (&'static str, &'static str, fn(&Snapshot) -> u64);

const COUNTERS: [Counter; 12] = [
    ("reads_total", "Reads asked of the disk.", |s| s.logical.reads),
    ("read_bytes_total", "Bytes read from the disk.", |s| s.logical.read_bytes),
    ("writes_total", "Writes asked of the disk.", |s| s.logical.writes),
    ("written_bytes_total", "Bytes written to the disk.", |s| s.logical.written_bytes),
    ("physical_reads_total", "Reads asked of the host.", |s| s.physical.reads),
    ("physical_read_bytes_total", "Bytes read from the host.", |s| s.physical.read_bytes),
    ("physical_writes_total", "Writes asked of the host.", |s| s.physical.writes),
    ("physical_written_bytes_total", "Bytes written to the host.", |s| s.physical.written_bytes),
    ("sequential_total", "Reads and writes that began where the one before ended.", |s| s.sequential),
    ("flushes_total", "Flushes.", |s| s.flushes),
    ("failed_total", "Reads and writes that failed.", |s| s.failed),
    ("fragments_prevented_total", "Allocations that continued a run.", |s| s.fragments_prevented),
];

type HistogramMetric = (&'static str, &'static str, bool, fn(&Snapshot) -> &Split);

const HISTOGRAMS: [HistogramMetric; 6] = [
    ("io_length_bytes", "Lengths of I/Os.", false, |s| &s.io_length),
    ("seek_distance_blocks", "From the last block of one I/O to the first of the next.", false, |s| {
        &s.seek_distance
    }),
    ("seek_distance_last16_blocks", "The same to the closest of 16.", false, |s| &s.seek_distance_last16),
    ("latency_seconds", "From arrival to completion.", true, |s| &s.latency),
    ("interarrival_seconds", "From one arrival to the next.", true, |s| &s.interarrival),
    ("outstanding", "I/Os under way when one arrives.", false, |s| &s.outstanding),
];

fn push_histogram(text: &mut String, name: &str, labels: &str, histogram: &Histogram, is_time: bool) {
    let value = |value: i64| if is_time { seconds(value) } else { value.to_string() };
    let mut total = 0u64;
    for (limit, count) in histogram.limits.iter().zip(&histogram.counts) {
        total += count;
        let _ = writeln!(text, "leandisk_{name}_bucket{{{labels},le=\"{}\"}} {total}", value(*limit));
    }
    let count = histogram.count();
    let _ = writeln!(text, "leandisk_{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "leandisk_{name}_sum{{{labels}}} {}", value(histogram.sum));
    let _ = writeln!(text, "leandisk_{name}_count{{{labels}}} {count}");
}

/// Microseconds as seconds, exactly.
fn seconds(microseconds: i64) -> String {
    let (whole, part) = (microseconds / MICROSECONDS_PER_SECOND, microseconds % MICROSECONDS_PER_SECOND);
    let text = format!("{whole}.{part:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{MICROSECONDS_BINS, Tally};

    #[test]
    fn times_are_exact_seconds() {
        assert_eq!([1, 10, 1_000_000, 1_500_000, 0].map(seconds), ["0.000001", "0.00001", "1", "1.5", "0"]);
    }

    #[test]
    fn labels_are_escaped_and_buckets_cumulative() {
        let mut snapshot = Snapshot::default();
        let mut tally = Tally::new(&MICROSECONDS_BINS);
        [5, 50].into_iter().for_each(|latency| tally.record(latency));
        snapshot.latency.reads = tally.histogram();
        let export = ExportStats {
            name: "a\"b\\\n".into(),
            len_bytes: 0,
            is_read_only: false,
            failure: None,
            snapshot: Some(snapshot),
        };
        let text = metrics(&[export]);
        let label = r#"export="a\"b\\\n",direction="read""#;
        assert!(
            text.contains(&format!("leandisk_latency_seconds_bucket{{{label},le=\"0.0001\"}} 2\n")),
            "{text}"
        );
        assert!(text.contains(&format!("leandisk_latency_seconds_bucket{{{label},le=\"0.00001\"}} 1\n")));
        assert!(text.contains(&format!("leandisk_latency_seconds_sum{{{label}}} 0.000055\n")));
    }
}
