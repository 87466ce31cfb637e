//! The copy pipeline: workers read, look for zeros and encode in parallel, place in order, store in parallel.
//!
//! A target that is not thin gets a place for everything, and all of its storage, before anything is copied into it. Then what is
//! zeros is left as the host keeps it (lazy), or written (eager).

use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use block::{Error, ReadAt, Result, TargetFile};
use extent::{HostOffset, HostSpan, Span, Virtual, VirtualOffset};
use image::{AnyWriter, Encoder, Piece, PieceBytes, Put, PutBytes};
use plan::{CopyPlan, Part};
use serde::{Deserialize, Serialize};
use verify::{Digests, DigestsBuilder, WINDOW_BYTES, window_hash};

use crate::buffer::Buffer;
use crate::checkpoint::Checkpoint;
use crate::create::{Provision, check_provision, reserve_all, whole_piece};
use crate::cut::{cut, offset_in};
use crate::order::Turnstile;

/// A worker's share at a time: one window of the digests, and the largest granularity a writer may have.
const CHUNK_BYTES: u64 = WINDOW_BYTES;

/// Room asked for ahead of a file that grows: direct writes into it run beside each other, and the host
/// finds it in one piece. See docs/decisions/direct-io.md.
const AHEAD_BYTES: u64 = 256 << 20;

/// The least time between two checkpoints, and from the start to the first.
const CHECKPOINT_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Who watches a copy.
pub trait Monitor: Sync {
    /// So much was read and written by earlier attempts.
    fn resumed(&self, read_bytes: u64, written_bytes: u64) {
        self.advanced(read_bytes, written_bytes);
    }

    /// So many more bytes were read, of which so many were written after all.
    fn advanced(&self, read_bytes: u64, written_bytes: u64);

    /// Whether to stop as soon as possible.
    fn is_cancelled(&self) -> bool;

    /// Keeps a checkpoint.
    fn checkpoint(&self, _checkpoint: &Checkpoint) -> Result<()> {
        Ok(())
    }
}

/// What was done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyTotals {
    /// Bytes of the virtual disk read.
    pub read_bytes: u64,
    /// Bytes written to the target, tables included.
    pub written_bytes: u64,
    /// Bytes read that turned out to be zeros and were not written.
    pub zeros_found_bytes: u64,
}

/// The end of a copy.
#[derive(Debug)]
pub struct CopyOutcome {
    /// What was done.
    pub totals: CopyTotals,
    /// What the target must read as, if asked for.
    pub digests: Option<Digests>,
}

/// A copy to be run.
pub struct CopyJob<'a> {
    /// The disk that was planned for.
    pub source: &'a dyn ReadAt<Virtual>,
    /// What to read.
    pub plan: &'a CopyPlan,
    /// The new image's layout.
    pub writer: AnyWriter,
    /// Where it goes.
    pub target: &'a dyn TargetFile,
    /// When the target's storage is found. What is not thin goes to a new file, and is not compressed.
    pub provision: Provision,
    /// Number of workers.
    pub thread_count: usize,
    /// Whether to compute digests of what was read.
    pub digests: bool,
    /// The most time between checkpoints. The first ones come earlier: as long after the last as that came after the start, so
    /// that no more than half of the time is ever lost.
    pub checkpoint_interval: Duration,
    /// Where to go on, if not from the start.
    pub resume: Option<Checkpoint>,
}

/// What passes the turnstile.
struct Ordered {
    writer: AnyWriter,
    totals: CopyTotals,
    digests: Option<DigestsBuilder>,
    /// All of the virtual disk before this was placed.
    next: VirtualOffset,
    /// Where what was placed ends in the target.
    end_bytes: u64,
    began: Instant,
    last_checkpoint: Instant,
    /// Whether the last checkpoint is of this very state, or of the start.
    is_kept: bool,
    /// Room was asked for up to here.
    ahead_end: u64,
}

