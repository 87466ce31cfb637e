//! The headers of a group: which trees it has, and the blocks that it keeps for them.

use std::mem::offset_of;

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

use super::corrupt::Corrupt;
use super::layout::{NO_INODE, RawFree, RawFreeList, RawInodes};
use super::seal::crc_holds;
use super::superblock::{GroupBlock, GroupNumber, Superblock};
use super::tree::Root;
use crate::Source;

/// The most levels of a tree that is believed: the kernel's `XFS_BTREE_MAXLEVELS`.
const LEVELS_MAX: u32 = 9;

/// The trees of free space of a group, and what its header counts.
pub(super) struct Free {
    pub(super) by_place: Root,
    pub(super) by_length: Root,
    pub(super) reverse_map: Option<Root>,
    pub(super) references: Option<Root>,
    pub(super) free_blocks: u32,
    pub(super) longest: u32,
    /// Blocks of the trees of free space and of the reverse map, but for their roots. `None` if that is not counted.
    pub(super) tree_blocks: Option<u32>,
    pub(super) reference_blocks: u32,
    pub(super) reverse_map_blocks: u32,
    /// Blocks that are kept for the trees: free, but in none of them.
    pub(super) kept: Vec<GroupBlock>,
}

/// The trees of inodes of a group, and what its header counts.
pub(super) struct Inodes {
    pub(super) all: Root,
    pub(super) with_free: Option<Root>,
    /// How many blocks either tree has, if that is counted.
    pub(super) all_blocks: Option<u32>,
    pub(super) with_free_blocks: Option<u32>,
    pub(super) count: u32,
    pub(super) free_count: u32,
    /// Whether there are inodes without names.
    pub(super) has_unlinked: bool,
}

/// A header of which magic number, number and what its version has of checksum and UUID were checked.
struct Sector<'a> {
    what: &'static str,
    group: GroupNumber,
    bytes: &'a [u8],
}

impl Sector<'_> {
    fn wrong(&self, name: &str, found: u64, expected: &str) -> Error {
        let Self { what, group, .. } = *self;
        Error::corrupt(Corrupt::Header { what, group }).field(name, found, expected)
    }

    fn check(
        &self,
        magic: &[u8; 4],
        (number, lsn): (u32, u64),
        uuid: [u8; 16],
        crc_at: usize,
        superblock: &Superblock,
    ) -> Result<()> {
        if !self.bytes.starts_with(magic) {
            return Err(self.wrong("magic", 0, "its own"));
        }
        if superblock.has_checksums && !crc_holds(self.bytes, crc_at) {
            return Err(self.wrong("crc", 0, "that of the sector"));
        }
        if superblock.has_checksums && !superblock.is_past(lsn) {
            return Err(self.wrong("lsn", lsn, "a place before the log's end"));
        }
        if superblock.has_checksums && uuid != superblock.meta_uuid {
            return Err(self.wrong("uuid", 0, "that of the volume"));
        }
        if number == self.group {
            Ok(())
        } else {
            Err(self.wrong("seqno", number.into(), "the group's number"))
        }
    }

    /// A tree's root that lies in the group.
    fn root(&self, superblock: &Superblock, root: Root, name: &str) -> Result<Root> {
        if superblock.in_group(self.group, root.block).is_none() {
            return Err(self.wrong(name, root.block.into(), "a block of the group"));
        }
        let is_level = (1..=LEVELS_MAX).contains(&root.levels);
        if is_level {
            Ok(root)
        } else {
            Err(self.wrong(&format!("levels of {name}"), root.levels.into(), "1 to 9"))
        }
    }
}

/// Reads the second and the fourth sector of a group.
pub(super) fn read_free(source: &Source, superblock: &Superblock, group: GroupNumber) -> Result<Free> {
    use super::layout::ro_compat::{REFLINK, RMAPBT};
    use super::tree::{BY_LENGTH, BY_PLACE, REFERENCES, REVERSE_MAP};
    let at = superblock.header_at(group, 1);
    let bytes = read_vec(&**source, at, superblock.sector_bytes.into(), "XFS AGF")?;
    let sector = Sector { what: "AGF", group, bytes: &bytes };
    let (raw, _) = RawFree::read_from_prefix(&bytes).expect("a sector is longer");
    sector.check(
        b"XAGF",
        (raw.seqno.get(), raw.lsn.get()),
        raw.uuid,
        offset_of!(RawFree, crc),
        superblock,
    )?;
    if raw.versionnum.get() != 1 || raw.length.get() != superblock.blocks_of(group) {
        return Err(sector.wrong("length", raw.length.get().into(), "that of the group").at(at));
    }
    let root = |kind, index: usize, name| {
        let root = Root { kind, block: raw.roots[index].get(), levels: raw.levels[index].get() };
        sector.root(superblock, root, name)
    };
    let reverse_map = superblock.has_ro(RMAPBT).then(|| root(&REVERSE_MAP, 2, "rmap_root")).transpose()?;
    let references =
        Root { kind: &REFERENCES, block: raw.refcount_root.get(), levels: raw.refcount_level.get() };
    let references = superblock.has_ro(REFLINK).then(|| sector.root(superblock, references, "refcount_root"));
    Ok(Free {
        by_place: root(&BY_PLACE, 0, "bno_root")?,
        by_length: root(&BY_LENGTH, 1, "cnt_root")?,
        reverse_map,
        references: references.transpose()?,
        free_blocks: raw.freeblks.get(),
        longest: raw.longest.get(),
        tree_blocks: superblock.counts_tree_blocks.then_some(raw.btreeblks.get()),
        reference_blocks: raw.refcount_blocks.get(),
        reverse_map_blocks: raw.rmap_blocks.get(),
        kept: read_kept(source, superblock, group, &raw)?,
    })
}

