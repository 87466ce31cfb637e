//! From virtual offsets to places in the file: the BAT and the sector bitmaps (2.4, 2.5).
//!
//! What the states mean for a reader:
//! - not present: the parent answers; without a parent, zeros;
//! - undefined, zero, unmapped: zeros, and the parent is hidden. For undefined and unmapped the specification
//!   allows any contents; zeros are the ones that cannot leak what was there before. A place that such an entry
//!   still bears is not looked at;
//! - fully present: this file; partially present: this file or the parent, by the sector bitmap.
//!
//! Sector bitmap entries of disks without a parent are not looked at: QEMU before 8.0 left wrong ones.

use std::sync::Arc;

use block::{Cached, Error, FileIndex, HostFile, Result, Run, RunState, push_run, read_vec};
use extent::{ExtentSet, Host, HostOffset, HostSpan, Span, VirtualOffset, VirtualSpan};

use super::corrupt::Corrupt;
use super::layout::{BAT_OFFSET_MASK, BAT_STATE_MASK, BITMAP_BLOCK_BYTES, CHUNK_SECTOR_COUNT, MIB};
use super::parse::Metadata;
use crate::vhd::bitmap::{self, BitOrder};

/// Memory for pieces of the BAT and for sector bitmaps.
const CACHE_BYTES: u64 = 8 << 20;
/// Entries of the BAT looked at in one go.
const WINDOW_ENTRY_COUNT: u64 = 8192;
/// The largest BAT whose entries are checked against each other when the image is opened: 16 MiB are 2 TiB in the
/// smallest blocks, 64 TiB in the usual ones. Above it every entry is still checked by itself when it is used.
const CHECKED_BAT_BYTES_MAX: u64 = 16 << 20;
/// The largest file for which that is done: its map of MiB takes 16 MiB.
const CHECKED_FILE_BYTES_MAX: u64 = 128 << 40;

/// Where BAT entries lie: each chunk of payload entries is followed by one for its sector bitmap.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatShape {
    pub(super) block_bytes: u64,
    /// Payload blocks of the disk.
    pub(super) block_count: u64,
    /// Payload blocks to a sector bitmap block.
    pub(super) chunk_ratio: u64,
}

impl BatShape {
    pub(super) fn new(virtual_bytes: u64, block_bytes: u64, sector_bytes: u32) -> Self {
        let chunk_ratio = CHUNK_SECTOR_COUNT * u64::from(sector_bytes) / block_bytes;
        Self { block_bytes, block_count: virtual_bytes.div_ceil(block_bytes), chunk_ratio }
    }

    /// Index of a payload block's entry.
    pub(super) fn entry_of_block(&self, block: u64) -> u64 {
        block + block / self.chunk_ratio
    }

    /// Index of the entry of the sector bitmap that covers a payload block.
    fn entry_of_bitmap(&self, block: u64) -> u64 {
        (block / self.chunk_ratio + 1) * (self.chunk_ratio + 1) - 1
    }

    /// Entries of the whole table (2.5): a disk without a parent has no bitmap entry after its last chunk.
    pub(super) fn entry_count(&self, has_parent: bool) -> u64 {
        match self.block_count.checked_sub(1) {
            None => 0,
            Some(last) if has_parent => self.entry_of_bitmap(last) + 1,
            Some(last) => self.entry_of_block(last) + 1,
        }
    }
}

/// The state of a payload block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Payload {
    NotPresent,
    Zero,
    /// All of it from this offset.
    Full(HostOffset),
    /// The sectors that the bitmap says, from this offset.
    Partial(HostOffset),
}

/// The blocks of a VHDX.
pub(super) struct BlockMap {
    metadata: Cached<Host, Arc<dyn HostFile>>,
    bat: HostSpan,
    shape: BatShape,
    virtual_bytes: u64,
    sector_bytes: u64,
    has_parent: bool,
    /// Where no block may lie.
    reserved: ExtentSet<Host>,
}