impl Ordered {
    fn new(writer: AnyWriter, totals: CopyTotals, digests: Option<DigestsBuilder>) -> Self {
        let now = Instant::now();
        Self {
            writer,
            totals,
            digests,
            next: VirtualOffset::ZERO,
            end_bytes: 0,
            began: now,
            last_checkpoint: now,
            is_kept: true,
            ahead_end: 0,
        }
    }

    /// The state that `checkpoint` stored.
    fn resume(checkpoint: Checkpoint) -> Self {
        let Checkpoint { next_bytes, end_bytes, writer, totals, digests } = checkpoint;
        let next = VirtualOffset::new(next_bytes);
        Self { next, end_bytes, ..Self::new(writer, totals, digests) }
    }

    fn note(&mut self, puts: &[Put]) {
        self.end_bytes = puts.iter().map(put_end).fold(self.end_bytes, u64::max);
    }

    fn is_checkpoint_due(&self, interval_max: Duration) -> bool {
        let grown = CHECKPOINT_PAUSE_MIN.max(self.last_checkpoint.duration_since(self.began));
        self.last_checkpoint.elapsed() >= interval_max.min(grown)
    }

    /// Asks for room before what was just placed reaches the end of the room asked for.
    fn reserve_ahead(&mut self, job: &CopyJob<'_>, puts: &[Put]) {
        let end = puts.iter().map(|put| put.at.get() + put_len(put)).max().unwrap_or(0);
        if job.provision == Provision::Thin && self.writer.appends() && end > self.ahead_end {
            let start = self.ahead_end.max(end.saturating_sub(CHUNK_BYTES));
            let ahead_bytes = AHEAD_BYTES.min(job.plan.reads.total_bytes().next_multiple_of(CHUNK_BYTES));
            self.ahead_end = end + ahead_bytes;
            job.target.reserve_ahead(Span::between(HostOffset::new(start), HostOffset::new(self.ahead_end)));
        }
    }
}

struct Work {
    sequence: u64,
    chunk_at: VirtualOffset,
    parts: Vec<Part>,
}

