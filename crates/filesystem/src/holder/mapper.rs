//! Targets of Linux' device mapper that keep their metadata on the volume itself.

use block::Result;

use super::Holder;
use crate::probe::{Probe, SECTOR_BYTES, Told};

/// The changes of a snapshot (Linux, `drivers/md/dm-snap-persistent.c` `struct disk_header`).
pub(super) fn snapshot(probe: &Probe) -> Result<Option<Holder>> {
    let what = "holds the changes of a snapshot of another device (dm-snapshot)";
    Ok(probe.with_magic(0, 512, 0, b"SnAp")?.map(|_| Holder::new(probe, "dm-snapshot", 0, what)))
}

/// dm-verity (veritysetup, `struct verity_sb`).
pub(super) fn verity(probe: &Probe) -> Result<Option<Holder>> {
    let Some(superblock) = probe.with_magic(0, 512, 0, b"verity\0\0")? else { return Ok(None) };
    let holder = Holder::new(probe, "dm-verity", 0, "holds the hashes of another device (dm-verity)");
    Ok(Some(holder.told(|facts| facts.uuid(superblock.uuid(16)))))
}

/// dm-integrity (Linux, `drivers/md/dm-integrity.c` `struct superblock`).
pub(super) fn integrity(probe: &Probe) -> Result<Option<Holder>> {
    let Some(superblock) = probe.with_magic(0, 512, 0, b"integrt\0")? else { return Ok(None) };
    let what = "has checksums between its contents (dm-integrity), which would not agree any more";
    let holder = Holder::new(probe, "dm-integrity", 0, what);
    Ok(Some(holder.told(|facts| facts.detail("version", superblock.byte(8)))))
}

/// VDO, which deduplicates and compresses (Linux, `drivers/md/dm-vdo/encodings.h` `struct vdo_geometry`).
pub(super) fn vdo(probe: &Probe) -> Result<Option<Holder>> {
    let Some(geometry) = probe.with_magic(0, 512, 0, b"dmvdo001")? else { return Ok(None) };
    let holder = Holder::new(probe, "vdo", 0, "is the storage of a VDO volume, which is not read");
    Ok(Some(holder.told(|facts| facts.uuid(geometry.uuid(40)))))
}

/// Stratis: either copy of its signature block (stratisd, `engine/strat_engine/metadata/sizes.rs` and `static_header.rs`).
pub(super) fn stratis(probe: &Probe) -> Result<Option<Holder>> {
    for at in [SECTOR_BYTES, 9 * SECTOR_BYTES] {
        if let Some(block) = probe.with_magic(at, 512, 4, b"!Stra0tis\x86\xff\x02^\x41rh")? {
            let is_right = crc32c::crc32c(&block.0[4..]) == block.u32_le(0);
            let what = "belongs to a Stratis pool, whose file systems are not known";
            return Ok(Some(Holder::new(probe, "stratis", at, what).with_checksum(is_right)));
        }
    }
    Ok(None)
}
