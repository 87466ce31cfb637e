//! Disks that stay open: what they are, and what all that is asked of them needs.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use block::{Error, Result};
use filesystem::{Catalog, FileSystem};
use leandisk::{Caching, OpenDisk, info, name_disk, to_json};
use stack::Stack;

use crate::answer::Place;
use crate::error::{ErrorHandle, guarded};
use crate::options::{self, Versioned, also, is_set, opening, path};
use crate::registry::{Registry, give_text};

static DISKS: Registry<Disk> = Registry::new();

/// An open disk. Nothing of it is ever written. Threads may use it at once.
pub struct DiskHandle(());

/// What a handle of a disk stands for.
pub(crate) struct Disk {
    open: OpenDisk,
    opened_by: info::Options,
    /// The files of volumes that were asked for, by the volume's index.
    catalogs: Mutex<BTreeMap<usize, Arc<Catalog>>>,
}

impl Disk {
    fn open(told: Told) -> Result<Self> {
        let Told { opened_by, in_use } = told;
        let open = OpenDisk::open(&opened_by.disk, &opened_by.open, Caching::PageCache)?;
        if !in_use {
            open.check_unwritten(&opened_by.disk, &opened_by.open)?;
        }
        Ok(Self { open, opened_by, catalogs: Mutex::default() })
    }

    pub(crate) fn stack(&self) -> &Stack {
        self.open.stack()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.opened_by.disk
    }

    /// What is on the volume at `index`.
    pub(crate) fn filesystem(&self, index: usize) -> Result<&dyn FileSystem> {
        let count = self.stack().volumes().len();
        let found = self.stack().volumes().get(index);
        let volume = found.ok_or_else(|| {
            Error::invalid("the disk's volumes").field("volume", index + 1, format!("1 to {count}"))
        })?;
        let unknown = || Error::unsupported(format!("volume {} has no file system that is known", index + 1));
        volume.filesystem.as_deref().ok_or_else(unknown)
    }

    /// The files of the volume at `index`, which are listed once.
    pub(crate) fn catalog(&self, index: usize) -> Result<Arc<Catalog>> {
        let filesystem = self.filesystem(index)?;
        let mut catalogs = self.catalogs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(catalog) = catalogs.get(&index) {
            return Ok(catalog.clone());
        }
        let catalog = Arc::new(Catalog::read(filesystem)?);
        catalogs.insert(index, catalog.clone());
        Ok(catalog)
    }
}

/// Does something with an open disk; errors that are the disk's name it.
pub(crate) fn with_disk(
    handle: *const DiskHandle,
    work: impl FnOnce(&Disk) -> Result<()>,
) -> *mut ErrorHandle {
    guarded(|| {
        let disk = DISKS.get(handle).ok_or_else(not_open)?;
        work(&disk).map_err(|error| name_disk(error, disk.path()))
    })
}

fn not_open() -> Error {
    Error::invalid("the disk is not open: its handle is null, was closed, or is none")
}

/// Volumes are counted from 1, as in documents.
pub(crate) fn volume_index(volume: u32) -> Result<usize> {
    let index = volume.checked_sub(1).and_then(|index| usize::try_from(index).ok());
    index.ok_or_else(|| Error::invalid("the disk's volumes").field("volume", volume, "at least 1"))
}

/// Options of leandisk_disk_open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Set by leandisk_disk_options_init.
    pub struct_size: usize,
    /// The disk: an image file or a block device.
    pub disk: *const c_char,
    /// The format of its file; null to detect it.
    pub format: *const c_char,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_paths: *const *const c_char,
    /// How many these are.
    pub allow_path_count: usize,
    /// Whether a disk is opened that another program writes to. What is read of it may not fit together.
    pub in_use: c_int,
    /// Not used. 0.
    pub reserved: c_int,
    /// Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    pub with_disks: *const *const c_char,
    /// How many these are.
    pub with_disk_count: usize,
    /// LEANDISK_NTFS_LOG_...: what is done with an NTFS volume whose log is open.
    pub ntfs_log: u32,
    /// Not used. 0.
    pub reserved_too: c_int,
}

/// What [`DiskOptions`] tell.
pub(crate) struct Told {
    opened_by: info::Options,
    in_use: bool,
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for DiskOptions {
    const NAME: &'static str = "leandisk_disk_options";
    const FIRST_BYTES: usize = offset_of!(Self, with_disks);
    type Told = Told;

    unsafe fn told(&self) -> Result<Told> {
        // SAFETY: as the caller promises.
        let (disk, open) = unsafe {
            (
                path(self.disk, "disk")?,
                also(
                    opening(self.format, self.allow_paths, self.allow_path_count)?,
                    self.with_disks,
                    self.with_disk_count,
                    self.ntfs_log,
                )?,
            )
        };
        Ok(Told { opened_by: info::Options { disk, open }, in_use: is_set(self.in_use) })
    }
}

/// Opens a disk, to be closed by leandisk_disk_close.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_disk_open(
    options: *const DiskOptions,
    disk: *mut *mut DiskHandle,
) -> *mut ErrorHandle {
    guarded(|| {
        // SAFETY: as the caller promises.
        let mut place = unsafe { Place::new(disk, null_mut(), "disk") }?;
        // SAFETY: as the caller promises.
        let told = unsafe { options::read(options) }?;
        let path = told.opened_by.disk.clone();
        place.put(DISKS.insert(Disk::open(told).map_err(|error| name_disk(error, &path))?));
        Ok(())
    })
}

/// What an open disk is. The document is leandisk.info/1; it is to be freed by leandisk_string_free.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_disk_info(
    disk: *const DiskHandle,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    with_disk(disk, |disk| {
        // SAFETY: as the caller promises.
        let mut place = unsafe { Place::new(document, null_mut(), "document") }?;
        place.put(give_text(to_json(&info::describe(&disk.open, &disk.opened_by)?))?);
        Ok(())
    })
}

/// Closes a disk. Null is fine; what was closed before is LEANDISK_KIND_INVALID. Calls that use it in other threads end as they would
/// have, and files of it that are open stay so.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_disk_close(disk: *mut DiskHandle) -> *mut ErrorHandle {
    guarded(|| match disk.is_null() || DISKS.remove(disk).is_some() {
        true => Ok(()),
        false => Err(not_open()),
    })
}
