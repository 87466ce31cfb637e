//! Who owns which cluster: each owner's clusters must be marked used, and no cluster has two owners.
//!
//! Memory is bounded whatever the volume's size: bitmaps are kept in a cache, and double ownership is looked
//! for with one bit a cluster on volumes of up to 2^28 clusters (1 TiB in clusters of 4 KiB). On larger ones
//! the sum of all that is owned is compared with what is used. An exact ledger, which also finds what is used and owned
//! by nobody, always tells owners apart, and is not had for volumes of more than 2^30 clusters.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use block::{Error, Result};

use super::bitmap::{self, Bits};
use super::corrupt::Corrupt;
use super::group::{self, Group};
use super::owner::Owner;
use super::superblock::{BlockNumber, GroupNumber, Superblock};
use crate::Source;

/// The most clusters for which owners are told apart: 32 MiB of bits.
const CLAIMED_CLUSTERS_MAX: u64 = 1 << 28;
/// The most clusters of an exact ledger: 128 MiB of bits.
const EXACT_CLUSTERS_MAX: u64 = 1 << 30;
/// The most memory for bitmaps that were read.
const CACHE_BYTES_MAX: u32 = 16 << 20;
/// The most blocks of extended attributes that are told from other blocks.
const ATTRIBUTE_BLOCKS_MAX: usize = 1 << 18;

/// Whether others may own the same clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    /// None may.
    Sole,
    /// The group's other metadata may: under bigalloc they share clusters.
    Shared,
    /// It only refers to what others own.
    None,
}

/// Clusters, counted from the first data block: `from` up to, not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Clusters {
    pub(super) from: u64,
    pub(super) end: u64,
}

/// The block bitmaps of a volume, in a cache.
pub(super) struct Bitmaps<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    groups: HashMap<GroupNumber, Arc<Bits>>,
    last: Option<(GroupNumber, Arc<Bits>)>,
}

impl<'a> Bitmaps<'a> {
    pub(super) fn new(source: &'a Source, superblock: &'a Superblock) -> Self {
        Self { source, superblock, groups: HashMap::new(), last: None }
    }

    fn keep(&mut self, number: GroupNumber, bits: Arc<Bits>) {
        let count_max = CACHE_BYTES_MAX / (self.superblock.clusters_per_group / 8 + 64);
        if self.groups.len() as u64 >= u64::from(count_max) {
            self.groups.clear();
        }
        self.groups.insert(number, bits.clone());
        self.last = Some((number, bits));
    }

    /// Those of a group.
    pub(super) fn get(&mut self, number: GroupNumber) -> Result<Arc<Bits>> {
        if let Some((last, bits)) = &self.last
            && *last == number
        {
            return Ok(bits.clone());
        }
        if let Some(bits) = self.groups.get(&number) {
            self.last = Some((number, bits.clone()));
            return Ok(bits.clone());
        }
        let group = group::read(self.source, self.superblock, number)?;
        let bits = bitmap::read_blocks(self.source, self.superblock, number, &group)?;
        self.keep(number, bits.clone());
        Ok(bits)
    }
}

