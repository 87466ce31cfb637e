//! Where blocks of one file lie once relocations happened.

use block::{Error, Result};
use extent::{Offset, Span, VolumeSpan};

use super::super::inode::InodeNumber;
use super::super::superblock::{BlockNumber, Superblock};
use super::super::tree::FileExtent;
use crate::files::FileId;
use crate::rearrange::{Relocation, Relocations};

/// What of the relocations is about one file.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    superblock: &'a Superblock,
    relocations: &'a Relocations,
    file: InodeNumber,
}

impl<'a> Places<'a> {
    pub(super) fn new(superblock: &'a Superblock, relocations: &'a Relocations, file: InodeNumber) -> Self {
        Self { superblock, relocations, file }
    }

    /// Where a joined extent lies afterwards, and how many bytes moved. `Invalid` unless it moves as a whole or not at all.
    pub(super) fn extent(&self, extent: FileExtent) -> Result<(FileExtent, u64)> {
        let span = clusters_of(self.superblock, &extent);
        let mut departures = self.relocations.departures(span);
        let Some(departure) = departures.next() else {
            return Ok((extent, 0));
        };
        if departure.from != span {
            return Err(self.invalid("a part of an extent", departure));
        }
        if departure.file != FileId(self.file.into()) {
            return Err(self.invalid("what is another's", departure));
        }
        let start = departure.to.get() / u64::from(self.superblock.block_bytes);
        Ok((FileExtent { start, ..extent }, span.len_bytes()))
    }

    /// Where a block lies afterwards.
    pub(super) fn block(&self, block: BlockNumber) -> BlockNumber {
        let span = Span::new(self.superblock.offset_of(block), self.superblock.block_bytes.into());
        let departure = self.relocations.departures(span).next();
        departure.map_or(block, |departure| departure.to.get() / u64::from(self.superblock.block_bytes))
    }

    fn invalid(&self, what: &str, departure: Relocation) -> Error {
        Error::invalid(format!("a relocation of ext inode {} moves {what}", self.file))
            .at(departure.from.start())
    }
}

/// All clusters of which `extent`, which begins with one, has a part.
pub(super) fn clusters_of(superblock: &Superblock, extent: &FileExtent) -> VolumeSpan {
    let count = extent.count.next_multiple_of(u64::from(superblock.cluster_blocks));
    Span::new(superblock.offset_of(extent.start), count * u64::from(superblock.block_bytes))
}

/// Bytes that move of each file, ascending. `Invalid` unless all relocations are of whole clusters of the volume, and of
/// inodes that there are.
pub(super) fn moved_bytes(
    superblock: &Superblock,
    relocations: &Relocations,
) -> Result<Vec<(InodeNumber, u64)>> {
    let mut moved = Vec::new();
    for relocation in relocations.by_source() {
        let spans = [relocation.from, relocation.to_span()];
        if !spans.iter().all(|span| is_clusters(superblock, span)) {
            let what = "a relocation of what is no whole clusters of the ext volume";
            return Err(Error::invalid(what).at(relocation.from.start()));
        }
        let inode = u32::try_from(relocation.file.0).ok();
        let inode = inode.filter(|number| (1..=superblock.inodes_count).contains(number));
        let Some(inode) = inode else {
            return Err(Error::invalid(format!(
                "a relocation of inode {}, which is none",
                relocation.file.0
            )));
        };
        moved.push((inode, relocation.from.len_bytes()));
    }
    moved.sort_unstable_by_key(|(inode, _)| *inode);
    moved.dedup_by(|(later, bytes), (inode, sum)| {
        let same = later == inode;
        if same {
            *sum += *bytes;
        }
        same
    });
    Ok(moved)
}

fn is_clusters(superblock: &Superblock, span: &VolumeSpan) -> bool {
    let start = superblock.offset_of(superblock.first_data_block);
    let managed = Span::between(start, Offset::new(superblock.end_bytes()));
    let cluster_bytes = u64::from(superblock.cluster_blocks) * u64::from(superblock.block_bytes);
    managed.covers(span)
        && (span.start().get() - start.get()).is_multiple_of(cluster_bytes)
        && span.len_bytes().is_multiple_of(cluster_bytes)
}
