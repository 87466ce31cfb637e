//! What a volume uses as long as its log is not replayed: mounts with `norecovery` read it so.
//!
//! The state on the disk is one in the middle of writing, and contradicts itself as a matter of course. So nothing is checked here: used
//! is what any inode refers to that can be read, whether it is in use or not in the other state. Too much is taken rather than too little.

use std::collections::BTreeMap;

use block::{Error, Result};

use super::check::blocks_of;
use super::fork::{self, Met as ForkMet};
use super::group;
use super::inode::{self, Fork, Inode};
use super::inodes::{each_inode, each_read_ahead};
use super::space::{self, Chunk, Met};
use super::superblock::{GroupNumber, Superblock};
use crate::bits::Bits;
use crate::{Source, fault};

/// The blocks that inodes of `unreplayed` have, or refer to: of chunks that it lists, and of those that `replayed` does.
pub(super) fn used(unreplayed: &Source, replayed: &Source, superblock: &Superblock) -> Result<Bits> {
    let mut found = Found { source: unreplayed, superblock, used: none(superblock)? };
    let mut all = Vec::new();
    for group in 0..superblock.group_count {
        // Almost all are in both states, and are read once.
        let mut both = BTreeMap::new();
        for state in [unreplayed, replayed] {
            for chunk in chunks(state, superblock, group)? {
                *both.entry(chunk.first).or_default() |= chunk.there;
            }
        }
        all.extend(both.into_iter().map(|(first, there)| (group, Chunk { first, there, free: 0 })));
    }
    each_read_ahead(unreplayed, superblock, &all, |ahead, group, chunk| found.chunk(ahead, group, chunk))?;
    Ok(found.used)
}

/// As if all of it were used.
pub(super) fn all(superblock: &Superblock) -> Result<Bits> {
    let mut bits = none(superblock)?;
    bits.set(0, bits.len());
    Ok(bits)
}

fn none(superblock: &Superblock) -> Result<Bits> {
    let count =
        u32::try_from(superblock.blocks).map_err(|_| Error::unsupported("XFS of very many blocks"))?;
    Ok(Bits::clear(count))
}

/// What cannot be read has nothing; but a read that fails is an error.
fn tolerate(error: Error) -> Result<()> {
    fault::of_volume(error).map(drop)
}

/// Chunks of inodes of a group, as far as they can be read.
fn chunks(source: &Source, superblock: &Superblock, group: GroupNumber) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::new();
    let read = group::read_inodes(source, superblock, group).and_then(|inodes| {
        space::each_chunk(source, superblock, group, inodes.all, &mut |met| {
            if let Met::Record(chunk) = met {
                chunks.push(chunk);
            }
            Ok(())
        })
    });
    read.or_else(tolerate)?;
    Ok(chunks)
}

struct Found<'a> {
    source: &'a Source,
    superblock: &'a Superblock,
    used: Bits,
}

impl Found<'_> {
    fn take(&mut self, first: u64, count: u64) {
        let end = u32::try_from(first.saturating_add(count)).unwrap_or(u32::MAX);
        self.used.set(u32::try_from(first).unwrap_or(u32::MAX), end);
    }

    fn chunk(&mut self, ahead: &Source, group: GroupNumber, chunk: Chunk) -> Result<()> {
        let superblock = self.superblock;
        for block in blocks_of(superblock, chunk).flatten() {
            if let Some(first) = superblock.in_group(group, block) {
                self.take(first, 1);
            }
        }
        let read = each_inode(ahead, superblock, group, chunk, &mut |found| match inode::parse(
            found.bytes,
            superblock,
            found.number,
        ) {
            Ok(Some(inode)) => self.inode(&inode),
            Ok(None) => Ok(()),
            Err(error) => tolerate(error),
        });
        read.or_else(tolerate)
    }

    fn inode(&mut self, inode: &Inode) -> Result<()> {
        self.fork(inode, &inode.data)?;
        inode.attributes.as_ref().map_or(Ok(()), |fork| self.fork(inode, fork))
    }

    fn fork(&mut self, inode: &Inode, fork: &Fork) -> Result<()> {
        let (source, superblock) = (self.source, self.superblock);
        let walked = fork::walk(source, superblock, inode, fork, &mut |met| {
            match met {
                ForkMet::Node(block) => self.take(block, 1),
                ForkMet::Extent(extent) => self.take(extent.first, extent.count),
            }
            Ok(())
        });
        walked.map(drop).or_else(tolerate)
    }
}
