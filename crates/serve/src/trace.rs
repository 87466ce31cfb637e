//! A recording of all requests to a disk: compact, bounded, versioned. The format is `docs/formats/trace.md`.
//!
//! Invariants: recording never waits, it drops and counts what it dropped; a recording never exceeds its limit; a
//! recording that was cut short is read up to where it is whole.
//!
//! Absent on purpose: contents of requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use block::{Error, Result};
use layout::{BLOCK_MAGIC, BlockHeader, HEADER_BYTES, Header, VERSION};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::monitor::{Completion, Direction, Io, Recorder, Snapshot};

/// How a recording begins.
pub const MAGIC: [u8; 8] = *b"LDTRACE\0";

/// The structs of a recording, little-endian.
mod layout {
    use zerocopy::little_endian::{U32, U64};
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

    pub(super) const VERSION: u32 = 1;
    pub(super) const HEADER_BYTES: usize = 64;
    pub(super) const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"TBLK");

    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    pub(super) struct Header {
        pub(super) magic: [u8; 8],
        pub(super) version: U32,
        /// Bytes of this header.
        pub(super) header_bytes: U32,
        /// Nanoseconds since 1970 at which times count from zero.
        pub(super) began_unix_ns: U64,
        /// Length of the disk in bytes.
        pub(super) disk_bytes: U64,
        pub(super) sector_bytes: U32,
        pub(super) reserved: [u8; 24],
        /// CRC-32C of the bytes before.
        pub(super) checksum: U32,
    }
    const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
    #[repr(C)]
    pub(super) struct BlockHeader {
        pub(super) magic: U32,
        /// Bytes of records that follow.
        pub(super) payload_bytes: U32,
        pub(super) record_count: U32,
        /// CRC-32C of the records.
        pub(super) checksum: U32,
        /// Microseconds from which the first record's time counts.
        pub(super) base_us: U64,
        /// Requests that were dropped since the block before.
        pub(super) dropped: U64,
    }
    const _: () = assert!(size_of::<BlockHeader>() == 32);
}

const BLOCK_HEADER_BYTES: usize = size_of::<BlockHeader>();
/// A block is written when it holds this much.
const BLOCK_BYTES: usize = 64 << 10;
/// The most that a reader takes for a block: ours are shorter.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a record: one of its own, and four numbers.
const RECORD_BYTES_MAX: usize = 1 + 4 * 10;
/// How long a block waits to be filled, since its first record.
const BLOCK_AGE_MAX: Duration = Duration::from_secs(1);

/// What was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// Read.
    Read = 0,
    /// Write.
    Write = 1,
    /// Flush.
    Flush = 2,
    /// Trim.
    Trim = 3,
    /// Make zeros.
    Zero = 4,
    /// Read ahead.
    Cache = 5,
    /// Ask what is allocated.
    Status = 6,
}

impl Op {
    const ALL: [Self; 7] =
        [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero, Self::Cache, Self::Status];
}

const OP_MASK: u8 = 0x07;
const FUA: u8 = 0x08;
const FAILED: u8 = 0x10;
const KNOWN_BITS: u8 = OP_MASK | FUA | FAILED;

/// A request, with when it came and how it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What was asked.
    pub op: Op,
    /// Whether it was to be stable before the reply.
    pub fua: bool,
    /// Whether it failed.
    pub is_failed: bool,
    /// Where, in bytes.
    pub offset: u64,
    /// How much.
    pub len_bytes: u64,
    /// When it came, in microseconds since the recording began.
    pub at_us: u64,
    /// How long it took, in microseconds.
    pub latency_us: u64,
}

/// What a recording says of its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceFacts {
    /// Length of the disk in bytes.
    pub disk_bytes: u64,
    /// The disk's sector size in bytes.
    pub sector_bytes: u32,
}

/// Bounds of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceOptions {
    /// The most bytes that are written.
    pub bytes_max: u64,
    /// The most requests that wait to be written.
    pub queue_count: usize,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { bytes_max: 1 << 30, queue_count: 1 << 16 }
    }
}

/// How a recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceTotals {
    /// Requests recorded.
    pub recorded: u64,
    /// Requests dropped.
    pub dropped: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

enum Message {
    Event(Event),
    Finish,
}

/// Records requests. Cheap to tell, from any thread.
pub struct TraceWriter {
    queue: SyncSender<Message>,
    dropped: std::sync::Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<Result<TraceTotals>>>>,
}

