//! Who owns which block: each block of the volume is free or has one owner, and what files share is shared as often as the tree of
//! reference counts says.
//!
//! Memory: a bit for each block, and a record for each stretch that is shared.

use block::{Error, Result};

use super::corrupt::Corrupt;
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
}

impl Ledger {
    pub(super) fn new(superblock: &Superblock) -> Result<Self> {
        let count = u32::try_from(superblock.blocks).ok().filter(|_| superblock.blocks <= BLOCKS_MAX);
        let count =
            count.ok_or_else(|| Error::unsupported(format!("XFS of more than {BLOCKS_MAX} blocks")))?;
        Ok(Self { claimed: Bits::clear(count), shared: Vec::new() })
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
        if self.shared.len() >= SHARED_MAX {
            return Err(Error::unsupported(format!("XFS with more than {SHARED_MAX} shared extents")));
        }
        self.own(first, count, || "the tree of reference counts".into())?;
        self.shared.push(Shared { first, count, references: references.into(), met: 0 });
        Ok(())
    }

    /// Enters that a file refers to blocks of the volume, which it may share with others.
    pub(super) fn refer(&mut self, first: BlockNumber, count: u64, owner: impl Fn() -> String) -> Result<()> {
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
        Ledger { claimed: Bits::clear(100), shared: Vec::new() }
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
