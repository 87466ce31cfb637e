//! A new OVA: the disks are copied into it one after another, as members of the archive that is being written.
//!
//! [`Packing`] is the machine on which each member has a name, below that of the archive; a copy to such a name writes a [`MemberFile`], which is the
//! end of the archive's partial file. Descriptor, manifest and headers have their places from the start, and are written once all disks are there.
//!
//! Invariants: the archive has its name once all of it is on stable storage, as every target; if one disk fails there is no archive;
//! nothing is kept of an interrupted one.

use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use appliance::{Descriptor, Digests, NewDisk, NewMember, Window};
use block::{Error, FolderFile, HostFile, ReadAt, Result, TargetFile, TargetFolder, TargetName};
use engine::{JobIdentity, Transfer};
use extent::{Host, HostOffset, HostSpan, Offset, Span};
use image::{Format, Resolver};
use journal::{DiskName, Header, Standing};
use mutants::broken;
use os::{Cloning, FolderOptions, OutputStream, StoragePromise, TargetSpace};
use report::{CopyAllEntry, CopyDocument, human_bytes};

use super::watching::Watching;
use super::{Item, Options, Seen, copy_one};
use crate::appliance::Inside;
use crate::machine::{Caching, CopyFolder, FoundJournal, HeldFile, HeldJournal, Machine, Named};
use crate::open::Location;
use crate::{Cancel, Observer, Provision, copy};

/// The longest name of a member: what a header has room for.
const NAME_BYTES_MAX: usize = 100;
/// Written at a time where the archive is filled up.
const ZEROS: [u8; 512] = [0; 512];

/// Copies the disks into the archive.
pub(super) fn run(
    machine: &Inside<'_>,
    options: &Options,
    items: &[Item],
    observer: &dyn Observer,
) -> Result<Vec<CopyAllEntry>> {
    let all = stream_options(options)?;
    let names = Names::of(&options.into, items.len())?;
    let items: Vec<Item> =
        (0..).zip(items).map(|(index, item)| in_archive(options, &names, index, item)).collect();
    Location { machine, path: &options.into, options: &all.open }.check_replaceable()?;
    let seen = see_sources(machine, &all, &items)?;
    let mode = seen.iter().flatten().fold(0o777, |mode, seen| mode & seen.mode);
    let folder_options = FolderOptions {
        replace: all.force,
        mode,
        kept: all.provision.kept(),
        // Members begin at any multiple of 512.
        direct: false,
    };
    let folder = machine.copy_folder(&options.into, folder_options)?;
    let sizes: Vec<u64> = seen.iter().flatten().map(|seen| seen.virtual_bytes).collect();
    let plan = Plan::new(&names, &sizes);
    see_targets(machine, &all, &items, &*folder, &plan)?;
    let all = Options { copy: all, ..options.clone() };
    let watching = Watching::new(observer, &seen, all.copy.verify);
    if all.copy.dry_run {
        let packing = Packing::new(machine, &*folder, None, &options.into, plan.disks_at);
        let copied = copy_each(&packing, &all, &items, &seen, &watching, |_| Ok(()));
        return Ok(copied?.into_iter().map(|copy| CopyAllEntry::Copied(Box::new(copy))).collect());
    }
    let identity = JobIdentity { source: None, how: String::new() };
    let (transfer, _) = Transfer::begin(&*folder, identity, false)?;
    let packing = Packing::new(machine, &*folder, Some(transfer.partial()), &options.into, plan.disks_at);
    let cancel = observer.cancel();
    let written = cancel.and_then(|cancel| {
        let copies = copy_each(&packing, &all, &items, &seen, &watching, |_| packing.close_member())?;
        watching.finish();
        if broken!(ApplianceNamedEarly) {
            folder.rename(TargetName::Partial, TargetName::Target)?;
        }
        let written = plan.write_rest(&packing, &copies, &cancel, observer);
        written.map(|()| copies)
    });
    watching.finish();
    match written {
        Ok(copies) => {
            transfer.publish()?;
            Ok(copies.into_iter().map(|copy| CopyAllEntry::Copied(Box::new(copy))).collect())
        }
        Err(error) => {
            transfer.give_up(false);
            Err(error.hint("the incomplete appliance was removed"))
        }
    }
}

