//! Disks in use: random operations against a model, with QEMU as the judge; cuts of the power at every moment; many threads.
//!
//! `LEANDISK_LIVE_ROUNDS` makes the random tests longer (rounds of each format; 1 unless told).

// Helpers outside of test functions panic too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[path = "live/chains.rs"]
mod chains;
#[path = "live/cuts.rs"]
mod cuts;
#[path = "live/files.rs"]
mod files;
#[path = "live/model.rs"]
mod model;
#[path = "live/threads.rs"]
mod threads;
