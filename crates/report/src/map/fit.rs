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
