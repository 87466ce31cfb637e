//! Btrfs on one device: what guests with Fedora and SUSE have.
//!
//! Layers, each on the one before: [`layout`] (what is on the disk) with [`key`] and [`checksum`], [`superblock`], [`chunk`] (addresses), [`tree`], [`roots`], [`extents`] (the extent tree) and [`file_extent`]; then what is made of them: [`log`], [`map`], [`check`],
//! [`files`] and [`contents`].
//!
//! Invariants:
//! - every block of a tree has a checksum, and none is believed without it;
//! - a place on the device is free only if no chunk has it, or neither the extent tree nor a log knows of an extent there. No cache of free
//!   space is asked.
//!
//! Deliberately absent: several devices, zones, several extent trees. These make the volume whole. Replaying a log: what it refers to
//! counts as used instead.

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{File, Span, VolumeSpan};

use crate::coalesced::Coalesced;
use crate::opened::Opened;
use crate::probe::Probe;
use crate::{
    Check, Facts, FileId, FileSystem, FileVisitor, Fragments, Source, State, StreamName, Use, UsedMap,
};

mod check;
mod checksum;
mod chunk;
mod contents;
mod corrupt;
mod extents;
mod file_extent;
mod files;
mod key;
mod layout;
mod log;
mod map;
mod roots;
mod superblock;
mod tree;

pub use corrupt::Corrupt;
pub(crate) use superblock::read_raw as read_superblock;

use chunk::Chunks;
use key::{Key, everything};
use layout::{group, item, object};
use map::Map;
use roots::Tree;
use superblock::Superblock;
use tree::Reader;

/// Where the first superblock lies.
pub(crate) const SUPERBLOCK_AT: u64 = layout::SUPERBLOCKS_AT[0];

/// The free space is listed in windows of this size.
const WINDOW_BYTES: u64 = 1 << 30;

/// What is read when a volume is opened.
struct Volume {
    reader: Reader,
    trees: Vec<Tree>,
}

/// Opens the volume if it is one. What is broken is told in its state; only a read that fails is an error.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let Some(raw) = read_superblock(source)? else { return Ok(None) };
    let mut facts = raw.facts(&Probe::of_partition(source));
    let read = superblock::parse(&raw, source.len_bytes());
    let read = read.and_then(|superblock| understand(source, superblock, &mut facts));
    Ok(Some(Box::new(Opened::new(facts, read)?)))
}

/// Whether a superblock of Btrfs is on the volume.
pub(crate) fn has_superblock(source: &Source) -> Result<bool> {
    Ok(read_superblock(source)?.is_some())
}

/// Reads chunks and roots, and fills in the facts.
fn understand(source: &Source, superblock: Superblock, facts: &mut Facts) -> Result<Volume> {
    facts.details.push(("checksum", superblock.checksum.name().into()));
    facts.details.push(("nodesize", superblock.node_bytes.to_string()));
    if let Some(why) = superblock.unsupported() {
        return Err(Error::unsupported(why));
    }
    if let Some(why) = superblock.unclean(source)? {
        return Err(Error::refused(why));
    }
    if superblock.log_tree.is_some() {
        facts.state = State::JournalPending("files were synchronised after the last commit".into());
    }
    let superblock = Arc::new(superblock);
    let chunks = Arc::new(Chunks::of_superblock(&superblock)?);
    let reader = Reader { source: Arc::clone(source), superblock, chunks };
    let reader = read_chunks(reader)?;
    let trees = roots::read(&reader)?;
    facts.free_bytes = Some(free_bytes(&reader, &trees)?);
    let subvolumes = trees.iter().filter(|tree| files::is_listed(tree)).count();
    facts.details.push(("subvolumes", subvolumes.to_string()));
    Ok(Volume { reader, trees })
}

