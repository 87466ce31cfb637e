//! Uses of a volume, put together in order.

use extent::{Extent, Span, Volume, VolumeOffset, VolumeSpan};

use crate::Use;

/// The uses of spans that follow each other.
pub(crate) struct Uses {
    at: VolumeOffset,
    found: Vec<Extent<Volume, Use>>,
}

impl Uses {
    /// No use yet of what begins at `at`.
    pub(crate) fn starting_at(at: VolumeOffset) -> Self {
        Self { at, found: Vec::new() }
    }

    /// Appends what lies before `end`, joining it to the last one if that is the same; nothing if all of it is there already.
    pub(crate) fn push(&mut self, end: VolumeOffset, state: Use) {
        if self.at >= end {
            return;
        }
        let span = Span::between(self.at, end);
        self.at = end;
        match self.found.last_mut() {
            Some(last) if last.state == state => last.span = Span::between(last.span.start(), end),
            _ => self.found.push(Extent::new(span, state)),
        }
    }

    /// Appends what lies before `end`: as `state` what is in one of `spans`, which come in order, else as used.
    pub(crate) fn push_within(
        &mut self,
        end: VolumeOffset,
        spans: impl Iterator<Item = VolumeSpan>,
        state: Use,
    ) {
        for span in spans {
            self.push(span.start(), Use::Used);
            self.push(span.end(), state);
        }
        self.push(end, Use::Used);
    }

    /// The same with `span` used.
    pub(crate) fn with_used(self, span: VolumeSpan) -> Self {
        let Some(first) = self.found.first() else { return self };
        let mut uses = Self { at: first.span.start(), found: Vec::with_capacity(self.found.len() + 2) };
        for part in self.found {
            uses.push(part.span.end().min(span.start()), part.state);
            uses.push(part.span.end().min(span.end()), Use::Used);
            uses.push(part.span.end(), part.state);
        }
        uses
    }

    /// All that were appended.
    pub(crate) fn into_extents(self) -> Vec<Extent<Volume, Use>> {
        self.found
    }
}
