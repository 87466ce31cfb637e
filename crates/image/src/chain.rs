//! A whole virtual disk: an image and the parents it stands on.

use std::sync::Arc;

use block::{
    Disk, Error, ErrorKind, FileIndex, HostFile, HostState, ReadAt, Result, Run, RunState, check_bounds,
    push_run,
};
use extent::{Offset, Span, Virtual, VirtualOffset, VirtualSpan};

use crate::broken_chain::{BrokenChain, BrokenImage, LAYER_COUNT_MAX};
use crate::foreign::{self, Foreign};
use crate::{Facts, Format, Found, Layer, ParentReference, Probe, Purpose, Resolver, probe};
use crate::{qcow2, raw, vdi, vhd, vhdx, vmdk};

/// How to open a disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// The top image's format, if the user states it.
    pub format: Option<Format>,
}

/// One layer with how it was found.
pub struct Link {
    /// The layer.
    pub layer: Box<dyn Layer>,
    /// How its format was found.
    pub found: Found,
    /// What the contents look like, where the extension went before that.
    pub looks_like: Option<Format>,
    /// The index of the layer's first file among the chain's.
    first_file: u32,
}

/// The virtual disk that a chain of images makes, top first.
pub struct Chain {
    links: Vec<Link>,
    files: Vec<Arc<dyn HostFile>>,
}

impl Chain {
    /// Opens `file` and every parent it names, all of them through `resolver`.
    pub fn open(file: Arc<dyn HostFile>, options: OpenOptions, resolver: &dyn Resolver) -> Result<Self> {
        let mut chain = Self { links: Vec::new(), files: Vec::new() };
        chain.push(
            file,
            options.format,
            if options.format.is_some() { Found::Stated } else { Found::ByHeader },
            resolver,
        )?;
        while let Some(parent) = chain.bottom().layer.parent() {
            chain.push_parent(&parent, resolver)?;
        }
        Ok(chain)
    }

    /// The layers, top first.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The host files of all layers; [`FileIndex`] in the chain's runs counts into this.
    pub fn files(&self) -> &[Arc<dyn HostFile>] {
        &self.files
    }

    /// The top layer's facts, which are the disk's.
    pub fn facts(&self) -> &Facts {
        self.links[0].layer.facts()
    }

    /// `Refused` with the reason if a layer's contents cannot be read or trusted.
    pub fn check_readable(&self) -> Result<()> {
        for link in &self.links {
            if let Some(reason) = &link.layer.facts().unreadable {
                return Err(Error::refused(reason.clone()).path(link.layer.files()[0].name()));
            }
        }
        Ok(())
    }

    /// Like [`Disk::map`], but data that lies in a hole of its host file is `Zero`: the host knows that
    /// there is nothing to read.
    pub fn map_with_host(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut refined = Vec::new();
        for run in self.map(span)? {
            let RunState::Data { file, offset } = run.state else {
                push_run(&mut refined, run);
                continue;
            };
            let host_span = Span::new(offset, run.span.len_bytes());
            for extent in self.files[file.0 as usize].host_map(host_span)? {
                let skip_bytes = extent.span.start().get() - offset.get();
                let span = Span::new(run.span.start().plus(skip_bytes), extent.span.len_bytes());
                let state = match extent.state {
                    HostState::Hole => RunState::Zero,
                    HostState::Data => run.state.advanced(skip_bytes),
                };
                push_run(&mut refined, Run::new(span, state));
            }
        }
        Ok(refined)
    }

    /// The runs of `span` as the top layer's parents have it; holes where there is none.
    pub(crate) fn map_parents(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        self.map_from(1, span, &mut runs)?;
        Ok(runs)
    }

