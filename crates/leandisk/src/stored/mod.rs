//! What lies in a repository: where that is, which snapshots it has, and the disks in them.

mod disks;
mod place;

pub use disks::SnapshotName;
pub(crate) use disks::{StoredDisk, disks_of, find_disk, node_name, open_disk, open_file};
pub use place::{Password, Place};