/// The same with all chunks, and not only with those of the superblock.
fn read_chunks(reader: Reader) -> Result<Reader> {
    let mut chunks = Chunks::default();
    let mut devices = 0_u64;
    let superblock = &reader.superblock;
    reader.walk(superblock.chunk_tree, &everything(), &mut |key, bytes| match key.kind {
        item::CHUNK => chunks.add(superblock, key, bytes),
        item::DEVICE if key.objectid == object::DEVICES && key.offset == superblock.device => {
            devices += 1;
            Ok(())
        }
        item::DEVICE => Err(Error::unsupported(format!("Btrfs with a device {}", key.offset))),
        _ => Ok(()),
    })?;
    let is_known = |chunk: &chunk::Chunk| {
        chunks.holding(chunk.logical, chunk.len_bytes).is_ok_and(|other| other == chunk)
    };
    if let Some(chunk) = reader.chunks.all().iter().find(|chunk| !is_known(chunk)) {
        let corrupt = Error::corrupt(Corrupt::Chunk { logical: chunk.logical });
        return Err(corrupt.field(
            "sys_chunk_array",
            chunk.len_bytes,
            "the same chunk as in the chunk tree".to_owned(),
        ));
    }
    if devices != 1 {
        return Err(Error::corrupt(Corrupt::Counter).field("devices", devices, "1".to_owned()));
    }
    chunk::by_place(&chunks)?;
    Ok(Reader { chunks: Arc::new(chunks), ..reader })
}

/// The device less what extents take up of it, each copy counted.
fn free_bytes(reader: &Reader, trees: &[Tree]) -> Result<u64> {
    let superblock = &reader.superblock;
    let mut used = superblock.used_bytes;
    let root = roots::find(trees, superblock.block_groups_tree())?.root;
    for chunk in reader.chunks.all().iter().filter(|chunk| chunk.kind & group::DUP != 0) {
        let key = Key::new(chunk.logical, item::BLOCK_GROUP, chunk.len_bytes);
        reader.walk(root, &(key..=key), &mut |key, bytes| {
            used = used.saturating_add(extents::block_group(key, bytes)?.0);
            Ok(())
        })?;
    }
    superblock.device_bytes.checked_sub(used).ok_or_else(|| {
        let expected = format!("at most {}, the device's", superblock.device_bytes);
        Error::corrupt(Corrupt::Counter).field("bytes_used", used, expected)
    })
}

impl Volume {
    fn map(&self, check: Check) -> Result<Map> {
        if check == Check::Full {
            check::check(&self.reader, &self.trees)?;
        }
        let logs = match check {
            // All that is mapped: to tell more takes more reads.
            Check::Glance if self.reader.superblock.log_tree.is_some() => vec![(0, u64::MAX)],
            Check::Glance => Vec::new(),
            Check::Quick | Check::Full => log::read(&self.reader)?,
        };
        let extent_tree = roots::find(&self.trees, object::EXTENT_TREE)?.root;
        Map::new(self.reader.clone(), extent_tree, logs)
    }
}

impl FileSystem for Opened<Volume> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        Ok(Box::new(self.believed()?.map(check)?))
    }

    fn scan_files(&self, visitor: &mut dyn FileVisitor) -> Result<()> {
        self.scan(visitor, |volume, visitor| files::scan(&volume.reader, &volume.trees, visitor))
    }

    fn open_stream(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
        let volume = self.believed()?;
        contents::open(&volume.reader, &volume.trees, file, name)
    }

    fn fragments(&self) -> Fragments {
        Fragments::as_filefrag()
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let volume = self.volume()?;
        let map = volume.map(Check::Quick)?;
        let mut spans = Coalesced::new(each);
        for window in Span::from_zero(volume.reader.superblock.device_bytes).split(WINDOW_BYTES) {
            let parts = map.uses(window)?.into_iter().filter(|part| part.state == Use::Free);
            parts.for_each(|part| spans.push(part.span));
        }
        spans.finish();
        Ok(())
    }
}