/// See the module.
pub(super) struct Ledger<'a> {
    pub(super) source: &'a Source,
    pub(super) superblock: &'a Superblock,
    bitmaps: Bitmaps<'a>,
    claimed: Option<Bits>,
    attributes: HashSet<BlockNumber>,
    is_exact: bool,
    owned: u64,
    used: u64,
    free: u64,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(source: &'a Source, superblock: &'a Superblock) -> Self {
        let claimed = claims(superblock, CLAIMED_CLUSTERS_MAX);
        Self {
            source,
            superblock,
            bitmaps: Bitmaps::new(source, superblock),
            claimed,
            attributes: HashSet::new(),
            is_exact: false,
            owned: 0,
            used: 0,
            free: 0,
        }
    }

    /// A ledger in which all that is used is to be owned.
    pub(super) fn exact(source: &'a Source, superblock: &'a Superblock) -> Result<Self> {
        let claimed = claims(superblock, EXACT_CLUSTERS_MAX).ok_or_else(|| {
            Error::unsupported(format!(
                "ext volume of more than {EXACT_CLUSTERS_MAX} clusters is not rearranged"
            ))
        })?;
        Ok(Self { claimed: Some(claimed), is_exact: true, ..Self::new(source, superblock) })
    }

    /// Whether what is used and owned by nobody is found.
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Fails unless all that is used is owned, and the superblock counts what is free. To be asked of an exact ledger, once
    /// all owners were entered.
    pub(super) fn check_exact(&mut self) -> Result<()> {
        let superblock = self.superblock;
        let free_blocks = self.free * u64::from(superblock.cluster_blocks);
        if superblock.free_blocks_count != free_blocks {
            let expected = format!("{free_blocks}, as the block bitmaps say");
            let found = superblock.free_blocks_count;
            return Err(Error::corrupt(Corrupt::Superblock).field("free_blocks_count", found, expected));
        }
        for number in 0..superblock.groups_count {
            let bits = self.bitmaps.get(number)?;
            let start = u64::from(number) * u64::from(superblock.clusters_per_group);
            if let Some(cluster) = self.unclaimed(&bits, start) {
                let block = self.block_of(cluster);
                return Err(Error::corrupt(Corrupt::BlockUnowned { block }));
            }
        }
        Ok(())
    }

    /// The first cluster of those from `start` on that `bits` call used and that nobody owns.
    fn unclaimed(&self, bits: &Bits, start: u64) -> Option<u64> {
        let claimed = self.claimed.as_ref()?;
        let index =
            |bit: u32| u32::try_from(start + u64::from(bit)).expect("claims are kept for small volumes only");
        for run in bits.runs(0, bits.len(), true) {
            let unclaimed = claimed.next(index(run.start), index(run.end), false);
            if unclaimed < index(run.end) {
                return Some(u64::from(unclaimed));
            }
        }
        None
    }

    /// Whether double ownership is found at once.
    pub(super) fn tells_owners_apart(&self) -> bool {
        self.claimed.is_some()
    }

    /// Enters a group's bitmap. Each group is entered once, before anything is owned.
    pub(super) fn enter(&mut self, number: GroupNumber, group: &Group) -> Result<()> {
        let bits = bitmap::read_blocks(self.source, self.superblock, number, group)?;
        let free = bits.len() - bits.count_set();
        if free != group.free_clusters {
            let what = Corrupt::GroupDescriptor { group: number };
            let expected = format!("{free}, as its block bitmap says");
            return Err(Error::corrupt(what).field("free_blocks_count", group.free_clusters, expected));
        }
        self.used += u64::from(bits.count_set());
        self.free += u64::from(free);
        self.bitmaps.keep(number, bits);
        Ok(())
    }

    /// The clusters of `count` blocks from `first`, which the volume holds.
    pub(super) fn clusters(&self, first: BlockNumber, count: u64) -> Clusters {
        clusters(self.superblock, first, count)
    }

    /// Enters that `owner` owns `clusters`: fails unless all are marked used, and are its own.
    pub(super) fn own(&mut self, clusters: Clusters, owner: Owner, claim: Claim) -> Result<()> {
        self.check_used(clusters, owner)?;
        if claim == Claim::None {
            return Ok(());
        }
        if claim == Claim::Sole {
            self.owned += clusters.end.saturating_sub(clusters.from);
        }
        if self.owned > self.used && self.claimed.is_none() {
            return Err(Error::corrupt(Corrupt::BlocksOwnedTwice));
        }
        let Some(claimed) = &mut self.claimed else {
            return Ok(());
        };
        let bit = |cluster: u64| u32::try_from(cluster).expect("claims are kept for small volumes only");
        let (from, end) = (bit(clusters.from), bit(clusters.end));
        let taken = claimed.next(from, end, true);
        if claim == Claim::Sole && taken < end {
            let block = self.block_of(u64::from(taken));
            return Err(Error::corrupt(Corrupt::BlockOwnedTwice { block, owner }));
        }
        claimed.set(from, end);
        Ok(())
    }

    /// Like [`Self::own`] for a block of extended attributes, which several inodes may share.
    pub(super) fn own_attributes(&mut self, block: BlockNumber, owner: Owner) -> Result<()> {
        let clusters = self.clusters(block, 1);
        if self.attributes.contains(&block) {
            return self.own(clusters, owner, Claim::None);
        }
        if self.attributes.len() >= ATTRIBUTE_BLOCKS_MAX {
            let claim = if self.is_exact { Claim::Shared } else { Claim::None };
            return self.own(clusters, owner, claim);
        }
        self.attributes.insert(block);
        self.own(clusters, owner, Claim::Sole)
    }

    fn block_of(&self, cluster: u64) -> BlockNumber {
        self.superblock.first_data_block + cluster * u64::from(self.superblock.cluster_blocks)
    }

    fn check_used(&mut self, clusters: Clusters, owner: Owner) -> Result<()> {
        let per_group = u64::from(self.superblock.clusters_per_group);
        let mut at = clusters.from;
        while at < clusters.end {
            let number = u32::try_from(at / per_group).expect("a group of the volume");
            let start = u64::from(number) * per_group;
            let end = clusters.end.min(start + per_group);
            let bit = |cluster: u64| u32::try_from(cluster - start).expect("within the group");
            let (from, to) = (bit(at), bit(end));
            let bits = self.bitmaps.get(number)?;
            let free = bits.next(from, to, false);
            if free < to {
                let block = self.block_of(start + u64::from(free));
                return Err(Error::corrupt(Corrupt::BlockMarkedFree { block, owner }));
            }
            at = end;
        }
        Ok(())
    }
}

/// The clusters of `count` blocks from `first`, which the volume holds.
pub(super) fn clusters(superblock: &Superblock, first: BlockNumber, count: u64) -> Clusters {
    let (start, ratio) = (superblock.first_data_block, u64::from(superblock.cluster_blocks));
    Clusters { from: (first - start) / ratio, end: (first - start + count).div_ceil(ratio) }
}

/// A bit for each cluster of a volume, if it has no more than `clusters_max`.
fn claims(superblock: &Superblock, clusters_max: u64) -> Option<Bits> {
    let blocks = superblock.blocks_count - superblock.first_data_block;
    let clusters = blocks.div_ceil(u64::from(superblock.cluster_blocks));
    u32::try_from(clusters).ok().filter(|_| clusters <= clusters_max).map(Bits::clear)
}
