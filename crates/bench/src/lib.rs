//! Measures what provisioning and fragmentation cost on the user's own storage.
//!
//! [`FirstWrite`] writes thin, lazy and eager disks whole and tells what the first write to each place costs.
//! [`Age`] uses a file system as months of work would, from a seed, so that others can be measured on it.
//! [`Workloads`] does what people do on an aged disk, before and after what is to make that faster.
//! [`Fragmentation`] has images grow side by side through servers, and tells in how many pieces they end and what that costs.
//!
//! Invariants:
//! - nothing that was there is written: all disks lie in a folder made for the run ([`Workspace`]), which goes with it,
//!   whether the run ends well, fails or is interrupted;
//! - nothing begins that would fill the file system: room is asked for before the first byte, and a margin is left;
//! - what is told of the host comes from its own counters and maps.
//!
//! Absent on purpose: comparisons for developers (`xtask bench`), renderings.

mod age;
mod children;
mod content;
mod counters;
mod first_write;
mod fragmentation;
mod images;
mod workloads;
mod workspace;

pub use age::{
    Act, Age, AgeOutcome, AgeTarget, AgedKind, AgedLayout, FILL_PERCENT_MAX, FileKind, LookAt, Operation,
    Operations, Shape, Stated,
};
pub use counters::{Counters, Devices, Interval, Watch};
pub use first_write::{DiskInUse, FirstDisk, FirstWrite, FirstWriteOutcome, OpenDisk, Pass, PassFacts};
pub use fragmentation::{
    Fragmentation, FragmentationFacts, FragmentationOutcome, FragmentationRun, HostKind, HostVolume, Order,
    ServerKind, Traffic, Workload,
};
pub use workloads::{
    Activity, Apply, DiskFacts, DiskState, Engine, FileLies, Forecast, Lies, Measured, Recorded, Remedy,
    Request, RunFacts, Sizes, Skipped, Storage, Survey, WORKLOAD_DISK_BYTES_DEFAULT,
    WORKLOAD_DISK_BYTES_FULL, WORKLOAD_DISK_BYTES_MIN, Workloads, WorkloadsOutcome,
};
pub use workspace::Workspace;