    /// Fills `buf` from `at` as the top layer's parents have it. Says whether there was anything but zeros to read.
    pub(crate) fn read_parents(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<bool> {
        let mut has_data = false;
        let mut rest = buf;
        for run in self.map_parents(Span::new(at, rest.len() as u64))? {
            let (piece, after) =
                rest.split_at_mut(usize::try_from(run.span.len_bytes()).expect("within the buffer"));
            self.read_run(&run, piece)?;
            has_data |= !matches!(run.state, RunState::Hole | RunState::Zero);
            rest = after;
        }
        Ok(has_data)
    }

    fn bottom(&self) -> &Link {
        self.links.last().expect("a chain has a layer")
    }

    fn push_parent(&mut self, parent: &ParentReference, resolver: &dyn Resolver) -> Result<()> {
        let child = self.bottom().layer.files()[0].clone();
        let (file, name) = open_parent(&*child, parent, resolver)?;
        self.push(file, parent.format, Found::ByParent, resolver).map_err(|error| error.path(&name))?;
        let facts = self.bottom().layer.facts();
        let found = facts.id.clone().unwrap_or_else(|| "none".into());
        if !parent.ids.is_empty() && !parent.ids.contains(&found) {
            let wrong = BrokenChain::NotItsParent { name, found, expected: parent.ids.join(" or ") };
            return Err(Error::refused(wrong).path(child.name()));
        }
        Ok(())
    }

    fn push(
        &mut self,
        file: Arc<dyn HostFile>,
        format: Option<Format>,
        found: Found,
        resolver: &dyn Resolver,
    ) -> Result<()> {
        let name = file.name().to_owned();
        let again =
            file.identity().is_some_and(|id| self.files.iter().any(|file| file.identity() == Some(id)));
        if again || self.links.len() >= LAYER_COUNT_MAX {
            let layers = self.links.len();
            let why = if again { BrokenChain::Circle { layers } } else { BrokenChain::TooLong { layers } };
            return Err(Error::corrupt(why).path(name));
        }
        let (format, found, looks_like) = match format {
            Some(format) => (format, found, None),
            None => find_format(&*file).map_err(|error| for_parent(error, found).path(&name))?,
        };
        let layer = open_layer(format, file, resolver).map_err(|error| error.path(&name))?;
        let first_file = u32::try_from(self.files.len()).expect("few files");
        let virtual_bytes = layer.facts().virtual_bytes;
        tracing::debug!(file = ?name, %format, ?found, virtual_bytes, depth = self.links.len(), "image opened");
        self.files.extend(layer.files().iter().cloned());
        self.links.push(Link { layer, found, looks_like, first_file });
        Ok(())
    }

    /// Appends the runs of `span` as seen from the layer `depth` down.
    fn map_from(&self, depth: usize, span: VirtualSpan, runs: &mut Vec<Run>) -> Result<()> {
        let Some(link) = self.links.get(depth) else {
            push_run(runs, Run::new(span, RunState::Hole));
            return Ok(());
        };
        // A parent may be smaller than its child: past its end there are zeros.
        let end = VirtualOffset::new(link.layer.facts().virtual_bytes);
        if let Some(inside) = span.intersect(&Span::between(Offset::ZERO, end)) {
            let mut at = inside.start();
            let named = |error: Error| error.path(link.layer.files()[0].name());
            for run in link.layer.map(inside).map_err(named)? {
                assert_eq!(run.span.start(), at, "a layer's runs cover what was asked, in order");
                at = run.span.end();
                match run.state {
                    RunState::Hole => self.map_from(depth + 1, run.span, runs)?,
                    state => push_run(runs, Run::new(run.span, self.in_chain(link, state))),
                }
            }
            assert_eq!(at, inside.end(), "a layer's runs cover all that was asked");
        }
        push_run(runs, Run::new(Span::between(span.start().max(end), span.end()), RunState::Hole));
        Ok(())
    }

    fn in_chain(&self, link: &Link, state: RunState) -> RunState {
        let of_chain = |file: FileIndex| FileIndex(link.first_file + file.0);
        match state {
            RunState::Data { file, offset } => RunState::Data { file: of_chain(file), offset },
            RunState::Compressed { file, offset, len_bytes } => {
                RunState::Compressed { file: of_chain(file), offset, len_bytes }
            }
            other => other,
        }
    }

    fn layer_of(&self, file: FileIndex) -> &dyn Layer {
        let index = self.links.partition_point(|link| link.first_file <= file.0) - 1;
        &*self.links[index].layer
    }

    /// Reads one run of [`Disk::map`]'s answer into `buf`, which is as long as the run.
    pub fn read_run(&self, run: &Run, buf: &mut [u8]) -> Result<()> {
        assert_eq!(run.span.len_bytes(), buf.len() as u64, "the buffer fits the run");
        match run.state {
            RunState::Hole | RunState::Zero => {
                buf.fill(0);
                Ok(())
            }
            RunState::Data { file, offset } => {
                let file = &self.files[file.0 as usize];
                file.read_at(offset, buf).map_err(|error| error.path(file.name()))
            }
            RunState::Compressed { file, .. } => {
                let name = self.files[file.0 as usize].name();
                self.layer_of(file).read_compressed(run.span.start(), buf).map_err(|error| error.path(name))
            }
        }
    }
}

impl ReadAt<Virtual> for Chain {
    fn len_bytes(&self) -> u64 {
        self.facts().virtual_bytes
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        let mut rest = buf;
        for run in self.map(Span::new(at, rest.len() as u64))? {
            let (piece, after) =
                rest.split_at_mut(usize::try_from(run.span.len_bytes()).expect("within the buffer"));
            self.read_run(&run, piece)?;
            rest = after;
        }
        Ok(())
    }
}

impl Disk for Chain {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        if span.end().get() > self.len_bytes() {
            return Err(Error::invalid("map past the disk's end").at(span.end()));
        }
        let mut runs = Vec::new();
        self.map_from(0, span, &mut runs)?;
        Ok(runs)
    }

