//! md, the RAID of Linux (`include/uapi/linux/raid/md_p.h`; md(4), "FORMATS").

use block::Result;

use super::{Holder, sum_u32};
use crate::Facts;
use crate::probe::fields::Fields;
use crate::probe::{Probe, SECTOR_BYTES, Scope, Told};

/// The magic number of both kinds of superblocks, `MD_SB_MAGIC`.
const MAGIC: u32 = 0xa92b_4efc;
const REMEDY: &str = "mdadm --zero-superblock";

/// The most bytes of a superblock: `MD_SB_BYTES`, and what version 1 with all its devices takes.
const SUPERBLOCK_BYTES: usize = 4096;
/// Where the roles of the devices begin in version 1: what comes before is of a fixed size.
const ROLES_AT: usize = 256;

/// Superblocks of version 1 (`struct mdp_superblock_1`): at the start (1.1), 4 KiB from it (1.2), or 8 to 12 KiB before the end (1.0). Each says
/// where it lies, so that one of a disk is not taken for one of its last partition.
pub(super) fn md_1(probe: &Probe) -> Result<Option<Holder>> {
    let near_end = probe.sector_from_end(16).map(|at| at / 4096 * 4096);
    for (at, version) in [(near_end, "1.0"), (Some(0), "1.1"), (Some(4096), "1.2")] {
        let Some(at) = at else { continue };
        let Some(superblock) = probe.with_magic(at, ROLES_AT, 0, &MAGIC.to_le_bytes())? else { continue };
        if superblock.u32_le(4) != 1 || superblock.u64_le(144) != at / SECTOR_BYTES {
            continue;
        }
        let is_checksum_right = is_checksum_1_right(probe, at, &superblock)?;
        let (level, disk_count) = (superblock.u32_le(72), superblock.u32_le(92));
        let holder = member(probe, at, version).with_checksum(is_checksum_right);
        return Ok(Some(holder.told(|facts| {
            let facts = facts.uuid(superblock.uuid(16)).label(superblock.text(32, 32));
            described(facts, version, level, disk_count)
        })));
    }
    Ok(None)
}

/// The sum over the superblock up to the last device's role, its upper half added to the lower (`calc_sb_1_csum`).
fn is_checksum_1_right(probe: &Probe, at: u64, superblock: &Fields) -> Result<bool> {
    const CHECKSUM_AT: usize = 216;
    let device_count_max = (SUPERBLOCK_BYTES - ROLES_AT) / 2;
    let device_count = superblock.u32_le(220) as usize;
    if device_count > device_count_max {
        return Ok(false);
    }
    let len = ROLES_AT + 2 * device_count;
    let Some(mut all) = probe.at(at, len)? else { return Ok(false) };
    all.0[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    // Of an odd number of devices the last role is half a word.
    all.0.resize(len.next_multiple_of(4), 0);
    Ok(folded(sum_u32(&all.0)) == superblock.u32_le(CHECKSUM_AT))
}

/// A sum of 32-bit words as the superblock keeps it.
fn folded(sum: u64) -> u32 {
    let low = u32::try_from(sum & 0xffff_ffff).expect("masked");
    low.wrapping_add(u32::try_from(sum >> 32).expect("shifted"))
}

/// Superblocks of version 0.90 (`mdp_super_t`), in the last whole 64 KiB, in the byte order of the machine. They do not say
/// where they lie: of a disk and of its last partition they can be in one place. Then the size of the member tells.
pub(super) fn md_0_90(probe: &Probe) -> Result<Option<Holder>> {
    const AREA_BYTES: u64 = 64 << 10;
    let Some(at) = (probe.len_bytes() / AREA_BYTES).checked_sub(1).map(|area| area * AREA_BYTES) else {
        return Ok(None);
    };
    let Some(superblock) = probe.at(at, SUPERBLOCK_BYTES)? else { return Ok(None) };
    let Some(words) = Words::of(&superblock) else { return Ok(None) };
    // Version 1 has the same magic number; where it lies is for its own recogniser to judge.
    if words.at(4) != 0 {
        return Ok(None);
    }
    // In KiB; what the array uses of the member lies before the superblock.
    let member_bytes = u64::from(words.at(32)) << 10;
    let fits = member_bytes <= at;
    if !fits && probe.scope() == Scope::Partition {
        return Ok(None);
    }
    let (level, disk_count) = (words.at(28), words.at(40));
    // The array's UUID lies in two pieces, as words of the machine's byte order.
    let uuid = [20, 52, 56, 60].map(|at| words.at(at).to_be_bytes()).concat();
    let holder = member(probe, at, "0.90").with_checksum(words.is_checksum_right()).certain_if(fits);
    Ok(Some(holder.told(|facts| described(facts.uuid(Fields(uuid).uuid(0)), "0.90", level, disk_count))))
}

/// A superblock of version 0.90, which is nothing but words of 32 bits.
struct Words<'a> {
    superblock: &'a Fields,
    is_big_endian: bool,
}

impl<'a> Words<'a> {
    fn of(superblock: &'a Fields) -> Option<Self> {
        let is_big_endian = superblock.u32_be(0) == MAGIC;
        (is_big_endian || superblock.u32_le(0) == MAGIC).then_some(Self { superblock, is_big_endian })
    }

    fn at(&self, at: usize) -> u32 {
        if self.is_big_endian { self.superblock.u32_be(at) } else { self.superblock.u32_le(at) }
    }

    /// The sum of all words but the checksum itself (`calc_sb_csum`).
    fn is_checksum_right(&self) -> bool {
        const CHECKSUM_AT: usize = 152;
        let words = (0..SUPERBLOCK_BYTES).step_by(4).filter(|at| *at != CHECKSUM_AT);
        let sum = words.map(|at| u64::from(self.at(at))).fold(0, u64::wrapping_add);
        folded(sum) == self.at(CHECKSUM_AT)
    }
}

fn member(probe: &Probe, at: u64, version: &str) -> Holder {
    let what = format!("is a member of a RAID array (md {version}), which is not assembled");
    Holder::new(probe, "md-raid", at, what).removed_by(REMEDY)
}

fn described(facts: Facts, version: &str, level: u32, disk_count: u32) -> Facts {
    let level = match level {
        // -1 and -4 as Linux stores them.
        0xffff_ffff => "linear".into(),
        0xffff_fffc => "multipath".into(),
        level => level.to_string(),
    };
    facts.detail("version", version).detail("level", level).detail("disks", disk_count)
}
