//! An export that is written over, as a block device is: its size is fixed, and its old contents stay where nothing is written.
//!
//! A connection that is lost once something was written is not taken up again: a server that was started anew may have lost what it had taken
//! and not stored, and there is no telling. So the copy ends with an error, and begins anew.
//!
//! Invariants, explored in `crash` with a simulated server:
//! - every connection is made before the first write, so that none leads to a server that was started after it;
//! - a flush was answered before anything is said to be whole, and none before it was refused: a server may have lost what it could not store;
//! - what a server answers with an error is not done.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, HostState, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan, Span};
use mutants::broken;

use crate::connection::{BATCH_BYTES_MAX, Connection};
use crate::disk::RemoteDisk;
use crate::handshake::{Facts, Wanted};
use crate::lanes::{Dial, Patience};
use crate::layout::export_flag;
use crate::reply::Failure;

/// What a server is asked to zero at once: it answers when that is done.
const ZERO_BYTES_MAX: u64 = 1 << 30;
/// What is written where a server cannot zero.
const ZEROS_BYTES: usize = 1 << 20;
/// After so much a server is asked to store what was written, while more is: its cache would hold nearly all of the disk until the end, and its device
/// would stand still meanwhile.
const FLUSH_EACH_BYTES: u64 = 128 << 20;
/// What writers of targets align to.
const ALIGN_BYTES: u32 = 4096;
const _: () = assert!(
    ZERO_BYTES_MAX.is_multiple_of(ALIGN_BYTES as u64) && ZEROS_BYTES.is_multiple_of(ALIGN_BYTES as usize)
);

/// An export, written.
pub struct RemoteTarget {
    disk: RemoteDisk,
    rules: Rules,
    /// What was written since the last flush began.
    unflushed_bytes: AtomicU64,
    /// Held by who has the server flush while others write.
    flushing: Mutex<()>,
    /// After so much that is.
    flush_each_bytes: u64,
}

/// What is held to, but for mutants. Asked when it connects: a mutant is one on its own thread alone.
struct Rules {
    /// Lost is lost.
    stays_lost: bool,
    /// What a server refuses is an error.
    minds_refusals: bool,
    /// What is skipped becomes zeros.
    zeroes: bool,
    /// What was written is flushed.
    flushes: bool,
    /// A flush while others write that fails is an error.
    minds_early_flushes: bool,
}

impl Rules {
    fn new() -> Self {
        Self {
            stays_lost: !broken!(TargetTakenUpAgain),
            minds_refusals: !broken!(RefusalTakenForDone),
            zeroes: !broken!(SkippedNotZeroed),
            flushes: !broken!(TargetNotFlushed),
            minds_early_flushes: !broken!(EarlyFlushForgiven),
        }
    }
}

impl RemoteTarget {
    /// Connects to an export. `Refused` if it cannot be written.
    pub fn connect(
        name: impl Into<String>,
        dial: Box<dyn Dial>,
        wanted: Wanted,
        patience: Patience,
    ) -> Result<Self> {
        let disk = RemoteDisk::connect(name, dial, wanted, patience)?;
        let facts = disk.facts();
        let name = disk.lanes().name();
        if facts.is_read_only() {
            return Err(Error::refused("the server gives this export for reading only").path(name));
        }
        if facts.minimum_bytes > ALIGN_BYTES {
            let what = format!("an export that is written in blocks of {} bytes", facts.minimum_bytes);
            return Err(Error::unsupported(what).path(name));
        }
        disk.lanes().connect_all()?;
        Ok(Self {
            disk,
            rules: Rules::new(),
            unflushed_bytes: AtomicU64::new(0),
            flushing: Mutex::new(()),
            flush_each_bytes: FLUSH_EACH_BYTES,
        })
    }

    /// Has the server flush after so many bytes, while more are written.
    pub fn flushing_each(self, bytes: u64) -> Self {
        Self { flush_each_bytes: bytes, ..self }
    }

    fn facts(&self) -> &Facts {
        self.disk.facts()
    }

    /// Has the server change something, on a connection that was not lost.
    fn change(&self, request: impl Fn(&Connection) -> Result<(), Failure>) -> Result<()> {
        let minded = |connection: &Connection| match request(connection) {
            Err(Failure::Answered(_)) if !self.rules.minds_refusals => Ok(()),
            done => done,
        };
        match self.rules.stays_lost {
            true => self.disk.lanes().run_once(minded),
            false => self.disk.lanes().run(minded),
        }
    }

    fn check_fits(&self, end: u64) -> Result<()> {
        if end <= self.len_bytes() {
            return Ok(());
        }
        Err(Error::invalid(format!("a write up to {end:#x}, past the end of the export"))
            .path(self.disk.lanes().name()))
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<()> {
        let mut offset = at;
        for part in buf.chunks(BATCH_BYTES_MAX) {
            self.change(|connection| connection.write(offset, part))?;
            offset += part.len() as u64;
        }
        let len_bytes = buf.len() as u64;
        let unflushed_bytes = self.unflushed_bytes.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes;
        match self.flushing.try_lock() {
            Ok(_alone) if unflushed_bytes >= self.flush_each_bytes => match self.flush() {
                Err(_) if !self.rules.minds_early_flushes => Ok(()),
                flushed => flushed,
            },
            _ => Ok(()),
        }
    }

    /// Makes a span zero, by the server where it can.
    fn make_zero(&self, span: HostSpan) -> Result<()> {
        let can_zero = self.facts().has(export_flag::SEND_WRITE_ZEROES);
        for step in span.split(if can_zero { ZERO_BYTES_MAX } else { ZEROS_BYTES as u64 }) {
            let len_bytes = u32::try_from(step.len_bytes()).expect("at most a step");
            if can_zero {
                self.change(|connection| connection.zero(step.start().get(), len_bytes))?;
            } else {
                self.write(step.start().get(), &vec![0; len_bytes as usize])?;
            }
        }
        Ok(())
    }
}

impl ReadAt<Host> for RemoteTarget {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.disk.read_at(at, buf)
    }
}

impl TargetFile for RemoteTarget {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.check_fits(at.get().saturating_add(buf.len() as u64))?;
        self.write(at.get(), buf)
    }

    /// Only checks that it fits: an export's length is fixed.
    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.check_fits(len_bytes)
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.check_fits(span.end().get())
    }

    /// What reads as zeros already, as the server tells it, is left as it is. Nothing of `span` was written before by this.
    fn zero(&self, span: HostSpan) -> Result<()> {
        self.check_fits(span.end().get())?;
        let mut at = span.start();
        while at < span.end() {
            let found = self.disk.extent_told_by(at, |id, start, asked| match self.rules.stays_lost {
                true => self.disk.lanes().run_once(|connection| connection.allocation(id, start, asked)),
                false => self.disk.lanes().run(|connection| connection.allocation(id, start, asked)),
            })?;
            let end = found.span.end().min(span.end());
            if found.state == HostState::Data && self.rules.zeroes {
                self.make_zero(Span::between(at, end))?;
            }
            at = end;
        }
        Ok(())
    }

    /// Covers what was written on any connection: there are several only where the server promises that.
    fn flush(&self) -> Result<()> {
        self.unflushed_bytes.store(0, Ordering::Relaxed);
        if !self.facts().has(export_flag::SEND_FLUSH) || !self.rules.flushes {
            return Ok(());
        }
        self.change(Connection::flush)
    }
}
