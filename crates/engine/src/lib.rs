//! Carries out plans: the only place that writes.
//!
//! Invariants:
//! - memory does not grow with the disk: each worker owns one chunk, and placement is in order;
//! - the same source and options give the same target, byte for byte, whatever the threads do;
//! - headers, which make a target valid, are written after a flush of everything else;
//! - a change in place leaves, at every moment, a disk that is whole or that its journal makes whole
//!   (`docs/design/crash-safety.md`).

mod backup;
mod checkpoint;
mod compact;
mod copy;
mod create;
mod cut;
mod fill;
mod monitor;
#[cfg(feature = "mutants")]
mod mutant;
mod order;
mod provision;
mod put;
mod rearrange;
mod recover;
mod shorten;
mod tally;
mod totals;
mod transfer;
mod zeros;

pub use backup::{BackedUp, BackupJob, Base, Bound, Samples};
pub use checkpoint::Checkpoint;
pub use compact::{CompactJob, CompactOutcome, Unwritten};
pub use copy::{CloneSource, CopyJob, CopyOutcome};
pub use create::{CreateJob, CreateTotals};
pub use fill::{
    FillIdentity, FillPlan, FillingDisk, begin_fill, fill_identity, fill_unit_bytes, is_filled, publish_fill,
};
pub use monitor::JobMonitor;
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use provision::{Least, Provision, check_provision, least};
pub use rearrange::{
    HINT_RECOVER, RearrangeFailure, RearrangeJob, RearrangeOutcome, SLOT_BYTES, journal_header,
};
pub use recover::{Recovery, recover, tidy_up};
pub use shorten::shorten;
pub use tally::Tally;
pub use totals::CopyTotals;
pub use transfer::{JobIdentity, KeptCopy, Left, Transfer, find_left};
pub use zeros::{ZeroCount, count_zeros};