impl TraceWriter {
    /// Begins a recording into `out`.
    pub fn new(
        mut out: impl Write + Send + 'static,
        facts: TraceFacts,
        options: TraceOptions,
    ) -> Result<Self> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut header = Header {
            magic: MAGIC,
            version: U32::new(VERSION),
            header_bytes: U32::new(64),
            began_unix_ns: U64::new(u64::try_from(began.as_nanos()).unwrap_or(0)),
            disk_bytes: U64::new(facts.disk_bytes),
            sector_bytes: U32::new(facts.sector_bytes),
            reserved: [0; 24],
            checksum: U32::new(0),
        };
        header.checksum = U32::new(crc32c::crc32c(&header.as_bytes()[..HEADER_BYTES - 4]));
        out.write_all(header.as_bytes()).map_err(|error| Error::io("write the recording", error))?;

        let (queue, events) = sync_channel(options.queue_count.max(1));
        let dropped = std::sync::Arc::new(AtomicU64::new(0));
        let blocks = Blocks {
            out,
            bytes_max: options.bytes_max,
            written_bytes: HEADER_BYTES as u64,
            block: Encoder::default(),
            recorded: 0,
            dropped: dropped.clone(),
            dropped_told: 0,
        };
        let thread = std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || blocks.run(&events))
            .map_err(|error| Error::io("start the recording's thread", error))?;
        Ok(Self { queue, dropped, thread: Mutex::new(Some(thread)) })
    }

    /// Records `event`, or counts it as dropped if there is no room.
    pub fn record(&self, event: Event) {
        if self.queue.try_send(Message::Event(event)).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Writes what waits, and ends. The error is what stopped the recording, if something did.
    pub fn finish(&self) -> Result<TraceTotals> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return Err(Error::invalid("the recording has ended")) };
        // Fails only if the thread ended with an error of its own.
        let _ = self.queue.send(Message::Finish);
        thread.join().unwrap_or_else(|_| Err(Error::invalid("the recording's thread panicked")))
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Records of one block so far.
#[derive(Default)]
struct Encoder {
    bytes: Vec<u8>,
    count: u32,
    base_us: u64,
    last_us: u64,
    last_end: u64,
}

impl Encoder {
    fn push(&mut self, event: &Event) {
        if self.count == 0 {
            (self.base_us, self.last_us, self.last_end) = (event.at_us, event.at_us, 0);
        }
        let flags = if event.fua { FUA } else { 0 } | if event.is_failed { FAILED } else { 0 };
        self.bytes.push(event.op as u8 | flags);
        push_number(&mut self.bytes, difference(event.at_us, self.last_us));
        push_number(&mut self.bytes, event.latency_us);
        self.last_us = event.at_us;
        if event.op != Op::Flush {
            push_number(&mut self.bytes, difference(event.offset, self.last_end));
            push_number(&mut self.bytes, event.len_bytes);
            self.last_end = event.offset.wrapping_add(event.len_bytes);
        }
        self.count += 1;
    }
}

struct Blocks<W> {
    out: W,
    bytes_max: u64,
    written_bytes: u64,
    block: Encoder,
    recorded: u64,
    dropped: std::sync::Arc<AtomicU64>,
    dropped_told: u64,
}

