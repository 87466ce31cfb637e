//! Disks in use on real files: random operations against a model, with QEMU as the judge; many threads; what lies below. Power cuts
//! are explored by `crash`.
//!
//! `LEANDISK_LIVE_ROUNDS` makes the random tests longer (rounds of each format; 1 unless told).

mod chains;
pub(crate) mod files;
mod model;
mod reuse;
mod threads;
