//! What reading a surveyed disk costs, what a plan for it would gain, and what is worth doing.
//!
//! Invariants: predictions are values, computed from a survey alone: nothing of a file's data is read, no clock is looked at.
//! Nothing here decides what is done: `plan` does not know this crate.

pub mod advice;
pub mod cost;
pub mod device;
mod effects;
pub mod figures;
pub mod profile;
mod reading;

pub use effects::{at_once, fragmented_reading, free_after, predicted_figures, surveyed_figures};
pub use reading::{VolumeCost, advice_facts, read_costs, read_trace_cost};
