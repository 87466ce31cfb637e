//! Who owns which block: each block of the volume is free or has one owner, and what files share is shared as often as the tree of
//! reference counts says.
//!
//! What the log has not finished with is used, and has more or fewer owners than counted: of files and what is staged for them any number.
//! It is not free, though, nor metadata's.
//!
//! Memory: a bit for each block, and a record for each stretch that is shared.

use block::{Error, Result};

use super::corrupt::Corrupt;
use super::log::Unfinished;
use super::reverse::each_but;
use super::superblock::{BlockNumber, Superblock};
use crate::bits::Bits;

/// The most blocks of a volume whose owners are told apart: 128 MiB of bits.
const BLOCKS_MAX: u64 = 1 << 30;
/// The most stretches that may be shared: 128 MiB.
const SHARED_MAX: usize = 1 << 22;

/// Blocks that several files refer to.
struct Shared {
    first: BlockNumber,
    count: u64,
    /// How many refer to each of them.
    references: u64,
    /// Blocks of all references that were met.
    met: u64,
}

/// See the module.
pub(super) struct Ledger {
    claimed: Bits,
    /// In order.
    shared: Vec<Shared>,
    /// What is being mapped or counted; in order, without overlaps.
    changing: Vec<(BlockNumber, u64)>,
}

/// Runs of blocks in order, put together where they overlap or touch.
pub(super) fn merged(runs: impl IntoIterator<Item = (BlockNumber, u64)>) -> Vec<(BlockNumber, u64)> {
    let mut sorted: Vec<_> = runs.into_iter().collect();
    sorted.sort_unstable();
    let mut merged: Vec<(BlockNumber, u64)> = Vec::with_capacity(sorted.len());
    for (first, count) in sorted {
        match merged.last_mut() {
            Some((start, len)) if *start + *len >= first => *len = (*len).max(first + count - *start),
            _ => merged.push((first, count)),
        }
    }
    merged
}

impl Ledger {
    /// Of a volume whose log leaves this to be done.
    pub(super) fn new(superblock: &Superblock, unfinished: &Unfinished) -> Result<Self> {
        let count = u32::try_from(superblock.blocks).ok().filter(|_| superblock.blocks <= BLOCKS_MAX);
        let count =
            count.ok_or_else(|| Error::unsupported(format!("XFS of more than {BLOCKS_MAX} blocks")))?;
        let changing = merged(unfinished.changing.iter().copied());
        let mut ledger = Self { claimed: Bits::clear(count), shared: Vec::new(), changing: Vec::new() };
        let freed = unfinished.freed.iter().map(|(first, count)| (*first, *count, "what is to be freed"));
        for (first, count) in &changing {
            ledger.own(*first, *count, || "what the log has not finished".into())?;
        }
        ledger.changing = changing;
        for (first, count, owner) in freed {
            ledger.own_of_files(first, count, || owner.into())?;
        }
        Ok(ledger)
    }

    /// As [`own`](Self::own), for what files have, which the log may not have finished with.
    pub(super) fn own_of_files(
        &mut self,
        first: BlockNumber,
        count: u64,
        owner: impl Fn() -> String,
    ) -> Result<()> {
        self.each_steady(first, count, |ledger, first, count| ledger.own(first, count, &owner))
    }

    /// Calls `each` with the parts of a run that the log has nothing to do with.
    fn each_steady(
        &mut self,
        first: BlockNumber,
        count: u64,
        mut each: impl FnMut(&mut Self, BlockNumber, u64) -> Result<()>,
    ) -> Result<()> {
        let changing = std::mem::take(&mut self.changing);
        let mut result = Ok(());
        each_but(&changing, first, count, |first, count, _| {
            if result.is_ok() {
                result = each(self, first, count);
            }
        });
        self.changing = changing;
        result
    }

    /// Enters that blocks of the volume have an owner of their own. `owner` is asked for its name if they have another one, too.
    pub(super) fn own(
        &mut self,
        first: BlockNumber,
        count: u64,
        owner: impl FnOnce() -> String,
    ) -> Result<()> {
        let bit = |block: BlockNumber| u32::try_from(block).expect("a block of the volume");
        let (from, end) = (bit(first), bit(first + count));
        let taken = self.claimed.next(from, end, true);
        if taken < end {
            return Err(Error::corrupt(Corrupt::OwnedTwice { block: taken.into(), owner: owner() }));
        }
        self.claimed.set(from, end);
        Ok(())
    }