/// How each disk is copied; `Invalid` for what an OVA cannot have.
fn stream_options(options: &Options) -> Result<copy::Options> {
    let copy = &options.copy;
    let invalid = |what: &str| Error::invalid(what).path(options.into.display());
    if copy.target_format.is_some_and(|format| format != Format::Vmdk) {
        return Err(
            invalid("the disks of an OVA are VMDKs").hint("leave -O out, or name a folder after --into")
        );
    }
    if copy.target_option.iter().any(|option| option != "subformat=streamOptimized") {
        return Err(
            invalid("the disks of an OVA are VMDKs of the subformat streamOptimized").hint("leave -o out")
        );
    }
    if copy.resume {
        return Err(invalid("nothing is kept of an OVA that was interrupted").hint("leave --resume out"));
    }
    if copy.provision != Provision::Thin {
        return Err(invalid("the disks of an OVA are compressed").hint("leave --provision out"));
    }
    Ok(copy::Options {
        target_format: Some(Format::Vmdk),
        target_option: vec!["subformat=streamOptimized".into()],
        ..copy.clone()
    })
}

/// What the members are called.
struct Names {
    stem: String,
    disks: Vec<String>,
}

impl Names {
    fn of(archive: &Path, disk_count: usize) -> Result<Self> {
        let refused = |why: &str| Err(Error::refused(why).path(archive.display()));
        let Some(stem) = archive.file_stem().and_then(|stem| stem.to_str()) else {
            return refused("an OVA's name is text in UTF-8: its members are named after it");
        };
        if stem.chars().any(char::is_control) {
            return refused("an OVA's name has no control characters: its members are named after it");
        }
        let disks: Vec<_> = (1..=disk_count).map(|number| format!("{stem}-disk{number}.vmdk")).collect();
        if disks.last().is_none_or(|longest| longest.len() > NAME_BYTES_MAX) {
            return refused("the OVA's name is too long for the names of its members, or there is no disk");
        }
        Ok(Self { stem: stem.to_owned(), disks })
    }

    fn descriptor(&self) -> String {
        format!("{}.ovf", self.stem)
    }

    fn manifest(&self) -> String {
        format!("{}.mf", self.stem)
    }
}

fn in_archive(options: &Options, names: &Names, index: usize, item: &Item) -> Item {
    Item {
        source: item.source.clone(),
        format: item.format,
        stem: item.stem.clone(),
        target: options.into.join(&names.disks[index]),
        of: item.of,
    }
}

/// All sources, each of which must be there.
fn see_sources(machine: &Inside<'_>, all: &copy::Options, items: &[Item]) -> Result<Seen> {
    let mut seen = Seen::new();
    for item in items {
        let source = copy::see_source(machine, &item.options(all))
            .map_err(|error| crate::name_disk(error, &item.source.disk))?;
        if let Some((appliance, disk)) = item.of {
            machine.disk_of(appliance, disk).check_capacity(source.virtual_bytes)?;
        }
        seen.push(Ok(source));
    }
    Ok(seen)
}

/// Whether the archive could be made, with room for all of them at the least.
fn see_targets(
    machine: &Inside<'_>,
    all: &copy::Options,
    items: &[Item],
    folder: &dyn CopyFolder,
    plan: &Plan<'_>,
) -> Result<()> {
    let packing = Packing::new(machine, folder, None, &plan.archive(items), plan.disks_at);
    let mut needed_bytes = plan.disks_at;
    for item in items {
        needed_bytes = needed_bytes.saturating_add(copy::see_target(&packing, &item.options(all))?.0);
    }
    let free_bytes = folder.check_room(needed_bytes)?.free_bytes;
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    Err(Error::refused(format!(
        "not enough space: the file system has {} free, and the appliance needs {} at the least",
        human_bytes(free_bytes),
        human_bytes(needed_bytes)
    ))
    .hint("nothing was written; make room, or copy to another file system"))
}

fn copy_each(
    packing: &Packing<'_>,
    all: &Options,
    items: &[Item],
    seen: &Seen,
    watching: &Watching<'_>,
    copied: impl Fn(&CopyDocument) -> Result<()>,
) -> Result<Vec<CopyDocument>> {
    let mut copies = Vec::new();
    for (item, seen) in items.iter().zip(seen.iter().flatten()) {
        if watching.is_cancelled() {
            return Err(Error::interrupted());
        }
        let document = copy_one(packing, all, item, &watching.disk(item, seen))?;
        copied(&document)?;
        copies.push(document);
    }
    Ok(copies)
}

