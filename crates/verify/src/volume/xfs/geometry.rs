//! Where the parts of an XFS volume lie, and who owns which block.
//!
//! Source: "XFS Algorithms & Data Structures", third edition; offsets are those of `xfs_format.h`.

use std::ops::Range;

use block::{Error, ReadAt, Result, read_vec};
use extent::VolumeOffset;

use super::corrupt::CorruptXfs;
use crate::volume::Source;
use crate::volume::bits::{Bits, WINDOW_MAX};

pub(super) struct Geometry<'a> {
    pub(super) source: &'a Source,
    /// In version 5 metadata have checksums, and say where they lie and whose they are; in version 4 they do not.
    pub(super) is_sealed: bool,
    /// Whether a group counts the blocks of its trees.
    pub(super) counts_trees: bool,
    pub(super) block_bytes: u64,
    pub(super) sector_bytes: u64,
    pub(super) blocks: u64,
    pub(super) group_blocks: u64,
    pub(super) groups: u64,
    pub(super) group_log: u64,
    pub(super) inode_bytes: u64,
    pub(super) inode_log: u64,
    pub(super) directory_bytes: u64,
    pub(super) uuid: Vec<u8>,
    pub(super) ro_compat: u64,
    pub(super) incompat: u64,
    pub(super) log: Range<u64>,
    /// What the superblock counts: inodes, free ones, free blocks.
    pub(super) counted: [u64; 3],
    pub(super) owned: Bits,
    /// What files share: blocks, how many files do, and blocks of all references that were met.
    pub(super) shared: Vec<(Range<u64>, u64, u64)>,
}

/// A number of `len` bytes, the most significant first.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Whether the checksum at `at`, whose least significant byte comes first, is that of `bytes` with zeros in its place.
pub(super) fn is_sealed(bytes: &[u8], at: usize) -> bool {
    let mut blank = bytes.to_vec();
    blank[at..at + 4].fill(0);
    bytes[at..at + 4] == crc32c::crc32c(&blank).to_le_bytes()
}

pub(in crate::volume) fn is_xfs(source: &Source) -> Result<bool> {
    Ok(source.len_bytes() >= 512 && read_vec(source, VolumeOffset::ZERO, 4, "XFS superblock")? == b"XFSB")
}

pub(super) fn header(what: &'static str, group: u64) -> Error {
    Error::corrupt(CorruptXfs::Header { what, group })
}

impl<'a> Geometry<'a> {
    pub(super) fn open(source: &'a Source) -> Result<Self> {
        let head = read_vec(source, VolumeOffset::ZERO, 512, "XFS superblock")?;
        let wrong = || header("superblock", 0);
        let (version, block_log, sector_log) =
            (number(&head, 100, 2) & 15, number(&head, 120, 1), number(&head, 121, 1));
        let is_sealed_version = version == 5;
        // Bits of `sb_features2` and its double: lazy counters, attributes 2, 32 bits for projects, types of entries.
        let more = number(&head, 200, 4) | number(&head, 204, 4);
        let has_more = number(&head, 100, 2) & 0x8000 != 0;
        // Of version 4: unwritten extents and directories of version 2 it must have, a shared volume it must not be.
        let is_known = number(&head, 100, 2) & 0x3200 == 0x3000 && (!has_more || more & !0x28a == 0);
        let is_read = is_sealed_version || (version == 4 && is_known);
        if !is_read {
            return Err(Error::unsupported("XFS of such a version cannot be checked"));
        }
        let (inode_log, per_block_log, group_log) =
            (number(&head, 122, 1), number(&head, 123, 1), number(&head, 124, 1));
        let is_shape = (if is_sealed_version { 10 } else { 9 }..=16).contains(&block_log)
            && (9..=block_log).contains(&sector_log)
            && (if is_sealed_version { 9 } else { 8 }..=11).contains(&inode_log)
            && inode_log + per_block_log == block_log
            && per_block_log <= 6
            && group_log < 32
            && number(&head, 192, 1) + block_log <= 16;
        if !is_shape {
            return Err(wrong());
        }
        let sector = read_vec(source, VolumeOffset::ZERO, 1 << sector_log, "XFS superblock")?;
        if is_sealed_version && !is_sealed(&sector, 224) {
            return Err(wrong());
        }
        let (blocks, group_blocks, groups) =
            (number(&head, 8, 8), number(&head, 84, 4), number(&head, 88, 4));
        let is_there = groups > 0
            && group_blocks <= 1 << group_log
            && blocks <= groups * group_blocks
            && blocks > (groups - 1) * group_blocks
            && blocks <= source.len_bytes() >> block_log;
        if !is_there {
            return Err(wrong());
        }
        if blocks > WINDOW_MAX {
            return Err(Error::unsupported(format!(
                "XFS of more than {WINDOW_MAX} blocks cannot be checked"
            )));
        }
        let (ro_compat, incompat) = match is_sealed_version {
            true => (number(&head, 212, 4), number(&head, 216, 4)),
            false => (0, u64::from(has_more && more & 0x200 != 0)),
        };
        let has_own_uuid = incompat & 4 != 0;
        if ro_compat & !0xf != 0 || incompat & !0xff != 0 || incompat & 0x10 != 0 || number(&head, 16, 8) != 0
        {
            return Err(Error::unsupported("XFS with such features cannot be checked"));
        }
        let mut geometry = Self {
            source,
            is_sealed: is_sealed_version,
            counts_trees: is_sealed_version || (has_more && more & 2 != 0),
            block_bytes: 1 << block_log,
            sector_bytes: 1 << sector_log,
            blocks,
            group_blocks,
            groups,
            group_log,
            inode_bytes: 1 << inode_log,
            inode_log: per_block_log,
            directory_bytes: 1 << (number(&head, 192, 1) + block_log),
            uuid: if has_own_uuid { head[248..264].to_vec() } else { head[32..48].to_vec() },
            ro_compat,
            incompat,
            log: 0..0,
            counted: [number(&head, 128, 8), number(&head, 136, 8), number(&head, 144, 8)],
            owned: Bits::none(0..blocks),
            shared: Vec::new(),
        };
        let log = geometry.block_of(number(&head, 48, 8)).filter(|_| number(&head, 48, 8) != 0);
        let log = log.ok_or_else(|| Error::unsupported("XFS with its log elsewhere cannot be checked"))?;
        geometry.log = log..log + number(&head, 96, 4);
        Ok(geometry)
    }

