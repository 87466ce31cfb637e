//! A row of a picture as equal tiles, each with its shares of every class.
//!
//! Works in one pass over pieces and runs, whatever the disk's size; what a caller got wrong (overlaps, places past
//! the range) is drawn wrong, and never panics.

use extent::{Offset, VirtualSpan};

use super::folds::Folds;
use super::model::{DiskMap, MapLayer, MapPiece, OwnerId, PieceClass, Range};
use crate::text::human_bytes;

/// How many classes there are.
pub(crate) const CLASS_COUNT: usize = PieceClass::ALL.len();

/// One tile.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tile {
    /// Bytes of each class, in the order of [`PieceClass::ALL`]. What they lack to a tile's size holds nothing of the
    /// disk.
    pub(crate) shares: [u64; CLASS_COUNT],
    /// Where its largest piece lies on the virtual disk.
    pub(crate) origin: u64,
    largest_bytes: u64,
}

impl Tile {
    /// Its bytes that hold something of the disk.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.shares.iter().fold(0, |sum: u64, share| sum.saturating_add(*share))
    }

    /// The class with most bytes; `None` if the tile holds nothing.
    pub(crate) fn dominating(&self) -> Option<PieceClass> {
        let (class, share) = PieceClass::ALL.into_iter().zip(self.shares).max_by_key(|(_, share)| *share)?;
        (share > 0).then_some(class)
    }
}

/// A row.
#[derive(Debug)]
pub(crate) struct Tiles {
    pub(crate) range: Range,
    /// Bytes of a tile; of the last one maybe fewer hold anything.
    pub(crate) tile_bytes: u64,
    pub(crate) tiles: Vec<Tile>,
    /// What is left out; the range and the tiles are of what is drawn.
    pub(crate) folds: Folds,
}

impl Tiles {
    /// At most `count` tiles of the guest's row.
    pub(crate) fn of_guest(map: &DiskMap, count: usize) -> Self {
        let mut tiles = Self::empty(Range { start: 0, len_bytes: map.virtual_bytes }, count);
        each_piece(map, |piece| {
            let start = piece.span.start().get();
            tiles.add(start, piece.span.len_bytes(), piece.class, start);
        });
        tiles
    }

    /// At most `count` tiles of the row of `layer`.
    pub(crate) fn of_layer(map: &DiskMap, layer: &MapLayer, count: usize) -> Self {
        let folds = Folds::of(layer);
        let range = layer.range();
        let drawn = Range { len_bytes: range.len_bytes - folds.left_out_bytes(), ..range };
        let mut tiles = Self { folds, ..Self::empty(drawn, count) };
        for run in &layer.runs {
            each_piece_in(map, run.span, |piece| {
                let (start, end) = (run.place_of(piece.span.start()), run.place_of(piece.span.end()));
                tiles.add(tiles.folds.drawn(start), end - start, piece.class, piece.span.start().get());
            });
        }
        tiles
    }

    fn empty(range: Range, count: usize) -> Self {
        let tile_bytes = range.len_bytes.div_ceil(count.max(1) as u64).max(1);
        let needed = usize::try_from(range.len_bytes.div_ceil(tile_bytes)).expect("at most the count");
        Self { range, tile_bytes, tiles: vec![Tile::default(); needed], folds: Folds::default() }
    }

    /// The address that a place of the row is drawn for.
    pub(crate) fn address(&self, drawn: u64) -> u64 {
        self.folds.address(drawn)
    }

    /// From where to where the row is, and how much of that is left out.
    pub(crate) fn said(&self) -> String {
        let end = self.address(self.range.start.saturating_add(self.range.len_bytes));
        let said = format!("{} to {}", human_bytes(self.range.start), human_bytes(end));
        match self.folds.left_out_bytes() {
            0 => said,
            bytes => format!("{said}, {} without data left out", human_bytes(bytes)),
        }
    }

