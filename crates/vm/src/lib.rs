//! Disks of running QEMU guests: which there are, what one holds at a moment, and how all that was made for it goes away again. And a guest
//! that boots once, on trial ([`Trial`]): what QEMU is told then.
//!
//! Invariants: QEMU and the guest's agent are believed in form only, with bounds for lengths and times; what is made in a QEMU is named
//! `leandisk-` and the run that made it; nothing else is changed or removed there, but the user's own bitmap, and that when a copy is
//! complete.
//!
//! Absent on purpose: reading the export, which is NBD like any other; starting and stopping guests; threads.

mod address;
mod agent;
mod inventory;
mod monitor;
#[cfg(feature = "mutants")]
mod mutant;
mod nodes;
mod owner;
mod parts;
mod record;
mod removal;
mod snapshot;
mod socket;
mod surroundings;
mod threads;
mod trial;

pub use address::Address;
pub use agent::{Agent, Freeze, GuestAgent};
pub use inventory::{VmDisk, disks, find};
pub use monitor::{Command, Monitor, Said};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};
pub use owner::{Life, PREFIX, RunId};
pub use removal::{Recovered, recover};
pub use snapshot::{BitmapFound, DISK_COUNT_MAX, Snapshot, Wanted, WantedDisk, begin, find_bitmap, is_over};
pub use socket::Socket;
pub use surroundings::Surroundings;
pub use trial::{Bus, Picture, Trial, TrialDisk, TrialState, take_picture, trial_state};
