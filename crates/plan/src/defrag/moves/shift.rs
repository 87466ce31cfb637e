//! Shifts what lies among gaps towards one of them, a step at a time, until what is free behind it is large enough.
//!
//! [`slide`](super::slide) needs a container that holds the gaps. Here it may hold none of them: what a step leaves goes back to it before
//! the next is taken.
//!
//! Invariant: extents keep their order, and move as a whole, each to what is free by then.

use block::Result;
use extent::{VolumeOffset, VolumeSpan};

use crate::defrag::state::{Growth, Work};

/// What a batch costs besides its bytes: three flushes.
const BATCH_COST_BYTES: u64 = 256 << 10;

/// So many steps are not worth the while.
const STEPS_MAX: u64 = 512;

/// So many stretches are looked at.
const STRETCHES_MAX: usize = 10_000;

/// Where things are shifted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Towards {
    Start,
    End,
}

/// Something free, or an extent that may move.
#[derive(Clone, Copy)]
struct Item {
    span: VolumeSpan,
    extent: Option<usize>,
}

/// What is shifted: all extents among `items`, which follow each other without a gap.
struct Shift<'i> {
    items: &'i [Item],
    towards: Towards,
    cost_bytes: u64,
}

/// Shifts things until `bytes` are free in one piece, if no more than `moved_bytes_max` has to move for it. Whether they are then; if not, some may
/// have moved.
pub(crate) fn shift_together(work: &mut Work<'_>, bytes: u64, moved_bytes_max: u64) -> Result<bool> {
    let items = items_by_place(work);
    let rows = items.chunk_by(|one, next| one.span.end() == next.span.start());
    let mut shifts = Vec::new();
    let mut looks_left = STRETCHES_MAX;
    for row in rows {
        add_cheapest(&mut shifts, row, bytes, moved_bytes_max, &mut looks_left);
    }
    let Some(shift) = shifts.into_iter().min_by_key(|shift| shift.cost_bytes) else { return Ok(false) };
    Ok(perform(work, &shift)? && work.space.free().best_fit(bytes).is_some())
}

/// All that is free and all that may be shifted.
fn items_by_place(work: &Work<'_>) -> Vec<Item> {
    let free = work.space.free().iter().map(|span| Item { span, extent: None });
    let may_move = |extent: &usize| {
        let stream = work.owner(*extent);
        let is_bound = work.is_locked(stream) || work.layout.moves_together(stream);
        !is_bound && !work.space.is_thin(work.span(*extent))
    };
    let extents = work.extents_by_place().filter(may_move);
    let extents = extents.map(|extent| Item { span: work.span(extent), extent: Some(extent) });
    let mut items: Vec<_> = free.chain(extents).collect();
    items.sort_unstable_by_key(|item| item.span.start());
    items
}

/// Adds the shift that costs the least of those that make `bytes` free in a row, if there is one.
fn add_cheapest<'i>(
    shifts: &mut Vec<Shift<'i>>,
    row: &'i [Item],
    bytes: u64,
    moved_bytes_max: u64,
    looks_left: &mut usize,
) {
    let gaps: Vec<_> = (0..row.len()).filter(|index| row[*index].extent.is_none()).collect();
    let (mut end, mut free_bytes) = (0, 0);
    for (first, &from) in gaps.iter().enumerate() {
        while free_bytes < bytes && end < gaps.len() {
            free_bytes += row[gaps[end]].span.len_bytes();
            end += 1;
        }
        if free_bytes < bytes || *looks_left == 0 {
            return;
        }
        *looks_left -= 1;
        debug_assert!(first < end);
        let items = &row[from..=gaps[end - 1]];
        for towards in [Towards::Start, Towards::End] {
            shifts.extend(cost(items, towards, moved_bytes_max).map(|cost_bytes| Shift {
                items,
                towards,
                cost_bytes,
            }));
        }
        free_bytes -= row[from].span.len_bytes();
    }
}

/// What it costs to shift all extents of `items`; `None` if one is longer than the room that it has, or if that is too much.
fn cost(items: &[Item], towards: Towards, moved_bytes_max: u64) -> Option<u64> {
    let (mut room, mut step, mut steps, mut moved_bytes) = (0, 0, 0, 0_u64);
    let mut each = |item: &Item| -> Option<()> {
        let bytes = item.span.len_bytes();
        if item.extent.is_none() {
            room += bytes;
            return Some(());
        }
        if step + bytes > room {
            steps += 1;
            step = 0;
        }
        step += bytes;
        moved_bytes += bytes;
        (bytes <= room && steps <= STEPS_MAX && moved_bytes <= moved_bytes_max).then_some(())
    };
    match towards {
        Towards::Start => items.iter().try_for_each(&mut each)?,
        Towards::End => items.iter().rev().try_for_each(&mut each)?,
    }
    Some(moved_bytes + steps * BATCH_COST_BYTES)
}

/// Shifts; `false` if something did not find its place free, and the container could not grow by it.
fn perform(work: &mut Work<'_>, shift: &Shift<'_>) -> Result<bool> {
    let (Some(first), Some(last)) = (shift.items.first(), shift.items.last()) else { return Ok(false) };
    let extents: Vec<_> = shift.items.iter().filter_map(|item| item.extent).collect();
    let mut edge = match shift.towards {
        Towards::Start => first.span.start(),
        Towards::End => last.span.end(),
    };
    let mut each = |extent: usize| -> Result<bool> {
        let bytes = work.span(extent).len_bytes();
        let place = match shift.towards {
            Towards::Start => VolumeSpan::new(edge, bytes),
            Towards::End => VolumeSpan::new(VolumeOffset::new(edge.get() - bytes), bytes),
        };
        edge = match shift.towards {
            Towards::Start => place.end(),
            Towards::End => place.start(),
        };
        if !work.space.offers(place, Growth::Limited) {
            work.close()?;
            work.give_back();
        }
        let is_free = work.space.is_a_step(bytes) && work.space.offers(place, Growth::Limited);
        if is_free {
            work.move_to(extent..extent + 1, place)?;
        }
        Ok(is_free)
    };
    let mut all = extents.iter();
    let has_shifted = match shift.towards {
        Towards::Start => all.try_fold(true, |so_far, extent| Ok(so_far && each(*extent)?)),
        Towards::End => all.rev().try_fold(true, |so_far, extent| Ok(so_far && each(*extent)?)),
    };
    let has_shifted: Result<bool> = has_shifted;
    let has_shifted = has_shifted?;
    work.close()?;
    work.give_back();
    Ok(has_shifted)
}
