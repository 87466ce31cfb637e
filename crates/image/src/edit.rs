//! Changing a virtual disk in place: contents are overwritten where they lie, and nothing is allocated.
//!
//! Invariants:
//! - what could be wrong for a disk as a whole is refused before a file is opened for writing ([`Edit::check`]);
//! - what is parsed is parsed again once the files are open, because only from then on nobody else changes them;
//! - a write is refused, and nothing of it written, unless all of it lies in places that belong to it alone;
//! - no table of an image changes, and no file its length: whatever survives a crash, the image is valid.
//!
//! Absent on purpose: allocating (of what is not there yet), which is what an image's own program does; the order of
//! writes and their journal, which are an engine's; how files are opened and locked, which is the caller's.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{
    Disk, EditDisk, Error, FileIndex, HOST_BLOCK_BYTES, HostFile, HostState, ReadAt, Result, Run, RunState,
    TargetFile, check_bounds,
};
use extent::{Extent, Host, Span, Virtual, VirtualOffset, VirtualSpan};

use crate::layer::push_backing;
use crate::{Backing, BitmapState, Chain, Format, Found, Layer, OpenOptions, Purpose, Resolver};

/// What is looked at in one go, so that memory does not grow with the disk.
const WINDOW_BYTES: u64 = 256 << 20;

/// A host file that can be read, asked and written.
pub trait EditTarget: HostFile + TargetFile {}

impl<T: HostFile + TargetFile> EditTarget for T {}

/// Opens for writing what was opened for reading, under its [`HostFile::name`].
pub type OpenTarget<'a> = dyn FnMut(&dyn HostFile) -> Result<Arc<dyn EditTarget>> + 'a;

/// A virtual disk open for changes in place.
pub struct Edit {
    /// Parsed from `files`.
    chain: Chain,
    /// In the chain's order.
    files: Vec<Arc<dyn EditTarget>>,
    has_begun: AtomicBool,
}

impl Edit {
    /// `Refused` or `Unsupported`, with the reason and what to do about it, if the disk must not be changed in place.
    /// Reads the image's tables as a whole, and nothing else.
    pub fn check(chain: &Chain) -> Result<()> {
        let top = &*chain.links()[0].layer;
        Self::check_changeable(chain)
            .and_then(|()| top.check_closed().map_err(|error| error.path(top.files()[0].name())))
    }

    /// As [`Self::check`], whether the image was closed or not.
    fn check_changeable(chain: &Chain) -> Result<()> {
        let top = &*chain.links()[0].layer;
        let readable = || {
            let repair = "decrypt or repair it first, with the program that made it";
            chain.check_readable().map_err(|error| error.hint(repair))
        };
        let checked = check_found(chain)
            .and_then(|()| check_alone(chain, top))
            .and_then(|()| readable())
            .and_then(|()| top.check_editable());
        checked.map_err(|error| error.path(top.files()[0].name()))
    }

    /// Opens the disk that `chain` was parsed from: each of its files by `open`, which gives a file that nobody else can
    /// change from then on. Refuses what [`Edit::check`] refuses, before any file is opened, and again afterwards.
    pub fn open(chain: &Chain, resolver: &dyn Resolver, open: &mut OpenTarget<'_>) -> Result<Self> {
        Self::open_checked(chain, resolver, open, Self::check)
    }

    /// As [`Self::open`], also if a program did not close the disk: for finishing an own change that was interrupted.
    pub fn open_interrupted(
        chain: &Chain,
        resolver: &dyn Resolver,
        open: &mut OpenTarget<'_>,
    ) -> Result<Self> {
        Self::open_checked(chain, resolver, open, Self::check_changeable)
    }

    fn open_checked(
        chain: &Chain,
        resolver: &dyn Resolver,
        open: &mut OpenTarget<'_>,
        check: fn(&Chain) -> Result<()>,
    ) -> Result<Self> {
        check(chain)?;
        let mut files = Vec::new();
        for file in chain.files() {
            let opened = open(&**file)?;
            check_same(&**file, &*opened)?;
            files.push(opened);
        }
        let options = OpenOptions { format: Some(chain.facts().format) };
        let again = Chain::open(files[0].clone(), options, &Opened { resolver, files: &files })?;
        let is_same = again.files().len() == files.len()
            && again.len_bytes() == chain.len_bytes()
            && again
                .files()
                .iter()
                .zip(&files)
                .all(|(parsed, opened)| parsed.identity() == opened.identity());
        if !is_same {
            return Err(changed_meanwhile().path(files[0].name()));
        }
        check(&again)?;
        Ok(Self { chain: again, files, has_begun: AtomicBool::new(false) })
    }

