//! What is where and what is free, as it was found and by now, and what has moved so far.
//!
//! Absent on purpose: what to move.

mod cells;
mod corrupt;
mod effort;
mod figures;
mod first_fit;
mod layout;
mod space;
mod spans;
mod units;
mod unstored;
mod work;

pub(crate) use cells::{Cells, Purpose, TRIED_MAX};
pub use corrupt::BrokenLayout;
pub(crate) use effort::{EXTENT_EFFORT, Effort, lookup_effort};
pub(crate) use figures::{figures, left};
pub(crate) use first_fit::FirstFit;
pub use layout::Layout;
pub(crate) use space::{Growth, Space, Storage};
pub(crate) use spans::Spans;
pub(crate) use units::Units;
pub(crate) use work::{Run, Work};
