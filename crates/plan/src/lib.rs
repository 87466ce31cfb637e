//! What a command will do, decided from facts and options alone; what reading costs, and what is worth doing.
//!
//! Invariants: a plan is a value: it holds no handle, does no I/O, reads no clock. `--dry-run` prints the same
//! plan that execution is given.

pub mod advice;
mod after;
pub mod compact;
mod copy;
pub mod cost;
pub mod defrag;
mod effects;
pub mod figures;
pub mod profile;
mod reading;
pub mod settle;

pub use after::{Moved, facts_after};
pub use copy::{Avoided, CopyOptions, CopyPlan, CopyPlanner, Part, VolumeShare};
pub use effects::{at_once, fragmented_reading, free_after, predicted_figures, surveyed_figures};
pub use reading::{VolumeCost, advice_facts, read_costs, read_trace_cost};
