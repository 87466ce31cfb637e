//! VHD: the container of Microsoft Virtual PC and of Hyper-V's first generation. Fixed, dynamic and
//! differencing disks are read; fixed and dynamic ones are written. See `docs/formats/vhd.md`.

pub(crate) mod bitmap;
mod corrupt;
mod layout;
mod live;
mod map;
pub(crate) mod names;
mod parse;
mod write;

use std::sync::Arc;

use block::{Error, ErrorKind, FileIndex, HostFile, Result, Run, RunState};
use extent::{Extent, HostOffset, Virtual, VirtualSpan};

use crate::{Backing, Facts, Format, Layer, ParentReference, Probe, Resolver};
use map::BlockMap;
use parse::{Footers, Kind};

pub use corrupt::Corrupt;
pub(crate) use live::open_live;
pub(crate) use parse::bitmap_bytes;
pub use write::VhdWriter;

/// Whether `file` is one, by its whole header.
pub fn probe(file: &dyn HostFile) -> Result<Probe> {
    let header = parse::read_footers(file).and_then(|footers| {
        if let Some(footers) = footers.as_ref().filter(|footers| footers.footer.kind != Kind::Fixed) {
            parse::read_dynamic(file, footers)?;
        }
        Ok(footers)
    });
    match header {
        Ok(Some(_)) => Ok(Probe::Yes),
        Ok(None) => Ok(Probe::No),
        // Right as far as it goes; opening tells what is beyond us.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Probe::Yes),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Probe::Broken(error)),
        Err(error) => Err(error),
    }
}

/// Opens one layer. Its parent is not opened here.
pub fn open(file: Arc<dyn HostFile>, _resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    let Some(footers) = parse::read_footers(&*file)? else {
        return Err(Error::corrupt(Corrupt::NoFooter));
    };
    let mut facts = facts(&footers);
    if footers.footer.kind == Kind::Fixed {
        return Ok(Box::new(Vhd { facts, files: [file], footers, blocks: None, parent: None }));
    }
    let dynamic = parse::read_dynamic(&*file, &footers)?;
    facts.cluster_bytes = Some(dynamic.block_bytes);
    let is_differencing = footers.footer.kind == Kind::Differencing;
    let parent = if is_differencing {
        let (names, ids) = (dynamic.parent_names(&*file)?, vec![dynamic.parent_id()]);
        Some(ParentReference { names, format: Some(Format::Vhd), ids, snapshot: None })
    } else {
        None
    };
    let blocks = BlockMap::new(file.clone(), dynamic, facts.virtual_bytes, footers.data_end, is_differencing);
    blocks.check()?;
    Ok(Box::new(Vhd { facts, files: [file], footers, blocks: Some(blocks), parent }))
}

/// What `file` says of its parent, if it is one of these and has one.
pub(crate) fn parent_reference(file: &dyn HostFile) -> Result<Option<ParentReference>> {
    match parse::read_footers(file)? {
        Some(footers) if footers.footer.kind == Kind::Differencing => {
            let dynamic = parse::read_dynamic(file, &footers)?;
            let (names, ids) = (dynamic.parent_names(file)?, vec![dynamic.parent_id()]);
            Ok(Some(ParentReference { names, format: Some(Format::Vhd), ids, snapshot: None }))
        }
        _ => Ok(None),
    }
}

fn facts(footers: &Footers) -> Facts {
    let footer = &footers.footer;
    let mut details = footer.details();
    details.extend(footers.note.clone().map(|note| ("note", note)));
    Facts {
        format: Format::Vhd,
        variant: footer.kind.name().into(),
        virtual_bytes: footer.virtual_bytes(),
        sector_bytes: 512,
        cluster_bytes: None,
        id: Some(footer.unique_id()),
        unreadable: None,
        snapshot_count: 0,
        details,
    }
}

struct Vhd {
    facts: Facts,
    files: [Arc<dyn HostFile>; 1],
    footers: Footers,
    /// `None` if fixed: the disk begins where the file does.
    blocks: Option<BlockMap>,
    parent: Option<ParentReference>,
}

impl Layer for Vhd {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &[Arc<dyn HostFile>] {
        &self.files
    }

    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        match &self.blocks {
            Some(blocks) => blocks.map(span),
            None if span.is_empty() => Ok(Vec::new()),
            None => {
                let offset = HostOffset::new(span.start().get());
                Ok(vec![Run::new(span, RunState::Data { file: FileIndex(0), offset })])
            }
        }
    }

    fn parent(&self) -> Option<ParentReference> {
        self.parent.clone()
    }

    fn check_closed(&self) -> Result<()> {
        match &self.footers.note {
            None => Ok(()),
            Some(note) => Err(Error::refused(format!("its footers are not in order: {note}"))
                .hint("open the disk once in the program that uses it, or copy it to a new one")),
        }
    }

    fn check_editable(&self) -> Result<()> {
        if self.footers.footer.has_saved_state() {
            return Err(Error::refused(
                "belongs to a machine that was suspended, which relies on its contents",
            )
            .hint("resume the machine and shut it down"));
        }
        self.blocks.as_ref().map_or(Ok(()), BlockMap::check_all_checked)
    }

    fn backing(&self, span: VirtualSpan) -> Result<Vec<Extent<Virtual, Backing>>> {
        match &self.blocks {
            Some(blocks) => blocks.backing(span),
            None if span.is_empty() => Ok(Vec::new()),
            None => Ok(vec![Extent::new(span, Backing::Allocated)]),
        }
    }
}
