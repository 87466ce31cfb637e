//! The program from outside: what it prints, writes and leaves alone, judged by other programs.

// Tests by themselves: what fails ends the test, and what is printed says what was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::cast_possible_truncation)]

mod analyze;
mod analyze_folder;
mod bench;
mod broken_ext;
mod btrfs;
mod btrfs_devices;
mod btrfs_logical;
mod claims;
mod common;
mod compact;
mod compact_defrag;
mod confined;
mod create;
mod defrag;
mod defrag_common;
mod defrag_refused;
mod defrag_thin;
mod documents;
mod every_pair;
mod exfat;
mod fat;
mod generated;
mod guard;
mod guest;
mod holders;
mod interrupted;
mod load;
mod log;
mod lvm;
mod lvm_mirrors;
mod memory;
mod ntfs3;
mod outputs;
mod packed;
mod prevention;
mod provision;
mod recover;
mod reflink;
mod refused;
mod resume;
mod serve;
mod serve_compact;
mod serve_full;
mod serve_lean;
mod serve_placement;
mod serve_several;
mod service;
mod serving;
mod shadow_copies;
mod targets;
mod terminal;
mod xfs;
