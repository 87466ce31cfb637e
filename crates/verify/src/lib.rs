//! An independent look at a result.
//!
//! Invariants: never imports `plan` or `engine`, so that one mistake there cannot approve itself. A digest is a
//! function of a disk's contents alone: what reads as zeros counts the same whether it is a hole, marked, or
//! written.

mod digest;
pub mod volume;

pub use digest::{Digests, DigestsBuilder, WINDOW_BYTES, check, window_hash};
