//! ext2, ext3 and ext4.
//!
//! Opening reads the superblock, and the journal if it is pending, which is then replayed in memory: all
//! else sees the volume as it will be once its guest mounts it.
//!
//! Layers, each on the one before: [`layout`] and [`features`] (what is on the disk), [`superblock`]
//! (geometry), [`group`] and [`bitmap`] (what is allocated), [`inode`] and [`tree`] (who owns it),
//! [`journal`]; then what is made of them: [`map`] and [`check`], which finds [`swapfile`]s on its way, and [`unreplayed`], what is
//! used as long as nobody replays the journal; [`files`] with
//! the [`names`] that each [`directory`] gives them, their [`contents`] and [`attributes`], and [`browse`], which reads them one by one;
//! [`free`], and [`rearrange`].
//!
//! Deliberately absent: decryption.

use std::sync::Arc;

use block::{Error, FieldValue, ReadAt, Result, read_struct};
use extent::{ExtentSet, File, Span, VolumeOffset, VolumeSpan};

use crate::opened::{Opened, state_of};
use crate::probe::fields::uuid_text;
use crate::{
    Browse, Check, Facts, FileId, FileSystem, FileVisitor, Fragments, Rearrange, Source, State, StreamName,
    UsedMap, fault,
};

mod attributes;
mod bitmap;
mod browse;
mod check;
mod checksum;
mod contents;
mod corrupt;
mod directory;
mod features;
mod files;
mod free;
mod gather;
mod group;
mod inode;
mod journal;
mod layout;
mod ledger;
mod map;
mod names;
mod nodes;
mod owner;
mod rearrange;
mod superblock;
mod swapfile;
mod table;
mod tree;
mod unreplayed;

pub use corrupt::Corrupt;
pub use inode::InodeNumber;
pub use owner::Owner;
pub use superblock::{BlockNumber, GroupNumber};

use features::{Features, incompat, ro_compat};
use layout::{MMP_MAGIC, MMP_SEQ_FSCK, RawMmp, RawSuperblock, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET};
use superblock::Superblock;
use unreplayed::Unreplayed;

/// Opens the volume if it is one: if the superblock's magic is there, whatever else is broken.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let Some(raw) = read_superblock(source)? else {
        return Ok(None);
    };
    let opened = match recognise(source, &raw) {
        Ok(opened) => opened,
        Err(error) => {
            let error = fault::of_volume(error)?;
            Opened { facts: broken_facts(&raw, &error), volume: Err(error.into()) }
        }
    };
    Ok(Some(Box::new(opened)))
}

/// The superblock's bytes, if its magic is there.
fn read_superblock(source: &Source) -> Result<Option<RawSuperblock>> {
    let end = SUPERBLOCK_OFFSET + size_of::<RawSuperblock>() as u64;
    if source.len_bytes() < end {
        return Ok(None);
    }
    let raw: RawSuperblock = read_struct(source, VolumeOffset::new(SUPERBLOCK_OFFSET), "ext superblock")?;
    Ok(Some(raw).filter(|raw| raw.magic.get() == SUPERBLOCK_MAGIC))
}

/// Whether there is a superblock that holds together.
pub(crate) fn has_superblock(source: &Source) -> Result<bool> {
    let raw = read_superblock(source)?;
    Ok(raw.is_some_and(|raw| Superblock::parse(&raw, source.len_bytes()).is_ok()))
}

/// A volume that was understood: what is read of it from now on, with its journal replayed.
struct Volume {
    source: Source,
    superblock: Arc<Superblock>,
    /// The volume as it is on the disk, if its journal was replayed.
    unreplayed: Option<Unreplayed>,
}

fn recognise(source: &Source, raw: &RawSuperblock) -> Result<Opened<Volume>> {
    let features = superblock::features_of(raw);
    if features.incompat.has(incompat::JOURNAL_DEV) {
        return Err(Error::unsupported("an external journal of ext3 or ext4, not a file system"));
    }
    let superblock = Superblock::parse(raw, source.len_bytes())?;
    if crate::swap::has_signature(source, superblock.block_bytes.into())? {
        return Err(Error::corrupt(Corrupt::AlsoSwap));
    }
    let mut unreplayed = None;
    let (source, superblock, pending) = match journal::replay(source, &superblock)? {
        journal::Outcome::Nothing => (source.clone(), superblock, None),
        journal::Outcome::Empty => {
            (source.clone(), superblock, Some("its journal is marked as pending, but empty".to_owned()))
        }
        journal::Outcome::Replayed { source: replayed, what } => {
            let raw =
                read_superblock(&replayed)?.ok_or_else(|| Error::corrupt(Corrupt::ReplacedSuperblock))?;
            let new = Superblock::parse(&raw, replayed.len_bytes())?;
            unreplayed = Some(Unreplayed { source: source.clone(), superblock });
            (replayed, new, Some(what))
        }
    };
    let state = state(&source, &superblock, pending)?;
    Ok(Opened {
        facts: facts(&superblock, state),
        volume: Ok(Volume { source, superblock: Arc::new(superblock), unreplayed }),
    })
}

