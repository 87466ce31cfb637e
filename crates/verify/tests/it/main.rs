//! The readers that verify, against disks that other programs wrote, and against broken ones.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)]

mod btrfs;
mod exfat;
mod ext;
mod fat;
mod hostile;
mod ntfs;
mod real;
mod rearranged;
mod snapshot;
mod support;
mod xfs;