    fn sector_bytes(&self) -> u32 {
        self.facts().sector_bytes
    }
}

/// Opens one layer of a known format.
fn open_layer(format: Format, file: Arc<dyn HostFile>, resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    match format {
        Format::Raw => raw::open(file),
        Format::Vhd => vhd::open(file, resolver),
        Format::Vhdx => vhdx::open(file, resolver),
        Format::Vmdk => vmdk::open(file, resolver),
        Format::Qcow2 => qcow2::open(file, resolver),
        Format::Vdi => vdi::open(file, resolver),
    }
}

/// The first of the parent's names that opens. What exists but is not granted is told rather than what is
/// missing, because that is what the user can change.
fn open_parent(
    child: &dyn HostFile,
    parent: &ParentReference,
    resolver: &dyn Resolver,
) -> Result<(Arc<dyn HostFile>, String)> {
    if let Some(snapshot) = &parent.snapshot {
        return Ok((resolver.open_snapshot(child, snapshot)?, snapshot.to_string()));
    }
    let mut refusal: Option<Error> = None;
    for name in &parent.names {
        match resolver.open(child, name, Purpose::Parent) {
            Ok(file) => return Ok((file, name.clone())),
            Err(error) if error.kind() == ErrorKind::Refused => _ = refusal.get_or_insert(error),
            Err(error) => return Err(error),
        }
    }
    Err(refusal.unwrap_or_else(|| Error::corrupt(BrokenChain::NoParentNamed).path(child.name())))
}

/// The format by the whole header. An extension or a device that says raw goes before what a guest could have
/// written into the disk; a header that is broken is an error, because to read such a file as raw would copy
/// the container instead of the disk.
fn find_format(file: &dyn HostFile) -> Result<(Format, Found, Option<Format>)> {
    let extension = file.name().rsplit_once('.').map_or("", |(_, extension)| extension);
    let verdicts = probe(file)?;
    let yes = verdicts.iter().find(|(_, verdict)| matches!(verdict, Probe::Yes)).map(|(format, _)| *format);
    let is_raw = ["raw", "dd"].contains(&extension.to_ascii_lowercase().as_str());
    if yes.is_none() {
        check_not_foreign(file, is_raw)?;
    }
    if is_raw {
        return Ok((Format::Raw, Found::ByExtension, yes));
    }
    // What the name promises and the header breaks is told, whatever else the contents look like.
    let promised = Format::from_extension(extension);
    let mut broken: Vec<_> = verdicts.into_iter().filter_map(broken).collect();
    if let Some(index) = broken.iter().position(|(format, _)| Some(*format) == promised) {
        let (format, error) = broken.swap_remove(index);
        return Err(broken_header(format, error));
    }
    if let Some(format) = yes {
        if file.is_block_device() {
            return Err(Error::refused(format!(
                "block device that begins like a {format} image: either may be meant"
            ))
            .hint(format!("say which with -f raw or -f {format}")));
        }
        return Ok((format, Found::ByHeader, None));
    }
    if let Some((format, error)) = broken.into_iter().next() {
        return Err(broken_header(format, error));
    }
    if let Some(format) = promised.filter(|format| *format != Format::Raw) {
        return Err(broken_image(BrokenImage::NoSignature { format }));
    }
    refuse(foreign::recognise_text(file)?)?;
    Ok((Format::Raw, Found::ByElimination, None))
}

/// The format of a parent cannot be stated on the command line.
fn for_parent(error: Error, found: Found) -> Error {
    match (found, error.kind()) {
        (Found::ByParent, ErrorKind::Unsupported) => error.hint(
            "the image above it does not state its format; if it is a raw disk, state that there: \
             qemu-img rebase -u -F raw",
        ),
        _ => error,
    }
}

/// `Unsupported` if the file is a container of another kind, or what is called raw is no disk at all.
fn check_not_foreign(file: &dyn HostFile, is_raw: bool) -> Result<()> {
    refuse(foreign::recognise(file)?)?;
    refuse(if is_raw { foreign::recognise_text(file)? } else { None })
}

fn refuse(foreign: Option<Foreign>) -> Result<()> {
    foreign.map_or(Ok(()), |foreign| Err(foreign.refusal()))
}

/// What a format's parser found broken of a file that bears its signature.
fn broken((format, verdict): (Format, Probe)) -> Option<(Format, Error)> {
    match verdict {
        Probe::Broken(error) => Some((format, error)),
        Probe::No | Probe::Yes => None,
    }
}

fn broken_header(format: Format, error: Error) -> Error {
    broken_image(BrokenImage::Header { format, reason: error.to_string() }).because(error)
}

fn broken_image(what: BrokenImage) -> Error {
    Error::corrupt(what).hint("if this is a raw disk, say so with -f raw")
}
