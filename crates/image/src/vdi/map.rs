//! From the virtual disk to the file: the block map.

use std::sync::Arc;

use block::{Cached, Error, FileIndex, HostFile, ReadAt, Result, Run, RunState, push_run, read_vec};
use extent::{Host, HostOffset, Span, VirtualSpan};

use super::corrupt::Corrupt;
use super::layout::*;
use super::parse::Header;
use crate::owners::Owners;

/// Map entries read at once: a disk of 4 GiB.
const BATCH_ENTRY_COUNT: u64 = 4096;
/// Memory for the map: that of 4 TiB.
const CACHE_BYTES: u64 = 16 << 20;

/// The block map, read through a bounded cache.
pub(super) struct Map {
    header: Header,
    file: Cached<Host, Arc<dyn HostFile>>,
}

impl Map {
    pub(super) fn new(header: Header, file: Arc<dyn HostFile>) -> Self {
        Self { header, file: Cached::new(file, CACHE_BYTES) }
    }

    /// See [`crate::Layer::map`].
    pub(super) fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for part in span.split(BATCH_ENTRY_COUNT * self.header.block_bytes) {
            self.map_batch(part, &mut runs)?;
        }
        Ok(runs)
    }

    /// `Refused` if two blocks of the disk lie in one place. What lies before the blocks is apart from them since the
    /// header was checked.
    pub(super) fn check_owners(&self) -> Result<()> {
        let Header { block_bytes, block_extra_bytes, data_at, disk_bytes, .. } = self.header;
        // Units are places for blocks, counted from the first one.
        let unit_bytes = block_bytes + block_extra_bytes;
        let places_bytes = self.file.len_bytes().saturating_sub(data_at).next_multiple_of(unit_bytes);
        let mut owners = Owners::new(places_bytes, unit_bytes)?;
        for window in Span::from_zero(disk_bytes).split(BATCH_ENTRY_COUNT * block_bytes) {
            for run in self.map(window)? {
                let RunState::Data { offset, .. } = run.state else { continue };
                for block in run.span.split(block_bytes) {
                    let skipped = block.start().get() - run.span.start().get();
                    let place = offset.get() + skipped - block_extra_bytes - data_at;
                    owners.take(Span::new(HostOffset::new(place), unit_bytes)).map_err(|place| {
                        Error::refused("two blocks of the VDI lie in one place")
                            .at(HostOffset::new(data_at + place.get()))
                            .hint("it is damaged: copy it to a new disk, and check that")
                    })?;
                }
            }
        }
        Ok(())
    }

    fn map_batch(&self, part: VirtualSpan, runs: &mut Vec<Run>) -> Result<()> {
        let block_bytes = self.header.block_bytes;
        let first = part.start().get() / block_bytes;
        let count = (part.end().get().div_ceil(block_bytes)).saturating_sub(first);
        let bytes = read_vec(&self.file, self.entry_at(first), count * 4, "VDI block map")?;
        for ((piece, entry), block) in part.split(block_bytes).zip(bytes.chunks_exact(4)).zip(first..) {
            let entry = u32::from_le_bytes(entry.try_into().expect("4 bytes"));
            let whole = Run::new(self.block_span(block), self.state(block, entry)?);
            push_run(runs, whole.clipped(&piece).expect("a piece lies within its block"));
        }
        Ok(())
    }

    fn entry_at(&self, block: u64) -> HostOffset {
        self.header.map_at.plus(block * 4)
    }

    /// The last block may reach past the disk's end.
    fn block_span(&self, block: u64) -> VirtualSpan {
        let start = block * self.header.block_bytes;
        Span::new(extent::Offset::new(start), self.header.block_bytes.min(self.header.disk_bytes - start))
    }

    fn state(&self, block: u64, entry: u32) -> Result<RunState> {
        match entry {
            BLOCK_FREE => return Ok(RunState::Hole),
            BLOCK_ZERO => return Ok(RunState::Zero),
            _ => {}
        }
        let Header { block_bytes, block_extra_bytes, data_at, .. } = &self.header;
        // Below 2^32 blocks of below 2^31 bytes: no overflow.
        let start = data_at + u64::from(entry) * (block_bytes + block_extra_bytes) + block_extra_bytes;
        let file_len_bytes = self.file.len_bytes();
        if start + self.block_span(block).len_bytes() > file_len_bytes {
            return Err(Error::corrupt(Corrupt::BlockMap)
                .field(
                    format!("entry {block}"),
                    entry,
                    format!("a block below the file's end at {file_len_bytes:#x}"),
                )
                .at(self.entry_at(block)));
        }
        Ok(RunState::Data { file: FileIndex(0), offset: HostOffset::new(start) })
    }
}
