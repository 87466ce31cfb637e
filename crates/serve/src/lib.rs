//! Serves virtual disks live, and measures what is asked of them.
//!
//! [`Export`] is a disk that is served; [`nbd`] serves exports over sockets; [`monitor`] measures; [`stats`] tells what
//! was measured; [`trace`] records requests. [`stats::MomentOfServer`] has a server keep a disk as it is at one moment.
//!
//! Invariants:
//! - a client, however hostile, costs bounded memory, panics nothing, and does not slow another down;
//! - after a failed flush an export answers nothing but the failure;
//! - a flush on any connection covers all that was answered on any.
//!
//! Absent on purpose: image formats and allocation (a [`block::LiveDisk`] brings both), files of the host.

mod export;
mod moment;
pub mod monitor;
#[cfg(feature = "mutants")]
mod mutant;
pub mod nbd;
mod socket;
pub mod stats;
pub mod trace;

pub use export::{Allocation, Export, Fault, FaultKind};
pub use moment::Keep;
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use socket::{Access, bind};