/// The blocks that are kept for the trees: a ring in the fourth sector.
fn read_kept(
    source: &Source,
    superblock: &Superblock,
    group: GroupNumber,
    free: &RawFree,
) -> Result<Vec<GroupBlock>> {
    let at = superblock.header_at(group, 3);
    let bytes = read_vec(&**source, at, superblock.sector_bytes.into(), "XFS AGFL")?;
    let sector = Sector { what: "AGFL", group, bytes: &bytes };
    let (raw, rest) = RawFreeList::read_from_prefix(&bytes).expect("a sector is longer");
    // In version 4 it is numbers and nothing else.
    let numbers = if superblock.has_checksums {
        sector.check(
            b"XAFL",
            (raw.seqno.get(), raw.lsn.get()),
            raw.uuid,
            offset_of!(RawFreeList, crc),
            superblock,
        )?;
        rest
    } else {
        &bytes
    };
    let slots: Vec<GroupBlock> =
        numbers.chunks_exact(4).map(|slot| U32::read_from_bytes(slot).expect("4 bytes").get()).collect();
    let size = u32::try_from(slots.len()).expect("those of a sector");
    let (first, last, count) = (free.flfirst.get(), free.fllast.get(), free.flcount.get());
    let is_ring =
        first < size && last < size && count <= size && (count == 0 || (first + count - 1) % size == last);
    if !is_ring {
        return Err(sector.wrong("flcount", count.into(), "as many as from flfirst to fllast"));
    }
    let kept = (0..count).map(|index| slots[((first + index) % size) as usize]);
    kept.map(|block| {
        let is_there = superblock.in_group(group, block).is_some();
        if is_there { Ok(block) } else { Err(sector.wrong("bno", block.into(), "a block of the group")) }
    })
    .collect()
}

/// Reads the third sector of a group.
pub(super) fn read_inodes(source: &Source, superblock: &Superblock, group: GroupNumber) -> Result<Inodes> {
    use super::layout::ro_compat::{FINOBT, INOBTCNT};
    use super::tree::{INODES, INODES_WITH_FREE};
    let at = superblock.header_at(group, 2);
    let bytes = read_vec(&**source, at, superblock.sector_bytes.into(), "XFS AGI")?;
    let sector = Sector { what: "AGI", group, bytes: &bytes };
    let (raw, _) = RawInodes::read_from_prefix(&bytes).expect("a sector is longer");
    sector.check(
        b"XAGI",
        (raw.seqno.get(), raw.lsn.get()),
        raw.uuid,
        offset_of!(RawInodes, crc),
        superblock,
    )?;
    if raw.versionnum.get() != 1 || raw.length.get() != superblock.blocks_of(group) {
        return Err(sector.wrong("length", raw.length.get().into(), "that of the group").at(at));
    }
    let all = Root { kind: &INODES, block: raw.root.get(), levels: raw.level.get() };
    let with_free =
        Root { kind: &INODES_WITH_FREE, block: raw.free_root.get(), levels: raw.free_level.get() };
    let with_free = superblock.has_ro(FINOBT).then(|| sector.root(superblock, with_free, "free_root"));
    Ok(Inodes {
        all: sector.root(superblock, all, "root")?,
        with_free: with_free.transpose()?,
        all_blocks: superblock.has_ro(INOBTCNT).then_some(raw.iblocks.get()),
        with_free_blocks: superblock.has_ro(INOBTCNT).then_some(raw.fblocks.get()),
        count: raw.count.get(),
        free_count: raw.freecount.get(),
        has_unlinked: raw.unlinked.iter().any(|first| first.get() != NO_INODE),
    })
}
