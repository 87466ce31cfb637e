//! What changes a disk in place: `compact`, `defrag`, `recover`.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::path::Path;
use std::ptr::null;

use block::Result;
use leandisk::{Reported, compact, defrag, recover, to_json};

use crate::answer::{Subject, Told, carry_out};
use crate::error::ErrorHandle;
use crate::observer::ObserverStruct;
use crate::options::{Versioned, also, choice, is_set, opening, optional_path, path};

/// Whether blocks move from the end of an image's file into gaps: values of moves in options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum Move {
    /// If the file becomes shorter by enough to be worth the writing.
    Auto = 0,
    /// Whenever the file becomes shorter by it.
    Always = 1,
    /// Never.
    Never = 2,
}

/// What a disk is to look like: values of goal in options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Every file in one piece, with as little moved as possible.
    Files = 0,
    /// The free space in one piece as well.
    Free = 1,
    /// Everything sorted: directories, small files by directory, large files, then the free space.
    Pack = 2,
}

/// Options of leandisk_compact.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CompactOptions {
    /// Set by leandisk_compact_options_init.
    pub struct_size: usize,
    /// The disk: an image file or a block device that nobody else uses.
    pub disk: *const c_char,
    /// The format of its file; null to detect it.
    pub format: *const c_char,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_paths: *const *const c_char,
    /// How many these are.
    pub allow_path_count: usize,
    /// LEANDISK_MOVE_...
    pub moves: u32,
    /// Whether files are first moved out of blocks of the image that are almost empty.
    pub defrag: c_int,
    /// Whether what only the shadow copies of Windows need is given back, too.
    pub drop_shadow_copies: c_int,
    /// Whether nothing is changed: everything is checked and planned as for the change.
    pub dry_run: c_int,
    /// Whether all files are read before and after, and compared.
    pub verify: c_int,
    /// Not used. 0.
    pub reserved: c_int,
    /// Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    pub with_disks: *const *const c_char,
    /// How many these are.
    pub with_disk_count: usize,
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for CompactOptions {
    const NAME: &'static str = "leandisk_compact_options";
    const FIRST_BYTES: usize = offset_of!(Self, with_disks);
    type Told = compact::Options;

    unsafe fn told(&self) -> Result<compact::Options> {
        const MOVES: [compact::Move; 3] = [compact::Move::Auto, compact::Move::Always, compact::Move::Never];
        // SAFETY: as the caller promises.
        unsafe {
            Ok(compact::Options {
                disk: path(self.disk, "disk")?,
                open: also(
                    opening(self.format, self.allow_paths, self.allow_path_count)?,
                    self.with_disks,
                    self.with_disk_count,
                    0,
                )?,
                defrag: is_set(self.defrag),
                moves: choice(self.moves, &MOVES, "moves")?,
                drop_shadow_copies: is_set(self.drop_shadow_copies),
                dry_run: is_set(self.dry_run),
                verify: is_set(self.verify),
            })
        }
    }
}

impl Subject for compact::Options {
    fn disk(&self) -> &Path {
        &self.disk
    }
}

/// Gives back what the guest does not use. A stop at any moment leaves every file whole. The document is leandisk.compact/1, which there
/// may be beside an error.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_compact(
    options: *const CompactOptions,
    observer: *const ObserverStruct,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    // SAFETY: as the caller promises.
    unsafe {
        carry_out(options, observer, document, |told, observer| {
            let Reported { document, ended } = compact::run(told, observer)?;
            Ok(Told { json: to_json(&document), ended })
        })
    }
}

