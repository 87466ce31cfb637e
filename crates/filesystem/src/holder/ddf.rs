//! DDF, the common format of RAID controllers (SNIA, Common RAID Disk Data Format 2.0, section 4.1; as mdadm's `super-ddf.c` reads it).

use block::Result;

use super::Holder;
use crate::probe::fields::{Fields, hex};
use crate::probe::{Probe, SECTOR_BYTES, Told};

/// `DDF_HEADER_MAGIC`, big-endian as everything in DDF.
const MAGIC: [u8; 4] = [0xde, 0x11, 0xde, 0x11];

/// The anchor in the last sector, or 256 before it, where controllers that keep the last sectors to themselves have it. It says
/// where the primary header is, which tells the anchor of a disk from one of its last partition.
pub(super) fn ddf(probe: &Probe) -> Result<Option<Holder>> {
    for count in [1, 257] {
        let Some(at) = probe.sector_from_end(count) else { continue };
        let Some(anchor) = probe.with_magic(at, 512, 0, &MAGIC)? else { continue };
        let primary_at = anchor.u64_be(96).checked_mul(SECTOR_BYTES);
        let has_primary = match primary_at {
            Some(at) if at > 0 => probe.with_magic(at, 4, 0, &MAGIC)?.is_some(),
            _ => false,
        };
        let what = "is a member of a RAID array (DDF), which is not assembled";
        let holder = Holder::new(probe, "ddf-raid", at, what).removed_by("mdadm --zero-superblock");
        let holder = holder.with_checksum(is_checksum_right(&anchor)).certain_if(has_primary);
        return Ok(Some(holder.told(|facts| {
            let guid = anchor.array::<24>(8);
            facts.uuid(Some(hex(&guid))).detail("version", anchor.text(32, 8).unwrap_or_default())
        })));
    }
    Ok(None)
}

/// CRC32 of the header, the checksum itself as ones.
fn is_checksum_right(anchor: &Fields) -> bool {
    let mut covered = anchor.0.clone();
    covered[4..8].fill(0xff);
    crc32fast::hash(&covered) == anchor.u32_be(4)
}