impl CopyJob<'_> {
    /// Runs it to its end: when it returns without an error, the target is complete and on stable storage.
    pub fn run(mut self, monitor: &dyn Monitor) -> Result<CopyOutcome> {
        let resume = self.resume.take();
        check_provision(&self.writer, self.provision)?;
        if let Some(Checkpoint { end_bytes, totals, .. }) = &resume {
            // What lies behind may be of a longer attempt, and is not written again where there are zeros.
            self.target.set_len(*end_bytes)?;
            monitor.resumed(totals.read_bytes, totals.written_bytes);
        }
        if self.provision != Provision::Thin {
            reserve_all(self.writer.clone(), self.plan.virtual_bytes, self.target)?;
        }
        let mut ordered = match resume {
            Some(checkpoint) => Ordered::resume(checkpoint),
            None => self.start(monitor)?,
        };
        let done = ordered.next;
        let granularity = usize::try_from(ordered.writer.granularity_bytes()).expect("at most a chunk");
        assert!(granularity as u64 <= CHUNK_BYTES && granularity.is_power_of_two(), "a granule fits a chunk");
        let encoders: Vec<_> = (0..self.thread_count.max(1)).map(|_| ordered.writer.encoder()).collect();
        let left = |part: Part| {
            let span = part.span.intersect(&Span::between(done, part.span.end()))?;
            Some(Part { span, ..part })
        };
        let next_whole = (self.provision != Provision::Thin).then_some(done);
        let dispatcher = Mutex::new(Dispatcher {
            parts: self.plan.parts().filter_map(left),
            rest: None,
            next_whole,
            end: VirtualOffset::new(self.plan.virtual_bytes),
            sequence: 0,
        });
        let turnstile = Turnstile::new(ordered);
        // Asked here: a mutant is one on its own thread alone.
        let flushes = !mutants::broken!(CheckpointBeforeFlush);
        std::thread::scope(|scope| {
            for encoder in encoders {
                let worker =
                    Worker { job: &self, monitor, turnstile: &turnstile, granularity, encoder, flushes };
                let dispatcher = &dispatcher;
                scope.spawn(move || worker.run(|| dispatcher.lock().expect("no worker panicked").next()));
            }
        });
        ordered = turnstile.finish()?;
        // Workers that were told to stop have stored all that they had begun.
        let is_cancelled = monitor.is_cancelled();
        let is_read_back = self.digests && ordered.began.elapsed() >= CHECKPOINT_PAUSE_MIN;
        if (is_cancelled || is_read_back) && !ordered.is_kept {
            self.checkpoint(&mut ordered, monitor, flushes)?;
        }
        if is_cancelled {
            return Err(Error::interrupted());
        }
        self.finish(ordered, monitor)
    }

    fn start(&mut self, monitor: &dyn Monitor) -> Result<Ordered> {
        let puts = self.writer.start()?;
        let digests = self.digests.then(DigestsBuilder::default);
        let mut ordered = Ordered::new(self.writer.clone(), CopyTotals::default(), digests);
        ordered.note(&puts);
        ordered.totals.written_bytes = put_all(self.target, &[], puts)?;
        monitor.advanced(0, ordered.totals.written_bytes);
        Ok(ordered)
    }

    /// Keeps the state, of which everything placed is stored, after a flush of it: a checkpoint must not name what a power cut
    /// could take away.
    fn checkpoint(&self, ordered: &mut Ordered, monitor: &dyn Monitor, flushes: bool) -> Result<()> {
        if flushes {
            self.target.flush()?;
        }
        let Ordered { writer, totals, digests, next, end_bytes, .. } = &*ordered;
        monitor.checkpoint(&Checkpoint {
            next_bytes: next.get(),
            end_bytes: *end_bytes,
            writer: writer.clone(),
            totals: *totals,
            digests: digests.clone(),
        })?;
        ordered.last_checkpoint = Instant::now();
        ordered.is_kept = true;
        Ok(())
    }

    /// Tables, flush, headers, flush: at no moment is there a valid header over missing contents.
    fn finish(&self, mut ordered: Ordered, monitor: &dyn Monitor) -> Result<CopyOutcome> {
        let end = ordered.writer.finish()?;
        let before = ordered.totals.written_bytes;
        ordered.totals.written_bytes += put_all(self.target, &[], end.tables)?;
        self.target.set_len(end.len_bytes)?;
        self.target.flush()?;
        if !end.headers.is_empty() {
            ordered.totals.written_bytes += put_all(self.target, &[], end.headers)?;
            self.target.flush()?;
        }
        monitor.advanced(0, ordered.totals.written_bytes - before);
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        Ok(CopyOutcome { totals: ordered.totals, digests: ordered.digests.map(DigestsBuilder::finish) })
    }
}

struct Dispatcher<I> {
    parts: I,
    /// What of the last part belongs to a later chunk.
    rest: Option<Part>,
    /// The next chunk of all, if there is something to do in each of them.
    next_whole: Option<VirtualOffset>,
    /// The disk's end.
    end: VirtualOffset,
    sequence: u64,
}

impl<I: Iterator<Item = Part>> Dispatcher<I> {
    /// The next chunk in which there is anything to do.
    fn next(&mut self) -> Option<Work> {
        let first = self.rest.take().or_else(|| self.parts.next());
        let of_part = first.map(|part| part.span.start().get() / CHUNK_BYTES * CHUNK_BYTES);
        let chunk_at = match self.next_whole {
            None => VirtualOffset::new(of_part?),
            Some(at) if at < self.end => at,
            Some(_) => return None,
        };
        let end = VirtualOffset::new(chunk_at.get().saturating_add(CHUNK_BYTES)).min(self.end);
        self.next_whole = self.next_whole.map(|_| end);
        let chunk = Span::between(chunk_at, end);
        let mut parts = Vec::new();
        let mut next = first;
        while let Some(part) = next {
            let Some(inside) = part.span.intersect(&chunk) else {
                self.rest = Some(part);
                break;
            };
            parts.push(Part { span: inside, ..part });
            let after = Span::between(inside.end(), part.span.end());
            if !after.is_empty() {
                self.rest = Some(Part { span: after, ..part });
                break;
            }
            next = self.parts.next();
        }
        let sequence = self.sequence;
        self.sequence += 1;
        Some(Work { sequence, chunk_at, parts })
    }
}

