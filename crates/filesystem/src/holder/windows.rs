//! What Windows makes of several disks.

use block::Result;

use super::Holder;
use crate::probe::{Probe, SECTOR_BYTES, Scope, Told};

/// Dynamic disks of the logical disk manager (Linux, `block/partitions/ldm.h`, `struct privhead`): the private header in
/// the seventh sector of a disk with an MBR, and twice in the last 1 MiB of the disk, or of GPT's metadata partition.
pub(super) fn dynamic_disk(probe: &Probe) -> Result<Option<Holder>> {
    /// `OFF_PRIV2` and `OFF_PRIV3` in the database of 2048 sectors, counted from its end.
    const AT_END: [u64; 2] = [2048 - 1856, 1];
    let at_start = [6 * SECTOR_BYTES, 6 * 4096].map(Some);
    let at_end = AT_END.map(|count| probe.sector_from_end(count));
    for at in at_start.into_iter().chain(at_end).flatten() {
        let Some(header) = probe.with_magic(at, 512, 0, b"PRIVHEAD")? else { continue };
        let what = "belongs to a Windows dynamic disk (LDM), whose volumes are not known";
        // Never of a partition alone.
        let holder = Holder::new(probe, "ldm", at, what).certain_if(probe.scope() == Scope::Disk);
        return Ok(Some(holder.told(|facts| {
            // The disk's GUID, and the name of its group, as text.
            facts.uuid(header.text(0x30, 64)).label(header.text(0xf0, 32))
        })));
    }
    Ok(None)
}

/// Storage Spaces: the database's header at the start of the pool's partition. The format is not published; the partition's type
/// tells as well.
pub(super) fn storage_spaces(probe: &Probe) -> Result<Option<Holder>> {
    for at in [0, 4096] {
        if probe.with_magic(at, 512, 0, b"SPACEDB ")?.is_some() {
            let what = "is a part of a storage pool (Storage Spaces), whose volumes are not known";
            return Ok(Some(Holder::new(probe, "storage-spaces", at, what)));
        }
    }
    Ok(None)
}
