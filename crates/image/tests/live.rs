//! Disks in use on real files: random operations against a model, with QEMU as the judge; many threads; what lies below. Power cuts
//! are explored by `crash`.
//!
//! `LEANDISK_LIVE_ROUNDS` makes the random tests longer (rounds of each format; 1 unless told).

// Helpers outside of test functions panic too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[path = "live/chains.rs"]
mod chains;
#[path = "live/files.rs"]
mod files;
#[path = "live/model.rs"]
mod model;
#[path = "live/threads.rs"]
mod threads;
