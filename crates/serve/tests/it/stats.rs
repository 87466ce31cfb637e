//! What is measured through the server is told at the control socket, as vscsiStats' table, and over HTTP; what is
//! recorded can be read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::common::client::*;
use crate::common::{RawDisk, Served};
use block::{EditDisk, LiveDisk, ReadAt};
use extent::{VirtualOffset, VirtualSpan};
use serve::monitor::{Direction, Monitor, Monitored, Snapshot};
use serve::nbd::Options;
use serve::stats::{Answer, MetricsServer, Question, StatsServer, query, socket_beside};
use serve::trace::{Op, TraceFacts, TraceOptions, TraceReader, TraceWriter, measure};

const MIB: u64 = 1 << 20;

fn at(offset: u64) -> VirtualOffset {
    VirtualOffset::new(offset)
}

/// 10 sequential writes of 4 KiB, then 5 reads backwards.
fn use_disk(client: &mut Client) {
    for index in 0..10 {
        client.write(index * 4096, &[1; 4096]);
    }
    for index in (0..5).rev() {
        client.read(index * 8192, 512);
    }
    assert_eq!(client.ask(FLUSH, 0, 0, 0, &[]).error, 0);
    assert_eq!(client.ask(TRIM, 0, 0, 4096, &[]).error, 0);
}

fn check(snapshot: &Snapshot) {
    assert_eq!((snapshot.logical.reads, snapshot.logical.writes), (5, 10));
    assert_eq!((snapshot.logical.read_bytes, snapshot.logical.written_bytes), (5 * 512, 40960));
    assert_eq!((snapshot.sequential, snapshot.flushes, snapshot.zeroed, snapshot.failed), (9, 1, 1, 0));
    assert_eq!(snapshot.io_length.reads.counts[0], 5);
    assert_eq!(snapshot.io_length.writes.counts[4], 10, "exactly 4096 has a bin of its own");
    // Each write began one block behind the end of the one before.
    let one = snapshot.seek_distance.writes.limits.iter().position(|limit| *limit == 1).unwrap();
    assert_eq!(snapshot.seek_distance.writes.counts[one], 9);
    assert_eq!(snapshot.seek_distance.reads.max, Some(-16));
    assert_eq!(snapshot.latency.all.count(), 15);
    assert_eq!(snapshot.outstanding.all.counts[0], 15, "one at a time");
    assert!(snapshot.read_latency.quantile_ns(0.99).unwrap() > 0);
}