/// The state of a volume whose journal, if pending, was replayed.
fn state(source: &Source, superblock: &Superblock, pending: Option<String>) -> Result<State> {
    let mounting = superblock.mounting;
    if mounting.errors {
        return Ok(State::Inconsistent("its driver met errors and marked it so; a check is due".into()));
    }
    if mounting.replaying_fast_commit {
        return Ok(State::Dirty("a replay of fast commits was interrupted".into()));
    }
    if !mounting.valid {
        return Ok(State::Dirty("it was not unmounted cleanly".into()));
    }
    if let Some(block) = superblock.mmp_block
        && is_being_checked(source, superblock, block)?
    {
        return Ok(State::Dirty("a check of it was running (multiple-mount protection)".into()));
    }
    Ok(pending.map_or(State::Clean, State::JournalPending))
}

fn is_being_checked(source: &Source, superblock: &Superblock, block: u64) -> Result<bool> {
    if !superblock.holds(block, 1) {
        return Err(Error::corrupt(Corrupt::Superblock).field("mmp_block", block, "within the volume"));
    }
    let raw: RawMmp = read_struct(source, superblock.offset_of(block), "ext multiple-mount block")?;
    if raw.magic.get() != MMP_MAGIC {
        return Err(Error::corrupt(Corrupt::MultipleMount).at(superblock.offset_of(block)).field(
            "magic",
            FieldValue::hex(raw.magic),
            format!("{MMP_MAGIC:#x}"),
        ));
    }
    Ok(raw.seq.get() == MMP_SEQ_FSCK)
}

fn facts(superblock: &Superblock, state: State) -> Facts {
    let block_bytes = u64::from(superblock.block_bytes);
    let free = superblock.free_blocks_count.min(superblock.blocks_count);
    let mut details = vec![("features", superblock.features.names())];
    details.push(("block bytes", block_bytes.to_string()));
    details.push(("block groups", superblock.groups_count.to_string()));
    let backups: Vec<_> = superblock.backup_blocks().iter().map(u64::to_string).collect();
    if !backups.is_empty() {
        details.push(("first backup superblocks at blocks", backups.join(" ")));
    }
    let orphans = superblock.last_orphan != 0 || superblock.features.ro_compat.has(ro_compat::ORPHAN_PRESENT);
    if orphans {
        details.push(("orphans", "files deleted while open still hold their blocks".into()));
    }
    Facts {
        filesystem: superblock.features.kind().into(),
        label: superblock.label.clone(),
        uuid: uuid_text(&superblock.uuid),
        cluster_bytes: Some(block_bytes * u64::from(superblock.cluster_blocks)),
        size_bytes: superblock.end_bytes(),
        free_bytes: Some(free * block_bytes),
        state,
        details,
    }
}

/// What can be told of a volume that bears the magic and no more.
fn broken_facts(raw: &RawSuperblock, error: &Error) -> Facts {
    let features: Features = superblock::features_of(raw);
    let kind = if features.incompat.has(incompat::JOURNAL_DEV) { "ext-journal" } else { features.kind() };
    Facts {
        filesystem: kind.into(),
        label: superblock::label_of(raw),
        uuid: uuid_text(&raw.uuid),
        cluster_bytes: None,
        size_bytes: 0,
        free_bytes: None,
        state: state_of(error).unwrap_or_else(|| State::Inconsistent(error.to_string())),
        details: vec![("features", features.names())],
    }
}

impl FileSystem for Opened<Volume> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        let volume = self.believed()?;
        let Volume { source, superblock, unreplayed } = volume;
        let swap = match check {
            Check::Glance | Check::Quick => Vec::new(),
            Check::Full => check::check(source, superblock)?,
        };
        let kept = match (unreplayed, check) {
            (None, _) => ExtentSet::new(),
            // All of it: to tell more takes more reads.
            (Some(_), Check::Glance) => std::iter::once(Span::from_zero(source.len_bytes())).collect(),
            (Some(unreplayed), Check::Quick | Check::Full) => unreplayed.kept(source, superblock, &swap)?,
        };
        let swap = swapfile::pages(&swap);
        Ok(Box::new(map::Map::new(source.clone(), superblock.clone(), swap, kept)))
    }

    fn scan_files(&self, visitor: &mut dyn FileVisitor) -> Result<()> {
        self.scan(visitor, |volume, visitor| files::scan(&volume.source, &volume.superblock, visitor))
    }

    fn open_stream(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
        Ok(contents::open(self.believed()?, file, name)?)
    }

    fn browse(&self) -> Result<Box<dyn Browse + '_>> {
        Ok(Box::new(browse::Files(self.volume()?)))
    }

    /// If some bitmaps are not understood, all others are told before the error.
    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let volume = self.volume()?;
        free::each_span(&volume.source, &volume.superblock, each)
    }

    fn rearrange(&self) -> Result<Box<dyn Rearrange>> {
        let volume = self.believed()?;
        rearrange::open(&volume.source, &volume.superblock, &self.facts.state)
    }

    fn record_reads(&self, file: FileId) -> Result<Vec<VolumeSpan>> {
        let Volume { source, superblock, .. } = self.volume()?;
        table::reads(&**source, superblock, file)
    }

    fn fragments(&self) -> Fragments {
        Fragments::as_filefrag()
    }
}
