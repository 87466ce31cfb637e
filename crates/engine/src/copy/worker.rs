//! A worker of a copy: reads a chunk, looks for zeros and encodes; has it placed when its turn comes; stores it.

use std::ops::Range;

use block::{AlignedBuffer, HOST_BLOCK_BYTES, Result};
use extent::{Span, VirtualOffset};
use image::{AnyWriter, Encoder, Piece, PieceBytes, TargetWrite, WriteBytes};
use plan::Part;
use verify::window_hash;

use super::dispatch::Work;
use super::progress::Ordered;
use super::share::{Cloner, Share};
use super::{CHUNK_BYTES, CopyJob};
use crate::cut::{Cut, cut, offset_in};
use crate::monitor::JobMonitor;
use crate::order::Turnstile;
use crate::provision::{Provision, whole_piece};
use crate::put::{makes_room, write_all, write_len};

/// One of a copy's workers.
pub(super) struct Worker<'w, 'a> {
    pub(super) job: &'w CopyJob<'a>,
    pub(super) monitor: &'w dyn JobMonitor,
    pub(super) turnstile: &'w Turnstile<Ordered<'a>>,
    pub(super) granularity: usize,
    pub(super) encoder: Option<Box<dyn Encoder>>,
    /// Whether zeros need not be written where they have a place: nothing was there before.
    pub(super) leaves_zeros: bool,
    /// How parts are cloned, if they are.
    pub(super) cloner: Option<Cloner<'a>>,
    /// Whether a checkpoint knows of what was cloned: but for a mutant.
    pub(super) notes_clones: bool,
    /// Whether a checkpoint is stored after a flush: but for a mutant.
    pub(super) flushes: bool,
}

impl Worker<'_, '_> {
    pub(super) fn run(mut self, next: impl Fn() -> Option<Work>) {
        let mut buffer = AlignedBuffer::new(usize::try_from(CHUNK_BYTES).expect("small"));
        self.job.target.prepare_memory(&mut buffer);
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

    fn copy(&mut self, work: &Work, chunk: &mut [u8]) -> Result<()> {
        let share = match &self.cloner {
            Some(cloner) => cloner.share(&work.parts)?,
            None => Share::of_parts(&work.parts),
        };
        // What is to be compared afterwards is read though it was cloned.
        self.read(work.chunk_at, if self.job.digests { &work.parts } else { &share.parts }, chunk)?;
        let cut = cut(work.chunk_at, chunk, &share.parts, self.granularity, self.encoder.as_deref_mut())?;
        let stored = self.stored(work.chunk_at, &share.parts, chunk)?;
        let zeros_found_bytes = stored.as_ref().unwrap_or(&cut).zeros_found_bytes;
        let end = self.job.plan.virtual_bytes.min(work.chunk_at.get().saturating_add(CHUNK_BYTES));
        let contents = &chunk[..offset_in(work.chunk_at, VirtualOffset::new(end))];
        let hash = if self.job.digests { window_hash(contents) } else { None };
        let (read_bytes, cloned_bytes) = (share.read_bytes(), share.cloned_bytes());
        let placed = self.turnstile.pass(
            work.sequence,
            |ordered| !ordered.is_kept && ordered.is_checkpoint_due(self.job.checkpoint_interval),
            |ordered, quiet| {
                if quiet {
                    self.job.checkpoint(ordered, self.monitor, self.flushes)?;
                }
                ordered.totals.read_bytes += read_bytes;
                ordered.totals.cloned_bytes += cloned_bytes;
                ordered.totals.zeros_found_bytes += zeros_found_bytes;
                if let Some(digests) = &mut ordered.digests {
                    digests.add(work.chunk_at, hash);
                }
                let puts = self.place(&mut ordered.writer, work.chunk_at, end, cut.pieces)?;
                let puts = match &stored {
                    Some(stored) => {
                        puts.into_iter().flat_map(|put| without_zeros(put, &stored.pieces)).collect()
                    }
                    None => puts,
                };
                ordered.note(&puts);
                if self.notes_clones {
                    ordered.note_clones(share.cloned_end().get());
                }
                ordered.next = VirtualOffset::new(end);
                ordered.is_kept = false;
                let written_bytes: u64 = puts.iter().map(write_len).sum();
                ordered.totals.written_bytes += written_bytes;
                // What makes room comes before what others write into it.
                ordered.room.follow(&puts)?;
                let (mut room, data): (Vec<_>, Vec<_>) = puts.into_iter().partition(makes_room);
                room.retain(|put| !ordered.room.holds(put));
                write_all(self.job.target, &[], room)?;
                Ok((data, written_bytes))
            },
        );
        let Some((puts, written_bytes)) = placed else { return Ok(()) };
        write_all(self.job.target, chunk, puts)?;
        self.turnstile.stored();
        self.monitor.advanced(read_bytes + cloned_bytes, written_bytes);
        Ok(())
    }

    /// Has the writer place `pieces` of the chunk that ends at `end_bytes`; the whole chunk, if everything gets a place.
    fn place(
        &self,
        writer: &mut AnyWriter,
        chunk_at: VirtualOffset,
        end_bytes: u64,
        pieces: Vec<Piece>,
    ) -> Result<Vec<TargetWrite>> {
        match self.job.provision {
            Provision::Thin if pieces.is_empty() => Ok(Vec::new()),
            Provision::Thin => writer.place(chunk_at, pieces),
            Provision::Lazy | Provision::Eager => {
                let chunk = Span::between(chunk_at, VirtualOffset::new(end_bytes));
                let whole = whole_piece(chunk, writer.granularity_bytes());
                writer.place(chunk_at, vec![whole])
            }
        }
    }

    /// What of a chunk is written where it gets a place: in a cluster, and in a block of the host's, only what is not zeros. `None` if
    /// all of it is, or nothing as it is.
    fn stored(&self, chunk_at: VirtualOffset, parts: &[Part], chunk: &[u8]) -> Result<Option<Cut>> {
        let block_bytes = self.granularity.min(usize::try_from(HOST_BLOCK_BYTES).expect("small"));
        let is_as_placed = self.job.provision == Provision::Thin && block_bytes == self.granularity;
        if !self.leaves_zeros || self.encoder.is_some() || is_as_placed {
            return Ok(None);
        }
        cut(chunk_at, chunk, parts, block_bytes, None).map(Some)
    }

    /// Fills `chunk` with `parts`, and zeros elsewhere.
    fn read(&self, chunk_at: VirtualOffset, parts: &[Part], chunk: &mut [u8]) -> Result<()> {
        let mut done = 0;
        for Part { span, fill } in parts {
            let (start, end) = (offset_in(chunk_at, span.start()), offset_in(chunk_at, span.end()));
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
fn without_zeros(put: TargetWrite, pieces: &[Piece]) -> Vec<TargetWrite> {
    let WriteBytes::Chunk(range) = &put.bytes else { return vec![put] };
    let plain = |piece: &Piece| match &piece.bytes {
        PieceBytes::Plain(data) => data.clone(),
        PieceBytes::Encoded(_) => 0..0,
    };
    let first = pieces.partition_point(|piece| plain(piece).end <= range.start);
    let within = pieces[first..].iter().map(plain).take_while(|data| data.start < range.end);
    let data = within.map(|data| data.start.max(range.start)..data.end.min(range.end));
    let put_of = |data: Range<usize>| {
        let at = put.at.plus((data.start - range.start) as u64);
        TargetWrite { at, bytes: WriteBytes::Chunk(data) }
    };
    data.filter(|data| !data.is_empty()).map(put_of).collect()
}
