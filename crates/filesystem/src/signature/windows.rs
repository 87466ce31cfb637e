//! File systems of Windows other than NTFS, FAT and exFAT.

use block::Result;

use super::{Probe, Told};
use crate::Facts;

/// ReFS (libfsrefs' format description, "Volume header").
pub(super) fn refs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(boot) = probe.with_magic(0, 512, 3, b"ReFS\0\0\0\0")? else { return Ok(None) };
    let sector_bytes = u64::from(boot.u32_le(32));
    let mut facts = probe.unread("refs").detail("version", format!("{}.{}", boot.byte(40), boot.byte(41)));
    facts.cluster_bytes = sector_bytes.checked_mul(boot.u32_le(36).into());
    facts.size_bytes = sector_bytes.saturating_mul(boot.u64_le(24));
    Ok(Some(facts.uuid(Some(format!("{:016X}", boot.u64_le(56))))))
}