    /// How many blocks a group has.
    pub(super) fn len_of(&self, group: u64) -> u64 {
        self.group_blocks.min(self.blocks - group * self.group_blocks)
    }

    /// The number, without gaps, of a block that is named for the whole volume.
    pub(super) fn block_of(&self, name: u64) -> Option<u64> {
        let (group, within) = (name >> self.group_log, name & ((1 << self.group_log) - 1));
        (group < self.groups && within < self.len_of(group)).then(|| group * self.group_blocks + within)
    }

    pub(super) fn place_of(&self, block: u64) -> VolumeOffset {
        VolumeOffset::new(block * self.block_bytes)
    }

    /// A sector of a group's headers, of which magic number and group are right, and in version 5 checksum and UUID.
    pub(super) fn header(
        &self,
        group: u64,
        index: u64,
        magic: &'static str,
        at: [usize; 2],
    ) -> Result<Vec<u8>> {
        let [uuid_at, crc_at] = at;
        let place = self.place_of(group * self.group_blocks).plus(index * self.sector_bytes);
        let bytes = read_vec(self.source, place, self.sector_bytes, "XFS header")?;
        // In version 4 the list of kept blocks has no header.
        if !self.is_sealed && magic == "XAFL" {
            return Ok(bytes);
        }
        let is_its = bytes.starts_with(magic.as_bytes());
        let is_its = is_its && (!self.is_sealed || is_sealed(&bytes, crc_at));
        let is_its = is_its && (!self.is_sealed || bytes[uuid_at..uuid_at + 16] == *self.uuid);
        let number_at = if magic == "XAFL" { 4 } else { 8 };
        let is_its = is_its && (magic == "XFSB" || number(&bytes, number_at, 4) == group);
        if is_its { Ok(bytes) } else { Err(header(magic, group)) }
    }

    /// Makes blocks owned, which nobody did before. They lie in one group.
    pub(super) fn own(&mut self, blocks: Range<u64>) -> Result<()> {
        let group = blocks.start / self.group_blocks;
        if group >= self.groups || blocks.end > group * self.group_blocks + self.len_of(group) {
            return Err(Error::corrupt(CorruptXfs::Shared(blocks.start)));
        }
        match self.owned.add(blocks) {
            None => Ok(()),
            Some(twice) => Err(Error::corrupt(CorruptXfs::Shared(twice))),
        }
    }

    /// Makes blocks of a regular file owned, which others may share as often as was counted.
    pub(super) fn refer(&mut self, blocks: Range<u64>) -> Result<()> {
        let first = self.shared.partition_point(|(shared, ..)| shared.end <= blocks.start);
        let mut at = blocks.start;
        for index in first..self.shared.len() {
            let (shared, _, met) = &mut self.shared[index];
            if shared.start >= blocks.end {
                break;
            }
            let (start, end) = (shared.start.max(at), shared.end.min(blocks.end));
            *met += end - start;
            self.own(at..start)?;
            at = end;
        }
        self.own(at..blocks.end)
    }
}
