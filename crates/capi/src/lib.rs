//! `libleandisk`: Leandisk's use cases, and what it knows of an open disk, for programs in C and whatever calls C.
//!
//! The header `include/leandisk.h` is made of these modules, their comments included: a test compares it. `docs/c-interface.md` says
//! how it is used, and what is promised.
//!
//! Invariants:
//! - a call answers null or an error, which is the caller's; what it gives out is the caller's to give back;
//! - no panic leaves a call;
//! - handles are looked up, not followed: see [`registry`]. All of them may be used by all threads;
//! - of what the caller's memory holds, nothing is kept when the call returns, and nothing is believed to be more than integers,
//!   pointers and bytes.
//!
//! Absent on purpose: decisions. Whatever is refused here is refused by the use cases.

// The caller's memory is reached in no other way.
#![allow(unsafe_code)]
#![deny(clippy::undocumented_unsafe_blocks)]

mod answer;
mod change;
mod disk;
mod each;
mod error;
mod files;
mod layers;
mod look;
mod make;
mod observer;
mod options;
mod registry;

use std::ffi::{CStr, c_char};

pub use change::{
    CompactOptions, DefragOptions, Goal, Move, RecoverOptions, leandisk_compact, leandisk_defrag,
    leandisk_recover,
};
pub use disk::{DiskHandle, DiskOptions, leandisk_disk_close, leandisk_disk_info, leandisk_disk_open};
pub use error::{
    ErrorHandle, Kind, leandisk_error_free, leandisk_error_hint, leandisk_error_kind, leandisk_error_message,
};
pub use files::{
    FileHandle, FileKind, FileStruct, leandisk_disk_files, leandisk_file_close, leandisk_file_find,
    leandisk_file_open, leandisk_file_read,
};
pub use layers::{Extent, ExtentState, ExtentUse, Layer, leandisk_disk_map};
pub use look::{AnalyzeOptions, InfoOptions, leandisk_analyze, leandisk_info};
pub use make::{CopyOptions, CreateOptions, Layout, Provision, leandisk_copy, leandisk_create};
pub use observer::ObserverStruct;
pub use options::NtfsLog;
pub use registry::leandisk_string_free;

/// The version of the library, such as "0.1.0". Not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
