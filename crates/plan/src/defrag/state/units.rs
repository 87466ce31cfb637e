//! Units of the container by number, on a volume that may begin and end within one.

use std::ops::Range;

use extent::{ExtentSet, Volume, VolumeOffset, VolumeSpan};

use super::layout::Layout;
use crate::defrag::plan::{Backing, DefragOptions};

/// Where the container's units lie on the volume, and what it holds of them.
pub(crate) struct Units {
    pub(crate) unit_bytes: u64,
    skew_bytes: u64,
    pub(crate) allocated: ExtentSet<Volume>,
    pub(crate) fixed: ExtentSet<Volume>,
    end: VolumeOffset,
}

impl Units {
    pub(crate) fn new(layout: &Layout, options: &DefragOptions) -> Self {
        let unit_bytes = options.unit_bytes.max(1);
        Self {
            unit_bytes,
            skew_bytes: options.unit_skew_bytes % unit_bytes,
            allocated: layout.backed(Backing::Allocated),
            fixed: layout.backed(Backing::Fixed).union(&layout.backed(Backing::Withheld)),
            end: layout.end(),
        }
    }

    fn number_of(&self, at: VolumeOffset) -> u64 {
        at.get().saturating_add(self.skew_bytes) / self.unit_bytes
    }

    /// The numbers of the units that a span touches.
    pub(crate) fn numbers(&self, span: VolumeSpan) -> Range<u64> {
        if span.is_empty() {
            return 0..0;
        }
        self.number_of(span.start())..self.number_of(VolumeOffset::new(span.end().get() - 1)) + 1
    }

    /// Consecutive units, as far as they lie on the volume.
    pub(crate) fn span(&self, numbers: Range<u64>) -> VolumeSpan {
        let at = |number: u64| {
            let at = number.saturating_mul(self.unit_bytes).saturating_sub(self.skew_bytes);
            VolumeOffset::new(at).min(self.end)
        };
        VolumeSpan::between(at(numbers.start), at(numbers.end))
    }

    /// Whether all of a unit lies on the volume.
    pub(crate) fn is_whole(&self, number: u64) -> bool {
        self.span(number..number + 1).len_bytes() == self.unit_bytes
    }
}
