//! How things move: aside, out of a window, away from a gap, or run by run into windows of their own.
//!
//! Absent on purpose: when that is worth it, which each goal decides.

mod aside;
mod clear;
mod give_back;
mod roll;
mod shift;
pub(crate) mod slide;
mod tidy;
mod ways;
mod widen;

pub(crate) use aside::{Misfits, free_within, runs_within};
pub(crate) use clear::{Away, clear, clear_what_fits, fill};
pub(crate) use give_back::give_back;
pub(crate) use roll::{roll, waiting};
pub(crate) use shift::shift_together;
pub(crate) use tidy::tidy;
pub(crate) use ways::{Placement, can_clear, ways};
pub(crate) use widen::widen;
