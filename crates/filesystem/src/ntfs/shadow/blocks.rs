//! Blocks of metadata, each of which leads to the next one of its list.

use std::collections::HashSet;

use block::{Error, ReadAt, Result, read_vec};
use extent::VolumeOffset;
use zerocopy::FromBytes;

use super::corrupt::CorruptShadowCopy;
use super::layout::{BLOCK_BYTES, BlockHeader, IDENTIFIER};
use crate::Source;

/// More blocks of metadata than any volume has: 4 GiB of them.
const BLOCK_COUNT_MAX: usize = 1 << 18;

/// The only version of blocks.
const VERSION: u32 = 1;

/// Follows lists of blocks. No block may be met twice, in whatever list: they would have a loop, or something in common.
pub(super) struct Blocks<'a> {
    source: &'a Source,
    seen: HashSet<u64>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self { source, seen: HashSet::new() }
    }

    /// The volume's length.
    pub(super) fn volume_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    /// Calls `each` with the place and the contents, without the header, of every block of the list that begins at `first`.
    /// `what` names them in errors.
    pub(super) fn each(
        &mut self,
        what: &str,
        first: u64,
        record_type: u32,
        mut each: impl FnMut(VolumeOffset, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut next = Some(first);
        while let Some(at) = next {
            let at = VolumeOffset::new(at);
            let bytes = self.one(what, at, record_type)?;
            let (header, contents) = BlockHeader::ref_from_prefix(&bytes).expect("a whole block");
            next = Some(header.next_offset.get()).filter(|next| *next != 0);
            each(at, contents)?;
        }
        Ok(())
    }

    /// Reads one block, header and all, and checks the header.
    pub(super) fn one(&mut self, what: &str, at: VolumeOffset, record_type: u32) -> Result<Vec<u8>> {
        let error = || Error::corrupt(CorruptShadowCopy::Block { what: what.to_owned() }).at(at);
        if !self.seen.insert(at.get()) {
            let twice = CorruptShadowCopy::BlockTwice { what: what.to_owned() };
            return Err(Error::corrupt(twice).at(at));
        }
        if self.seen.len() > BLOCK_COUNT_MAX {
            return Err(error().field("blocks of metadata", "more", format!("at most {BLOCK_COUNT_MAX}")));
        }
        let bytes = read_vec(self.source, at, BLOCK_BYTES, what)?;
        let (header, _) = BlockHeader::ref_from_prefix(&bytes).expect("a whole block");
        if header.identifier != IDENTIFIER {
            return Err(error().field("identifier", "another", "that of shadow copies"));
        }
        if header.version != VERSION {
            return Err(Error::unsupported(what).at(at).field("version", header.version, VERSION));
        }
        for (field, found, expected) in [
            ("record type", u64::from(header.record_type.get()), u64::from(record_type)),
            ("its own offset", header.current_offset.get(), at.get()),
        ] {
            if found != expected {
                return Err(error().field(field, found, expected));
            }
        }
        Ok(bytes)
    }
}
