//! What holds other volumes: encryption, RAID, LVM.

use block::Result;

use super::fields::{Fields, hex};
use super::{Probe, Told};
use crate::{Facts, State};

/// LUKS 1 and 2 (cryptsetup, LUKS1 and LUKS2 on-disk format specifications: `luks_phdr`, `luks2_hdr_disk`).
pub(super) fn luks(probe: &Probe) -> Result<Option<Facts>> {
    let Some(header) = probe.with_magic(0, 512, 0, b"LUKS\xba\xbe")? else { return Ok(None) };
    let encrypted = |name: &str| probe.facts(name, State::Encrypted("is encrypted (LUKS)".into()));
    let uuid = header.text(168, 40);
    Ok(Some(match header.u16_be(6) {
        1 => {
            let cipher = [header.text(8, 32), header.text(40, 32)].map(Option::unwrap_or_default).join("-");
            encrypted("luks1").uuid(uuid).detail("cipher", cipher)
        }
        2 => encrypted("luks2").uuid(uuid).label(header.text(24, 48)),
        version => encrypted("luks").detail("version", version),
    }))
}

/// Identifies BitLocker's metadata: 4967D63B-2E29-4AD8-8399-F6A339E3D001 as it is stored.
const BITLOCKER_GUID: [u8; 16] =
    [0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01];

/// BitLocker (libbde's format description, "Volume header"): of Windows Vista, of later ones, and To Go,
/// which looks like FAT32.
pub(super) fn bitlocker(probe: &Probe) -> Result<Option<Facts>> {
    let Some(boot) = probe.at(0, 512)? else { return Ok(None) };
    let version = if boot.holds(0, b"\xeb\x52\x90-FVE-FS-") {
        "Windows Vista"
    } else if boot.holds(3, b"-FVE-FS-") {
        "Windows 7 or later"
    } else if boot.holds(3, b"MSWIN4.1") && boot.holds(424, &BITLOCKER_GUID) {
        "To Go"
    } else {
        return Ok(None);
    };
    let facts = probe.facts("bitlocker", State::Encrypted("is encrypted (BitLocker)".into()));
    Ok(Some(facts.detail("version", version)))
}

/// The magic number of both kinds of md superblocks (Linux, `include/uapi/linux/raid/md_p.h`).
const MD_MAGIC: u32 = 0xa92b_4efc;

/// md RAID with superblocks of version 1: at the start (1.1), 4 KiB from it (1.2), or near the end (1.0). Each
/// says where it lies (`struct mdp_superblock_1`).
pub(super) fn md_1(probe: &Probe) -> Result<Option<Facts>> {
    let near_end = (probe.len_bytes() / 512).checked_sub(16).map(|sector| sector / 8 * 8 * 512);
    for at in [Some(0), Some(4096), near_end].into_iter().flatten() {
        let Some(superblock) = probe.with_magic(at, 256, 0, &MD_MAGIC.to_le_bytes())? else { continue };
        if superblock.u32_le(4) != 1 || superblock.u64_le(144) != at / 512 {
            continue;
        }
        let facts = raid_member(probe, superblock.uuid(16), superblock.u32_le(72), superblock.u32_le(92));
        return Ok(Some(facts.label(superblock.text(32, 32))));
    }
    Ok(None)
}

/// md RAID with a superblock of version 0.90, in the last whole 64 KiB (`mdp_super_t`).
pub(super) fn md_0_90(probe: &Probe) -> Result<Option<Facts>> {
    const AREA_BYTES: u64 = 64 << 10;
    let Some(at) = (probe.len_bytes() / AREA_BYTES).checked_sub(1).map(|area| area * AREA_BYTES) else {
        return Ok(None);
    };
    let Some(superblock) = probe.with_magic(at, 128, 0, &MD_MAGIC.to_le_bytes())? else { return Ok(None) };
    if (superblock.u32_le(4), superblock.u32_le(8)) != (0, 90) {
        return Ok(None);
    }
    // The array's UUID lies in two pieces, as words of the machine's byte order.
    let words = [20, 52, 56, 60].map(|at| superblock.u32_le(at).to_be_bytes()).concat();
    Ok(Some(raid_member(probe, Fields(words).uuid(0), superblock.u32_le(28), superblock.u32_le(40))))
}

fn raid_member(probe: &Probe, uuid: Option<String>, level: u32, disk_count: u32) -> Facts {
    let state = State::Unsupported("is a member of a RAID array (md), which is not assembled".into());
    let level = match level {
        // -1 and -4 as Linux stores them.
        0xffff_ffff => "linear".into(),
        0xffff_fffc => "multipath".into(),
        level => level.to_string(),
    };
    probe.facts("md-raid", state).uuid(uuid).detail("level", level).detail("disks", disk_count)
}

/// LVM2 physical volumes: a label in one of the first four sectors (LVM2, `lib/label/label.h`,
/// `lib/format_text/layout.h`).
pub(super) fn lvm2(probe: &Probe) -> Result<Option<Facts>> {
    for sector in 0..4 {
        let Some(label) = probe.with_magic(sector * 512, 512, 0, b"LABELONE")? else { continue };
        if !label.holds(24, b"LVM2 001") {
            continue;
        }
        let state =
            State::Unsupported("is an LVM2 physical volume, whose logical volumes are not known".into());
        let header_at = usize::try_from(label.u32_le(20)).unwrap_or(usize::MAX);
        let facts = probe.facts("lvm2", state);
        // The identifier (32 characters) and the size must lie within the sector that was read.
        if header_at > 512 - 40 {
            return Ok(Some(facts));
        }
        let id = label.text(header_at, 32).filter(|id| id.len() == 32 && id.is_ascii());
        let groups = id
            .map(|id| [0..6, 6..10, 10..14, 14..18, 18..22, 22..26, 26..32].map(|part| &id[part]).join("-"));
        return Ok(Some(facts.uuid(groups)));
    }
    Ok(None)
}

/// dm-integrity and dm-verity (Linux, `drivers/md/dm-integrity.c` `struct superblock`; veritysetup's
/// `struct verity_sb`).
pub(super) fn device_mapper(probe: &Probe) -> Result<Option<Facts>> {
    let Some(superblock) = probe.at(0, 512)? else { return Ok(None) };
    let name = match superblock.array::<8>(0) {
        value if value == *b"integrt\0" => "dm-integrity",
        value if value == *b"verity\0\0" => "dm-verity",
        _ => return Ok(None),
    };
    Ok(Some(probe.unread(name).detail("signature", hex(&superblock.0[..8]))))
}
