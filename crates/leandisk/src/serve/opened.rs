//! A disk taken into use: its files locked and opened for writing, or for reading alone, and closed in order.
//!
//! Invariants:
//! - a disk is first held, without a change of a byte, and then taken into use: so all of several can be held, and asked whether
//!   that will succeed, before the first of them is;
//! - holding opens all that is ever opened by a name: a process that is closed in can take a disk into use.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use bench::DiskInUse;
use block::{Counted, Disk, EditDisk, Error, HostFile, LiveDisk, ReadAt, Result, Run, TargetFile};
use claims::Act;
use extent::{Host, Virtual, VirtualOffset, VirtualSpan};
use image::live::{Arrangement, LiveOptions};
use image::{Chain, Format, Purpose, Resolver, SnapshotReference};
use os::{HostMachine, LiveFile, PreallocatedFile, ReadLock, StoragePromise};
use serve::monitor::Monitor;
use stack::Stack;

use super::Options;
use super::lean::Lean;
use super::made::Made;
use super::rehearsal::Rehearsed;
pub(super) use crate::machine::Caching;
use crate::open::{Location, NtfsLog, OpenOptions, check_claims};
use crate::{Observer, Provision, Unwatched};

/// Takes a disk that stands on no other into use as `serve` does, but past the page cache where that can be done.
pub(crate) fn open_direct(path: &Path, format: Format) -> Result<Box<dyn DiskInUse>> {
    let open = OpenOptions { format: Some(format), ..OpenOptions::default() };
    let location = Location::here(path, &open);
    let chain = location.open_chain(Caching::Metadata)?;
    let how =
        UseOptions { caching: Caching::Direct, kept: os::kept(path), arrangement: Arrangement::default() };
    let held = HeldToWrite::of(&chain, location.resolver()?, how)?;
    Ok(Box::new(held.into_use(&Monitor::new())?))
}

/// What moves at most to shorten a file, so that a disk is closed in little time.
const MOVED_BYTES_MAX: u64 = 1 << 30;
/// A file may be longer than what it holds by so much, and by a twentieth.
const SPARE_BYTES: u64 = 32 << 20;

/// How long a file that holds `held_bytes` may be.
fn length_max(held_bytes: u64) -> u64 {
    held_bytes.saturating_add(held_bytes / 20).saturating_add(SPARE_BYTES)
}

/// How a disk is used.
#[derive(Clone, Copy)]
pub(super) struct UseOptions {
    caching: Caching,
    /// What of its storage is not given back.
    kept: StoragePromise,
    arrangement: Arrangement,
}

impl UseOptions {
    /// For the image at `path`.
    pub(super) fn of(path: &Path, options: &Options) -> Self {
        let kept = options.provision.map_or_else(|| os::kept(path), Provision::kept);
        Self { caching: Caching::PageCache, kept, arrangement: options.placement.arrangement() }
    }
}

/// A disk that is only read.
pub(super) struct HeldToRead {
    chain: Chain,
    /// Disks that logical volumes and file systems of this one have parts on.
    others: Vec<Chain>,
    locks: Vec<LockedFile>,
    /// What its guest does not use is to read as zeros.
    is_lean: bool,
    ntfs_log: NtfsLog,
}

impl HeldToRead {
    /// The disk at `location`, with those that the options name beside it.
    pub(super) fn at(chain: &Chain, location: Location<'_>, options: &Options) -> Result<Self> {
        let mut held = Self::of(chain, &*location.resolver()?, options.lean)?;
        held.ntfs_log = options.open.ntfs_log;
        if options.lean {
            options.open.with.iter().try_for_each(|other| held.add_other(location, other))?;
        }
        Ok(held)
    }

    fn of(chain: &Chain, resolver: &dyn Resolver, is_lean: bool) -> Result<Self> {
        check_claims(chain, resolver, Act::Read)?;
        let locks = lock_for_reading(chain.files())?;
        // What was parsed before the locks may have changed since.
        let chain = Chain::open(chain.files()[0].clone(), same_format(chain), resolver)?;
        chain.check_readable()?;
        check_all_held(&chain, &locks, &[])?;
        Ok(Self { chain, others: Vec::new(), locks, is_lean, ntfs_log: NtfsLog::Refuse })
    }

