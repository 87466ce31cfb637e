//! What a block device is asked while an activity runs: the kernel's own record of each request, from tracefs.
//!
//! Invariants: what others trace is not touched: the record is in an instance of its own, which goes with the value, and those
//! of runs that were killed go when the next run begins.
//!
//! Source: `Documentation/trace/ftrace.rst` (instances, filters), `include/trace/events/block.h`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serve::monitor::{Completion, Direction, Io, Recorder, Snapshot};

use crate::children::{find_program, run};

const TRACEFS: &str = "/sys/kernel/tracing";
const PREFIX: &str = "leandisk-bench-";
/// For each processor.
const BUFFER_KIB: u64 = 32 << 10;
const EVENTS: [&str; 3] = ["block_rq_issue", "block_rq_complete", "block_split"];
const SECTOR_BYTES: u64 = 512;

/// A request to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it was given to the device, in nanoseconds of a clock that does not go back.
    pub issued_ns: u64,
    /// When it was done.
    pub ended_ns: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// How much; 0 is a flush.
    pub len_bytes: u64,
    /// Whether it writes.
    pub writes: bool,
}

/// All requests of a while.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recorded {
    /// In the order in which they were given to the device.
    pub requests: Vec<Request>,
    /// How often the kernel cut a request in two because the device does not take more at once.
    pub cuts: u64,
}

impl Recorded {
    /// Counted as `serve` counts what its clients ask.
    pub fn snapshot(&self) -> Snapshot {
        let mut recorder = Recorder::default();
        let mut ends: Vec<(u64, Direction, u64)> = Vec::new();
        for request in self.requests.iter().filter(|request| request.len_bytes > 0) {
            let direction = if request.writes { Direction::Write } else { Direction::Read };
            ends.retain(|&(ended_ns, direction, latency_ns)| {
                let is_over = ended_ns <= request.issued_ns;
                if is_over {
                    recorder.complete(&Completion { direction, latency_ns, is_ok: true });
                }
                !is_over
            });
            let io = Io { direction, offset: request.offset, len_bytes: request.len_bytes };
            recorder.arrive(&io, request.issued_ns);
            ends.push((request.ended_ns, direction, request.ended_ns - request.issued_ns));
        }
        for (_, direction, latency_ns) in ends {
            recorder.complete(&Completion { direction, latency_ns, is_ok: true });
        }
        recorder.snapshot()
    }
}

/// A record on its way.
pub(super) struct Recording {
    instance: PathBuf,
}

/// Has the kernel's record within reach, and removes what killed runs left there. For the calling thread alone, whose mounts are hidden.
pub(super) fn prepare() {
    let root = Path::new(TRACEFS);
    if !root.join("instances").is_dir()
        && let Some(mount) = find_program("mount")
    {
        let arguments = ["-t", "tracefs", "tracefs", TRACEFS].map(Path::new);
        let _ = run(&mount, &arguments);
    }
    for entry in fs::read_dir(root.join("instances")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX).filter(|id| id.parse::<u32>().is_ok());
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Recording {
    /// Begins, for the device of this name. `None` where the kernel keeps no such record.
    pub(super) fn start(device: &str) -> Option<Self> {
        let numbers = fs::read_to_string(format!("/sys/class/block/{device}/dev")).ok()?;
        let (major, minor) = numbers.trim().split_once(':')?;
        let number = (major.parse::<u64>().ok()? << 20) | minor.parse::<u64>().ok()?;
        let instance = Path::new(TRACEFS).join("instances").join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&instance).ok()?;
        let recording = Self { instance };
        recording.write("tracing_on", "0")?;
        recording.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        recording.write("trace_clock", "mono")?;
        for event in EVENTS {
            recording.write(&format!("events/block/{event}/filter"), &format!("dev == {number}"))?;
            recording.write(&format!("events/block/{event}/enable"), "1")?;
        }
        recording.write("tracing_on", "1")?;
        Some(recording)
    }

    fn write(&self, name: &str, text: &str) -> Option<()> {
        fs::write(self.instance.join(name), text).ok()
    }

    /// Ends. `None` if not all was kept.
    pub(super) fn stop(self) -> Option<Recorded> {
        self.write("tracing_on", "0")?;
        for entry in fs::read_dir(self.instance.join("per_cpu")).ok()? {
            let stats = fs::read_to_string(entry.ok()?.path().join("stats")).ok()?;
            let is_whole = stats.lines().all(|line| {
                let lost = line.strip_prefix("overrun: ").or_else(|| line.strip_prefix("dropped events: "));
                lost.is_none_or(|count| count.trim() == "0")
            });
            is_whole.then_some(())?;
        }
        parse(&fs::read_to_string(self.instance.join("trace")).ok()?)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.instance);
    }
}

