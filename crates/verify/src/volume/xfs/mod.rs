//! XFS, checked group by group and inode by inode, and what of it stays.
//!
//! That its log is empty is left to who opens it: of a log nothing is read here.

mod corrupt;
mod directory;
mod geometry;
mod inode;
pub(super) mod snapshot;
mod tree;

use block::{Error, Result, read_vec};

use super::{Scope, Source, VolumeReport};
pub use corrupt::CorruptXfs;
pub(super) use geometry::is_xfs;
use geometry::{Geometry, header, number};
use inode::Inode;
use tree::{BY_LENGTH, BY_PLACE, FREE_INODES, INODES, Kind, Owner, REFERENCES, REVERSE};

/// Sums over all groups, as the superblock has them: inodes, free ones, free blocks.
type Sums = [u64; 3];

/// Checks headers, trees, inodes and extents, that each block is free or has one owner, and, of all scopes but owners, directories.
pub(super) fn check(source: &Source, scope: Scope) -> Result<VolumeReport> {
    let mut report = VolumeReport { filesystem: "xfs", ..VolumeReport::default() };
    let (geometry, free) = walk(source, &mut |geometry, inode| {
        *if inode.is_directory() { &mut report.directories } else { &mut report.files } += 1;
        if inode.is_directory() && scope == Scope::All {
            report.names += directory::count_names(geometry, inode)?;
        }
        Ok(())
    })?;
    report.used_bytes = (geometry.blocks - free) * geometry.block_bytes;
    Ok(report)
}

/// Shows `each` all inodes in use. Answers how many blocks are free.
fn walk<'a>(
    source: &'a Source,
    each: &mut dyn FnMut(&Geometry<'_>, &Inode) -> Result<()>,
) -> Result<(Geometry<'a>, u64)> {
    let mut geometry = Geometry::open(source)?;
    let (mut sums, mut free, mut chunks): (Sums, u64, Vec<(u64, Vec<u8>)>) = ([0; 3], 0, Vec::new());
    geometry.own(geometry.log.clone())?;
    for group in 0..geometry.groups {
        check_group(&mut geometry, group, &mut sums, &mut free)?;
        chunks.push((group, check_inodes(&mut geometry, group, &mut sums)?));
    }
    if sums != geometry.counted {
        return Err(header("superblock", 0).field("icount, ifree, fdblocks", sums[2], geometry.counted[2]));
    }
    for (group, records) in chunks {
        for record in records.chunks_exact(16) {
            read_chunk(&mut geometry, group, record, each)?;
        }
    }
    let unowned = geometry.blocks - geometry.owned.count(0..geometry.blocks);
    if unowned > 0 {
        return Err(Error::corrupt(CorruptXfs::Unowned(unowned)));
    }
    let off = geometry
        .shared
        .iter()
        .find(|(blocks, count, met)| (blocks.end - blocks.start).saturating_mul(*count) != *met);
    match off {
        Some((blocks, ..)) => Err(Error::corrupt(CorruptXfs::References(blocks.start))),
        None => Ok((geometry, free)),
    }
}

/// A tree of a group, from its root.
fn read_tree(
    geometry: &mut Geometry<'_>,
    group: u64,
    kind: &Kind,
    root: &[u8],
    at: [usize; 2],
) -> Result<(Vec<u8>, u64)> {
    let (name, levels) = (number(root, at[0], 4), number(root, at[1], 4));
    if levels == 0 || levels > 9 {
        return Err(header("tree", group));
    }
    tree::read(geometry, kind, Owner::Group(group), vec![name], levels)
}

/// Free space of a group, and what files share. Free blocks are owned by nobody else.
fn check_group(geometry: &mut Geometry<'_>, group: u64, sums: &mut Sums, free: &mut u64) -> Result<()> {
    let start = group * geometry.group_blocks;
    geometry.own(start..start + (4 * geometry.sector_bytes).div_ceil(geometry.block_bytes))?;
    geometry.header(group, 0, "XFSB", [if geometry.incompat & 4 != 0 { 248 } else { 32 }, 224])?;
    let head = geometry.header(group, 1, "XAGF", [64, 216])?;
    let list = geometry.header(group, 3, "XAFL", [8, 32])?;
    let wrong = || header("XAGF", group);
    if number(&head, 12, 4) != geometry.len_of(group) {
        return Err(wrong());
    }
    let (by_length, length_blocks) = read_tree(geometry, group, &BY_LENGTH, &head, [20, 32])?;
    let (by_place, place_blocks) = read_tree(geometry, group, &BY_PLACE, &head, [16, 28])?;
    let mut tree_blocks = length_blocks + place_blocks - 2;
    let mut sorted: Vec<_> =
        by_length.chunks_exact(8).map(|it| (number(it, 0, 4), number(it, 4, 4))).collect();
    sorted.sort_unstable();
    if !by_place.chunks_exact(8).map(|it| (number(it, 0, 4), number(it, 4, 4))).eq(sorted.iter().copied()) {
        return Err(wrong());
    }
    let mut found = 0;
    for (first, count) in sorted {
        geometry.own(start + first..start + first + count)?;
        found += count;
    }
    // Before the numbers of kept blocks.
    let header_bytes = if geometry.is_sealed { 36 } else { 0 };
    let slots = (geometry.sector_bytes - header_bytes) / 4;
    let (first, kept) = (number(&head, 40, 4), number(&head, 48, 4));
    if kept > slots || first >= slots {
        return Err(wrong());
    }
    for index in 0..kept {
        let slot = usize::try_from(header_bytes + (first + index) % slots * 4).map_err(|_| wrong())?;
        let block = start + number(&list, slot, 4);
        geometry.own(block..block + 1)?;
    }
    if geometry.ro_compat & 2 != 0 {
        tree_blocks += read_tree(geometry, group, &REVERSE, &head, [24, 36])?.1 - 1;
    }
    if number(&head, 52, 4) != found || (geometry.counts_trees && number(&head, 60, 4) != tree_blocks) {
        return Err(wrong());
    }
    if geometry.ro_compat & 4 != 0 {
        let (records, blocks) = read_tree(geometry, group, &REFERENCES, &head, [88, 92])?;
        share(geometry, group, &records)?;
        if number(&head, 84, 4) != blocks {
            return Err(wrong());
        }
    }
    *free += found + kept;
    sums[2] += found + kept + tree_blocks;
    Ok(())
}

