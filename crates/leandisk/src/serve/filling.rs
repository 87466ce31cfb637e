//! A disk of a snapshot in use while it is restored: the target is what clients write to, and what is not there yet is brought in the background.
//!
//! Invariants: those of [`engine::FillingDisk`] and of [`engine::FillPlan`]; and the target gets its name once, by who brought the last of it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use block::{Error, ReadAt, Result, TargetFile, TargetName};
use engine::{
    CreateJob, FillIdentity, FillPlan, FillingDisk, Provision as When, fill_unit_bytes, publish_fill,
};
use extent::Virtual;
use image::{Chain, Format, NoFiles};
use os::{FolderOptions, HostFolder, LiveFile};
use serve::monitor::Monitor;

use super::Options;
use super::opened::{Caching, Filler, HeldToWrite, OpenForUse, UseOptions};
use crate::create::new_image;
use crate::open::{Location, OpenOptions};
use crate::stored::StoredDisk;
use crate::{Observer, Provision, Unwatched};

/// Threads that bring what is missing.
const FILLER_COUNT: usize = 2;

/// `Invalid` unless what is filled is from a disk of a snapshot, and is one disk's alone.
pub(super) fn check_targets(options: &Options) -> Result<()> {
    let mut paths: Vec<&Path> = Vec::new();
    for served in &options.disks {
        let Some(path) = &served.into else { continue };
        if options.read_only || options.compact_at_close || served.overlay.is_some() {
            return Err(Error::invalid(
                "--into goes with none of --read-only, --overlay and --compact-at-close",
            ));
        }
        if options.open.snapshot(&served.disk).is_none() {
            return Err(
                Error::invalid("--into needs a disk of a snapshot, with --repo").path(served.disk.display())
            );
        }
        format_of(path)?;
        if paths.contains(&&**path) {
            return Err(Error::invalid("is the target of two disks").path(path.display()));
        }
        paths.push(path);
    }
    Ok(())
}

fn format_of(target: &Path) -> Result<Format> {
    let extension = target.extension().and_then(|extension| extension.to_str());
    extension.and_then(Format::from_extension).ok_or_else(|| {
        Error::invalid("the target's extension names no disk format")
            .path(target.display())
            .hint("call it .raw, .qcow2, .vhdx, .vhd, .vmdk or .vdi")
    })
}

/// A target that is held, and what it is filled from.
pub(super) struct HeldToFill {
    target: HeldToWrite,
    source: Arc<Chain>,
    record: LiveFile,
    identity: FillIdentity,
    folder: HostFolder,
}

/// Holds the target, which is made if it is not there, and what it is filled from.
pub(super) fn hold(stored: StoredDisk, target: &Path, options: &Options) -> Result<HeldToFill> {
    if target.symlink_metadata().is_ok() {
        return Err(Error::refused("is there already")
            .path(target.display())
            .hint(format!("if it was filled, 'leandisk serve {}' goes on with it", target.display())));
    }
    let StoredDisk { disk, reference } = stored;
    let format = format_of(target)?;
    let raw = image::OpenOptions { format: Some(Format::Raw) };
    let source = Arc::new(Chain::open(Arc::new(disk.reading_ahead()), raw, &NoFiles)?);
    let provision = options.provision.unwrap_or_default();
    let folder_options = FolderOptions { replace: false, mode: 0o600, kept: provision.kept(), direct: false };
    let folder = HostFolder::new(target, folder_options)?;
    let virtual_bytes = ReadAt::<Virtual>::len_bytes(&*source);
    let identity = FillIdentity {
        source: reference.lasting(),
        target: String::new(),
        format: format.name().to_owned(),
        virtual_bytes,
        unit_bytes: fill_unit_bytes(virtual_bytes),
    };
    let plan = FillPlan { folder: &folder, identity, source: &*source };
    let (identity, _) = plan
        .prepare(|file| make(file, target, format, virtual_bytes, provision))
        .map_err(|error| error.path(target.display()))?;
    let path = folder.path(TargetName::Filling);
    let open = OpenOptions { format: Some(format), ..options.open.clone() };
    let location = Location::here(&path, &open);
    let chain = location.open_chain_at_rest(Caching::PageCache)?;
    let held = HeldToWrite::of(&chain, location.resolver()?, UseOptions::of(&path, options))?;
    let record = LiveFile::open(folder.path(TargetName::Filled))?;
    Ok(HeldToFill { target: held, source, record, identity, folder })
}

