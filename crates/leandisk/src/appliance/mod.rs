//! Appliances as sources: an OVA, an OVF, a `.vmx` or a libvirt domain stands for its disks.
//!
//! [`Appliance::find`] reads the description, has the manifest checked, and sees that each file it names is there and granted: before
//! anything is written. [`Inside`] is the machine on which the appliance's disks have names; whatever works on a machine reads them there.
//!
//! Invariants: what a description names is opened through the gate for references, from the description's own folder, or is a member of the archive;
//! what is compressed is unpacked in memory, piece by piece.

mod inside;
mod members;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use appliance::{
    Archive, Corrupt, Description, Gunzipped, GzipIndex, Joined, Kind, Manifest, NamedFile, TEXT_BYTES_MAX,
    Window, domain, ovf, vmx,
};
use block::{Error, HostFile, ReadAt, Result, read_vec};
use extent::{Host, HostOffset, HostSpan};
use image::{Format, Purpose, Resolver};

pub use self::inside::Inside;
use self::members::Members;
use crate::machine::{Caching, Machine, Named};
use crate::remote::is_address;
use crate::{Cancel, Observer, OpenOptions};

/// An appliance whose description was read.
#[derive(Debug)]
pub struct Appliance {
    path: PathBuf,
    kind: Kind,
    disks: Vec<Disk>,
    notes: Vec<String>,
    /// The members of an OVA.
    archive: Option<Archive>,
    allow_path: Vec<PathBuf>,
}

/// A disk of an appliance.
#[derive(Debug)]
pub struct Disk {
    /// What the description calls it.
    pub(crate) id: String,
    /// The file's name by the description.
    pub(crate) reference: String,
    /// Its name on the machine [`Inside`].
    pub(crate) path: PathBuf,
    /// The format that was stated: by the user, else by the description.
    pub(crate) format: Option<Format>,
    capacity: Option<appliance::Capacity>,
    place: Place,
    /// Of a file that is compressed.
    gzip: Option<Gzip>,
}

/// Where a disk's file lies: as a whole, or in chunks.
#[derive(Debug)]
enum Place {
    /// In an OVA.
    Members(Vec<HostSpan>),
    /// By the names that the description has for them.
    Files(Vec<String>),
}

/// Where a compressed file can be unpacked from, once that is known.
#[derive(Debug)]
struct Gzip {
    index: Mutex<Option<Arc<GzipIndex>>>,
    unpacked_bytes_max: u64,
}

impl Gzip {
    fn of(file: Option<&NamedFile>, disk: &appliance::Disk) -> Option<Self> {
        let is_gzip = file.is_some_and(|file| file.packing.is_gzip);
        is_gzip.then(|| Self { index: Mutex::default(), unpacked_bytes_max: disk.unpacked_bytes_max() })
    }

    /// Reads all of the file, the first time.
    fn index(
        &self,
        file: &dyn HostFile,
        advanced: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Arc<GzipIndex>> {
        let mut known = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = &*known {
            return Ok(index.clone());
        }
        let made = Arc::new(GzipIndex::make(file, self.unpacked_bytes_max, advanced)?);
        *known = Some(made.clone());
        Ok(made)
    }
}

impl Disk {
    /// `Corrupt` if the disk has another size than the description says.
    pub(crate) fn check_capacity(&self, virtual_bytes: u64) -> Result<()> {
        let Some(capacity) = self.capacity else { return Ok(()) };
        capacity.check(virtual_bytes).map_err(|error| error.path(self.path.display()))
    }

    /// Its file as it is packed.
    fn packed(
        &self,
        base: &dyn Machine,
        appliance: &Appliance,
        caching: Caching,
    ) -> Result<Arc<dyn HostFile>> {
        let chunks: Vec<Arc<dyn HostFile>> = match &self.place {
            Place::Members(spans) => {
                let file = base.open(&appliance.path, caching)?;
                // It was longer when the description was read.
                if spans.iter().any(|span| span.end().get() > file.len_bytes()) {
                    let what = "the appliance became shorter while it was read";
                    return Err(Error::io(what, std::io::ErrorKind::UnexpectedEof.into())
                        .path(appliance.path.display()));
                }
                let window =
                    |span: &HostSpan| Arc::new(Window::new(file.clone(), *span, self.path.clone())) as _;
                spans.iter().map(window).collect()
            }
            Place::Files(names) => {
                let from = base.open(&appliance.path, Caching::Metadata)?;
                let gate = base.resolver(&appliance.path, &appliance.allow_path)?;
                let open = |name: &String| gate.open(&*from, name, Purpose::Data);
                names.iter().map(open).collect::<Result<_>>()?
            }
        };
        match <[_; 1]>::try_from(chunks) {
            Ok([only]) => Ok(only),
            Err(several) => Ok(Arc::new(Joined::new(several, self.path.clone()))),
        }
    }

