//! What of Btrfs stays when nothing moves: every item of every tree, and contents as they lie there.

use block::Result;

use super::geometry::number;
use super::{Item, extent_of, walk};
use crate::volume::Source;
use crate::volume::snapshot::{Aspect, Collector, Contents};

/// The number under which files are compared: that of the file, behind that of its subvolume, which is 0 for the top level.
fn number_of(item: &Item<'_>) -> u64 {
    let subvolume = if item.tree == 5 { 0 } else { item.tree };
    if item.is_file() { subvolume << 40 | item.object } else { 0 }
}

/// Tells `collector` every file, and all that is of none as that with the number 0.
pub(in crate::volume) fn collect(source: &Source, collector: &mut Collector<'_>) -> Result<()> {
    walk(source, &mut |geometry, item| {
        let file = number_of(item);
        let aspect = match item.kind {
            1 => Aspect::Head,
            12 | 13 | 84 | 96 => Aspect::Names,
            24 => Aspect::Attributes,
            _ => Aspect::Layout,
        };
        let key = [item.tree, item.object, item.kind.into(), item.offset].map(u64::to_le_bytes);
        collector.tell(file, aspect, &[key.as_flattened(), item.data]);
        let Some([address, len, offset, part]) = extent_of(item)? else { return Ok(()) };
        let (is_compressed, is_unwritten) = (number(item.data, 16, 1) != 0, number(item.data, 20, 1) == 2);
        let is_read = collector.contents != Contents::Owners && collector.contents.includes(file);
        if is_unwritten || !is_read {
            return Ok(());
        }
        // Of what is compressed all is told, as it lies there.
        let (from, len) =
            if is_compressed { (0, len) } else { (offset, part.min(len.saturating_sub(offset))) };
        // Of a file system on several devices each copy counts: only some may be on the disk that was changed.
        let address = address.checked_add(from).ok_or_else(|| item.wrong())?;
        let copies = geometry.places_of(address, len)?;
        for (parts, copy) in copies.into_iter().zip(0..if geometry.is_spread() { u64::MAX } else { 1 }) {
            let of_copy = if copy == 0 { 0 } else { u128::from(item.offset) << 8 | u128::from(copy) << 1 };
            let mut logical = item.offset;
            for (at, len) in parts {
                collector.piece(file, of_copy | u128::from(is_compressed), logical, at, len)?;
                logical += len;
            }
        }
        Ok(())
    })
    .map(drop)
}
