//! A backup of what guests use, into a repository in restic's format: facts, plan, execution, proof, as a copy has them.
//!
//! The disks of one call make one snapshot, in which each is a raw image that restic can restore. What a backup opens of the sources it only
//! reads; but a persistent bitmap that it was told of begins anew in the end.

mod bitmap;
mod boot;
mod check;
mod earlier;
mod in_place;
mod layers;
mod metrics;
#[cfg(test)]
mod model;
mod restore;
mod snapshots;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use block::{Error, ErrorKind, ReadAt, Result};
use claims::{Act, Seen};
use engine::{BackedUp, BackupJob, Base, Bound};
use extent::HostOffset;
use filesystem::{Catalog, Check};
use plan::backup::Cuts;
use plan::{CopyOptions, CopyPlan};
use report::{BackupDocument, BackupSubject, DiskBackup, Tracking};
use repository::{Id, Index, Node, Packer, Record, Repository, Session, Snapshot, SnapshotDisk, Tree};
use stack::Stack;

use crate::copy::plan;
use crate::machine::{Caching, ThisHost};
use crate::open::{Location, OpenDisk, OpenOptions, check_claims};
use crate::remote::{disk_name, is_address};
use crate::running::{self, BitmapTold, ReadDisk};
use crate::stored::{disks_of, node_name};
use crate::{Observer, shadow_copies};

pub use crate::stored::{Password, Place, SnapshotName};
pub use backends::Options as PlaceOptions;
pub use boot::BootOptions;
pub use check::{Options as CheckOptions, run as check};
pub use repository::Keep;
pub use restore::{Options as RestoreOptions, run as restore};
pub use snapshots::{Options as SnapshotsOptions, run as snapshots};
pub use vm::Bus;

use bitmap::{Bitmap, Hold};
use earlier::{Earlier, Known};
use metrics::Metrics;

/// Why everything is read where there is nothing to compare with.
const FIRST_BACKUP: &str = "it is the first backup of these disks";
const NOT_TRACKED: &str =
    "nothing keeps track of what changes: all used data were read, and compared by hash";
const NOT_AS_STORED: &str =
    "the disk changed where it should not have changed since the last snapshot, so all used data were read";
/// Packs that are filled at once: each takes some 24 MB of memory.
const THREADS_MAX: usize = 8;

/// A disk to back up.
#[derive(Clone, Debug)]
pub struct Source {
    /// What it is called in the snapshot; `None` for its file's name.
    pub name: Option<String>,
    /// The disk.
    pub disk: PathBuf,
    /// Where it is read, if elsewhere: at the export of a running guest's disk.
    pub read_at: Option<PathBuf>,
    /// What its bitmap says, if that was asked and something else than its image keeps it.
    pub bitmap: Option<BitmapTold>,
}

impl Source {
    /// `DISK` or `NAME=DISK`. What has a `/` before the `=`, or is there as it is, is a path.
    pub fn parse(text: &std::ffi::OsStr) -> Self {
        let whole = Self { name: None, disk: text.into(), read_at: None, bitmap: None };
        match text.to_str().and_then(|text| text.split_once('=')) {
            Some((name, disk)) if is_name(name) && !whole.disk.exists() => {
                Self { name: Some(name.to_owned()), disk: disk.into(), ..whole }
            }
            _ => whole,
        }
    }

    /// The same disk, or one of those that it stands for, as it was found.
    pub fn found(&self, found: &ReadDisk) -> Self {
        let ReadDisk { disk, read_at, bitmap, .. } = found.clone();
        Self { name: self.name.clone(), disk, read_at, bitmap }
    }

