//! What a command will do, decided from facts and options alone.
//!
//! Invariants: a plan is a value: it holds no handle, does no I/O, reads no clock. `--dry-run` prints the same
//! plan that execution is given.
//!
//! Absent on purpose: disks. What a planner is told are values ([`Fact`], [`defrag::Layout`]), which others make; what a plan costs
//! or gains is told by `predict`.

mod after;
pub mod backup;
pub mod compact;
mod copy;
pub mod defrag;
mod facts;
pub mod shorten;

pub use after::{Moved, facts_after};
pub use copy::{Avoided, CopyOptions, CopyPlan, CopyPlanner, Part, VolumeShare};
pub use facts::{Fact, Role, VolumeIndex};
