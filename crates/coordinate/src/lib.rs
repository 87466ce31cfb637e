//! Background work on storage that several share: a coordinator on the host leases it, and the guards of the host and of its guests ask
//! before they begin. Time and messages come in, messages go out; there is no clock and no socket here.
//!
//! Start reading at `coordinator.rs` for the host's side, at `guest.rs` for the other one. The protocol is in
//! `docs/design/coordination.md`.

mod coordinator;
mod guest;
mod message;
#[cfg(feature = "mutants")]
mod mutant;

pub use coordinator::{ClientId, Coordinator, DeviceId, DiskAnswer, Host, Limits};
pub use guest::{Guest, May};
pub use message::{
    DISKS_MAX, Disks, FromGuest, FromHost, Growth, LINE_BYTES_MAX, LineReader, Serial, VERSION,
};
#[cfg(feature = "mutants")]
pub use mutant::{MUTANTS, Mutant};

/// Milliseconds of a clock that does not go back.
pub type Millis = u64;
