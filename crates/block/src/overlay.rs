//! A log replayed in memory: what is below, with some blocks replaced, and not one byte changed on disk.

use std::collections::BTreeMap;

use extent::{Extent, Host, HostSpan, Offset, Space, Span};

use crate::{HostFile, HostState, ReadAt, Result, check_bounds};

/// `below` with patches over it. Later patches hide earlier ones.
pub struct Overlay<S, T> {
    below: T,
    len_bytes: u64,
    /// Disjoint patches by start.
    patches: BTreeMap<Offset<S>, Vec<u8>>,
}

impl<S: Space, T: ReadAt<S>> Overlay<S, T> {
    /// `below` without patches.
    pub fn new(below: T) -> Self {
        let len_bytes = below.len_bytes();
        Self { below, len_bytes, patches: BTreeMap::new() }
    }

    /// Makes the bytes from `at` read as `bytes`. A patch past the end makes the whole longer; a gap that
    /// this leaves reads as zeros.
    pub fn patch(&mut self, at: Offset<S>, bytes: Vec<u8>) {
        let span = Span::new(at, bytes.len() as u64);
        if span.is_empty() {
            return;
        }
        self.cut(span);
        self.len_bytes = self.len_bytes.max(span.end().get());
        self.patches.insert(at, bytes);
    }

    /// Makes the whole `len_bytes` long; what is added reads as zeros.
    pub fn set_len(&mut self, len_bytes: u64) {
        self.len_bytes = self.len_bytes.max(len_bytes);
    }

    /// Bytes held by patches.
    pub fn patched_bytes(&self) -> u64 {
        self.patches.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// What lies below.
    pub fn below(&self) -> &T {
        &self.below
    }

    /// The patches that overlap `span`, in order.
    fn overlapping(&self, span: Span<S>) -> impl Iterator<Item = (Span<S>, &[u8])> {
        let first = self.patches.range(..=span.start()).next_back().map_or(span.start(), |(at, _)| *at);
        self.patches
            .range(first..span.end().max(first))
            .map(|(at, bytes)| (Span::new(*at, bytes.len() as u64), &bytes[..]))
            .filter(move |(patch, _)| patch.intersect(&span).is_some())
    }

    /// Removes what `span` covers from the patches.
    fn cut(&mut self, span: Span<S>) {
        let hidden: Vec<_> = self.overlapping(span).map(|(patch, _)| patch).collect();
        for patch in hidden {
            let bytes = self.patches.remove(&patch.start()).expect("just listed");
            let offset_in =
                |at: Offset<S>| usize::try_from(at.get() - patch.start().get()).expect("within a patch");
            if span.end() < patch.end() {
                self.patches.insert(span.end(), bytes[offset_in(span.end())..].to_vec());
            }
            if patch.start() < span.start() {
                self.patches.insert(patch.start(), bytes[..offset_in(span.start())].to_vec());
            }
        }
    }
}

impl<S: Space, T: ReadAt<S>> ReadAt<S> for Overlay<S, T> {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes)?;
        let span = Span::new(at, buf.len() as u64);
        let index = |offset: Offset<S>| usize::try_from(offset.get() - at.get()).expect("within the buffer");
        let below_end = span.end().min(Offset::new(self.below.len_bytes())).max(at);
        self.below.read_at_if_any(at, &mut buf[..index(below_end)])?;
        buf[index(below_end)..].fill(0);
        for (patch, bytes) in self.overlapping(span) {
            let both = patch.intersect(&span).expect("listed as overlapping");
            let from = usize::try_from(both.start().get() - patch.start().get()).expect("within a patch");
            let len = index(both.end()) - index(both.start());
            buf[index(both.start())..index(both.end())].copy_from_slice(&bytes[from..from + len]);
        }
        Ok(())
    }
}

trait ReadIfAny<S: Space> {
    fn read_at_if_any(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()>;
}

impl<S: Space, T: ReadAt<S>> ReadIfAny<S> for T {
    /// An empty read asks nothing of the layer below, even past its end.
    fn read_at_if_any(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()> {
        if buf.is_empty() { Ok(()) } else { self.read_at(at, buf) }
    }
}

impl<T: HostFile> HostFile for Overlay<Host, T> {
    // The extents are those below: what a patch hides has its place all the same.
    crate::forward!(
        self, self.below => name, path, allocated_bytes, host_extents, host_filesystem, identity, holders, is_block_device, forget
    );

    /// The states below, except that a patch is data.
    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        let mut states = Vec::new();
        let mut at = span.start();
        for (patch, _) in self.overlapping(span) {
            let patch = patch.intersect(&span).expect("listed as overlapping");
            self.push_below(Span::between(at, patch.start()), &mut states)?;
            states.push(Extent::new(patch, HostState::Data));
            at = patch.end();
        }
        self.push_below(Span::between(at, span.end()), &mut states)?;
        Ok(states)
    }
}

impl<T: HostFile> Overlay<Host, T> {
    fn push_below(&self, span: HostSpan, states: &mut Vec<Extent<Host, HostState>>) -> Result<()> {
        let end = Offset::new(self.below.len_bytes());
        if let Some(inside) = span.intersect(&Span::between(Offset::ZERO, end)) {
            states.extend(self.below.host_map(inside)?);
        }
        let beyond = Span::between(span.start().max(end), span.end());
        if !beyond.is_empty() {
            states.push(Extent::new(beyond, HostState::Hole));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, read_vec};

    #[test]
    fn patches_read_as_a_plain_array_would() {
        let mut naive = vec![1u8; 64];
        let mut overlay = Overlay::<Host, _>::new(Memory::new(naive.clone()));
        let patches = [(8, 16, 2u8), (0, 4, 3), (12, 4, 4), (6, 30, 5), (60, 12, 6), (63, 1, 7), (80, 4, 8)];
        for (at, len, value) in patches {
            if naive.len() < at + len {
                naive.resize(at + len, 0);
            }
            naive[at..at + len].fill(value);
            overlay.patch(Offset::new(at as u64), vec![value; len]);
            for start in 0..naive.len() {
                let len = naive.len() - start;
                let read = read_vec(&overlay, Offset::new(start as u64), len as u64, "all").unwrap();
                assert_eq!(read, naive[start..], "from {start}");
            }
        }
        let states = overlay.host_map(Span::from_zero(naive.len() as u64)).unwrap();
        let mut at = Offset::ZERO;
        for extent in states {
            assert_eq!(extent.span.start(), at);
            at = extent.span.end();
        }
        assert_eq!(at.get(), naive.len() as u64);
    }
}
