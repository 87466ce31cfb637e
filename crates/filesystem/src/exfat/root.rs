//! What the root directory alone names: the allocation bitmap, the up-case table (sections 7.1 and 7.2), and the label (section 7.3).

use block::{Error, Result};
use extent::VolumeOffset;
use zerocopy::FromBytes;

use super::boot::Geometry;
use super::corrupt::Corrupt;
use super::layout::{ENTRY_BYTES, TableEntry, entry_type};
use super::table::Chains;
use super::walk::{DIRECTORY_BYTES_MAX, read_entries};
use crate::Source;
use crate::clusters::Run;
use crate::utf16::push_utf8;

/// The most bytes of an up-case table: one unit for each of UTF-16.
const UPCASE_BYTES_MAX: u64 = 2 << 16;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) bitmap_at: VolumeOffset,
    pub(super) bitmap: Run,
    pub(super) upcase: Run,
    pub(super) upcase_bytes: u64,
    pub(super) upcase_sum: u32,
    pub(super) label: Option<String>,
}

/// Reads the root directory up to its end. Both tables must be there once, and lie in one piece, since the kernel and fsck.exfat read
/// them so whatever the FAT says.
pub(super) fn read(source: &Source, geometry: &Geometry) -> Result<Tables> {
    let mut chains = Chains::new(source, geometry);
    let (runs, followed) =
        chains.follow(geometry.root_cluster, DIRECTORY_BYTES_MAX / geometry.clusters.bytes, 0);
    followed?;
    let (mut bitmaps, mut upcases, mut label) = (Vec::new(), Vec::new(), None);
    read_entries(source, geometry, &runs, &mut |_, bytes| {
        let table = || TableEntry::read_from_bytes(bytes).expect("the struct's size");
        match bytes[0] {
            0 => return Ok(false),
            entry_type::BITMAP if bitmaps.len() < 2 => bitmaps.push(table()),
            entry_type::UPCASE if upcases.len() < 2 => upcases.push(table()),
            entry_type::LABEL => label = label.take().or_else(|| label_of(bytes)),
            _ => {}
        }
        Ok(true)
    })?;
    let ([bitmap], [upcase]) = (&bitmaps[..], &upcases[..]) else {
        return Err(Error::corrupt(Corrupt::Table(
            "root directory: one allocation bitmap and one up-case table",
        )));
    };
    let needed = u64::from(geometry.clusters.count).div_ceil(8);
    if bitmap.data_length.get() < needed || bitmap.bitmap_flags != 0 {
        let field = Error::corrupt(Corrupt::Table("allocation bitmap"));
        return Err(field.field(
            "DataLength",
            bitmap.data_length.get(),
            format!("{needed} of the first FAT"),
        ));
    }
    let upcase_bytes = upcase.data_length.get();
    if upcase_bytes > UPCASE_BYTES_MAX || !upcase_bytes.is_multiple_of(2) {
        let field = Error::corrupt(Corrupt::Table("up-case table"));
        return Err(field.field("DataLength", upcase_bytes, format!("even, at most {UPCASE_BYTES_MAX}")));
    }
    let run = piece(&mut chains, bitmap, geometry, "allocation bitmap, which must lie in one piece")?;
    Ok(Tables {
        bitmap_at: geometry.clusters.span_of(run.first, run.count).start(),
        bitmap: run,
        upcase: piece(&mut chains, upcase, geometry, "up-case table, which must lie in one piece")?,
        upcase_bytes,
        upcase_sum: upcase.table_checksum.get(),
        label,
    })
}

/// The clusters of a table.
fn piece(
    chains: &mut Chains<'_>,
    table: &TableEntry,
    geometry: &Geometry,
    what: &'static str,
) -> Result<Run> {
    let count = table.data_length.get().div_ceil(geometry.clusters.bytes);
    let (runs, followed) = chains.follow(table.first_cluster.get(), count, 0);
    followed?;
    match runs[..] {
        [run] if u64::from(run.count) == count => Ok(run),
        _ => Err(Error::corrupt(Corrupt::Table(what))),
    }
}

fn label_of(bytes: &[u8; ENTRY_BYTES]) -> Option<String> {
    let count = usize::from(bytes[1]).min(11);
    let mut text = Vec::new();
    push_utf8(&mut text, &bytes[2..2 + 2 * count]);
    Some(String::from_utf8_lossy(&text).into_owned()).filter(|label| !label.is_empty())
}
