//! Where the disk is cut into the pieces that a backup stores.
//!
//! A piece that was stored once is not stored again, so a cut is to be where the contents are the same the next time, wherever they
//! lie by then. Large files, and files that lie in several pieces, are cut at the borders of their extents and, within these, at
//! multiples of a length from the file's beginning: a file that moved is the same pieces in another order. All else, small files and
//! what file systems keep for themselves, is cut by its place on the disk.
//!
//! Invariants: the pieces are the plan's reads and fills, each byte once, in order. Cuts change what is stored twice, never what is
//! restored.

use extent::{Span, VirtualOffset, VirtualSpan};

use crate::copy::{CopyPlan, Part};

/// The longest piece of a file.
pub const FILE_PIECE_BYTES: u64 = 1 << 20;
/// The longest piece of what is cut by its place.
pub const PLACE_PIECE_BYTES: u64 = 128 << 10;
/// Files in one piece that are shorter than this are cut by their place.
pub const FILE_BYTES_MIN: u64 = 64 << 10;
/// How much is read at a time.
pub const BATCH_BYTES: u64 = 4 << 20;
/// The most extents that are remembered: some 200 MB. Of what comes behind, all is cut by its place.
const EXTENTS_MAX: usize = 8 << 20;

/// An extent of a file on the virtual disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileExtent {
    start: u64,
    end: u64,
    /// Where in the file it begins.
    logical: u64,
}

/// Extents of files at whose borders the disk is cut.
#[derive(Clone, Default, Debug)]
pub struct Cuts {
    extents: Vec<FileExtent>,
    is_ordered: bool,
}

impl Cuts {
    /// Adds the extents of one file in its order, each with where in the file it begins.
    pub fn add_file(&mut self, extents: impl Iterator<Item = (u64, VirtualSpan)>) {
        self.is_ordered = false;
        let first = self.extents.len();
        for (logical, span) in extents {
            let extent = FileExtent { start: span.start().get(), end: span.end().get(), logical };
            match self.extents[first..].last_mut() {
                // What the file system keeps as two extents may be one piece.
                Some(last)
                    if last.end == extent.start
                        && last.logical.wrapping_add(last.end - last.start) == logical =>
                {
                    last.end = extent.end;
                }
                _ => self.extents.push(extent),
            }
        }
        let is_small = match self.extents[first..] {
            [FileExtent { start, end, .. }] => end - start < FILE_BYTES_MIN,
            _ => false,
        };
        if is_small || self.extents.len() > EXTENTS_MAX {
            self.extents.truncate(first);
        }
    }

    /// Puts them in the order of the disk. Where two overlap, as parts that files share do, the first one counts.
    fn order(&mut self) {
        if std::mem::replace(&mut self.is_ordered, true) {
            return;
        }
        self.extents.sort_unstable_by_key(|extent| (extent.start, extent.end));
        let mut end = 0;
        self.extents.retain(|extent| {
            let is_behind = extent.start >= end;
            if is_behind {
                end = extent.end;
            }
            is_behind
        });
    }
}

/// What is read at a time, and where it is cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// What to read or fill, in order.
    pub parts: Vec<BatchPart>,
}

/// A part of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchPart {
    /// What is read or filled.
    pub part: Part,
    /// The lengths of its pieces, in order.
    pub pieces: Vec<u32>,
}

impl Batch {
    /// All parts.
    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.part.span.len_bytes()).sum()
    }
}

/// Calls `each` with one batch after the other, and stops when it answers `false`.
pub fn each_batch(plan: &CopyPlan, mut cuts: Cuts, each: &mut dyn FnMut(Batch) -> bool) {
    cuts.order();
    let mut cutter = Cutter { extents: &cuts.extents, next: 0 };
    let mut batch = Batch { parts: Vec::new() };
    let mut batch_bytes = 0;
    for part in plan.parts() {
        let (mut start, end) = (part.span.start().get(), part.span.end().get());
        while start < end {
            let mut pieces = Vec::new();
            let from = start;
            while start < end && (batch_bytes == 0 || batch_bytes < BATCH_BYTES) {
                let to = cutter.boundary_behind(start).min(end);
                // A batch is exceeded by no piece: what follows would not fit into its memory.
                if batch_bytes + (to - start) > BATCH_BYTES {
                    break;
                }
                pieces.push(u32::try_from(to - start).expect("a piece is a mebibyte at the most"));
                batch_bytes += to - start;
                start = to;
            }
            if start > from {
                let span = Span::between(VirtualOffset::new(from), VirtualOffset::new(start));
                batch.parts.push(BatchPart { part: Part { span, fill: part.fill }, pieces });
            }
            if start < end || batch_bytes >= BATCH_BYTES {
                batch_bytes = 0;
                if !each(std::mem::replace(&mut batch, Batch { parts: Vec::new() })) {
                    return;
                }
            }
        }
    }
    if !batch.parts.is_empty() {
        each(batch);
    }
}

/// Goes through the extents as it goes through the disk.
struct Cutter<'a> {
    extents: &'a [FileExtent],
    /// The first extent that ends behind the last position.
    next: usize,
}

