//! A machine for use cases, with folders and files that lose power. Copies go to a folder of their own.
//!
//! A server may be on another machine ([`EXPORT`]): it fails by itself.
//!
//! Absent on purpose: other users of a file, locks, holes of the host (`preallocate` and the live disks have simulations of their own).

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use block::{Error, Fingerprint, FolderFile, HostFile, ReadAt, Result, TargetFile, TargetFolder, TargetName};
use extent::Host;
use image::{NoFiles, Resolver};
use journal::{DiskName, FileId, Header, JournalFile, Names, Places, Standing, check_free, find, standing};
use leandisk::{
    Caching, Cloning, CopyFolder, FolderOptions, FoundJournal, HeldFile, HeldJournal, Machine, Named,
    OutputStream, StoragePromise, TargetSpace,
};
use nbd::{Patience, RemoteDisk, RemoteTarget, Wanted};
use sim::{FileMarks, Pages, SimDisk, SimFile, SimFolder, SimFolders, SimMachine, SimServer};
use xxhash_rust::xxh3::xxh3_64;

use crate::outlet::Received;

/// Where copies go: a folder of its own.
pub(crate) const TARGET: &str = "/copies/target";

/// The address of an export, if a server is there.
pub(crate) const EXPORT: &str = "nbd+unix:///disk?socket=/servers/socket";

/// After so much of it an export is flushed: often within a small disk.
const FLUSH_EACH_BYTES: u64 = 8 << 10;

/// The device that the target's folder lies on.
const TARGET_DEVICE: u64 = 2;

/// A machine that loses power.
pub(crate) struct SimHost {
    pub(crate) machine: Arc<SimMachine>,
    pub(crate) folders: SimFolders,
    pub(crate) target: SimFolder,
    /// Whether files tell when they were changed.
    has_times: bool,
    /// Whether a target shares storage with its source.
    has_clones: bool,
    /// What answers at [`EXPORT`].
    server: Option<SimServer>,
    /// What standard output leads to.
    outlet: Option<Received>,
}

impl SimHost {
    /// With one file, on stable storage.
    pub(crate) fn new(path: &str, bytes: Pages) -> Self {
        let machine = Arc::new(SimMachine::new());
        let folders = SimFolders::new(&machine).with_file(&machine, path, bytes);
        let target = SimFolder::new(machine.clone(), 1, FileMarks::Marks);
        Self { machine, folders, target, has_times: false, has_clones: false, server: None, outlet: None }
    }

    /// Whose files tell when they were changed, and with a folder for copies that tells files apart by these marks.
    pub(crate) fn for_copies(self, seed: u64, marks: FileMarks) -> Self {
        let target = SimFolder::new(self.machine.clone(), seed, marks);
        Self { target, has_times: true, ..self }
    }

    /// Whose file system can share storage between files, or cannot.
    pub(crate) fn with_clones(self, has_clones: bool) -> Self {
        Self { has_clones, ..self }
    }

    /// With a server on another machine.
    pub(crate) fn with_server(self, server: SimServer) -> Self {
        Self { server: Some(server), ..self }
    }

    /// With a standard output that is no terminal.
    pub(crate) fn with_outlet(self, outlet: Received) -> Self {
        Self { outlet: Some(outlet), ..self }
    }

    /// With one more file on stable storage, or with another one under that name.
    pub(crate) fn with_file(self, path: &str, bytes: Pages) -> Self {
        let folders = self.folders.with_file(&self.machine, path, bytes);
        Self { folders, ..self }
    }

    /// What a power cut leaves.
    pub(crate) fn cut(&self, seed: u64) -> Self {
        let machine = Arc::new(SimMachine::new());
        let folders = self.folders.cut(&machine, seed);
        let target = self.target.after_cut(machine.clone(), seed);
        Self { machine, folders, target, server: self.server.clone(), outlet: None, ..*self }
    }

    /// The process is gone, the machine goes on.
    pub(crate) fn killed(&self) -> Self {
        let machine = Arc::new(SimMachine::new());
        let folders = self.folders.copy_to(&machine);
        let target = self.target.after_kill(machine.clone());
        Self { machine, folders, target, server: self.server.clone(), outlet: None, ..*self }
    }

    /// The contents of a file.
    pub(crate) fn pages(&self, path: &str) -> Pages {
        self.folders.file(path).expect("it keeps its name").to_pages()
    }

    fn file(&self, path: &Path) -> Result<Arc<OpenFile<SimFile>>> {
        let file = (&self.folders).open(path)?;
        let FileId { device, inode } = file.id();
        Ok(Arc::new(OpenFile::new(path, (device, inode), file, self.has_times)))
    }

