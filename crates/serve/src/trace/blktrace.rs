//! Reads recordings of blktrace into the histograms that Leandisk has of its own disks.
//!
//! As vscsiStats sees a disk, an I/O arrives when the kernel issues it to the device, and ends when the device completes it.
//! What programs asked for (blktrace's Q) counts as logical, what the device was asked for (D) as physical.
//!
//! Source: the kernel's `include/uapi/linux/blktrace_api.h`. blktrace writes a file for each CPU in the order of their
//! times; they are merged here.
//!
//! Invariant: memory does not grow with the recording: I/Os under way are bounded.

use std::collections::HashMap;
use std::io::{self, BufReader, Read};

use block::{Error, FieldValue, Result};
use zerocopy::native_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::corrupt::Corrupt;
use super::read_up_to;
use crate::monitor::{Completion, Direction, Io, Recorder, Snapshot};

/// What failed if a file cannot be read.
const WHAT: &str = "read the recording of blktrace";
/// `BLK_IO_TRACE_MAGIC | BLK_IO_TRACE_VERSION`.
const MAGIC: u32 = 0x6561_7407;
const MAGIC_MASK: u32 = 0xffff_ff00;
/// `enum blktrace_act`: asked for, issued to the device, completed by it.
const ACT_QUEUE: u32 = 1;
const ACT_ISSUE: u32 = 7;
const ACT_COMPLETE: u32 = 8;
/// `enum blktrace_cat`, in the upper half of the action.
const TC_READ: u32 = 1 << 16;
const TC_WRITE: u32 = 1 << (16 + 1);
const TC_NOTIFY: u32 = 1 << (16 + 10);
const TC_DISCARD: u32 = 1 << (16 + 13);
const TC_FLUSH: u32 = 1 << (16 + 2);
const SECTOR_BYTES: u64 = 512;
/// The most I/Os that are followed at a time; of more, the latency is not known.
const UNDER_WAY_COUNT_MAX: usize = 1 << 16;

/// `struct blk_io_trace`, in the byte order of the machine that recorded.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Record {
    magic: U32,
    sequence: U32,
    /// Nanoseconds.
    time: U64,
    sector: U64,
    bytes: U32,
    action: U32,
    pid: U32,
    device: U32,
    cpu: U32,
    error: U16,
    /// Bytes that follow and are skipped.
    pdu_len: U16,
}
const _: () = assert!(size_of::<Record>() == 48);

/// What of a record matters here.
#[derive(Clone, Copy)]
struct Step {
    time_ns: u64,
    sector: u64,
    len_bytes: u64,
    action: u32,
    device: u32,
    is_failed: bool,
}

/// One file.
struct Stream<R> {
    from: BufReader<R>,
    is_swapped: Option<bool>,
    next: Option<Step>,
    is_truncated: bool,
}

impl<R: Read> Stream<R> {
    fn new(from: R) -> Result<Self> {
        let mut stream =
            Self { from: BufReader::new(from), is_swapped: None, next: None, is_truncated: false };
        stream.advance()?;
        Ok(stream)
    }

    fn advance(&mut self) -> Result<()> {
        let mut bytes = [0; size_of::<Record>()];
        let len = read_up_to(&mut self.from, &mut bytes, WHAT)?;
        self.is_truncated = len > 0 && len < bytes.len();
        self.next = None;
        if len < bytes.len() {
            return Ok(());
        }
        let record = Record::read_from_bytes(&bytes).map_err(|_| Error::corrupt(Corrupt::Blktrace))?;
        let step = self.decode(&record)?;
        let pdu_len = u64::from(self.fix16(record.pdu_len.get()));
        let skipped = io::copy(&mut self.from.by_ref().take(pdu_len), &mut io::sink())
            .map_err(|error| Error::io("read the recording of blktrace", error))?;
        self.is_truncated = skipped < pdu_len;
        self.next = Some(step);
        Ok(())
    }

    fn decode(&mut self, record: &Record) -> Result<Step> {
        let magic = record.magic.get();
        let is_swapped =
            *self.is_swapped.get_or_insert(magic.swap_bytes() & MAGIC_MASK == MAGIC & MAGIC_MASK);
        let magic = self.fix32(magic);
        if magic & MAGIC_MASK != MAGIC & MAGIC_MASK {
            return Err(Error::corrupt(Corrupt::Blktrace).field(
                "magic",
                FieldValue::hex(magic),
                format!("{MAGIC:#x}"),
            ));
        }
        if magic != MAGIC {
            return Err(Error::unsupported("blktrace").field(
                "version",
                magic & !MAGIC_MASK,
                MAGIC & !MAGIC_MASK,
            ));
        }
        let fix64 = |value: u64| if is_swapped { value.swap_bytes() } else { value };
        Ok(Step {
            time_ns: fix64(record.time.get()),
            sector: fix64(record.sector.get()),
            len_bytes: u64::from(self.fix32(record.bytes.get())),
            action: self.fix32(record.action.get()),
            device: self.fix32(record.device.get()),
            is_failed: record.error.get() != 0,
        })
    }