impl BlockMap {
    /// The map of the disk in `file`, whose BAT lies at `bat` and in whose `reserved` spans no block may lie.
    pub(super) fn new(
        file: Arc<dyn HostFile>,
        metadata: &Metadata,
        bat: HostSpan,
        reserved: ExtentSet<Host>,
    ) -> Result<Self> {
        let shape =
            BatShape::new(metadata.virtual_bytes, metadata.block_bytes, metadata.logical_sector_bytes);
        let needed = shape.entry_count(metadata.has_parent) * 8;
        if needed > bat.len_bytes() {
            return Err(Error::corrupt(Corrupt::Bat).at(bat.start()).field(
                "length",
                bat.len_bytes(),
                format!("at least {needed} for a disk of {} bytes", metadata.virtual_bytes),
            ));
        }
        Ok(Self {
            metadata: Cached::new(file, CACHE_BYTES),
            bat,
            shape,
            virtual_bytes: metadata.virtual_bytes,
            sector_bytes: u64::from(metadata.logical_sector_bytes),
            has_parent: metadata.has_parent,
            reserved,
        })
    }

    /// The places of all blocks that are in the file, each checked: block, place, and bytes of it that count.
    pub(super) fn placed(&self, mut visit: impl FnMut(u64, HostOffset, u64) -> Result<()>) -> Result<()> {
        self.each_block(0, self.shape.block_count, |block, payload| match payload {
            Payload::Full(at) | Payload::Partial(at) => visit(block, at, self.stored_bytes(block)),
            Payload::NotPresent | Payload::Zero => Ok(()),
        })
    }

    /// Checks every entry, and that no two blocks share a byte.
    pub(super) fn check(&self) -> Result<()> {
        let file_bytes = self.metadata.below().len_bytes();
        if !self.can_check(file_bytes) {
            return Ok(());
        }
        let mut taken = TakenMib::new(file_bytes);
        let mut bitmap_of = None;
        self.each_block(0, self.shape.block_count, |block, payload| {
            if let Payload::Full(at) | Payload::Partial(at) = payload {
                let span = Span::new(at, self.stored_bytes(block));
                taken
                    .take(span)
                    .map_err(|shared| self.shared_error(self.shape.entry_of_block(block), shared))?;
            }
            let chunk = block / self.shape.chunk_ratio;
            if matches!(payload, Payload::Partial(_)) && bitmap_of != Some(chunk) {
                bitmap_of = Some(chunk);
                let span = Span::new(self.bitmap_at(block)?, BITMAP_BLOCK_BYTES);
                taken
                    .take(span)
                    .map_err(|shared| self.shared_error(self.shape.entry_of_bitmap(block), shared))?;
            }
            Ok(())
        })
    }

    fn can_check(&self, file_bytes: u64) -> bool {
        let bat_bytes = self.shape.entry_count(self.has_parent) * 8;
        bat_bytes <= CHECKED_BAT_BYTES_MAX && file_bytes <= CHECKED_FILE_BYTES_MAX
    }

    /// `Unsupported` if the image is too large for [`Self::check`].
    pub(super) fn check_all_checked(&self) -> Result<()> {
        if self.can_check(self.metadata.below().len_bytes()) {
            return Ok(());
        }
        Err(Error::unsupported("change in place of a VHDX of so many blocks").field(
            "number of blocks",
            self.shape.block_count,
            format!("at most {} in a file of 128 TiB", CHECKED_BAT_BYTES_MAX / 8),
        ))
    }

