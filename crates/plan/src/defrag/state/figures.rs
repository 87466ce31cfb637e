//! What a layout looks like, before and after moves.
//!
//! Invariant: the figures are those that the same count over the moved volume gives. Free space is the room that files may
//! go to, and what a move left.

use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::FileId;

use super::layout::Layout;
use crate::defrag::plan::{Backing, LayoutFigures, WhyLeft};

/// The unit in which changed blocks are counted.
const CHANGED_BLOCK_BYTES: u64 = 64 << 10;

/// The figures of a volume whose extents lie at `places`.
pub(crate) fn figures(layout: &Layout, places: &[VolumeOffset]) -> LayoutFigures {
    let mut all = LayoutFigures::default();
    for stream in (0..layout.stream_count()).filter(|stream| !layout.is_metadata(*stream)) {
        let extents = layout.extents_of(stream);
        let runs = layout.run_count(places, extents.clone());
        let is_counted = layout.is_counted(stream);
        all.fragments += if is_counted { runs } else { 0 };
        if runs > 1 {
            all.fragmented_files += u64::from(is_counted);
            all.fragmented_bytes = all.fragmented_bytes.saturating_add(layout.bytes_of(extents));
        }
    }
    let free = free_space(layout, places);
    all.free_extents = free.count() as u64;
    all.largest_free_extent_bytes = free.iter().map(|span| span.len_bytes()).max().unwrap_or(0);
    all
}

/// What is free once the extents lie at `places`.
fn free_space(layout: &Layout, places: &[VolumeOffset]) -> ExtentSet<Volume> {
    let moved = || (0..layout.extent_count()).filter(|index| layout.span(*index).start() != places[*index]);
    let left: ExtentSet<Volume> = moved().map(|index| layout.span(index)).collect();
    let taken: ExtentSet<Volume> =
        moved().map(|index| Span::new(places[index], layout.len_bytes(index))).collect();
    layout.room().union(&left).subtract(&taken)
}

/// Bytes of the blocks that something is written to.
pub(crate) fn changed_block_bytes(destinations: impl Iterator<Item = VolumeSpan>) -> u64 {
    let blocks = destinations.map(|span| {
        let start = span.start().get() / CHANGED_BLOCK_BYTES * CHANGED_BLOCK_BYTES;
        let end = span.end().get().div_ceil(CHANGED_BLOCK_BYTES).saturating_mul(CHANGED_BLOCK_BYTES);
        Span::between(Offset::new(start), Offset::new(end))
    });
    blocks.collect::<ExtentSet<Volume>>().total_bytes()
}

/// What keeps streams from coming together that may move, on a volume whose extents lie at `places`: the bound that so many bytes
/// meet first.
pub(crate) fn bound(
    layout: &Layout,
    places: &[VolumeOffset],
    growth_bytes_max: u64,
) -> impl Fn(u64) -> WhyLeft {
    let largest = |set: &ExtentSet<Volume>| set.iter().map(|span| span.len_bytes()).max().unwrap_or(0);
    let free = free_space(layout, places);
    let (writable, allocated) = layout.writable();
    let growing = writable.union(&layout.backed(Backing::Withheld));
    let (any, growing, allocated) =
        (largest(&free), largest(&free.intersect(&growing)), largest(&free.intersect(&allocated)));
    move |bytes| match bytes {
        _ if bytes > any => WhyLeft::NoRoom,
        _ if bytes > growing => WhyLeft::NotWritable,
        _ if bytes > allocated => WhyLeft::Growth { bytes_max: growth_bytes_max, needed_bytes: bytes },
        _ => WhyLeft::NoRoom,
    }
}

/// The streams that are fragmented, and why they are left so; but for what the file system keeps for itself, and in its place.
pub(crate) fn left(
    layout: &Layout,
    places: &[VolumeOffset],
    pinned: impl Fn(usize) -> Option<&'static str>,
    bound: impl Fn(u64) -> WhyLeft,
) -> Vec<(FileId, WhyLeft)> {
    let mut left = Vec::new();
    for stream in 0..layout.stream_count() {
        let extents = layout.extents_of(stream);
        if extents.len() > 1 && layout.run_count(places, extents) > 1 {
            let bytes = layout.bytes_of(layout.extents_of(stream));
            let why = pinned(stream).map_or_else(|| bound(bytes), WhyLeft::Pinned);
            if !(layout.is_metadata(stream) && matches!(why, WhyLeft::Pinned(_))) {
                left.push((layout.file(stream), why));
            }
        }
    }
    left
}
