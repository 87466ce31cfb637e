//! Carries out plans: the only place that writes.
//!
//! Invariants:
//! - memory does not grow with the disk: each worker owns one chunk, and placement is in order;
//! - the same source and options give the same target, byte for byte, whatever the threads do;
//! - headers, which make a target valid, are written after a flush of everything else.

mod buffer;
mod checkpoint;
mod copy;
mod create;
mod cut;
mod order;
mod zeros;

pub use checkpoint::Checkpoint;
pub use copy::{CopyJob, CopyOutcome, CopyTotals, Monitor};
pub use create::{CreateJob, CreateTotals, Provision};
pub use zeros::{ZeroCount, count_zeros};