impl Cutter<'_> {
    /// The first place behind `at` where the disk is cut.
    fn boundary_behind(&mut self, at: u64) -> u64 {
        while self.extents.get(self.next).is_some_and(|extent| extent.end <= at) {
            self.next += 1;
        }
        let by_place = (at / PLACE_PIECE_BYTES + 1) * PLACE_PIECE_BYTES;
        match self.extents.get(self.next) {
            Some(extent) if extent.start <= at => {
                // Where a file says it lies in itself may be any number.
                let in_file = extent.logical.wrapping_add(at - extent.start);
                extent.end.min(at + (FILE_PIECE_BYTES - in_file % FILE_PIECE_BYTES))
            }
            Some(extent) => by_place.min(extent.start),
            None => by_place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Avoided, VolumeShare};
    use extent::PackedExtents;

    const KIB: u64 = 1 << 10;

    fn span(start: u64, len: u64) -> VirtualSpan {
        Span::new(VirtualOffset::new(start), len)
    }

    fn plan(reads: &[(u64, u64)], fills: &[(u64, u64)]) -> CopyPlan {
        let mut packed = PackedExtents::new();
        reads.iter().for_each(|&(start, len)| packed.push(span(start, len)));
        CopyPlan {
            virtual_bytes: 1 << 40,
            reads: packed,
            fills: fills.iter().map(|&(start, len)| (span(start, len), 0xff)).collect(),
            clone_block_bytes: None,
            avoided: Avoided::default(),
            used_bytes: 0,
            volumes: Vec::<VolumeShare>::new(),
        }
    }

    /// Start and length of every piece.
    fn pieces(plan: &CopyPlan, cuts: Cuts) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        each_batch(plan, cuts, &mut |batch| {
            assert!(batch.len_bytes() <= BATCH_BYTES && !batch.parts.is_empty());
            for BatchPart { part, pieces } in batch.parts {
                let mut at = part.span.start().get();
                for len in pieces {
                    found.push((at, u64::from(len)));
                    at += u64::from(len);
                }
                assert_eq!(at, part.span.end().get());
            }
            true
        });
        found
    }

    #[test]
    fn what_is_no_file_is_cut_by_its_place() {
        let plan = plan(&[(100 * KIB, 200 * KIB), (900 * KIB, 4 * KIB)], &[(400 * KIB, KIB)]);
        let expected = [(100, 28), (128, 128), (256, 44), (400, 1), (900, 4)]
            .map(|(start, len)| (start * KIB, len * KIB));
        assert_eq!(pieces(&plan, Cuts::default()), expected);
    }

    #[test]
    fn a_file_is_cut_from_its_beginning_wherever_it_lies() {
        let lengths = |start: u64| -> Vec<u64> {
            let mut cuts = Cuts::default();
            cuts.add_file([(0, span(start, 2500 * KIB))].into_iter());
            let found = pieces(&plan(&[(start, 2500 * KIB)], &[]), cuts);
            found.into_iter().map(|(_, len)| len / KIB).collect()
        };
        assert_eq!(lengths(0), [1024, 1024, 452]);
        assert_eq!(lengths(300 * KIB), [1024, 1024, 452]);
    }

    #[test]
    fn extents_of_a_file_in_pieces_are_cut_whatever_their_size() {
        let mut cuts = Cuts::default();
        // The second one continues the first, and is no piece of its own.
        let extents = [
            (0, span(64 * KIB, 4 * KIB)),
            (4 * KIB, span(68 * KIB, 4 * KIB)),
            (8 * KIB, span(16 * KIB, 8 * KIB)),
        ];
        cuts.add_file(extents.into_iter());
        // Small, and in one piece.
        cuts.add_file([(0, span(96 * KIB, 4 * KIB))].into_iter());
        let expected =
            [(0, 16), (16, 8), (24, 40), (64, 8), (72, 56)].map(|(start, len)| (start * KIB, len * KIB));
        assert_eq!(pieces(&plan(&[(0, 128 * KIB)], &[]), cuts), expected);
    }

    #[test]
    fn what_is_shared_counts_once() {
        let mut cuts = Cuts::default();
        cuts.add_file([(0, span(0, 256 * KIB))].into_iter());
        cuts.add_file([(0, span(128 * KIB, 256 * KIB))].into_iter());
        let expected = [(0, 256), (256, 128), (384, 128)].map(|(start, len)| (start * KIB, len * KIB));
        assert_eq!(pieces(&plan(&[(0, 512 * KIB)], &[]), cuts), expected);
    }

    #[test]
    fn large_plans_come_in_batches() {
        let mut cuts = Cuts::default();
        cuts.add_file([(0, span(512 * KIB, 20_000 * KIB))].into_iter());
        let found = pieces(&plan(&[(0, 30_000 * KIB)], &[]), cuts);
        assert_eq!(found.iter().map(|(_, len)| len).sum::<u64>(), 30_000 * KIB);
        assert!(found.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
    }
}
