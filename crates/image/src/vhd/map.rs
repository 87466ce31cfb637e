//! From virtual offsets to places in the file.
//!
//! A block that a dynamic disk holds is data as a whole: its sector bitmap is not asked. The bitmap tells
//! which sectors were ever written, and programs that keep it poorly (QEMU sets all of it, others none) exist,
//! while a sector that was never written has no contents to lose. In a differencing disk the bitmap decides,
//! sector by sector, between this file and the parent.

use std::sync::Arc;

use block::{
    Cached, Error, FieldValue, FileIndex, HostFile, Result, Run, RunState, push_run, read_struct, read_vec,
};
use extent::{Extent, Host, HostOffset, HostSpan, Span, Virtual, VirtualOffset, VirtualSpan};
use zerocopy::byteorder::big_endian::U32;

use super::bitmap::{self, BitOrder};
use super::corrupt::Corrupt;
use super::layout::{BAT_UNUSED, FOOTER_BYTES, SECTOR_BYTES};
use super::parse::Dynamic;
use crate::Backing;
use crate::layer::push_backing;

/// Memory for pieces of the BAT and for sector bitmaps.
const CACHE_BYTES: u64 = 4 << 20;
/// The most entries that are checked against each other when the image is opened: 16 MiB of BAT, 8 TiB of
/// blocks of the usual size. Above it every entry is still checked by itself when it is used.
const CHECKED_ENTRY_COUNT_MAX: u64 = 4 << 20;
/// Entries of the BAT read at once for that.
const WINDOW_ENTRY_COUNT: u64 = 16 << 10;

/// The blocks of a dynamic or differencing disk.
pub(super) struct BlockMap {
    metadata: Cached<Host, Arc<dyn HostFile>>,
    dynamic: Dynamic,
    virtual_bytes: u64,
    /// No block's data may lie at or past this.
    data_end: u64,
    /// Whether the sector bitmaps decide.
    is_differencing: bool,
}

impl BlockMap {
    pub(super) fn new(
        file: Arc<dyn HostFile>,
        dynamic: Dynamic,
        virtual_bytes: u64,
        data_end: u64,
        is_differencing: bool,
    ) -> Self {
        let metadata = Cached::new(file, CACHE_BYTES);
        Self { metadata, dynamic, virtual_bytes, data_end, is_differencing }
    }

    /// Checks every BAT entry, and that no two blocks share a byte.
    pub(super) fn check(&self) -> Result<()> {
        if self.dynamic.block_count > CHECKED_ENTRY_COUNT_MAX {
            return Ok(());
        }
        let mut placed = self.placed_blocks()?;
        placed.sort_unstable();
        for pair in placed.windows(2) {
            let [(first_sector, first), (second_sector, second)] = [pair[0], pair[1]];
            let len = self.stored_bytes(u64::from(first));
            if u64::from(second_sector - first_sector) * SECTOR_BYTES < len {
                return Err(self.entry_error(u64::from(second)).field(
                    "sector",
                    FieldValue::hex(second_sector),
                    format!("apart from block {first} at sector {first_sector:#x}"),
                ));
            }
        }
        Ok(())
    }

    /// `Unsupported` if there are too many blocks for [`Self::check`].
    pub(super) fn check_all_checked(&self) -> Result<()> {
        if self.dynamic.block_count <= CHECKED_ENTRY_COUNT_MAX {
            return Ok(());
        }
        Err(Error::unsupported("change in place of a VHD of so many blocks").field(
            "number of blocks",
            self.dynamic.block_count,
            format!("at most {CHECKED_ENTRY_COUNT_MAX}"),
        ))
    }

    /// See [`crate::Layer::backing`]. Sectors whose bit is clear count as not there: a program that asks the bitmap
    /// would not see what is written to them.
    pub(super) fn backing(&self, span: VirtualSpan) -> Result<Vec<Extent<Virtual, Backing>>> {
        let mut all = Vec::new();
        let mut runs = Vec::new();
        for piece in span.split(self.dynamic.block_bytes) {
            let index = piece.start().get() / self.dynamic.block_bytes;
            let entry: U32 = read_struct(&self.metadata, self.entry_at(index), "VHD BAT entry")?;
            runs.clear();
            match self.place(index, entry.get())? {
                None => runs.push(Run::new(piece, RunState::Hole)),
                Some(place) => self.push_sectors(&place, piece, &mut runs)?,
            }
            runs.iter().for_each(|run| push_backing(&mut all, run.span, Backing::of(run.state)));
        }
        Ok(all)
    }

