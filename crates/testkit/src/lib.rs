//! What the tests share: real tools, real disks, one conformance suite for every disk, hostile inputs.
//!
//! Everything here panics on failure, with what was expected: it is for tests alone.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod conformance;
mod files;
mod hostile;
mod tools;
mod writing;

pub use conformance::check_disk;
pub use files::{TestFile, TestResolver};
pub use hostile::check_hostile;
pub use tools::{real_image, run, scratch};
pub use writing::write_image;
