//! The full check of the block bitmaps, before anything that they call free is left out of a copy.
//!
//! One pass over the groups: counters, checksums, and that the file system's own structures are marked used.
//! Then one pass over all inodes: that every block that one in use owns is marked used, that none has two owners, and that no
//! inode has a link that is marked free. What is marked used but owned by nobody stays used, unless an exact check is asked for: then it is an error.
//!
//! Unwritten extents read as zeros to the guest whatever they hold, but count as used for now.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;

use super::bitmap::{self, Bits};
use super::corrupt::Corrupt;
use super::group::{self, Group};
use super::inode::{Inode, InodeNumber, inode_at};
use super::layout::{RawInode, inode_flags, special_inode};
use super::ledger::{Claim, Ledger};
use super::owner::Owner;
use super::superblock::{BlockNumber, GroupNumber, Superblock};
use super::swapfile::{self, SwapFile};
use super::tree::{self, FileExtent, Visitor};
use crate::Source;

/// Bytes of inode tables read at once.
const TABLE_BYTES_MAX: u32 = 1 << 20;

/// Checks everything; returns the swap files.
pub(super) fn check(source: &Source, superblock: &Superblock) -> Result<Vec<SwapFile>> {
    check_with(Ledger::new(source, superblock))
}

/// As [`check`]; and what is marked used must have an owner, and the superblock must count what is free.
pub(super) fn check_exactly(source: &Source, superblock: &Superblock) -> Result<Vec<SwapFile>> {
    check_with(Ledger::exact(source, superblock)?)
}

fn check_with(mut ledger: Ledger<'_>) -> Result<Vec<SwapFile>> {
    let (source, superblock) = (ledger.source, ledger.superblock);
    for number in 0..superblock.groups_count {
        let group = group::read(source, superblock, number)?;
        ledger.enter(number, &group)?;
    }
    for number in 0..superblock.groups_count {
        own_metadata(&mut ledger, number)?;
    }
    let mut inodes = Inodes { ledger, candidates: BinaryHeap::new(), free_count: 0 };
    for number in 0..superblock.groups_count {
        inodes.check_group(number)?;
    }
    if inodes.ledger.is_exact() {
        inodes.ledger.check_exact()?;
        let found = superblock.free_inodes_count;
        if u64::from(found) != inodes.free_count {
            let expected = format!("{}, as the inode bitmaps say", inodes.free_count);
            return Err(Error::corrupt(Corrupt::Superblock).field("free_inodes_count", found, expected));
        }
    }
    let candidates: Vec<_> = inodes.candidates.into_iter().map(|Reverse((_, number))| number).collect();
    swapfile::find(source, superblock, &candidates)
}

fn own_metadata(ledger: &mut Ledger<'_>, number: GroupNumber) -> Result<()> {
    let superblock = ledger.superblock;
    let group = group::read(ledger.source, superblock, number)?;
    let claim = if superblock.cluster_blocks > 1 { Claim::Shared } else { Claim::Sole };
    let base = (superblock.base_start(number), u64::from(superblock.base_blocks(number)));
    let table = (group.inode_table, u64::from(superblock.inode_table_blocks()));
    for (what, (first, count)) in [
        ("superblock and descriptors", base),
        ("block bitmap", (group.block_bitmap, 1)),
        ("inode bitmap", (group.inode_bitmap, 1)),
        ("inode table", table),
    ] {
        if count == 0 {
            continue;
        }
        if !superblock.holds(first, count) {
            return Err(Error::corrupt(Corrupt::MetadataPastEnd { what, group: number }));
        }
        ledger.own(ledger.clusters(first, count), Owner::Metadata(what, number), claim)?;
    }
    match superblock.mmp_block {
        Some(block) if number == 0 && superblock.holds(block, 1) => {
            ledger.own(ledger.clusters(block, 1), Owner::Metadata("multiple-mount block", 0), claim)
        }
        _ => Ok(()),
    }
}

/// The pass over all inodes.
struct Inodes<'a> {
    ledger: Ledger<'a>,
    /// The largest files that may be swap files, the smallest of them first.
    candidates: BinaryHeap<Reverse<(u64, InodeNumber)>>,
    /// Inodes that are free, in all groups so far.
    free_count: u64,
}

