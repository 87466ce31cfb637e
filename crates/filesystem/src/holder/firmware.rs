//! RAID of mainboards and cheap controllers, which the system's driver does by metadata that the firmware wrote. All of it is on whole
//! disks alone, and nearly all at their end. The formats were never published: places and fields are those that dmraid
//! (`lib/format/ataraid`), mdadm (`super-intel.c`) and libblkid look at.

use block::Result;

use super::{Holder, sum_u16, sum_u32};
use crate::probe::fields::Fields;
use crate::probe::{Probe, SECTOR_BYTES, Scope, Told};

/// Intel Matrix Storage, Rapid Storage: the anchor in the last sector but one (`struct imsm_super`).
pub(super) fn intel(probe: &Probe) -> Result<Option<Holder>> {
    const SIGNATURE: &[u8] = b"Intel Raid ISM Cfg Sig. ";
    let in_large_sectors = (probe.len_bytes() / 4096).checked_sub(2).map(|sector| sector * 4096);
    for at in [probe.sector_from_end(2), in_large_sectors] {
        let Some(anchor) = at_end(probe, at, 512, 0, SIGNATURE)? else { continue };
        let version = anchor.text(SIGNATURE.len(), 8).unwrap_or_default();
        let disk_count = anchor.byte(56);
        let holder = member(probe, "isw-raid", at, "Intel").removed_by("mdadm --zero-superblock");
        return Ok(Some(
            holder
                .with_checksum(is_intel_checksum_right(&anchor))
                .told(|facts| facts.detail("version", version).detail("disks", disk_count)),
        ));
    }
    Ok(None)
}

/// The sum of all words but itself. What does not fit into the anchor's sector lies before it, and is not added up here.
fn is_intel_checksum_right(anchor: &Fields) -> bool {
    let (checksum, len) = (anchor.u32_le(32), anchor.u32_le(36) as usize);
    match anchor.0.get(..len) {
        Some(all) => sum_u32(all).wrapping_sub(checksum.into()) & 0xffff_ffff == checksum.into(),
        None => true,
    }
}

/// LSI MegaRAID, in the last sector.
pub(super) fn lsi(probe: &Probe) -> Result<Option<Holder>> {
    let at = probe.sector_from_end(1);
    Ok(at_end(probe, at, 512, 0, b"$XIDE$")?.map(|_| member(probe, "lsi-raid", at, "LSI")))
}

/// VIA, in the last sector. Its signature is that of every boot sector, so that only the checksum tells.
pub(super) fn via(probe: &Probe) -> Result<Option<Holder>> {
    const CHECKSUM_AT: usize = 50;
    let at = probe.sector_from_end(1);
    let Some(sector) = at_end(probe, at, 512, 0, &[0x55, 0xaa])? else { return Ok(None) };
    let sum = sector.0[..CHECKSUM_AT].iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
    let is_sound = sector.byte(2) <= 2 && sector.byte(CHECKSUM_AT) == sum;
    Ok(is_sound.then(|| member(probe, "via-raid", at, "VIA")))
}

/// Silicon Image Medley: in the last sector, and in copies 512 sectors apart before it.
pub(super) fn silicon(probe: &Probe) -> Result<Option<Holder>> {
    const CHECKSUM_AT: usize = 0x13e;
    for count in [1, 513, 1025, 1537] {
        let at = probe.sector_from_end(count);
        let Some(sector) = at_end(probe, at, 512, 0x60, &[0, 0, 0, 0x2f])? else { continue };
        // All 16-bit words up to the checksum, and this, make zero.
        let is_right = sum_u16(&sector.0[..CHECKSUM_AT + 2]) == 0;
        if sector.byte(0x116) < 8 && is_right {
            return Ok(Some(member(probe, "silicon-raid", at, "Silicon Image")));
        }
    }
    Ok(None)
}

/// NVIDIA, in the last sector but one.
pub(super) fn nvidia(probe: &Probe) -> Result<Option<Holder>> {
    const LEN: usize = 120;
    let at = probe.sector_from_end(2);
    let Some(sector) = at_end(probe, at, LEN, 0, b"NVIDIA  ")? else { return Ok(None) };
    // The length is in words. All of them, the checksum included, make zero.
    let is_right = sector.u32_le(8) as usize == LEN / 4 && sum_u32(&sector.0) & 0xffff_ffff == 0;
    Ok(Some(member(probe, "nvidia-raid", at, "NVIDIA").with_checksum(is_right)))
}

/// Promise FastTrack, in one of many places by model.
pub(super) fn promise(probe: &Probe) -> Result<Option<Holder>> {
    for count in [63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951, 3087] {
        let at = probe.sector_from_end(count);
        if at_end(probe, at, 512, 0, b"Promise Technology, Inc.")?.is_some() {
            return Ok(Some(member(probe, "promise-raid", at, "Promise")));
        }
    }
    Ok(None)
}

/// Magic numbers of HighPoint: of a disk in order, and of one that failed.
const HIGHPOINT: [u32; 2] = [0x5a78_16f0, 0x5a78_16fd];

/// HighPoint 45x, in the last sector but ten.
pub(super) fn highpoint_45x(probe: &Probe) -> Result<Option<Holder>> {
    const IN_ORDER: u32 = 0x5a78_16f3;
    highpoint(probe, probe.sector_from_end(11), 0, [IN_ORDER, HIGHPOINT[1]])
}

/// HighPoint 37x, in the tenth sector.
pub(super) fn highpoint_37x(probe: &Probe) -> Result<Option<Holder>> {
    highpoint(probe, Some(9 * SECTOR_BYTES), 32, HIGHPOINT)
}

fn highpoint(probe: &Probe, at: Option<u64>, magic_at: usize, magics: [u32; 2]) -> Result<Option<Holder>> {
    for magic in magics {
        if at_end(probe, at, 512, magic_at, &magic.to_le_bytes())?.is_some() {
            return Ok(Some(member(probe, "highpoint-raid", at, "HighPoint")));
        }
    }
    Ok(None)
}

/// Adaptec HostRAID, in the last sector.
pub(super) fn adaptec(probe: &Probe) -> Result<Option<Holder>> {
    let at = probe.sector_from_end(1);
    let sector = at_end(probe, at, 512, 0, &[0x37, 0xfc, 0x4d, 0x1e])?;
    Ok(sector
        .filter(|sector| sector.holds(256, b"DPTM"))
        .map(|_| member(probe, "adaptec-raid", at, "Adaptec")))
}

/// JMicron, in the last sector. Its signature is short, so that only the checksum tells.
pub(super) fn jmicron(probe: &Probe) -> Result<Option<Holder>> {
    let at = probe.sector_from_end(1);
    let Some(sector) = at_end(probe, at, 128, 0, b"JM")? else { return Ok(None) };
    let is_sound = matches!(sum_u16(&sector.0), 0 | 1) && sector.byte(48) <= 5;
    Ok(is_sound.then(|| member(probe, "jmicron-raid", at, "JMicron")))
}

/// What lies at `at` of a whole disk, if it has the magic number.
fn at_end(
    probe: &Probe,
    at: Option<u64>,
    len: usize,
    magic_at: usize,
    magic: &[u8],
) -> Result<Option<Fields>> {
    match at.filter(|_| probe.scope() == Scope::Disk) {
        Some(at) => probe.with_magic(at, len, magic_at, magic),
        None => Ok(None),
    }
}

fn member(probe: &Probe, name: &str, at: Option<u64>, whose: &str) -> Holder {
    let what = format!("is a member of a RAID array of a controller ({whose}), which is not assembled");
    Holder::new(probe, name, at.expect("found there"), what)
}