    fn server_at(&self, path: &Path) -> Option<&SimServer> {
        self.server.as_ref().filter(|_| path == Path::new(EXPORT))
    }

    fn places(&self, path: &Path, stated: Option<&Path>) -> Places {
        Places::new(self.journal_path(path), stated.map(Path::to_owned))
    }
}

/// A server that comes back is there at once.
fn patience() -> Patience {
    Patience { pauses: vec![Duration::ZERO; 2], ..Patience::default() }
}

/// What the making of a target calls the file at this path.
fn target_name(path: &Path) -> Option<TargetName> {
    let names = [TargetName::Target, TargetName::Partial, TargetName::Checkpoint, TargetName::Draft];
    names.into_iter().find(|name| path_of(*name) == path)
}

fn path_of(name: TargetName) -> PathBuf {
    match name {
        TargetName::Target => TARGET.into(),
        other => format!("{TARGET}.{other:?}").into(),
    }
}

impl Machine for SimHost {
    fn thread_count(&self) -> usize {
        1
    }

    fn checkpoint_interval(&self) -> Duration {
        Duration::ZERO
    }

    fn named(&self, path: &Path) -> Named {
        if self.server_at(path).is_some() {
            return Named::Export;
        }
        if path == Path::new("-") {
            return Named::Stream;
        }
        let is_of_target = target_name(path).is_some_and(|name| self.target.file(name).is_some());
        if is_of_target || self.folders.file(path).is_some() { Named::File } else { Named::Nothing }
    }

    fn storage_of(&self, path: &Path) -> Result<Vec<(u64, u64)>> {
        let of_target = target_name(path).and_then(|name| self.target.file(name));
        let of_target = of_target.map(|file| (TARGET_DEVICE, file.number()));
        let other = self.folders.file(path).map(|file| (file.id().device, file.id().inode));
        Ok(of_target.or(other).into_iter().collect())
    }

    fn copied_mode(&self, _path: &Path) -> u32 {
        0o600
    }

    /// The one folder, whatever it is asked for.
    fn copy_folder(&self, _path: &Path, options: FolderOptions) -> Result<Box<dyn CopyFolder + '_>> {
        let folder =
            CopiesFolder { folder: &self.target, replaces: options.replace, has_clones: self.has_clones };
        folder.check_free()?;
        Ok(Box::new(folder))
    }

    fn copy_device(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        if let Some(server) = self.server_at(path) {
            let dial = Box::new(server.clone());
            let target = RemoteTarget::connect(EXPORT, dial, Wanted::default(), patience())?;
            return Ok(Box::new(target.flushing_each(FLUSH_EACH_BYTES)));
        }
        Err(Error::refused("is no block device").path(path.display()))
    }

    fn output(&self) -> Result<OutputStream> {
        let outlet = self.outlet.clone().ok_or_else(|| Error::invalid("standard output is a terminal"))?;
        Ok(OutputStream::to(Box::new(outlet)))
    }

    fn kept(&self, _path: &Path) -> StoragePromise {
        StoragePromise::Nothing
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.folders.file(path).is_some())
    }

    fn free_bytes(&self, _path: &Path) -> Result<u64> {
        Ok(u64::MAX)
    }

    fn open(&self, path: &Path, _caching: Caching) -> Result<Arc<dyn HostFile>> {
        if let Some(server) = self.server_at(path) {
            let dial = Box::new(server.clone());
            return Ok(Arc::new(RemoteDisk::connect(EXPORT, dial, Wanted::default(), patience())?));
        }
        match target_name(path).and_then(|name| self.target.file(name)) {
            None => Ok(self.file(path)?),
            Some(file) => {
                Ok(Arc::new(OpenFile::new(path, (TARGET_DEVICE, file.number()), file, self.has_times)))
            }
        }
    }

    fn hold(&self, path: &Path) -> Result<Arc<dyn HeldFile>> {
        Ok(self.file(path)?)
    }

    fn resolver(&self, _path: &Path, _allow_path: &[PathBuf]) -> Result<Box<dyn Resolver>> {
        Ok(Box::new(NoFiles))
    }

    fn journal_path(&self, path: &Path) -> PathBuf {
        path.with_extension("leandisk-journal")
    }

    fn disk_name(&self, path: &Path) -> Result<DiskName> {
        let missing = || Error::io("open", io::ErrorKind::NotFound.into()).path(path.display());
        let file = (&self.folders).id(&self.folders.file(path).ok_or_else(missing)?)?;
        Ok(DiskName { file, path: path.to_owned(), lasting_name: String::new() })
    }

    fn journal_standing(&self, path: &Path) -> Standing {
        standing(&&self.folders, &self.journal_path(path))
    }

    fn check_journal_place(&self, path: &Path, stated: Option<&Path>) -> Result<()> {
        check_free(&&self.folders, &self.places(path, stated))
    }

    fn create_journal(
        &self,
        path: &Path,
        stated: Option<&Path>,
        header: Header,
    ) -> Result<Box<dyn HeldJournal + '_>> {
        let (places, disk) = (self.places(path, stated), self.disk_name(path)?);
        Ok(Box::new(JournalFile::create(&self.folders, &places, disk, header)?))
    }

    fn find_journal(&self, path: &Path, stated: Option<&Path>) -> Result<Option<Box<dyn FoundJournal + '_>>> {
        let found = find(&self.folders, &self.places(path, stated))?;
        Ok(found.map(|found| Box::new(found) as Box<dyn FoundJournal>))
    }
}