    /// The runs of `span`, which lies within the disk.
    pub(super) fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        if span.is_empty() {
            return Ok(runs);
        }
        let first = span.start().get() / self.shape.block_bytes;
        let end = span.end().get().div_ceil(self.shape.block_bytes);
        self.each_block(first, end, |block, payload| {
            let block_at = VirtualOffset::new(block * self.shape.block_bytes);
            let whole = Span::new(block_at, self.shape.block_bytes);
            let piece = whole.intersect(&span).expect("only blocks that overlap are looked at");
            let data = |offset: HostOffset| RunState::Data { file: FileIndex(0), offset };
            let state = match payload {
                Payload::NotPresent => RunState::Hole,
                Payload::Zero => RunState::Zero,
                Payload::Full(at) => data(at).advanced(piece.start().get() - block_at.get()),
                Payload::Partial(at) => return self.push_sectors(block, at, piece, &mut runs),
            };
            push_run(&mut runs, Run::new(piece, state));
            Ok(())
        })?;
        Ok(runs)
    }

    /// Appends the runs of `piece`, which lies within the partially present `block`, by the sector bitmap.
    fn push_sectors(
        &self,
        block: u64,
        at: HostOffset,
        piece: VirtualSpan,
        runs: &mut Vec<Run>,
    ) -> Result<()> {
        let bitmap_at = self.bitmap_at(block)?;
        let block_at = block * self.shape.block_bytes;
        // Bits count from the chunk's first sector. Read from a whole byte on.
        let chunk_at = block / self.shape.chunk_ratio * self.shape.chunk_ratio * self.shape.block_bytes;
        let first = (piece.start().get() - chunk_at) / self.sector_bytes;
        let end = (piece.end().get() - chunk_at).div_ceil(self.sector_bytes);
        let base = first / 8 * 8;
        let len = (end - base).div_ceil(8);
        let bitmap = read_vec(&self.metadata, bitmap_at.plus(base / 8), len, "VHDX sector bitmap")?;
        for (bits, is_here) in bitmap::runs(&bitmap, first - base..end - base, BitOrder::LowestFirst) {
            let offset_of = |bit: u64| VirtualOffset::new(chunk_at + (base + bit) * self.sector_bytes);
            let sectors = Span::between(offset_of(bits.start), offset_of(bits.end));
            let part = sectors.intersect(&piece).expect("the bits are those of the piece");
            let offset = at.plus(part.start().get() - block_at);
            let here = RunState::Data { file: FileIndex(0), offset };
            push_run(runs, Run::new(part, if is_here { here } else { RunState::Hole }));
        }
        Ok(())
    }

    /// Calls `visit` for the payload blocks from `first` up to `end`, reading the BAT in windows.
    fn each_block(
        &self,
        first: u64,
        end: u64,
        mut visit: impl FnMut(u64, Payload) -> Result<()>,
    ) -> Result<()> {
        let mut block = first;
        while block < end {
            let window_at = self.shape.entry_of_block(block);
            let last = self.shape.entry_of_block(end - 1);
            let count = (last + 1 - window_at).min(WINDOW_ENTRY_COUNT);
            let bytes = read_vec(&self.metadata, self.entry_at(window_at), count * 8, "VHDX BAT")?;
            let (entries, _) = bytes.as_chunks::<8>();
            while block < end {
                let index = self.shape.entry_of_block(block) - window_at;
                let entry = usize::try_from(index).ok().and_then(|index| entries.get(index));
                let Some(entry) = entry else { break };
                visit(block, self.payload(block, u64::from_le_bytes(*entry))?)?;
                block += 1;
            }
        }
        Ok(())
    }

    fn entry_at(&self, index: u64) -> HostOffset {
        self.bat.start().plus(index * 8)
    }

    fn entry_error(&self, index: u64) -> Error {
        Error::corrupt(Corrupt::BatEntry { index }).at(self.entry_at(index))
    }

    fn shared_error(&self, index: u64, shared: HostOffset) -> Error {
        Error::corrupt(Corrupt::SharedBatEntry { index, place: shared }).at(self.entry_at(index))
    }

    /// Bytes that a block must have in the file: those before the disk's end.
    fn stored_bytes(&self, block: u64) -> u64 {
        (self.virtual_bytes - block * self.shape.block_bytes).min(self.shape.block_bytes)
    }

    /// A payload entry's meaning (2.5.1.1), its place checked.
    fn payload(&self, block: u64, entry: u64) -> Result<Payload> {
        let index = self.shape.entry_of_block(block);
        match entry & BAT_STATE_MASK {
            0 => Ok(Payload::NotPresent),
            1..=3 => Ok(Payload::Zero),
            6 => Ok(Payload::Full(self.place(index, entry, self.stored_bytes(block))?)),
            7 if self.has_parent => {
                Ok(Payload::Partial(self.place(index, entry, self.stored_bytes(block))?))
            }
            state => {
                let expected = if self.has_parent {
                    "0 to 3, 6 or 7"
                } else {
                    "0 to 3, or 6 in a disk without a parent"
                };
                Err(self.entry_error(index).field("state", state, expected))
            }
        }
    }

    /// Where the sector bitmap that covers `block` lies (2.5.1.2).
    fn bitmap_at(&self, block: u64) -> Result<HostOffset> {
        let index = self.shape.entry_of_bitmap(block);
        let bytes = read_vec(&self.metadata, self.entry_at(index), 8, "VHDX BAT")?;
        let entry = u64::from_le_bytes(bytes.try_into().expect("8 bytes were read"));
        match entry & BAT_STATE_MASK {
            6 => self.place(index, entry, BITMAP_BLOCK_BYTES),
            state => {
                Err(self.entry_error(index).field("state", state, "6: a block of its chunk needs the bitmap"))
            }
        }
    }

    fn place(&self, index: u64, entry: u64, len_bytes: u64) -> Result<HostOffset> {
        let at = HostOffset::new(entry & BAT_OFFSET_MASK);
        let end = self.metadata.below().len_bytes();
        let is_apart = |span: &HostSpan| self.reserved.within(*span).next().is_none();
        match Span::checked(at, len_bytes).filter(|span| span.end().get() <= end && is_apart(span)) {
            Some(_) => Ok(at),
            None => Err(self.entry_error(index).field(
                "place",
                format!("{len_bytes:#x} bytes at {:#x}", at.get()),
                format!("outside headers, log and regions, below {end:#x}"),
            )),
        }
    }
}

