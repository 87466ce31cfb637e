//! How the files of a copy are to lie: facts in, one arrangement a volume out.

use std::sync::Arc;

use block::{ErrorKind, Result};
use extent::{ExtentSet, Span, Volume};
use filesystem::{FileSystem, Rearrange, Source};
use plan::defrag::{Backing, BackingMap, Layout, LayoutFigures, plan_packed};
use predict::free_after;
use report::{LayoutKept, LayoutOfCopy, LayoutPacked};
use stack::{Arrangement, Stack, UsedMaps};

/// How each volume is to lie, and what there is to say of it.
pub(crate) struct Packing {
    pub(crate) arrangements: Vec<Option<Arrangement>>,
    pub(crate) layouts: Vec<LayoutOfCopy>,
}

/// Plans the volumes of a disk, each as far as that is safe.
pub(crate) fn pack(stack: &Stack, maps: &UsedMaps) -> Result<Packing> {
    let mut packing = Packing { arrangements: Vec::new(), layouts: Vec::new() };
    for (volume, mode) in stack.volumes().iter().zip(maps.modes()) {
        let packed = match (&volume.filesystem, mode.reason()) {
            (Some(_), None) if volume.name.is_some() => {
                Err("files of volumes that need not lie in one piece are not moved".into())
            }
            (Some(filesystem), None) => pack_volume(&**filesystem, &volume.source)?,
            (_, reason) => Err(reason.unwrap_or("no known file system").to_owned()),
        };
        let (arrangement, layout) = match packed {
            Ok((arrangement, packed)) => (Some(arrangement), LayoutOfCopy::Packed(packed)),
            Err(reason) => (None, LayoutOfCopy::Kept(LayoutKept { reason })),
        };
        packing.arrangements.push(arrangement);
        packing.layouts.push(layout);
    }
    Ok(packing)
}

fn pack_volume(
    filesystem: &dyn FileSystem,
    source: &Source,
) -> Result<Result<(Arrangement, LayoutPacked), String>> {
    let checked = |rearrange| verify::volume::check(source).map(|_| rearrange);
    let rearrange = match filesystem.rearrange().and_then(checked) {
        Ok(rearrange) => rearrange,
        Err(error) if error.kind() == ErrorKind::Io => return Err(error),
        Err(error) => return Ok(Err(error.to_string())),
    };
    // A new image has a place for everything.
    let everywhere = vec![(Span::from_zero(filesystem.facts().size_bytes), Backing::Allocated)];
    let layout = read_layout(filesystem, &*rearrange, everywhere)?;
    let plan = plan_packed(&layout)?;
    let relocations = Arc::new(plan.relocations);
    let rewritten = rearrange.rewritten(relocations.clone())?;
    // The plan knows of the room for files. All that is free is more, and so is what smaller maps leave.
    let mut free = ExtentSet::new();
    filesystem.each_free_span(&mut |span| free.push(span))?;
    let free_in = |figures: LayoutFigures, free: &ExtentSet<Volume>| LayoutFigures {
        free_extents: free.count() as u64,
        largest_free_extent_bytes: free.iter().map(|span| span.len_bytes()).max().unwrap_or(0),
        ..figures
    };
    let after = free_after(&free, std::slice::from_ref(&*relocations), rewritten.freed());
    let packed = LayoutPacked {
        moved_bytes: relocations.total_bytes(),
        before: free_in(plan.before, &free).into(),
        after: free_in(plan.after, &after).into(),
        left: plan.left.len() as u64,
    };
    Ok(Ok((Arrangement { relocations, rewritten }, packed)))
}

/// What lies where on a volume.
pub(crate) fn read_layout(
    filesystem: &dyn FileSystem,
    rearrange: &dyn Rearrange,
    backing: BackingMap,
) -> Result<Layout> {
    let layout = Layout::new(rearrange.cluster_bytes(), filesystem.fragments(), backing);
    let mut layout = layout.with_first_cluster(rearrange.first_cluster());
    rearrange.each_stream(&mut layout)?;
    rearrange.each_room(&mut |span| layout.add_room(span))?;
    Ok(layout)
}
