//! What a command will do, decided from facts and options alone.
//!
//! Invariants: a plan is a value: it holds no handle, does no I/O, reads no clock. `--dry-run` prints the same
//! plan that execution is given.
//!
//! Absent on purpose: what a plan costs or gains (`predict`).

mod after;
pub mod compact;
mod copy;
pub mod defrag;
pub mod settle;

pub use after::{Moved, facts_after};
pub use copy::{Avoided, CopyOptions, CopyPlan, CopyPlanner, Part, VolumeShare};