/// The lines of `trace`. `None` if one is not understood.
fn parse(text: &str) -> Option<Recorded> {
    let mut recorded = Recorded::default();
    let mut under_way: HashMap<(u64, bool), usize> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let event = EVENTS.iter().find_map(|name| {
            let (before, after) = line.split_once(&format!(": {name}: "))?;
            Some((*name, before, after))
        });
        let Some((name, before, after)) = event else { continue };
        let at_ns = nanoseconds(before.split_whitespace().next_back()?)?;
        match name {
            "block_split" => recorded.cuts += 1,
            "block_rq_issue" => {
                let (key, len_bytes) = request(after)?;
                under_way.insert(key, recorded.requests.len());
                let offset = key.0 * SECTOR_BYTES;
                recorded.requests.push(Request {
                    issued_ns: at_ns,
                    ended_ns: 0,
                    offset,
                    len_bytes,
                    writes: key.1,
                });
            }
            _ => {
                let (key, _) = request(after)?;
                if let Some(index) = under_way.remove(&key) {
                    recorded.requests[index].ended_ns = at_ns;
                }
            }
        }
    }
    // What had not ended was not the activity's.
    recorded.requests.retain(|request| request.ended_ns >= request.issued_ns && request.ended_ns > 0);
    Some(recorded)
}

/// `7,0 RA 4096 () 2048 + 8 none,0,0 [cat]` (issued), `7,0 RA () 2048 + 8 none,0,0 [0]` (done): the first sector and whether it
/// writes; its length in bytes.
fn request(text: &str) -> Option<((u64, bool), u64)> {
    let kind = text.split_whitespace().nth(1)?;
    let (_, place) = text.split_once(") ")?;
    let mut words = place.split_whitespace();
    let sector: u64 = match words.next()? {
        "18446744073709551615" => 0,
        sector => sector.parse().ok()?,
    };
    (words.next()? == "+").then_some(())?;
    let sectors: u64 = words.next()?.parse().ok()?;
    // D discards, W writes, F flushes before, R reads.
    let writes = !kind.trim_start_matches('F').starts_with('R');
    Some(((sector, writes), if kind.contains('D') { 0 } else { sectors * SECTOR_BYTES }))
}

fn nanoseconds(seconds: &str) -> Option<u64> {
    let (whole, part) = seconds.split_once('.')?;
    let micros = format!("{part:0<9}");
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(micros.get(..9)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let text = "# tracer: nop\n#\n\
             cat a b-12  [001] d..1.  10.000100: block_rq_issue: 7,0 RA 8192 () 2048 + 16 none,0,0 [cat]\n\
             cat a b-12  [001] d..1.  10.000150: block_rq_issue: 7,0 WS 4096 () 64 + 8 none,0,0 [cat]\n\
             kworker/u8:3-9  [000] ...1.  10.000400: block_rq_complete: 7,0 RA () 2048 + 16 none,0,0 [0]\n\
             kworker/u8:3-9  [000] ...1.  10.000500: block_rq_complete: 7,0 WS () 64 + 8 none,0,0 [0]\n\
             cat-12  [001] d..1.  10.000550: block_split: 7,0 RA 2064 / 2066 [cat]\n\
             cat-12  [001] d..1.  10.000600: block_rq_issue: 7,0 R 4096 () 2064 + 8 none,0,0 [cat]\n\
             cat-12  [001] d..1.  10.000700: block_rq_complete: 7,0 R () 2064 + 8 none,0,0 [0]\n\
             cat-12  [001] d..1.  10.000800: block_rq_issue: 7,0 R 4096 () 9999 + 8 none,0,0 [cat]\n";
        let recorded = parse(text).unwrap();
        assert_eq!((recorded.requests.len(), recorded.cuts), (3, 1));
        let first = recorded.requests[0];
        assert_eq!((first.offset, first.len_bytes, first.writes), (2048 * 512, 8192, false));
        assert_eq!(first.ended_ns - first.issued_ns, 300_000);
        let counted = recorded.snapshot();
        assert_eq!((counted.logical.reads, counted.logical.writes), (2, 1));
        assert_eq!(counted.latency.reads.count(), 2);
    }
}
