//! Keeps the files of a host or guest in one piece: room ahead of those that grow, and at idle moments repair of those that were
//! closed in pieces. Decides; what it does goes through [`Machine`].
//!
//! Start reading at `keeper.rs`. The choices are in `docs/decisions/guard.md`.

mod facts;
mod growth;
mod keeper;
mod ledger;
mod machine;
#[cfg(feature = "mutants")]
mod mutant;
mod pressure;
mod repair;
mod suspects;

pub use facts::{Facts, FileId, Millis, Refusal, Room, Stamp};
pub use growth::{BTRFS, EXT4, Policy, XFS};
pub use keeper::{Allowance, Counters, Guard, Options};
pub use ledger::{Record, claims, hex};
pub use machine::{Beside, Extent, Gathered, GoesOn, Held, Join, Machine, Reserved};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use pressure::{Busy, Pressure, Waits, waited_us};
pub use repair::{Plan, count, joins, plan, whole};
