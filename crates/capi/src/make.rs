//! What makes a disk: `copy` and `create`.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::path::Path;

use block::{Error, Result};
use leandisk::{copy, create, to_json};

use crate::answer::{Subject, Told, carry_out};
use crate::error::ErrorHandle;
use crate::observer::ObserverStruct;
use crate::options::{Versioned, also, choice, format, is_set, opening, path, provision, words};

/// A disk consists of these.
const SECTOR_BYTES: u64 = 512;

/// When a disk's storage is allocated: values of provision in options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum Provision {
    /// When the guest first writes: the image starts small and grows.
    Thin = 0,
    /// All of it at once; the host zeroes each part when it is first written.
    Lazy = 1,
    /// All of it at once, and zeroed.
    Eager = 2,
}

/// Where files lie in the target of a copy: values of layout in options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// Every byte at the offset where it was.
    Keep = 0,
    /// Each file in one piece.
    Packed = 1,
}

/// Options of leandisk_copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    /// Set by leandisk_copy_options_init.
    pub struct_size: usize,
    /// The disk to copy: an image file or a block device.
    pub source: *const c_char,
    /// The image file to create, or a block device.
    pub target: *const c_char,
    /// The format of the source's file; null to detect it.
    pub format: *const c_char,
    /// Files that the source may refer to, and folders with such files, besides its own folder.
    pub allow_paths: *const *const c_char,
    /// How many these are.
    pub allow_path_count: usize,
    /// The target's format; null for what its extension says.
    pub target_format: *const c_char,
    /// Options of the target's format, such as "subformat=fixed".
    pub target_options: *const *const c_char,
    /// How many these are.
    pub target_option_count: usize,
    /// LEANDISK_LAYOUT_...
    pub layout: u32,
    /// LEANDISK_PROVISION_...
    pub provision: u32,
    /// Worker threads, at most 65535; 0 for as many as keep the storage busy.
    pub threads: u32,
    /// Whether the target is compressed: QCOW2 alone.
    pub compress: c_int,
    /// Whether free space is copied as well.
    pub keep_free: c_int,
    /// Whether the contents of page files and swap space are copied as well.
    pub keep_swap: c_int,
    /// Whether what only the shadow copies of Windows need is left out.
    pub drop_shadow_copies: c_int,
    /// Whether old data stay on a block device where nothing is copied.
    pub fast: c_int,
    /// Whether the target is read back and compared.
    pub verify: c_int,
    /// Whether nothing is written: everything is checked and planned as for the copy.
    pub dry_run: c_int,
    /// Whether a copy that was interrupted is continued.
    pub resume: c_int,
    /// Whether the target is replaced if it exists.
    pub force: c_int,
    /// Whether a disk is copied that another program writes to.
    pub in_use: c_int,
    /// Whether data is read and written through the page cache.
    pub page_cache: c_int,
    /// Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    pub with_disks: *const *const c_char,
    /// How many these are.
    pub with_disk_count: usize,
    /// LEANDISK_NTFS_LOG_...: what is done with an NTFS volume whose log is open.
    pub ntfs_log: u32,
    /// Not used. 0.
    pub reserved_too: c_int,
}

impl CopyOptions {
    fn thread_count(&self) -> Result<Option<u16>> {
        let wrong = |_| Error::invalid(Self::NAME).field("threads", self.threads, "at most 65535");
        let count = u16::try_from(self.threads).map_err(wrong)?;
        Ok(Some(count).filter(|count| *count > 0))
    }
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for CopyOptions {
    const NAME: &'static str = "leandisk_copy_options";
    const FIRST_BYTES: usize = offset_of!(Self, with_disks);
    type Told = copy::Options;

    unsafe fn told(&self) -> Result<copy::Options> {
        // SAFETY: as the caller promises.
        let (source, target, open, target_format, target_option) = unsafe {
            (
                path(self.source, "source")?,
                path(self.target, "target")?,
                also(
                    opening(self.format, self.allow_paths, self.allow_path_count)?,
                    self.with_disks,
                    self.with_disk_count,
                    self.ntfs_log,
                )?,
                format(self.target_format, "target_format")?,
                words(self.target_options, self.target_option_count, "target_options")?,
            )
        };
        Ok(copy::Options {
            source,
            target,
            open,
            target_format,
            target_option,
            compress: is_set(self.compress),
            layout: choice(self.layout, &[copy::Layout::Keep, copy::Layout::Packed], "layout")?,
            reflink: copy::Reflink::default(),
            provision: provision(self.provision)?,
            keep_free: is_set(self.keep_free),
            keep_swap: is_set(self.keep_swap),
            drop_shadow_copies: is_set(self.drop_shadow_copies),
            fast: is_set(self.fast),
            verify: is_set(self.verify),
            dry_run: is_set(self.dry_run),
            resume: is_set(self.resume),
            force: is_set(self.force),
            in_use: is_set(self.in_use),
            page_cache: is_set(self.page_cache),
            threads: self.thread_count()?,
        })
    }
}

impl Subject for copy::Options {
    fn disk(&self) -> &Path {
        &self.source
    }
}

/// Copies what a disk's guest uses. Nothing is under the target's name before it is complete. The document is leandisk.copy/1.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_copy(
    options: *const CopyOptions,
    observer: *const ObserverStruct,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    // SAFETY: as the caller promises.
    unsafe {
        carry_out(options, observer, document, |told, observer| {
            Ok(Told::done(to_json(&copy::run(told, observer)?)))
        })
    }
}

/// Options of leandisk_create.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Set by leandisk_create_options_init.
    pub struct_size: usize,
    /// The image file to create.
    pub disk: *const c_char,
    /// Bytes of the disk: a multiple of 512.
    pub size_bytes: u64,
    /// The image's format; null for what the file's extension says.
    pub format: *const c_char,
    /// Options of the format, such as "subformat=fixed".
    pub options: *const *const c_char,
    /// How many these are.
    pub option_count: usize,
    /// LEANDISK_PROVISION_...
    pub provision: u32,
    /// Whether a file that is there is replaced.
    pub force: c_int,
}

impl CreateOptions {
    fn size(&self) -> Result<u64> {
        match self.size_bytes {
            size if size > 0 && size.is_multiple_of(SECTOR_BYTES) => Ok(size),
            other => {
                let known = format!("a multiple of {SECTOR_BYTES}, and not 0");
                Err(Error::invalid(Self::NAME).field("size_bytes", other, known))
            }
        }
    }
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for CreateOptions {
    const NAME: &'static str = "leandisk_create_options";
    const FIRST_BYTES: usize = size_of::<Self>();
    type Told = create::Options;

    unsafe fn told(&self) -> Result<create::Options> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(create::Options {
                disk: path(self.disk, "disk")?,
                size: self.size()?,
                format: format(self.format, "format")?,
                option: words(self.options, self.option_count, "options")?,
                provision: provision(self.provision)?,
                force: is_set(self.force),
            })
        }
    }
}

impl Subject for create::Options {
    fn disk(&self) -> &Path {
        &self.disk
    }
}

/// Makes a new, empty disk. Nothing is under its name before it is complete. The document is leandisk.create/1.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_create(
    options: *const CreateOptions,
    observer: *const ObserverStruct,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    // SAFETY: as the caller promises.
    unsafe {
        carry_out(options, observer, document, |told, observer| {
            Ok(Told::done(to_json(&create::run(told, observer)?)))
        })
    }
}