/// Options of leandisk_defrag.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DefragOptions {
    /// Set by leandisk_defrag_options_init.
    pub struct_size: usize,
    /// The disk: an image file or a block device that nobody else uses.
    pub disk: *const c_char,
    /// The format of its file; null to detect it.
    pub format: *const c_char,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_paths: *const *const c_char,
    /// How many these are.
    pub allow_path_count: usize,
    /// Where the journal is written; null for beside the disk.
    pub journal: *const c_char,
    /// LEANDISK_GOAL_...
    pub goal: u32,
    /// The only volume to change, counted from 1; 0 for all.
    pub volume: u32,
    /// Whether nothing is changed: everything is checked and planned as for the change.
    pub dry_run: c_int,
    /// Whether all files are read before and after, and compared.
    pub verify: c_int,
    /// Whether $MFT of NTFS is made contiguous, too.
    pub mft: c_int,
    /// Not used. 0.
    pub reserved: c_int,
    /// Other disks, on which logical volumes and file systems of this one have parts. They are only read.
    pub with_disks: *const *const c_char,
    /// How many these are.
    pub with_disk_count: usize,
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for DefragOptions {
    const NAME: &'static str = "leandisk_defrag_options";
    const FIRST_BYTES: usize = offset_of!(Self, with_disks);
    type Told = defrag::Options;

    unsafe fn told(&self) -> Result<defrag::Options> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(defrag::Options {
                disk: path(self.disk, "disk")?,
                open: also(
                    opening(self.format, self.allow_paths, self.allow_path_count)?,
                    self.with_disks,
                    self.with_disk_count,
                    0,
                )?,
                goal: choice(
                    self.goal,
                    &[defrag::Goal::Files, defrag::Goal::Free, defrag::Goal::Pack],
                    "goal",
                )?,
                volume: Some(self.volume).filter(|number| *number > 0),
                dry_run: is_set(self.dry_run),
                verify: is_set(self.verify),
                mft: is_set(self.mft),
                grow: defrag::Growth::Auto,
                journal: optional_path(self.journal),
            })
        }
    }
}

impl Subject for defrag::Options {
    fn disk(&self) -> &Path {
        &self.disk
    }
}

/// Moves files until the disk is as the goal says. A stop at any moment leaves every file whole, if need be by leandisk_recover. The
/// document is leandisk.defrag/1, which there may be beside an error.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_defrag(
    options: *const DefragOptions,
    observer: *const ObserverStruct,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    // SAFETY: as the caller promises.
    unsafe {
        carry_out(options, observer, document, |told, observer| {
            let Reported { document, ended } = defrag::run(told, observer)?;
            Ok(Told { json: to_json(&document), ended })
        })
    }
}

/// Options of leandisk_recover.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecoverOptions {
    /// Set by leandisk_recover_options_init.
    pub struct_size: usize,
    /// The disk: an image file or a block device that nobody else uses.
    pub disk: *const c_char,
    /// The format of its file; null to detect it.
    pub format: *const c_char,
    /// Files that the image may refer to, and folders with such files, besides the image's own folder.
    pub allow_paths: *const *const c_char,
    /// How many these are.
    pub allow_path_count: usize,
    /// Where the journal is; null for beside the disk.
    pub journal: *const c_char,
}

// SAFETY: integers and raw pointers; its size comes first.
unsafe impl Versioned for RecoverOptions {
    const NAME: &'static str = "leandisk_recover_options";
    const FIRST_BYTES: usize = size_of::<Self>();
    type Told = recover::Options;

    unsafe fn told(&self) -> Result<recover::Options> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(recover::Options {
                disk: path(self.disk, "disk")?,
                open: opening(self.format, self.allow_paths, self.allow_path_count)?,
                journal: optional_path(self.journal),
            })
        }
    }
}

impl Subject for recover::Options {
    fn disk(&self) -> &Path {
        &self.disk
    }
}

/// Finishes or undoes a change of a disk that was interrupted. The document is leandisk.recover/1.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_recover(
    options: *const RecoverOptions,
    document: *mut *mut c_char,
) -> *mut ErrorHandle {
    // SAFETY: as the caller promises.
    unsafe { carry_out(options, null(), document, |told, _| Ok(Told::done(to_json(&recover::run(told)?)))) }
}
