//! Files that lie elsewhere: what may move, and what a volume's metadata say once it did.
//!
//! Invariants:
//! - a relocation moves a whole extent, as [`Rearrange::each_stream`] shows it, or several that follow each other both
//!   in their stream and on the volume, never a part of one: no stream is ever in more runs than before, so that
//!   what describes it still fits where it is;
//! - nothing here writes: what is to be written is a [`Patch`], and what reads as changed is a [`Rewritten`].
//!
//! Absent on purpose: where things should lie, which is for a planner; the order of writes, which is for an engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};

use crate::files::{FileExtent, FileId, FileStream};

/// What of a file lies elsewhere afterwards: the bytes of `from`, unchanged and in their order, lie from `to` on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Relocation {
    /// Where it lies.
    pub from: VolumeSpan,
    /// Where it will lie.
    pub to: VolumeOffset,
    /// Whose it is.
    pub file: FileId,
}

impl Relocation {
    /// Where it will lie, all of it.
    pub fn to_span(&self) -> VolumeSpan {
        Span::new(self.to, self.from.len_bytes())
    }
}

/// Relocations that happen at once. What one leaves another may take.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Relocations {
    /// By where they come from.
    by_from: Vec<Relocation>,
    /// Indices into `by_from`, by where they go.
    by_to: Vec<u32>,
}

impl Relocations {
    /// Takes them together. `Invalid` if two of them come from, or go to, the same place.
    pub fn new(mut relocations: Vec<Relocation>) -> Result<Self> {
        relocations.retain(|relocation| !relocation.from.is_empty());
        relocations.sort_unstable();
        let count = u32::try_from(relocations.len()).map_err(|_| Error::invalid("too many relocations"))?;
        let mut by_to: Vec<u32> = (0..count).collect();
        by_to.sort_unstable_by_key(|index| relocations[*index as usize].to);
        let overlap = |a: VolumeSpan, b: VolumeSpan| a.end() > b.start();
        let twice_from = relocations.windows(2).find(|pair| overlap(pair[0].from, pair[1].from));
        if let Some(pair) = twice_from {
            return Err(Error::invalid("two relocations of the same place").at(pair[1].from.start()));
        }
        let all = Self { by_from: relocations, by_to };
        let mut last_end = Offset::ZERO;
        for relocation in all.by_destination() {
            if relocation.to < last_end {
                return Err(Error::invalid("two relocations to the same place").at(relocation.to));
            }
            last_end = relocation.to_span().end();
        }
        Ok(all)
    }

    /// All of them, by where they come from.
    pub fn by_source(&self) -> impl ExactSizeIterator<Item = Relocation> + '_ {
        self.by_from.iter().copied()
    }

    /// All of them, by where they go.
    pub fn by_destination(&self) -> impl ExactSizeIterator<Item = Relocation> + '_ {
        self.by_to.iter().map(|index| self.by_from[*index as usize])
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_from.is_empty()
    }

    /// Bytes that move.
    pub fn total_bytes(&self) -> u64 {
        self.by_from.iter().map(|relocation| relocation.from.len_bytes()).sum()
    }

    /// The files that something moves of, ascending, each once.
    pub fn files(&self) -> Vec<FileId> {
        let mut files: Vec<_> = self.by_from.iter().map(|relocation| relocation.file).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// What comes from within `span`, each cut to it, by where it comes from.
    pub fn departures(&self, span: VolumeSpan) -> impl Iterator<Item = Relocation> + '_ {
        let start = self.by_from.partition_point(|relocation| relocation.from.end() <= span.start());
        let near = self.by_from[start..].iter().take_while(move |each| each.from.start() < span.end());
        near.filter_map(move |each| {
            let from = each.from.intersect(&span)?;
            let to = each.to.plus(from.start().get() - each.from.start().get());
            Some(Relocation { from, to, file: each.file })
        })
    }

    /// What goes to within `span`, each cut to it, by where it goes.
    pub fn arrivals(&self, span: VolumeSpan) -> impl Iterator<Item = Relocation> + '_ {
        let at = |index: &u32| self.by_from[*index as usize];
        let start = self.by_to.partition_point(move |index| at(index).to_span().end() <= span.start());
        let near = self.by_to[start..].iter().map(at).take_while(move |each| each.to < span.end());
        near.filter_map(move |each| {
            let to = each.to_span().intersect(&span)?;
            let skipped = to.start().get() - each.to.get();
            let from = Span::new(each.from.start().plus(skipped), to.len_bytes());
            Some(Relocation { from, to: to.start(), file: each.file })
        })
    }

    /// Those that come from within `spans`, and the others; `None` if there are none of either. Each is what may happen at once: nothing goes to what
    /// another one leaves.
    pub fn apart(&self, spans: &[VolumeSpan]) -> Result<Option<(Self, Self)>> {
        let is_within = |each: &Relocation| spans.iter().any(|span| span.covers(&each.from));
        let (within, others): (Vec<_>, Vec<_>) = self.by_source().partition(is_within);
        let is_both = !within.is_empty() && !others.is_empty();
        is_both.then(|| Ok((Self::new(within)?, Self::new(others)?))).transpose()
    }

    /// Calls `each` with the pieces of `span`, in order, and where each lies afterwards.
    pub fn each_place(&self, span: VolumeSpan, mut each: impl FnMut(VolumeSpan, VolumeOffset)) {
        let mut at = span.start();
        let stay = |from, to, each: &mut dyn FnMut(VolumeSpan, VolumeOffset)| {
            let piece = Span::between(from, to);
            if !piece.is_empty() {
                each(piece, from);
            }
        };
        for departure in self.departures(span) {
            stay(at, departure.from.start(), &mut each);
            each(departure.from, departure.to);
            at = departure.from.end();
        }
        stay(at, span.end(), &mut each);
    }

    /// Calls `each` with the pieces of a span of the volume as it will be, in order, and where each lies now. What nothing
    /// goes to lies where it did.
    pub fn each_origin(&self, span: VolumeSpan, mut each: impl FnMut(VolumeSpan, VolumeOffset)) {
        let mut at = span.start();
        for arrival in self.arrivals(span) {
            let stays = Span::between(at, arrival.to);
            if !stays.is_empty() {
                each(stays, at);
            }
            each(arrival.to_span(), arrival.from.start());
            at = arrival.to_span().end();
        }
        let stays = Span::between(at, span.end());
        if !stays.is_empty() {
            each(stays, at);
        }
    }
}

