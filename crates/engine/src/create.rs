//! A new disk without contents, whose storage is found at once or as it is written.
//!
//! Invariants:
//! - storage is asked for in one piece wherever the image's layout is in one piece, before anything is written into it, so
//!   that the host can give it in one piece, too;
//! - headers are written last, after a flush of all else.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, Result, TargetFile};
use extent::{ExtentSet, Host, HostSpan, Span, VirtualSpan};
use image::{AnyWriter, Piece, PieceBytes, Put, PutBytes};

use crate::buffer::Buffer;
use crate::copy::{Monitor, put_all};

/// What a writer is shown at a time: no granule of any format is larger.
const CHUNK_BYTES: u64 = 2 << 20;
/// Storage is asked for in one piece across what is no larger than this: sector bitmaps and tables.
const GAP_BYTES_MAX: u64 = 1 << 20;
/// The same of a disk that is thin, between tables.
const TABLE_GAP_BYTES_MAX: u64 = 256 << 10;
/// What is written at a time. As large as storages like it.
const WRITE_BYTES: usize = 4 << 20;

/// When the storage of a new disk is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provision {
    /// As it is written: the image has no place for anything yet.
    Thin,
    /// Now. The image has a place for everything; the host zeroes it when it is first written.
    Lazy,
    /// Now, and zeroed.
    Eager,
}

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
    pub fn run(mut self, monitor: &dyn Monitor) -> Result<CreateTotals> {
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
        totals.written_bytes += put_all(self.target, &[], starts)?;
        if self.provision == Provision::Eager {
            self.zero(&room, monitor)?;
            totals.zeroed_bytes = room.total_bytes();
        }
        totals.written_bytes += put_all(self.target, &[], tables)?;
        totals.written_bytes += put_all(self.target, &[], end.tables)?;
        self.target.set_len(end.len_bytes)?;
        self.target.flush()?;
        totals.written_bytes += put_all(self.target, &[], end.headers)?;
        self.target.flush()?;
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        Ok(totals)
    }

    /// Has the host find storage for `room` and for the tables, these without the small gaps between them: written one by one
    /// they would lie apart on many hosts, and what grows behind them as well.
    fn reserve(&self, room: &ExtentSet<Host>, tables: &[&[Put]]) -> Result<()> {
        let written = tables.iter().flat_map(|puts| puts.iter()).filter_map(|put| match &put.bytes {
            PutBytes::Owned(bytes) => Some(HostSpan::new(put.at, bytes.len() as u64)),
            PutBytes::Reserve(len_bytes) => Some(HostSpan::new(put.at, *len_bytes)),
            // Zeros may be holes.
            PutBytes::Zero(_) | PutBytes::Chunk(_) => None,
        });
        let tables = joined(&written.collect(), TABLE_GAP_BYTES_MAX);
        if room.is_empty() {
            tables.iter().for_each(|span| self.target.reserve_ahead(span));
            return Ok(());
        }
        let all: ExtentSet<Host> = room.iter().chain(tables.iter()).collect();
        joined(&all, GAP_BYTES_MAX).iter().try_for_each(|span| self.target.reserve(span))
    }

    /// Writes zeros: `fallocate` leaves blocks that the host would still have to zero when they are first written.
    fn zero(&self, room: &ExtentSet<Host>, monitor: &dyn Monitor) -> Result<()> {
        let pieces: Vec<_> = room.iter().flat_map(|span| span.split(WRITE_BYTES as u64)).collect();
        let next = AtomicU64::new(0);
        let work = || -> Result<()> {
            let mut zeros = Buffer::new(WRITE_BYTES);
            zeros.bytes_mut().fill(0);
            while let Some(span) =
                usize::try_from(next.fetch_add(1, Ordering::Relaxed)).ok().and_then(|at| pieces.get(at))
            {
                if monitor.is_cancelled() {
                    return Err(Error::interrupted());
                }
                let len = usize::try_from(span.len_bytes()).expect("at most a write");
                self.target.write_at(span.start(), &zeros.bytes()[..len])?;
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

/// `Unsupported` if the format has no places that could be kept ready.
pub fn check_provision(writer: &AnyWriter, provision: Provision) -> Result<()> {
    if provision == Provision::Thin || writer.encoder().is_none() {
        return Ok(());
    }
    Err(Error::unsupported("what is compressed has no place before it is written")
        .hint("--provision thin, or a format that is not compressed"))
}

/// The least that a target of some layout takes, whatever is copied into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Least {
    /// How long its file is.
    pub len_bytes: u64,
    /// Bytes of it that need storage.
    pub stored_bytes: u64,
}

/// What a disk of this layout takes at the least: its tables alone if it is thin, all of its storage if not. Nothing is written.
pub fn least(mut writer: AnyWriter, virtual_bytes: u64, provision: Provision) -> Result<Least> {
    let mut tables = writer.start()?;
    let room = match provision {
        Provision::Thin => ExtentSet::new(),
        Provision::Lazy | Provision::Eager => place_all(&mut writer, virtual_bytes, |put| tables.push(put))?,
    };
    let end = writer.finish()?;
    tables.extend(end.tables);
    tables.extend(end.headers);
    let stored = tables.iter().filter_map(|put| match &put.bytes {
        PutBytes::Owned(bytes) => Some(HostSpan::new(put.at, bytes.len() as u64)),
        PutBytes::Reserve(len_bytes) => Some(HostSpan::new(put.at, *len_bytes)),
        // Zeros may be holes.
        PutBytes::Zero(_) | PutBytes::Chunk(_) => None,
    });
    let all: ExtentSet<Host> = stored.chain(room.iter()).collect();
    Ok(Least { len_bytes: end.len_bytes, stored_bytes: all.total_bytes() })
}

/// Has the host find all storage that a disk of this layout will take, before anything is written into it.
pub(crate) fn reserve_all(mut writer: AnyWriter, virtual_bytes: u64, target: &dyn TargetFile) -> Result<()> {
    writer.start()?;
    let room = place_all(&mut writer, virtual_bytes, drop)?;
    joined(&room, GAP_BYTES_MAX).iter().try_for_each(|span| target.reserve(span))
}

/// Gives every granule its place. Answers where they lie; the tables that say so go to `tables`.
fn place_all(
    writer: &mut AnyWriter,
    virtual_bytes: u64,
    mut tables: impl FnMut(Put),
) -> Result<ExtentSet<Host>> {
    let granularity = writer.granularity_bytes();
    let mut spans = Vec::new();
    for chunk in Span::from_zero(virtual_bytes).split(CHUNK_BYTES) {
        let piece = whole_piece(chunk, granularity);
        for put in writer.place(chunk.start(), vec![piece])? {
            match put.bytes {
                PutBytes::Chunk(range) => push(&mut spans, HostSpan::new(put.at, range.len() as u64)),
                PutBytes::Reserve(len_bytes) => push(&mut spans, HostSpan::new(put.at, len_bytes)),
                PutBytes::Owned(_) | PutBytes::Zero(_) => tables(put),
            }
        }
    }
    Ok(spans.into_iter().collect())
}

/// All granules of a chunk.
pub(crate) fn whole_piece(chunk: VirtualSpan, granularity_bytes: u64) -> Piece {
    let len_bytes = chunk.len_bytes().next_multiple_of(granularity_bytes);
    let range = 0..usize::try_from(len_bytes).expect("at most a chunk");
    Piece { at: chunk.start(), len_bytes, bytes: PieceBytes::Plain(range) }
}

/// The spans, with what lies between them and is no larger than `gap_bytes_max`: too small to be worth a gap.
fn joined(room: &ExtentSet<Host>, gap_bytes_max: u64) -> ExtentSet<Host> {
    let mut joined: Vec<HostSpan> = Vec::new();
    for span in room.iter() {
        match joined.last_mut() {
            Some(last) if span.start().get() - last.end().get() <= gap_bytes_max => {
                *last = Span::between(last.start(), span.end());
            }
            _ => joined.push(span),
        }
    }
    joined.into_iter().collect()
}

/// Appends a span, joined to the last one where it follows that.
fn push(spans: &mut Vec<HostSpan>, span: HostSpan) {
    match spans.last_mut() {
        Some(last) if last.end() == span.start() => *last = Span::between(last.start(), span.end()),
        _ => spans.push(span),
    }
}
