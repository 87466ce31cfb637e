//! A disk as few bytes for a page's script: columns of variable-length numbers, deflated, in base64.
//!
//! Numbers are LEB128; what can go either way is zigzagged. All bytes of the virtual disk are in units of the largest
//! power of two that divides every one of them. Texts are a length and UTF-8 that is already harmless. In order:
//!
//! - title; virtual bytes; the unit's shift; bytes of a cell if pieces were joined to cells, else 0; how many files
//!   lack a name;
//! - volumes: count; of each its number, start, length, file system, label;
//! - files by ascending name: count; columns of volume, size in bytes, fragments, whole-stack fragments, bytes shared
//!   with the name before, bytes that follow; the following bytes of all;
//! - pieces that cover the disk: count; columns of length, class (its place in `PieceClass::ALL`), owner (0 if none,
//!   else the difference from the last owner, zigzagged, and 1);
//! - layers: count; of each its name, what it is, the shift of its unit, bytes of a cell or 0, how many runs it had;
//!   runs: count; columns of gap on the virtual disk, length, difference of the place from the end of the one before
//!   (zigzagged), stored length (0 if as on the virtual disk, else it and 1).
//!
//! The script in `map.js` reads what this writes, and nothing else does.

use std::io::Write as _;

use extent::{Offset, VirtualSpan};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::model::{DiskMap, MapLayer, MapOwner, MapPiece, MapRun, OwnerId, PieceClass};
use super::tiles::each_piece;
use crate::escape::{printable_name, shortened};

/// A title, a label and the like are cut to this many columns.
const TEXT_MAX: usize = 300;
/// A path is cut to this many columns: Linux opens none of more than 4096 bytes.
const NAME_MAX: usize = 4096;
/// More are not listed: partition tables have room for some hundred.
const VOLUMES_MAX: usize = 1000;

/// What of a disk is packed.
pub(super) struct Selection<'a> {
    pub(super) map: &'a DiskMap,
    /// The layers that are shown.
    pub(super) layers: &'a [MapLayer],
    /// Whether the owner at an index keeps its name.
    pub(super) is_named: &'a dyn Fn(usize) -> bool,
    /// Pieces and runs joined to cells; `None` where they are as they were.
    pub(super) coarse: Option<&'a Coarse>,
}

/// A disk's pieces and runs, one at most in each cell.
pub(super) struct Coarse {
    pub(super) cell_bytes: u64,
    pub(super) pieces: Vec<MapPiece>,
    pub(super) layers: Vec<Vec<MapRun>>,
}

/// The data of a page: base64 of a zlib stream.
pub(super) fn packed(selection: &Selection<'_>) -> String {
    base64(&deflated(&encoded(selection)))
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

fn encoded(selection: &Selection<'_>) -> Vec<u8> {
    let map = selection.map;
    let (owners, ranks) = sorted_owners(selection);
    let pieces = joined_pieces(selection, &ranks);
    let runs: Vec<Vec<MapRun>> = match selection.coarse {
        Some(coarse) => coarse.layers.iter().map(|runs| with_bytes(runs)).collect(),
        None => selection.layers.iter().map(|layer| with_bytes(&layer.runs)).collect(),
    };
    let spans = pieces
        .iter()
        .map(|piece| piece.span)
        .chain(runs.iter().flat_map(|runs| runs.iter().map(|run| run.span)));
    let volumes = &map.volumes[..map.volumes.len().min(VOLUMES_MAX)];
    let spans = spans.chain(volumes.iter().map(|volume| volume.span));
    let shift = shift_of(spans.flat_map(|span| [span.start().get(), span.len_bytes()]));

    let mut out = Bytes(Vec::new());
    out.text(&map.title);
    out.number(map.virtual_bytes);
    out.number(shift.into());
    let cell_bytes = selection.coarse.map_or(0, |coarse| coarse.cell_bytes);
    out.number(cell_bytes);
    out.number((map.owners.len() - owners.len()) as u64);
    out.number(volumes.len() as u64);
    for volume in volumes {
        out.number(volume.index as u64);
        out.number(volume.span.start().get() >> shift);
        out.number(volume.span.len_bytes() >> shift);
        out.text(volume.filesystem.as_deref().unwrap_or_default());
        out.text(volume.label.as_deref().unwrap_or_default());
    }
    out.owners(&owners);
    out.pieces(&pieces, shift);
    out.number(selection.layers.len() as u64);
    for (layer, runs) in selection.layers.iter().zip(&runs) {
        out.text(&layer.name);
        out.text(&layer.about);
        out.runs(runs, shift, cell_bytes, layer.fragment_count());
    }
    out.0
}

/// The owners with names, by name; and for each index of an owner its place among them.
fn sorted_owners(selection: &Selection<'_>) -> (Vec<(String, MapOwner)>, Vec<Option<u32>>) {
    let owners = &selection.map.owners;
    let named = (0..owners.len()).filter(|index| (selection.is_named)(*index));
    let mut sorted: Vec<_> = named
        .map(|index| {
            let (owner, name) = owners.get(index);
            (shortened(&printable_name(name), NAME_MAX), owner, index)
        })
        .collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.2.cmp(&b.2)));
    let mut ranks = vec![None; owners.len()];
    for (rank, (_, _, index)) in sorted.iter().enumerate() {
        ranks[*index] = u32::try_from(rank).ok();
    }
    (sorted.into_iter().map(|(name, owner, _)| (name, owner)).collect(), ranks)
}

