//! Operations carried out on a mounted file system.
//!
//! What is written gets its places at once, from this thread: otherwise the kernel's writers would choose when, and the same list would end
//! in other places each time.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use block::{Error, Result};

use super::operations::{Act, FileKind, Operation};
use crate::content::Content;
use crate::workspace::write_back;

/// What is written at a time.
const CHUNK_BYTES: usize = 1 << 16;
/// Files of a folder.
const FOLDER_FILES: u64 = 200;

/// Carries out one list, in a folder of its own.
pub(crate) struct Performer {
    folder: PathBuf,
    content: Content,
    /// Lengths of the files that are there.
    lens: HashMap<u64, u64>,
    care: Care,
}

/// What has changes get and give up places at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Care {
    /// Writing it out.
    WriteOut,
    /// A flush: Btrfs writes its trees when it likes until then.
    Flush,
    /// Writing it out; and XFS is asked to finish with files that were removed.
    WriteOutAndFinish,
}

impl Performer {
    pub(crate) fn new(folder: PathBuf, seed: u64, care: Care) -> Self {
        Self { folder, content: Content::new(CHUNK_BYTES, seed), lens: HashMap::new(), care }
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.lens.values().sum()
    }

    /// Has the storage have everything. The folder is there from then on.
    ///
    /// Twice: ext4 gives room that was freed to others a moment after it has said that all is stored, but before it stores anything else.
    pub(crate) fn settle(&self) -> Result<()> {
        fs::create_dir_all(&self.folder).map_err(|error| failed("make", &self.folder, error))?;
        write_back(&self.folder)?;
        let changed = File::open(&self.folder).and_then(|folder| folder.set_modified(SystemTime::now()));
        changed.map_err(|error| failed("settle", &self.folder, error))?;
        write_back(&self.folder)
    }

    fn path(&self, kind: FileKind, file: u64) -> PathBuf {
        let folder = self.folder.join(kind.folder()).join((file / FOLDER_FILES).to_string());
        folder.join(format!("{file}.dat"))
    }

    /// Does it. Answers how many bytes were written.
    pub(crate) fn perform(&mut self, operation: Operation) -> Result<u64> {
        let path = self.path(operation.kind, operation.file);
        let len = self.lens.get(&operation.file).copied().unwrap_or(0);
        let done = match operation.act {
            Act::Make { bytes } => self.make(&path, bytes).map(|()| Some(bytes)),
            Act::Append { bytes } => self.write(&path, len, bytes).map(|()| Some(len + bytes)),
            Act::Overwrite { at, bytes } => self.write(&path, at, bytes).map(|()| Some(len)),
            Act::Replace { bytes } => self.replace(&path, bytes).map(|()| Some(bytes)),
            Act::Remove => self.remove(&path).map(|()| None),
        };
        match done.map_err(|error| failed("write", &path, error))? {
            Some(len) => self.lens.insert(operation.file, len),
            None => self.lens.remove(&operation.file),
        };
        Ok(match operation.act {
            Act::Make { bytes }
            | Act::Append { bytes }
            | Act::Overwrite { bytes, .. }
            | Act::Replace { bytes } => bytes,
            Act::Remove => 0,
        })
    }

    fn make(&mut self, path: &Path, bytes: u64) -> std::io::Result<()> {
        let file = File::create_new(path).or_else(|error| match (error.kind(), path.parent()) {
            (std::io::ErrorKind::NotFound, Some(folder)) => {
                fs::create_dir_all(folder)?;
                File::create_new(path)
            }
            _ => Err(error),
        })?;
        self.fill(&file, 0, bytes)
    }

    fn write(&mut self, path: &Path, at: u64, bytes: u64) -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        self.fill(&file, at, bytes)
    }

    fn replace(&mut self, path: &Path, bytes: u64) -> std::io::Result<()> {
        let new = path.with_extension("new");
        self.make(&new, bytes)?;
        empty(path)?;
        fs::rename(&new, path)?;
        self.finish_removal()
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        empty(path)?;
        fs::remove_file(path)?;
        self.finish_removal()
    }

    fn fill(&mut self, file: &File, mut at: u64, bytes: u64) -> std::io::Result<()> {
        let end = at + bytes;
        while at < end {
            let len = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let bytes = self.content.next(len);
            file.write_all_at(bytes, at)?;
            at += bytes.len() as u64;
        }
        match self.care {
            Care::Flush => file.sync_data(),
            Care::WriteOut | Care::WriteOutAndFinish => {
                os::write_out(file);
                Ok(())
            }
        }
    }

    fn finish_removal(&self) -> std::io::Result<()> {
        if self.care == Care::WriteOutAndFinish {
            let folder = File::open(&self.folder)?;
            os::finish_removals(&folder);
            // What was freed is given to others only once the log says so.
            rustix::fs::syncfs(&folder)?;
        }
        Ok(())
    }
}

/// Has its room become free now: of a file that is only removed some file systems free it when they like.
fn empty(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    let is_full = error.kind() == std::io::ErrorKind::StorageFull;
    let error = Error::io(what, error).path(path.display());
    if is_full { error.hint("choose a smaller --fill, or a larger --size") } else { error }
}