    fn fix32(&self, value: u32) -> u32 {
        if self.is_swapped == Some(true) { value.swap_bytes() } else { value }
    }

    fn fix16(&self, value: u16) -> u16 {
        if self.is_swapped == Some(true) { value.swap_bytes() } else { value }
    }
}

/// What a recording holds.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// What was measured.
    pub snapshot: Snapshot,
    /// Whether a file ended in the middle of a record.
    pub is_truncated: bool,
}

/// Whether a file that begins with `start` is a recording of blktrace, in either byte order and of any version.
pub fn begins_like_one(start: &[u8]) -> bool {
    let Some(magic) = start.first_chunk::<4>() else { return false };
    [u32::from_le_bytes(*magic), u32::from_be_bytes(*magic)]
        .iter()
        .any(|magic| magic & MAGIC_MASK == MAGIC & MAGIC_MASK)
}

/// Hands what programs asked for, offset and length in bytes, to `take`, in order of time.
pub fn each_request<R: Read>(files: Vec<R>, mut take: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
    each_step(files, |step| {
        let is_request = step.action & (TC_NOTIFY | TC_DISCARD) == 0 && step.action & 0xffff == ACT_QUEUE;
        let is_access = step.action & (TC_READ | TC_WRITE) != 0 && step.len_bytes > 0;
        if is_request && is_access {
            take(step.sector.saturating_mul(SECTOR_BYTES), step.len_bytes)
        } else {
            Ok(())
        }
    })
    .map(drop)
}

/// Hands the steps of all files to `take`, in order of time; says whether a file ended in the middle of a record.
fn each_step<R: Read>(files: Vec<R>, mut take: impl FnMut(&Step) -> Result<()>) -> Result<bool> {
    let mut streams = files.into_iter().map(Stream::new).collect::<Result<Vec<_>>>()?;
    loop {
        let earliest = streams
            .iter_mut()
            .filter(|stream| stream.next.is_some())
            .min_by_key(|stream| stream.next.map(|step| step.time_ns));
        let Some(stream) = earliest else { break };
        if let Some(step) = stream.next {
            take(&step)?;
        }
        stream.advance()?;
    }
    Ok(streams.iter().any(|stream| stream.is_truncated))
}

/// Reads the files of one recording, of all devices or of one (the kernel's number: major << 20 | minor).
pub fn read<R: Read>(files: Vec<R>, device: Option<u32>) -> Result<Recording> {
    let mut counted = Counted::default();
    let is_truncated = each_step(files, |step| {
        if device.is_none_or(|device| device == step.device) {
            counted.take(step);
        }
        Ok(())
    })?;
    Ok(Recording { snapshot: counted.finish(), is_truncated })
}

#[derive(Default)]
struct Counted {
    recorder: Recorder,
    /// By device and sector: when they were issued.
    under_way: HashMap<(u32, u64), (u64, Direction)>,
    queued: Snapshot,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Counted {
    fn take(&mut self, step: &Step) {
        if step.action & TC_NOTIFY != 0 {
            return;
        }
        self.first_ns.get_or_insert(step.time_ns);
        self.last_ns = self.last_ns.max(step.time_ns);
        let act = step.action & 0xffff;
        if step.action & TC_DISCARD != 0 {
            if act == ACT_ISSUE {
                self.recorder.zero();
            }
            return;
        }
        if step.len_bytes == 0 {
            if step.action & TC_FLUSH != 0 && act == ACT_QUEUE {
                self.recorder.flush();
            }
            return;
        }
        let direction = match (step.action & TC_READ != 0, step.action & TC_WRITE != 0) {
            (true, false) => Direction::Read,
            (false, true) => Direction::Write,
            _ => return,
        };
        match act {
            ACT_QUEUE => self.queue(step, direction),
            ACT_ISSUE => self.issue(step, direction),
            ACT_COMPLETE => self.complete(step),
            _ => {}
        }
    }

    fn queue(&mut self, step: &Step, direction: Direction) {
        let logical = &mut self.queued.logical;
        let (count, bytes) = match direction {
            Direction::Read => (&mut logical.reads, &mut logical.read_bytes),
            Direction::Write => (&mut logical.writes, &mut logical.written_bytes),
        };
        *count += 1;
        *bytes = bytes.saturating_add(step.len_bytes);
    }

    fn issue(&mut self, step: &Step, direction: Direction) {
        let offset = step.sector.saturating_mul(SECTOR_BYTES);
        self.recorder.arrive(&Io { direction, offset, len_bytes: step.len_bytes }, step.time_ns);
        let key = (step.device, step.sector);
        if self.under_way.len() < UNDER_WAY_COUNT_MAX || self.under_way.contains_key(&key) {
            // Issued once more: the completion of the first was lost.
            if let Some((_, lost)) = self.under_way.insert(key, (step.time_ns, direction)) {
                self.recorder.abandon(lost);
            }
        } else {
            self.recorder.abandon(direction);
        }
    }

    fn complete(&mut self, step: &Step) {
        let Some((issued_ns, direction)) = self.under_way.remove(&(step.device, step.sector)) else { return };
        let latency_ns = step.time_ns.saturating_sub(issued_ns);
        self.recorder.complete(&Completion { direction, latency_ns, is_ok: !step.is_failed });
    }

    fn finish(self) -> Snapshot {
        let mut snapshot = self.recorder.snapshot();
        snapshot.physical = snapshot.logical;
        snapshot.logical = self.queued.logical;
        snapshot.elapsed_ns = self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns));
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(is_big: bool, time: u64, sector: u64, bytes: u32, action: u32, pdu: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        macro_rules! put {
            ($($value:expr),*) => {$(
                out.extend_from_slice(&if is_big { $value.to_be_bytes() } else { $value.to_le_bytes() });
            )*};
        }
        put!(
            MAGIC,
            1u32,
            time,
            sector,
            bytes,
            action,
            7u32,
            8u32 << 20,
            0u32,
            0u16,
            u16::try_from(pdu.len()).unwrap()
        );
        out.extend_from_slice(pdu);
        out
    }

