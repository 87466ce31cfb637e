//! What one pass over a file system's metadata finds: files, their streams, where these lie, and their names.

use block::{Error, Result};
use extent::{FileOffset, VolumeSpan};

use crate::fault;

/// A file's number within its file system: that of its inode, or of its base file record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// What a file is to its guest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileKind {
    /// A file with contents.
    Regular,
    /// A directory, the root included.
    Directory,
    /// A symbolic link.
    Symlink,
    /// One that the file system keeps for itself, such as `$MFT` or a journal.
    Metadata,
    /// A device, a pipe, a socket.
    Other,
}

impl FileKind {
    /// One word for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Metadata => "metadata",
            Self::Other => "other",
        }
    }
}

/// Which of a file's streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StreamName<'a> {
    /// What reading the file gives; of a directory, its entries.
    Main,
    /// Another one, as NTFS writes it behind the file's name and a colon: `name`, or `name:$TYPE` of what is no
    /// `$DATA`. Bytes as in [`FileName::name`].
    Named(&'a [u8]),
}

/// A stream of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileStream<'a> {
    /// The file.
    pub file: FileId,
    /// What the file is.
    pub kind: FileKind,
    /// Which stream of it.
    pub name: StreamName<'a>,
    /// Its length.
    pub size_bytes: u64,
    /// Whether its contents lie within the metadata: it has no extents then.
    pub is_inline: bool,
}

/// What is where a file's extent lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PieceState {
    /// The file's bytes, as they are (or encrypted in place).
    Written,
    /// Allocated, but reads as zeros whatever is there.
    Unwritten,
    /// A compressed part: its length on the volume is that of the compressed form.
    Compressed,
}

/// A contiguous piece of a stream. Holes have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileExtent {
    /// Where in the stream it begins.
    pub logical: FileOffset,
    /// Where it lies.
    pub span: VolumeSpan,
    /// What is there.
    pub state: PieceState,
}

/// A name of a file in a directory.
#[derive(Clone, Copy, Debug)]
pub struct FileName<'a> {
    /// The file.
    pub file: FileId,
    /// The directory. The root's name is empty, and its parent is itself.
    pub parent: FileId,
    /// Untrusted bytes: UTF-8 if the name is proper text. UTF-16 with a surrogate that stands alone has that as
    /// three bytes, as in WTF-8.
    pub name: &'a [u8],
}

/// Sees what a scan finds.
///
/// Streams come by ascending [`FileId`], a file's main stream before its others; every file has a main stream, if
/// only an inline one of no bytes. Extents come in the stream's order. Names come in any order, also before or
/// after the streams of their file; of NTFS's names those for DOS are left out where the file has a long one.
pub trait FileVisitor {
    /// A stream with its extents.
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent]);

    /// A name.
    fn name(&mut self, name: FileName<'_>);

    /// What could not be understood, of a file or (`None`) of the volume: a message for people.
    fn doubt(&mut self, file: Option<FileId>, why: String);
}

/// Makes a doubt of an error, about a file or (`None`) the volume; that of a failed read stays an error.
pub(crate) fn tolerate(visitor: &mut dyn FileVisitor, file: Option<FileId>, error: Error) -> Result<()> {
    visitor.doubt(file, fault::of_volume(error)?.to_string());
    Ok(())
}

/// Counts contiguous runs among extents that come in a stream's order.
#[derive(Clone, Copy, Debug)]
pub struct Fragments {
    spans_holes: bool,
    last: Option<(u64, u64, u64)>,
    count: u64,
}

impl Fragments {
    /// A piece belongs to the run before it if it lies where that ends, whether or not a hole is between them; or in the
    /// very same place, as parts of one compressed unit do.
    pub fn of_adjacent() -> Self {
        Self { spans_holes: false, last: None, count: 0 }
    }

    /// As [`Self::of_adjacent`]; and a piece after a hole also if it lies where it would without the hole: as
    /// filefrag counts.
    pub fn as_filefrag() -> Self {
        Self { spans_holes: true, ..Self::of_adjacent() }
    }

    /// Takes the next piece, `len_bytes` of the stream's `logical` at `physical`.
    pub fn push(&mut self, logical: u64, physical: u64, len_bytes: u64) {
        let piece = (logical, physical, len_bytes);
        let follows = self.last.is_some_and(|last| self.follows(last, piece));
        self.count += u64::from(!follows);
        self.last = Some(piece);
    }

    /// Whether a piece belongs to the run of the one before it: `logical`, `physical` and `len_bytes` of each.
    pub fn follows(&self, last: (u64, u64, u64), next: (u64, u64, u64)) -> bool {
        let ((last_logical, last_physical, last_len), (logical, physical, len_bytes)) = (last, next);
        let adjacent = last_physical.saturating_add(last_len) == physical
            || (last_physical, last_len) == (physical, len_bytes);
        let past_hole =
            || self.spans_holes && logical.wrapping_sub(last_logical) == physical.wrapping_sub(last_physical);
        adjacent || past_hole()
    }

    /// How many runs there are.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(mut fragments: Fragments, pieces: &[(u64, u64, u64)]) -> u64 {
        for &(logical, physical, len_bytes) in pieces {
            fragments.push(logical, physical, len_bytes);
        }
        fragments.count()
    }

    #[test]
    fn runs_are_counted_by_either_rule() {
        let cases = [
            (&[][..], 0, 0),
            (&[(0, 100, 10), (10, 110, 5)], 1, 1),
            (&[(0, 100, 10), (10, 111, 5)], 2, 2),
            (&[(0, 100, 10), (20, 110, 5)], 1, 1),
            (&[(0, 100, 10), (20, 120, 5)], 2, 1),
            (&[(0, 100, 10), (10, 90, 10)], 2, 2),
        ];
        for (pieces, adjacent, filefrag) in cases {
            assert_eq!(count(Fragments::of_adjacent(), pieces), adjacent, "{pieces:?}");
            assert_eq!(count(Fragments::as_filefrag(), pieces), filefrag, "{pieces:?}");
        }
    }
}