#[test]
fn the_control_socket_answers() {
    let served = Served::new(MIB);
    let path = socket_beside(&served.socket);
    let _stats = StatsServer::start(&path, vec![served.export.clone()], None).unwrap();
    use_disk(&mut Client::ready(&served.socket, "disk"));
    let ask = |question| query(&path, &question).unwrap();
    let Answer::Exports(exports) = ask(Question::Snapshot { export: None }) else { panic!("no exports") };
    assert_eq!((exports.len(), exports[0].name.as_str(), exports[0].len_bytes), (1, "disk", MIB));
    check(exports[0].snapshot.as_ref().unwrap());
    let Answer::Text(csv) = ask(Question::Csv { export: Some("disk".into()) }) else { panic!("no text") };
    assert!(csv.contains("count,15\n") && csv.contains("10,4096\n"), "{csv}");
    assert!(matches!(ask(Question::Snapshot { export: Some("other".into()) }), Answer::Error(_)));

    // By hand, as a script would.
    let talk = |line: &[u8]| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(talk(b"{\"command\":\"snapshot\"}\n").starts_with("{\"exports\":[{\"name\":\"disk\""));
    assert!(talk(b"nonsense\n").starts_with("{\"error\":\"not a question"));
    assert!(talk(b"{\"command\":\"stop\"}\n").starts_with("{\"error\":"));
    let mut long = UnixStream::connect(&path).unwrap();
    // It may hang up before all was sent.
    let _ = long.write_all(&vec![b' '; 1 << 20]);
    let mut rest = Vec::new();
    let _ = long.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn prometheus_reads_metrics_on_loopback_alone() {
    let served = Served::new(MIB);
    let exports = vec![served.export.clone()];
    assert!(MetricsServer::start("0.0.0.0:0".parse().unwrap(), exports.clone()).is_err());
    let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), exports).unwrap();
    use_disk(&mut Client::ready(&served.socket, "disk"));
    let get = |request: &str| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let page = get("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"));
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    assert!(body.contains("leandisk_writes_total{export=\"disk\"} 10\n"), "{body}");
    assert!(body.contains("leandisk_latency_seconds_count{export=\"disk\",direction=\"read\"} 5\n"));
    // Each line is a comment, or a name with labels and a number.
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(
            name.starts_with("leandisk_") && name.ends_with('}') && value.parse::<f64>().is_ok(),
            "{line}"
        );
    }
    assert!(get("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(get("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(get("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    assert_eq!(get(&"x".repeat(40_000)), "", "too long a head");
}

#[test]
fn a_wrapped_disk_is_measured_as_the_server_measures() {
    let dir = testkit::scratch();
    let monitor = Monitor::new();
    let disk = Monitored::new(RawDisk::create(&dir.path().join("disk"), MIB), monitor.clone());
    for index in 0..10 {
        disk.write_at(at(index * 4096), &[1; 4096]).unwrap();
    }
    for index in (0..5).rev() {
        disk.read_at(at(index * 8192), &mut [0; 512]).unwrap();
    }
    disk.flush().unwrap();
    disk.discard(VirtualSpan::from_zero(4096)).unwrap();
    check(&monitor.snapshot());
    // The backend merged ten writes into two.
    for _ in 0..2 {
        monitor.transferred(Direction::Write, 20480);
    }
    monitor.prevented_fragment();
    let snapshot = monitor.snapshot();
    assert_eq!(snapshot.bytes_per_transfer(), Some(20480.0));
    assert_eq!(snapshot.split_ratio(), Some(2.0 / 15.0));
    assert_eq!((snapshot.sequential_share(), snapshot.fragments_prevented), (Some(0.6), 1));
}

#[test]
fn an_export_is_used_without_a_network() {
    let served = Served::new(MIB);
    let export = &served.export;
    export.write(at(0), &[7; 4096], true).unwrap();
    let mut read = [0; 4096];
    export.read(at(0), &mut read).unwrap();
    assert_eq!(read, [7; 4096]);
    export.write_zeroes(VirtualSpan::from_zero(512), false, true, true).unwrap();
    export.trim(VirtualSpan::from_zero(512), true).unwrap();
    export.flush().unwrap();
    let allocation = export.allocation(VirtualSpan::from_zero(MIB)).unwrap();
    assert_eq!(allocation.last().unwrap().span.end().get(), MIB);
    assert!(allocation.last().unwrap().is_hole);
    assert_eq!(export.read(at(MIB), &mut read).unwrap_err().kind, serve::FaultKind::Invalid);
    let snapshot = served.monitor.snapshot();
    assert_eq!((snapshot.logical.reads, snapshot.logical.writes, snapshot.failed), (2, 1, 1));
}

#[test]
fn a_recording_holds_every_request() {
    let dir = testkit::scratch();
    let path = dir.path().join("trace");
    let facts = TraceFacts { disk_bytes: MIB, sector_bytes: 512 };
    let file = std::fs::File::create(&path).unwrap();
    let trace = Arc::new(TraceWriter::new(file, facts, TraceOptions::default()).unwrap());
    let mut served = Served::with(MIB, Options::default(), |export| export.traced(trace.clone()));
    let mut client = Client::ready(&served.socket, "disk");
    use_disk(&mut client);
    assert_eq!(client.ask(WRITE, FUA, MIB - 512, 512, &[1; 512]).error, 0);
    client.request(DISC, 0, 0, 0, 0, &[]);
    served.stop().unwrap();
    assert_eq!(trace.finish().unwrap().dropped, 0);

    let open = || TraceReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let mut reader = open();
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        events.push(event);
    }
    assert_eq!(events.len(), 18);
    for (index, event) in events[..10].iter().enumerate() {
        assert_eq!((event.op, event.offset, event.len_bytes), (Op::Write, index as u64 * 4096, 4096));
    }
    assert_eq!((events[14].op, events[15].op, events[16].op), (Op::Read, Op::Flush, Op::Trim));
    assert!(events[17].fua && !events[16].fua && events.iter().all(|event| !event.is_failed));
    let live = served.monitor.snapshot();
    let recorded = measure(&mut open()).unwrap();
    assert_eq!(recorded.io_length, live.io_length);
    assert_eq!(recorded.seek_distance, live.seek_distance);
    assert_eq!(recorded.seek_distance_last16, live.seek_distance_last16);
    assert_eq!(recorded.logical, live.logical);
}