impl Inodes<'_> {
    fn check_group(&mut self, number: GroupNumber) -> Result<()> {
        let superblock = self.ledger.superblock;
        let group = group::read(self.ledger.source, superblock, number)?;
        let used = bitmap::read_inodes(self.ledger.source, superblock, number, &group)?;
        let limit = check_counts(superblock, number, &group, &used)?;
        self.free_count += u64::from(group.free_inodes);
        // All that were ever used: what the bitmap calls free may be read all the same, by its name.
        let step = (TABLE_BYTES_MAX / u32::from(superblock.inode_bytes)).max(1);
        let mut at = 0;
        while at < limit {
            let end = limit.min(at.saturating_add(step));
            self.check_piece(number, &group, &used, at..end)?;
            at = end;
        }
        Ok(())
    }

    fn check_piece(
        &mut self,
        number: GroupNumber,
        group: &Group,
        used: &Bits,
        piece: Range<u32>,
    ) -> Result<()> {
        let superblock = self.ledger.superblock;
        let inode_bytes = usize::from(superblock.inode_bytes);
        let at = inode_at(superblock, group.inode_table, piece.start);
        let len_bytes = u64::from(piece.end - piece.start) * u64::from(superblock.inode_bytes);
        let bytes = read_vec(self.ledger.source, at, len_bytes, "ext inode table")?;
        for (index, bytes) in piece.zip(bytes.chunks_exact(inode_bytes)) {
            let inode_number = number * superblock.inodes_per_group + index + 1;
            if !used.get(index) {
                check_unused(bytes, inode_number)
                    .map_err(|error| error.at(inode_at(superblock, group.inode_table, index)))?;
            } else {
                let inode = Inode::parse(bytes, superblock, inode_number)
                    .map_err(|error| error.at(inode_at(superblock, group.inode_table, index)))?;
                self.check_inode(&inode)?;
            }
        }
        Ok(())
    }

    fn check_inode(&mut self, inode: &Inode) -> Result<()> {
        let (source, superblock) = (self.ledger.source, self.ledger.superblock);
        if let Some(block) = inode.attributes {
            if !superblock.holds(block, 1) {
                let what = Corrupt::Inode { inode: inode.number };
                return Err(Error::corrupt(what).field("file_acl", block, "within the volume"));
            }
            self.ledger.own_attributes(block, Owner::Inode(inode.number))?;
        }
        // Their maps refer to blocks that others own, too, besides some that are theirs alone.
        let refers = [special_inode::BAD_BLOCKS, special_inode::RESIZE].contains(&inode.number);
        let claim = match (refers, self.ledger.is_exact()) {
            (false, _) => Claim::Sole,
            (true, true) => Claim::Shared,
            (true, false) => Claim::None,
        };
        let mut blocks = Blocks::new(&mut self.ledger, inode.number, claim);
        tree::walk(source, superblock, inode, &mut blocks)?;
        let mapped_to = blocks.without_hole_to;
        self.consider(inode, mapped_to);
        Ok(())
    }

    /// Keeps the inode if it may be a swap file: the kernel wants those without holes.
    fn consider(&mut self, inode: &Inode, mapped_to: u64) {
        let blocks = inode.size_bytes.div_ceil(u64::from(self.ledger.superblock.block_bytes));
        let odd = inode_flags::ENCRYPT | inode_flags::VERITY | inode_flags::EA_INODE;
        let may_be = inode.number >= special_inode::FIRST_USER
            && inode.is_regular()
            && inode.uid == 0
            && inode.links_count == 1
            && !inode.has(odd)
            && inode.size_bytes >= swapfile::SIZE_BYTES_MIN
            && inode.size_bytes.is_multiple_of(swapfile::SIZE_STEP_BYTES)
            && mapped_to >= blocks;
        if may_be {
            self.candidates.push(Reverse((inode.size_bytes, inode.number)));
            if self.candidates.len() > swapfile::CANDIDATES_MAX {
                self.candidates.pop();
            }
        }
    }
}

/// An inode that is marked free has no links. Neither the kernel nor `e2fsck` looks at the mark when it reads a file by its name.
fn check_unused(bytes: &[u8], number: InodeNumber) -> Result<()> {
    let (raw, _) = RawInode::read_from_prefix(bytes).expect("an inode is at least that large");
    let links = raw.links_count.get();
    if links == 0 || raw.mode.get() == 0 {
        return Ok(());
    }
    Err(Error::corrupt(Corrupt::InodeMarkedFree { inode: number, links }))
}

/// Checks a group's counters of inodes; returns how many inodes of its table were ever used.
fn check_counts(superblock: &Superblock, number: GroupNumber, group: &Group, used: &Bits) -> Result<u32> {
    let corrupt = |field: &str, found: u32, expected: String| {
        Error::corrupt(Corrupt::GroupDescriptor { group: number }).field(field, found, expected)
    };
    let free = used.len() - used.count_set();
    if free != group.free_inodes {
        let expected = format!("{free}, as its inode bitmap says");
        return Err(corrupt("free_inodes_count", group.free_inodes, expected));
    }
    let limit = superblock.inodes_per_group - group.inodes_unused;
    let beyond = used.next(limit, used.len(), true);
    if beyond < used.len() {
        let expected = format!("fewer: inode {beyond} of the group is in use");
        return Err(corrupt("itable_unused", group.inodes_unused, expected));
    }
    Ok(limit)
}

/// Enters an inode's blocks.
struct Blocks<'a, 'b> {
    ledger: &'a mut Ledger<'b>,
    owner: Owner,
    claim: Claim,
    /// The end of the last extent in clusters: under bigalloc the next may share its last cluster.
    end_cluster: u64,
    /// The file's blocks from its start up to this one are mapped.
    without_hole_to: u64,
    /// The nodes met, where the ledger cannot tell that one is met twice.
    nodes: HashSet<BlockNumber>,
}

impl<'a, 'b> Blocks<'a, 'b> {
    fn new(ledger: &'a mut Ledger<'b>, number: InodeNumber, claim: Claim) -> Self {
        Self {
            ledger,
            owner: Owner::Inode(number),
            claim,
            end_cluster: 0,
            without_hole_to: 0,
            nodes: HashSet::new(),
        }
    }
}

impl Visitor for Blocks<'_, '_> {
    fn node(&mut self, block: BlockNumber) -> Result<()> {
        let told_apart = self.claim == Claim::Sole && self.ledger.tells_owners_apart();
        if !told_apart && !self.nodes.insert(block) {
            return Err(Error::corrupt(Corrupt::BlockTwiceInMap { block, owner: self.owner }));
        }
        self.ledger.own(self.ledger.clusters(block, 1), self.owner, self.claim)
    }

    fn extent(&mut self, extent: FileExtent) -> Result<()> {
        if extent.logical == self.without_hole_to {
            self.without_hole_to += extent.count;
        }
        let mut clusters = self.ledger.clusters(extent.start, extent.count);
        let shares = self.ledger.superblock.cluster_blocks > 1 && clusters.from + 1 == self.end_cluster;
        self.end_cluster = clusters.end;
        if shares {
            clusters.from += 1;
        }
        self.ledger.own(clusters, self.owner, self.claim)
    }
}
