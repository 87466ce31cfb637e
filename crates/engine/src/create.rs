//! A new disk without contents, whose storage is found at once or as it is written.
//!
//! Invariants:
//! - storage is asked for in one piece wherever the image's layout is in one piece, before anything is written into it, so
//!   that the host can give it in one piece, too;
//! - headers are written last, after a flush of all else.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{AlignedBuffer, Error, Result, TargetFile};
use extent::{ExtentSet, Host};
use image::{AnyWriter, TargetWrite};

use crate::monitor::JobMonitor;
use crate::provision::{GAP_BYTES_MAX, Provision, check_provision, joined, place_all};
use crate::put::{stored_span, write_all};

/// Storage for the tables of a thin disk is asked for in one piece across what is no larger than this.
const TABLE_GAP_BYTES_MAX: u64 = 256 << 10;
/// What is written at a time. As large as storages like it.
const WRITE_BYTES: usize = 4 << 20;

/// What making a disk took.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CreateTotals {
    /// Bytes that storage was found for besides tables.
    pub reserved_bytes: u64,
    /// Bytes of it that were zeroed.
    pub zeroed_bytes: u64,
    /// Bytes of tables and headers.
    pub written_bytes: u64,
}

/// A new disk to be made.
pub struct CreateJob<'a> {
    /// Its layout.
    pub writer: AnyWriter,
    /// Where it goes: new and empty.
    pub target: &'a dyn TargetFile,
    /// Its size.
    pub virtual_bytes: u64,
    /// When its storage is found.
    pub provision: Provision,
    /// Number of workers that zero.
    pub thread_count: usize,
}

impl CreateJob<'_> {
    /// Runs it to its end: when it returns without an error, the disk is complete and on stable storage. `Unsupported` if
    /// the format has no places that could be kept ready.
    pub fn run(mut self, monitor: &dyn JobMonitor) -> Result<CreateTotals> {
        check_provision(&self.writer, self.provision)?;
        let mut totals = CreateTotals::default();
        let starts = self.writer.start()?;
        let mut tables = Vec::new();
        let room = match self.provision {
            Provision::Thin => ExtentSet::new(),
            Provision::Lazy | Provision::Eager => {
                place_all(&mut self.writer, self.virtual_bytes, |put| tables.push(put))?
            }
        };
        let end = self.writer.finish()?;
        self.reserve(&room, &[&starts, &tables, &end.tables, &end.headers])?;
        totals.reserved_bytes = room.total_bytes();
        totals.written_bytes += write_all(self.target, &[], starts)?;
        if self.provision == Provision::Eager {
            self.zero(&room, monitor)?;
            totals.zeroed_bytes = room.total_bytes();
        }
        totals.written_bytes += write_all(self.target, &[], tables)?;
        totals.written_bytes += write_all(self.target, &[], end.tables)?;
        self.target.set_len(end.len_bytes)?;
        self.target.flush()?;
        totals.written_bytes += write_all(self.target, &[], end.headers)?;
        self.target.flush()?;
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        Ok(totals)
    }

    /// Has the host find storage for `room` and for the tables, these without the small gaps between them: written one by one
    /// they would lie apart on many hosts, and what grows behind them as well.
    fn reserve(&self, room: &ExtentSet<Host>, tables: &[&[TargetWrite]]) -> Result<()> {
        let written = tables.iter().flat_map(|puts| puts.iter()).filter_map(stored_span);
        let tables = joined(&written.collect(), TABLE_GAP_BYTES_MAX);
        if room.is_empty() {
            for span in tables.iter() {
                self.target.reserve_ahead(span, 0);
            }
            return Ok(());
        }
        let all: ExtentSet<Host> = room.iter().chain(tables.iter()).collect();
        joined(&all, GAP_BYTES_MAX).iter().try_for_each(|span| self.target.reserve(span))
    }

    /// Writes zeros: `fallocate` leaves blocks that the host would still have to zero when they are first written.
    fn zero(&self, room: &ExtentSet<Host>, monitor: &dyn JobMonitor) -> Result<()> {
        let pieces: Vec<_> = room.iter().flat_map(|span| span.split(WRITE_BYTES as u64)).collect();
        let next = AtomicU64::new(0);
        let work = || -> Result<()> {
            let mut zeros = AlignedBuffer::new(WRITE_BYTES);
            zeros.fill(0);
            while let Some(span) =
                usize::try_from(next.fetch_add(1, Ordering::Relaxed)).ok().and_then(|at| pieces.get(at))
            {
                if monitor.is_cancelled() {
                    return Err(Error::interrupted());
                }
                let len = usize::try_from(span.len_bytes()).expect("at most a write");
                self.target.write_at(span.start(), &zeros[..len])?;
                monitor.advanced(span.len_bytes(), span.len_bytes());
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.thread_count.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panicked"))
        })
    }
}
