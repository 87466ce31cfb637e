//! Encrypted volumes.

use block::Result;

use super::Holder;
use crate::Facts;
use crate::probe::fields::Fields;
use crate::probe::{Probe, Told};

/// LUKS 1 and 2 (cryptsetup, LUKS1 and LUKS2 on-disk format specifications: `luks_phdr`, `luks2_hdr_disk`), of LUKS2 also the
/// second header alone, from which the first is restored (section 2.2).
pub(super) fn luks(probe: &Probe) -> Result<Option<Holder>> {
    if let Some(header) = probe.with_magic(0, 512, 0, b"LUKS\xba\xbe")? {
        let name = match header.u16_be(6) {
            1 => "luks1",
            2 => "luks2",
            _ => "luks",
        };
        let holder = Holder::new(probe, name, 0, "is encrypted (LUKS)").encrypted();
        return Ok(Some(holder.told(|facts| describe_luks(facts, &header))));
    }
    /// Where it can be, by the size of the area before it (table 1).
    const SECOND_KIB: [u64; 9] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
    for at in SECOND_KIB.map(|kibibytes| kibibytes << 10) {
        let Some(header) = probe.with_magic(at, 512, 0, b"SKUL\xba\xbe")? else { continue };
        if header.u16_be(6) == 2 && header.u64_be(256) == at {
            let what = "was encrypted (LUKS), and its second header is still there";
            let holder = Holder::new(probe, "luks2", at, what);
            return Ok(Some(holder.told(|facts| describe_luks(facts, &header))));
        }
    }
    Ok(None)
}

fn describe_luks(facts: Facts, header: &Fields) -> Facts {
    let facts = facts.uuid(header.text(168, 40));
    match header.u16_be(6) {
        1 => {
            let cipher = [header.text(8, 32), header.text(40, 32)].map(Option::unwrap_or_default).join("-");
            facts.detail("cipher", cipher)
        }
        2 => facts.label(header.text(24, 48)),
        version => facts.detail("version", version),
    }
}

/// Identifies BitLocker's metadata: 4967D63B-2E29-4AD8-8399-F6A339E3D001 as it is stored.
const BITLOCKER_GUID: [u8; 16] =
    [0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01];

/// BitLocker (libbde's format description, "Volume header"): of Windows Vista, of later ones, and To Go,
/// which looks like FAT32.
pub(super) fn bitlocker(probe: &Probe) -> Result<Option<Holder>> {
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
    let holder = Holder::new(probe, "bitlocker", 0, "is encrypted (BitLocker)").encrypted();
    Ok(Some(holder.told(|facts| facts.detail("version", version))))
}

/// Apple's Core Storage, of which FileVault 2 is made (libfvde's format description, "Volume header").
pub(super) fn core_storage(probe: &Probe) -> Result<Option<Holder>> {
    let Some(header) = probe.with_magic(0, 512, 88, b"CS")? else { return Ok(None) };
    // Version 1, checksums by CRC-32C: the magic number alone is too short.
    if header.u16_le(8) != 1 || header.u32_le(90) != 1 {
        return Ok(None);
    }
    let (expected, seed) = (header.u32_le(0), header.u32_le(4));
    // The library's sum is inverted before and after.
    let is_right = !crc32c::crc32c_append(!seed, &header.0[8..]) == expected;
    let what = "belongs to Core Storage (FileVault), whose volumes are not known";
    let holder = Holder::new(probe, "corestorage", 0, what).with_checksum(is_right);
    Ok(Some(holder.told(|facts| facts.uuid(header.uuid(304)))))
}