    /// Enters that `references` files refer to blocks of the volume. They come in order.
    pub(super) fn share(&mut self, first: BlockNumber, count: u64, references: u32) -> Result<()> {
        self.each_steady(first, count, |ledger, first, count| {
            if ledger.shared.len() >= SHARED_MAX {
                return Err(Error::unsupported(format!("XFS with more than {SHARED_MAX} shared extents")));
            }
            ledger.own(first, count, || "the tree of reference counts".into())?;
            ledger.shared.push(Shared { first, count, references: references.into(), met: 0 });
            Ok(())
        })
    }

    /// Enters that a file refers to blocks of the volume, which it may share with others.
    pub(super) fn refer(&mut self, first: BlockNumber, count: u64, owner: impl Fn() -> String) -> Result<()> {
        self.each_steady(first, count, |ledger, first, count| ledger.refer_steady(first, count, &owner))
    }

    fn refer_steady(&mut self, first: BlockNumber, count: u64, owner: impl Fn() -> String) -> Result<()> {
        let (mut at, end) = (first, first + count);
        let mut index = self.shared.partition_point(|shared| shared.first + shared.count <= first);
        while at < end {
            let shared = self.shared.get_mut(index).filter(|shared| shared.first < end);
            let Some(shared) = shared else { return self.own(at, end - at, owner) };
            let (start, stop) = (shared.first.max(at), (shared.first + shared.count).min(end));
            shared.met += stop - start;
            let before = start - at;
            if before > 0 {
                self.own(at, before, &owner)?;
            }
            at = stop;
            index += 1;
        }
        Ok(())
    }

    /// Fails unless every block is free or owned, and what is shared was met as often as it should.
    pub(super) fn check(&self) -> Result<()> {
        let unowned = self.claimed.next(0, self.claimed.len(), false);
        if unowned < self.claimed.len() {
            return Err(Error::corrupt(Corrupt::Unowned { block: unowned.into() }));
        }
        match self.shared.iter().find(|shared| shared.met != shared.count.saturating_mul(shared.references)) {
            None => Ok(()),
            Some(Shared { first, count, references, met }) => {
                let expected = format!("{references} for each of {count} blocks");
                let error = Error::corrupt(Corrupt::Shared { block: *first });
                Err(error.field("references to all of them", *met, expected))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        Ledger { claimed: Bits::clear(100), shared: Vec::new(), changing: Vec::new() }
    }

    fn whose() -> String {
        "a test".into()
    }

    #[test]
    fn each_block_has_one_owner() {
        let mut ledger = ledger();
        ledger.own(0, 40, whose).unwrap();
        ledger.own(50, 50, whose).unwrap();
        assert_eq!(ledger.check().unwrap_err().cause(), Some(&Corrupt::Unowned { block: 40 }));
        let twice = ledger.own(30, 20, whose).unwrap_err();
        assert_eq!(twice.cause(), Some(&Corrupt::OwnedTwice { block: 30, owner: whose() }));
        ledger.own(40, 10, whose).unwrap();
        ledger.check().unwrap();
    }

    #[test]
    fn what_is_not_finished_is_not_free_and_has_any_number_of_owners() {
        let mut ledger = ledger();
        ledger.own(10, 10, whose).unwrap();
        ledger.changing = vec![(10, 10)];
        assert!(ledger.own(5, 10, whose).is_err(), "free, and to be mapped");
        ledger.share(12, 10, 2).unwrap();
        ledger.refer(5, 20, whose).unwrap();
        ledger.refer(19, 3, whose).unwrap();
        ledger.own_of_files(15, 5, whose).unwrap();
        assert!(ledger.own_of_files(15, 10, whose).is_err(), "an owner too many of what is finished");
        ledger.own(0, 5, whose).unwrap();
        ledger.own(25, 75, whose).unwrap();
        ledger.check().unwrap();
        assert_eq!(merged([(5, 5), (3, 1), (8, 9), (30, 1), (17, 1)]), [(3, 1), (5, 13), (30, 1)]);
    }

    #[test]
    fn what_is_shared_is_met_as_often_as_it_should() {
        let mut ledger = ledger();
        ledger.share(10, 10, 2).unwrap();
        ledger.share(30, 5, 3).unwrap();
        ledger.refer(0, 40, whose).unwrap();
        ledger.own(40, 60, whose).unwrap();
        assert_eq!(ledger.check().unwrap_err().cause(), Some(&Corrupt::Shared { block: 10 }));
        ledger.refer(10, 10, whose).unwrap();
        ledger.refer(30, 5, whose).unwrap();
        assert!(ledger.check().is_err());
        // A part of it is not shared.
        assert!(ledger.refer(34, 2, whose).is_err());
        ledger.refer(30, 4, whose).unwrap();
        ledger.check().unwrap();
    }
}
