//! What is to be done, chunk by chunk: each worker asks for the next one.

use extent::{Span, VirtualOffset};
use plan::{CopyPlan, Part};

use super::CHUNK_BYTES;

/// One chunk's work.
pub(super) struct Work {
    pub(super) sequence: u64,
    pub(super) chunk_at: VirtualOffset,
    pub(super) parts: Vec<Part>,
}

/// Cuts a plan's parts into chunks, in order.
pub(super) struct Dispatcher<I> {
    parts: I,
    /// What of the last part belongs to a later chunk.
    rest: Option<Part>,
    /// The next chunk of all, if there is something to do in each of them.
    next_whole: Option<VirtualOffset>,
    /// The disk's end.
    end: VirtualOffset,
    sequence: u64,
}

/// All of `plan` behind `done`: with every chunk of the disk if `is_whole`, which has something to do in each.
pub(super) fn dispatcher(
    plan: &CopyPlan,
    done: VirtualOffset,
    is_whole: bool,
) -> Dispatcher<impl Iterator<Item = Part>> {
    let left = move |part: Part| {
        let span = part.span.intersect(&Span::between(done, part.span.end()))?;
        Some(Part { span, ..part })
    };
    Dispatcher {
        parts: plan.parts().filter_map(left),
        rest: None,
        next_whole: is_whole.then_some(done),
        end: VirtualOffset::new(plan.virtual_bytes),
        sequence: 0,
    }
}

impl<I: Iterator<Item = Part>> Dispatcher<I> {
    /// The next chunk in which there is anything to do.
    pub(super) fn next(&mut self) -> Option<Work> {
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
