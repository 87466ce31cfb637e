//! A backup of what guests use, into a repository in restic's format: facts, plan, execution, proof, as a copy has them.
//!
//! The disks of one call make one snapshot, in which each is a raw image that restic can restore. What a backup opens of the sources it only
//! reads.

mod check;
mod in_place;
mod restore;
mod snapshots;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use block::{Error, ErrorKind, Result};
use claims::{Act, Seen};
use engine::{BackupJob, Bound};
use filesystem::{Catalog, Check};
use plan::backup::Cuts;
use plan::{CopyOptions, CopyPlan};
use report::{BackupDocument, BackupSubject, DiskBackup, Tracking};
use repository::{Id, Node, Packer, Repository, Session, Snapshot, SnapshotDisk, Tree};
use stack::Stack;

use crate::copy::plan;
use crate::machine::{Caching, ThisHost};
use crate::open::{Location, OpenDisk, OpenOptions, check_claims};
use crate::stored::{disks_of, node_name};
use crate::{Observer, shadow_copies};

pub use crate::stored::{Password, Place, SnapshotName};
pub use check::{Options as CheckOptions, run as check};
pub use restore::{Options as RestoreOptions, run as restore};
pub use snapshots::{Options as SnapshotsOptions, run as snapshots};

/// Packs that are filled at once: each takes some 24 MB of memory.
const THREADS_MAX: usize = 8;

/// A disk to back up.
#[derive(Clone, Debug)]
pub struct Source {
    /// What it is called in the snapshot; `None` for its file's name.
    pub name: Option<String>,
    /// The disk.
    pub disk: PathBuf,
}

impl Source {
    /// `DISK` or `NAME=DISK`. What has a `/` before the `=`, or is there as it is, is a path.
    pub fn parse(text: &std::ffi::OsStr) -> Self {
        let whole = Self { name: None, disk: text.into() };
        match text.to_str().and_then(|text| text.split_once('=')) {
            Some((name, disk)) if is_name(name) && !whole.disk.exists() => {
                Self { name: Some(name.to_owned()), disk: disk.into() }
            }
            _ => whole,
        }
    }

    fn name(&self) -> Result<String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => self.disk.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        match is_name(&name) {
            true => Ok(name),
            false => Err(Error::invalid("the disk's file name cannot be its name in a snapshot")
                .hint("NAME=DISK gives it another: without '/', ':', '\\', quotes and control characters")
                .path(self.disk.display())),
        }
    }
}

/// Whether restic, shells and people have no trouble with it.
fn is_name(name: &str) -> bool {
    let is_odd = |letter: char| letter.is_control() || "/:\\\"".contains(letter);
    !name.is_empty() && name.len() <= 200 && name != "." && name != ".." && !name.contains(is_odd)
}

/// What is backed up, where to, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The disks.
    pub sources: Vec<Source>,
    /// How they are opened.
    pub open: OpenOptions,
    /// The repository.
    pub place: Place,
    /// Whether it is made if there is none.
    pub init: bool,
    /// Tags of the snapshot.
    pub tags: Vec<String>,
    /// The host of the snapshot; `None` for this one.
    pub host: Option<String>,
    /// Whether free space is kept as well.
    pub keep_free: bool,
    /// Whether the contents of page files and swap space are kept as well.
    pub keep_swap: bool,
    /// Whether what only the shadow copies of Windows need is left out.
    pub drop_shadow_copies: bool,
    /// Whether a disk is backed up that another program writes to.
    pub in_use: bool,
    /// Whether what was stored is read back and compared.
    pub verify: bool,
    /// Whether nothing is read or stored: everything is checked and planned.
    pub dry_run: bool,
    /// Whether data is read through the page cache.
    pub page_cache: bool,
    /// Worker threads; `None` for two a core.
    pub threads: Option<u16>,
}

/// A disk that is open, with its plan.
struct Planned {
    name: String,
    path: PathBuf,
    disk: OpenDisk,
    before: Seen,
    plan: CopyPlan,
    cuts: Cuts,
}

