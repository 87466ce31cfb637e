//! What a disk is: its format, partitions and file systems, and who uses it. No data is read.

use std::path::PathBuf;

use block::{ReadAt, Result};
use claims::Claims;
use filesystem::Check;
use report::{ApplianceDisk, ApplianceDocument, InfoDocument, info_document};

use crate::appliance::{Appliance, Inside};
use crate::machine::{Caching, ThisHost};
use crate::open::{Location, OpenDisk, OpenOptions, name_disk};

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disk: an image file or a block device.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
}

/// Opens the disk and describes it.
pub fn run(options: &Options) -> Result<InfoDocument> {
    describe(&OpenDisk::open(&options.disk, &options.open, Caching::Direct)?, options)
}

/// Describes a disk that was opened by these options.
pub fn describe(disk: &OpenDisk, options: &Options) -> Result<InfoDocument> {
    let maps = disk.stack.used_maps(Check::Glance)?;
    let resolver = Location::here(&options.disk, &options.open).resolver()?;
    let claims = Claims::on_disk(disk.stack.chain(), &*resolver);
    info_document(&options.open.shown(&options.disk), &disk.stack, &maps, &claims)
}

/// The disks of an appliance; `None` if what is asked about is a disk.
pub fn appliance(options: &Options) -> Result<Option<ApplianceDocument>> {
    let Some(appliance) = Appliance::find(&ThisHost, &options.disk, &options.open, None)? else {
        return Ok(None);
    };
    let machine = Inside::new(&ThisHost, std::slice::from_ref(&appliance));
    let mut disks = Vec::new();
    for disk in appliance.disks() {
        let open = OpenOptions { format: disk.format, ..options.open.clone() };
        let open = OpenDisk::open_on(&machine, &disk.path, &open, Caching::Metadata)
            .map_err(|error| name_disk(error, &disk.path))?;
        let chain = open.stack.chain();
        disk.check_capacity(chain.len_bytes())?;
        disks.push(ApplianceDisk {
            id: disk.id.clone(),
            file: disk.reference.clone(),
            path: disk.path.display().to_string(),
            format: chain.facts().format.name().to_owned(),
            virtual_bytes: chain.len_bytes(),
            allocated_bytes: open.allocated_bytes()?,
        });
    }
    let path = options.disk.display().to_string();
    Ok(Some(ApplianceDocument::new(path, appliance.kind(), disks, appliance.notes().to_vec())))
}
