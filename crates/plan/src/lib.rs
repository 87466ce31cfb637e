//! What a command will do, decided from facts and options alone.
//!
//! Invariants: a plan is a value: it holds no handle, does no I/O, reads no clock. `--dry-run` prints the same
//! plan that execution is given.

mod copy;

pub use copy::{Avoided, CopyOptions, CopyPlan, CopyPlanner, Part, VolumeShare};
