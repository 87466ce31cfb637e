//! Swap files: their contents mean nothing once the guest is off, unless it is hibernated in one.
//!
//! They are told by their header, not by their name: a regular file of root's, without holes, whose first page
//! is a whole and valid swap header for just that size. Small files are not looked into: they would save less than looking
//! costs, and no system fits into one.

use block::{Error, Result};
use extent::{ExtentSet, Span, Volume, VolumeSpan};

use super::inode::{Inode, InodeNumber};
use super::superblock::Superblock;
use super::tree::{self, Collector, FileExtent};
use crate::Source;
use crate::swap::header::{self, Found, Header};

/// What is smaller is taken as a file like any other. The kernel takes areas of ten pages, but hibernates only into one that
/// holds all that is in use, of which its own code and data alone are more.
pub(super) const SIZE_BYTES_MIN: u64 = 1 << 20;
/// Swap areas are whole pages, the smallest of which is that large.
pub(super) const SIZE_STEP_BYTES: u64 = 4096;
/// How many files are looked into, the largest first.
pub(super) const CANDIDATES_MAX: usize = 4096;
/// A swap file in more pieces than that is taken as a file like any other.
const PIECES_MAX: usize = 1 << 16;

/// A swap file.
pub(super) struct SwapFile {
    pub(super) inode: Inode,
    /// Where its pages lie, without its header.
    pub(super) pages: Vec<VolumeSpan>,
}

/// What lies in swap files.
pub(super) fn pages(files: &[SwapFile]) -> ExtentSet<Volume> {
    files.iter().flat_map(|file| &file.pages).copied().collect()
}

/// Those of the `candidates` that are swap files. Fails if the guest is hibernated in one.
pub(super) fn find(
    source: &Source,
    superblock: &Superblock,
    candidates: &[InodeNumber],
) -> Result<Vec<SwapFile>> {
    let mut files = Vec::new();
    for number in candidates {
        let inode = Inode::read(source, superblock, *number)?;
        if let Some(pages) = probe(source, superblock, &inode)? {
            files.push(SwapFile { inode, pages });
        }
    }
    Ok(files)
}

/// The spans of the inode's contents behind its header, if it is a swap file.
fn probe(source: &Source, superblock: &Superblock, inode: &Inode) -> Result<Option<Vec<VolumeSpan>>> {
    let blocks = inode.size_bytes.div_ceil(u64::from(superblock.block_bytes));
    let mut collector = Collector::new(superblock, blocks, PIECES_MAX);
    match tree::walk(source, superblock, inode, &mut collector) {
        // In more pieces than are looked at: its blocks were checked before.
        Err(error) if error.kind() == block::ErrorKind::Unsupported => return Ok(None),
        other => other?,
    }
    // Most files show in their first block that they are none.
    let block =
        read_first(source, superblock, &collector.extents, inode.size_bytes.min(header::PAGE_BYTES_MIN))?;
    if !header::may_be(&block) {
        return Ok(None);
    }
    let first = read_first(source, superblock, &collector.extents, inode.size_bytes)?;
    match header::examine(&first) {
        Found::Hibernated { signature } => Err(Error::refused(format!(
            "the guest is hibernated in its swap file, inode {} (signature {signature})",
            inode.number
        ))),
        Found::Swap(header)
            if header.area_bytes() == inode.size_bytes / header.page_bytes * header.page_bytes =>
        {
            Ok(Some(contents(superblock, &collector.extents, &header)))
        }
        Found::Swap(_) | Found::Old | Found::Broken(_) | Found::None => Ok(None),
    }
}

/// The file's first bytes, as many as the largest page has; unwritten ones are zeros.
fn read_first(
    source: &Source,
    superblock: &Superblock,
    extents: &[FileExtent],
    size_bytes: u64,
) -> Result<Vec<u8>> {
    let len_bytes = size_bytes.min(header::PAGE_BYTES_MAX);
    let index = |bytes: u64| usize::try_from(bytes).expect("at most a page");
    let mut first = vec![0; index(len_bytes)];
    let block_bytes = u64::from(superblock.block_bytes);
    for extent in extents.iter().filter(|extent| !extent.unwritten) {
        let from = extent.logical.saturating_mul(block_bytes);
        let to = (extent.logical + extent.count).saturating_mul(block_bytes).min(len_bytes);
        if from < to {
            source.read_at(superblock.offset_of(extent.start), &mut first[index(from)..index(to)])?;
        }
    }
    Ok(first)
}

/// Where the pages behind the header lie.
fn contents(superblock: &Superblock, extents: &[FileExtent], header: &Header) -> Vec<VolumeSpan> {
    let block_bytes = u64::from(superblock.block_bytes);
    let (from, to) = (header.page_bytes, header.area_bytes());
    extents
        .iter()
        .filter_map(|extent| {
            let start = extent.logical * block_bytes;
            let (first, end) = (start.max(from), (start + extent.count * block_bytes).min(to));
            let at = superblock.offset_of(extent.start).checked_add(first.checked_sub(start)?)?;
            (first < end).then(|| Span::new(at, end - first))
        })
        .collect()
}