    fn name(&self) -> Result<String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => disk_name(&self.disk)
                .unwrap_or_else(|| self.disk.file_name().unwrap_or_default().to_string_lossy().into_owned()),
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
    let is_taken = [".", "..", ".leandisk"].contains(&name);
    !name.is_empty() && name.len() <= 200 && !is_taken && !name.contains(is_odd)
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
    /// The persistent dirty bitmap that says what of a disk changed, and begins anew with the snapshot.
    pub bitmap: Option<String>,
    /// Which snapshots of the same disks are kept afterwards; all if nothing is set.
    pub keep: Keep,
    /// Where figures of the backup go for Prometheus' node exporter.
    pub metrics: Option<PathBuf>,
    /// Whether what was stored is read back and compared.
    pub verify: bool,
    /// Whether nothing is read or stored: everything is checked and planned.
    pub dry_run: bool,
    /// Whether data is read through the page cache.
    pub page_cache: bool,
    /// Worker threads; `None` for two a core.
    pub threads: Option<u16>,
}

/// Who has bitmaps begin anew that are not kept by the disks' images: the guests that are read.
pub trait Guests {
    /// The bitmap of the disk that is read there begins anew with the moment that is read, and with the bits of the places `kept`.
    fn restart(&mut self, read_at: &Path, kept: &[HostOffset]) -> Result<()>;
}

impl Guests for running::Guests {
    fn restart(&mut self, read_at: &Path, kept: &[HostOffset]) -> Result<()> {
        self.rotate(read_at, kept)
    }
}

/// A disk that is open, with its plan.
struct Planned {
    name: String,
    path: PathBuf,
    disk: OpenDisk,
    before: Seen,
    plan: CopyPlan,
    cuts: Cuts,
    /// `None` if none was asked for.
    bitmap: Option<bitmap::Found>,
}

/// What need not be read of a disk.
struct Tracked {
    base: Option<Base>,
    tracking: Tracking,
    /// What was read of that all the same.
    sampled_bytes: u64,
}

impl Tracked {
    fn none(reason: &str) -> Self {
        Self { base: None, tracking: Tracking::None { reason: reason.into() }, sampled_bytes: 0 }
    }
}

/// A disk that was stored.
struct Stored {
    node: Node,
    entry: DiskBackup,
    /// What the snapshot is to say of it besides.
    record: Option<Record>,
    /// The bitmap that begins anew with the snapshot.
    bitmap: Option<Bitmap>,
}

/// Backs the disks up, or says what a backup would do. There is a snapshot when all of it is stored, and none before.
pub fn run(options: &Options, guests: &mut dyn Guests, observer: &dyn Observer) -> Result<BackupDocument> {
    let started = Instant::now();
    check_names(&options.sources)?;
    let planned = options.sources.iter().map(|source| plan_source(source, options, observer));
    let planned = planned.collect::<Result<Vec<_>>>()?;
    let metrics = options.metrics.as_deref().map(|path| Metrics::prepare(path, &planned)).transpose()?;
    if options.dry_run {
        return rehearse(options, planned, started);
    }
    // From here on there is a lock to be removed.
    let cancelled = observer.cancel()?;
    let repository = options.place.open(options.init)?;
    let host = options.host.clone().unwrap_or_else(repository::host_name);
    let paths: Vec<String> = planned.iter().map(|disk| format!("/{}", node_name(&disk.name))).collect();
    let index = repository.index()?;
    let snapshots = snapshots_of(&repository, &host, &paths)?;
    let earlier = Earlier { repository: &repository, index: &index, snapshots };
    let parent = earlier.parent();
    let session = Session::begin(&repository, &index)?;
    let mut before = match parent {
        Some(id) => LastFiles::of(&repository, &index, id),
        None => LastFiles::default(),
    };
    let mut packers = (0..thread_count(options)).map(|_| session.packer()).collect::<Result<Vec<_>>>()?;
    let total_bytes = planned.iter().map(|disk| disk.plan.reads.total_bytes()).sum();
    let progress = observer.progress("backup", total_bytes, cancelled.clone());
    let (mut nodes, mut entries, mut starts, mut records) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for disk in planned {
        let stored = disk.store(options, &mut packers, &*progress, &earlier)?;
        if let Some(record) = stored.record {
            starts.extend(stored.bitmap.map(|bitmap| (bitmap, record.clone())));
            records.push((stored.node.name.clone(), record));
        }
        nodes.push(before.or_same(stored.node));
        entries.push(stored.entry);
    }
    progress.finish();
    let tree = Tree { nodes: nodes.clone() };
    let id = session.finish(packers, tree, &records, |tree| {
        let (parent, tags) = (parent, options.tags.clone());
        let (paths, hostname) = (paths.clone(), host.clone());
        Snapshot { parent, paths, tags, hostname, ..Snapshot::now(tree) }
    })?;
    let stored_bytes = session.stored_bytes();
    drop(session);
    if options.verify {
        verify(&repository, id, &nodes, thread_count(options), observer, cancelled)?;
    }
    // Last: until here each says what changed since an earlier snapshot.
    for (bitmap, record) in starts {
        bitmap.rotate(&record, guests).map_err(|error| not_rotated(error, id))?;
    }
    let forgotten = forgotten(&options.keep, &snapshots_of(&repository, &host, &paths)?, id);
    forgotten.iter().try_for_each(|id| repository.forget(*id)).map_err(|error| {
        error.hint(format!("snapshot {} is stored; older ones were not all forgotten", id.short()))
    })?;
    let document = report::backup_document(BackupSubject {
        repository: &repository.place(),
        forgotten: forgotten.iter().map(Id::to_string).collect(),
        dry_run: false,
        snapshot: Some(id.to_string()),
        parent: parent.map(|parent| parent.to_string()),
        disks: entries,
        stored_bytes,
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified: options.verify,
    });
    if let Some(metrics) = metrics {
        metrics
            .write(&document, observer)
            .map_err(|error| error.hint(format!("snapshot {} is stored all the same", id.short())))?;
    }
    Ok(document)
}