impl<W: Write> Blocks<W> {
    fn run(mut self, events: &Receiver<Message>) -> Result<TraceTotals> {
        // When what is held must be written.
        let mut due = Instant::now() + BLOCK_AGE_MAX;
        loop {
            match events.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Message::Event(event)) => {
                    if self.block.count == 0 {
                        due = Instant::now() + BLOCK_AGE_MAX;
                    }
                    self.push(&event);
                    let is_full = self.block.bytes.len() + RECORD_BYTES_MAX > BLOCK_BYTES;
                    if is_full || Instant::now() >= due {
                        self.write_block()?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.write_block()?;
                    due = Instant::now() + BLOCK_AGE_MAX;
                }
                Ok(Message::Finish) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.write_block()?;
        Ok(TraceTotals {
            recorded: self.recorded,
            dropped: self.dropped.load(Relaxed),
            written_bytes: self.written_bytes,
        })
    }

    /// Room for this block's header, and for that of a last one that says what was dropped, is kept.
    fn push(&mut self, event: &Event) {
        let held = self.block.bytes.len() + RECORD_BYTES_MAX + 2 * BLOCK_HEADER_BYTES;
        if self.written_bytes.saturating_add(held as u64) > self.bytes_max {
            self.dropped.fetch_add(1, Relaxed);
        } else {
            self.block.push(event);
            self.recorded += 1;
        }
    }

    fn write_block(&mut self) -> Result<()> {
        let dropped = self.dropped.load(Relaxed);
        let has_room = self.written_bytes.saturating_add(BLOCK_HEADER_BYTES as u64) <= self.bytes_max;
        if (self.block.count == 0 && dropped == self.dropped_told) || !has_room {
            return Ok(());
        }
        // A last block is the only one without records: until then its news can wait.
        let is_full = self.written_bytes.saturating_add((3 * BLOCK_HEADER_BYTES + RECORD_BYTES_MAX) as u64)
            > self.bytes_max;
        if self.block.count == 0 && is_full && self.dropped_told > 0 {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        let header = BlockHeader {
            magic: U32::new(BLOCK_MAGIC),
            payload_bytes: U32::new(u32::try_from(block.bytes.len()).expect("a block is short")),
            record_count: U32::new(block.count),
            checksum: U32::new(crc32c::crc32c(&block.bytes)),
            base_us: U64::new(block.base_us),
            dropped: U64::new(dropped - self.dropped_told),
        };
        let bytes = [header.as_bytes(), &block.bytes].concat();
        let failed = |error| Error::io("write the recording", error);
        self.out.write_all(&bytes).and_then(|()| self.out.flush()).map_err(failed)?;
        self.dropped_told = dropped;
        self.written_bytes += bytes.len() as u64;
        Ok(())
    }
}

/// A difference of either sign as a number that is small if the difference is: zigzag, modulo 2^64.
fn difference(to: u64, from: u64) -> u64 {
    let difference = to.wrapping_sub(from).cast_signed();
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

fn apply_difference(from: u64, zigzag: u64) -> u64 {
    let difference = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
    from.wrapping_add(difference)
}

/// LEB128.
fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads a recording.
pub struct TraceReader<R> {
    from: R,
    facts: TraceFacts,
    began_unix_ns: u64,
    records: Vec<u8>,
    used: usize,
    left: u32,
    last_us: u64,
    last_end: u64,
    dropped: u64,
    is_truncated: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads the header.
    pub fn new(mut from: R) -> Result<Self> {
        let mut bytes = [0; HEADER_BYTES];
        if read_up_to(&mut from, &mut bytes)? < HEADER_BYTES {
            return Err(Error::corrupt("recording is shorter than its header"));
        }
        let header = Header::read_from_bytes(&bytes).map_err(|_| Error::corrupt("recording header"))?;
        if header.magic != MAGIC {
            return Err(Error::corrupt("not a recording of Leandisk"));
        }
        let (version, header_bytes) = (header.version.get(), header.header_bytes.get());
        if version != VERSION {
            return Err(Error::unsupported("recording").field("version", version, VERSION));
        }
        if header_bytes != 64 {
            return Err(Error::corrupt("recording").field("header length", header_bytes, 64));
        }
        let checksum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        if header.checksum.get() != checksum {
            return Err(Error::corrupt("recording header").field(
                "checksum",
                header.checksum.get(),
                checksum,
            ));
        }
        Ok(Self {
            from,
            facts: TraceFacts {
                disk_bytes: header.disk_bytes.get(),
                sector_bytes: header.sector_bytes.get(),
            },
            began_unix_ns: header.began_unix_ns.get(),
            records: Vec::new(),
            used: 0,
            left: 0,
            last_us: 0,
            last_end: 0,
            dropped: 0,
            is_truncated: false,
        })
    }

    /// What the recording says of its disk.
    pub fn facts(&self) -> TraceFacts {
        self.facts
    }

    /// Nanoseconds since 1970 at which it began.
    pub fn began_unix_ns(&self) -> u64 {
        self.began_unix_ns
    }

    /// Requests that were dropped, as far as it was read.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether it ended in the middle of a block.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// The next request, in order of completion. `None` at the end.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        while self.left == 0 {
            if self.used != self.records.len() {
                return Err(Error::corrupt("recording: a block holds more than its records"));
            }
            if !self.next_block()? {
                return Ok(None);
            }
        }
        self.left -= 1;
        self.decode().map(Some).ok_or_else(|| Error::corrupt("recording: malformed record"))
    }

    fn next_block(&mut self) -> Result<bool> {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        let len = read_up_to(&mut self.from, &mut bytes)?;
        if len < BLOCK_HEADER_BYTES {
            self.is_truncated = len > 0;
            return Ok(false);
        }
        let header = BlockHeader::read_from_bytes(&bytes).map_err(|_| Error::corrupt("recording block"))?;
        if header.magic.get() != BLOCK_MAGIC {
            return Err(Error::corrupt("recording block").field("magic", header.magic.get(), BLOCK_MAGIC));
        }
        let payload_bytes = header.payload_bytes.get() as usize;
        if payload_bytes > BLOCK_BYTES_MAX {
            return Err(Error::corrupt("recording block").field("length", payload_bytes, "at most 1 MiB"));
        }
        self.records.resize(payload_bytes, 0);
        self.used = 0;
        if read_up_to(&mut self.from, &mut self.records)? < payload_bytes {
            self.is_truncated = true;
            self.records.clear();
            return Ok(false);
        }
        let checksum = crc32c::crc32c(&self.records);
        if checksum != header.checksum.get() {
            return Err(Error::corrupt("recording block").field("checksum", header.checksum.get(), checksum));
        }
        self.left = header.record_count.get();
        self.last_us = header.base_us.get();
        self.last_end = 0;
        self.dropped = self.dropped.saturating_add(header.dropped.get());
        Ok(true)
    }

    fn decode(&mut self) -> Option<Event> {
        let mut bytes = &self.records[self.used..];
        let (first, rest) = bytes.split_first()?;
        bytes = rest;
        if first & !KNOWN_BITS != 0 {
            return None;
        }
        let op = *Op::ALL.get(usize::from(first & OP_MASK))?;
        let at_us = apply_difference(self.last_us, take_number(&mut bytes)?);
        let latency_us = take_number(&mut bytes)?;
        let (mut offset, mut len_bytes) = (0, 0);
        if op != Op::Flush {
            offset = apply_difference(self.last_end, take_number(&mut bytes)?);
            len_bytes = take_number(&mut bytes)?;
            self.last_end = offset.wrapping_add(len_bytes);
        }
        self.last_us = at_us;
        self.used = self.records.len() - bytes.len();
        let (fua, is_failed) = (first & FUA != 0, first & FAILED != 0);
        Some(Event { op, fua, is_failed, offset, len_bytes, at_us, latency_us })
    }
}

/// Fills `buf` as far as there are bytes.
fn read_up_to(from: &mut impl Read, buf: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match from.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("read the recording", error)),
        }
    }
    Ok(len)
}

