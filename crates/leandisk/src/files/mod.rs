//! The guest's files, read without a mount: listed ([`list()`]), written to standard output ([`cat()`]), and extracted ([`extract()`]).
//!
//! All of them work on an open disk, whatever it was opened from. Nothing of it is written.
//!
//! A file is named `[VOLUME:]PATH`: the volume by its index or its name, the path from the volume's root on; another stream of a file
//! behind a colon. Links in the middle of a path are followed within the volume.

mod cat;
mod extract;
mod folder;
mod list;
mod name;
mod path;
mod sink;
mod tar;
mod volume;

use std::path::PathBuf;

use block::{Error, Result};
use filesystem::Time;

pub use cat::cat;
pub use extract::{Destination, ExtractOptions, extract};
pub use list::{ListOptions, list};

use crate::machine::Caching;
use crate::open::{OpenDisk, OpenOptions};

/// Which disk is read.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DiskOptions {
    /// The disk: an image file or a block device.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
}

/// Opens the disk for reading files from it.
pub fn open(options: &DiskOptions) -> Result<OpenDisk> {
    let disk = OpenDisk::open(&options.disk, &options.open, Caching::PageCache)?;
    disk.stack.chain().check_readable()?;
    Ok(disk)
}

/// A path as text for messages, whatever bytes it has.
fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// No such file.
fn missing(path: &[u8]) -> Error {
    Error::refused("there is no such file or folder on the volume").path(shown(path))
}

/// A moment as documents have it: seconds with nine digits behind the point would lose some in a number of JSON.
fn seconds(time: Time) -> i64 {
    time.seconds
}
