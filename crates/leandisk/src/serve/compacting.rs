//! A disk that was served, compacted before its files are let go.
//!
//! It is what `compact` does, on a machine that has the disk's files alone, which it holds already: a process that is closed in needs to open
//! nothing for it, and nobody comes in between. Who else needs the disk was asked before it was taken into use.
//!
//! No journal is made: a stop at any moment leaves an image as a stop while it is served does, whole and not closed, which
//! is put in order when it is served again. The one kind of which that is not true, a VDI with gaps, is left without: its blocks keep their places.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, ErrorKind, Fingerprint, HostFile, Memory, ReadAt, Result, TargetFile};
use extent::Host;
use image::{Format, Purpose, Resolver};
use journal::{DiskName, Header, Standing};
use os::{FolderOptions, LiveFile, OutputStream, StoragePromise};
use report::human_bytes;

use crate::compact::{self, Move};
use crate::machine::{Caching, CopyFolder, FoundJournal, HeldFile, HeldJournal, Machine, Named};
use crate::{Observer, OpenOptions};

/// Compacts the closed disk that has these files, its image's first, and tells what came of it. What `compact` would refuse is left as it
/// is, with the reason.
pub(super) fn compact(files: &[Arc<LiveFile>], format: Format, observer: &dyn Observer) -> Result<()> {
    let Some(top) = files.first() else { return Ok(()) };
    let moves = if format == Format::Vdi { Move::Never } else { Move::Auto };
    let open = OpenOptions { format: Some(format), ..OpenOptions::default() };
    let options =
        compact::Options { disk: top.path().to_owned(), open, moves, ..compact::Options::default() };
    let machine = FilesInHand { files: files.to_vec() };
    let name = top.name();
    match compact::run_on(&machine, &options, observer).map(|reported| (reported.ended, reported.document)) {
        Ok((Ok(()), done)) => {
            let [(took, takes), (was, is)] = [done.allocated_bytes(), done.length_bytes()].map(human);
            observer.note(&format!("compacted '{name}': it takes {takes} on the host instead of {took}, and is {is} long instead of {was}"));
            Ok(())
        }
        Ok((Err(error), _)) | Err(error) => match error.kind() {
            ErrorKind::Refused | ErrorKind::Unsupported | ErrorKind::Interrupted => {
                observer.note(&format!("'{name}' is not compacted: {error}"));
                Ok(())
            }
            _ => Err(error),
        },
    }
}

fn human((before, after): (u64, u64)) -> (String, String) {
    (human_bytes(before), human_bytes(after))
}

/// A machine that has nothing but a disk's files, held by this process and open for writing.
struct FilesInHand {
    files: Vec<Arc<LiveFile>>,
}

impl FilesInHand {
    fn file(&self, path: &Path) -> Result<Arc<LiveFile>> {
        let file = self.files.iter().find(|file| file.path() == path);
        file.cloned().ok_or_else(|| beyond(path))
    }
}

/// One of the files, to be read: what it is when this is made is what nobody else may change from then on.
struct InHand {
    file: Arc<LiveFile>,
    opened: Option<Fingerprint>,
}

impl InHand {
    fn open(file: Arc<LiveFile>) -> Result<Arc<dyn HostFile>> {
        let opened = file.fingerprint()?;
        Ok(Arc::new(Self { file, opened }))
    }
}

impl ReadAt<Host> for InHand {
    block::forward!(self, self.file => len_bytes, read_at);
}

impl HostFile for InHand {
    block::forward!(
        self, self.file => name, path, fingerprint, allocated_bytes, host_map, host_extents, stored, host_filesystem, identity,
        is_block_device
    );

    fn fingerprint_when_opened(&self) -> Option<Fingerprint> {
        self.opened
    }
}

fn beyond(path: &Path) -> Error {
    Error::refused("is none of the disk's own files").path(path.display())
}

impl Machine for FilesInHand {
    fn named(&self, path: &Path) -> Named {
        match self.file(path) {
            Err(_) => Named::Nothing,
            Ok(file) if file.is_block_device() => Named::BlockDevice,
            Ok(_) => Named::File,
        }
    }

    fn storage_of(&self, path: &Path) -> Result<Vec<(u64, u64)>> {
        Ok(self.file(path)?.identity().into_iter().collect())
    }

    fn copied_mode(&self, _path: &Path) -> u32 {
        0o600
    }

    fn copy_folder(&self, path: &Path, _options: FolderOptions) -> Result<Box<dyn CopyFolder + '_>> {
        Err(beyond(path))
    }

    fn copy_device(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        Err(beyond(path))
    }

    fn output(&self) -> Result<OutputStream> {
        Err(beyond(Path::new("-")))
    }

    fn kept(&self, _path: &Path) -> StoragePromise {
        StoragePromise::Nothing
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.file(path).is_ok())
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        Err(beyond(path))
    }

    fn open(&self, path: &Path, _caching: Caching) -> Result<Arc<dyn HostFile>> {
        InHand::open(self.file(path)?)
    }

    fn hold(&self, path: &Path) -> Result<Arc<dyn HeldFile>> {
        Ok(self.file(path)?)
    }

    fn resolver(&self, _path: &Path, _allow_path: &[PathBuf]) -> Result<Box<dyn Resolver>> {
        Ok(Box::new(OwnFiles(self.files.clone())))
    }

    fn journal_path(&self, path: &Path) -> PathBuf {
        os::journal_path(path)
    }

    fn disk_name(&self, path: &Path) -> Result<DiskName> {
        Err(beyond(path))
    }

    /// There was none when the disk was taken into use, and nobody else may change the disk.
    fn journal_standing(&self, _path: &Path) -> Standing {
        Standing::Absent
    }

    fn check_journal_place(&self, _path: &Path, _stated: Option<&Path>) -> Result<()> {
        Ok(())
    }

    fn create_journal(
        &self,
        _path: &Path,
        _stated: Option<&Path>,
        _header: Header,
    ) -> Result<Box<dyn HeldJournal + '_>> {
        Ok(Box::new(NoJournal(Memory::new(Vec::new()))))
    }

    fn find_journal(
        &self,
        _path: &Path,
        _stated: Option<&Path>,
    ) -> Result<Option<Box<dyn FoundJournal + '_>>> {
        Ok(None)
    }
}

/// What stands for a journal where none is needed.
struct NoJournal(Memory);

impl HeldJournal for NoJournal {
    fn file(&self) -> &dyn TargetFile {
        &self.0
    }

    fn remove(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Finds the extents of an image among its own files. A parent is none of them: a disk that stands on one is refused.
struct OwnFiles(Vec<Arc<LiveFile>>);

impl Resolver for OwnFiles {
    fn open(&self, from: &dyn HostFile, name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        let path = from.path().parent().unwrap_or(Path::new("")).join(name);
        let found = self.0.iter().find(|file| file.path() == path || file.path() == Path::new(name));
        match found {
            Some(file) => InHand::open(file.clone()),
            None => {
                Err(Error::refused("the disk stands on another file, and is not compacted")
                    .path(path.display()))
            }
        }
    }

    fn siblings(&self, _from: &dyn HostFile) -> Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    fn open_sibling(&self, _from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        Err(beyond(Path::new(name)))
    }
}
