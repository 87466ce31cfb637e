//! Writes a recording, on a thread of its own.
//!
//! Invariants: recording never waits, it drops and counts what it dropped; a recording never exceeds its limit.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use block::{Error, Result};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::layout::{BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockHeader, HEADER_BYTES, Header, MAGIC, VERSION};
use super::record::{Encoder, RECORD_BYTES_MAX};
use super::{Event, TraceFacts};

/// A block is written when it holds this much.
const BLOCK_BYTES: usize = 64 << 10;
/// How long a block waits to be filled, since its first record.
const BLOCK_AGE_MAX: Duration = Duration::from_secs(1);

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
    dropped: Arc<AtomicU64>,
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
        let dropped = Arc::new(AtomicU64::new(0));
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

struct Blocks<W> {
    out: W,
    bytes_max: u64,
    written_bytes: u64,
    block: Encoder,
    recorded: u64,
    dropped: Arc<AtomicU64>,
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
