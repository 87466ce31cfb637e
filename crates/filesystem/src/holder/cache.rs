//! bcache and bcachefs: several devices as one (Linux, `drivers/md/bcache/bcache_ondisk.h` `struct cache_sb_disk`,
//! `fs/bcachefs/bcachefs_format.h` `struct bch_sb`).

use block::Result;

use super::Holder;
use crate::probe::{Probe, SECTOR_BYTES, Told};

/// Both have a UUID as magic, at one place of their superblocks.
const MAGIC_AT: usize = 24;
const BCACHE: [u8; 16] = *b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: [u8; 16] = *b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const SUPERBLOCK_AT: u64 = 4096;

/// bcache: a cache, or what is cached.
pub(super) fn bcache(probe: &Probe) -> Result<Option<Holder>> {
    let Some(superblock) = probe.with_magic(SUPERBLOCK_AT, 512, MAGIC_AT, &BCACHE)? else { return Ok(None) };
    let what = "belongs to bcache, which keeps a part of its contents elsewhere";
    let holder = Holder::new(probe, "bcache", SUPERBLOCK_AT, what);
    Ok(Some(holder.told(|facts| facts.uuid(superblock.uuid(40)).label(superblock.text(72, 32)))))
}

/// bcachefs: its superblock, and the copies of it at 2 MiB and 1 MiB before the end, which count only where they say that they lie.
pub(super) fn bcachefs(probe: &Probe) -> Result<Option<Holder>> {
    let near_end = probe.len_bytes().checked_sub(1 << 20).map(|at| at / SECTOR_BYTES * SECTOR_BYTES);
    for at in [Some(SUPERBLOCK_AT), Some(2 << 20), near_end].into_iter().flatten() {
        let Some(superblock) = probe.with_magic(at, 512, MAGIC_AT, &BCACHEFS)? else { continue };
        if at != SUPERBLOCK_AT && superblock.u64_le(104) != at / SECTOR_BYTES {
            continue;
        }
        let holder = Holder::new(probe, "bcachefs", at, "is a device of a bcachefs, which is not read");
        return Ok(Some(holder.told(|facts| {
            let facts = facts.uuid(superblock.uuid(56)).label(superblock.text(72, 32));
            facts.detail("devices", superblock.byte(123))
        })));
    }
    Ok(None)
}