    /// Holds another disk as well, without which its logical volumes are not whole. It is named with the disk at `location`.
    fn add_other(&mut self, location: Location<'_>, path: &Path) -> Result<()> {
        let chain = location.open_other(path, Caching::PageCache)?;
        let held = Self::of(&chain, &*location.resolver_of_other(path)?, self.is_lean)?;
        self.others.push(held.chain);
        self.locks.extend(held.locks);
        Ok(())
    }

    pub(super) fn into_use(self, observer: &dyn Observer) -> Result<OpenForUse> {
        let Self { chain, others, locks, is_lean, ntfs_log } = self;
        let format = chain.facts().format;
        let disk: Arc<dyn LiveDisk> = match is_lean {
            true => {
                let stack = ntfs_log.joined(Stack::open_with(chain, others)?)?;
                let disk = Arc::new(ReadOnly(stack.chain().clone()));
                Arc::new(Lean::of(&stack, disk, observer)?)
            }
            false => read_only(chain),
        };
        Ok(OpenForUse {
            format,
            disk,
            files: Vec::new(),
            own: Vec::new(),
            keeps_storage: true,
            is_to_be_short: false,
            writes_zeros: false,
            filler: None,
            _locks: locks.into_iter().map(|held| held.lock).collect(),
        })
    }
}

/// A disk that is to be written.
pub(super) struct HeldToWrite {
    resolver: Box<dyn Resolver>,
    chain: Chain,
    /// The top layer's.
    files: Vec<Arc<LiveFile>>,
    /// The same, with what is known of where they lie.
    machines: Vec<HostMachine>,
    locks: Vec<LockedFile>,
    how: UseOptions,
    /// The image was made for this, and goes again unless it is used.
    made: Option<Made>,
}

impl HeldToWrite {
    /// The same, of an image that was made for this.
    pub(super) fn made(self, made: Option<Made>) -> Self {
        Self { made, ..self }
    }

    pub(super) fn of(chain: &Chain, resolver: Box<dyn Resolver>, how: UseOptions) -> Result<Self> {
        check_writable(chain)?;
        check_claims(chain, &*resolver, Act::Change)?;
        let own = chain.links()[0].layer.files();
        let files = own.iter().map(|file| open_live(&**file, how)).collect::<Result<Vec<_>>>()?;
        let locks = lock_for_reading(&chain.files()[own.len()..])?;
        let chain = open_again(chain, &*resolver, &files)?;
        check_all_held(&chain, &locks, &files)?;
        check_writable(&chain)?;
        let machines = files.iter().map(|file| HostMachine::of(file.clone())).collect();
        Ok(Self { resolver, chain, files, machines, locks, how, made: None })
    }

    pub(super) fn check_usable(&self) -> Result<()> {
        let chain = open_again(&self.chain, &*self.resolver, &self.files)?;
        let rehearsed = |file: &Arc<LiveFile>| Arc::new(Rehearsed::new(file.clone())) as Arc<dyn TargetFile>;
        let targets = self.files.iter().map(rehearsed).collect();
        image::live::open(chain, targets, self.live_options()).map(drop)
    }

    fn live_options(&self) -> LiveOptions {
        let UseOptions { kept, arrangement, .. } = self.how;
        LiveOptions { keeps_places: kept != StoragePromise::Nothing, arrangement, ..LiveOptions::default() }
    }

    pub(super) fn into_use(self, monitor: &Arc<Monitor>) -> Result<OpenForUse> {
        let options = self.live_options();
        let Self { chain, files: own, machines, locks, how, made, .. } = self;
        let format = chain.facts().format;
        let provisioned = |(file, machine): (&Arc<LiveFile>, _)| provisioned(file, machine, &chain, monitor);
        let files: Vec<_> = own.iter().zip(machines).map(provisioned).collect();
        let counted = |file: &Arc<PreallocatedFile>| -> Arc<dyn TargetFile> {
            Arc::new(Counted::new(file.clone(), monitor.clone()))
        };
        let targets = files.iter().map(counted).collect();
        let disk = image::live::open(chain, targets, options)?.into();
        if let Some(made) = made {
            made.keep();
        }
        Ok(OpenForUse {
            disk,
            files,
            is_to_be_short: how.kept == StoragePromise::Nothing && how.arrangement != Arrangement::Mirror,
            format,
            keeps_storage: how.kept != StoragePromise::Nothing,
            own,
            writes_zeros: how.kept == StoragePromise::Written,
            filler: None,
            _locks: locks.into_iter().map(|held| held.lock).collect(),
        })
    }
}