/// Where everything but the disks lies, which is known from the start.
struct Plan<'a> {
    names: &'a Names,
    sizes: Vec<u64>,
    descriptor_bytes: u64,
    manifest_bytes: u64,
    /// Where the header of the first disk lies.
    disks_at: u64,
}

impl<'a> Plan<'a> {
    fn new(names: &'a Names, sizes: &[u64]) -> Self {
        let mut plan =
            Self { names, sizes: sizes.to_vec(), descriptor_bytes: 0, manifest_bytes: 0, disks_at: 0 };
        plan.descriptor_bytes = plan.descriptor(&[], &[]).len_bytes();
        let all = [names.descriptor()];
        let all = all.iter().chain(&names.disks).map(String::as_str);
        plan.manifest_bytes = appliance::manifest_len_bytes(all);
        plan.disks_at = member_bytes(plan.descriptor_bytes) + member_bytes(plan.manifest_bytes);
        plan
    }

    fn archive(&self, items: &[Item]) -> PathBuf {
        let first = items.first().and_then(|item| item.target.parent());
        first.unwrap_or(Path::new("")).to_owned()
    }

    /// With the lengths that are known by now.
    fn descriptor(&self, lengths: &[u64], populated: &[u64]) -> Descriptor {
        let of = |values: &[u64], index: usize| values.get(index).copied().unwrap_or_default();
        let disk = |(index, name): (usize, &String)| NewDisk {
            name: name.clone(),
            len_bytes: of(lengths, index),
            // A VMDK has whole sectors.
            capacity_bytes: of(&self.sizes, index).next_multiple_of(512),
            populated_bytes: of(populated, index),
        };
        let disks = self.names.disks.iter().enumerate().map(disk).collect();
        Descriptor { machine: self.names.stem.clone(), disks }
    }

    /// Writes descriptor, manifest and all headers, after all disks.
    fn write_rest(
        &self,
        packing: &Packing<'_>,
        copies: &[CopyDocument],
        cancel: &Cancel,
        observer: &dyn Observer,
    ) -> Result<()> {
        let partial = packing.partial()?;
        let spans = packing.members();
        let lengths: Vec<u64> = spans.iter().map(HostSpan::len_bytes).collect();
        let populated: Vec<u64> = copies.iter().map(CopyDocument::populated_bytes).collect();
        let descriptor = self.descriptor(&lengths, &populated).text();
        let mut digests = vec![(self.names.descriptor(), Digests::sha256_of(descriptor.as_bytes()))];
        let progress = observer.progress("digest", lengths.iter().sum(), cancel.clone());
        let mut advanced = |bytes| {
            progress.advanced(bytes, 0);
            if progress.is_cancelled() { Err(Error::interrupted()) } else { Ok(()) }
        };
        for (name, span) in self.names.disks.iter().zip(&spans) {
            let digest = Digests::sha256(&Part { file: partial, span: *span }, &mut advanced)?;
            digests.push((name.clone(), digest));
        }
        progress.finish();
        let manifest = appliance::manifest_text(&digests);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let put = |at: u64, name: String, len_bytes: u64| {
            partial.write_at(HostOffset::new(at), &appliance::header(&NewMember { name, len_bytes }, now))
        };
        let end = packing.end_bytes();
        partial.set_len(appliance::end_bytes(end))?;
        for (name, span) in self.names.disks.iter().zip(&spans) {
            put(span.start().get() - HEADER_BYTES, name.clone(), span.len_bytes())?;
        }
        let manifest_at = member_bytes(self.descriptor_bytes);
        for (at, name, text) in
            [(0, self.names.descriptor(), &descriptor), (manifest_at, self.names.manifest(), &manifest)]
        {
            put(at, name, text.len() as u64)?;
            partial.write_at(HostOffset::new(at + HEADER_BYTES), text.as_bytes())?;
        }
        partial.flush()
    }
}

/// Of every member.
const HEADER_BYTES: u64 = 512;

/// A member with its header, in whole blocks.
fn member_bytes(len_bytes: u64) -> u64 {
    HEADER_BYTES + appliance::padded_bytes(len_bytes)
}

/// A part of a file, for reading.
struct Part<'a> {
    file: &'a dyn TargetFile,
    span: HostSpan,
}

