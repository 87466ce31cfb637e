//! Block bitmaps, group descriptors and the superblock once blocks were taken and left.

use std::collections::BTreeSet;

use block::{Error, ReadAt, Result};
use extent::{ExtentSet, Span, Volume, VolumeSpan};
use zerocopy::{FromBytes, IntoBytes};

use super::super::bitmap::{self, Bits, set_range};
use super::super::checksum::{SEED, crc32c};
use super::super::features::incompat;
use super::super::group::{self, GroupUpdate};
use super::super::layout::RawSuperblock;
use super::super::superblock::{BlockNumber, GroupNumber, Superblock};
use crate::rearrange::Relocations;

/// Blocks that are taken and left.
pub(super) struct Changes<'a> {
    pub(super) superblock: &'a Superblock,
    pub(super) relocations: &'a Relocations,
    /// Blocks of maps that are not needed any more, with the rest of their clusters.
    pub(super) freed: &'a ExtentSet<Volume>,
    /// Whether what one relocation leaves another may take.
    pub(super) may_reuse: bool,
}

/// A group's block bitmap afterwards.
pub(super) struct Bitmap {
    pub(super) block: BlockNumber,
    /// Whole.
    pub(super) bytes: Vec<u8>,
    pub(super) update: GroupUpdate,
}

/// The clusters that the `freed` blocks of maps leave.
pub(super) fn freed_clusters(
    superblock: &Superblock,
    freed: impl IntoIterator<Item = BlockNumber>,
) -> ExtentSet<Volume> {
    let ratio = u64::from(superblock.cluster_blocks);
    let spans = freed.into_iter().map(|block| {
        let within = (block - superblock.first_data_block) % ratio;
        let start = superblock.offset_of(block - within);
        Span::new(start, ratio * u64::from(superblock.block_bytes))
    });
    spans.collect()
}

impl Changes<'_> {
    /// The groups of which something changes.
    pub(super) fn groups(&self) -> BTreeSet<GroupNumber> {
        let moved = self.relocations.by_source().flat_map(|each| [each.from, each.to_span()]);
        moved.chain(self.freed.iter()).flat_map(|span| self.groups_of(span)).collect()
    }

    fn groups_of(&self, span: VolumeSpan) -> std::ops::RangeInclusive<GroupNumber> {
        let block = |at: u64| at / u64::from(self.superblock.block_bytes);
        let last = span.end().get().saturating_sub(1);
        self.superblock.group_of(block(span.start().get()))..=self.superblock.group_of(block(last))
    }

    /// A group's bitmap as it will be on what is `volume` now. `Invalid` if what is left is not used, or what is taken is.
    pub(super) fn bitmap(&self, volume: &dyn ReadAt<Volume>, number: GroupNumber) -> Result<Bitmap> {
        let superblock = self.superblock;
        let group = group::read(volume, superblock, number)?;
        let mut bytes = bitmap::block_of(volume, superblock, number, &group)?;
        if self.may_reuse {
            self.leave(&mut bytes, number)?;
            self.take(&mut bytes, number)?;
        } else {
            self.take(&mut bytes, number)?;
            self.leave(&mut bytes, number)?;
        }
        self.change(&mut bytes, number, self.freed.within(self.span_of(number)), false)?;
        let bits = Bits::from_bytes(&bytes, superblock.group_clusters(number));
        let summed = usize::try_from(superblock.clusters_per_group / 8).expect("at most a block");
        let update = GroupUpdate::new(superblock, bits.len() - bits.count_set(), &bytes[..summed]);
        Ok(Bitmap { block: group.block_bitmap, bytes, update })
    }

    fn leave(&self, bytes: &mut [u8], number: GroupNumber) -> Result<()> {
        let left = self.relocations.departures(self.span_of(number)).map(|each| each.from);
        self.change(bytes, number, left, false)
    }

    fn take(&self, bytes: &mut [u8], number: GroupNumber) -> Result<()> {
        let taken = self.relocations.arrivals(self.span_of(number)).map(|each| each.to_span());
        self.change(bytes, number, taken, true)
    }

    fn change(
        &self,
        bytes: &mut [u8],
        number: GroupNumber,
        spans: impl Iterator<Item = VolumeSpan>,
        set: bool,
    ) -> Result<()> {
        let start = self.superblock.offset_of(self.superblock.group_start(number)).get();
        let cluster_bytes =
            u64::from(self.superblock.cluster_blocks) * u64::from(self.superblock.block_bytes);
        let bit = |at: u64| u32::try_from((at - start) / cluster_bytes).expect("within the group");
        for span in spans {
            let (from, end) = (bit(span.start().get()), bit(span.end().get()));
            if !set_range(bytes, from, end, set) {
                let (what, is) = if set { ("to what", "not free") } else { ("from what", "free already") };
                let what = format!("a relocation {what} the block bitmap of ext group {number} says is {is}");
                return Err(Error::invalid(what).at(span.start()));
            }
        }
        Ok(())
    }

    fn span_of(&self, number: GroupNumber) -> VolumeSpan {
        let start = self.superblock.offset_of(self.superblock.group_start(number));
        let blocks = u64::from(self.superblock.group_blocks(number));
        Span::new(start, blocks * u64::from(self.superblock.block_bytes))
    }

    /// Enters into the superblock, 1024 bytes of it, that there are more free blocks.
    pub(super) fn update_superblock(&self, bytes: &mut [u8]) -> Result<()> {
        let mut raw = RawSuperblock::read_from_bytes(bytes)
            .map_err(|_| Error::invalid("an ext superblock has 1024 bytes"))?;
        let large = self.superblock.features.incompat.has(incompat::BIT64);
        let hi = if large { raw.free_blocks_count_hi.get() } else { 0 };
        let found = u64::from(hi) << 32 | u64::from(raw.free_blocks_count_lo.get());
        let freed = self.freed.total_bytes() / u64::from(self.superblock.block_bytes);
        let [a, b, c, d, e, f, g, h] = found.saturating_add(freed).to_le_bytes();
        raw.free_blocks_count_lo.set(u32::from_le_bytes([a, b, c, d]));
        if large {
            raw.free_blocks_count_hi.set(u32::from_le_bytes([e, f, g, h]));
        }
        if self.superblock.features.metadata_csum() {
            let whole = raw.as_bytes();
            let sum = crc32c(SEED, &whole[..whole.len() - size_of_val(&raw.checksum)]);
            raw.checksum.set(sum);
        }
        bytes.copy_from_slice(raw.as_bytes());
        Ok(())
    }
}
