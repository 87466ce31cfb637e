//! Where a volume lies on the virtual disk: a partition in one piece, a logical volume in segments and stripes, of which some may lie on
//! other disks, and a mirrored one in several legs.
//!
//! Invariants: pieces of a leg follow each other on the volume without gaps; no two pieces lie in the same place of one disk; all legs are
//! as long as the volume.

use extent::{Span, VirtualSpan, VolumeOffset, VolumeSpan};

/// Where a volume lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// One, unless the volume is mirrored. At least one.
    legs: Vec<Leg>,
}

/// Pieces of the whole volume, one behind the other.
type Leg = Vec<Piece>;

/// One of the disks that a volume lies on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DiskIndex(pub(crate) usize);

impl DiskIndex {
    /// The disk that was opened; the others are those that were named with it.
    pub(crate) const OWN: Self = Self(0);
}

/// A part of one of the disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Column {
    pub(crate) disk: DiskIndex,
    pub(crate) span: VirtualSpan,
}

impl Column {
    /// On the disk that was opened.
    fn own(self) -> Option<VirtualSpan> {
        (self.disk == DiskIndex::OWN).then_some(self.span)
    }
}

/// A part of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Where it begins on the volume.
    pub(crate) start: VolumeOffset,
    /// How much goes to one column before the next one's turn comes.
    pub(crate) stripe_bytes: u64,
    /// Equally long parts of disks, one if nothing is striped. Each a multiple of the stripe's length if there are more.
    pub(crate) columns: Vec<Column>,
}

impl Piece {
    fn len_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.span.len_bytes()).sum()
    }

    fn span(&self) -> VolumeSpan {
        Span::new(self.start, self.len_bytes())
    }

    /// Calls `each` with the parts of `inside`, which lies within the piece, in order.
    fn each(&self, inside: VolumeSpan, each: &mut impl FnMut(VolumeOffset, Column)) {
        if let [Column { disk, span }] = *self.columns.as_slice() {
            let skip = inside.start().get() - self.start.get();
            let span = Span::new(span.start().plus(skip), inside.len_bytes());
            each(inside.start(), Column { disk, span });
            return;
        }
        let count = self.columns.len() as u64;
        let (mut at, end) = (inside.start().get() - self.start.get(), inside.end().get() - self.start.get());
        while at < end {
            let (stripe, within) = (at / self.stripe_bytes, at % self.stripe_bytes);
            let len_bytes = (self.stripe_bytes - within).min(end - at);
            let Column { disk, span } =
                self.columns[usize::try_from(stripe % count).expect("fewer than the columns")];
            let on_disk = span.start().plus(stripe / count * self.stripe_bytes + within);
            each(self.start.plus(at), Column { disk, span: Span::new(on_disk, len_bytes) });
            at += len_bytes;
        }
    }
}

impl Placement {
    /// In one piece, on the disk that was opened.
    pub(crate) fn of_span(span: VirtualSpan) -> Self {
        Self::of_column(Column { disk: DiskIndex::OWN, span })
    }

    /// In one piece.
    pub(crate) fn of_column(column: Column) -> Self {
        let (stripe_bytes, columns) = (column.span.len_bytes(), vec![column]);
        Self { legs: vec![vec![Piece { start: VolumeOffset::ZERO, stripe_bytes, columns }]] }
    }

    /// Whether nothing of it is striped or mirrored.
    pub(crate) fn is_straight(&self) -> bool {
        self.legs.len() == 1 && self.pieces().all(|piece| piece.columns.len() == 1)
    }

    /// One piece behind the other: of each the length of a stripe and the columns.
    pub(crate) fn of_pieces(pieces: impl Iterator<Item = (u64, Vec<Column>)>) -> Self {
        let mut leg = Leg::new();
        for (stripe_bytes, columns) in pieces {
            let piece = Piece { start: VolumeOffset::new(len_of(&leg)), stripe_bytes, columns };
            if piece.len_bytes() > 0 {
                leg.push(piece);
            }
        }
        Self { legs: vec![leg] }
    }

    /// Each of `legs`, one at least, has all of it.
    pub(crate) fn of_legs(legs: Vec<Self>) -> Self {
        let placement = Self { legs: legs.into_iter().flat_map(|leg| leg.legs).collect() };
        let len_bytes = placement.len_bytes();
        assert!(
            placement.legs.iter().all(|leg| len_of(leg) == len_bytes),
            "legs of a volume are equally long"
        );
        placement
    }

    /// Each leg by itself.
    pub(crate) fn legs(&self) -> impl Iterator<Item = Self> {
        self.legs.iter().map(|leg| Self { legs: vec![leg.clone()] })
    }

    /// Of all legs.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.legs.iter().flatten()
    }

    /// How long the volume is.
    pub fn len_bytes(&self) -> u64 {
        len_of(&self.legs[0])
    }

    /// Where the first bytes of it that the disk has lie, as far as they lie in one piece.
    pub fn first(&self) -> VirtualSpan {
        let first = self.pieces().find_map(|piece| {
            let own = piece.columns.iter().find_map(|column| column.own())?;
            Some(if piece.columns.len() == 1 { own } else { Span::new(own.start(), piece.stripe_bytes) })
        });
        first.unwrap_or(Span::from_zero(0))
    }

    /// Whether a part of it lies on the disk that was opened.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.legs.iter().any(is_on_disk)
    }

    /// Calls `each` with the parts of `span` in the volume's order, each with where it begins on the volume. What lies past the
    /// volume's end is nowhere. What lies on other disks is left out. Of a mirrored volume it is the first leg of which the disk has
    /// a part.
    pub fn each_on_disk(&self, span: VolumeSpan, mut each: impl FnMut(VolumeOffset, VirtualSpan)) {
        let own = self.legs.iter().find(|leg| is_on_disk(leg));
        own.into_iter().for_each(|leg| each_own(leg, span, &mut each));
    }

    /// The same of every leg, one after the other.
    pub fn each_copy_on_disk(&self, span: VolumeSpan, mut each: impl FnMut(VolumeOffset, VirtualSpan)) {
        self.legs.iter().for_each(|leg| each_own(leg, span, &mut each));
    }

    /// The parts of the first leg on all disks.
    pub(crate) fn each_part(&self, span: VolumeSpan, mut each: impl FnMut(VolumeOffset, Column)) {
        each_of(&self.legs[0], span, &mut each);
    }
}