/// The folder of the target, for one copy.
struct CopiesFolder<'a> {
    folder: &'a SimFolder,
    replaces: bool,
    has_clones: bool,
}

impl CopiesFolder<'_> {
    fn check_free(&self) -> Result<()> {
        match self.replaces || self.folder.file(TargetName::Target).is_none() {
            true => Ok(()),
            false => Err(Error::refused("exists already").path(TARGET)),
        }
    }
}

impl TargetFolder for CopiesFolder<'_> {
    fn open(&self, name: TargetName) -> Result<Option<Box<dyn FolderFile + '_>>> {
        self.folder.open(name)
    }

    fn create(&self, name: TargetName) -> Result<Box<dyn FolderFile + '_>> {
        self.folder.create(name)
    }

    fn remove(&self, name: TargetName) -> Result<bool> {
        self.folder.remove(name)
    }

    fn rename(&self, from: TargetName, to: TargetName) -> Result<()> {
        if to == TargetName::Target {
            self.check_free()?;
        }
        self.folder.rename(from, to)
    }

    fn sync(&self) -> Result<()> {
        self.folder.sync()
    }
}

impl CopyFolder for CopiesFolder<'_> {
    fn path(&self, name: TargetName) -> PathBuf {
        path_of(name)
    }

    fn check_room(&self, _len_bytes: u64) -> Result<TargetSpace> {
        Ok(TargetSpace { free_bytes: u64::MAX })
    }

    fn check_cloning(&self, _source: &dyn HostFile) -> Result<Cloning> {
        Ok(match self.has_clones {
            true => Cloning::Blocks { block_bytes: 4096 },
            false => Cloning::no("this one does not"),
        })
    }
}

/// A file under a name.
struct OpenFile<F> {
    name: String,
    identity: (u64, u64),
    file: F,
    /// As it was when it was opened, if it tells when it was changed.
    opened: Option<Fingerprint>,
}

impl<F: Deref<Target = SimDisk>> OpenFile<F> {
    fn new(path: &Path, identity: (u64, u64), file: F, has_times: bool) -> Self {
        let name = path.to_string_lossy().into_owned();
        let opened = has_times.then(|| fingerprint_of(&file, identity));
        Self { name, identity, file, opened }
    }

    fn disk(&self) -> &SimDisk {
        &self.file
    }
}

/// The time is one for each contents, and in the first second of all.
fn fingerprint_of(disk: &SimDisk, identity: (u64, u64)) -> Fingerprint {
    let bytes = disk.to_vec();
    let changed_ns = i128::from(xxh3_64(&bytes) % 1_000_000_000);
    Fingerprint { len_bytes: bytes.len() as u64, modified_ns: 0, changed_ns, identity }
}

impl<F: Deref<Target = SimDisk> + Send + Sync> ReadAt<Host> for OpenFile<F> {
    block::forward!(self, self.disk() => len_bytes, read_at);
}

impl<F: Deref<Target = SimDisk> + Send + Sync> HostFile for OpenFile<F> {
    block::forward!(self, self.disk() => allocated_bytes);

    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        Ok(self.opened.map(|_| fingerprint_of(&self.file, self.identity)))
    }

    fn fingerprint_when_opened(&self) -> Option<Fingerprint> {
        self.opened
    }

    fn identity(&self) -> Option<(u64, u64)> {
        Some(self.identity)
    }
}

impl<F: Deref<Target = SimDisk> + Send + Sync> TargetFile for OpenFile<F> {
    block::forward!(self, self.disk() => write_at, set_len, reserve, zero, punch, flush, read_stored);
}

impl HeldFile for OpenFile<SimFile> {
    fn check_gives_back(&self) -> Result<()> {
        Ok(())
    }
}