impl ReadAt<Host> for Part<'_> {
    fn len_bytes(&self) -> u64 {
        self.span.len_bytes()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.file.read_at(self.span.start().plus(at.get()), buf)
    }
}

/// The machine on which the members of an archive in the making have names.
struct Packing<'a> {
    base: &'a Inside<'a>,
    folder: &'a dyn CopyFolder,
    /// `None` where nothing is written.
    partial: Option<&'a dyn FolderFile>,
    archive: PathBuf,
    /// Where the contents of the member lie that is being written.
    open_at: AtomicU64,
    members: Mutex<Vec<HostSpan>>,
}

impl<'a> Packing<'a> {
    fn new(
        base: &'a Inside<'a>,
        folder: &'a dyn CopyFolder,
        partial: Option<&'a dyn FolderFile>,
        archive: &Path,
        disks_at: u64,
    ) -> Self {
        let open_at = AtomicU64::new(disks_at + HEADER_BYTES);
        Self { base, folder, partial, archive: archive.to_owned(), open_at, members: Mutex::default() }
    }

    fn partial(&self) -> Result<&'a dyn FolderFile> {
        self.partial.ok_or_else(|| Error::refused("nothing is written here"))
    }

    fn members(&self) -> Vec<HostSpan> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open_at(&self) -> u64 {
        self.open_at.load(Ordering::Relaxed)
    }

    /// Where the last member ends, with what fills it up.
    fn end_bytes(&self) -> u64 {
        self.open_at() - HEADER_BYTES
    }

    /// The member that was written is whole: the next one comes behind it.
    fn close_member(&self) -> Result<()> {
        let (partial, start) = (self.partial()?, self.open_at());
        let len_bytes = partial.len_bytes().saturating_sub(start);
        let end = start + len_bytes;
        let padded_end = start + appliance::padded_bytes(len_bytes);
        let fill = usize::try_from(padded_end - end).expect("less than a block");
        partial.write_at(HostOffset::new(end), &ZEROS[..fill])?;
        let span = Span::new(HostOffset::new(start), len_bytes);
        self.members.lock().unwrap_or_else(PoisonError::into_inner).push(span);
        self.open_at.store(padded_end + HEADER_BYTES, Ordering::Relaxed);
        Ok(())
    }

    fn is_member(&self, path: &Path) -> bool {
        path.parent() == Some(&*self.archive)
    }
}

impl Machine for Packing<'_> {
    fn thread_count(&self) -> usize {
        self.base.thread_count()
    }

    fn checkpoint_interval(&self) -> Duration {
        // No member is gone on with.
        Duration::MAX
    }

    fn named(&self, path: &Path) -> Named {
        // A source that is an appliance of the same name is refused by what it lies on.
        if self.is_member(path) { Named::Nothing } else { self.base.named(path) }
    }

    fn storage_of(&self, path: &Path) -> Result<Vec<(u64, u64)>> {
        self.base.storage_of(if self.is_member(path) { &self.archive } else { path })
    }

    fn copied_mode(&self, path: &Path) -> u32 {
        self.base.copied_mode(path)
    }

    fn copy_folder(&self, path: &Path, _options: FolderOptions) -> Result<Box<dyn CopyFolder + '_>> {
        Ok(Box::new(MemberFolder { packing: self, path: path.to_owned() }))
    }

    fn copy_device(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.base.copy_device(path)
    }

    fn output(&self) -> Result<OutputStream> {
        self.base.output()
    }

    fn kept(&self, _path: &Path) -> StoragePromise {
        Provision::Thin.kept()
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.base.exists(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        self.base.free_bytes(path)
    }

    fn open(&self, path: &Path, caching: Caching) -> Result<Arc<dyn HostFile>> {
        if !self.is_member(path) || self.partial.is_none() {
            return self.base.open(path, caching);
        }
        let file = self.base.open(&self.folder.path(TargetName::Partial), Caching::PageCache)?;
        let span = Span::between(HostOffset::new(self.open_at()), Offset::new(file.len_bytes()));
        Ok(Arc::new(Window::new(file, span, path.to_owned())))
    }

    fn hold(&self, path: &Path) -> Result<Arc<dyn HeldFile>> {
        self.base.hold(path)
    }

    fn resolver(&self, path: &Path, allow_path: &[PathBuf]) -> Result<Box<dyn Resolver>> {
        self.base.resolver(path, allow_path)
    }

    fn journal_path(&self, path: &Path) -> PathBuf {
        self.base.journal_path(path)
    }

    fn disk_name(&self, path: &Path) -> Result<DiskName> {
        self.base.disk_name(path)
    }

    fn journal_standing(&self, path: &Path) -> Standing {
        if self.is_member(path) { Standing::Absent } else { self.base.journal_standing(path) }
    }

    fn check_journal_place(&self, path: &Path, stated: Option<&Path>) -> Result<()> {
        self.base.check_journal_place(path, stated)
    }

    fn create_journal(
        &self,
        path: &Path,
        stated: Option<&Path>,
        header: Header,
    ) -> Result<Box<dyn HeldJournal + '_>> {
        self.base.create_journal(path, stated, header)
    }

    fn find_journal(&self, path: &Path, stated: Option<&Path>) -> Result<Option<Box<dyn FoundJournal + '_>>> {
        self.base.find_journal(path, stated)
    }
}

