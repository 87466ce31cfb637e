//! File systems of Apple.

use block::Result;

use super::{Probe, Told};
use crate::Facts;

/// APFS containers (Apple File System Reference, `nx_superblock_t`).
pub(super) fn apfs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(superblock) = probe.with_magic(0, 512, 32, b"NXSB")? else { return Ok(None) };
    let facts = probe.unread("apfs").sized(superblock.u32_le(36).into(), superblock.u64_le(40));
    Ok(Some(facts.uuid(superblock.uuid(72))))
}

/// HFS, HFS+ and HFSX (Apple's Technical Note 1150, `HFSPlusVolumeHeader`).
pub(super) fn hfs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(header) = probe.at(1024, 512)? else { return Ok(None) };
    let facts = match (&header.array::<2>(0), header.u16_be(2)) {
        (b"H+", 4) => probe.unread("hfsplus"),
        (b"HX", 5) => probe.unread("hfsx"),
        (b"BD", _) => return Ok(Some(probe.unread("hfs"))),
        _ => return Ok(None),
    };
    Ok(Some(facts.sized(header.u32_be(40).into(), header.u32_be(44).into()).free(header.u32_be(48).into())))
}
