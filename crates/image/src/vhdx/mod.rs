//! VHDX: the container of Hyper-V. Fixed, dynamic and differencing disks (AVHDX too) are read, a pending log
//! replayed in memory; fixed and dynamic ones are written. See `docs/formats/vhdx.md`.

mod corrupt;
mod edit;
mod layout;
mod live;
mod locator;
mod log;
mod map;
mod parse;
mod write;

use std::sync::Arc;

use block::{Error, ErrorKind, HostFile, Overlay, Result, Run};
use extent::{Host, Span, VirtualSpan};

use crate::{Facts, Format, Layer, ParentReference, Probe, Renewal, Resolver};
use map::BlockMap;
use parse::{Headers, Metadata, Regions};

pub use corrupt::Corrupt;
pub(crate) use live::open_live;
pub use write::VhdxWriter;

/// [`Facts::variant`] of a disk that keeps its blocks.
pub(crate) const FIXED: &str = "fixed";

/// Whether `file` is one, by its whole header.
pub fn probe(file: &dyn HostFile) -> Result<Probe> {
    match read_all(file) {
        Ok(Some(_)) => Ok(Probe::Yes),
        Ok(None) => Ok(Probe::No),
        // Right as far as it goes; opening tells what is beyond us.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Probe::Yes),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Probe::Broken(error)),
        Err(error) => Err(error),
    }
}

/// Everything but the blocks, validated.
struct Parsed<T> {
    creator: String,
    headers: Headers,
    regions: Regions,
    metadata: Metadata,
    file: Replayed<T>,
}

/// A file with its log applied, where one was pending.
enum Replayed<T> {
    Clean(T),
    Patched(Box<Overlay<Host, T>>),
}

fn read_all<T: HostFile>(file: T) -> Result<Option<Parsed<T>>> {
    let Some(creator) = parse::read_creator(&file)? else { return Ok(None) };
    let headers = parse::read_headers(&file)?;
    let file = match headers.log {
        Some(place) => Replayed::Patched(Box::new(log::replay(file, place)?)),
        None => Replayed::Clean(file),
    };
    let seen: &dyn HostFile = match &file {
        Replayed::Clean(file) => file,
        Replayed::Patched(file) => &**file,
    };
    let regions = parse::read_regions(seen)?;
    let metadata = parse::read_metadata(seen, regions.metadata)?;
    Ok(Some(Parsed { creator, headers, regions, metadata, file }))
}

/// Opens one layer. Its parent is not opened here.
pub fn open(file: Arc<dyn HostFile>, _resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    let Some(parsed) = read_all(file)? else {
        return Err(Error::corrupt(Corrupt::NoSignature));
    };
    let facts = facts(&parsed);
    let doubt = doubt(&parsed);
    let Parsed { headers, regions, metadata, file, .. } = parsed;
    let file: Arc<dyn HostFile> = match file {
        Replayed::Clean(file) => file,
        Replayed::Patched(file) => Arc::from(file as Box<dyn HostFile>),
    };
    let parent = match &metadata.parent_locator {
        Some((at, item)) if metadata.has_parent => Some(locator::parse(item, *at)?),
        _ => None,
    };
    let headers_and_log = [Some(Span::from_zero(layout::MIB)), headers.log_span].into_iter().flatten();
    let reserved = headers_and_log.chain(regions.all).collect();
    let blocks = BlockMap::new(file.clone(), &metadata, regions.bat, reserved)?;
    blocks.check()?;
    Ok(Box::new(Vhdx { facts, files: [file], blocks, parent, doubt }))
}

/// What `file` says of its parent, if it is one of these and has one.
pub(crate) fn parent_reference(file: &dyn HostFile) -> Result<Option<ParentReference>> {
    let Some(Parsed { metadata, .. }) = read_all(file)? else { return Ok(None) };
    match &metadata.parent_locator {
        Some((at, item)) if metadata.has_parent => locator::parse(item, *at).map(Some),
        _ => Ok(None),
    }
}

/// Why the file is not to be changed. A damaged header is no reason: a crash while one is written leaves it, and the next
/// one written replaces it.
fn doubt<T>(parsed: &Parsed<T>) -> Option<Doubt> {
    match (&parsed.file, &parsed.regions.note) {
        (Replayed::Patched(_), _) => Some(Doubt::PendingLog),
        (_, Some(note)) => Some(Doubt::Regions(note.clone())),
        _ => None,
    }
}

/// What helps then.
const OPEN_ONCE: &str =
    "open the disk once in Hyper-V, or in a program like it, so that it is brought in order";

/// A reason not to change the file.
enum Doubt {
    PendingLog,
    Regions(String),
}

fn facts<T: HostFile>(parsed: &Parsed<T>) -> Facts {
    let Parsed { creator, headers, regions, metadata, file } = parsed;
    let mut details = vec![
        ("creator", creator.clone()),
        ("virtual disk ID", metadata.virtual_disk_id.to_string()),
        ("physical sector size", metadata.physical_sector_bytes.to_string()),
    ];
    if let Replayed::Patched(file) = file {
        details.push(("log", format!("pending, {} bytes replayed in memory", file.patched_bytes())));
    }
    let notes = [&headers.note, &regions.note];
    details.extend(notes.into_iter().flatten().map(|note| ("note", note.clone())));
    Facts {
        format: Format::Vhdx,
        variant: metadata.variant().into(),
        virtual_bytes: metadata.virtual_bytes,
        sector_bytes: metadata.logical_sector_bytes,
        cluster_bytes: Some(metadata.block_bytes),
        id: Some(headers.data_write_id.to_string()),
        unreadable: None,
        snapshot_count: 0,
        details,
    }
}

struct Vhdx {
    facts: Facts,
    files: [Arc<dyn HostFile>; 1],
    blocks: BlockMap,
    parent: Option<ParentReference>,
    doubt: Option<Doubt>,
}

impl Layer for Vhdx {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &[Arc<dyn HostFile>] {
        &self.files
    }

    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        self.blocks.map(span)
    }

    fn parent(&self) -> Option<ParentReference> {
        self.parent.clone()
    }

    fn check_editable(&self) -> Result<()> {
        match &self.doubt {
            Some(Doubt::Regions(note)) => Err(Error::refused(note.clone()).hint(OPEN_ONCE)),
            None | Some(Doubt::PendingLog) => self.blocks.check_all_checked(),
        }
    }

    fn check_closed(&self) -> Result<()> {
        match &self.doubt {
            Some(Doubt::PendingLog) => {
                Err(Error::refused("has a pending log: it was not closed properly").hint(OPEN_ONCE))
            }
            _ => Ok(()),
        }
    }

    fn renewals(&self, identity_seed: u128) -> Result<Vec<Renewal>> {
        edit::renewals(&*self.files[0], identity_seed)
    }
}
