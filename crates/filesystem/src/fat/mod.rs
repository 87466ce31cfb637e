//! FAT12, FAT16 and FAT32, EFI system partitions among them.
//!
//! Layers, each on the one before: [`layout`] (what is on the disk), [`boot`] (geometry), [`table`] (what is allocated, and chains),
//! [`names`] and [`walk`] (directories, who owns what); then what is made of them: [`map`] and [`check`], [`files`],
//! [`contents`] and [`browse`], which reads files one by one.
//!
//! Invariants:
//! - what readers would take differently (FATs that differ or are not mirrored, entries behind a directory's end) is a doubt;
//! - what is not free in the FAT is used, whoever owns it.
//!
//! Deliberately absent: moving files, FAT+ and other sizes of files beyond 4 GiB, the extended attributes of OS/2, which are a file.

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::{File, Offset, VolumeSpan};

use crate::opened::Opened;
use crate::probe::Probe;
use crate::probe::fields::{dos_serial, text};
use crate::{Browse, Check, Facts, FileId, FileSystem, FileVisitor, Source, State, StreamName, UsedMap};

mod boot;
mod browse;
mod check;
mod contents;
mod corrupt;
mod files;
mod layout;
mod map;
mod names;
mod table;
mod walk;

pub use corrupt::Corrupt;

use boot::{Geometry, Kind};
use layout::{BootSector, DELETED, ENTRY_BYTES, attr, state};
use table::Table;

/// A FAT larger than this is not counted when the volume is opened: FSInfo's count is shown.
const COUNTED_FAT_BYTES_MAX: u64 = 64 << 20;
/// How far into the root directory the label is looked for. It is almost always the first entry.
const ROOT_BYTES_MAX: u64 = 16 << 10;

/// A volume whose boot sector holds together.
struct Volume {
    source: Source,
    boot: BootSector,
    geometry: Geometry,
}

/// Opens the volume if it is one. What is broken is told in its state; only a read that fails is an error.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let Some(boot) = boot::read(source)? else { return Ok(None) };
    let mut facts = Probe::of_partition(source).facts(boot::kind_of(&boot).name(), State::Clean);
    let tail = boot::tail(&boot);
    if matches!(tail.boot_sig, 0x28 | 0x29) {
        facts.uuid = dos_serial(tail.vol_id.get());
    }
    let read = boot::parse(&boot, source.len_bytes())
        .map(|geometry| Volume { source: Arc::clone(source), boot, geometry })
        .and_then(|volume| tell(&volume, &mut facts).map(|()| volume));
    Ok(Some(Box::new(Opened::new(facts, read)?)))
}

/// The name of the file system whose boot sector is on the volume, if it is one of FAT.
pub(crate) fn boot_sector(source: &Source) -> Result<Option<&'static str>> {
    Ok(boot::read(source)?.map(|boot| boot::kind_of(&boot).name()))
}

/// Fills in the facts, the state among them.
fn tell(volume: &Volume, facts: &mut Facts) -> Result<()> {
    let Volume { source, boot, geometry } = volume;
    facts.cluster_bytes = Some(geometry.clusters.bytes);
    facts.size_bytes = geometry.size_bytes;
    facts.label = label(volume)?;
    facts.details.push(("FATs", geometry.fat_count.to_string()));
    facts.details.push(("sector", format!("{} bytes", geometry.sector_bytes)));
    let mut table = Table::new(source, geometry);
    let free = match geometry.fat_bytes {
        ..=COUNTED_FAT_BYTES_MAX => Some(table.free_count()?),
        _ => geometry.counted_free(source)?,
    };
    facts.free_bytes = free.map(|count| count * geometry.clusters.bytes);
    check_media(&mut table, geometry)?;
    facts.state =
        unclean(boot, &mut table, geometry.kind)?.map_or(State::Clean, |why| State::Dirty(why.into()));
    Ok(())
}

/// The first entry of the FAT repeats the media byte (page 18).
fn check_media(table: &mut Table<'_>, geometry: &Geometry) -> Result<()> {
    let value = table.value(0)?;
    if value & 0xff == u32::from(geometry.media) {
        return Ok(());
    }
    let expected = format!("{:#x} in its lowest byte", geometry.media);
    Err(Error::corrupt(Corrupt::Entry { cluster: 0 }).field("value", value, expected))
}

/// Why it is not clean: by the boot sector, or by the second entry of the FAT (page 18), which FAT12 has no bits in.
fn unclean(boot: &BootSector, table: &mut Table<'_>, kind: Kind) -> Result<Option<&'static str>> {
    let flags = boot::tail(boot).reserved1;
    let value = table.value(1)?;
    let (is_clean, is_whole) = match kind {
        Kind::Fat12 => (true, true),
        Kind::Fat16 => (value & 0x8000 != 0, value & 0x4000 != 0),
        Kind::Fat32 => (value & 0x0800_0000 != 0, value & 0x0400_0000 != 0),
    };
    Ok(if flags & state::DIRTY != 0 || !is_clean {
        Some("it was not unmounted cleanly")
    } else if flags & state::ERROR != 0 || !is_whole {
        Some("errors were met when it was last used")
    } else {
        None
    })
}

/// The label in the root directory, which is what systems show; else that of the boot sector.
fn label(volume: &Volume) -> Result<Option<String>> {
    let Volume { source, boot, geometry } = volume;
    let tail = boot::tail(boot);
    let in_boot = text(&tail.vol_lab).filter(|label| tail.boot_sig == 0x29 && label != "NO NAME");
    let (at, len) = match geometry.kind {
        Kind::Fat32 => {
            let span = geometry.clusters.span_of(geometry.root_cluster, 1);
            (span.start().get(), span.len_bytes())
        }
        _ => (geometry.root_at, geometry.root_bytes),
    };
    let len = len.min(ROOT_BYTES_MAX);
    let root = block::read_vec(source, Offset::new(at), len, "FAT root directory")?;
    let (entries, _) = root.as_chunks::<ENTRY_BYTES>();
    let found = entries.iter().take_while(|entry| entry[0] != 0).find(|entry| {
        let is_long = entry[11] & attr::LONG_NAME_MASK == attr::LONG_NAME;
        entry[0] != DELETED && !is_long && entry[11] & (attr::VOLUME_ID | attr::DIRECTORY) == attr::VOLUME_ID
    });
    Ok(found.and_then(|entry| text(&entry[..11])).or(in_boot))
}

impl FileSystem for Opened<Volume> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, check: Check) -> Result<Box<dyn UsedMap>> {
        let volume = self.believed()?;
        if check == Check::Full {
            check::check(volume)?;
        }
        Ok(Box::new(map::Map { source: Arc::clone(&volume.source), geometry: volume.geometry }))
    }

    fn scan_files(&self, visitor: &mut dyn FileVisitor) -> Result<()> {
        self.scan(visitor, files::scan)
    }

    fn open_stream(&self, file: FileId, name: StreamName<'_>) -> Result<Box<dyn ReadAt<File>>> {
        Ok(contents::open(self.believed()?, file, name)?)
    }

    fn browse(&self) -> Result<Box<dyn Browse + '_>> {
        Ok(Box::new(browse::Files::new(self.volume()?)))
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let Volume { source, geometry, .. } = self.volume()?;
        Table::new(source, geometry).each_run(geometry.clusters.numbers(), |is_free, first, count| {
            if is_free {
                each(geometry.clusters.span_of(first, count));
            }
        })
    }
}