struct Worker<'a> {
    job: &'a CopyJob<'a>,
    monitor: &'a dyn Monitor,
    turnstile: &'a Turnstile<Ordered>,
    granularity: usize,
    encoder: Option<Box<dyn Encoder>>,
    /// Whether a checkpoint is stored after a flush: but for a mutant.
    flushes: bool,
}

impl Worker<'_> {
    fn run(mut self, next: impl Fn() -> Option<Work>) {
        let mut buffer = Buffer::new(usize::try_from(CHUNK_BYTES).expect("small"));
        while !self.turnstile.has_failed() {
            // What others have begun they finish: then all that was placed is stored, and a checkpoint can say so.
            if self.monitor.is_cancelled() {
                return;
            }
            let Some(work) = next() else { return };
            if let Err(error) = self.copy(&work, &mut buffer) {
                self.turnstile.fail(error);
                return;
            }
        }
    }

    fn copy(&mut self, work: &Work, buffer: &mut Buffer) -> Result<()> {
        self.read(work, buffer.bytes_mut())?;
        let chunk = buffer.bytes();
        let cut = cut(work.chunk_at, chunk, &work.parts, self.granularity, self.encoder.as_deref_mut())?;
        let end = self.job.plan.virtual_bytes.min(work.chunk_at.get().saturating_add(CHUNK_BYTES));
        let contents = &chunk[..offset_in(work.chunk_at, VirtualOffset::new(end))];
        let hash = if self.job.digests { window_hash(contents) } else { None };
        let read_bytes: u64 =
            work.parts.iter().filter(|part| part.fill.is_none()).map(|part| part.span.len_bytes()).sum();
        let placed = self.turnstile.pass(
            work.sequence,
            |ordered| !ordered.is_kept && ordered.is_checkpoint_due(self.job.checkpoint_interval),
            |ordered, quiet| {
                if quiet {
                    self.job.checkpoint(ordered, self.monitor, self.flushes)?;
                }
                ordered.totals.read_bytes += read_bytes;
                ordered.totals.zeros_found_bytes += cut.zeros_found_bytes;
                if let Some(digests) = &mut ordered.digests {
                    digests.add(work.chunk_at, hash);
                }
                let puts = self.place(&mut ordered.writer, work.chunk_at, end, cut.pieces)?;
                ordered.note(&puts);
                ordered.next = VirtualOffset::new(end);
                ordered.is_kept = false;
                let written_bytes: u64 = puts.iter().map(put_len).sum();
                ordered.totals.written_bytes += written_bytes;
                // What makes room comes before what others write into it.
                ordered.reserve_ahead(self.job, &puts);
                let (room, data) = puts.into_iter().partition(makes_room);
                put_all(self.job.target, &[], room)?;
                Ok((data, written_bytes))
            },
        );
        let Some((puts, written_bytes)) = placed else { return Ok(()) };
        put_all(self.job.target, chunk, puts)?;
        self.turnstile.stored();
        self.monitor.advanced(read_bytes, written_bytes);
        Ok(())
    }

    /// Has the writer place `pieces` of the chunk that ends at `end_bytes`; the whole chunk, if everything gets a place.
    fn place(
        &self,
        writer: &mut AnyWriter,
        chunk_at: VirtualOffset,
        end_bytes: u64,
        pieces: Vec<Piece>,
    ) -> Result<Vec<Put>> {
        match self.job.provision {
            Provision::Thin if pieces.is_empty() => Ok(Vec::new()),
            Provision::Thin => writer.place(chunk_at, pieces),
            Provision::Lazy | Provision::Eager => {
                let chunk = Span::between(chunk_at, VirtualOffset::new(end_bytes));
                let whole = whole_piece(chunk, writer.granularity_bytes());
                let puts = writer.place(chunk_at, vec![whole])?;
                let is_lazy = self.job.provision == Provision::Lazy;
                Ok(if is_lazy {
                    puts.into_iter().flat_map(|put| without_zeros(put, &pieces)).collect()
                } else {
                    puts
                })
            }
        }
    }

    /// Fills `chunk` with what is to be read, and zeros elsewhere.
    fn read(&self, work: &Work, chunk: &mut [u8]) -> Result<()> {
        let mut done = 0;
        for Part { span, fill } in &work.parts {
            let (start, end) = (offset_in(work.chunk_at, span.start()), offset_in(work.chunk_at, span.end()));
            chunk[done..start].fill(0);
            match fill {
                Some(byte) => chunk[start..end].fill(*byte),
                None => self.job.source.read_at(span.start(), &mut chunk[start..end])?,
            }
            done = end;
        }
        chunk[done..].fill(0);
        Ok(())
    }
}

