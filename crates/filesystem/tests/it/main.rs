//! What is read of file systems, and changed in them, against the tools that made them.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation, clippy::print_stdout)]

mod btrfs;
mod btrfs_devices;
mod contents;
mod exfat;
mod ext;
mod ext_files;
mod ext_hostile;
mod ext_journal;
mod ext_rearrange;
mod fat;
mod holders;
mod ntfs;
mod ntfs_files;
mod ntfs_files_broken;
mod ntfs_log;
mod ntfs_rearrange;
mod ntfs_rearrange_hostile;
mod ntfs_shadow;
mod ntfs_volumes;
mod running;
mod running_guest;
mod signatures;
mod support;
mod swap;
mod xfs;
mod xfs_flips;
mod xfs_log;
