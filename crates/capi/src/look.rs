//! What is asked of a disk: `info` and `analyze`.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::path::Path;
use std::ptr::null;

use block::{Error, Result};
use leandisk::{analyze, info, to_json};

use crate::answer::{Subject, Told, carry_out};
use crate::error::ErrorHandle;
use crate::observer::ObserverStruct;
use crate::options::{Versioned, also, is_set, opening, optional_path, optional_text, path};

/// What a guest's driver asks for at once: the program takes no other sizes, either.
const REQUEST_BYTES_MIN: u64 = 512;
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Options of leandisk_info.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InfoOptions {
    /// Set by leandisk_info_options_init.
    pub struct_size: usize,
    /// The disk: an image file or a block device.
    pub disk: *const c_char,
    /// The format of its file: "raw", "vhd", "vhdx", "vmdk", "qcow2" or "vdi". Null to detect it.
    pub format: *const c_char,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_paths: *const *const c_char,
    /// How many these are.
    pub allow_path_count: usize,
    /// Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    pub with_disks: *const *const c_char,
    /// How many these are.
    pub with_disk_count: usize,
    /// LEANDISK_NTFS_LOG_...: what is done with an NTFS volume whose log is open.
    pub ntfs_log: u32,
    /// Not used. 0.
    pub reserved_too: c_int,
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for InfoOptions {
    const NAME: &'static str = "leandisk_info_options";
    const FIRST_BYTES: usize = offset_of!(Self, with_disks);
    type Told = info::Options;

    unsafe fn told(&self) -> Result<info::Options> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(info::Options {
                disk: path(self.disk, "disk")?,
                open: also(
                    opening(self.format, self.allow_paths, self.allow_path_count)?,
                    self.with_disks,
                    self.with_disk_count,
                    self.ntfs_log,
                )?,
            })
        }
    }
}

impl Subject for info::Options {
    fn disk(&self) -> &Path {
        &self.disk
    }
}

/// What a disk is: its images, partitions and file systems, and who uses it. The document is leandisk.info/1.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_info(
    options: *const InfoOptions,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    // SAFETY: as the caller promises.
    unsafe { carry_out(options, null(), document, |told, _| Ok(Told::done(to_json(&info::run(told)?)))) }
}

/// Options of leandisk_analyze.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AnalyzeOptions {
    /// Set by leandisk_analyze_options_init.
    pub struct_size: usize,
    /// The disk: an image file or a block device.
    pub disk: *const c_char,
    /// The format of its file; null to detect it.
    pub format: *const c_char,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_paths: *const *const c_char,
    /// How many these are.
    pub allow_path_count: usize,
    /// A page to write with the whole report (.html), or null.
    pub html: *const c_char,
    /// A file to write with a line of JSON for each file, or null.
    pub files: *const c_char,
    /// The storage that advice is for: "hdd", "san", "sata-ssd", "nvme" or "measured". Null for what the host says of it.
    pub device: *const c_char,
    /// Requests whose cost is predicted as well: a recording, or text with an offset and a length a line. Null for none.
    pub trace: *const c_char,
    /// The size of the guest's read requests; 0 for 128 KiB.
    pub request_bytes: u64,
    /// How many of the most fragmented files are listed; 0 for 10.
    pub top: u32,
    /// Whether html and files replace files that are there.
    pub force: c_int,
    /// Whether all data in use is read, to count its zeros.
    pub zeros: c_int,
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

impl AnalyzeOptions {
    fn request_size(&self) -> Result<u64> {
        match self.request_bytes {
            0 => Ok(analyze::REQUEST_BYTES),
            REQUEST_BYTES_MIN..=REQUEST_BYTES_MAX => Ok(self.request_bytes),
            other => {
                let known = format!("{REQUEST_BYTES_MIN} to {REQUEST_BYTES_MAX}");
                Err(Error::invalid(Self::NAME).field("request_bytes", other, known))
            }
        }
    }
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for AnalyzeOptions {
    const NAME: &'static str = "leandisk_analyze_options";
    const FIRST_BYTES: usize = offset_of!(Self, with_disks);
    type Told = analyze::Options;

    unsafe fn told(&self) -> Result<analyze::Options> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(analyze::Options {
                disk: path(self.disk, "disk")?,
                open: also(
                    opening(self.format, self.allow_paths, self.allow_path_count)?,
                    self.with_disks,
                    self.with_disk_count,
                    self.ntfs_log,
                )?,
                html: optional_path(self.html),
                files: optional_path(self.files),
                force: is_set(self.force),
                top: if self.top == 0 {
                    analyze::TOP
                } else {
                    usize::try_from(self.top).unwrap_or(usize::MAX)
                },
                device: optional_text(self.device, "device")?,
                request_size: self.request_size()?,
                trace: optional_path(self.trace),
                zeros: is_set(self.zeros),
                draws_map: false,
            })
        }
    }
}

impl Subject for analyze::Options {
    fn disk(&self) -> &Path {
        &self.disk
    }
}

/// What of a disk is fragmented or wasted, what that costs, and what is worth doing about it. The document is leandisk.analyze/1.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_analyze(
    options: *const AnalyzeOptions,
    observer: *const ObserverStruct,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    // SAFETY: as the caller promises.
    unsafe {
        carry_out(options, observer, document, |told, observer| {
            Ok(Told::done(to_json(&analyze::run(told, observer)?.document)))
        })
    }
}