    const READ: u32 = TC_READ;
    const WRITE: u32 = TC_WRITE;

    fn two_cpus(is_big: bool) -> Vec<Vec<u8>> {
        let first = [
            record(is_big, 0, 0, 0, TC_NOTIFY | 1, b"a name"),
            record(is_big, 1000, 8, 4096, READ | ACT_QUEUE, b""),
            record(is_big, 1500, 16, 4096, READ | ACT_QUEUE, b""),
            // Two merged into one.
            record(is_big, 2000, 8, 8192, READ | ACT_ISSUE, b"pdu"),
            record(is_big, 90_000, 100, 512, WRITE | ACT_ISSUE, b""),
        ];
        let second = [
            record(is_big, 52_000, 8, 8192, READ | ACT_COMPLETE, b""),
            record(is_big, 80_000, 100, 512, WRITE | ACT_QUEUE, b""),
            record(is_big, 95_000, 100, 512, WRITE | ACT_COMPLETE, b""),
        ];
        vec![first.concat(), second.concat()]
    }

    #[test]
    fn issue_and_completion_make_the_histograms_in_either_byte_order() {
        for is_big in [false, true] {
            let files = two_cpus(is_big);
            let Recording { snapshot, is_truncated } =
                read(files.iter().map(Vec::as_slice).collect(), None).unwrap();
            assert!(!is_truncated);
            assert_eq!((snapshot.logical.reads, snapshot.logical.writes), (2, 1));
            assert_eq!((snapshot.physical.reads, snapshot.physical.writes), (1, 1));
            assert_eq!((snapshot.latency.reads.sum, snapshot.latency.writes.sum), (50, 5));
            assert_eq!(snapshot.io_length.reads.max, Some(8192));
            // From block 23 to block 100.
            assert_eq!(snapshot.seek_distance.all.sum, 77);
            assert_eq!(snapshot.interarrival.all.sum, 88);
            assert_eq!(snapshot.outstanding.all.max, Some(1));
            assert_eq!(snapshot.elapsed_ns, 94_000);
            assert!(files.iter().all(|file| begins_like_one(file)));
            let mut requests = Vec::new();
            let take = |offset, len_bytes| {
                requests.push((offset, len_bytes));
                Ok(())
            };
            each_request(files.iter().map(Vec::as_slice).collect(), take).unwrap();
            assert_eq!(requests, [(8 * 512, 4096), (16 * 512, 4096), (100 * 512, 512)]);
        }
    }

    #[test]
    fn another_device_is_left_out() {
        let files = two_cpus(false);
        let recording = read(files.iter().map(Vec::as_slice).collect(), Some(1)).unwrap();
        assert_eq!(recording.snapshot.physical.operations(), 0);
    }

    #[test]
    fn what_is_no_recording_is_refused_and_a_cut_one_is_read() {
        let file = two_cpus(false).remove(0);
        let truncated = read(vec![&file[..file.len() - 1]], None).unwrap();
        assert!(truncated.is_truncated);
        assert_eq!(truncated.snapshot.logical.reads, 2);
        let mut other = file.clone();
        other[0] = 8;
        let error = read(vec![other.as_slice()], None).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Unsupported, "{error}");
        other[3] = 0;
        let error = read(vec![other.as_slice()], None).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Corrupt, "{error}");
    }
}
