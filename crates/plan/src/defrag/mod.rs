//! Where files should lie, and the moves that bring them there.
//!
//! Facts are a [`Layout`]: all streams of a volume, what of them may move, what is free, and which of that its container
//! already holds. Two planners share it: one for volumes changed in place, in batches each of which leaves a whole
//! volume; one for volumes written anew, where everything may move at once.
//!
//! Rooms import downwards alone, and so do the files of a room:
//!
//! ```text
//! goals    pack, free -> files; units; anchored
//!   |
//! moves    clear -> ways, widen; roll -> widen -> aside; slide
//!   |
//! state    cells -> work -> space -> spans -> layout; work -> figures; units; effort; first_fit
//!   |
//! plan     what is asked for, and what is answered
//! ```
//!
//! [`packed`], the second planner, stands on `state` as `moves` does.
//!
//! No I/O, no clock, no threads: the same facts and options give the same plan.

mod goals;
mod moves;
mod packed;
mod plan;
mod state;
#[cfg(test)]
mod tests;

use block::Result;

use goals::{anchored, files, free, pack, units};
use state::Work;

pub use packed::{Packed, plan_packed};
pub use plan::{
    Backing, BackingMap, DefragOptions, DefragPlan, Emptied, Goal, Hints, LayoutFigures, WhyLeft,
};
pub use state::Layout;

/// Plans a change in place. `Corrupt` if two things share a place of the volume.
pub fn plan_in_place(layout: &Layout, options: &DefragOptions, hints: &Hints<'_>) -> Result<DefragPlan> {
    layout.check()?;
    let mut work = Work::new(layout, options, hints);
    match options.goal {
        Goal::Files => files::gather(&mut work)?,
        Goal::Free => {
            files::gather(&mut work)?;
            free::consolidate_and_gather(&mut work)?;
        }
        Goal::Units => units::empty_units(&mut work, options)?,
        Goal::Pack => {
            pack::sort_and_gather(&mut work)?;
            // Where much is not allocated there was little room to sort in.
            if work.space.is_mostly_thin() || !work.fragmented().is_empty() {
                free::consolidate_and_gather(&mut work)?;
            }
        }
    }
    if options.moves_anchored {
        anchored::gather(&mut work)?;
    }
    work.close()?;
    let movable_free_bytes = free::movable_bytes(&work);
    Ok(work.finish(movable_free_bytes))
}