/// The chain as it is now that its own `files` are held: what was parsed before may have changed since.
fn open_again(chain: &Chain, resolver: &dyn Resolver, files: &[Arc<LiveFile>]) -> Result<Chain> {
    Chain::open(files[0].clone(), same_format(chain), &OwnFilesFirst { others: resolver, files })
}

/// What brings the rest of a disk in the background.
pub(super) trait Filler: Send + Sync {
    /// Has it end, and says what came of it.
    fn end(&self, observer: &dyn Observer) -> Result<()>;
}

/// A disk with the locks of the files that are only read.
pub(super) struct OpenForUse {
    pub(super) disk: Arc<dyn LiveDisk>,
    /// The top layer's.
    files: Vec<Arc<PreallocatedFile>>,
    /// The same, as they are held. None of a disk that is only read.
    own: Vec<Arc<LiveFile>>,
    /// The top layer's format.
    format: Format,
    /// Its storage is kept, whatever the guest discards.
    keeps_storage: bool,
    /// Its file is to be about as long as what it holds.
    is_to_be_short: bool,
    /// Zeros are written, because it keeps that it was.
    pub(super) writes_zeros: bool,
    /// What brings the rest of a disk that is being filled.
    filler: Option<Box<dyn Filler>>,
    _locks: Vec<ReadLock>,
}

impl OpenForUse {
    /// The file of the top layer, if it is written.
    pub(super) fn top(&self) -> Option<Arc<LiveFile>> {
        self.own.first().cloned()
    }

    /// The same behind `disk`, which is being filled.
    pub(super) fn filled(self, disk: Arc<dyn LiveDisk>, filler: Box<dyn Filler>) -> Self {
        Self { disk, filler: Some(filler), ..self }
    }

    /// Closes the image, and gives back what was reserved for it and not used.
    pub(super) fn close(&self, observer: &dyn Observer) -> Result<()> {
        let filled = self.filler.as_ref().map_or(Ok(()), |filler| filler.end(observer));
        self.close_image(observer).and(filled)
    }

    fn close_image(&self, observer: &dyn Observer) -> Result<()> {
        if let Err(error) = self.shorten() {
            // If the disk failed by it, closing says so.
            observer.note(&format!("the image's file stays longer than it need be: {error}"));
        }
        let closed = self.disk.close();
        let given = self.give_back();
        closed.and(match given {
            // It stays reserved, and is in nobody's way but the host's.
            Err(error) if error.is_full() => {
                observer.note(&format!(
                    "the host did not take back what was reserved for the image and not used: {error}"
                ));
                Ok(())
            }
            given => given,
        })
    }
}

impl OpenForUse {
    /// Gives back what the guest does not use of a disk that was closed, or tells why not.
    pub(super) fn compact(&self, observer: &dyn Observer) -> Result<()> {
        match self.own.first().filter(|_| self.keeps_storage) {
            Some(top) => {
                let what = "is not compacted: it keeps its storage (--provision)";
                observer.note(&format!("'{}' {what}", HostFile::name(&**top)));
                Ok(())
            }
            None => super::compacting::compact(&self.own, self.format, observer),
        }
    }

    fn give_back(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.give_back())
    }

    /// Moves what makes the file long, if it is longer than what it holds.
    fn shorten(&self) -> Result<()> {
        let Some(top) = self.own.first().filter(|_| self.is_to_be_short && self.disk.is_changed()) else {
            return Ok(());
        };
        // What is reserved counts as held.
        self.give_back()?;
        let length_bytes = length_max(top.allocated_bytes()?);
        if ReadAt::<Host>::len_bytes(&**top) > length_bytes {
            engine::shorten(&*self.disk, length_bytes, MOVED_BYTES_MAX)?;
        }
        Ok(())
    }
}

fn provisioned(
    file: &LiveFile,
    machine: HostMachine,
    chain: &Chain,
    monitor: &Arc<Monitor>,
) -> Arc<PreallocatedFile> {
    let monitor = monitor.clone();
    let limit_bytes = image::live::end_max(chain, ReadAt::<Host>::len_bytes(file));
    let on_continued = Box::new(move || monitor.prevented_fragment());
    Arc::new(machine.preallocated(limit_bytes, on_continued))
}

impl DiskInUse for OpenForUse {
    fn disk(&self) -> &dyn LiveDisk {
        &*self.disk
    }

