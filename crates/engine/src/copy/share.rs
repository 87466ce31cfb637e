//! A chunk's share that is cloned, and the rest of it, which is read and written.
//!
//! What is cloned has its storage in common with the source until one of both is written (a *reflink*): nothing is read, and nothing
//! written but metadata of the host's file system. It is done before the chunk passes the turnstile: what has passed is stored, or on its way,
//! as with data, and a later attempt cuts off what had not.

use block::{Error, HostFile, Result, TargetFile};
use extent::{HostOffset, HostSpan, Span, VirtualOffset, VirtualSpan};
use plan::{CopyPlan, Part};

use super::CHUNK_BYTES;

/// A file that the target shares storage with: a raw source. The target is raw, too, thin, and a new file.
#[derive(Clone, Copy)]
pub struct CloneSource<'a> {
    /// The source's one file.
    pub file: &'a dyn HostFile,
    /// Whether a copy fails that cannot clone what was planned; else that is copied.
    pub is_required: bool,
}

/// What becomes of a chunk's parts.
pub(super) struct Share {
    /// What was cloned.
    pub(super) cloned: Vec<VirtualSpan>,
    /// What is to be read or filled.
    pub(super) parts: Vec<Part>,
}

/// How a worker clones.
#[derive(Clone, Copy)]
pub(super) struct Cloner<'a> {
    source: CloneSource<'a>,
    plan: &'a CopyPlan,
    target: &'a dyn TargetFile,
    /// Whether one block more is cloned than is planned: but for a mutant, no.
    goes_beyond: bool,
}

impl<'a> Cloner<'a> {
    /// `None` if nothing is to be cloned. Panics if what is planned does not go with how data is placed.
    pub(super) fn new(
        source: Option<CloneSource<'a>>,
        plan: &'a CopyPlan,
        target: &'a dyn TargetFile,
        granularity: usize,
    ) -> Option<Self> {
        let (source, block_bytes) = source.zip(plan.clone_block_bytes)?;
        let is_whole =
            block_bytes.is_multiple_of(granularity as u64) && CHUNK_BYTES.is_multiple_of(block_bytes);
        assert!(is_whole && block_bytes.is_power_of_two(), "clones are whole granules of a chunk");
        Some(Self { source, plan, target, goes_beyond: mutants::broken!(ClonedBeyondThePlan) })
    }

    /// Clones what can be of a chunk's parts.
    pub(super) fn share(&self, parts: &[Part]) -> Result<Share> {
        let mut share = Share { cloned: Vec::new(), parts: Vec::new() };
        for part in parts {
            match self.plan.cloned(part) {
                Some(span) if self.clone_span(span)? => share.push(part, span),
                _ => share.parts.push(*part),
            }
        }
        Ok(share)
    }

    fn clone_span(&self, span: VirtualSpan) -> Result<bool> {
        let is_cloned = self.target.clone_range(self.source.file, self.placed(span))?;
        if !is_cloned && self.source.is_required {
            let what = "the file system does not share this part of the source with the target";
            return Err(Error::unsupported(what).path(self.source.file.name()).at(span.start()));
        }
        Ok(is_cloned)
    }

    /// A raw disk's bytes lie where they are read.
    fn placed(&self, span: VirtualSpan) -> HostSpan {
        let beyond_bytes = self.plan.clone_block_bytes.filter(|_| self.goes_beyond).unwrap_or(0);
        Span::new(HostOffset::new(span.start().get()), span.len_bytes() + beyond_bytes)
    }
}

impl Share {
    /// All of a chunk is read, or filled.
    pub(super) fn of_parts(parts: &[Part]) -> Self {
        Self { cloned: Vec::new(), parts: parts.to_vec() }
    }

    /// Bytes that were cloned.
    pub(super) fn cloned_bytes(&self) -> u64 {
        self.cloned.iter().map(Span::len_bytes).sum()
    }

    /// Bytes to be read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.parts.iter().filter(|part| part.fill.is_none()).map(|part| part.span.len_bytes()).sum()
    }

    /// The end of what was cloned; zero if nothing was.
    pub(super) fn cloned_end(&self) -> VirtualOffset {
        self.cloned.last().map_or(VirtualOffset::ZERO, Span::end)
    }

    /// Notes that `span` of `part` was cloned: what lies before and behind it is not.
    fn push(&mut self, part: &Part, span: VirtualSpan) {
        let before = Span::between(part.span.start(), span.start());
        let behind = Span::between(span.end(), part.span.end());
        let edges = [before, behind].into_iter().filter(|edge| !edge.is_empty());
        self.parts.extend(edges.map(|span| Part { span, ..*part }));
        self.cloned.push(span);
    }
}
