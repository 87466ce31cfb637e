//! Pieces of metadata that are worked on, as they were and as they will be.
//!
//! Invariant: pieces are disjoint, and each is read from the volume when it is first asked for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use block::{Error, ReadAt, Result, read_vec};
use extent::{ExtentSet, Span, Volume, VolumeOffset};

use super::super::superblock::{BlockNumber, Superblock};
use crate::ext::corrupt::Corrupt;
use crate::rearrange::{Patch, Relocations};

/// Pieces of metadata that are worked on.
pub(super) struct MetadataEdits<'a> {
    volume: &'a dyn ReadAt<Volume>,
    superblock: &'a Superblock,
    /// Disjoint, by where they lie.
    pieces: BTreeMap<VolumeOffset, Piece>,
}

struct Piece {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl<'a> MetadataEdits<'a> {
    pub(super) fn new(volume: &'a dyn ReadAt<Volume>, superblock: &'a Superblock) -> Self {
        Self { volume, superblock, pieces: BTreeMap::new() }
    }

    pub(super) fn volume(&self) -> &'a dyn ReadAt<Volume> {
        self.volume
    }

    pub(super) fn superblock(&self) -> &'a Superblock {
        self.superblock
    }

    /// What the blocks are that were worked on.
    pub(super) fn into_blocks(self) -> impl Iterator<Item = (BlockNumber, Vec<u8>)> {
        let block_bytes = u64::from(self.superblock.block_bytes);
        self.pieces.into_iter().map(move |(at, piece)| (at.get() / block_bytes, piece.after))
    }

    /// A block to be changed.
    pub(super) fn block(&mut self, block: BlockNumber) -> Result<&mut Vec<u8>> {
        self.piece(self.superblock.offset_of(block), self.superblock.block_bytes.into())
    }

    /// Bytes to be changed.
    pub(super) fn piece(&mut self, at: VolumeOffset, len_bytes: u64) -> Result<&mut Vec<u8>> {
        let piece = match self.pieces.entry(at) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let before = read_vec(self.volume, at, len_bytes, "ext metadata")?;
                entry.insert(Piece { after: before.clone(), before })
            }
        };
        Ok(&mut piece.after)
    }

    /// What changed. `Corrupt` if some of it lies where something comes from or goes to.
    pub(super) fn into_patches(
        self,
        freed: &ExtentSet<Volume>,
        relocations: &Relocations,
    ) -> Result<Vec<Patch>> {
        let mut patches = Vec::new();
        for (at, piece) in self.pieces {
            let Piece { before, after } = piece;
            if before == after {
                continue;
            }
            let span = Span::new(at, after.len() as u64);
            let is_moved = relocations.departures(span).next().is_some()
                || relocations.arrivals(span).next().is_some()
                || freed.within(span).next().is_some();
            if is_moved {
                return Err(Error::corrupt(Corrupt::MetadataInFile).at(at));
            }
            patches.push(Patch { at, before, after });
        }
        Ok(patches)
    }
}
