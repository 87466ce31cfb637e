//! Makes a disk's data fit into a page: names give way first, then detail.
//!
//! Files keep their names by how much they tell: the most fragmented first, then the largest. So the smallest
//! contiguous files lose theirs first, and become one piece with such neighbours. A disk that is still too large
//! is shown in cells.

use std::cmp::Reverse;

use super::model::DiskMap;
use super::pack::{Selection, coarse, packed};

/// The most layers that a page shows.
const LAYERS_MAX: usize = 6;
/// Cells of the guest's row and of all layers together, if a disk must be shown in cells: at 20 bytes each the data
/// stay below the limit whatever they are.
const CELLS: usize = 1 << 17;
/// How often a number of names is tried before none is kept.
const ATTEMPTS: usize = 5;

/// The data of a page in at most about `bytes_max` bytes of base64.
pub(crate) fn fitted(map: &DiskMap, bytes_max: usize) -> String {
    let layers = &map.layers[..map.layers.len().min(LAYERS_MAX)];
    let whole = packed(&Selection { map, layers, is_named: &|_| true, coarse: None });
    if whole.len() <= bytes_max {
        return whole;
    }
    let rank = interest(map);
    let mut named_count = map.owners.len();
    let mut len = whole.len();
    for _ in 0..ATTEMPTS {
        // Less than in proportion: the names of fragmented files, which stay, come with more pieces.
        named_count = scaled(named_count, bytes_max, len) * 9 / 10;
        let is_named = |index: usize| rank[index] < named_count;
        let data = packed(&Selection { map, layers, is_named: &is_named, coarse: None });
        if data.len() <= bytes_max {
            return data;
        }
        len = data.len();
    }
    let data = packed(&Selection { map, layers, is_named: &|_| false, coarse: None });
    if data.len() <= bytes_max {
        return data;
    }
    let coarse = coarse(map, layers, CELLS / (layers.len() + 1));
    packed(&Selection { map, layers, is_named: &|_| false, coarse: Some(&coarse) })
}

fn scaled(count: usize, bytes_max: usize, len: usize) -> usize {
    usize::try_from(count as u128 * bytes_max as u128 / len.max(1) as u128).unwrap_or(count)
}

/// For each owner, how many others keep their names rather.
fn interest(map: &DiskMap) -> Vec<usize> {
    let mut order: Vec<_> = (0..map.owners.len()).collect();
    order.sort_by_key(|index| {
        let (owner, _) = map.owners.get(*index);
        Reverse((owner.fragments.max(1), owner.size_bytes))
    });
    let mut rank = vec![0; order.len()];
    for (place, index) in order.into_iter().enumerate() {
        rank[index] = place;
    }
    rank
}

#[cfg(test)]
mod tests {
    use extent::{Offset, VirtualSpan};

    use super::super::model::{MapLayer, MapOwner, MapPiece, MapRun, PieceClass};
    use super::super::unpack::decoded;
    use super::*;

    fn span(start: u64, len: u64) -> VirtualSpan {
        VirtualSpan::new(Offset::new(start), len)
    }

    /// As a real tool decodes it.
    fn unpacked(data: &str) -> DiskMap {
        let dir = testkit::scratch();
        let path = dir.path().join("data");
        std::fs::write(&path, data).unwrap();
        let program = "import base64,sys,zlib;print(zlib.decompress(base64.b64decode(open(sys.argv[1]).read(),validate=True)).hex())";
        let hex = testkit::run("python3", &["-c", program, path.to_str().unwrap()]);
        let digits = hex.trim().as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        decoded(&digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect::<Vec<_>>())
    }

    /// Files of ever more fragments and bytes, with names that do not compress.
    fn disk(file_count: u64) -> DiskMap {
        let mut map = DiskMap { virtual_bytes: file_count * 8192, ..DiskMap::default() };
        let mut noise = 1u64;
        for index in 0..file_count {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let fragments = if index > file_count / 2 { 2 } else { 1 };
            let size_bytes = 1 + index;
            let owner = MapOwner { volume: 1, size_bytes, fragments, whole_stack_fragments: fragments };
            let owner = map.owners.push(format!("/{:x}", noise >> 16).as_bytes(), owner);
            let class = if fragments > 1 { PieceClass::Fragmented } else { PieceClass::Contiguous };
            map.pieces.push(MapPiece { span: span(index * 8192, 8192), class, owner });
        }
        let runs = (0..file_count).map(|index| {
            MapRun::plain(span(index * 8192, 8192), index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24 & !4095)
        });
        map.layers.push(MapLayer { name: "container".into(), about: String::new(), runs: runs.collect() });
        map
    }

    #[test]
    fn names_give_way_in_the_order_of_interest() {
        let map = disk(2000);
        let whole = fitted(&map, usize::MAX);
        assert_eq!(unpacked(&whole).owners.len(), 2000);
        let limit = whole.len() * 2 / 3;
        let less = fitted(&map, limit);
        assert!(less.len() <= limit && less.len() > limit / 2, "{} of {limit}", less.len());
        let out = unpacked(&less);
        let kept = out.owners.len();
        assert!((200..1800).contains(&kept), "{kept} names");
        let least = (0..kept).map(|index| out.owners.get(index).0.size_bytes).min();
        assert_eq!(least, Some(2001 - kept as u64), "the largest of the most fragmented stay");
        assert_eq!(out.pieces.last().unwrap().span.end().get(), map.virtual_bytes);
        assert_eq!(out.layers[0].runs, map.layers[0].runs);
    }

    #[test]
    fn what_is_still_too_large_is_shown_in_cells() {
        let mut map = disk(100_000);
        for (index, piece) in map.pieces.iter_mut().enumerate() {
            piece.class = PieceClass::ALL[index * index % 7];
        }
        let data = fitted(&map, 100);
        let out = unpacked(&data);
        assert!(out.owners.is_empty() && out.pieces.len() <= CELLS / 2 + 1, "{} pieces", out.pieces.len());
        assert_eq!(out.pieces.last().unwrap().span.end().get(), map.virtual_bytes);
        let held = |map: &DiskMap| map.layers[0].runs.iter().map(|run| run.span.len_bytes()).sum::<u64>();
        assert_eq!(held(&out), held(&map));
        assert!(data.len() < CELLS * 20, "{} bytes", data.len());
    }
}