    /// Its file.
    fn open(&self, base: &dyn Machine, appliance: &Appliance, caching: Caching) -> Result<Arc<dyn HostFile>> {
        let packed = self.packed(base, appliance, caching)?;
        let Some(gzip) = &self.gzip else { return Ok(packed) };
        let index = gzip.index(&*packed, &mut |_| Ok(())).map_err(|error| error.path(self.path.display()))?;
        Ok(Arc::new(Gunzipped::new(packed, index)))
    }

    /// The files of the host that hold its bytes, if they are files of their own, and other than what it is called.
    fn chunk_paths(&self) -> Vec<PathBuf> {
        match &self.place {
            Place::Files(names) if names.len() > 1 => {
                names.iter().map(|name| self.path.with_file_name(name)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Appliance {
    /// Reads what describes the appliance, and checks it; with an observer the files' contents as well, if there is a manifest. `None` if the path is no appliance's, or if the user says that it is an image.
    /// Only a name makes a file an appliance: what a guest could have written into a raw disk does not.
    pub fn find(
        machine: &dyn Machine,
        path: &Path,
        options: &OpenOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<Option<Self>> {
        let Some(kind) = Kind::of(path).filter(|_| options.format.is_none()) else { return Ok(None) };
        if is_address(path) || machine.named(path) == Named::BlockDevice {
            return Ok(None);
        }
        let reading = Reading { machine, path, options, observer };
        reading.appliance(kind).map(Some).map_err(|error| error.path(path.display()))
    }

    /// What describes it: `ova`, `ovf`, `vmx` or `libvirt`.
    pub fn kind(&self) -> &'static str {
        self.kind.word()
    }

    /// Its disks.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// What is left out, or was not checked.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// `Refused` unless it has exactly one disk.
    pub(crate) fn only_disk(&self) -> Result<&Disk> {
        match &self.disks[..] {
            [only] => Ok(only),
            several => Err(Error::refused(format!("the appliance has {} disks", several.len()))
                .path(self.path.display())
                .hint(
                    "leandisk info lists them; leandisk copy APPLIANCE --into FOLDER -O FMT copies them all",
                )),
        }
    }
}

/// An appliance that is being read.
struct Reading<'a> {
    machine: &'a dyn Machine,
    path: &'a Path,
    options: &'a OpenOptions,
    observer: Option<&'a dyn Observer>,
}

impl Reading<'_> {
    fn appliance(&self, kind: Kind) -> Result<Appliance> {
        let file = self.machine.open(self.path, Caching::PageCache)?;
        match kind {
            Kind::Ova => self.archive(file),
            Kind::Ovf => {
                let description = ovf::read(&text_of(&*file, file.name())?)?;
                self.folder(kind, &*file, description)
            }
            Kind::Vmx => self.folder(kind, &*file, vmx::read(&text_of(&*file, file.name())?)?),
            Kind::Domain => self.folder(kind, &*file, domain::read(&text_of(&*file, file.name())?)?),
        }
    }

    fn archive(&self, file: Arc<dyn HostFile>) -> Result<Appliance> {
        let archive = Archive::read(&*file)?;
        let descriptor = archive.descriptor()?;
        let window = |span| Window::new(file.clone(), span, self.path.to_owned());
        let mut description = ovf::read(&text_of(&window(descriptor.span), &descriptor.name)?)?;
        let member = |name: &str| {
            let decoded = appliance::percent_decoded(name);
            let found = archive.member(name).or_else(|| archive.member(&decoded?));
            found.ok_or_else(|| Error::corrupt(Corrupt::NoSuchMember { name: name.to_owned() }))
        };
        let parts = all_parts(&description)?;
        for (name, len_bytes) in &parts {
            check_len(name, member(name)?.span.len_bytes(), *len_bytes)?;
        }
        let mut disks = Vec::new();
        for disk in std::mem::take(&mut description.disks) {
            let file = description.file(&disk.file);
            let mut members = Vec::new();
            for (name, _) in parts_of(file, &disk.file)? {
                members.push(member(&name)?);
            }
            let path = match &members[..] {
                [only] => self.path.join(&only.name),
                _ => self.path.join(&disk.file),
            };
            disks.push(Disk {
                path,
                gzip: Gzip::of(file, &disk),
                id: disk.id,
                reference: disk.file,
                format: self.options.format.or(disk.format),
                capacity: disk.capacity,
                place: Place::Members(members.into_iter().map(|member| member.span).collect()),
            });
        }
        match archive.manifest()? {
            None => description.notes.push(NO_MANIFEST.into()),
            Some(manifest) => {
                let manifest = Manifest::parse(&text_of(&window(manifest.span), &manifest.name)?)?;
                let mut files: Vec<(String, Arc<dyn HostFile>)> =
                    vec![(descriptor.name.clone(), Arc::new(window(descriptor.span)))];
                let chunked = chunked(&description.files)?;
                let named = parts.iter().map(|(name, _)| name.as_str());
                for name in named.chain(manifest.names()) {
                    // There may be a digest of the whole file as well.
                    if let Some((_, parts)) = chunked.iter().find(|(whole, _)| *whole == name) {
                        let chunks =
                            parts.iter().map(|(part, _)| Ok(Arc::new(window(member(part)?.span)) as _));
                        let chunks = chunks.collect::<Result<Vec<_>>>()?;
                        files.push((name.to_owned(), Arc::new(Joined::new(chunks, self.path.join(name)))));
                        continue;
                    }
                    let member = member(name)?;
                    files.push((member.name.clone(), Arc::new(window(member.span))));
                }
                description.notes.extend(self.check(&manifest, files)?);
            }
        }
        if archive.has_certificate() {
            description.notes.push(NOT_SIGNED.into());
        }
        let appliance = self.read(Kind::Ova, disks, description.notes, Some(archive));
        self.unpack(&appliance)?;
        Ok(appliance)
    }

    fn folder(&self, kind: Kind, file: &dyn HostFile, mut description: Description) -> Result<Appliance> {
        let gate = self.machine.resolver(self.path, &self.options.allow_path)?;
        let mut files: Vec<(String, Arc<dyn HostFile>)> = Vec::new();
        for (name, len_bytes) in all_parts(&description)? {
            let (opened, name) = open_named(&*gate, file, &name, kind)?;
            check_len(&name, opened.len_bytes(), len_bytes)?;
            files.push((name, opened));
        }
        let mut disks = Vec::new();
        for disk in std::mem::take(&mut description.disks) {
            let named = description.file(&disk.file);
            let mut names = Vec::new();
            for (name, _) in parts_of(named, &disk.file)? {
                names.push(open_named(&*gate, file, &name, kind)?.1);
            }
            let reference = match &names[..] {
                [only] => only.clone(),
                _ => disk.file.clone(),
            };
            disks.push(Disk {
                path: self.path.parent().unwrap_or(Path::new("")).join(&reference),
                gzip: Gzip::of(named, &disk),
                id: disk.id,
                reference,
                format: self.options.format.or(disk.format),
                capacity: disk.capacity,
                place: Place::Files(names),
            });
        }
        if kind == Kind::Ovf {
            match self.manifest_beside(&*gate, file)? {
                None => description.notes.push(NO_MANIFEST.into()),
                Some(manifest) => {
                    let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    files.push((name, self.machine.open(self.path, Caching::PageCache)?));
                    for (whole, parts) in chunked(&description.files)? {
                        if manifest.names().any(|name| name == whole) {
                            let chunks =
                                parts.iter().map(|(part, _)| Ok(open_named(&*gate, file, part, kind)?.0));
                            let chunks = chunks.collect::<Result<Vec<_>>>()?;
                            let path = self.path.with_file_name(whole);
                            files.push((whole.to_owned(), Arc::new(Joined::new(chunks, path))));
                        }
                    }
                    for name in manifest.names() {
                        if !files.iter().any(|(known, _)| known == name) {
                            let (opened, name) = open_named(&*gate, file, name, kind)?;
                            files.push((name, opened));
                        }
                    }
                    description.notes.extend(self.check(&manifest, files)?);
                }
            }
        }
        let appliance = self.read(kind, disks, description.notes, None);
        self.unpack(&appliance)?;
        Ok(appliance)
    }

    /// Has what is compressed read once, if somebody watches that: who opens it then need not.
    fn unpack(&self, appliance: &Appliance) -> Result<()> {
        let Some(observer) = self.observer else { return Ok(()) };
        for disk in &appliance.disks {
            let Some(gzip) = &disk.gzip else { continue };
            let file = disk.packed(self.machine, appliance, Caching::PageCache)?;
            let progress = observer.progress("check", file.len_bytes(), Cancel::default());
            let done = gzip.index(&*file, &mut |bytes| {
                progress.advanced(bytes, 0);
                if progress.is_cancelled() { Err(Error::interrupted()) } else { Ok(()) }
            });
            done.map_err(|error| error.path(disk.path.display()))?;
            progress.finish();
        }
        Ok(())
    }

    fn read(&self, kind: Kind, disks: Vec<Disk>, notes: Vec<String>, archive: Option<Archive>) -> Appliance {
        let allow_path = self.options.allow_path.clone();
        Appliance { path: self.path.to_owned(), kind, disks, notes, archive, allow_path }
    }

    fn manifest_beside(&self, gate: &dyn Resolver, file: &dyn HostFile) -> Result<Option<Manifest>> {
        let wanted = self.path.with_extension("mf");
        let wanted = wanted.file_name().unwrap_or_default();
        if !gate.siblings(file)?.iter().any(|name| name == wanted) {
            return Ok(None);
        }
        let manifest = gate.open_sibling(file, wanted)?;
        Manifest::parse(&text_of(&*manifest, manifest.name())?).map(Some)
    }

    /// Reads all files, and compares them with the manifest, if somebody watches that. Answers what is to be said of it.
    fn check(
        &self,
        manifest: &Manifest,
        mut files: Vec<(String, Arc<dyn HostFile>)>,
    ) -> Result<Option<String>> {
        let Some(observer) = self.observer else { return Ok(Some(NOT_READ.into())) };
        files.sort_by(|(a, _), (b, _)| a.cmp(b));
        files.dedup_by(|(a, _), (b, _)| a == b);
        let total_bytes = files.iter().map(|(_, file)| file.len_bytes()).sum();
        let progress = observer.progress("check", total_bytes, Cancel::default());
        let mut advanced = |bytes| {
            progress.advanced(bytes, 0);
            if progress.is_cancelled() { Err(Error::interrupted()) } else { Ok(()) }
        };
        for (name, file) in &files {
            manifest.check(name, &**file, &mut advanced)?;
        }
        progress.finish();
        Ok(None)
    }
}

/// Checks the source of a copy, if it is an appliance, and says what was not checked.
pub(crate) fn check_source(
    machine: &dyn Machine,
    path: &Path,
    options: &OpenOptions,
    observer: &dyn Observer,
) -> Result<()> {
    let appliance = Appliance::find(machine, path, options, Some(observer))?;
    for note in appliance.iter().flat_map(Appliance::notes) {
        observer.note(note);
    }
    Ok(())
}

/// The name of what a file or a chunk of it lies in, and its length, where that is told.
type Part = (String, Option<u64>);

/// The names of all that the description's files lie in.
fn all_parts(description: &Description) -> Result<Vec<Part>> {
    let parts = description.files.iter().map(NamedFile::parts).collect::<Result<Vec<_>>>()?;
    Ok(parts.into_iter().flatten().collect())
}

/// The names of what a disk's file lies in.
fn parts_of(file: Option<&NamedFile>, name: &str) -> Result<Vec<Part>> {
    file.map_or_else(|| Ok(vec![(name.to_owned(), None)]), NamedFile::parts)
}

/// Files that lie in chunks, each with these.
fn chunked(files: &[NamedFile]) -> Result<Vec<(&str, Vec<Part>)>> {
    let chunked = files.iter().filter(|file| file.packing.chunk_bytes.is_some());
    chunked.map(|file| Ok((file.name.as_str(), file.parts()?))).collect()
}

const NOT_READ: &str = "the manifest was not checked: a copy reads all files and compares";
const NO_MANIFEST: &str = "the appliance has no manifest: whether its files are whole was not checked";
const NOT_SIGNED: &str = "the appliance's certificate was not checked: signatures are ignored";

/// What a description calls a file, opened through the gate: by the name as it is, else by what its `%20` and the like stand for.
fn open_named(
    gate: &dyn Resolver,
    from: &dyn HostFile,
    name: &str,
    kind: Kind,
) -> Result<(Arc<dyn HostFile>, String)> {
    let first = match gate.open(from, name, Purpose::Data) {
        Ok(file) => return Ok((file, name.to_owned())),
        Err(error) => error,
    };
    let decoded = appliance::percent_decoded(name).filter(|_| kind == Kind::Ovf);
    match decoded.map(|name| (gate.open(from, &name, Purpose::Data), name)) {
        Some((Ok(file), name)) => Ok((file, name)),
        _ => Err(first),
    }
}

fn check_len(name: &str, found: u64, stated: Option<u64>) -> Result<()> {
    match stated {
        Some(stated) if stated != found => {
            Err(Error::corrupt(Corrupt::FileLength { name: name.to_owned(), found, stated }))
        }
        _ => Ok(()),
    }
}

fn text_of(file: &dyn ReadAt<Host>, name: &str) -> Result<String> {
    let (len_bytes, max) = (file.len_bytes(), TEXT_BYTES_MAX);
    if len_bytes > max {
        return Err(Error::corrupt(Corrupt::TextTooLong { name: name.to_owned(), len_bytes, max }));
    }
    appliance::text(read_vec(file, HostOffset::ZERO, len_bytes, "description")?)
}