    /// The disk as it was when it was opened: its tables do not change, its contents do. What [`Edit::begin`] changes
    /// still has its former value in the chain's facts.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Whether the disk was closed by who wrote to it last, as far as it tells.
    pub fn is_closed(&self) -> bool {
        self.top().check_closed().is_ok()
    }

    /// Whether the image keeps a record of what changes, which [`crate::live`] writes and this does not.
    pub fn records_changes(&self) -> Result<bool> {
        Ok(self.top().bitmaps()?.iter().any(|bitmap| bitmap.state == BitmapState::Recording))
    }

    /// Writes what tells others that the contents change, all of it on stable storage when this returns. To be called
    /// once, before the first write; whatever survives a crash in it is a valid image with the contents it had.
    /// `identity_seed` is where new identities come from: another one each time.
    ///
    /// `Refused` if the image records what changes ([`Self::records_changes`]): such a disk is to be changed as one in use.
    pub fn begin(&self, identity_seed: u128) -> Result<()> {
        if self.records_changes()? {
            return Err(Error::refused("has persistent bitmaps, which would miss this change"));
        }
        for renewal in self.top().renewals(identity_seed)? {
            self.files[0].write_at(renewal.at, &renewal.bytes)?;
            self.files[0].flush()?;
        }
        self.has_begun.store(true, Ordering::Release);
        Ok(())
    }

    /// The disk and its files, to be used in another way.
    pub fn into_parts(self) -> (Chain, Vec<Arc<dyn EditTarget>>) {
        (self.chain, self.files)
    }

    /// Fails unless all of `span`, which lies on the disk, has places of its own.
    fn check_writable(&self, span: VirtualSpan) -> Result<()> {
        assert!(self.has_begun.load(Ordering::Acquire), "others are told of a change before it happens");
        let backing = self.top().backing(span)?;
        match backing.iter().find(|extent| !extent.state.is_writable()) {
            Some(extent) => Err(not_writable(extent).path(self.files[0].name())),
            None => Ok(()),
        }
    }

    fn top(&self) -> &dyn Layer {
        &*self.chain.links()[0].layer
    }