/// What of `put` is in `pieces`, if it is of the chunk; all else of the chunk is zeros, and so is the place that it has.
fn without_zeros(put: Put, pieces: &[Piece]) -> Vec<Put> {
    let PutBytes::Chunk(range) = &put.bytes else { return vec![put] };
    let data = pieces.iter().filter_map(|piece| match &piece.bytes {
        PieceBytes::Plain(data) => Some(data.start.max(range.start)..data.end.min(range.end)),
        PieceBytes::Encoded(_) => None,
    });
    let put_of = |data: Range<usize>| {
        let at = put.at.plus((data.start - range.start) as u64);
        Put { at, bytes: PutBytes::Chunk(data) }
    };
    data.filter(|data| !data.is_empty()).map(put_of).collect()
}

fn makes_room(put: &Put) -> bool {
    matches!(put.bytes, PutBytes::Reserve(_) | PutBytes::Zero(_))
}

/// Where what a put is about ends.
fn put_end(put: &Put) -> u64 {
    let len_bytes = match &put.bytes {
        PutBytes::Reserve(len_bytes) | PutBytes::Zero(len_bytes) => *len_bytes,
        PutBytes::Chunk(_) | PutBytes::Owned(_) => put_len(put),
    };
    put.at.get().saturating_add(len_bytes)
}

/// Bytes that a put writes.
fn put_len(put: &Put) -> u64 {
    match &put.bytes {
        PutBytes::Chunk(range) => range.len() as u64,
        PutBytes::Owned(bytes) => bytes.len() as u64,
        PutBytes::Reserve(_) | PutBytes::Zero(_) => 0,
    }
}

/// Carries out `puts`, whose chunk parts refer to `chunk`; answers how many bytes were written.
pub(crate) fn put_all(target: &dyn TargetFile, chunk: &[u8], puts: Vec<Put>) -> Result<u64> {
    let mut written_bytes = 0;
    for Put { at, bytes } in puts {
        let written: &[u8] = match &bytes {
            PutBytes::Chunk(range) => &chunk[range.clone()],
            PutBytes::Owned(bytes) => bytes,
            PutBytes::Reserve(len_bytes) => {
                target.reserve(HostSpan::new(at, *len_bytes))?;
                continue;
            }
            PutBytes::Zero(len_bytes) => {
                target.zero(HostSpan::new(at, *len_bytes))?;
                continue;
            }
        };
        target.write_at(at, written)?;
        target.forget(HostSpan::new(at, written.len() as u64));
        written_bytes += written.len() as u64;
    }
    Ok(written_bytes)
}
