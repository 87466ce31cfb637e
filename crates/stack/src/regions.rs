//! Which part of the virtual disk is which part of which volume.
//!
//! Invariants: regions are disjoint and ascending; what is in none is in no volume. Each leg of a mirrored volume has regions of its own.

use block::{ErrorKind, Result};
use extent::{Extent, Span, VirtualSpan, Volume as VolumeSpace, VolumeOffset};
use filesystem::{Use, UsedMap};
use plan::{Role, VolumeIndex};

use crate::placement::{Column, DiskIndex};
use crate::{Mode, Volume};

/// A part of the disk that is a part of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// Where on the disk.
    pub(crate) span: VirtualSpan,
    /// Of which volume, by its place in [`crate::Stack::volumes`].
    pub(crate) volume: usize,
    /// How its bytes follow each other there.
    shape: Shape,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// One behind the other from here.
    Straight(VolumeOffset),
    /// As the `column`th of `columns`, `stripe_bytes` at a time, of a piece that begins at `start`.
    Striped { start: VolumeOffset, stripe_bytes: u64, column: u64, columns: u64 },
}

/// The regions of all volumes. Where a volume holds others, its own are what these leave: nothing of a file system's device.
pub(crate) fn regions(volumes: &[Volume]) -> Vec<Region> {
    let all = || volumes.iter().enumerate().filter(|(_, volume)| !volume.is_device);
    let inner = all().filter(|(_, volume)| volume.name.is_some());
    let mut regions: Vec<_> = inner.flat_map(|(index, volume)| of_pieces(index, volume)).collect();
    regions.sort_unstable_by_key(|region| region.span);
    let outer = all().filter(|(_, volume)| volume.name.is_none());
    let outer: Vec<_> = outer.flat_map(|(index, volume)| around(index, volume, &regions)).collect();
    regions.extend(outer);
    regions.sort_unstable_by_key(|region| region.span);
    let is_disjoint = regions.windows(2).all(|pair| pair[0].span.end() <= pair[1].span.start());
    assert!(is_disjoint, "no part of the disk is in two volumes");
    regions
}

fn of_pieces(index: usize, volume: &Volume) -> Vec<Region> {
    let regions = volume.place.pieces().flat_map(|piece| {
        let columns = piece.columns.len() as u64;
        let own = piece.columns.iter().zip(0..).filter(|(column, _)| column.disk == DiskIndex::OWN);
        own.map(move |(Column { span, .. }, column)| {
            let shape = match columns {
                1 => Shape::Straight(piece.start),
                _ => {
                    let (start, stripe_bytes) = (piece.start, piece.stripe_bytes);
                    Shape::Striped { start, stripe_bytes, column, columns }
                }
            };
            Region { span: *span, volume: index, shape }
        })
    });
    regions.collect()
}

/// What the regions of `inner` leave of a volume.
fn around(index: usize, volume: &Volume, inner: &[Region]) -> Vec<Region> {
    let span = volume.place.first();
    let mut regions = Vec::new();
    let mut at = span.start();
    let mut push = |part: VirtualSpan| {
        if !part.is_empty() {
            let shape = Shape::Straight(VolumeOffset::new(part.start().get() - span.start().get()));
            regions.push(Region { span: part, volume: index, shape });
        }
    };
    let first = inner.partition_point(|region| region.span.end() <= span.start());
    for region in inner[first..].iter().take_while(|region| region.span.start() < span.end()) {
        push(Span::between(at, region.span.start()));
        at = region.span.end();
    }
    push(Span::between(at, span.end()));
    regions
}

impl Region {
    /// The roles of `inside`, which lies within the region.
    pub(crate) fn roles(
        &self,
        mode: &Mode,
        inside: VirtualSpan,
        roles: &mut Vec<(VirtualSpan, Role)>,
    ) -> Result<()> {
        let index = VolumeIndex(self.volume);
        let Mode::UsedOnly(map) = mode else {
            push_role(roles, inside, Role::Whole(index));
            return Ok(());
        };
        match self.uses(&**map, inside) {
            Ok(uses) => {
                uses.into_iter().for_each(|(span, state)| push_role(roles, span, role_of(state, index)));
            }
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            // Of a map that was not checked. What is not understood of it is not free.
            Err(_) => push_role(roles, inside, Role::Whole(index)),
        }
        Ok(())
    }

    /// The uses of `inside` in the order of the disk.
    fn uses(&self, map: &dyn UsedMap, inside: VirtualSpan) -> Result<Vec<(VirtualSpan, Use)>> {
        let skip = inside.start().get() - self.span.start().get();
        match self.shape {
            Shape::Straight(start) => {
                let start = start.plus(skip);
                let uses = covered(map, Span::new(start, inside.len_bytes()))?;
                let on_disk = |extent: Extent<VolumeSpace, Use>| {
                    let at = inside.start().plus(extent.span.start().get() - start.get());
                    (Span::new(at, extent.span.len_bytes()), extent.state)
                };
                Ok(uses.into_iter().map(on_disk).collect())
            }
            Shape::Striped { start, stripe_bytes, column, columns } => {
                let on_volume = |stripe: u64| start.plus((stripe * columns + column) * stripe_bytes);
                let (first, last) = (skip / stripe_bytes, (skip + inside.len_bytes() - 1) / stripe_bytes);
                let asked = Span::between(on_volume(first), on_volume(last).plus(stripe_bytes));
                let all = covered(map, asked)?;
                let mut uses: Vec<(VirtualSpan, Use)> = Vec::new();
                let mut from = 0;
                for stripe in first..=last {
                    let wanted = Span::new(on_volume(stripe), stripe_bytes);
                    from += all[from..].partition_point(|extent| extent.span.end() <= wanted.start());
                    for extent in all[from..].iter().take_while(|it| it.span.start() < wanted.end()) {
                        let Some(part) = extent.span.intersect(&wanted) else { continue };
                        let at = stripe * stripe_bytes + (part.start().get() - wanted.start().get());
                        let span = Span::new(self.span.start().plus(at), part.len_bytes());
                        push_use(&mut uses, span.intersect(&inside), extent.state);
                    }
                }
                Ok(uses)
            }
        }
    }
}

/// Joins what follows and is the same.
fn push_use(uses: &mut Vec<(VirtualSpan, Use)>, span: Option<VirtualSpan>, state: Use) {
    let Some(span) = span else { return };
    match uses.last_mut() {
        Some((last, before)) if *before == state && last.end() == span.start() => {
            *last = Span::between(last.start(), span.end());
        }
        _ => uses.push((span, state)),
    }
}

fn covered(map: &dyn UsedMap, asked: Span<VolumeSpace>) -> Result<Vec<Extent<VolumeSpace, Use>>> {
    let uses = map.uses(asked)?;
    let mut at = asked.start();
    for extent in &uses {
        assert_eq!(extent.span.start(), at, "a used map covers what was asked, in order");
        at = extent.span.end();
    }
    assert_eq!(at, asked.end(), "a used map covers all that was asked");
    Ok(uses)
}

/// What a use means on the disk.
pub(crate) fn role_of(usage: Use, index: VolumeIndex) -> Role {
    match usage {
        Use::Used => Role::Used(index),
        Use::Free => Role::Free(index),
        Use::Swap => Role::Swap(index),
        Use::EmptyLog(byte) => Role::EmptyLog(index, byte),
    }
}

pub(crate) fn push_role(roles: &mut Vec<(VirtualSpan, Role)>, span: VirtualSpan, role: Role) {
    if !span.is_empty() {
        roles.push((span, role));
    }
}