    fn read_by(
        &self,
        at: VirtualOffset,
        buf: &mut [u8],
        read: impl Fn(&dyn EditTarget, extent::HostOffset, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        check_bounds(at, buf.len(), self.chain.len_bytes())?;
        let mut rest = buf;
        for run in self.chain.map(Span::new(at, rest.len() as u64))? {
            let len = usize::try_from(run.span.len_bytes()).expect("within the buffer");
            let (piece, after) = rest.split_at_mut(len);
            match run.state {
                RunState::Data { file, offset } => {
                    let file = &self.files[file.0 as usize];
                    read(&**file, offset, piece).map_err(|error| error.path(file.name()))?;
                }
                _ => self.chain.read_run(&run, piece)?,
            }
            rest = after;
        }
        Ok(())
    }
}

/// What lies under `span` of a disk that stands on no other: extents that cover it exactly, in order.
pub fn backing(chain: &Chain, span: VirtualSpan) -> Result<Vec<Extent<Virtual, Backing>>> {
    if span.end().get() > chain.len_bytes() {
        return Err(Error::invalid("backing past the disk's end").at(span.end()));
    }
    let mut all = Vec::new();
    let mut stored = Stored { chain, of_files: BTreeMap::new() };
    for window in span.split(WINDOW_BYTES) {
        for extent in chain.links()[0].layer.backing(window)? {
            match extent.state {
                Backing::Allocated => stored.push(extent.span, &mut all)?,
                other => push_backing(&mut all, extent.span, other),
            }
        }
    }
    Ok(all)
}

/// Whether blocks of the host are blocks of the disk in all that `span` has in the files of a disk that stands on no other. In a dynamic VHD they
/// are not: each of its blocks begins behind a bitmap of a sector.
pub fn keeps_host_blocks(chain: &Chain, span: VirtualSpan) -> Result<bool> {
    for window in span.split(WINDOW_BYTES) {
        let is_shifted = |run: &Run| match run.state {
            RunState::Data { offset, .. } => {
                offset.get() % HOST_BLOCK_BYTES != run.span.start().get() % HOST_BLOCK_BYTES
            }
            _ => false,
        };
        if chain.map(window)?.iter().any(is_shifted) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What of a chain's files has storage on the host.
struct Stored<'a> {
    chain: &'a Chain,
    /// What the host keeps for the files that it was asked about, in order.
    of_files: BTreeMap<u32, Vec<Extent<Host, Backing>>>,
}

impl Stored<'_> {
    /// Appends what the host has under `span`, which has its own place in the image.
    fn push(&mut self, span: VirtualSpan, all: &mut Vec<Extent<Virtual, Backing>>) -> Result<()> {
        for run in self.chain.map(span)? {
            let RunState::Data { file, offset } = run.state else {
                unreachable!("what is allocated is data")
            };
            let place = Span::new(offset, run.span.len_bytes());
            for host in self.chain.files()[file.0 as usize].host_map(place)? {
                for part in self.told(file, host)? {
                    let skipped = part.span.start().get() - offset.get();
                    push_backing(
                        all,
                        Span::new(run.span.start().plus(skipped), part.span.len_bytes()),
                        part.state,
                    );
                }
            }
        }
        Ok(())
    }

    /// An extent of a file's map, as the extents tell that the host keeps. The map alone calls what is only reserved a hole, or data, as the
    /// page cache has it or not; but it knows what has no place of its own, and what the host does not tell of.
    fn told(
        &mut self,
        file: FileIndex,
        extent: Extent<Host, HostState>,
    ) -> Result<Vec<Extent<Host, Backing>>> {
        let untold = match extent.state {
            HostState::Data => Backing::Allocated,
            HostState::Hole => Backing::Unallocated,
        };
        let kept = self.kept(file)?;
        let first = kept.partition_point(|kept| kept.span.end() <= extent.span.start());
        let mut at = extent.span.start();
        let mut parts = Vec::new();
        for kept in &kept[first..] {
            let Some(span) = kept.span.intersect(&extent.span) else { break };
            parts.push(Extent::new(Span::between(at, span.start()), untold));
            parts.push(Extent::new(span, kept.state));
            at = span.end();
        }
        parts.push(Extent::new(Span::between(at, extent.span.end()), untold));
        Ok(parts)
    }

    /// What the host keeps for a file; nothing if it does not tell.
    fn kept(&mut self, file: FileIndex) -> Result<&[Extent<Host, Backing>]> {
        let known = match self.of_files.entry(file.0) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let extents = self.chain.files()[file.0 as usize].host_extents()?.unwrap_or_default();
                let state = |is_written| if is_written { Backing::Allocated } else { Backing::Reserved };
                let kept =
                    extents.into_iter().map(|extent| Extent::new(extent.span, state(extent.is_written)));
                unknown.insert(kept.collect())
            }
        };
        Ok(known)
    }
}

impl ReadAt<Virtual> for Edit {
    fn len_bytes(&self) -> u64 {
        self.chain.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_by(at, buf, |file, offset, piece| file.read_at(offset, piece))
    }
}

