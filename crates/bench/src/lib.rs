//! Measures what provisioning and fragmentation cost on the user's own storage.
//!
//! [`FirstWrite`] writes thin, lazy and eager disks whole and tells what the first write to each place costs.
//! [`Fragmentation`] has images grow side by side through servers, and tells in how many pieces they end and what that costs.
//!
//! Invariants:
//! - nothing that was there is written: all disks lie in a folder made for the run ([`Workspace`]), which goes with it,
//!   whether the run ends well, fails or is interrupted;
//! - nothing begins that would fill the file system: room is asked for before the first byte, and a margin is left;
//! - what is told of the host comes from its own counters and maps.
//!
//! Absent on purpose: comparisons for developers (`xtask bench`), renderings.

mod children;
mod content;
mod counters;
mod first_write;
mod fragmentation;
mod images;
mod workspace;

pub use counters::{Counters, Devices, Interval, Watch};
pub use first_write::{DiskInUse, FirstDisk, FirstWrite, FirstWriteOutcome, OpenDisk, Pass, PassFacts};
pub use fragmentation::{
    Fragmentation, FragmentationFacts, FragmentationOutcome, FragmentationRun, HostKind, HostVolume, Order,
    ServerKind, Traffic, Workload,
};
pub use workspace::Workspace;
