//! The full check: every block of the volume is free or has its owners, all trees and counters agree.

use block::{Error, Result};

use super::corrupt::Corrupt;
use super::fork::{self, Met as ForkMet};
use super::group::{self, Free, Inodes};
use super::inode::{self, Fork, Inode, mode};
use super::inodes::{each_inode, each_read_ahead};
use super::layout::{reverse, ro_compat};
use super::ledger::{Ledger, merged};
use super::log::Unfinished;
use super::reverse::{Comparison, Owner, parse as parse_reverse};
use super::space::{self, Blocks, Chunk, Met};
use super::superblock::{self, BlockNumber, GroupBlock, GroupNumber, Superblock};
use super::tree::{self, Root, Step};
use crate::Source;
use crate::digest::Digest;

/// How long a file may be (`XFS_MAX_FILEOFF`).
const FILE_BYTES_MAX: u64 = 1 << 63;
/// Headers of a group: superblock, `AGF`, `AGI`, `AGFL`.
const HEADER_SECTORS: u32 = 4;

/// Fails with the first contradiction.
///
/// Of a volume whose log was `replayed` the superblock's counters are not what is there: the kernel counts anew. What is to be freed has
/// no other owner yet, and what else the log has not finished any number of them.
pub(super) fn check(source: &Source, superblock: &Superblock, replayed: Option<&Unfinished>) -> Result<()> {
    superblock.check_own_files()?;
    let unfinished = replayed.unwrap_or(&NOTHING);
    let left_out = unfinished.freed.iter().chain(&unfinished.changing).copied();
    let mut check = Check {
        source,
        superblock,
        is_replayed: replayed.is_some(),
        ledger: Ledger::new(superblock, unfinished)?,
        reverse: superblock.has_ro(ro_compat::RMAPBT).then(|| Comparison::new(merged(left_out))),
        sums: Sums::default(),
        chunks: Vec::new(),
    };
    for group in 0..superblock.group_count {
        check.group(group)?;
    }
    if let Some((first, count)) = superblock.log {
        check.ledger.own(first, count.into(), || "the log".into())?;
        check.meet(first, count.into(), Owner::of_volume(reverse::LOG));
    }
    if replayed.is_none() {
        check.sums.check(superblock)?;
    }
    let chunks = std::mem::take(&mut check.chunks);
    each_read_ahead(source, superblock, &chunks, |ahead, group, chunk| check.inodes(ahead, group, chunk))?;
    check.ledger.check()?;
    check.reverse.map_or(Ok(()), |reverse| reverse.check())
}

static NOTHING: Unfinished = Unfinished { freed: Vec::new(), changing: Vec::new() };

/// What all groups have.
#[derive(Default)]
struct Sums {
    free_blocks: u64,
    inodes: u64,
    free_inodes: u64,
}

impl Sums {
    fn check(&self, superblock: &Superblock) -> Result<()> {
        for (name, found, sum) in [
            ("fdblocks", superblock.free_blocks, self.free_blocks),
            ("icount", superblock.inode_count, self.inodes),
            ("ifree", superblock.free_inode_count, self.free_inodes),
        ] {
            if found != sum {
                let expected = format!("{sum}, as all groups count");
                return Err(Error::corrupt(Corrupt::Superblock).field(name, found, expected));
            }
        }
        Ok(())
    }
}

struct Check<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    ledger: Ledger,
    is_replayed: bool,
    /// If the volume has reverse maps.
    reverse: Option<Comparison>,
    sums: Sums,
    chunks: Vec<(GroupNumber, Chunk)>,
}

fn disagree(group: GroupNumber, what: &'static str, found: u64, expected: u64) -> Error {
    Error::corrupt(Corrupt::Disagree { what, group }).field("count", found, expected)
}