fn not_rotated(error: Error, snapshot: Id) -> Error {
    let hint = format!("snapshot {} is stored; the next backup finds out what changed", snapshot.short());
    error.hint(hint)
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
    let path = source.read_at.as_ref().unwrap_or(&source.disk);
    let shown_as = source.read_at.as_ref().map(|_| source.disk.display().to_string());
    let open = OpenOptions { shown_as, ..options.open.clone() };
    let of_export = match (&source.bitmap, options.bitmap.as_deref()) {
        (None, Some(name)) if is_address(path) => Some(Bitmap::of_export(path, name)?),
        _ => None,
    };
    let caching = if options.page_cache { Caching::PageCache } else { Caching::Direct };
    let disk = OpenDisk::open(path, &open, caching).map_err(|error| crate::name_disk(error, &source.disk))?;
    let stack = &disk.stack;
    stack.chain().check_readable()?;
    let before = Seen::of(stack.chain());
    let location = Location { machine: &ThisHost, path, options: &open };
    let resolver = location.resolver()?;
    if !options.in_use {
        check_claims(stack.chain(), &*resolver, Act::Read).map_err(or_in_use)?;
    }
    let hold = if options.dry_run { Hold::No } else { Hold::Yes };
    let virtual_bytes = stack.chain().len_bytes();
    let bitmap = match (&source.bitmap, of_export, options.bitmap.as_deref()) {
        (Some(told), ..) => Some(Bitmap::of_guest(path, told, virtual_bytes)?),
        (None, Some(found), Some(name)) => {
            if found.is_ok() {
                observer.note(&format!("{}: {}", source.disk.display(), bitmap::said_of_export(name)));
            }
            Some(found.map(|bitmap| bitmap.of_disk(virtual_bytes)))
        }
        (None, None, Some(name)) => Some(Bitmap::find(stack.chain(), &before, &*resolver, name, hold)?),
        (None, _, None) => None,
    };
    if block::Disk::sector_bytes(&**stack.chain()) != 512 {
        observer.note(&format!(
            "warning: {} has sectors of {} bytes, which a snapshot does not tell: restore it to vhdx, or attach it with that size",
            source.disk.display(),
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
    Ok(Planned { name: source.name()?, path: source.disk.clone(), disk, before, plan, cuts, bitmap })
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

/// The snapshots of the same disks of the same host, newest first.
fn snapshots_of(repository: &Repository, host: &str, paths: &[String]) -> Result<Vec<(Id, Snapshot)>> {
    let mut sorted = paths.to_vec();
    sorted.sort();
    let is_parent = |snapshot: &Snapshot| {
        let mut paths = snapshot.paths.clone();
        paths.sort();
        snapshot.hostname == host && paths == sorted
    };
    let snapshots = repository.snapshots()?;
    Ok(snapshots.into_iter().rev().filter(|(_, snapshot)| is_parent(snapshot)).collect())
}

/// Which of the snapshots of the same disks, newest first, are not kept. What was made just now, `made`, always is.
fn forgotten(keep: &Keep, snapshots: &[(Id, Snapshot)], made: Id) -> Vec<Id> {
    let kept = keep.of(&snapshots.iter().map(|(_, snapshot)| snapshot).collect::<Vec<_>>());
    let gone = snapshots.iter().zip(kept).filter(|((id, _), is_kept)| !is_kept && *id != made);
    gone.map(|((id, _), _)| *id).collect()
}

/// The files of the last snapshot.
#[derive(Default)]
struct LastFiles(Vec<Node>);

impl LastFiles {
    /// What cannot be read of it is not known.
    fn of(repository: &Repository, index: &Index, id: Id) -> Self {
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

impl Planned {
    /// What need not be read, and how that is known.
    fn tracked(&self, earlier: &Earlier<'_>, dry_run: bool) -> Result<Tracked> {
        if earlier.snapshots.is_empty() {
            return Ok(Tracked::none(FIRST_BACKUP));
        }
        let reason = match self.base_by_bitmap(earlier)? {
            Ok((id, base)) => return self.sampled(id, base, Tracking::Bitmap, dry_run),
            Err(reason) => reason,
        };
        match self.base_by_layers(earlier)? {
            Ok((id, base)) => self.sampled(id, base, Tracking::Chain, dry_run),
            Err(of_layers) => Ok(Tracked::none(&reason.unwrap_or(of_layers))),
        }
    }

    /// Without a reason where no bitmap was asked for.
    fn base_by_bitmap(
        &self,
        earlier: &Earlier<'_>,
    ) -> Result<std::result::Result<(Id, Base), Option<String>>> {
        let bitmap = match &self.bitmap {
            None => return Ok(Err(None)),
            Some(Err(reason)) => return Ok(Err(Some(reason.clone()))),
            Some(Ok(bitmap)) => bitmap,
        };
        let name = node_name(&self.name);
        let found = earlier.base(&name, self.plan.virtual_bytes, |disk| Ok(bitmap.changed(disk)))?;
        Ok(found.map_err(Some))
    }

    fn base_by_layers(&self, earlier: &Earlier<'_>) -> Result<Known<(Id, Base)>> {
        let chain = self.disk.stack.chain();
        if layers::of(chain).is_none() {
            return Ok(Err(NOT_TRACKED.into()));
        }
        earlier.base(&node_name(&self.name), self.plan.virtual_bytes, |disk| {
            disk.record.layers.as_ref().map_or_else(
                || Ok(Err("the last snapshot says nothing of the image's layers".into())),
                |before| layers::changed(chain, before),
            )
        })
    }

    /// What is to be relied on, once samples of it were compared.
    fn sampled(&self, id: Id, base: Base, tracking: Tracking, dry_run: bool) -> Result<Tracked> {
        let samples = self.job(Some(&base)).samples(&id.to_string());
        if !dry_run && !samples.are_on(&**self.disk.stack.chain())? {
            return Ok(Tracked::none(NOT_AS_STORED));
        }
        Ok(Tracked { base: Some(base), tracking, sampled_bytes: samples.read_bytes() })
    }

    fn job<'a>(&'a self, base: Option<&'a Base>) -> BackupJob<'a> {
        let source = &**self.disk.stack.chain();
        BackupJob { source, plan: &self.plan, cuts: self.cuts.clone(), base }
    }

    /// What every kind of backup says of it.
    fn entry(&self, read_bytes: u64, new_bytes: u64, tracking: Tracking) -> DiskBackup {
        DiskBackup {
            snapshot_path: format!("/{}", node_name(&self.name)),
            name: self.name.clone(),
            path: self.path.display().to_string(),
            virtual_bytes: self.plan.virtual_bytes,
            used_bytes: self.plan.used_bytes,
            read_bytes,
            new_bytes,
            tracking,
        }
    }

    fn store(
        mut self,
        options: &Options,
        packers: &mut [Packer<'_, '_>],
        progress: &dyn crate::Progress,
        earlier: &Earlier<'_>,
    ) -> Result<Stored> {
        let Tracked { base, tracking, sampled_bytes } = self.tracked(earlier, false)?;
        let cuts = std::mem::take(&mut self.cuts);
        let chain = self.disk.stack.chain();
        let job = BackupJob { source: &**chain, plan: &self.plan, cuts, base: base.as_ref() };
        let done = job.run(packers, progress).map_err(|error| crate::name_disk(error, &self.path))?;
        if !options.in_use {
            self.before.check_after_reading(chain)?;
        }
        let entry = self.entry(done.read_bytes + sampled_bytes, done.new_bytes, tracking);
        let bitmap = self.bitmap.take().and_then(Result::ok);
        let layers = if options.in_use { None } else { layers::record(chain, &self.before)? };
        drop(self.disk);
        if let Some(bitmap) = &bitmap {
            bitmap.check_after_reading()?;
        }
        let bitmap = bitmap.filter(Bitmap::begins_anew);
        let record = (bitmap.is_some() || layers.is_some()).then(|| {
            let mut record = record_of(&self.plan, &done);
            record.layers = layers;
            record.bitmap = bitmap.as_ref().and_then(|bitmap| bitmap.start(&record, &done));
            record
        });
        let BackedUp { content, .. } = done;
        let node = Node::file(node_name(&self.name), self.plan.virtual_bytes, content);
        Ok(Stored { node, entry, record, bitmap })
    }
}

/// What a snapshot says of a disk, but for how it was left.
fn record_of(plan: &CopyPlan, done: &BackedUp) -> Record {
    let filled = plan.fills.iter().map(|(span, _)| *span).collect();
    Record::new(plan.virtual_bytes, None, &done.zeros, &filled)
}

/// What a backup would do. The repository is opened as well, if there is one.
fn rehearse(options: &Options, planned: Vec<Planned>, started: Instant) -> Result<BackupDocument> {
    let host = options.host.clone().unwrap_or_else(repository::host_name);
    let paths: Vec<String> = planned.iter().map(|disk| format!("/{}", node_name(&disk.name))).collect();
    let repository = match options.place.open(false) {
        Ok(repository) => Some(repository),
        Err(_) if options.init && !options.place.exists()? => None,
        Err(error) => return Err(error),
    };
    let index = repository.as_ref().map(|repository| repository.index()).transpose()?.unwrap_or_default();
    let earlier = match &repository {
        Some(repository) => {
            Some(Earlier { repository, index: &index, snapshots: snapshots_of(repository, &host, &paths)? })
        }
        None => None,
    };
    let parent = earlier.as_ref().and_then(Earlier::parent);
    let mut bound = Bound::default();
    let mut entries = Vec::new();
    for disk in planned {
        let Tracked { base, tracking, sampled_bytes } = match &earlier {
            Some(earlier) => disk.tracked(earlier, true)?,
            None => Tracked::none(FIRST_BACKUP),
        };
        let of_disk = disk.job(base.as_ref()).bound();
        bound.bytes += of_disk.bytes;
        bound.pieces += of_disk.pieces;
        bound.listed += of_disk.listed;
        entries.push(disk.entry(of_disk.read_bytes + sampled_bytes, of_disk.bytes, tracking));
    }
    // As if the new one was there.
    let made = Id::of(b"a dry run");
    let new = Snapshot { tags: options.tags.clone(), ..Snapshot::now(made) };
    let earlier = earlier.map(|earlier| earlier.snapshots).unwrap_or_default();
    let all: Vec<_> = std::iter::once((made, new)).chain(earlier).collect();
    Ok(report::backup_document(BackupSubject {
        repository: &options.place.name(),
        forgotten: forgotten(&options.keep, &all, made).iter().map(Id::to_string).collect(),
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
