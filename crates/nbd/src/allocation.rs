//! What of an export reads as zeros, as the server tells it: `base:allocation`.

use block::HostState;
use extent::{Extent, Host, HostOffset, Offset, Span};

use crate::handshake::Facts;
use crate::layout::allocation;

/// What is asked at once without extended headers: as much as a request can name in whole blocks of any server.
const STEP_BYTES: u64 = 1 << 31;

/// How much is asked about at once, of what is left up to the export's end: all of it with extended headers.
pub(crate) fn asked_bytes(facts: &Facts, left_bytes: u64) -> u64 {
    if facts.is_extended { left_bytes } else { left_bytes.min(STEP_BYTES) }
}

/// The flags of which any says that an extent reads as zeros. What is a hole, but not said to, may read as anything.
pub(crate) const ZEROS: u64 = allocation::ZERO as u64;

/// The extents that were told last: consecutive, none like the one before it.
#[derive(Debug, Default)]
pub(crate) struct Told {
    extents: Vec<Extent<Host, HostState>>,
}

impl Told {
    /// What a reply about the bytes from `at` on says, up to the export's end; `zeros` is [`ZEROS`].
    pub(crate) fn new(at: u64, found: &[(u64, u64)], end: u64, zeros: u64) -> Self {
        let mut extents: Vec<Extent<Host, HostState>> = Vec::new();
        let mut start = at;
        for (len_bytes, state) in found {
            let stop = start.saturating_add(*len_bytes).min(end);
            if stop == start {
                break;
            }
            let state = if state & zeros != 0 { HostState::Hole } else { HostState::Data };
            let span = Span::between(Offset::new(start), Offset::new(stop));
            match extents.last_mut() {
                Some(last) if last.state == state => last.span = Span::between(last.span.start(), span.end()),
                _ => extents.push(Extent::new(span, state)),
            }
            start = stop;
        }
        Self { extents }
    }

    /// The extent that holds `at`, if it was told.
    pub(crate) fn at(&self, at: HostOffset) -> Option<Extent<Host, HostState>> {
        let index = self.extents.partition_point(|extent| extent.span.end() <= at);
        self.extents.get(index).filter(|extent| extent.span.contains(at)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_joined_and_cut_at_the_end() {
        let told = Told::new(100, &[(50, 0), (50, 1), (100, 3), (100, 2), (u64::MAX, 0)], 1000, ZEROS);
        let at = |at| {
            told.at(Offset::new(at)).map(|extent| {
                (extent.span.start().get(), extent.span.end().get(), extent.state == HostState::Hole)
            })
        };
        assert_eq!(at(99), None);
        assert_eq!(at(149), Some((100, 200, false)), "a hole that need not read as zeros is data");
        assert_eq!(at(200), Some((200, 400, true)));
        assert_eq!(at(999), Some((400, 1000, false)));
        assert_eq!(at(1000), None);
    }
}
