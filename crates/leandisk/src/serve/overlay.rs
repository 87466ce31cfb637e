//! An overlay of a disk of a snapshot: a QCOW2 image that holds what clients wrote, and says what it stands on.
//!
//! Invariant: an overlay is only ever used with the disk that it was made for, told by the repository's ID, the hash of what the snapshot
//! holds, and the disk's name.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, HostFile, ReadAt, Result};
use engine::{CreateJob, Provision as When};
use extent::Host;
use image::qcow2::Qcow2Writer;
use image::{AnyWriter, Chain, Format, Purpose, Resolver, SnapshotReference};
use os::NewFile;

use super::made::Made;
use super::opened::{Caching, HeldToWrite, UseOptions};
use super::{Options, Served};
use crate::Unwatched;
use crate::create::new_image;
use crate::open::{Location, OpenOptions};
use crate::stored::StoredDisk;

/// `Invalid` unless each overlay is of a disk of a snapshot, and is that of one disk alone.
pub(super) fn check_overlays(options: &Options) -> Result<()> {
    let mut paths: Vec<&Path> = Vec::new();
    for served in &options.disks {
        let Some(path) = &served.overlay else { continue };
        if options.read_only {
            return Err(Error::invalid("--overlay is for disks that are written, not with --read-only"));
        }
        if options.open.snapshot(&served.disk).is_none() {
            return Err(Error::invalid("--overlay needs a disk of a snapshot, with --repo")
                .path(served.disk.display())
                .hint("an overlay of an image file: qemu-img create -f qcow2 -b IMAGE -F FORMAT OVERLAY"));
        }
        if paths.contains(&&**path) {
            return Err(Error::invalid("is the overlay of two disks").path(path.display()));
        }
        paths.push(path);
    }
    Ok(())
}

/// Holds the disk of a snapshot with its overlay, which is made if it is not there.
pub(super) fn hold(stored: StoredDisk, path: &Path, options: &Options) -> Result<HeldToWrite> {
    let StoredDisk { disk, reference } = stored;
    let open = OpenOptions { format: Some(Format::Qcow2), ..options.open.clone() };
    let location = Location::here(path, &open);
    location.check_nothing_pending()?;
    let made = match path.symlink_metadata() {
        Ok(_) => None,
        Err(_) => Some(make(path, ReadAt::<Host>::len_bytes(&disk), &reference)?),
    };
    let resolver = StandsOn { others: location.resolver()?, disk: Arc::new(disk.reading_ahead()), reference };
    let file = location.machine.open(path, Caching::PageCache)?;
    let chain = Chain::open(file, image::OpenOptions { format: open.format }, &resolver)?;
    if chain.links()[0].layer.parent().is_none_or(|parent| parent.snapshot.is_none()) {
        return Err(Error::refused("is there, and is no overlay of a snapshot").path(path.display()));
    }
    let how = UseOptions::of(path, options);
    Ok(HeldToWrite::of(&chain, Box::new(resolver), how)?.made(made))
}

/// Makes an overlay in which nothing is written yet.
fn make(path: &Path, virtual_bytes: u64, stands_on: &SnapshotReference) -> Result<Made> {
    let writer =
        AnyWriter::Qcow2(Qcow2Writer::new(new_image(path, virtual_bytes))?.standing_on(stands_on.clone())?);
    let target = NewFile::create(path, false)?;
    target.overwrite_in_place();
    let job = CreateJob { writer, target: &target, virtual_bytes, provision: When::Thin, thread_count: 1 };
    job.run(&Unwatched).map_err(|error| error.path(path.display()))?;
    target.publish()?;
    Ok(Made::new(path))
}

/// Opens the disk that an overlay stands on, if it is this one.
struct StandsOn {
    others: Box<dyn Resolver>,
    disk: Arc<dyn HostFile>,
    reference: SnapshotReference,
}

impl Resolver for StandsOn {
    fn open(&self, from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        self.others.open(from, name, purpose)
    }

    fn open_snapshot(&self, from: &dyn HostFile, parent: &SnapshotReference) -> Result<Arc<dyn HostFile>> {
        if parent.is_same_disk(&self.reference) {
            return Ok(self.disk.clone());
        }
        Err(Error::refused(format!("is an overlay of {parent}, not of {}", self.reference))
            .hint("name that snapshot, or another file for the overlay")
            .path(from.name()))
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<OsString>> {
        self.others.siblings(from)
    }

    fn open_sibling(&self, from: &dyn HostFile, name: &OsStr) -> Result<Arc<dyn HostFile>> {
        self.others.open_sibling(from, name)
    }
}

impl Served {
    /// Where what clients write goes.
    pub(super) fn written_path(&self) -> &PathBuf {
        self.overlay.as_ref().or(self.into.as_ref()).unwrap_or(&self.disk)
    }
}
