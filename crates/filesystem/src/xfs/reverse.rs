//! The reverse map: which owner each block has, as the trees of groups that have it say, held against the owners that were met.
//!
//! Both sides are summed up by block, so that it is no matter into how many pieces either side cuts what belongs together. Nothing is
//! kept: two sums that differ do so for certain, and two that are equal are of the same blocks and owners but by chance.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use block::{Error, Result};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::layout::{RawReverse, reverse};
use super::space::Blocks;
use super::superblock::{BlockNumber, GroupNumber, Superblock};
use super::tree::REVERSE_MAP;

/// Whose blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Owner {
    /// The number of an inode, or one of [`reverse`].
    number: u64,
    /// Bits of [`reverse`]: of which fork they are, and what they hold.
    flags: u64,
    /// Where in the fork the first of them is; 0 of what is in none.
    logical: u64,
}

impl Owner {
    /// One of [`reverse`], who is no inode.
    pub(super) const fn of_volume(number: u64) -> Self {
        Self { number, flags: 0, logical: 0 }
    }

    /// The tree of a fork's extents.
    pub(super) fn fork_tree(inode: u64, is_of_attributes: bool) -> Self {
        Self { flags: reverse::TREE, ..Self::extent(inode, is_of_attributes, 0, false) }
            .of_fork(is_of_attributes)
    }

    /// A fork, from a block of it on.
    pub(super) fn extent(inode: u64, is_of_attributes: bool, logical: u64, is_unwritten: bool) -> Self {
        let flags = if is_unwritten { reverse::UNWRITTEN } else { 0 };
        Self { number: inode, flags, logical }.of_fork(is_of_attributes)
    }

    fn of_fork(self, is_of_attributes: bool) -> Self {
        let fork = if is_of_attributes { reverse::ATTRIBUTES } else { 0 };
        Self { flags: self.flags | fork, ..self }
    }

    /// Whether its blocks are in an order of their own.
    fn has_order(self) -> bool {
        self.number < reverse::FIRST && self.flags & reverse::TREE == 0
    }
}

/// Sums over blocks and their owners.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Sums {
    blocks: u64,
    /// Of each block, a number of its owner times 1, the block's number, and its square.
    sums: [u64; 3],
}

impl Sums {
    fn add(&mut self, first: BlockNumber, count: u64, owner: Owner) {
        // The same for all blocks that lie as they come in their fork.
        let logical = if owner.has_order() { owner.logical.wrapping_sub(first) } else { owner.logical };
        let key = BuildHasherDefault::<DefaultHasher>::default().hash_one(Owner { logical, ..owner });
        let below = |end: BlockNumber| {
            let end = u128::from(end);
            let before = end.saturating_sub(1);
            [end, end * before / 2, end * before * (end + before) / 6]
        };
        let (from, to) = (below(first), below(first + count));
        for (sum, (from, to)) in self.sums.iter_mut().zip(from.into_iter().zip(to)) {
            // What does not fit is left out on both sides.
            let each = u64::try_from((to - from) & u128::from(u64::MAX)).expect("masked");
            *sum = sum.wrapping_add(key.wrapping_mul(each));
        }
        self.blocks = self.blocks.wrapping_add(count);
    }
}

/// What is recorded of a volume that has reverse maps, and what was met.
#[derive(Default)]
pub(super) struct Comparison {
    recorded: Sums,
    met: Sums,
    /// What the log has not finished, in order, without overlaps: what either side says of it is left out.
    left_out: Vec<(BlockNumber, u64)>,
}

impl Comparison {
    pub(super) fn new(left_out: Vec<(BlockNumber, u64)>) -> Self {
        Self { left_out, ..Self::default() }
    }

    /// Enters who was met as the owner of blocks.
    pub(super) fn meet(&mut self, first: BlockNumber, count: u64, owner: Owner) {
        each_but(&self.left_out, first, count, |first, count, skipped| {
            self.met.add(
                first,
                count,
                Owner { logical: owner.logical + skipped * u64::from(owner.has_order()), ..owner },
            );
        });
    }

    /// Enters what a group's reverse map says.
    pub(super) fn record(&mut self, first: BlockNumber, count: u64, owner: Owner) {
        each_but(&self.left_out, first, count, |first, count, skipped| {
            let logical = owner.logical.wrapping_add(skipped * u64::from(owner.has_order()));
            self.recorded.add(first, count, Owner { logical, ..owner });
        });
    }

    /// Fails unless both say the same.
    pub(super) fn check(&self) -> Result<()> {
        if self.recorded == self.met {
            return Ok(());
        }
        let expected = format!("{}, and of those who have them", self.met.blocks);
        Err(Error::corrupt(Corrupt::ReverseMap).field("blocks", self.recorded.blocks, expected))
    }
}