    fn add(&mut self, start: u64, len_bytes: u64, class: PieceClass, origin: u64) {
        let start = start.saturating_sub(self.range.start);
        let end = start.saturating_add(len_bytes).min(self.range.len_bytes);
        let mut at = start;
        while at < end {
            let index = at / self.tile_bytes;
            let tile_end = (index + 1).saturating_mul(self.tile_bytes).min(end);
            let tile = &mut self.tiles[usize::try_from(index).expect("within the range")];
            let bytes = tile_end - at;
            let share = &mut tile.shares[class.position()];
            *share = share.saturating_add(bytes);
            if bytes > tile.largest_bytes {
                tile.largest_bytes = bytes;
                tile.origin = origin.saturating_add(at - start);
            }
            at = tile_end;
        }
    }
}

/// Calls `each` with the pieces of the whole disk and, as unknown ones, the gaps between them.
pub(crate) fn each_piece(map: &DiskMap, each: impl FnMut(MapPiece)) {
    each_piece_in(map, VirtualSpan::from_zero(map.virtual_bytes), each);
}

fn each_piece_in(map: &DiskMap, window: VirtualSpan, mut each: impl FnMut(MapPiece)) {
    let unknown = |from: u64, to: u64| MapPiece {
        span: VirtualSpan::between(Offset::new(from), Offset::new(to)),
        class: PieceClass::Unknown,
        owner: OwnerId::NONE,
    };
    let first = map.pieces.partition_point(|piece| piece.span.end() <= window.start());
    let mut at = window.start().get();
    for piece in &map.pieces[first..] {
        if piece.span.start() >= window.end() {
            break;
        }
        let Some(span) = piece.span.intersect(&window) else { continue };
        if span.start().get() > at {
            each(unknown(at, span.start().get()));
        }
        at = at.max(span.end().get());
        each(MapPiece { span, ..*piece });
    }
    if at < window.end().get() {
        each(unknown(at, window.end().get()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::MapRun;
    use super::*;

    fn span(start: u64, len: u64) -> VirtualSpan {
        VirtualSpan::new(Offset::new(start), len)
    }

    fn piece(start: u64, len: u64, class: PieceClass) -> MapPiece {
        MapPiece { span: span(start, len), class, owner: OwnerId::NONE }
    }

    fn map() -> DiskMap {
        DiskMap {
            virtual_bytes: 100,
            pieces: vec![
                piece(0, 25, PieceClass::Metadata),
                piece(25, 25, PieceClass::Contiguous),
                piece(60, 40, PieceClass::Free),
            ],
            ..DiskMap::default()
        }
    }

    fn share(tile: &Tile, class: PieceClass) -> u64 {
        tile.shares[class.position()]
    }

    #[test]
    fn the_guest_row_has_every_byte_once() {
        let tiles = Tiles::of_guest(&map(), 10);
        assert_eq!(tiles.tile_bytes, 10);
        assert!(tiles.tiles.iter().all(|tile| tile.total_bytes() == 10));
        assert_eq!(share(&tiles.tiles[2], PieceClass::Metadata), 5);
        assert_eq!(share(&tiles.tiles[2], PieceClass::Contiguous), 5);
        assert_eq!(tiles.tiles[5].dominating(), Some(PieceClass::Unknown));
    }

    #[test]
    fn a_layer_shows_pieces_where_its_runs_put_them() {
        let runs = vec![
            MapRun::plain(span(20, 10), 1090),
            MapRun { span: span(30, 20), place: 1000, stored_bytes: 10 },
        ];
        let layer = MapLayer { name: "container".into(), about: String::new(), runs };
        assert_eq!(layer.fragment_count(), 2);
        let tiles = Tiles::of_layer(&map(), &layer, 10);
        assert_eq!(tiles.range, Range { start: 1000, len_bytes: 100 });
        assert_eq!(share(&tiles.tiles[0], PieceClass::Contiguous), 10);
        assert_eq!(share(&tiles.tiles[9], PieceClass::Metadata), 5);
        assert_eq!(share(&tiles.tiles[9], PieceClass::Contiguous), 5);
        assert_eq!(tiles.tiles[0].origin, 30);
        assert_eq!(tiles.tiles[5].dominating(), None);
    }

    #[test]
    fn the_smallest_and_the_largest_disks_are_drawn() {
        assert!(Tiles::of_guest(&DiskMap::default(), 10).tiles.is_empty());
        let map = DiskMap { virtual_bytes: u64::MAX, ..DiskMap::default() };
        assert_eq!(Tiles::of_guest(&map, 1000).tiles.len(), 1000);
    }
}
