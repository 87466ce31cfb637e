//! XFS: what most guests with Red Hat's Linux have.
//!
//! Layers, each on the one before: [`layout`] (what is on the disk) and [`seal`] (checksums), [`superblock`] (geometry), [`log`] (whether it
//! was unmounted), [`group`] (headers) and [`tree`] (blocks of trees) with [`key`] and [`space`] (their records), [`inode`] and [`fork`] (extents); then
//! what is made of them: [`map`], [`check`] with [`ledger`] and [`reverse`], [`files`] with [`directory`], [`contents`] and [`attributes`], and [`browse`], which
//! reads them one by one.
//!
//! Invariants:
//! - in version 5 every block has a checksum, and none is believed without it; version 4 has none, so that all rests on what follows;
//! - a block is free only if the tree by place says so, and then nobody owns it.
//!
//! Deliberately absent: realtime devices and logs on other devices. These make the volume whole.

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{File, VolumeSpan};

use crate::coalesced::Coalesced;
use crate::opened::Opened;
use crate::probe::Probe;
use crate::probe::fields::uuid_text;
use crate::{
    Browse, Check, Facts, FileId, FileSystem, FileVisitor, Fragments, Source, State, StreamName, UsedMap,
};

mod attributes;
mod browse;
mod check;
mod contents;
mod corrupt;
mod directory;
mod files;
mod fork;
mod group;
mod inode;
mod inodes;
mod key;
mod layout;
mod ledger;
mod log;
mod map;
mod reverse;
mod seal;
mod space;
mod superblock;
mod tree;
mod unreplayed;

pub use corrupt::Corrupt;

use layout::incompat;
use log::{Replayed, Unclean, Unfinished};
use superblock::Superblock;

/// A volume that was understood: what is read of it from now on, with its log replayed.
struct Volume {
    source: Source,
    superblock: Arc<Superblock>,
    /// What the replay changed, if there was one.
    replayed: Option<Pending>,
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
    let read = match version {
        4 | 5 => {
            superblock::read(source, &raw).and_then(|superblock| understand(source, superblock, &mut facts))
        }
        _ => Err(Error::unsupported(format!("XFS of version {version}, as before 1999, is not read"))),
    };
    Ok(Some(Box::new(Opened::new(facts, read)?)))
}

/// Whether a superblock of XFS is on the volume.
pub(crate) fn has_superblock(source: &Source) -> Result<bool> {
    Ok(superblock::read_raw(source)?.is_some())
}

/// A volume as it was before its log was replayed, and what is to be done after it.
struct Pending {
    unreplayed: Source,
    unfinished: Unfinished,
}

/// Replays the log if that is due, and fills in the facts.
fn understand(source: &Source, superblock: Superblock, facts: &mut Facts) -> Result<Volume> {
    if let Some(why) = superblock.unsupported() {
        return Err(Error::unsupported(why));
    }
    let mut superblock = superblock;
    if let Some(lsn) = log::end_lsn(source, &superblock)? {
        superblock.lsn_max = lsn;
    }
    let mut volume = Volume { source: Arc::clone(source), superblock: Arc::new(superblock), replayed: None };
    facts.state = match unclean(source, &volume.superblock)? {
        Some(Unclean::Whole(why)) => State::Dirty(why.into()),
        Some(Unclean::Pending) => {
            let count = volume.replay()?;
            let left = volume.replayed.as_ref().map(|pending| pending.unfinished.to_string());
            let left = left.filter(|left| !left.is_empty()).map(|left| format!(", and leaves {left}"));
            let left = left.unwrap_or_default();
            State::JournalPending(format!("its log of {count} transactions must be replayed{left}"))
        }
        None => State::Clean,
    };
    facts.free_bytes = Some(volume.free_bytes()?);
    Ok(volume)
}

/// The superblock once the log was replayed: of what counts nothing may have changed.
fn reread(source: &Source, before: &Superblock) -> Result<Superblock> {
    let raw = superblock::read_raw(source)?.ok_or_else(|| Error::corrupt(Corrupt::Superblock))?;
    let mut after = superblock::read(source, &raw)?;
    after.lsn_max = before.lsn_max;
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

impl Volume {
    /// Replays the log in memory, and answers how many transactions it had.
    fn replay(&mut self) -> Result<usize> {
        let Replayed { source, unfinished, transactions } = log::replay(&self.source, &self.superblock)?;
        self.superblock = Arc::new(reread(&source, &self.superblock)?);
        let unreplayed = std::mem::replace(&mut self.source, source);
        self.replayed = Some(Pending { unreplayed, unfinished });
        Ok(transactions)
    }

    /// What is free as the headers of the groups count it.
    fn free_bytes(&self) -> Result<u64> {
        let mut free = 0;
        for group in 0..self.superblock.group_count {
            let headers = group::read_free(&self.source, &self.superblock, group)?;
            free += u64::from(headers.free_blocks) + headers.kept.len() as u64;
        }
        Ok(free.saturating_mul(self.superblock.block_bytes.into()))
    }
}

impl FileSystem for Opened<Volume> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        let Volume { source, superblock, replayed } = self.believed()?;
        if check == Check::Full {
            check::check(source, superblock, replayed.as_ref().map(|pending| &pending.unfinished))?;
        }
        let kept = match (replayed, check) {
            (None, _) => None,
            // All of it: to tell more takes more reads.
            (Some(_), Check::Glance) => Some(unreplayed::all(superblock)?),
            (Some(pending), Check::Quick | Check::Full) => {
                Some(unreplayed::used(&pending.unreplayed, source, superblock)?)
            }
        };
        Ok(Box::new(map::Map::new(Arc::clone(source), Arc::clone(superblock), kept)))
    }

    fn scan_files(&self, visitor: &mut dyn FileVisitor) -> Result<()> {
        self.scan(visitor, |volume, visitor| files::scan(&volume.source, &volume.superblock, visitor))
    }

    fn open_stream(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
        let Volume { source, superblock, .. } = self.believed()?;
        Ok(contents::open(source, superblock, file, name)?)
    }

    fn browse(&self) -> Result<Box<dyn Browse + '_>> {
        let Volume { source, superblock, .. } = self.volume()?;
        Ok(Box::new(browse::Files { source, superblock }))
    }

    fn fragments(&self) -> Fragments {
        Fragments::as_filefrag()
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let Volume { source, superblock, .. } = self.volume()?;
        let mut spans = Coalesced::new(each);
        for group in 0..superblock.group_count {
            for blocks in map::free_of(source, superblock, group)? {
                spans.push(map::span_of(superblock, group, blocks));
            }
        }
        spans.finish();
        Ok(())
    }
}
