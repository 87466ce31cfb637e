//! exFAT: cards, sticks, and data disks of guests.
//!
//! Layers, each on the one before: [`layout`] (what is on the disk), [`boot`] (geometry), [`table`] (the FAT, the bitmap, chains),
//! [`walk`] (directories, who owns what) with [`root`] (what the root directory alone names); then what is made of them: [`map`] and
//! [`check`], [`files`],
//! [`contents`] and [`browse`], which reads files one by one.
//!
//! Invariants:
//! - what readers would take differently (tables in pieces, entries behind a directory's end) is a doubt;
//! - what is not free in the bitmap is used, whoever owns it.
//!
//! Deliberately absent: moving files, TexFAT, allocations of vendors, which make the volume whole.

use std::sync::Arc;

use block::{ReadAt, Result};
use extent::{File, VolumeSpan};

use crate::opened::Opened;
use crate::probe::Probe;
use crate::probe::fields::dos_serial;
use crate::{Browse, Check, Facts, FileId, FileSystem, FileVisitor, Source, State, StreamName, UsedMap};

mod boot;
mod browse;
mod check;
mod contents;
mod corrupt;
mod files;
mod layout;
mod map;
mod root;
mod table;
mod upcase;
mod walk;

pub use corrupt::Corrupt;

use boot::Geometry;
use layout::{BootSector, volume_flags};
use root::Tables;

/// A volume whose boot sector and tables hold together.
struct Volume {
    source: Source,
    boot: BootSector,
    geometry: Geometry,
    tables: Tables,
}

/// Opens the volume if it is one. What is broken is told in its state; only a read that fails is an error.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let Some(boot) = boot::read(source)? else { return Ok(None) };
    let mut facts = Probe::of_partition(source).facts("exfat", State::Clean);
    facts.uuid = dos_serial(boot.volume_serial_number.get());
    let read = read(source, boot, &mut facts);
    Ok(Some(Box::new(Opened::new(facts, read)?)))
}

/// Whether exFAT's boot sector is on the volume.
pub(crate) fn has_boot_sector(source: &Source) -> Result<bool> {
    Ok(boot::read(source)?.is_some())
}

/// Reads what opening needs, and fills in the facts.
fn read(source: &Source, boot: BootSector, facts: &mut Facts) -> Result<Volume> {
    let geometry = boot::parse(&boot, source.len_bytes())?;
    facts.cluster_bytes = Some(geometry.clusters.bytes);
    facts.size_bytes = geometry.size_bytes;
    facts.details.push(("sector", format!("{} bytes", geometry.sector_bytes)));
    let tables = root::read(source, &geometry)?;
    facts.label.clone_from(&tables.label);
    let volume = Volume { source: Arc::clone(source), boot, geometry, tables };
    let mut free = 0;
    volume.each_free_span(&mut |span| free += span.len_bytes())?;
    facts.free_bytes = Some(free);
    facts.state = unclean(&volume.boot).map_or(State::Clean, |why| State::Dirty(why.into()));
    Ok(volume)
}

/// Why it is not clean (section 3.1.13).
fn unclean(boot: &BootSector) -> Option<&'static str> {
    match boot.volume_flags.get() {
        flags if flags & volume_flags::VOLUME_DIRTY != 0 => Some("it was not unmounted cleanly"),
        flags if flags & volume_flags::MEDIA_FAILURE != 0 => Some("errors were met when it was last used"),
        _ => None,
    }
}

impl Volume {
    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        let Self { source, geometry, tables, .. } = self;
        table::each_run(source, tables.bitmap_at, geometry.clusters.numbers(), |is_free, first, count| {
            if is_free {
                each(geometry.clusters.span_of(first, count));
            }
        })
    }
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
        let Volume { source, geometry, tables, .. } = volume;
        Ok(Box::new(map::Map {
            source: Arc::clone(source),
            geometry: *geometry,
            bitmap_at: tables.bitmap_at,
        }))
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
        self.volume()?.each_free_span(each)
    }
}
