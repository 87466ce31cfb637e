//! File systems of Linux.

use block::Result;

use super::{Probe, Told};
use crate::Facts;

/// F2FS (Linux, `struct f2fs_super_block`).
pub(super) fn f2fs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(superblock) = probe.with_magic(1024, 2048, 0, &0xf2f5_2010u32.to_le_bytes())? else {
        return Ok(None);
    };
    let Some(block_bytes) = power_of_two(superblock.u32_le(16)) else { return Ok(None) };
    let facts = probe.unread("f2fs").sized(block_bytes, superblock.u64_le(36));
    Ok(Some(facts.uuid(superblock.uuid(108)).label(superblock.text_utf16_le(124, 512))))
}

/// Squashfs (Linux, `struct squashfs_super_block`).
pub(super) fn squashfs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(superblock) = probe.with_magic(0, 96, 0, b"hsqs")? else { return Ok(None) };
    let mut facts = probe.unread("squashfs");
    facts.size_bytes = superblock.u64_le(40);
    Ok(Some(facts.detail("version", format!("{}.{}", superblock.u16_le(28), superblock.u16_le(30)))))
}

/// EROFS (Linux, `struct erofs_super_block`).
pub(super) fn erofs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(superblock) = probe.with_magic(1024, 128, 0, &0xe0f5_e1e2u32.to_le_bytes())? else {
        return Ok(None);
    };
    Ok(Some(probe.unread("erofs").uuid(superblock.uuid(48)).label(superblock.text(64, 16))))
}

/// JFS (Linux, `struct jfs_superblock`). Its size counts in 512 bytes.
pub(super) fn jfs(probe: &Probe) -> Result<Option<Facts>> {
    let Some(superblock) = probe.with_magic(32 << 10, 512, 0, b"JFS1")? else { return Ok(None) };
    let mut facts = probe.unread("jfs").uuid(superblock.uuid(136)).label(superblock.text(152, 16));
    facts.cluster_bytes = Some(superblock.u32_le(16).into());
    facts.size_bytes = superblock.u64_le(8).saturating_mul(512);
    Ok(Some(facts))
}

/// ReiserFS (Linux, `struct reiserfs_super_block`), at either of its places.
pub(super) fn reiserfs(probe: &Probe) -> Result<Option<Facts>> {
    for at in [64 << 10, 8 << 10] {
        let Some(superblock) = probe.at(at, 256)? else { continue };
        if [&b"ReIsErFs"[..], b"ReIsEr2Fs", b"ReIsEr3Fs"].iter().any(|magic| superblock.holds(52, magic)) {
            let facts = probe.unread("reiserfs");
            let facts = facts.sized(superblock.u16_le(44).into(), superblock.u32_le(0).into());
            let facts = facts.free(superblock.u32_le(4).into());
            return Ok(Some(facts.uuid(superblock.uuid(84)).label(superblock.text(100, 16))));
        }
    }
    Ok(None)
}

/// GFS2 (Linux, `struct gfs2_sb`).
pub(super) fn gfs2(probe: &Probe) -> Result<Option<Facts>> {
    let magic = b"\x01\x16\x19\x70\0\0\0\x01";
    Ok(probe.with_magic(64 << 10, 512, 0, magic)?.map(|_| probe.unread("gfs2")))
}

/// OCFS2 (Linux, `struct ocfs2_dinode` with `OCFS2_SUPER_BLOCK_SIGNATURE`), in block 2 of any size.
pub(super) fn ocfs2(probe: &Probe) -> Result<Option<Facts>> {
    for at in [1024, 2048, 4096, 8192] {
        if probe.with_magic(at, 64, 0, b"OCFSV2")?.is_some() {
            return Ok(Some(probe.unread("ocfs2")));
        }
    }
    Ok(None)
}

/// NILFS2 (Linux, `struct nilfs_super_block`): the first superblock, or the second in the last whole 4 KiB. Its magic number is short, so that
/// other fields are tested too.
pub(super) fn nilfs2(probe: &Probe) -> Result<Option<Facts>> {
    let second = (probe.len_bytes() / 4096).checked_sub(1).map(|block| block * 4096);
    for at in [Some(1024), second].into_iter().flatten() {
        let Some(superblock) = probe.with_magic(at, 1024, 6, &0x3434u16.to_le_bytes())? else { continue };
        // The block size is stored as the power of two above 1024.
        let Some(block_bytes) = superblock.u32_le(20).checked_add(10).and_then(power_of_two) else {
            continue;
        };
        if superblock.u32_le(0) != 2 || !(256..=1024).contains(&superblock.u16_le(8)) {
            continue;
        }
        let mut facts = probe.unread("nilfs2").uuid(superblock.uuid(152)).label(superblock.text(168, 80));
        facts.cluster_bytes = Some(block_bytes);
        facts.size_bytes = superblock.u64_le(32);
        return Ok(Some(facts));
    }
    Ok(None)
}

/// A block size from its logarithm, if that is of a sane size.
fn power_of_two(log: u32) -> Option<u64> {
    (9..=16).contains(&log).then(|| 1 << log)
}
