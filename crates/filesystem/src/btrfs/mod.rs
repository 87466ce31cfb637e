//! Btrfs, on one device or on several: what guests with Fedora and SUSE have.
//!
//! Layers, each on the one before: [`layout`] (what is on the disk) with [`key`] and [`checksum`], [`superblock`], [`chunk`] (addresses)
//! with [`piece`], [`joined`] (all devices as one volume), [`tree`], [`roots`], [`extents`] (the extent tree) and [`file_extent`]; then what
//! is made of them: [`devices`], [`log`], [`map`], [`check`], [`files`], [`contents`] and [`browse`], which reads files one by one.
//!
//! Invariants:
//! - every block of a tree has a checksum, and none is believed without it;
//! - a place on a device is free only if no chunk has it, or neither the extent tree nor a log knows of an extent there. No cache of free
//!   space is asked.
//!
//! Deliberately absent: RAID5 and RAID6, devices that are missing, zones, several extent trees. These make the volume whole. Replaying a log: what it refers to
//! counts as used instead.

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{File, VolumeSpan};

use crate::coalesced::Coalesced;
use crate::opened::Opened;
use crate::probe::Probe;
use crate::{
    Browse, Check, Facts, FileId, FileSystem, FileVisitor, Fragments, Source, State, StreamName, Use, UsedMap,
};

mod browse;
mod check;
mod checksum;
mod chunk;
mod contents;
mod corrupt;
mod devices;
mod extents;
mod file_extent;
mod files;
mod joined;
mod key;
mod layout;
mod log;
mod map;
mod piece;
mod roots;
mod superblock;
mod tree;
mod unpack;

pub use corrupt::Corrupt;
pub use piece::{Column, Piece};
pub(crate) use superblock::read_raw as read_superblock;

use chunk::Chunks;
use key::Key;
use layout::{RawSuperblock, item, object};
use map::Map;
use roots::Tree;
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
    let Some(device) = Device::read(source)? else { return Ok(None) };
    let mut facts = device.raw.facts(&Probe::of_partition(source));
    let read = understand(&[device], &mut facts);
    Ok(Some(Box::new(Opened::new(facts, read)?)))
}

/// A volume that is a device of a file system, perhaps of several.
pub struct Device {
    source: Source,
    raw: Box<RawSuperblock>,
}

impl Device {
    /// What the superblock says, unchecked. `None` if there is none.
    pub fn read(source: &Source) -> Result<Option<Self>> {
        let raw = read_superblock(source)?.map(Box::new);
        Ok(raw.map(|raw| Self { source: Arc::clone(source), raw }))
    }

    /// The UUID of the file system, which all its devices bear.
    pub fn fsid(&self) -> [u8; 16] {
        self.raw.fsid
    }

    /// Which device it is. Numbers can have gaps.
    pub fn number(&self) -> u64 {
        self.raw.device_number()
    }

    /// How long it is as it says, unchecked.
    pub fn len_bytes(&self) -> u64 {
        self.raw.device_bytes()
    }

    /// How many devices there are to be.
    pub fn count(&self) -> u64 {
        self.raw.device_count()
    }
}

/// The file system of several devices.
pub struct Joined {
    /// What it is. Its addresses are those of `source`.
    pub filesystem: Box<dyn FileSystem>,
    /// All devices as one volume.
    pub source: Source,
    /// Of what that consists, in order: all of every device, once.
    pub pieces: Vec<Piece>,
}

/// Opens the file system of which these are all devices, in the order of their numbers. Any doubt is an error, whose message is the
/// reason that the user sees: `Corrupt`, `Unsupported` or `Refused`.
pub fn join(devices: &[Device]) -> Result<Joined> {
    let Some(first) = devices.first() else { return Err(Error::unsupported("Btrfs without a device")) };
    let mut facts = first.raw.facts(&Probe::of_partition(&first.source));
    let volume = understand(devices, &mut facts)?;
    facts.size_bytes = volume.reader.superblock.total_bytes();
    let Reader { source, layout, .. } = &volume.reader;
    let (source, pieces) = (source.clone(), layout.pieces().to_vec());
    Ok(Joined { filesystem: Box::new(Opened { facts, volume: Ok(volume) }), source, pieces })
}

