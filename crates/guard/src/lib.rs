//! Keeps the files of a host or guest in one piece: room ahead of those that grow, and at idle moments repair of those that were
//! closed in pieces, and free space brought together. Decides; what it does goes through [`Machine`].
//!
//! Start reading at `keeper.rs`. The choices are in `docs/decisions/guard.md`.

mod consolidate;
mod consolidation;
mod facts;
mod growth;
mod keeper;
mod ledger;
mod machine;
#[cfg(feature = "mutants")]
mod mutant;
mod pressure;
mod repair;
mod space;
mod suspects;

pub use consolidation::{SpaceGain, SpaceSeen};
pub use facts::{Facts, FileId, Millis, Refusal, Room, Stamp};
pub use growth::{BTRFS, EXT4, Policy, XFS};
pub use keeper::{Allowance, Counters, Guard, Limit, Options};
pub use ledger::{Record, claims, hex, moved_for_space};
pub use machine::{Beside, Extent, Gathered, GoesOn, Held, Join, Machine, Reserved, Told};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant, SPACE_MUTANTS};
pub use pressure::{Busy, Pressure, Waits, waited_us};
pub use repair::{Plan, count, joined, joins, plan, whole};
pub use space::{
    DeviceSpan, GAIN_SHARE, Goal, Owned, PIECE_BYTES_MAX, STRETCH_BYTES_MAX, SpaceFacts, SpaceMap, SpaceMove,
    SpacePlan, Use, bytes_a_day, candidates, goal, place, space_plan,
};