/// Lays out an empty image.
fn make(
    file: &dyn TargetFile,
    path: &Path,
    format: Format,
    virtual_bytes: u64,
    provision: Provision,
) -> Result<()> {
    // What keeps its storage finds it now.
    let provision = if provision == Provision::Thin { When::Thin } else { When::Lazy };
    let writer = image::create(format, new_image(path, virtual_bytes))?;
    CreateJob { writer, target: file, virtual_bytes, provision, thread_count: 1 }.run(&Unwatched)?;
    Ok(())
}

impl HeldToFill {
    pub(super) fn target(&self) -> &HeldToWrite {
        &self.target
    }

    /// Takes the target into use, and has it filled.
    pub(super) fn into_use(self, monitor: &Arc<Monitor>, observer: &Arc<dyn Observer>) -> Result<OpenForUse> {
        let Self { target, source, record, identity, folder } = self;
        let opened = target.into_use(monitor)?;
        let disk = FillingDisk::open(opened.disk.clone(), source, Box::new(record), &identity);
        let disk = match disk {
            Ok(disk) => Arc::new(disk),
            Err(error) => {
                // What is told is what matters.
                let _ = opened.disk.close();
                return Err(error);
            }
        };
        let filler = Threads::start(disk.clone(), folder, opened.top(), observer);
        Ok(opened.filled(disk, Box::new(filler)))
    }
}

/// Threads that fill a disk, and what came of it.
struct Threads {
    disk: Arc<FillingDisk>,
    ending: Arc<Ending>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What one of them does for all when all has arrived.
struct Ending {
    folder: HostFolder,
    file: Option<Arc<LiveFile>>,
    /// `None` as long as something is missing.
    outcome: Mutex<Option<Result<()>>>,
    observer: Arc<dyn Observer>,
}

impl Threads {
    fn start(
        disk: Arc<FillingDisk>,
        folder: HostFolder,
        file: Option<Arc<LiveFile>>,
        observer: &Arc<dyn Observer>,
    ) -> Self {
        let ending = Ending { folder, file, outcome: Mutex::new(None), observer: observer.clone() };
        let ending = Arc::new(ending);
        let start = |_| {
            let (disk, ending) = (disk.clone(), ending.clone());
            let work = move || ending.take(disk.fill());
            std::thread::Builder::new().name("fill".into()).spawn(work).ok()
        };
        let threads: Vec<_> = (0..FILLER_COUNT).filter_map(start).collect();
        if threads.is_empty() {
            ending.take(Err(Error::io("start a thread", std::io::ErrorKind::OutOfMemory.into())));
        }
        Self { disk, ending, threads: Mutex::new(threads) }
    }
}

impl Filler for Threads {
    fn end(&self, observer: &dyn Observer) -> Result<()> {
        self.disk.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().for_each(|thread| drop(thread.join()));
        let outcome = self.ending.outcome().take();
        if outcome.is_none() {
            let (path, left) = (self.ending.folder.path(TargetName::Target), self.disk.missing_bytes());
            observer.note(&format!(
                "'{}' is not there yet: at most {left} bytes are missing. The same command goes on",
                path.display()
            ));
        }
        outcome.unwrap_or(Ok(()))
    }
}

impl Ending {
    fn outcome(&self) -> std::sync::MutexGuard<'_, Option<Result<()>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what one of the threads ended with: the first that fails, or finds that all has arrived, is the one that counts.
    fn take(&self, filled: Result<bool>) {
        let mut outcome = self.outcome();
        if outcome.is_some() {
            return;
        }
        let path = self.folder.path(TargetName::Target);
        match filled {
            Ok(false) => {}
            Ok(true) => {
                let published = self.publish();
                match &published {
                    Ok(()) => self.observer.note(&format!("'{}' is complete", path.display())),
                    Err(error) => self.observer.note(&error.to_string()),
                }
                *outcome = Some(published);
            }
            Err(error) => {
                self.observer.note(&format!("'{}' is not filled any further: {error}", path.display()));
                *outcome = Some(Err(error));
            }
        }
    }

    fn publish(&self) -> Result<()> {
        if let Some(file) = &self.file {
            self.folder.complete(file)?;
        }
        publish_fill(&self.folder)
    }
}