/// A piece whose owner is the place among the owners with names.
struct Ranked {
    span: VirtualSpan,
    class: PieceClass,
    rank: Option<u32>,
}

/// Pieces that cover the disk; those of one class without an owner become one where they touch.
fn joined_pieces(selection: &Selection<'_>, ranks: &[Option<u32>]) -> Vec<Ranked> {
    let mut joined: Vec<Ranked> = Vec::new();
    let mut push = |piece: MapPiece| {
        if piece.span.is_empty() {
            return;
        }
        let rank = piece.owner.index().and_then(|index| ranks.get(index).copied().flatten());
        match joined.last_mut() {
            Some(last)
                if last.rank.is_none()
                    && rank.is_none()
                    && last.class == piece.class
                    && last.span.end() == piece.span.start() =>
            {
                last.span = VirtualSpan::between(last.span.start(), piece.span.end());
            }
            _ => joined.push(Ranked { span: piece.span, class: piece.class, rank }),
        }
    };
    match selection.coarse {
        Some(coarse) => coarse.pieces.iter().copied().for_each(push),
        None => each_piece(selection.map, &mut push),
    }
    joined
}

/// Runs that take room, which the script may divide by.
fn with_bytes(runs: &[MapRun]) -> Vec<MapRun> {
    runs.iter().filter(|run| !run.span.is_empty() && run.stored_bytes > 0).copied().collect()
}

/// How far all numbers can be shifted without a loss.
fn shift_of(numbers: impl Iterator<Item = u64>) -> u32 {
    let bits = numbers.fold(0, |bits, number| bits | number);
    if bits == 0 { 0 } else { bits.trailing_zeros() }
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// A small number of either sign, in two's complement.
    fn signed(&mut self, value: u64) {
        self.number(zigzag(value));
    }

    fn text(&mut self, text: &str) {
        let text = shortened(&crate::text::printable(text), TEXT_MAX);
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn column<T>(&mut self, rows: &[T], number: impl Fn(&T) -> u64) {
        for row in rows {
            self.number(number(row));
        }
    }

    fn owners(&mut self, owners: &[(String, MapOwner)]) {
        self.number(owners.len() as u64);
        self.column(owners, |(_, owner)| owner.volume.into());
        self.column(owners, |(_, owner)| owner.size_bytes);
        self.column(owners, |(_, owner)| owner.fragments.into());
        self.column(owners, |(_, owner)| owner.whole_stack_fragments.into());
        let before = std::iter::once("").chain(owners.iter().map(|(name, _)| name.as_str()));
        let shared: Vec<_> =
            owners.iter().zip(before).map(|((name, _), before)| shared_bytes(before, name)).collect();
        self.column(&shared, |shared| *shared as u64);
        for ((name, _), shared) in owners.iter().zip(&shared) {
            self.number((name.len() - shared) as u64);
        }
        for ((name, _), shared) in owners.iter().zip(&shared) {
            self.0.extend_from_slice(&name.as_bytes()[*shared..]);
        }
    }

    fn pieces(&mut self, pieces: &[Ranked], shift: u32) {
        self.number(pieces.len() as u64);
        self.column(pieces, |piece| piece.span.len_bytes() >> shift);
        self.column(pieces, |piece| piece.class.position() as u64);
        let mut last = 0;
        for piece in pieces {
            match piece.rank {
                Some(rank) => {
                    self.number(zigzag(u64::from(rank).wrapping_sub(last)) + 1);
                    last = rank.into();
                }
                None => self.number(0),
            }
        }
    }

    fn runs(&mut self, runs: &[MapRun], shift: u32, cell_bytes: u64, run_count: u64) {
        let place_shift = shift_of(runs.iter().flat_map(|run| [run.place, run.stored_bytes]));
        self.number(place_shift.into());
        self.number(cell_bytes);
        self.number(run_count);
        self.number(runs.len() as u64);
        let mut end = 0;
        for run in runs {
            let start = run.span.start().get();
            self.number(start.saturating_sub(end) >> shift);
            end = run.span.end().get();
        }
        self.column(runs, |run| run.span.len_bytes() >> shift);
        let mut place = 0;
        for run in runs {
            self.signed((run.place >> place_shift).wrapping_sub(place));
            place = (run.place >> place_shift).wrapping_add(run.stored_bytes >> place_shift);
        }
        self.column(runs, |run| match run.stored_bytes == run.span.len_bytes() {
            true => 0,
            false => (run.stored_bytes >> place_shift) + 1,
        });
    }
}

/// Bytes that `name` begins with as `before` does, up to the end of a character.
fn shared_bytes(before: &str, name: &str) -> usize {
    let same = before.chars().zip(name.chars()).take_while(|(a, b)| a == b);
    same.map(|(a, _)| a.len_utf8()).sum()
}

/// Small numbers of either sign (in two's complement) as small numbers.
fn zigzag(value: u64) -> u64 {
    value << 1 ^ 0u64.wrapping_sub(value >> 63)
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = (bits >> (18 - 6 * index) & 63) as usize;
            out.push(if index <= chunk.len() { DIGITS[digit].into() } else { '=' });
        }
    }
    out
}