/// Which MiB of the file belong to a block.
struct TakenMib(Vec<u64>);

impl TakenMib {
    /// `file_bytes` bounded by the caller.
    fn new(file_bytes: u64) -> Self {
        let words = usize::try_from(file_bytes.div_ceil(MIB).div_ceil(64)).expect("bounded by the caller");
        Self(vec![0; words])
    }

    /// Takes the MiB of `span`, which begins at one and lies in the file; fails with the first taken already.
    fn take(&mut self, span: HostSpan) -> Result<(), HostOffset> {
        for mib in span.start().get() / MIB..span.end().get().div_ceil(MIB) {
            let word = usize::try_from(mib / 64).ok().and_then(|word| self.0.get_mut(word));
            let (word, bit) = (word.expect("within the file"), 1 << (mib % 64));
            if *word & bit != 0 {
                return Err(HostOffset::new(mib * MIB));
            }
            *word |= bit;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_interleave_as_the_specification_counts_them() {
        // 2.5: ratio 2^23 * 512 / 32 MiB = 128.
        let shape = BatShape::new(10 << 30, 32 << 20, 512);
        assert_eq!((shape.chunk_ratio, shape.block_count), (128, 320));
        assert_eq!(shape.entry_of_block(127), 127);
        assert_eq!(shape.entry_of_bitmap(127), 128);
        assert_eq!(shape.entry_of_block(128), 129);
        assert_eq!(shape.entry_count(false), 320 + 319 / 128);
        assert_eq!(shape.entry_count(true), 3 * 129);
        assert_eq!(BatShape::new(0, 32 << 20, 512).entry_count(true), 0);
        assert_eq!(BatShape::new(1 << 40, 256 << 20, 512).chunk_ratio, 16);
        assert_eq!(BatShape::new(1 << 40, 1 << 20, 4096).chunk_ratio, 32_768);
    }
}