/// How many requests may complete before one that came earlier, for the histograms of a recording.
const REORDER_COUNT: usize = 1 << 16;

/// A request that arrives or ends: whether it writes, offset, length, latency in microseconds, whether it failed.
type Request = (bool, u64, u64, u64, bool);

/// Arrivals and ends of requests, put in order of time as far as they are held.
#[derive(Default)]
struct Steps {
    /// When, in microseconds; an end before arrivals of the same moment, unless it is its own; the request.
    waiting: BinaryHeap<Reverse<(u64, u8, Request)>>,
}

impl Steps {
    fn push(&mut self, at_us: u64, request: Request) {
        let latency_us = request.3;
        // Of what happens in one microsecond, completions come first.
        self.waiting.push(Reverse((at_us, 1u8, request)));
        let ended_us = at_us.saturating_add(latency_us);
        self.waiting.push(Reverse((ended_us, u8::from(latency_us == 0) * 2, request)));
    }

    /// The earliest, if more wait than may.
    fn pop_early(&mut self) -> Option<(u64, u8, Request)> {
        // Each request is two steps; one more is about to come.
        if self.waiting.len() > 2 * (REORDER_COUNT - 1) { self.pop() } else { None }
    }

    fn pop(&mut self) -> Option<(u64, u8, Request)> {
        self.waiting.pop().map(|Reverse(step)| step)
    }
}

/// The histograms of a recording, in memory that does not grow with it.
pub fn measure<R: Read>(reader: &mut TraceReader<R>) -> Result<Snapshot> {
    let mut recorder = Recorder::default();
    let mut steps = Steps::default();
    let mut end_us = 0;
    while let Some(event) = reader.next_event()? {
        end_us = end_us.max(event.at_us.saturating_add(event.latency_us));
        let is_write = match event.op {
            Op::Read => false,
            Op::Write => true,
            Op::Flush => {
                recorder.flush();
                continue;
            }
            Op::Trim | Op::Zero => {
                recorder.zero();
                continue;
            }
            Op::Cache | Op::Status => continue,
        };
        steps.push(event.at_us, (is_write, event.offset, event.len_bytes, event.latency_us, event.is_failed));
        while let Some(step) = steps.pop_early() {
            replay(&mut recorder, step);
        }
    }
    while let Some(step) = steps.pop() {
        replay(&mut recorder, step);
    }
    let mut snapshot = recorder.snapshot();
    snapshot.elapsed_ns = end_us.saturating_mul(1000);
    Ok(snapshot)
}

fn replay(recorder: &mut Recorder, step: (u64, u8, Request)) {
    let (at_us, phase, (is_write, offset, len_bytes, latency_us, is_failed)) = step;
    let direction = if is_write { Direction::Write } else { Direction::Read };
    if phase == 1 {
        recorder.arrive(&Io { direction, offset, len_bytes }, at_us.saturating_mul(1000));
    } else {
        let latency_ns = latency_us.saturating_mul(1000);
        recorder.complete(&Completion { direction, latency_ns, is_ok: !is_failed });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

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
}