/// Whether a superblock of Btrfs is on the volume.
pub(crate) fn has_superblock(source: &Source) -> Result<bool> {
    Ok(read_superblock(source)?.is_some())
}

/// Reads chunks and roots, and fills in the facts.
fn understand(devices: &[Device], facts: &mut Facts) -> Result<Volume> {
    let superblocks: Vec<_> =
        devices.iter().map(|device| (&*device.raw, device.source.len_bytes())).collect();
    let sources: Vec<_> = devices.iter().map(|device| device.source.clone()).collect();
    let superblock = superblock::parse(&superblocks)?;
    facts.details.push(("checksum", superblock.checksum.name().into()));
    facts.details.push(("nodesize", superblock.node_bytes.to_string()));
    if let Some(why) = superblock.unsupported() {
        return Err(Error::unsupported(why));
    }
    if let Some(why) = superblock.unclean(&sources)? {
        return Err(Error::refused(why));
    }
    if superblock.log_tree.is_some() {
        facts.state = State::JournalPending("files were synchronised after the last commit".into());
    }
    let superblock = Arc::new(superblock);
    let chunks = Chunks::of_superblock(&superblock)?;
    let reader = Reader::new(&sources, &superblock, chunks)?;
    let chunks = devices::read_chunks(&reader)?;
    facts.details.push(("profiles", chunks.profiles()));
    let reader = Reader::new(&sources, &superblock, chunks)?;
    let trees = roots::read(&reader)?;
    devices::check_at_rest(&reader, &trees)?;
    facts.free_bytes = Some(free_bytes(&reader, &trees)?);
    let subvolumes = trees.iter().filter(|tree| files::is_listed(tree)).count();
    facts.details.push(("subvolumes", subvolumes.to_string()));
    Ok(Volume { reader, trees })
}

/// The devices less what extents take up of them, each copy counted.
fn free_bytes(reader: &Reader, trees: &[Tree]) -> Result<u64> {
    let superblock = &reader.superblock;
    let mut used = superblock.used_bytes;
    let root = roots::find(trees, superblock.block_groups_tree())?.root;
    for chunk in reader.chunks.all().iter().filter(|chunk| chunk.copy_count() > 1) {
        let key = Key::new(chunk.logical, item::BLOCK_GROUP, chunk.len_bytes);
        let further = chunk.copy_count() as u64 - 1;
        reader.walk(root, &(key..=key), &mut |key, bytes| {
            let of_each = extents::block_group(key, bytes)?.0;
            used = used.saturating_add(of_each.saturating_mul(further));
            Ok(())
        })?;
    }
    let total = superblock.total_bytes();
    total.checked_sub(used).ok_or_else(|| {
        let expected = format!("at most {total}, those of all devices");
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
        Ok(Map::new(self.reader.clone(), extent_tree, logs))
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
        Ok(contents::open(&volume.reader, &volume.trees, file, name)?)
    }

    fn browse(&self) -> Result<Box<dyn Browse + '_>> {
        Ok(Box::new(browse::Files(self.volume()?)))
    }

    fn fragments(&self) -> Fragments {
        Fragments::as_filefrag()
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let volume = self.volume()?;
        let map = volume.map(Check::Quick)?;
        let mut spans = Coalesced::new(each);
        for window in volume.reader.layout.span().split(WINDOW_BYTES) {
            let parts = map.uses(window)?.into_iter().filter(|part| part.state == Use::Free);
            parts.for_each(|part| spans.push(part.span));
        }
        spans.finish();
        Ok(())
    }
}
