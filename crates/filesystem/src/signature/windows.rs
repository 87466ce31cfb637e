//! File systems of Windows other than NTFS and FAT.

use block::Result;

use super::{Probe, Told};
use crate::Facts;
use crate::probe::fields::dos_serial;

/// ReFS (libfsrefs' format description, "Volume header").
pub(super) fn refs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(boot) = probe.with_magic(0, 512, 3, b"ReFS\0\0\0\0")? else { return Ok(None) };
    let sector_bytes = u64::from(boot.u32_le(32));
    let mut facts = probe.unread("refs").detail("version", format!("{}.{}", boot.byte(40), boot.byte(41)));
    facts.cluster_bytes = sector_bytes.checked_mul(boot.u32_le(36).into());
    facts.size_bytes = sector_bytes.saturating_mul(boot.u64_le(24));
    Ok(Some(facts.uuid(Some(format!("{:016X}", boot.u64_le(56))))))
}

/// How far into the root directory the label is looked for. It is among the first entries.
const ROOT_BYTES: usize = 4096;

/// exFAT (Microsoft's exFAT specification, sections 3.1 and 7.3).
pub(super) fn exfat(probe: &Probe) -> Result<Option<Facts>> {
    let Some(boot) = probe.with_magic(0, 512, 3, b"EXFAT   ")? else { return Ok(None) };
    let (sector_log, cluster_log) = (u32::from(boot.byte(108)), u32::from(boot.byte(109)));
    let mut facts = probe.unread("exfat").uuid(dos_serial(boot.u32_le(100)));
    if !(9..=12).contains(&sector_log) || cluster_log > 25 - sector_log {
        return Ok(Some(facts));
    }
    let cluster_bytes = 1u64 << (sector_log + cluster_log);
    facts.cluster_bytes = Some(cluster_bytes);
    facts.size_bytes = boot.u64_le(72).saturating_mul(1 << sector_log);
    let heap_at = u64::from(boot.u32_le(88)) << sector_log;
    // Clusters are numbered from 2.
    let root_at = u64::from(boot.u32_le(96)).checked_sub(2).map(|index| heap_at + index * cluster_bytes);
    let label = match root_at {
        Some(at) => probe.at(at, ROOT_BYTES.min(1 << (sector_log + cluster_log)))?.and_then(|root| {
            // An entry of type 0x83 holds the count of characters and at most eleven of them.
            let at = (0..root.0.len()).step_by(32).find(|at| root.byte(*at) == 0x83)?;
            root.text_utf16_le(at + 2, usize::from(root.byte(at + 1)).min(11))
        }),
        None => None,
    };
    Ok(Some(facts.label(label)))
}
