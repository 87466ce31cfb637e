//! Spans that come in order, joined where they follow each other.

use extent::{Span, VolumeSpan};

/// Shows `each` the spans.
pub(crate) struct Coalesced<'a> {
    last: Option<VolumeSpan>,
    each: &'a mut dyn FnMut(VolumeSpan),
}

impl<'a> Coalesced<'a> {
    pub(crate) fn new(each: &'a mut dyn FnMut(VolumeSpan)) -> Self {
        Self { last: None, each }
    }

    pub(crate) fn push(&mut self, span: VolumeSpan) {
        match &mut self.last {
            Some(last) if last.end() == span.start() => *last = Span::between(last.start(), span.end()),
            last => last.replace(span).into_iter().for_each(&mut *self.each),
        }
    }

    /// Shows the last one.
    pub(crate) fn finish(self) {
        self.last.into_iter().for_each(&mut *self.each);
    }
}
