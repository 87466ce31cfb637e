//! The free spans of a volume, as its block bitmaps say.

use block::{Error, Result};
use extent::{Offset, Span, VolumeSpan};

use super::bitmap::{self, Bits};
use super::group;
use super::superblock::{GroupNumber, Superblock};
use crate::coalesced::Coalesced;
use crate::{Source, fault};

/// Calls `each` with the free spans, ascending and coalesced. A group whose bitmap is not understood has none; once all
/// other groups were seen, the first such is the error.
pub(super) fn each_span(
    source: &Source,
    superblock: &Superblock,
    each: &mut dyn FnMut(VolumeSpan),
) -> Result<()> {
    let mut spans = Coalesced::new(each);
    let mut broken: Option<Error> = None;
    for number in 0..superblock.groups_count {
        let bits = group::read(source, superblock, number)
            .and_then(|group| bitmap::read_blocks(source, superblock, number, &group));
        match bits {
            Ok(bits) => push_group(&mut spans, superblock, number, &bits),
            Err(error) => _ = broken.get_or_insert(fault::of_volume(error)?),
        }
    }
    spans.finish();
    broken.map_or(Ok(()), Err)
}

fn push_group(spans: &mut Coalesced<'_>, superblock: &Superblock, number: GroupNumber, bits: &Bits) {
    let cluster_blocks = u64::from(superblock.cluster_blocks);
    let start = superblock.group_start(number);
    let offset_of = |cluster: u32| superblock.offset_of(start + u64::from(cluster) * cluster_blocks);
    // The last cluster may reach past the end.
    let end_max = Offset::new(superblock.end_bytes());
    for run in bits.runs(0, bits.len(), false) {
        spans.push(Span::between(offset_of(run.start), offset_of(run.end).min(end_max)));
    }
}