/// What files share: owned once, and to be met as often as counted. What is staged for a write is owned by that.
fn share(geometry: &mut Geometry<'_>, group: u64, records: &[u8]) -> Result<()> {
    for record in records.chunks_exact(12) {
        let (first, count, references) = (number(record, 0, 4), number(record, 4, 4), number(record, 8, 4));
        let start = group * geometry.group_blocks + (first & 0x7fff_ffff);
        geometry.own(start..start + count)?;
        let is_staged = first >> 31 == 1;
        let is_behind = geometry.shared.last().is_none_or(|(last, ..)| last.end <= start);
        if is_staged != (references == 1) || references == 0 || !(is_staged || is_behind) {
            return Err(Error::corrupt(CorruptXfs::References(start)));
        }
        if !is_staged {
            geometry.shared.push((start..start + count, references, 0));
        }
    }
    Ok(())
}

/// Which of the 64 inodes of a chunk are there, and which of those are free.
fn there_and_free(geometry: &Geometry<'_>, record: &[u8]) -> (u64, u64) {
    let holes = if geometry.incompat & 2 != 0 { number(record, 4, 2) } else { 0 };
    let there = (0..64).filter(|bit| holes >> (bit / 4) & 1 == 0).fold(0, |all, bit| all | 1 << bit);
    (there, number(record, 8, 8) & there)
}

/// The trees of inodes of a group; answers the records of all chunks.
fn check_inodes(geometry: &mut Geometry<'_>, group: u64, sums: &mut Sums) -> Result<Vec<u8>> {
    let head = geometry.header(group, 2, "XAGI", [296, 312])?;
    let (all, _) = read_tree(geometry, group, &INODES, &head, [20, 24])?;
    let (mut count, mut free, mut with_free) = (0, 0, Vec::new());
    let mut end = 0;
    for record in all.chunks_exact(16) {
        let (there, unused) = there_and_free(geometry, record);
        count += u64::from(there.count_ones());
        free += u64::from(unused.count_ones());
        if unused != 0 {
            with_free.extend_from_slice(record);
        }
        let first = number(record, 0, 4);
        if first < end || !first.is_multiple_of(1 << geometry.inode_log) {
            return Err(header("XAGI", group));
        }
        end = first + 64;
        for inode in (0..64_u64).step_by(1 << geometry.inode_log).filter(|inode| there >> inode & 1 == 1) {
            let block = group * geometry.group_blocks + ((first + inode) >> geometry.inode_log);
            geometry.own(block..block + 1)?;
        }
    }
    if geometry.ro_compat & 1 != 0
        && read_tree(geometry, group, &FREE_INODES, &head, [328, 332])?.0 != with_free
    {
        return Err(header("XAGI", group));
    }
    if number(&head, 16, 4) != count || number(&head, 28, 4) != free {
        return Err(header("XAGI", group));
    }
    sums[0] += count;
    sums[1] += free;
    Ok(all)
}

/// Reads the inodes of a chunk that are there.
fn read_chunk(
    geometry: &mut Geometry<'_>,
    group: u64,
    record: &[u8],
    each: &mut dyn FnMut(&Geometry<'_>, &Inode) -> Result<()>,
) -> Result<()> {
    let (there, free) = there_and_free(geometry, record);
    let first = number(record, 0, 4);
    let per_block = 1 << geometry.inode_log;
    for index in (0..64).step_by(per_block).filter(|index| there >> index & 1 == 1) {
        let block = group * geometry.group_blocks + ((first + index as u64) >> geometry.inode_log);
        let bytes = read_vec(geometry.source, geometry.place_of(block), geometry.block_bytes, "XFS inodes")?;
        let size = usize::try_from(geometry.inode_bytes).expect("at most 2 KiB");
        for (offset, bytes) in bytes.chunks_exact(size).enumerate().take(64 - index) {
            let bit = index + offset;
            let name = group << (geometry.group_log + geometry.inode_log) | (first + bit as u64);
            let inode = inode::read(geometry, name, bytes)?;
            if inode.is_none() != (free >> bit & 1 == 1) || there >> bit & 1 == 0 {
                return Err(inode::wrong(name));
            }
            if let Some(inode) = inode {
                each(geometry, &inode)?;
            }
        }
    }
    Ok(())
}
