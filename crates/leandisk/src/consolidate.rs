//! The first part of `compact --defrag`: which units of the image are emptied into others, so that `compact` frees them.
//! It is planned here; the change itself is `in_place`'s.

use block::{Error, ErrorKind, Result};
use extent::{ExtentSet, Span, VolumeOffset, VolumeSpan};
use filesystem::{Rearrange, Use, UsedMap};
use image::Chain;
use image::live::GivesBack;
use plan::Moved;
use plan::defrag::{Backing, BackingMap, DefragOptions, Goal, Hints, plan_in_place};
use stack::{Mode, Stack, UsedMaps, Volume};

use crate::in_place::{BATCH_BYTES_MAX, Soundness, VolumePlan, plan_for_change, span_of};
use crate::pack::read_layout;

/// Uses are asked for in windows of this size.
const WINDOW_BYTES: u64 = 256 << 20;

/// What `compact` knows of a volume.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// Its used map is relied on, and the independent check passes it.
    Sound,
    /// Its used map is relied on, but the independent check rejects it for this reason.
    Unsound(String),
    /// It is kept whole.
    Whole,
}

/// Plans all volumes that are sound. What speaks against one is an answer; only a failure to read is an error.
pub(crate) fn plan(
    stack: &Stack,
    maps: &UsedMaps,
    gives: GivesBack,
    known: &[Known],
) -> Result<Vec<VolumePlan>> {
    let plan_one = |(index, mode)| match plan_volume(stack, mode, gives, &known[index], index) {
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        plan => Ok(plan),
    };
    maps.modes().iter().enumerate().map(plan_one).collect()
}

fn plan_volume(stack: &Stack, mode: &Mode, gives: GivesBack, known: &Known, index: usize) -> VolumePlan {
    let unit_bytes = gives.unit_bytes.filter(|_| gives.frees_units).ok_or_else(|| {
        let format = stack.chain().facts().format.name();
        Error::unsupported(format!(
            "the units of this {format} disk keep their places: its free blocks go as they are"
        ))
    })?;
    let Mode::UsedOnly(map) = mode else { return Err(Error::refused("it is kept whole")) };
    match known {
        Known::Sound => {}
        Known::Unsound(why) => return Err(Error::refused(format!("no file of it is moved: {why}"))),
        Known::Whole => return Err(Error::refused("it is kept whole")),
    }
    plan_for_change(stack, index, Soundness::Checked, |volume, filesystem, rearrange| {
        let backing = backing(stack.chain(), volume, &**map, rearrange)?;
        let layout = read_layout(filesystem, rearrange, backing)?;
        let options = DefragOptions {
            goal: Goal::Units,
            growth_bytes_max: 0,
            growth_left_bytes_max: 0,
            unit_bytes,
            unit_skew_bytes: span_of(volume)?.start().get() % unit_bytes,
            moves_holes: image::keeps_host_blocks(stack.chain(), span_of(volume)?)?,
            batch_bytes_max: BATCH_BYTES_MAX,
            moves_anchored: false,
        };
        plan_in_place(&layout, &options, &Hints::default())
    })
}

/// What the host has of a volume. What it has, but means nothing and cannot be written either, counts as if it had not: swap, and
/// what the file system keeps free for itself.
fn backing(
    chain: &Chain,
    volume: &Volume,
    map: &dyn UsedMap,
    rearrange: &dyn Rearrange,
) -> Result<BackingMap> {
    let idle = idle(volume, map, rearrange)?;
    let span = span_of(volume)?;
    let start = span.start().get();
    let mut all = BackingMap::new();
    for extent in image::backing(chain, span)? {
        let at = VolumeOffset::new(extent.span.start().get() - start);
        let span: VolumeSpan = Span::new(at, extent.span.len_bytes());
        match extent.state {
            image::Backing::Absent | image::Backing::Unallocated => all.push((span, Backing::Unallocated)),
            image::Backing::Fixed => all.push((span, Backing::Fixed)),
            // What is only reserved takes storage all the same, which can be given back.
            image::Backing::Allocated | image::Backing::Reserved => {
                let mut at = span.start();
                for part in idle.within(span) {
                    push(&mut all, Span::between(at, part.start()), Backing::Allocated);
                    push(&mut all, part, Backing::Unallocated);
                    at = part.end();
                }
                push(&mut all, Span::between(at, span.end()), Backing::Allocated);
            }
        }
    }
    Ok(all)
}

fn push(all: &mut BackingMap, span: VolumeSpan, backing: Backing) {
    if !span.is_empty() {
        all.push((span, backing));
    }
}

/// Swap, and what is free but no room for files.
fn idle(volume: &Volume, map: &dyn UsedMap, rearrange: &dyn Rearrange) -> Result<ExtentSet<extent::Volume>> {
    let mut room = ExtentSet::new();
    rearrange.each_room(&mut |span| room.push(span))?;
    let mut idle = ExtentSet::new();
    for window in Span::from_zero(volume.place.len_bytes()).split(WINDOW_BYTES) {
        for extent in map.uses(window)? {
            match extent.state {
                Use::Swap => idle.push(extent.span),
                Use::Free => room.invert(extent.span).iter().for_each(|span| idle.push(span)),
                Use::Used | Use::EmptyLog(_) => {}
            }
        }
    }
    Ok(idle)
}

/// What will have changed hands on each volume.
pub(crate) fn moved(plans: &[VolumePlan]) -> Vec<Moved> {
    let of = |plan: &VolumePlan| match plan {
        Ok(planned) if has_moves(plan) => Moved::new(&planned.plan.batches, &planned.freed()),
        _ => Moved::default(),
    };
    plans.iter().map(of).collect()
}

/// Whether anything is to move on a volume.
pub(crate) fn has_moves(plan: &VolumePlan) -> bool {
    plan.as_ref().is_ok_and(|planned| !planned.plan.batches.is_empty())
}
