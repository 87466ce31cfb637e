//! What a disk is: its format, partitions and file systems, and who uses it. No data is read.

use std::path::PathBuf;

use block::Result;
use claims::Claims;
use filesystem::Check;
use report::{InfoDocument, info_document};

use crate::machine::Caching;
use crate::open::{Location, OpenDisk, OpenOptions};

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
    info_document(&options.disk.display().to_string(), &disk.stack, &maps, &claims)
}
