//! XFS: what most guests with Red Hat's Linux have.
//!
//! Layers, each on the one before: [`layout`] (what is on the disk) and [`seal`] (checksums), [`superblock`] (geometry), [`log`] (whether it
//! was unmounted), [`group`] (headers) and [`tree`] (blocks of trees) with [`space`] (their records), [`inode`] and [`fork`] (extents); then
//! what is made of them: [`map`], [`check`] with [`ledger`], [`files`] with [`directory`], and [`contents`].
//!
//! Invariants:
//! - every block has a checksum, and none is believed without it;
//! - a block is free only if the tree by place says so, and then nobody owns it.
//!
//! Deliberately absent: version 4, which has no checksums; realtime devices and logs on other devices. These make the volume whole.

use std::sync::Arc;

use block::{Error, ErrorKind, ReadAt, Result};
use extent::{File, VolumeSpan};

use crate::coalesced::Coalesced;
use crate::probe::Probe;
use crate::probe::fields::uuid_text;
use crate::{Check, Facts, FileId, FileSystem, FileVisitor, Fragments, Source, State, StreamName, UsedMap};

mod check;
mod contents;
mod corrupt;
mod directory;
mod files;
mod fork;
mod group;
mod inode;
mod layout;
mod ledger;
mod log;
mod map;
mod seal;
mod space;
mod superblock;
mod tree;
mod unreplayed;

pub use corrupt::Corrupt;

use layout::incompat;
use log::{Replayed, Unclean};
use superblock::{BlockNumber, Superblock};

struct Xfs {
    facts: Facts,
    source: Source,
    /// The log, if it was replayed: `source` is what it makes of the volume.
    replayed: Option<Pending>,
    /// The error if it is not to be read any further; the state says it, too.
    superblock: Result<Arc<Superblock>, Arc<Error>>,
}

/// Opens the volume if it is one. What is broken is told in its state; only a read that fails is an error.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let Some(raw) = superblock::read_raw(source)? else { return Ok(None) };
    let mut facts = Probe::of_partition(source).facts("xfs", State::Clean);
    facts.uuid = uuid_text(&raw.uuid);
    facts.label = Some(superblock::label_of(&raw)).filter(|label| !label.is_empty());
    facts.cluster_bytes = Some(raw.blocksize.get().into());
    facts.size_bytes = u64::from(raw.blocksize.get()).saturating_mul(raw.dblocks.get());
    facts.free_bytes = Some(u64::from(raw.blocksize.get()).saturating_mul(raw.fdblocks.get()));
    let version = superblock::version_of(&raw);
    facts.details.push(("version", version.to_string()));
    let mut volume = (Arc::clone(source), None);
    let read = match version {
        5 => superblock::read(source, &raw)
            .and_then(|superblock| understand(&mut volume, superblock, &mut facts)),
        _ => {
            Err(Error::unsupported(format!("XFS of version {version}, which has no checksums, is not read")))
        }
    };
    let superblock = match read {
        Ok(superblock) => Ok(Arc::new(superblock)),
        Err(error) => {
            facts.state = match error.kind() {
                ErrorKind::Corrupt => State::Inconsistent(error.to_string()),
                ErrorKind::Unsupported => State::Unsupported(error.to_string()),
                ErrorKind::Refused => State::Dirty(error.to_string()),
                _ => return Err(error),
            };
            Err(Arc::new(error))
        }
    };
    let (source, replayed) = volume;
    Ok(Some(Box::new(Xfs { facts, source, replayed, superblock })))
}

/// Whether a superblock of XFS is on the volume.
pub(crate) fn has_superblock(source: &Source) -> Result<bool> {
    Ok(superblock::read_raw(source)?.is_some())
}

/// A volume as it was before its log was replayed, and what is to be freed after it.
struct Pending {
    unreplayed: Source,
    freed: Vec<(BlockNumber, u64)>,
}

