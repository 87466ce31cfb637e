//! Recordings of all requests to a disk: Leandisk's own, compact, bounded and versioned (its format is `docs/formats/trace.md`), and
//! those of blktrace, which are read.
//!
//! Absent on purpose: contents of requests.

pub mod blktrace;
mod corrupt;
mod layout;
mod measure;
mod reader;
mod record;
#[cfg(test)]
mod tests;
mod writer;

use std::io::{self, Read};

use block::{Error, Result};

pub use corrupt::Corrupt;
pub use layout::MAGIC;
pub use measure::measure;
pub use reader::TraceReader;
pub use writer::{TraceOptions, TraceTotals, TraceWriter};

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
    pub(super) const ALL: [Self; 7] =
        [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero, Self::Cache, Self::Status];
}

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

/// Fills `buf` as far as there are bytes; `what` says what failed if they cannot be read.
fn read_up_to(from: &mut impl Read, buf: &mut [u8], what: &str) -> Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match from.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(what, error)),
        }
    }
    Ok(len)
}
