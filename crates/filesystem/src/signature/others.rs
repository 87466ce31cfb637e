//! File systems of other systems, and of optical discs.

use block::Result;

use super::{Probe, Told};
use crate::Facts;

/// UFS 1 and 2 in either byte order (FreeBSD, `struct fs`: `fs_magic` and the places to look at).
pub(super) fn ufs(probe: &Probe) -> Result<Option<Facts>> {
    for at in [65_536u64, 8192, 0, 262_144] {
        let Some(superblock) = probe.at(at, 1376)? else { continue };
        let (little, big) = (superblock.u32_le(1372), superblock.u32_be(1372));
        for (magic, name) in [(0x0001_1954, "ufs1"), (0x1954_0119, "ufs2")] {
            if little == magic || big == magic {
                return Ok(Some(probe.unread(name)));
            }
        }
    }
    Ok(None)
}

/// Where volume descriptors begin, and their size (ECMA-119 6.2.1).
const DESCRIPTORS_AT: u64 = 32 << 10;
const DESCRIPTOR_BYTES: u64 = 2048;

/// UDF: an `NSR` descriptor among the first (ECMA-167 3/9.1).
pub(super) fn udf(probe: &Probe) -> Result<Option<Facts>> {
    for index in 0..16 {
        let Some(descriptor) = probe.at(DESCRIPTORS_AT + index * DESCRIPTOR_BYTES, 6)? else { break };
        if descriptor.holds(1, b"NSR02") || descriptor.holds(1, b"NSR03") {
            return Ok(Some(probe.unread("udf")));
        }
    }
    Ok(None)
}

/// ISO 9660 (ECMA-119 8.4, primary volume descriptor).
pub(super) fn iso9660(probe: &Probe) -> Result<Option<Facts>> {
    let Some(descriptor) = probe.with_magic(DESCRIPTORS_AT, 2048, 1, b"CD001")? else { return Ok(None) };
    let facts = probe.unread("iso9660").sized(descriptor.u16_le(128).into(), descriptor.u32_le(80).into());
    Ok(Some(facts.label(descriptor.text(40, 32))))
}