/// Calls `each` with the parts of a run that are not left out, and how far each is from the run's start.
pub(super) fn each_but(
    left_out: &[(BlockNumber, u64)],
    first: BlockNumber,
    count: u64,
    mut each: impl FnMut(BlockNumber, u64, u64),
) {
    let (mut at, end) = (first, first + count);
    let from = left_out.partition_point(|(start, count)| start + count <= first);
    for (start, count) in left_out[from..].iter().take_while(|(start, _)| *start < end) {
        if *start > at {
            each(at, start - at, at - first);
        }
        at = (start + count).min(end);
    }
    if at < end {
        each(at, end - at, at - first);
    }
}

/// A record of a group's reverse map, which is behind the one `before` it.
pub(super) fn parse(
    superblock: &Superblock,
    group: GroupNumber,
    record: &[u8],
    before: &mut Option<[u64; 3]>,
) -> Result<(Blocks, Owner)> {
    let raw = RawReverse::read_from_bytes(record).expect("a record of its length");
    let start = raw.startblock.get();
    let wrong = |name: &str, found: u64, expected: &str| {
        let what = Corrupt::Record { what: REVERSE_MAP.name, group, start };
        Err(Error::corrupt(what).field(name, found, expected.to_owned()))
    };
    let blocks = Blocks { first: start, count: raw.blockcount.get() };
    let end = start.checked_add(blocks.count).filter(|end| *end <= superblock.blocks_of(group));
    if blocks.count == 0 || end.is_none() {
        return wrong("blockcount", blocks.count.into(), "at least 1, and an end within the group");
    }
    let (number, offset) = (raw.owner.get(), raw.offset.get());
    let owner = Owner { number, flags: offset & reverse::FLAGS, logical: offset & reverse::LOGICAL };
    let is_right = offset & !(reverse::FLAGS | reverse::LOGICAL) == 0
        && (owner.has_order() || owner.logical == 0)
        && (number < reverse::FIRST || owner.flags == 0)
        && (owner.flags & reverse::TREE == 0 || owner.flags & reverse::UNWRITTEN == 0);
    if !is_right {
        return wrong("offset", offset, "one that such an owner has");
    }
    let place = [start.into(), number, offset & !reverse::UNWRITTEN];
    if before.replace(place).is_some_and(|before| before >= place) {
        return wrong("startblock", start.into(), "behind the record before it");
    }
    Ok((blocks, owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(parts: &[(u64, u64, Owner)], left_out: &[(u64, u64)]) -> Sums {
        let mut comparison = Comparison::new(left_out.to_vec());
        parts.iter().for_each(|(first, count, owner)| comparison.meet(*first, *count, *owner));
        comparison.met
    }

    fn data(logical: u64) -> Owner {
        Owner::extent(130, false, logical, false)
    }

    #[test]
    fn how_it_is_cut_is_no_matter_and_whose_it_is_is() {
        let whole = said(&[(100, 30, data(7))], &[]);
        assert_eq!(whole, said(&[(110, 20, data(17)), (100, 10, data(7))], &[]));
        for other in [
            (100, 30, data(8)),
            (101, 30, data(8)),
            (100, 29, data(7)),
            (100, 30, Owner::extent(131, false, 7, false)),
            (100, 30, Owner::extent(130, true, 7, false)),
            (100, 30, Owner::extent(130, false, 7, true)),
            (100, 30, Owner::fork_tree(130, false)),
        ] {
            assert_ne!(whole, said(&[other], &[]), "{other:?}");
        }
        // Who is no inode has no order.
        let log = Owner::of_volume(reverse::LOG);
        assert_eq!(said(&[(5, 5, log)], &[]), said(&[(9, 1, log), (5, 4, log)], &[]));
        assert_ne!(said(&[(5, 5, log)], &[]), said(&[(6, 5, log)], &[]));
    }

    #[test]
    fn what_is_left_out_is_of_no_matter() {
        let parts = said(&[(100, 4, data(0)), (108, 2, data(8))], &[]);
        for left_out in [&[(104, 4)][..], &[(90, 5), (104, 1), (105, 3), (110, 9)]] {
            assert_eq!(parts, said(&[(100, 10, data(0))], left_out), "{left_out:?}");
        }
        assert_eq!(said(&[(100, 10, data(0))], &[(0, 200)]), Sums::default());
    }

    #[test]
    fn sums_are_those_of_all_blocks() {
        let (mut whole, mut parts) = (Sums::default(), Sums::default());
        whole.add(3, 1000, data(9));
        (0..1000).for_each(|index| parts.add(3 + index, 1, data(9 + index)));
        assert_eq!(whole, parts);
    }
}