impl EditDisk for Edit {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.chain.len_bytes())?;
        let span = Span::new(at, buf.len() as u64);
        self.check_writable(span)?;
        let mut rest = buf;
        for run in self.chain.map(span)? {
            let RunState::Data { file, offset } = run.state else {
                unreachable!("what is allocated is data")
            };
            let (piece, after) =
                rest.split_at(usize::try_from(run.span.len_bytes()).expect("within the buffer"));
            let file = &self.files[file.0 as usize];
            file.write_at(offset, piece).map_err(|error| error.path(file.name()))?;
            rest = after;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.flush())
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_by(at, buf, |file, offset, piece| file.read_stored(offset, piece))
    }

    /// What is allocated in the image stays so, and its storage goes back to the host.
    fn write_zeros(&self, span: VirtualSpan) -> Result<()> {
        let len = usize::try_from(span.len_bytes()).unwrap_or(usize::MAX);
        check_bounds(span.start(), len, self.chain.len_bytes())?;
        self.check_writable(span)?;
        for run in self.chain.map(span)? {
            let RunState::Data { file, offset } = run.state else {
                unreachable!("what is allocated is data")
            };
            let (file, place) = (&self.files[file.0 as usize], Span::new(offset, run.span.len_bytes()));
            match file.punch(place) {
                // A host that has no room for the map of a file with one more hole.
                Err(error) if error.is_full() => file.zero(place),
                punched => punched,
            }
            .map_err(|error| error.path(file.name()))?;
        }
        Ok(())
    }

    /// Gives back to the host what is allocated in the image, where it stays allocated.
    fn release(&self, span: VirtualSpan) -> Result<()> {
        check_bounds(span.start(), 0, self.chain.len_bytes())?;
        for extent in self.top().backing(span)?.into_iter().filter(|extent| extent.state.is_writable()) {
            for run in self.chain.map(extent.span)? {
                if let RunState::Data { file, offset } = run.state {
                    self.files[file.0 as usize].punch(Span::new(offset, run.span.len_bytes()))?;
                }
            }
        }
        Ok(())
    }
}

/// A guest can write a header into a raw disk, and with it name other files and places in them. What the header alone tells is
/// therefore not believed for writing.
pub fn check_found(chain: &Chain) -> Result<()> {
    let format = chain.facts().format;
    let name = chain.files()[0].name();
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_sure =
        chain.links()[0].found != Found::ByHeader || Format::from_extension(extension) == Some(format);
    if is_sure {
        return Ok(());
    }
    Err(Error::refused(format!(
        "is {format} by its header, but not by its name: a guest could have written the header"
    ))
    .hint(format!("say what it is: -f {format}, or -f raw")))
}

/// A disk that shares its contents with other layers or with its own past must not change under them.
fn check_alone(chain: &Chain, top: &dyn Layer) -> Result<()> {
    if chain.links().len() > 1 || top.parent().is_some() {
        return Err(Error::refused("is a differencing disk: part of its contents belongs to its parent")
            .hint("merge it into its parent first, or change the parent once all its children are merged"));
    }
    match chain.facts().snapshot_count {
        0 => Ok(()),
        count => Err(Error::refused(format!("has internal snapshots ({count}), which share its contents"))
            .hint(
                "delete them first: 'qemu-img snapshot -l' lists them, 'qemu-img snapshot -d' deletes one",
            )),
    }
}

fn check_same(parsed: &dyn HostFile, opened: &dyn EditTarget) -> Result<()> {
    let is_same = parsed.identity() == opened.identity() && parsed.len_bytes() == opened.len_bytes();
    if is_same { Ok(()) } else { Err(changed_meanwhile().path(parsed.name())) }
}

fn changed_meanwhile() -> Error {
    Error::refused("was changed or replaced while it was opened")
        .hint("see that nothing uses it, and try again")
}

fn not_writable(extent: &Extent<Virtual, Backing>) -> Error {
    let why = match extent.state {
        Backing::Absent => "the image holds nothing there, and would have to grow",
        _ => "what the image holds there is compressed or shared",
    };
    Error::refused(format!("cannot be written in place: {why}")).at(extent.span.start())
}

/// Hands out the files that are open for writing under the names by which the image knows them.
struct Opened<'a> {
    resolver: &'a dyn Resolver,
    files: &'a [Arc<dyn EditTarget>],
}

impl Resolver for Opened<'_> {
    fn open(&self, from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        let found = self.resolver.open(from, name, purpose)?;
        let opened =
            self.files.iter().find(|file| file.identity().is_some() && file.identity() == found.identity());
        match opened {
            Some(file) => Ok(file.clone()),
            None => Err(changed_meanwhile().path(found.name())),
        }
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<OsString>> {
        self.resolver.siblings(from)
    }

    fn open_sibling(&self, from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        self.resolver.open_sibling(from, name)
    }
}