/// Bytes of metadata that change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patch {
    /// Where they lie: whole sectors of 512 bytes.
    pub at: VolumeOffset,
    /// What is there before.
    pub before: Vec<u8>,
    /// What is there after; as long.
    pub after: Vec<u8>,
}

/// What relocations change besides the moved bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Edits {
    /// The metadata, ascending and disjoint; none lies where something comes from or goes to.
    pub patches: Vec<Patch>,
    /// Clusters that are free afterwards although nothing moved from them, such as those of a map that got smaller.
    pub freed: Vec<VolumeSpan>,
}

/// Whether a stream may move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mobility {
    /// Each of its extents, to anywhere that is free.
    Movable,
    /// All of its extents at once, in their order, to one free span: what describes them may have no room for more. Whoever knows what
    /// moves, and in which order, can ask whether it has ([`Rearrange::crowded`]).
    Together,
    /// The first of its extents stays. All others go behind it at once, and after everything else: who knows where things lie learns
    /// it from there. Nobody expects it elsewhere, but few care; without being asked it stays, for this reason.
    Anchored(&'static str),
    /// None of it, for this reason.
    Pinned(&'static str),
}

impl Mobility {
    /// Why it stays unless something else is asked for.
    pub fn stays(&self) -> Option<&'static str> {
        match self {
            Self::Movable | Self::Together => None,
            Self::Anchored(reason) | Self::Pinned(reason) => Some(reason),
        }
    }
}

/// Sees what may move.
pub trait StreamVisitor {
    /// A stream that has extents, which are in its order. Streams come by ascending file.
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent], mobility: Mobility);
}

/// The metadata of a volume as they are once relocations happened, computed as they are read. For volumes that are
/// written anew.
pub trait Rewritten: Send + Sync {
    /// Where they lie: all that may differ from the volume as it is, besides what moves. Nothing moves from or to there.
    fn places(&self) -> &ExtentSet<Volume>;

    /// What is free afterwards although nothing moved from there.
    fn freed(&self) -> &ExtentSet<Volume>;

    /// Fills `buf` from `at`; all of it lies in one of [`Self::places`].
    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()>;
}

/// A volume whose files can be laid elsewhere. Only had of a volume that is clean, and was checked in full.
pub trait Rearrange: Send + Sync {
    /// The unit of allocation: all extents that may move and all places they may go to are multiples of it,
    /// counted from [`Self::first_cluster`].
    fn cluster_bytes(&self) -> u64;

    /// Where the first cluster lies.
    fn first_cluster(&self) -> VolumeOffset {
        Offset::ZERO
    }

    /// Shows all streams with their extents, in one pass over the metadata.
    fn each_stream(&self, visitor: &mut dyn StreamVisitor) -> Result<()>;