    fn close(&self) -> Result<()> {
        Self::close(self, &Unwatched)
    }
}

fn same_format(chain: &Chain) -> image::OpenOptions {
    image::OpenOptions { format: Some(chain.facts().format) }
}

/// What speaks against writing, of the disk as a whole.
fn check_writable(chain: &Chain) -> Result<()> {
    let top = &chain.links()[0];
    let name = top.layer.files()[0].name();
    image::check_found(chain).map_err(|error| error.path(name))?;
    chain.check_readable()?;
    top.layer.check_editable().map_err(|error| error.path(name))
}

fn open_live(file: &dyn HostFile, how: UseOptions) -> Result<Arc<LiveFile>> {
    let opened = match how.caching {
        Caching::Direct => LiveFile::open_direct(file.path())?,
        Caching::PageCache | Caching::Metadata => LiveFile::open(file.path())?,
    };
    let opened = opened.keeping(how.kept);
    if opened.identity() == file.identity() {
        Ok(Arc::new(opened))
    } else {
        Err(changed_meanwhile(file.name()))
    }
}

fn changed_meanwhile(name: &str) -> Error {
    Error::refused("was changed or replaced while it was opened")
        .hint("see that nothing uses it, and try again")
        .path(name)
}

/// A lock and the file that it is on.
pub(super) struct LockedFile {
    lock: ReadLock,
    identity: Option<(u64, u64)>,
}

fn lock_for_reading(files: &[Arc<dyn HostFile>]) -> Result<Vec<LockedFile>> {
    let hold = |file: &Arc<dyn HostFile>| {
        Ok(LockedFile { lock: ReadLock::take(file.path())?, identity: file.identity() })
    };
    // What is no file of the host nobody else can change.
    files.iter().filter(|file| file.identity().is_some()).map(hold).collect()
}

/// `Refused` unless the chain consists of what is locked and of `files`.
fn check_all_held(chain: &Chain, locks: &[LockedFile], files: &[Arc<LiveFile>]) -> Result<()> {
    for file in chain.files() {
        let identity = file.identity();
        let is_held = identity.is_none()
            || locks.iter().any(|held| held.identity == identity)
            || files.iter().any(|held| held.identity() == identity);
        if !is_held {
            return Err(changed_meanwhile(file.name()));
        }
    }
    Ok(())
}

/// Hands out the files that are open for writing under the names by which the image knows them.
struct OwnFilesFirst<'a> {
    others: &'a dyn Resolver,
    files: &'a [Arc<LiveFile>],
}

impl Resolver for OwnFilesFirst<'_> {
    fn open(&self, from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        let found = self.others.open(from, name, purpose)?;
        let own = self.files.iter().find(|file| file.identity() == found.identity());
        Ok(own.map_or(found, |file| file.clone() as Arc<dyn HostFile>))
    }

    fn open_snapshot(&self, from: &dyn HostFile, parent: &SnapshotReference) -> Result<Arc<dyn HostFile>> {
        self.others.open_snapshot(from, parent)
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<OsString>> {
        self.others.siblings(from)
    }

    fn open_sibling(&self, from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        self.others.open_sibling(from, name)
    }
}

/// A disk to be served that is read, and refuses every change.
pub(crate) fn read_only(chain: Chain) -> Arc<dyn LiveDisk> {
    Arc::new(ReadOnly(Arc::new(chain)))
}

/// A disk that is read, and refuses every change.
struct ReadOnly(Arc<Chain>);

impl ReadOnly {
    fn refuse<T>(&self) -> Result<T> {
        Err(Error::refused("the disk is served read-only").path(self.0.files()[0].name()))
    }
}

impl ReadAt<Virtual> for ReadOnly {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(at, buf)
    }
}

impl EditDisk for ReadOnly {
    fn write_at(&self, _at: VirtualOffset, _buf: &[u8]) -> Result<()> {
        self.refuse()
    }

    /// Nothing was written.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }
}

impl Disk for ReadOnly {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        self.0.map_with_host(span)
    }

    fn sector_bytes(&self) -> u32 {
        self.0.sector_bytes()
    }
}

impl LiveDisk for ReadOnly {
    fn zero(&self, _span: VirtualSpan, _may_free: bool) -> Result<()> {
        self.refuse()
    }

    fn discard(&self, _span: VirtualSpan) -> Result<()> {
        self.refuse()
    }
}