/// Replays the log if that is due, and fills in the facts.
fn understand(
    (source, pending): &mut (Source, Option<Pending>),
    mut superblock: Superblock,
    facts: &mut Facts,
) -> Result<Superblock> {
    if let Some(why) = superblock.unsupported() {
        return Err(Error::unsupported(why));
    }
    facts.state = match unclean(source, &superblock)? {
        Some(Unclean::Whole(why)) => State::Dirty(why.into()),
        Some(Unclean::Pending) => {
            let Replayed { source: replayed, freed, transactions } = log::replay(source, &superblock)?;
            *pending = Some(Pending { unreplayed: std::mem::replace(source, replayed), freed });
            superblock = reread(source, &superblock)?;
            State::JournalPending(format!("its log of {transactions} transactions must be replayed"))
        }
        None => State::Clean,
    };
    let mut free = 0;
    for group in 0..superblock.group_count {
        let headers = group::read_free(source, &superblock, group)?;
        free += u64::from(headers.free_blocks) + headers.kept.len() as u64;
    }
    facts.free_bytes = Some(free.saturating_mul(superblock.block_bytes.into()));
    Ok(superblock)
}

/// The superblock once the log was replayed: of what counts nothing may have changed.
fn reread(source: &Source, before: &Superblock) -> Result<Superblock> {
    let raw = superblock::read_raw(source)?.ok_or_else(|| Error::corrupt(Corrupt::Superblock))?;
    let after = superblock::read(source, &raw)?;
    let shape = |it: &Superblock| (it.blocks, it.group_count, it.log, it.ro_compat, it.incompat);
    if shape(&after) == shape(before) {
        Ok(after)
    } else {
        Err(Error::unsupported("XFS that its log makes larger, or gives other features"))
    }
}

fn unclean(source: &Source, superblock: &Superblock) -> Result<Option<Unclean>> {
    if superblock.in_progress {
        return Ok(Some(Unclean::Whole("it was not made to the end")));
    }
    if superblock.has(incompat::NEEDSREPAIR) {
        return Ok(Some(Unclean::Whole("it says that xfs_repair must run first")));
    }
    log::why_unclean(source, superblock)
}

impl Xfs {
    fn superblock(&self) -> Result<&Arc<Superblock>> {
        self.superblock.as_ref().map_err(|error| self.doubt().because(error.clone()))
    }

    /// The superblock, if the volume's state is not in the way.
    fn believed(&self) -> Result<&Arc<Superblock>> {
        let superblock = self.superblock()?;
        if self.facts.state.doubt().is_some() { Err(self.doubt()) } else { Ok(superblock) }
    }

    fn doubt(&self) -> Error {
        let why = self.facts.state.doubt().unwrap_or("it was not understood");
        match self.facts.state {
            State::Unsupported(_) => Error::unsupported(why),
            State::Inconsistent(_) => Error::corrupt(why),
            _ => Error::refused(why),
        }
    }
}

impl FileSystem for Xfs {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        let superblock = self.believed()?;
        let pending = self.replayed.as_ref();
        if check == Check::Full {
            check::check(&self.source, superblock, pending.map(|pending| &pending.freed[..]))?;
        }
        let kept = match (pending, check) {
            (None, _) => None,
            // All of it: to tell more takes more reads.
            (Some(_), Check::Glance) => Some(unreplayed::all(superblock)?),
            (Some(pending), Check::Quick | Check::Full) => {
                Some(unreplayed::used(&pending.unreplayed, &self.source, superblock)?)
            }
        };
        Ok(Box::new(map::Map::new(Arc::clone(&self.source), Arc::clone(superblock), kept)))
    }

    fn scan_files(&self, visitor: &mut dyn FileVisitor) -> Result<()> {
        match &self.superblock {
            Ok(superblock) => files::scan(&self.source, superblock, visitor),
            Err(_) => {
                visitor.doubt(None, self.doubt().to_string());
                Ok(())
            }
        }
    }

    fn open_stream(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
        contents::open(&self.source, self.believed()?, file, name)
    }

    fn fragments(&self) -> Fragments {
        Fragments::as_filefrag()
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let superblock = self.superblock()?;
        let mut spans = Coalesced::new(each);
        for group in 0..superblock.group_count {
            for blocks in map::free_of(&self.source, superblock, group)? {
                spans.push(map::span_of(superblock, group, blocks));
            }
        }
        spans.finish();
        Ok(())
    }
}