/// The pieces and runs of `map` with one at most in each of `cell_count` cells.
pub(super) fn coarse(map: &DiskMap, layers: &[MapLayer], cell_count: usize) -> Coarse {
    let tiles = super::tiles::Tiles::of_guest(map, cell_count);
    let cell_bytes = tiles.tile_bytes;
    let cell = |index: usize| {
        let start = (index as u64).saturating_mul(cell_bytes);
        let end = start.saturating_add(cell_bytes).min(map.virtual_bytes);
        VirtualSpan::between(Offset::new(start), Offset::new(end))
    };
    let pieces = tiles.tiles.iter().enumerate().map(|(index, tile)| MapPiece {
        span: cell(index),
        class: tile.dominating().unwrap_or(PieceClass::Unknown),
        owner: OwnerId::NONE,
    });
    Coarse {
        cell_bytes,
        pieces: pieces.collect(),
        layers: layers.iter().map(|layer| coarse_runs(&layer.runs, cell_bytes)).collect(),
    }
}

/// For each cell a run as long as all within it, where the longest of them lies.
fn coarse_runs(runs: &[MapRun], cell_bytes: u64) -> Vec<MapRun> {
    struct Cell {
        index: u64,
        total_bytes: u64,
        longest: MapRun,
    }
    let mut cells: Vec<Cell> = Vec::new();
    for run in runs {
        for span in run.span.split(cell_bytes) {
            let index = span.start().get() / cell_bytes;
            let part = MapRun::plain(span, run.place_of(span.start()));
            match cells.last_mut().filter(|cell| cell.index == index) {
                Some(cell) => {
                    cell.total_bytes += span.len_bytes();
                    if cell.longest.span.len_bytes() < span.len_bytes() {
                        cell.longest = part;
                    }
                }
                None => cells.push(Cell { index, total_bytes: span.len_bytes(), longest: part }),
            }
        }
    }
    let joined = cells.iter().map(|cell| {
        let cell_end = (cell.index + 1).saturating_mul(cell_bytes);
        let start = cell.longest.span.start().get().min(cell_end - cell.total_bytes.min(cell_bytes));
        let len_bytes = cell.total_bytes.min(cell_bytes).min(u64::MAX - start);
        MapRun::plain(VirtualSpan::new(Offset::new(start), len_bytes), cell.longest.place)
    });
    joined.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Read as _;

    use flate2::read::ZlibDecoder;
    use proptest::prelude::*;

    use super::super::model::{MapOwners, MapVolume};
    use super::super::unpack::decoded;

    fn whole(map: &DiskMap) -> DiskMap {
        decoded(&encoded(&Selection { map, layers: &map.layers, is_named: &|_| true, coarse: None }))
    }

    fn piece_class() -> impl Strategy<Value = PieceClass> {
        (0..PieceClass::ALL.len()).prop_map(|index| PieceClass::ALL[index])
    }

    /// Pieces of owners whose names ascend, so that they keep their numbers, and that cover the disk, no two
    /// without an owner side by side.
    fn disks() -> impl Strategy<Value = DiskMap> {
        let pieces = prop::collection::vec((1u64..1 << 20, piece_class(), 0u32..9), 1..40);
        let runs = prop::collection::vec((0u64..9, 1u64..99, 0u64..1 << 40, 1u64..1 << 20), 0..30);
        (pieces, runs, 0u32..13, 0u32..10).prop_map(|(pieces, runs, shift, place_shift)| {
            let mut owners = MapOwners::default();
            for name in ["/a", "/a/b", "/aé", "/aéç", "/b", "/日", "/日本", "/日本語", "/본"] {
                let len = name.len() as u64;
                owners.push(
                    name.as_bytes(),
                    MapOwner {
                        volume: 1,
                        size_bytes: len << 33,
                        fragments: u32::MAX,
                        whole_stack_fragments: 0,
                    },
                );
            }
            let mut at = 0;
            let pieces = pieces.into_iter().map(|(len, class, owner)| {
                let span = VirtualSpan::new(Offset::new(at), len << shift);
                at = span.end().get();
                MapPiece { span, class, owner: OwnerId::of(owner) }
            });
            let pieces: Vec<_> = pieces.collect();
            let mut from = 0;
            let runs = runs.into_iter().map(|(gap, len, place, stored)| {
                let span = VirtualSpan::new(Offset::new(from + (gap << shift)), len << shift);
                from = span.end().get();
                MapRun { span, place: place << place_shift, stored_bytes: stored << place_shift }
            });
            let layers =
                vec![MapLayer { name: "container".into(), about: "“x”".into(), runs: runs.collect() }];
            let volume = MapVolume {
                index: 1,
                span: pieces[0].span,
                filesystem: Some("ext4".into()),
                label: Some(String::new()),
            };
            DiskMap { title: "disk".into(), virtual_bytes: at, volumes: vec![volume], pieces, owners, layers }
        })
    }

    proptest! {
        #[test]
        fn disks_come_out_as_they_went_in(map in disks()) {
            let out = whole(&map);
            prop_assert_eq!(&out.pieces, &map.pieces);
            prop_assert_eq!(&out.layers[0].runs, &map.layers[0].runs);
            prop_assert_eq!((&out.title, out.virtual_bytes), (&map.title, map.virtual_bytes));
            prop_assert_eq!(out.volumes[0].span, map.volumes[0].span);
            prop_assert_eq!(out.owners.len(), map.owners.len());
            for index in 0..map.owners.len() {
                prop_assert_eq!(out.owners.get(index), map.owners.get(index));
            }
        }

        #[test]
        fn what_is_packed_can_be_unpacked(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut out = Vec::new();
            ZlibDecoder::new(&deflated(&bytes)[..]).read_to_end(&mut out).unwrap();
            prop_assert_eq!(out, bytes);
        }
    }

    #[test]
    fn names_are_harmless_before_they_are_packed() {
        let owner = MapOwner { volume: 1, size_bytes: 0, fragments: 1, whole_stack_fragments: 1 };
        let mut map = DiskMap { title: "\u{202e}".into(), ..DiskMap::default() };
        map.owners.push(b"/b\xff", owner);
        map.owners.push("/a\u{2028}".as_bytes(), owner);
        let out = whole(&map);
        assert_eq!(out.title, "\\u{202e}");
        assert_eq!(out.owners.get(0).1, b"/a\\u{2028}");
        assert_eq!(out.owners.get(1).1, b"/b\\xff");
    }

    #[test]
    fn pieces_of_files_without_names_join() {
        let owner = MapOwner { volume: 1, size_bytes: 0, fragments: 1, whole_stack_fragments: 1 };
        let mut map = DiskMap { virtual_bytes: 40, ..DiskMap::default() };
        for (index, class) in [0u64, 1, 2, 3].into_iter().zip([2, 2, 2, 6]) {
            let id = map.owners.push(b"/x", owner);
            let span = VirtualSpan::new(Offset::new(index * 10), 10);
            map.pieces.push(MapPiece { span, class: PieceClass::ALL[class], owner: id });
        }
        let is_named = |index| index == 0;
        let out = decoded(&encoded(&Selection { map: &map, layers: &[], is_named: &is_named, coarse: None }));
        let lens: Vec<_> = out.pieces.iter().map(|piece| piece.span.len_bytes()).collect();
        assert_eq!((lens, out.owners.len()), (vec![10, 20, 10], 1));
    }

    #[test]
    fn cells_keep_the_bytes_of_a_layer() {
        let run = |start, len, place| MapRun::plain(VirtualSpan::new(Offset::new(start), len), place);
        let runs = coarse_runs(&[run(0, 3, 100), run(3, 1, 700), run(9, 12, 200)], 10);
        assert_eq!(runs, [run(0, 5, 100), run(10, 10, 201), run(20, 1, 211)]);
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
