//! Room that the host finds ahead of what is written: direct writes into it run beside each other, where those into holes or behind a
//! file's end wait for each other; and it lies in one piece. See docs/decisions/direct-io.md.
//!
//! What was found and then not written goes back: a part of a cluster without data, or data that turned out to be zeros. A gap is what
//! was found here and lies in nothing that was placed since. It passes the turnstile with what is placed, so that no gap is one
//! of what is placed later.

use std::iter::Peekable;

use block::{HOST_BLOCK_BYTES, Result, TargetFile};
use extent::{ExtentSet, Host, HostOffset, HostSpan, Span, VirtualSpan};
use image::{Growth, TargetWrite, WriteBytes};

use super::{CHUNK_BYTES, CopyJob};
use crate::provision::{Provision, push};
use crate::put::write_span;

/// How far ahead room is asked for.
const AHEAD_BYTES: u64 = 256 << 20;

/// What a copy asked the host for, and what became of it.
pub(super) struct Room<'a> {
    target: &'a dyn TargetFile,
    growth: Growth,
    /// What is yet to be read, if that tells where it will lie.
    reads: Peekable<Box<dyn Iterator<Item = VirtualSpan> + Send + 'a>>,
    ahead_bytes: u64,
    /// Room was asked for up to here.
    end: u64,
    /// What was found, and may hold gaps.
    found: Vec<HostSpan>,
    /// What was placed since, in the order of the file or not.
    placed: Vec<HostSpan>,
    /// The end of all that was placed.
    frontier: u64,
}

impl<'a> Room<'a> {
    /// For a target of which everything up to `placed_end` was placed.
    pub(super) fn new(job: &CopyJob<'a>, placed_end: u64) -> Self {
        let growth = match job.provision {
            Provision::Thin => job.writer.growth(),
            Provision::Lazy | Provision::Eager => Growth::Reserved,
        };
        // What is cloned has its room already; what is left of it is short.
        let reads = job.plan.reads.iter().filter(|_| job.plan.clone_block_bytes.is_none());
        let reads: Box<dyn Iterator<Item = VirtualSpan> + Send + 'a> = Box::new(reads);
        let ahead_bytes = AHEAD_BYTES.min(job.plan.reads.total_bytes().next_multiple_of(CHUNK_BYTES));
        Self {
            target: job.target,
            growth,
            reads: reads.peekable(),
            ahead_bytes,
            end: placed_end,
            found: Vec::new(),
            placed: Vec::new(),
            frontier: placed_end,
        }
    }

    /// Notes what is to be written next, and asks for room before that reaches the end of what was asked for.
    pub(super) fn follow(&mut self, puts: &[TargetWrite]) -> Result<()> {
        if self.growth == Growth::Reserved {
            return Ok(());
        }
        let spans: Vec<_> = puts.iter().map(write_span).filter(|span| !span.is_empty()).collect();
        let end = spans.iter().map(|span| span.end().get()).fold(self.frontier, u64::max);
        if end > self.end {
            self.give_back()?;
            match self.growth {
                Growth::Behind => self.find_behind(&spans, end),
                Growth::Mirrored => self.find_mirrored(end),
                Growth::Reserved => {}
            }
        }
        spans.into_iter().for_each(|span| push(&mut self.placed, span));
        self.frontier = end;
        Ok(())
    }

    /// Whether the host has found already what `put` asks for.
    pub(super) fn holds(&self, put: &TargetWrite) -> bool {
        let span = write_span(put);
        matches!(put.bytes, WriteBytes::Reserve(_))
            && self.found.iter().any(|found| found.intersect(&span) == Some(span))
    }

    /// Gives back what was found before the end of all that was placed, and not written.
    pub(super) fn give_back(&mut self) -> Result<()> {
        self.give_back_to(self.frontier)
    }

    /// Gives back what was found and will not be written, when all was placed: what lies behind that goes with the final length.
    pub(super) fn finish(&mut self) -> Result<()> {
        let end = if self.growth == Growth::Mirrored { self.end } else { self.frontier };
        self.give_back_to(end)
    }

    fn give_back_to(&mut self, end: u64) -> Result<()> {
        let end = HostOffset::new(end);
        let found: ExtentSet<Host> = self.found.drain(..).collect();
        let placed: ExtentSet<Host> = self.placed.drain(..).collect();
        let gaps =
            if mutants::broken!(RoomOfDataGivenBack) { found.clone() } else { found.subtract(&placed) };
        self.found.extend(found.within(Span::between(end, end.max(HostOffset::new(self.end)))));
        let whole_blocks = |gap: HostSpan| {
            let start = gap.start().get().next_multiple_of(HOST_BLOCK_BYTES);
            let stop = gap.end().min(end).get() / HOST_BLOCK_BYTES * HOST_BLOCK_BYTES;
            (start < stop).then(|| Span::between(HostOffset::new(start), HostOffset::new(stop)))
        };
        gaps.iter().filter_map(whole_blocks).try_for_each(|gap| self.target.punch(gap))
    }

    /// Room behind all that was placed. Before the first data there may be long tables, most of them empty: those are left out.
    fn find_behind(&mut self, spans: &[HostSpan], end: u64) {
        let from = HostOffset::new(self.end.max(self.frontier));
        let data = spans.iter().map(HostSpan::start).filter(|start| *start >= from).min().unwrap_or(from);
        let start = if data.get() - from.get() > CHUNK_BYTES { data } else { from };
        if self.frontier == 0 {
            // Tables that are written in the end lie before the first data.
            push(&mut self.placed, Span::between(start, HostOffset::new(end)));
        }
        self.end = end + self.ahead_bytes;
        self.find(Span::between(start, HostOffset::new(self.end)), 0);
    }

    /// Room for the long ones of what is read, where they lie: short ones are not worth a call each.
    fn find_mirrored(&mut self, end: u64) {
        let from = HostOffset::new(self.end);
        self.end = end + self.ahead_bytes;
        let window = Span::between(from, HostOffset::new(self.end));
        while let Some(read) = self.reads.peek() {
            let whole = Span::between(HostOffset::new(read.start().get()), HostOffset::new(read.end().get()));
            let is_passed = whole.end() <= window.end();
            if let Some(span) = whole.intersect(&window).filter(|_| whole.len_bytes() >= CHUNK_BYTES) {
                // Short runs between the long ones must not lack what may turn out to be zeros there.
                self.find(span, AHEAD_BYTES);
            }
            if !is_passed {
                return;
            }
            self.reads.next();
        }
    }

    fn find(&mut self, span: HostSpan, spare_bytes: u64) {
        if self.target.reserve_ahead(span, spare_bytes) {
            self.found.push(span);
        }
    }
}