fn len_of(leg: &Leg) -> u64 {
    leg.last().map_or(0, |last| last.span().end().get())
}

fn is_on_disk(leg: &Leg) -> bool {
    leg.iter().flat_map(|piece| &piece.columns).any(|column| column.own().is_some())
}

fn each_own(leg: &Leg, span: VolumeSpan, each: &mut impl FnMut(VolumeOffset, VirtualSpan)) {
    each_of(leg, span, &mut |at, column: Column| {
        if let Some(own) = column.own() {
            each(at, own);
        }
    });
}

fn each_of(leg: &Leg, span: VolumeSpan, each: &mut impl FnMut(VolumeOffset, Column)) {
    let first = leg.partition_point(|piece| piece.span().end() <= span.start());
    for piece in &leg[first..] {
        let Some(inside) = piece.span().intersect(&span) else { break };
        piece.each(inside, each);
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
        let own = |span| Column { disk: DiskIndex::OWN, span };
        let striped = [span(100, 4), span(300, 4), span(200, 4)].map(own).to_vec();
        let placement = Placement::of_pieces([(2, striped), (5, vec![own(span(0, 5))])].into_iter());
        let expected = [100, 101, 300, 301, 200, 201, 102, 103, 302, 303, 202, 203, 0, 1, 2, 3, 4]
            .map(VirtualOffset::new);
        assert_eq!(placement.len_bytes(), 17);
        assert_eq!(placement.first(), span(100, 2));
        for start in 0..20_usize {
            for len in 0..20_usize {
                let asked = Span::new(VolumeOffset::new(start as u64), len as u64);
                let mut found = Vec::new();
                placement.each_on_disk(asked, |at, part| {
                    assert_eq!(at.get(), (start + found.len()) as u64);
                    found.extend((0..part.len_bytes()).map(|byte| part.start().plus(byte)));
                });
                let all = expected.iter().copied().skip(start).take(len);
                assert_eq!(found, all.collect::<Vec<_>>(), "{asked:?}");
            }
        }
    }

    #[test]
    fn what_lies_on_another_disk_is_not_on_this_one() {
        // 8 bytes in stripes of 2 over two disks, 4 on the other, 4 on this one.
        let column = |disk, start, len| Column { disk: DiskIndex(disk), span: span(start, len) };
        let pieces = [
            (2, vec![column(1, 50, 4), column(0, 10, 4)]),
            (4, vec![column(1, 0, 4)]),
            (4, vec![column(0, 90, 4)]),
        ];
        let placement = Placement::of_pieces(pieces.into_iter());
        let all = Span::new(VolumeOffset::ZERO, 16);
        let (mut own, mut parts) = (Vec::new(), Vec::new());
        placement.each_on_disk(all, |at, part| own.push((at.get(), part)));
        placement.each_part(all, |at, part| parts.push((at.get(), part)));
        assert_eq!(own, [(2, span(10, 2)), (6, span(12, 2)), (12, span(90, 4))]);
        let expected = [
            (0, column(1, 50, 2)),
            (2, column(0, 10, 2)),
            (4, column(1, 52, 2)),
            (6, column(0, 12, 2)),
            (8, column(1, 0, 4)),
            (12, column(0, 90, 4)),
        ];
        assert_eq!(parts, expected);
        assert_eq!(placement.first(), span(10, 2));
        assert!(placement.is_on_disk());
        let elsewhere = Placement::of_pieces([(4, vec![column(1, 0, 4)])].into_iter());
        assert!(!elsewhere.is_on_disk());
        assert!(elsewhere.first().is_empty());
    }

    #[test]
    fn a_mirrored_volume_lies_in_all_its_legs() {
        // 8 bytes: in one piece on the other disk, and in two on this one.
        let column = |disk, start, len| Column { disk: DiskIndex(disk), span: span(start, len) };
        let leg = |pieces: &[Column]| {
            Placement::of_pieces(pieces.iter().map(|column| (column.span.len_bytes(), vec![*column])))
        };
        let other = leg(&[column(1, 0, 8)]);
        let own = leg(&[column(0, 20, 4), column(0, 50, 4)]);
        let placement = Placement::of_legs(vec![other.clone(), own.clone()]);
        assert_eq!((placement.len_bytes(), placement.first()), (8, span(20, 4)));
        assert!(placement.is_on_disk());
        assert_eq!(placement.legs().collect::<Vec<_>>(), [other.clone(), own.clone()]);
        let asked = Span::new(VolumeOffset::new(2), 4);
        let mut found = Vec::new();
        placement.each_on_disk(asked, |at, part| found.push((at.get(), part)));
        assert_eq!(found, [(2, span(22, 2)), (4, span(50, 2))]);
        // Both legs on this disk.
        let twice = Placement::of_legs(vec![own, leg(&[column(0, 80, 8)])]);
        let mut copies = Vec::new();
        twice.each_copy_on_disk(asked, |at, part| copies.push((at.get(), part)));
        assert_eq!(copies, [(2, span(22, 2)), (4, span(50, 2)), (2, span(82, 4))]);
        assert!(!Placement::of_legs(vec![other.clone(), other]).is_on_disk());
    }
}
