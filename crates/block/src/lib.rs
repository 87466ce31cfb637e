//! What a layer needs of the layer below: positional, thread-safe reading, writing and mapping.
//!
//! Code that parses takes `&dyn ReadAt<S>`, so that a file, a patched file, a cached file, an array in
//! memory and a simulated faulty disk are the same to it.
//!
//! Absent on purpose: operating-system code (see the `os` crate), formats, policy.

mod aligned;
mod cache;
mod counted;
mod error;
mod field;
mod folder;
mod forward;
mod memory;
mod occupancy;
mod overlay;
mod read;
mod run;

// For `forward!`, wherever it is used.
#[doc(hidden)]
pub use extent;

pub use aligned::AlignedBuffer;
pub use cache::Cached;
pub use counted::{Count, Counted};
pub use error::{Cause, Error, ErrorKind, Result};
pub use field::{Field, FieldValue};
pub use folder::{FolderFile, TargetFolder, TargetName};
pub use memory::Memory;
pub use occupancy::{Occupancy, Occupant, Occupied, UnitMove};
pub use overlay::Overlay;
pub use read::{
    Fingerprint, HOST_BLOCK_BYTES, HostExtent, HostFile, HostState, PastEnd, ReadAt, Take, TargetFile, User,
    check_bounds, is_zero, read_struct, read_vec,
};
pub use run::{Disk, EditDisk, FileIndex, LiveDisk, Run, RunState, push_run};