/// Backs the disks up, or says what a backup would do. There is a snapshot when all of it is stored, and none before.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<BackupDocument> {
    let started = Instant::now();
    check_names(&options.sources)?;
    let planned = options.sources.iter().map(|source| plan_source(source, options, observer));
    let planned = planned.collect::<Result<Vec<_>>>()?;
    if options.dry_run {
        return rehearse(options, planned, started);
    }
    // From here on there is a lock to be removed.
    let cancelled = observer.cancel()?;
    let repository = options.place.open(options.init)?;
    let host = options.host.clone().unwrap_or_else(repository::host_name);
    let paths: Vec<String> = planned.iter().map(|disk| format!("/{}", node_name(&disk.name))).collect();
    let parent = parent_of(&repository, &host, &paths)?;

    let index = repository.index()?;
    let session = Session::begin(&repository, &index)?;
    let mut before = match parent {
        Some(id) => Known::of(&repository, &index, id),
        None => Known::default(),
    };
    let mut packers = (0..thread_count(options)).map(|_| session.packer()).collect::<Result<Vec<_>>>()?;
    let total_bytes = planned.iter().map(|disk| disk.plan.reads.total_bytes()).sum();
    let progress = observer.progress("backup", total_bytes, cancelled.clone());
    let (mut nodes, mut entries) = (Vec::new(), Vec::new());
    for disk in planned {
        let (node, entry) = disk.store(options, &mut packers, &*progress, parent)?;
        nodes.push(before.or_same(node));
        entries.push(entry);
    }
    progress.finish();
    let tree = Tree { nodes: nodes.clone() };
    let id = session.finish(packers, tree, |tree| {
        let (parent, tags) = (parent, options.tags.clone());
        Snapshot { parent, paths, tags, hostname: host, ..Snapshot::now(tree) }
    })?;
    let stored_bytes = session.stored_bytes();
    drop(session);
    if options.verify {
        verify(&repository, id, &nodes, thread_count(options), observer, cancelled)?;
    }
    Ok(report::backup_document(BackupSubject {
        repository: &repository.place(),
        dry_run: false,
        snapshot: Some(id.to_string()),
        parent: parent.map(|parent| parent.to_string()),
        disks: entries,
        stored_bytes,
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified: options.verify,
    }))
}

fn check_names(sources: &[Source]) -> Result<()> {
    let mut names = HashSet::new();
    for source in sources {
        let name = source.name()?;
        if !names.insert(node_name(&name)) {
            return Err(Error::invalid(format!("two disks are called {name}"))
                .hint("NAME=DISK gives one another name"));
        }
    }
    Ok(())
}

fn thread_count(options: &Options) -> usize {
    options.threads.map_or(2 * os::processor_count(), usize::from).clamp(1, THREADS_MAX)
}

/// Facts in, plan out. Nothing is written.
fn plan_source(source: &Source, options: &Options, observer: &dyn Observer) -> Result<Planned> {
    let path = &source.disk;
    let caching = if options.page_cache { Caching::PageCache } else { Caching::Direct };
    let disk = OpenDisk::open(path, &options.open, caching).map_err(|error| crate::name_disk(error, path))?;
    let stack = &disk.stack;
    stack.chain().check_readable()?;
    let before = Seen::of(stack.chain());
    if !options.in_use {
        let location = Location { machine: &ThisHost, path, options: &options.open };
        check_claims(stack.chain(), &*location.resolver()?, Act::Read).map_err(or_in_use)?;
    }
    if block::Disk::sector_bytes(&**stack.chain()) != 512 {
        observer.note(&format!(
            "warning: {} has sectors of {} bytes, which a snapshot does not tell: restore it to vhdx, or attach it with that size",
            path.display(),
            block::Disk::sector_bytes(&**stack.chain())
        ));
    }
    let checking = observer.waiting("checking what the guest uses");
    let kept = CopyOptions { keep_free: options.keep_free, keep_swap: options.keep_swap };
    let maps = match kept.keep_free && kept.keep_swap {
        true => stack.whole_maps("--keep-free and --keep-swap keep all of it"),
        false => stack.used_maps_for(Check::Full, shadow_copies::what(options.drop_shadow_copies))?,
    };
    let plan = plan(kept, stack, &maps)?;
    let cuts = cuts(stack)?;
    drop(checking);
    Ok(Planned { name: source.name()?, path: path.clone(), disk, before, plan, cuts })
}

fn or_in_use(error: Error) -> Error {
    let first = error.hint_text().map(|hint| format!("{hint}; or ")).unwrap_or_default();
    error.hint(format!(
        "{first}back up a snapshot of it; --in-use stores what its file holds at this moment, which may not fit together"
    ))
}

/// Where the files of all volumes lie. What cannot be listed is cut by its place.
fn cuts(stack: &Stack) -> Result<Cuts> {
    let mut cuts = Cuts::default();
    for volume in stack.volumes() {
        let Some(filesystem) = &volume.filesystem else { continue };
        let catalog = match Catalog::read(&**filesystem) {
            Ok(catalog) => catalog,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(_) => continue,
        };
        for stream in catalog.streams() {
            let mut spans = Vec::new();
            for extent in stream.extents() {
                let start = extent.span.start().get();
                volume.place.each_on_disk(extent.span, |at, span| {
                    spans.push((extent.logical.get().saturating_add(at.get() - start), span));
                });
            }
            cuts.add_file(spans.into_iter());
        }
    }
    Ok(cuts)
}

/// The last snapshot of the same disks of the same host.
fn parent_of(repository: &Repository, host: &str, paths: &[String]) -> Result<Option<Id>> {
    let mut sorted = paths.to_vec();
    sorted.sort();
    let is_parent = |snapshot: &Snapshot| {
        let mut paths = snapshot.paths.clone();
        paths.sort();
        snapshot.hostname == host && paths == sorted
    };
    let snapshots = repository.snapshots()?;
    Ok(snapshots.into_iter().rev().find(|(_, snapshot)| is_parent(snapshot)).map(|(id, _)| id))
}

/// The files of the last snapshot.
#[derive(Default)]
struct Known(Vec<Node>);

