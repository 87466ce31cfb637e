//! Where a copy goes: whether it can, said before anything is written, to a dry run and to the copy alike.

use std::path::Path;
use std::sync::Arc;

use block::{Error, Result, TargetFile};
use engine::{JobIdentity, Least, Left, find_left};
use image::Format;
use os::{FolderOptions, OutputStream, TargetSpace};
use report::human_bytes;

use crate::Observer;
use crate::machine::{CopyFolder, Machine, Named};

/// What the target is to be, as far as it decides whether it can be.
pub(crate) struct Wanted {
    pub(crate) format: Format,
    /// Whether what is there may be replaced.
    pub(crate) force: bool,
    /// What it takes, whatever the disk holds.
    pub(crate) least: Least,
    pub(crate) options: FolderOptions,
    /// Whether nothing will be written.
    pub(crate) is_rehearsal: bool,
}

/// Where the target is made. Nothing is written to it yet, and no name is changed.
pub(crate) enum Target<'a> {
    /// A file.
    Folder { folder: Box<dyn CopyFolder + 'a>, room: TargetSpace },
    /// A block device, held; or the export of a server.
    Device(Arc<dyn TargetFile>),
    /// Standard output. `None` if nothing will be written.
    Stream(Option<OutputStream>),
}

impl<'a> Target<'a> {
    /// Finds everything that stands against the target and can be known before it is written. The copy would fail in the same way,
    /// and change nothing either, if that is so.
    pub(crate) fn open(machine: &'a dyn Machine, path: &Path, wanted: &Wanted) -> Result<Self> {
        match machine.named(path) {
            Named::BlockDevice => Self::open_device(machine, path, wanted),
            Named::Export => Self::open_export(machine, path, wanted),
            Named::Stream if wanted.is_rehearsal => Ok(Self::Stream(None)),
            Named::Stream => Ok(Self::Stream(Some(machine.output()?))),
            _ => Self::open_folder(machine, path, wanted),
        }
    }

    fn open_device(machine: &dyn Machine, path: &Path, wanted: &Wanted) -> Result<Self> {
        if wanted.format != Format::Raw {
            return Err(Error::unsupported(format!("{} on a block device", wanted.format)).hint("-O raw"));
        }
        if !wanted.force {
            return Err(Error::refused("the target is a block device, whose contents would be lost")
                .path(path.display())
                .hint("--force replaces them"));
        }
        let device = machine.copy_device(path)?;
        let (has, needs) = (device.len_bytes(), wanted.least.len_bytes);
        if needs > has {
            return Err(Error::refused(format!(
                "the device is too small: it has {} ({has} bytes), and the disk {} ({needs} bytes)",
                human_bytes(has),
                human_bytes(needs)
            ))
            .path(path.display())
            .hint("nothing was written; choose a device that is as large as the disk, or a file"));
        }
        Ok(Self::Device(device.into()))
    }

    fn open_export(machine: &dyn Machine, path: &Path, wanted: &Wanted) -> Result<Self> {
        if wanted.format != Format::Raw {
            return Err(Error::unsupported(format!("{} in an export", wanted.format)).hint("-O raw"));
        }
        if !wanted.force {
            return Err(Error::refused("the target is an export, whose contents would be lost")
                .path(path.display())
                .hint("--force replaces them"));
        }
        let export = machine.copy_device(path)?;
        let (has, needs) = (export.len_bytes(), wanted.least.len_bytes);
        if needs != has {
            return Err(Error::refused(format!(
                "the export has another size: {} ({has} bytes), and the disk {} ({needs} bytes)",
                human_bytes(has),
                human_bytes(needs)
            ))
            .path(path.display())
            .hint("nothing was written; have the server give an export that is as large as the disk"));
        }
        Ok(Self::Device(export.into()))
    }

    fn open_folder(machine: &'a dyn Machine, path: &Path, wanted: &Wanted) -> Result<Self> {
        let folder = machine.copy_folder(path, wanted.options)?;
        let room = folder.check_room(wanted.least.len_bytes)?;
        let needs = wanted.least.stored_bytes;
        if needs > room.free_bytes {
            return Err(Error::refused(format!(
                "not enough space: the target's file system has {} free, and the target needs {} at the least",
                human_bytes(room.free_bytes),
                human_bytes(needs)
            ))
            .path(path.display())
            .hint("nothing was written; make room, or copy to another file system"));
        }
        Ok(Self::Folder { folder, room })
    }

    /// Says if there is less room than the copy may need. How much it does need is known once its zeros are found and its clusters
    /// compressed: reason enough for a word, not for a refusal.
    pub(crate) fn warn_of_room(&self, most_bytes: u64, is_compressed: bool, observer: &dyn Observer) {
        match self {
            Self::Folder { room, .. } if most_bytes > room.free_bytes => observer.note(&format!(
                "warning: the target may not fit: its file system has {} free, and it takes up to {}{}",
                human_bytes(room.free_bytes),
                human_bytes(most_bytes),
                if is_compressed { " before compression" } else { ", less what turns out to be zeros" }
            )),
            _ => {}
        }
    }

    /// Says what an interrupted copy left. `Refused` if another process is writing the target.
    pub(crate) fn tell_left(&self, job: &JobIdentity, observer: &dyn Observer) -> Result<()> {
        let Self::Folder { folder, .. } = self else { return Ok(()) };
        match find_left(&**folder, job)? {
            Left::Nothing => {}
            Left::Usable(checkpoint) => observer.note(&format!(
                "an interrupted copy is kept; --resume goes on with it after {}",
                human_bytes(checkpoint.done_bytes())
            )),
            Left::Useless(why) => {
                observer.note(&format!("what an interrupted copy left is of no use: {why}"));
            }
        }
        Ok(())
    }
}