    /// Calls `each` with the spans that files may go to: free, and no part of what must stay free. Ascending, coalesced.
    fn each_room(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()>;

    /// Where a small file is best put, such as its inode's block group, if the file system cares.
    fn home(&self, _file: FileId) -> Option<VolumeSpan> {
        None
    }

    /// What is to change on the volume as `volume` has it now, once the relocations' bytes were copied to places that
    /// were free. Reads no more than the metadata of the files that move.
    fn edits(&self, volume: &dyn ReadAt<Volume>, relocations: &Relocations) -> Result<Edits>;

    /// What of `relocations` has to happen before the rest of them, where [`Self::edits`] is `Invalid` for all at once: what describes a file has to be
    /// told anew where it lies, and moves itself. `None` if that is not the reason.
    fn first_of(
        &self,
        _volume: &dyn ReadAt<Volume>,
        _relocations: &Relocations,
    ) -> Result<Option<(Relocations, Relocations)>> {
        Ok(None)
    }

    /// Those of `files` whose metadata have no room for what one of `batches` would have them say, which happen to the volume as it was
    /// opened, one after the other. Where streams move as [`Rearrange::each_stream`] says there is room, and this need not be asked.
    fn crowded(&self, _files: &BTreeSet<FileId>, _batches: &[Relocations]) -> Result<BTreeSet<FileId>> {
        Ok(BTreeSet::new())
    }

    /// The metadata as they are once all of `relocations` happened to the volume as it was opened.
    fn rewritten(&self, relocations: Arc<Relocations>) -> Result<Box<dyn Rewritten>>;

    /// Spans of bytes that change whenever a guest uses the volume, and that [`Self::edits`] of `batches` leaves alone: what
    /// shows that a volume is still as it was left.
    fn witnesses(&self, batches: &[Relocations]) -> Result<Vec<VolumeSpan>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn relocation(from: u64, len: u64, to: u64) -> Relocation {
        Relocation { from: Span::new(Offset::new(from), len), to: Offset::new(to), file: FileId(7) }
    }

    #[test]
    fn what_comes_from_some_spans_is_apart_from_the_rest() {
        let all =
            Relocations::new(vec![relocation(0, 8, 100), relocation(8, 4, 120), relocation(20, 4, 130)])
                .unwrap();
        let apart = |spans: &[(u64, u64)]| {
            let spans: Vec<_> = spans.iter().map(|(at, len)| Span::new(Offset::new(*at), *len)).collect();
            let starts =
                |part: Relocations| part.by_source().map(|each| each.from.start().get()).collect::<Vec<_>>();
            all.apart(&spans).unwrap().map(|(within, others)| (starts(within), starts(others)))
        };
        assert_eq!(apart(&[(8, 4)]), Some((vec![8], vec![0, 20])));
        assert_eq!(apart(&[(0, 8), (20, 8)]), Some((vec![0, 20], vec![8])));
        // A part of one is not all of it.
        assert_eq!(apart(&[(0, 6)]), None);
        assert_eq!(apart(&[(0, 100)]), None);
        assert_eq!(apart(&[]), None);
    }

    #[test]
    fn what_overlaps_is_refused() {
        assert!(Relocations::new(vec![relocation(0, 10, 100), relocation(9, 1, 200)]).is_err());
        assert!(Relocations::new(vec![relocation(0, 10, 100), relocation(20, 10, 109)]).is_err());
        assert!(Relocations::new(vec![relocation(0, 10, 100), relocation(20, 10, 0)]).is_ok());
    }

    proptest! {
        #[test]
        fn places_and_origins_are_those_of_each_byte(
            pieces in prop::collection::vec((0..6u64, 1..6u64), 0..8), start in 0..60u64, len in 0..60u64,
        ) {
            // Sources ascend below 100, destinations descend from 200.
            let (mut from, mut to) = (0, 200);
            let mut place: std::collections::BTreeMap<u64, u64> = (0..300).map(|byte| (byte, byte)).collect();
            let mut origin = place.clone();
            let mut all = Vec::new();
            for (gap, len) in pieces {
                from += gap;
                to -= len + gap;
                all.push(relocation(from, len, to));
                for byte in 0..len {
                    place.insert(from + byte, to + byte);
                    origin.insert(to + byte, from + byte);
                }
                from += len;
            }
            let moved_bytes: u64 = all.iter().map(|each| each.from.len_bytes()).sum();
            let relocations = Relocations::new(all).unwrap();
            prop_assert_eq!(relocations.total_bytes(), moved_bytes);
            for base in [0, 100, 140] {
                let span = Span::new(Offset::new(start + base), len);
                let mut at = span.start();
                relocations.each_place(span, |piece, to| {
                    assert_eq!(piece.start(), at);
                    at = piece.end();
                    (0..piece.len_bytes()).for_each(|byte| {
                        assert_eq!(place[&piece.start().plus(byte).get()], to.plus(byte).get());
                    });
                });
                prop_assert_eq!(at, span.end());
                let mut at = span.start();
                relocations.each_origin(span, |piece, from| {
                    assert_eq!(piece.start(), at);
                    at = piece.end();
                    (0..piece.len_bytes()).for_each(|byte| {
                        assert_eq!(origin[&piece.start().plus(byte).get()], from.plus(byte).get());
                    });
                });
                prop_assert_eq!(at, span.end());
            }
        }
    }
}
