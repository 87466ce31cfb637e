//! Whose is what lies in some stretches of the device: ext4 does not tell, XFS only with reverse mapping. So the files below some folders are
//! asked one by one where they lie, in as many turns as that takes.
//!
//! Invariants:
//! - between two turns nothing is open here;
//! - no link is followed and no other file system entered (`openat2(2)`), and no special file is opened;
//! - nothing is written back for the answers: what waits in the page cache has no place yet.
//!
//! What is renamed meanwhile may be missed, or a file may be found twice. Who relies on an answer asks the file again.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use block::Result;
use extent::{Device, Span};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};

use super::gather::GoesOn;
use super::room::left_alone;
use super::{GuardedSystem, Handle, open_folder};
use crate::fiemap::{RawPiece, pieces_now};

/// More folders are not remembered, and more pieces not kept: what is beyond stays unknown.
const FOLDERS_MAX: usize = 1 << 20;
const PIECES_MAX: usize = 1 << 16;
/// More files with several names are not told apart.
const INODES_MAX: usize = 1 << 20;

/// A file with the pieces of it that lie within the stretches.
#[derive(Clone, Debug)]
pub struct FoundFile {
    /// Which.
    pub handle: Handle,
    /// How long it is.
    pub size_bytes: u64,
    /// All its pieces.
    pub pieces: Vec<RawPiece>,
    /// It may be moved as far as the file itself is concerned.
    pub is_movable: bool,
}

/// A walk through the files of a file system.
#[derive(Debug)]
pub struct Walk {
    within: Vec<Span<Device>>,
    /// To be read, below a root, and how many of its entries were.
    folders: Vec<(PathBuf, PathBuf, usize)>,
    several_names: BTreeSet<u64>,
    found: Vec<FoundFile>,
    piece_count: usize,
}

impl Walk {
    /// Through everything below these folders, for what lies within these stretches.
    pub fn new(roots: &[PathBuf], within: &[Span<Device>]) -> Self {
        let folders = roots.iter().map(|root| (root.clone(), PathBuf::new(), 0)).collect();
        let mut within = within.to_vec();
        within.sort_by_key(Span::start);
        Self { within, folders, several_names: BTreeSet::new(), found: Vec::new(), piece_count: 0 }
    }

    /// Whether it is for these stretches.
    pub fn is_within(&self, within: &[Span<Device>]) -> bool {
        self.within == within
    }

    /// What was found.
    pub fn found(self) -> Vec<FoundFile> {
        self.found
    }

    /// Walks on; whether it came to the end.
    pub fn go(&mut self, system: &GuardedSystem, goes_on: &mut GoesOn<'_>) -> Result<bool> {
        while let Some((root, folder, read)) = self.folders.pop() {
            // One that is gone, or not to be entered, has nothing that may move.
            if let Ok(Some(read)) = self.folder(system, (&root, &folder), read, goes_on) {
                self.folders.push((root, folder, read));
                return Ok(false);
            }
            if self.piece_count >= PIECES_MAX {
                break;
            }
        }
        // One that is not there any more has found nothing.
        system.root().map(|_| true)
    }

    /// Reads a folder from an entry on; how many were read if it was to stop.
    fn folder(
        &mut self,
        system: &GuardedSystem,
        (root, folder): (&Path, &Path),
        skip: usize,
        goes_on: &mut GoesOn<'_>,
    ) -> io::Result<Option<usize>> {
        let top = open_folder(root)?;
        if top.metadata()?.dev() != system.device {
            return Ok(None);
        }
        let opened = open(&top, folder, OFlags::DIRECTORY)?;
        let mut below = Vec::new();
        let mut read = 0;
        let mut stopped = None;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            read += 1;
            if read <= skip || name == "." || name == ".." {
                continue;
            }
            match kind(&opened, name, entry.file_type()) {
                FileType::Directory => below.push((root.to_owned(), folder.join(name), 0)),
                FileType::RegularFile => self.file(system, &opened, name),
                _ => {}
            }
            if !goes_on(0) {
                stopped = Some(read);
                break;
            }
        }
        let room = FOLDERS_MAX.saturating_sub(self.folders.len());
        // Those below come after this one is finished, whatever becomes of the order.
        let at = self.folders.len();
        self.folders.splice(at.., below.into_iter().take(room));
        if let Some(read) = stopped {
            return Ok(Some(read));
        }
        Ok(None)
    }

    fn file(&mut self, system: &GuardedSystem, folder: &File, name: &OsStr) {
        // Gone, or somebody holds it.
        let Ok(file) = open(folder, Path::new(name), OFlags::NONBLOCK) else { return };
        let Ok(facts) = file.metadata() else { return };
        if !facts.is_file() || facts.dev() != system.device || facts.blocks() == 0 {
            return;
        }
        if facts.nlink() > 1
            && (self.several_names.len() >= INODES_MAX || !self.several_names.insert(facts.ino()))
        {
            return;
        }
        let Ok(Some(pieces)) = pieces_now(&file, "a file") else { return };
        let count = pieces.iter().filter(|piece| self.is_sought(piece)).count();
        let Ok(handle) = Handle::of(&file) else { return };
        if count > 0 {
            let is_movable = left_alone(&file).is_ok_and(|left| left.is_none());
            self.piece_count += pieces.len();
            self.found.push(FoundFile { handle, size_bytes: facts.size(), pieces, is_movable });
        }
    }

    fn is_sought(&self, piece: &RawPiece) -> bool {
        let end = piece.physical.saturating_add(piece.len_bytes);
        let first = self.within.partition_point(|span| span.end().get() <= piece.physical);
        self.within.get(first).is_some_and(|span| span.start().get() < end)
    }
}

fn open(folder: &File, path: &Path, more: OFlags) -> io::Result<File> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOATIME | OFlags::NOFOLLOW | more;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    Ok(File::from(openat2(folder, path, flags, Mode::empty(), resolve)?))
}

/// What an entry is, also where the folder does not say.
fn kind(folder: &File, name: &OsStr, told: FileType) -> FileType {
    if told != FileType::Unknown {
        return told;
    }
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode))
}
