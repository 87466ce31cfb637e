//! What is written is read; damage, limits and order.

use std::io::Write;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;

use super::layout::{BLOCK_HEADER_BYTES, HEADER_BYTES};
use super::measure::{REORDER_COUNT, Steps};
use super::*;

#[derive(Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Write for Out {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const FACTS: TraceFacts = TraceFacts { disk_bytes: 1 << 40, sector_bytes: 512 };

fn record(events: &[Event], options: TraceOptions) -> (Vec<u8>, TraceTotals) {
    let out = Out::default();
    let writer = TraceWriter::new(out.clone(), FACTS, options).unwrap();
    events.iter().for_each(|event| writer.record(*event));
    let totals = writer.finish().unwrap();
    let bytes = out.0.lock().unwrap().clone();
    (bytes, totals)
}

fn read(bytes: &[u8]) -> Result<(Vec<Event>, u64, bool)> {
    let mut reader = TraceReader::new(bytes)?;
    assert_eq!(reader.facts(), FACTS);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        events.push(event);
    }
    Ok((events, reader.dropped(), reader.is_truncated()))
}

fn event() -> impl Strategy<Value = Event> {
    let numbers = (any::<u64>(), prop_oneof![0u64..10, any::<u64>()], 0u64..1 << 50, any::<u64>());
    (0usize..7, any::<bool>(), any::<bool>(), numbers).prop_map(
        |(op, fua, is_failed, (offset, len_bytes, at_us, latency_us))| {
            let op = Op::ALL[op];
            let (offset, len_bytes) = if op == Op::Flush { (0, 0) } else { (offset, len_bytes) };
            Event { op, fua, is_failed, offset, len_bytes, at_us, latency_us }
        },
    )
}

proptest! {
    #[test]
    fn what_is_recorded_is_read(events in proptest::collection::vec(event(), 0..300)) {
        let (bytes, totals) = record(&events, TraceOptions::default());
        prop_assert_eq!(totals.written_bytes, bytes.len() as u64);
        prop_assert_eq!(read(&bytes).unwrap(), (events, 0, false));
    }

    #[test]
    fn damage_is_an_error_or_a_shorter_recording(
        events in proptest::collection::vec(event(), 1..50),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let (bytes, _) = record(&events, TraceOptions::default());
        let cut = at.index(bytes.len());
        if let Ok((read, _, is_truncated)) = read(&bytes[..cut]) {
            prop_assert!(is_truncated || read.is_empty() || read == events);
            prop_assert!(events.starts_with(&read));
        }
        let mut flipped = bytes.clone();
        flipped[cut] ^= 1 << bit;
        // Only what no checksum covers may pass: a block's own header.
        if let Ok((read, ..)) = read(&flipped) {
            let block_header = HEADER_BYTES..HEADER_BYTES + BLOCK_HEADER_BYTES;
            prop_assert!(block_header.contains(&cut), "{} {:?}", cut, read);
        }
    }
}

fn write(at: u64) -> Event {
    Event {
        op: Op::Write,
        fua: false,
        is_failed: false,
        offset: at * 4096,
        len_bytes: 4096,
        at_us: at * 10,
        latency_us: 7,
    }
}

#[test]
fn what_is_broken_is_told_apart() {
    let (bytes, _) = record(&[write(0), write(1)], TraceOptions::default());
    let cause = |bytes: &[u8]| read(bytes).unwrap_err().cause::<Corrupt>().copied();
    let flipped = |at: usize| {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        cause(&flipped)
    };
    assert_eq!(cause(&bytes[..HEADER_BYTES - 1]), Some(Corrupt::Short));
    assert_eq!(flipped(0), Some(Corrupt::Foreign));
    assert_eq!(flipped(HEADER_BYTES - 1), Some(Corrupt::Header));
    assert_eq!(flipped(HEADER_BYTES), Some(Corrupt::Block));
    assert_eq!(flipped(HEADER_BYTES + BLOCK_HEADER_BYTES), Some(Corrupt::Block), "its checksum");
}