impl Check<'_> {
    fn group(&mut self, group: GroupNumber) -> Result<()> {
        let (source, superblock) = (self.source, self.superblock);
        if group > 0 {
            superblock::check_copy(source, superblock, group)?;
        }
        let headers = (HEADER_SECTORS * superblock.sector_bytes).div_ceil(superblock.block_bytes);
        self.own(group, Blocks { first: 0, count: headers }, "the headers", reverse::HEADERS)?;
        let free = group::read_free(source, superblock, group)?;
        for block in &free.kept {
            self.own(group, Blocks { first: *block, count: 1 }, "the free list", reverse::FREE_TREES)?;
        }
        let by_place = self.free(group, free.by_place, true)?;
        let by_length = self.free(group, free.by_length, false)?;
        if by_place.digest != by_length.digest {
            let what = "the trees of free space by place and by length differ";
            return Err(disagree(group, what, by_length.digest.count(), by_place.digest.count()));
        }
        self.check_counts(group, &free, &by_place, &by_length)?;
        self.references(group, &free)?;
        self.inode_trees(group, &group::read_inodes(source, superblock, group)?)
    }

    /// Where blocks of a group are, all of them.
    fn place(&self, group: GroupNumber, blocks: Blocks) -> Result<BlockNumber> {
        let first = self.superblock.in_group(group, blocks.first);
        let first = first.filter(|first| self.superblock.holds(*first, blocks.count.into()));
        first.ok_or_else(|| disagree(group, "blocks past its end", blocks.end().into(), 0))
    }

    /// Enters who was met as the owner of blocks.
    fn meet(&mut self, first: BlockNumber, count: u64, owner: Owner) {
        if let Some(reverse) = &mut self.reverse {
            reverse.meet(first, count, owner);
        }
    }

    /// Claims blocks for what they are, which has a number in the reverse map.
    fn own(&mut self, group: GroupNumber, blocks: Blocks, what: &str, number: u64) -> Result<()> {
        let first = self.place(group, blocks)?;
        self.ledger.own(first, blocks.count.into(), || format!("{what} of group {group}"))?;
        self.meet(first, blocks.count.into(), Owner::of_volume(number));
        Ok(())
    }

    fn own_node(&mut self, group: GroupNumber, block: GroupBlock, root: Root) -> Result<()> {
        self.own(group, Blocks { first: block, count: 1 }, root.kind.name, root.kind.owner)
    }

    /// A tree of free space. What is free is claimed once.
    fn free(&mut self, group: GroupNumber, root: Root, claims: bool) -> Result<FreeSums> {
        let (source, superblock) = (self.source, self.superblock);
        let mut sums = FreeSums::default();
        space::each_free(source, superblock, group, root, &mut |met| match met {
            Met::Node(block) => {
                sums.nodes += 1;
                self.own_node(group, block, root)
            }
            Met::Record(blocks) => {
                sums.digest.add((blocks.first, blocks.count));
                sums.blocks += u64::from(blocks.count);
                sums.longest = sums.longest.max(blocks.count);
                if !claims {
                    return Ok(());
                }
                let first = self.place(group, blocks)?;
                self.ledger.own(first, blocks.count.into(), || format!("the free space of group {group}"))
            }
        })?;
        Ok(sums)
    }

    fn check_counts(
        &mut self,
        group: GroupNumber,
        free: &Free,
        by_place: &FreeSums,
        by_length: &FreeSums,
    ) -> Result<()> {
        let mut nodes = by_place.nodes + by_length.nodes - 2;
        if let Some(root) = free.reverse_map {
            let found = self.reverse_map(group, root)?;
            if found != u64::from(free.reverse_map_blocks) {
                let what = "rmap_blocks is not what its tree has";
                return Err(disagree(group, what, free.reverse_map_blocks.into(), found));
            }
            nodes += found - 1;
        }
        for (what, found, expected) in [
            ("freeblks is not what its tree has", u64::from(free.free_blocks), by_place.blocks),
            ("longest is not what its tree has", free.longest.into(), by_place.longest.into()),
            ("btreeblks is not what its trees have", free.tree_blocks.map_or(nodes, u64::from), nodes),
        ] {
            if found != expected {
                return Err(disagree(group, what, found, expected));
            }
        }
        self.sums.free_blocks += by_place.blocks + free.kept.len() as u64 + nodes;
        Ok(())
    }

    /// Answers how many blocks the tree has.
    fn reverse_map(&mut self, group: GroupNumber, root: Root) -> Result<u64> {
        let (mut nodes, mut before) = (0, None);
        tree::walk(self.source, self.superblock, group, root, &mut |step| match step {
            Step::Node(block) => {
                nodes += 1;
                self.own_node(group, block, root)
            }
            Step::Record(record) => {
                let (blocks, owner) = parse_reverse(self.superblock, group, record, &mut before)?;
                let first = self.place(group, blocks)?;
                if let Some(reverse) = &mut self.reverse {
                    reverse.record(first, blocks.count.into(), owner);
                }
                Ok(())
            }
        })?;
        Ok(nodes)
    }

    fn references(&mut self, group: GroupNumber, free: &Free) -> Result<()> {
        let Some(root) = free.references else { return Ok(()) };
        let (source, superblock) = (self.source, self.superblock);
        let mut nodes = 0;
        space::each_references(source, superblock, group, root, &mut |met| match met {
            Met::Node(block) => {
                nodes += 1;
                self.own_node(group, block, root)
            }
            Met::Record(found) if found.is_staging => {
                let (first, count) = (self.place(group, found.blocks)?, found.blocks.count.into());
                self.ledger.own_of_files(first, count, || "what is staged for writes".into())?;
                self.meet(first, count, Owner::of_volume(reverse::STAGED));
                Ok(())
            }
            Met::Record(found) => {
                let first = superblock.in_group(group, found.blocks.first).unwrap_or_default();
                self.ledger.share(first, found.blocks.count.into(), found.count)
            }
        })?;
        let counted = u64::from(free.reference_blocks);
        if nodes == counted {
            Ok(())
        } else {
            Err(disagree(group, "refcount_blocks is not what its tree has", counted, nodes))
        }
    }

    fn inode_trees(&mut self, group: GroupNumber, inodes: &Inodes) -> Result<()> {
        let all = self.inode_tree(group, inodes.all)?;
        self.check_nodes(group, inodes.all_blocks, all.nodes)?;
        if let Some(root) = inodes.with_free {
            let with_free = self.inode_tree(group, root)?;
            self.check_nodes(group, inodes.with_free_blocks, with_free.nodes)?;
            if with_free.free != all.free {
                let what = "the trees of inodes and of free inodes differ";
                return Err(disagree(group, what, with_free.free.count(), all.free.count()));
            }
        }
        for (what, found, expected) in [
            ("count is not what its tree has", inodes.count, all.inodes),
            ("freecount is not what its tree has", inodes.free_count, all.free_inodes),
        ] {
            if u64::from(found) != expected {
                return Err(disagree(group, what, found.into(), expected));
            }
        }
        // Recovery frees such inodes. Where there is nothing to recover there are none.
        if inodes.has_unlinked && !self.is_replayed {
            return Err(disagree(group, "inodes without names on a volume that was unmounted", 1, 0));
        }
        self.sums.inodes += all.inodes;
        self.sums.free_inodes += all.free_inodes;
        Ok(())
    }

    /// Holds how many blocks a tree of inodes has against how many were counted, if they are.
    fn check_nodes(&self, group: GroupNumber, counted: Option<u32>, nodes: u64) -> Result<()> {
        match counted.map(u64::from).filter(|counted| *counted != nodes) {
            Some(counted) => {
                Err(disagree(group, "iblocks or fblocks is not what its tree has", counted, nodes))
            }
            None => Ok(()),
        }
    }

    fn inode_tree(&mut self, group: GroupNumber, root: Root) -> Result<InodeSums> {
        let (source, superblock) = (self.source, self.superblock);
        let mut sums = InodeSums::default();
        space::each_chunk(source, superblock, group, root, &mut |met| match met {
            Met::Node(block) => {
                sums.nodes += 1;
                self.own_node(group, block, root)
            }
            Met::Record(chunk) => {
                sums.inodes += u64::from(chunk.there.count_ones());
                sums.free_inodes += u64::from(chunk.free.count_ones());
                if chunk.free != 0 {
                    sums.free.add((chunk.first, chunk.there, chunk.free));
                }
                if space::lists_all(root) { self.chunk(group, chunk) } else { Ok(()) }
            }
        })?;
        Ok(sums)
    }

    /// Claims the blocks of a chunk; its inodes are read later.
    fn chunk(&mut self, group: GroupNumber, chunk: Chunk) -> Result<()> {
        self.chunks.push((group, chunk));
        blocks_of(self.superblock, chunk).try_for_each(|block| match block {
            Some(first) => self.own(group, Blocks { first, count: 1 }, "inodes", reverse::INODES),
            None => {
                let first = chunk.first.into();
                Err(disagree(group, "a part of a block of inodes is missing", first, first))
            }
        })
    }

    fn inodes(&mut self, ahead: &Source, group: GroupNumber, chunk: Chunk) -> Result<()> {
        each_inode(ahead, self.superblock, group, chunk, &mut |found| {
            let number = found.number;
            match (found.is_free, inode::parse(found.bytes, self.superblock, number)?) {
                (true, None) => Ok(()),
                (true, Some(_)) => Err(inode::wrong(number, "mode", 1_u64, "0 of an inode that is free")),
                (false, None) => Err(inode::wrong(number, "mode", 0_u64, "that of a file")),
                (false, Some(inode)) => self.inode(&inode),
            }
        })
    }

    fn inode(&mut self, inode: &Inode) -> Result<()> {
        let may_share = inode.kind == mode::REGULAR;
        let mut blocks = self.fork(inode, &inode.data, false, may_share)?;
        if let Some(fork) = &inode.attributes {
            blocks += self.fork(inode, fork, true, false)?;
        }
        if blocks == inode.blocks {
            return Ok(());
        }
        Err(inode::wrong(
            inode.number,
            "nblocks",
            inode.blocks,
            &format!("{blocks}, as its extents and their trees"),
        ))
    }

    fn fork(&mut self, inode: &Inode, fork: &Fork, is_of_attributes: bool, may_share: bool) -> Result<u64> {
        let (source, superblock, number) = (self.source, self.superblock, inode.number);
        let owner = || format!("inode {number}");
        // Of regular files any part may be a hole, or unwritten.
        let is_data = !is_of_attributes && inode.kind == mode::REGULAR;
        let (mut is_first, end) = (true, FILE_BYTES_MAX / u64::from(superblock.block_bytes));
        fork::walk(source, superblock, inode, fork, &mut |met| match met {
            ForkMet::Node(block) => {
                self.ledger.own(block, 1, owner)?;
                self.meet(block, 1, Owner::fork_tree(number, is_of_attributes));
                Ok(())
            }
            ForkMet::Extent(extent) => {
                let (first, count) = (extent.first, extent.count);
                let is_whole = is_data || (!extent.is_unwritten && (extent.logical == 0 || !is_first));
                is_first = false;
                if !is_whole || extent.logical.saturating_add(count) > end {
                    let expected = "a place in the file; 0 of the first of what is no regular file's data, all of which is written";
                    return Err(inode::wrong(number, "startoff", extent.logical, expected));
                }
                match may_share {
                    true => self.ledger.refer(first, count, owner)?,
                    false => self.ledger.own_of_files(first, count, owner)?,
                }
                let owner = Owner::extent(number, is_of_attributes, extent.logical, extent.is_unwritten);
                self.meet(first, count, owner);
                Ok(())
            }
        })
    }
}

#[derive(Default)]
struct FreeSums {
    digest: Digest,
    nodes: u64,
    blocks: u64,
    longest: u32,
}

#[derive(Default)]
struct InodeSums {
    nodes: u64,
    inodes: u64,
    free_inodes: u64,
    /// The chunks with free inodes.
    free: Digest,
}

/// The blocks of a chunk; `None` for one of which only some inodes are there.
pub(super) fn blocks_of(superblock: &Superblock, chunk: Chunk) -> impl Iterator<Item = Option<GroupBlock>> {
    let (log, first) = (superblock.inode_log, chunk.first >> superblock.inode_log);
    let each = 1_u32 << log;
    let mask = if each >= 64 { u64::MAX } else { (1 << each) - 1 };
    (0..64 / each).filter_map(move |index| {
        let there = chunk.there >> (index * each) & mask;
        match there {
            0 => None,
            _ if there == mask => Some(Some(first + index)),
            _ => Some(None),
        }
    })
}
