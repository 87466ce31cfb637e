//! Devices of ZFS pools (ZFS On-Disk Specification, section 1.2; OpenZFS, `include/sys/vdev_impl.h`).

use block::Result;

use super::Holder;
use crate::probe::fields::Fields;
use crate::probe::{Probe, Told};

const LABEL_BYTES: u64 = 256 << 10;
/// Of an uberblock, in the pool's byte order.
const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// The list of names and values: after blank space and a boot header, up to the uberblocks.
const LIST_AT: usize = 16 << 10;
const UBERBLOCKS_AT: usize = 128 << 10;

/// Two labels at the start, two at the end in whole labels. Any of them will do: what was written over the first may have left the last.
pub(super) fn zfs(probe: &Probe) -> Result<Option<Holder>> {
    let labels = probe.len_bytes() / LABEL_BYTES;
    let from_end = |count| labels.checked_sub(count).map(|index: u64| index * LABEL_BYTES);
    for (at, is_at_start) in
        [(Some(0), true), (Some(LABEL_BYTES), true), (from_end(2), false), (from_end(1), false)]
    {
        let Some(at) = at else { continue };
        let Some(label) = label(probe, at)? else { continue };
        // At the end alone it may be of the whole disk.
        let holder = Holder::new(probe, "zfs", at, "is a device of a ZFS pool, which is not read");
        let holder = holder.removed_by("zpool labelclear").certain_if(is_at_start);
        return Ok(Some(holder.told(|facts| {
            let pool = number(&label, b"pool_guid").map(|guid| guid.to_string());
            let version = number(&label, b"version").map_or("unknown".into(), |version| version.to_string());
            facts.uuid(pool).label(text(&label, b"name")).detail("version", version)
        })));
    }
    Ok(None)
}

/// The label at `at`, if it has a list of names and values with a pool in it, or two uberblocks.
fn label(probe: &Probe, at: u64) -> Result<Option<Fields>> {
    let label = probe.at(at, usize::try_from(LABEL_BYTES).expect("a constant"))?;
    Ok(label.filter(|label| has_pool(label) || has_uberblocks(label)))
}

/// The list is in XDR, of either byte order of the machine that wrote it.
fn has_pool(label: &Fields) -> bool {
    label.byte(LIST_AT) == 1 && label.byte(LIST_AT + 1) <= 1 && number(label, b"pool_guid").is_some()
}

fn has_uberblocks(label: &Fields) -> bool {
    let magic = |at: &usize| label.u64_le(*at) == UBERBLOCK_MAGIC || label.u64_be(*at) == UBERBLOCK_MAGIC;
    (UBERBLOCKS_AT..label.0.len()).step_by(1024).filter(magic).take(2).count() == 2
}

/// The value of the first pair of this name, which are those of the label itself: its type, a count of one, then the value (`nvpair` in XDR).
fn value<'a>(label: &'a Fields, name: &[u8], kind: u32) -> Option<&'a [u8]> {
    let mut wanted = u32::try_from(name.len()).ok()?.to_be_bytes().to_vec();
    wanted.extend(name);
    wanted.resize(wanted.len().next_multiple_of(4), 0);
    wanted.extend(kind.to_be_bytes());
    wanted.extend(1u32.to_be_bytes());
    let list = &label.0[LIST_AT..UBERBLOCKS_AT];
    let at = list.windows(wanted.len()).position(|window| window == wanted)?;
    Some(&list[at + wanted.len()..])
}

/// `DATA_TYPE_UINT64`.
fn number(label: &Fields, name: &[u8]) -> Option<u64> {
    let bytes = value(label, name, 8)?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*bytes))
}

/// `DATA_TYPE_STRING`: its length, then its bytes.
fn text(label: &Fields, name: &[u8]) -> Option<String> {
    let rest = value(label, name, 9)?;
    let len = usize::try_from(u32::from_be_bytes(*rest.first_chunk::<4>()?)).ok()?;
    let bytes = rest.get(4..4usize.checked_add(len)?)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}