#[test]
fn a_recording_stays_below_its_limit_and_says_what_is_missing() {
    let events: Vec<Event> = (0..5000).map(write).collect();
    let (bytes, totals) = record(&events, TraceOptions { bytes_max: 4000, queue_count: 10_000 });
    assert!(bytes.len() <= 4000 && bytes.len() > 3800, "{}", bytes.len());
    let (read, dropped, is_truncated) = read(&bytes).unwrap();
    assert_eq!(read[..], events[..read.len()]);
    assert_eq!(read.len() as u64, totals.recorded);
    assert_eq!(totals.recorded + totals.dropped, 5000);
    assert_eq!(dropped, totals.dropped, "the file tells it too");
    assert!(!is_truncated);
}

#[test]
fn a_sequential_stream_takes_few_bytes_a_request() {
    let events: Vec<Event> = (0..5000).map(write).collect();
    let (bytes, _) = record(&events, TraceOptions { queue_count: 10_000, ..TraceOptions::default() });
    assert!(bytes.len() < 5000 * 8, "{}", bytes.len());
}

/// A request every now and then, so that the thread is never idle for a second.
#[test]
fn a_block_is_written_though_requests_keep_coming() {
    let out = Out::default();
    let writer = TraceWriter::new(out.clone(), FACTS, TraceOptions::default()).unwrap();
    let is_written = (0..3000).any(|at| {
        writer.record(write(at));
        std::thread::sleep(Duration::from_millis(20));
        out.0.lock().unwrap().len() > HEADER_BYTES
    });
    assert!(is_written, "nothing within a minute");
    let bytes = out.0.lock().unwrap().clone();
    let (events, dropped, is_truncated) = read(&bytes).unwrap();
    assert!(!events.is_empty() && dropped == 0 && !is_truncated);
}

/// Far more requests than may be held, measured as they are: what is popped too early would be counted in another order.
#[test]
fn what_waits_to_be_measured_is_bounded() {
    let count = 3 * REORDER_COUNT as u64;
    let events: Vec<Event> = (0..count).map(write).collect();
    let options = TraceOptions { queue_count: events.len() + 1, ..TraceOptions::default() };
    let (bytes, _) = record(&events, options);
    let mut steps = Steps::default();
    for event in &events {
        steps.push(event.at_us, (true, event.offset, event.len_bytes, event.latency_us, false));
        assert!(steps.waiting.len() <= 2 * REORDER_COUNT);
        while steps.pop_early().is_some() {}
    }
    let snapshot = measure(&mut TraceReader::new(bytes.as_slice()).unwrap()).unwrap();
    assert_eq!((snapshot.sequential, snapshot.logical.writes), (count - 1, count));
}

#[test]
fn the_data_path_never_waits() {
    struct Stuck(Receiver<()>, bool);
    impl Write for Stuck {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            if self.1 {
                let _ = self.0.recv();
            }
            self.1 = true;
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (release, gate) = std::sync::mpsc::channel();
    let options = TraceOptions { bytes_max: 1 << 30, queue_count: 10 };
    let writer = TraceWriter::new(Stuck(gate, false), FACTS, options).unwrap();
    // Far more than a block and the queue hold.
    for at in 0..100_000 {
        writer.record(write(at));
    }
    drop(release);
    let totals = writer.finish().unwrap();
    assert!(totals.dropped > 0);
    assert_eq!(totals.recorded + totals.dropped, 100_000);
}

#[test]
fn histograms_of_a_recording_count_arrivals_in_order() {
    let mut first = write(0);
    first.latency_us = 100;
    let mut second = write(1);
    second.latency_us = 20;
    // Recorded as they complete: the second first.
    let (bytes, _) = record(&[second, first], TraceOptions::default());
    let snapshot = measure(&mut TraceReader::new(bytes.as_slice()).unwrap()).unwrap();
    assert_eq!(snapshot.sequential, 1);
    assert_eq!((snapshot.outstanding.all.min, snapshot.outstanding.all.max), (Some(1), Some(2)));
    assert_eq!(snapshot.latency.writes.sum, 120);
    assert_eq!(snapshot.elapsed_ns, 100_000);
}
