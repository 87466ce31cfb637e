//! What else takes a device for itself.

use block::Result;

use super::Holder;
use crate::btrfs;
use crate::probe::{Probe, Told};

/// BlueStore, a device of Ceph (Ceph, `os/bluestore/BlueStore.cc`, `_write_bdev_label`).
pub(super) fn bluestore(probe: &Probe) -> Result<Option<Holder>> {
    const MAGIC: &[u8] = b"bluestore block device";
    let Some(label) = probe.with_magic(0, 512, 0, MAGIC)? else { return Ok(None) };
    let holder = Holder::new(probe, "bluestore", 0, "is a device of Ceph (BlueStore), which is not read");
    // A line of its own, as text.
    Ok(Some(holder.told(|facts| facts.uuid(label.text(MAGIC.len() + 1, 36)))))
}

/// Oracle ASM (libblkid, `oracle_asm_disk_label`).
pub(super) fn oracle_asm(probe: &Probe) -> Result<Option<Holder>> {
    let Some(header) = probe.with_magic(0, 512, 32, b"ORCLDISK")? else { return Ok(None) };
    let holder = Holder::new(probe, "oracleasm", 0, "belongs to a disk group of Oracle ASM");
    Ok(Some(holder.told(|facts| facts.label(header.text(40, 24)))))
}

/// VMFS (libvmfs: the volume's header at 1 MiB, the file system's at 2 MiB). A volume can be an extent of a larger one.
pub(super) fn vmfs(probe: &Probe) -> Result<Option<Holder>> {
    for (at, magic) in [(1u64 << 20, 0xc001_d00du32), (2 << 20, 0x2fab_f15e)] {
        if probe.with_magic(at, 512, 0, &magic.to_le_bytes())?.is_some() {
            return Ok(Some(Holder::new(probe, "vmfs", at, "is an extent of a VMFS, which is not read")));
        }
    }
    Ok(None)
}

/// Btrfs of several devices, or that is a seed of another one.
pub(super) fn btrfs(probe: &Probe) -> Result<Option<Holder>> {
    let Some(superblock) = btrfs::read_superblock(probe.source())? else { return Ok(None) };
    let what = match superblock.device_count() {
        // None at all is not what a member says, but a superblock that is broken: whoever opens the volume says so.
        0 => return Ok(None),
        1 if !superblock.is_seed() => return Ok(None),
        1 => "is a seed device, on which other btrfs stand".to_owned(),
        device_count => format!("is one of the {device_count} devices of a btrfs"),
    };
    let holder = Holder::new(probe, "btrfs", btrfs::SUPERBLOCK_AT, what);
    Ok(Some(holder.told(|held| crate::Facts { state: held.state, ..superblock.facts(probe) })))
}
