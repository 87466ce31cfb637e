//! What the tests share: real tools, real disks, one conformance suite for every disk, hostile inputs.
//!
//! Everything here panics on failure, with what was expected: it is for tests alone.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod conformance;
mod content;
pub mod ext_volume;
mod files;
mod guest;
pub mod holders;
mod host_mount;
mod hostile;
pub mod kernel;
pub mod loops;
pub mod lvm_guest;
mod machine;
mod moto;
pub mod mounted;
pub mod ntfs_log;
pub mod ntfs_volume;
mod rest_server;
mod time_limit;
mod tools;
pub mod vhd;
pub mod vhdx;
pub mod working_guest;
mod writing;

pub use conformance::check_disk;
pub use content::{noise, pattern};
pub use files::{TestFile, TestResolver, extract, stored, stored_ranges};
pub use guest::{Guest, Inside, STALE, SWAPPED, as_root, digest, file_contains};
pub use host_mount::{AgedHost, HostMount, Room};
pub use hostile::check_hostile;
pub use moto::Moto;
pub use rest_server::{RestFault, RestServer};
pub use time_limit::TimeLimit;
pub use tools::{make_luks_image, mke2fs, real_image, real_image_in_zip, run, scratch};
pub use writing::write_image;