    /// What every block takes in the file, bitmap and data, each checked by itself.
    pub(super) fn placed(&self, mut visit: impl FnMut(u64, HostSpan) -> Result<()>) -> Result<()> {
        self.placed_blocks()?.into_iter().try_for_each(|(sector, index)| {
            let at = HostOffset::new(u64::from(sector) * SECTOR_BYTES);
            visit(u64::from(index), Span::new(at, self.stored_bytes(u64::from(index))))
        })
    }

    /// Sector and index of every block in the file, each checked by itself.
    fn placed_blocks(&self) -> Result<Vec<(u32, u32)>> {
        let mut placed = Vec::new();
        let mut index = 0;
        while index < self.dynamic.block_count {
            let len = (self.dynamic.block_count - index).min(WINDOW_ENTRY_COUNT) * 4;
            let bytes = read_vec(self.metadata.below(), self.entry_at(index), len, "VHD BAT")?;
            for entry in bytes.as_chunks::<4>().0 {
                let sector = u32::from_be_bytes(*entry);
                if self.place(index, sector)?.is_some() {
                    placed.push((sector, u32::try_from(index).expect("the BAT counts in 32 bits")));
                }
                index += 1;
            }
        }
        Ok(placed)
    }

    /// The runs of `span`, which lies within the disk.
    pub(super) fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for piece in span.split(self.dynamic.block_bytes) {
            let index = piece.start().get() / self.dynamic.block_bytes;
            let entry: U32 = read_struct(&self.metadata, self.entry_at(index), "VHD BAT entry")?;
            match self.place(index, entry.get())? {
                None => push_run(&mut runs, Run::new(piece, RunState::Hole)),
                Some(place) if self.is_differencing => self.push_sectors(&place, piece, &mut runs)?,
                Some(place) => push_run(&mut runs, Run::new(piece, place.state_at(piece.start()))),
            }
        }
        Ok(runs)
    }

    /// Appends the runs of `piece`, which lies within one block, by the block's sector bitmap.
    fn push_sectors(&self, place: &Place, piece: VirtualSpan, runs: &mut Vec<Run>) -> Result<()> {
        let what = "VHD sector bitmap";
        let bitmap = read_vec(&self.metadata, place.bitmap.start(), place.bitmap.len_bytes(), what)?;
        let first = (piece.start().get() - place.block_at.get()) / SECTOR_BYTES;
        let end = (piece.end().get() - place.block_at.get()).div_ceil(SECTOR_BYTES);
        for (bits, is_here) in bitmap::runs(&bitmap, first..end, BitOrder::HighestFirst) {
            let at = |bit: u64| place.block_at.plus(bit * SECTOR_BYTES);
            let sectors = Span::between(at(bits.start), at(bits.end));
            let part = sectors.intersect(&piece).expect("the bits are those of the piece");
            let state = if is_here { place.state_at(part.start()) } else { RunState::Hole };
            push_run(runs, Run::new(part, state));
        }
        Ok(())
    }

    fn entry_at(&self, index: u64) -> HostOffset {
        self.dynamic.bat.start().plus(index * 4)
    }

    fn entry_error(&self, index: u64) -> Error {
        Error::corrupt(Corrupt::BatEntry { index }).at(self.entry_at(index))
    }

    /// Bytes that block `index` must have in the file: those before the disk's end.
    fn stored_bytes(&self, index: u64) -> u64 {
        let start = index * self.dynamic.block_bytes;
        let len = (self.virtual_bytes - start).min(self.dynamic.block_bytes);
        self.dynamic.bitmap_bytes + len
    }

    /// Where block `index` lies, checked against all that is not data.
    fn place(&self, index: u64, sector: u32) -> Result<Option<Place>> {
        if sector == BAT_UNUSED {
            return Ok(None);
        }
        let at = HostOffset::new(u64::from(sector) * SECTOR_BYTES);
        let stored = Span::new(at, self.stored_bytes(index));
        let reserved = [Span::from_zero(FOOTER_BYTES), self.dynamic.header, self.dynamic.bat];
        if stored.end().get() > self.data_end || reserved.iter().any(|span| span.intersect(&stored).is_some())
        {
            return Err(self.entry_error(index).field(
                "sector",
                FieldValue::hex(sector),
                format!("a block after the BAT that ends at or below {:#x}", self.data_end),
            ));
        }
        let bitmap = Span::new(at, self.dynamic.bitmap_bytes);
        let block_at = VirtualOffset::new(index * self.dynamic.block_bytes);
        Ok(Some(Place { bitmap, block_at }))
    }
}

/// Where a block lies.
struct Place {
    bitmap: HostSpan,
    /// The block's first byte on the virtual disk.
    block_at: VirtualOffset,
}

impl Place {
    fn state_at(&self, at: VirtualOffset) -> RunState {
        let offset = self.bitmap.end().plus(at.get() - self.block_at.get());
        RunState::Data { file: FileIndex(0), offset }
    }
}