impl Known {
    /// What cannot be read of it is not known.
    fn of(repository: &Repository, index: &repository::Index, id: Id) -> Self {
        let found = repository.find_snapshot(&id.to_string());
        let disks =
            found.and_then(|(_, snapshot)| disks_of(repository, index, &snapshot)).unwrap_or_default();
        Self(disks.into_iter().map(|disk| disk.node).collect())
    }

    /// The file as it was, its times included, if its contents are the same: then its list of blobs is not stored again.
    fn or_same(&mut self, node: Node) -> Node {
        let is_same =
            |old: &Node| old.name == node.name && old.size == node.size && old.content == node.content;
        match self.0.iter().position(is_same) {
            Some(at) => self.0.swap_remove(at),
            None => node,
        }
    }
}

/// Why all used data are read.
fn tracking(parent: Option<Id>) -> Tracking {
    let reason = match parent {
        None => "it is the first backup of these disks",
        Some(_) => "nothing keeps track of what changes: all used data were read, and compared by hash",
    };
    Tracking::None { reason: reason.into() }
}

impl Planned {
    /// What every kind of backup says of it.
    fn entry(&self, read_bytes: u64, new_bytes: u64, parent: Option<Id>) -> DiskBackup {
        DiskBackup {
            snapshot_path: format!("/{}", node_name(&self.name)),
            name: self.name.clone(),
            path: self.path.display().to_string(),
            virtual_bytes: self.plan.virtual_bytes,
            used_bytes: self.plan.used_bytes,
            read_bytes,
            new_bytes,
            tracking: tracking(parent),
        }
    }

    fn store(
        mut self,
        options: &Options,
        packers: &mut [Packer<'_, '_>],
        progress: &dyn crate::Progress,
        parent: Option<Id>,
    ) -> Result<(Node, DiskBackup)> {
        let cuts = std::mem::take(&mut self.cuts);
        let chain = self.disk.stack.chain();
        let job = BackupJob { source: &**chain, plan: &self.plan, cuts };
        let done = job.run(packers, progress).map_err(|error| crate::name_disk(error, &self.path))?;
        if !options.in_use {
            self.before.check_after_reading(chain)?;
        }
        let node = Node::file(node_name(&self.name), self.plan.virtual_bytes, done.content);
        Ok((node, self.entry(done.read_bytes, done.new_bytes, parent)))
    }
}

/// What a backup would do. The repository is opened as well, if there is one.
fn rehearse(options: &Options, planned: Vec<Planned>, started: Instant) -> Result<BackupDocument> {
    let host = options.host.clone().unwrap_or_else(repository::host_name);
    let paths: Vec<String> = planned.iter().map(|disk| format!("/{}", node_name(&disk.name))).collect();
    let parent = match options.place.open(false) {
        Ok(repository) => parent_of(&repository, &host, &paths)?,
        Err(_) if options.init && !options.place.exists()? => None,
        Err(error) => return Err(error),
    };
    let mut bound = Bound::default();
    let mut entries = Vec::new();
    for disk in planned {
        let entry = disk.entry(disk.plan.reads.total_bytes(), 0, parent);
        let job = BackupJob { source: &**disk.disk.stack.chain(), plan: &disk.plan, cuts: disk.cuts };
        let of_disk = job.bound();
        bound.bytes += of_disk.bytes;
        bound.pieces += of_disk.pieces;
        entries.push(DiskBackup { new_bytes: of_disk.bytes, ..entry });
    }
    Ok(report::backup_document(BackupSubject {
        repository: options.place.name(),
        dry_run: true,
        snapshot: None,
        parent: parent.map(|parent| parent.to_string()),
        disks: entries,
        stored_bytes: bound.stored_bytes(),
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified: false,
    }))
}

/// Reads back what was stored, from the snapshot on, and compares: the lists of blobs, and every blob with the hash of what was read.
fn verify(
    repository: &Arc<Repository>,
    id: Id,
    nodes: &[Node],
    thread_count: usize,
    observer: &dyn Observer,
    cancelled: crate::Cancel,
) -> Result<()> {
    let compare = || -> Result<()> {
        let index = repository.index()?;
        let (_, snapshot) = repository.find_snapshot(&id.to_string())?;
        let found = disks_of(repository, &index, &snapshot)?;
        for node in nodes {
            let stored = found.iter().find(|disk| disk.node.name == node.name);
            let stored =
                stored.ok_or_else(|| Error::mismatch(format!("{} is not in the snapshot", node.name)))?;
            if (stored.node.size, &stored.node.content) != (node.size, &node.content) {
                return Err(Error::mismatch(format!("{} is not what was stored", node.name)));
            }
            let disk = SnapshotDisk::open(repository.clone(), &index, &stored.node, node.name.as_ref())?;
            let progress = observer.progress("verify", disk.data_bytes(), cancelled.clone());
            disk.check(thread_count, &|bytes| {
                progress.advanced(bytes, 0);
                !progress.is_cancelled()
            })?;
            progress.finish();
        }
        Ok(())
    };
    compare().map_err(check::as_mismatch)
}
