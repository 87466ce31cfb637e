//! Where a volume lies on the virtual disk: a partition in one piece, a logical volume in segments and stripes.
//!
//! Invariants: pieces follow each other on the volume without gaps; no two lie in the same place of the disk.

use extent::{Span, VirtualSpan, VolumeOffset, VolumeSpan};

/// Where a volume lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    pieces: Vec<Piece>,
}

/// A part of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Where it begins on the volume.
    pub(crate) start: VolumeOffset,
    /// How much goes to one column before the next one's turn comes.
    pub(crate) stripe_bytes: u64,
    /// Equally long parts of the disk, one if nothing is striped. Each a multiple of the stripe's length if there are more.
    pub(crate) columns: Vec<VirtualSpan>,
}

impl Piece {
    fn len_bytes(&self) -> u64 {
        self.columns.iter().map(VirtualSpan::len_bytes).sum()
    }

    fn span(&self) -> VolumeSpan {
        Span::new(self.start, self.len_bytes())
    }

    /// Calls `each` with the parts of `inside`, which lies within the piece, in order.
    fn each(&self, inside: VolumeSpan, each: &mut impl FnMut(VolumeOffset, VirtualSpan)) {
        if let [column] = self.columns.as_slice() {
            let skip = inside.start().get() - self.start.get();
            each(inside.start(), Span::new(column.start().plus(skip), inside.len_bytes()));
            return;
        }
        let count = self.columns.len() as u64;
        let (mut at, end) = (inside.start().get() - self.start.get(), inside.end().get() - self.start.get());
        while at < end {
            let (stripe, within) = (at / self.stripe_bytes, at % self.stripe_bytes);
            let len_bytes = (self.stripe_bytes - within).min(end - at);
            let column = self.columns[usize::try_from(stripe % count).expect("fewer than the columns")];
            let on_disk = column.start().plus(stripe / count * self.stripe_bytes + within);
            each(self.start.plus(at), Span::new(on_disk, len_bytes));
            at += len_bytes;
        }
    }
}

impl Placement {
    /// In one piece.
    pub(crate) fn of_span(span: VirtualSpan) -> Self {
        let piece = Piece { start: VolumeOffset::ZERO, stripe_bytes: span.len_bytes(), columns: vec![span] };
        Self { pieces: vec![piece] }
    }

    /// One piece behind the other: of each the length of a stripe and the columns.
    pub(crate) fn of_pieces(pieces: impl Iterator<Item = (u64, Vec<VirtualSpan>)>) -> Self {
        let mut placement = Self { pieces: Vec::new() };
        for (stripe_bytes, columns) in pieces {
            let start = VolumeOffset::new(placement.len_bytes());
            let piece = Piece { start, stripe_bytes, columns };
            if piece.len_bytes() > 0 {
                placement.pieces.push(piece);
            }
        }
        placement
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// How long the volume is.
    pub fn len_bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |last| last.span().end().get())
    }

    /// Where its first bytes lie, as far as they lie in one piece.
    pub fn first(&self) -> VirtualSpan {
        let first = self.pieces.first().map(|piece| match piece.columns.as_slice() {
            [column] => *column,
            columns => Span::new(columns[0].start(), piece.stripe_bytes),
        });
        first.unwrap_or(Span::from_zero(0))
    }

    /// Calls `each` with the parts of `span` in the volume's order, each with where it begins on the volume. What lies past the
    /// volume's end is nowhere.
    pub fn each_on_disk(&self, span: VolumeSpan, mut each: impl FnMut(VolumeOffset, VirtualSpan)) {
        let first = self.pieces.partition_point(|piece| piece.span().end() <= span.start());
        for piece in &self.pieces[first..] {
            let Some(inside) = piece.span().intersect(&span) else { break };
            piece.each(inside, &mut each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::VirtualOffset;

    fn span(start: u64, len: u64) -> VirtualSpan {
        Span::new(VirtualOffset::new(start), len)
    }

    #[test]
    fn every_byte_of_a_striped_volume_is_where_it_belongs() {
        // 12 bytes in three columns of stripes of 2, then 5 in one piece.
        let striped = vec![span(100, 4), span(300, 4), span(200, 4)];
        let placement = Placement::of_pieces([(2, striped), (5, vec![span(0, 5)])].into_iter());
        let expected = [100, 101, 300, 301, 200, 201, 102, 103, 302, 303, 202, 203, 0, 1, 2, 3, 4]
            .map(VirtualOffset::new);
        assert_eq!(placement.len_bytes(), 17);
        assert_eq!(placement.first(), span(100, 2));
        for start in 0..20 {
            for len in 0..20 {
                let asked = Span::new(VolumeOffset::new(start), len);
                let mut found = Vec::new();
                placement.each_on_disk(asked, |at, part| {
                    assert_eq!(at.get(), start + found.len() as u64);
                    found.extend((0..part.len_bytes()).map(|byte| part.start().plus(byte)));
                });
                let all = expected.iter().copied().skip(start as usize).take(len as usize);
                assert_eq!(found, all.collect::<Vec<_>>(), "{asked:?}");
            }
        }
    }
}
