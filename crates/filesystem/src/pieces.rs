//! A file that lies in pieces of its volume, to be read as its guest reads it: holes and what was never written are zeros.

use block::{Error, ReadAt, Result, check_bounds};
use extent::{File, FileOffset, Span};

use crate::Source;
use crate::browse::Contents;
use crate::files::{FileExtent, PieceState};

/// See the module.
pub(crate) struct Pieces {
    pub(crate) source: Source,
    pub(crate) size_bytes: u64,
    /// In the order of the file.
    pub(crate) extents: Vec<FileExtent>,
}

impl Pieces {
    /// The extent that holds the byte at `at`, or else where the next one begins.
    fn find(&self, at: u64) -> Result<&FileExtent, u64> {
        let end = |extent: &FileExtent| extent.logical.get().saturating_add(extent.span.len_bytes());
        let index = self.extents.partition_point(|extent| end(extent) <= at);
        match self.extents.get(index) {
            Some(extent) if extent.logical.get() <= at => Ok(extent),
            Some(extent) => Err(extent.logical.get()),
            None => Err(u64::MAX),
        }
    }

    /// Fills the front of `buf` with what lies in one piece from `at` on; answers how many bytes that were.
    fn read_piece(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let up_to = |left: u64| usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        match self.find(at) {
            Err(next) => {
                let len = up_to(next - at);
                buf[..len].fill(0);
                Ok(len)
            }
            Ok(extent) => {
                let skip = at - extent.logical.get();
                let len = up_to(extent.span.len_bytes() - skip);
                match extent.state {
                    PieceState::Written => {
                        self.source.read_at(extent.span.start().plus(skip), &mut buf[..len])?;
                    }
                    PieceState::Unwritten => buf[..len].fill(0),
                    PieceState::Compressed => return Err(Error::unsupported("a compressed file")),
                }
                Ok(len)
            }
        }
    }
}

impl ReadAt<File> for Pieces {
    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.size_bytes)?;
        let mut done = 0;
        while done < buf.len() {
            done += self.read_piece(at.get() + done as u64, &mut buf[done..])?;
        }
        Ok(())
    }
}

impl Contents for Pieces {
    fn next_data(&self, at: FileOffset) -> Result<Option<Span<File>>> {
        let size = FileOffset::new(self.size_bytes);
        let end = |extent: &FileExtent| {
            FileOffset::new(extent.logical.get().saturating_add(extent.span.len_bytes())).min(size)
        };
        let index = self.extents.partition_point(|extent| end(extent) <= at);
        let found = self.extents[index..].iter().find(|extent| extent.state != PieceState::Unwritten);
        Ok(found
            .map(|extent| (extent.logical.max(at), end(extent)))
            .filter(|(start, end)| start < end)
            .map(|(start, end)| Span::between(start, end)))
    }
}