/// Where a copy makes a member: its only file is the end of the archive's partial file.
struct MemberFolder<'a> {
    packing: &'a Packing<'a>,
    path: PathBuf,
}

impl CopyFolder for MemberFolder<'_> {
    fn path(&self, _name: TargetName) -> PathBuf {
        self.path.clone()
    }

    fn check_room(&self, len_bytes: u64) -> Result<TargetSpace> {
        self.packing.folder.check_room(self.packing.open_at().saturating_add(len_bytes))
    }

    fn check_cloning(&self, _source: &dyn HostFile) -> Result<Cloning> {
        Ok(Cloning::no("the target is a member of an archive"))
    }
}

impl TargetFolder for MemberFolder<'_> {
    fn open(&self, _name: TargetName) -> Result<Option<Box<dyn FolderFile + '_>>> {
        Ok(None)
    }

    fn create(&self, name: TargetName) -> Result<Box<dyn FolderFile + '_>> {
        match (name, self.packing.partial) {
            (TargetName::Partial, Some(file)) => {
                let start = self.packing.open_at();
                // What is before it are members, and the room for what is not written yet.
                file.set_len(start)?;
                Ok(Box::new(MemberFile { file, start }))
            }
            _ => Err(Error::io("create a member of the archive", IoErrorKind::Unsupported.into())),
        }
    }

    fn remove(&self, _name: TargetName) -> Result<bool> {
        Ok(false)
    }

    fn rename(&self, _from: TargetName, _to: TargetName) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// The end of the archive's partial file, from where a member begins.
struct MemberFile<'a> {
    file: &'a dyn FolderFile,
    start: u64,
}

impl MemberFile<'_> {
    fn beneath(&self, span: HostSpan) -> Result<HostSpan> {
        let moved = span.start().checked_add(self.start);
        moved
            .and_then(|start| Span::checked(start, span.len_bytes()))
            .ok_or_else(|| Error::invalid("a place past every file"))
    }
}

impl ReadAt<Host> for MemberFile<'_> {
    fn len_bytes(&self) -> u64 {
        self.file.len_bytes().saturating_sub(self.start)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.file.read_at(at.plus(self.start), buf)
    }
}

impl TargetFile for MemberFile<'_> {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.file.write_at(at.plus(self.start), buf)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.file.set_len(self.start.saturating_add(len_bytes))
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.file.reserve(self.beneath(span)?)
    }

    fn reserve_ahead(&self, span: HostSpan, spare_bytes: u64) -> bool {
        self.beneath(span).is_ok_and(|span| self.file.reserve_ahead(span, spare_bytes))
    }

    fn prepare_memory(&self, memory: &mut [u8]) {
        self.file.prepare_memory(memory);
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        self.file.zero(self.beneath(span)?)
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        self.file.punch(self.beneath(span)?)
    }

    fn flush(&self) -> Result<()> {
        self.file.flush()
    }

    fn read_stored(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.file.read_stored(at.plus(self.start), buf)
    }

    fn forget(&self, span: HostSpan) {
        if let Ok(span) = self.beneath(span) {
            self.file.forget(span);
        }
    }
}

impl FolderFile for MemberFile<'_> {
    fn identity(&self) -> Result<Option<String>> {
        Ok(None)
    }

    fn flush_all(&self) -> Result<()> {
        self.file.flush_all()
    }

    fn complete(&self) -> Result<()> {
        self.file.flush()
    }
}
