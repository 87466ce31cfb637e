//! Backup repositories in restic's format: keys, sealing, packs, indexes, locks, snapshots.
//!
//! What is written here any restic from 0.14 on reads, and the other way round; both may use a repository at the same time. Blobs are cut by
//! who calls: this crate never looks into them.
//!
//! Invariants: files appear whole or not at all ([`Storage`]); a snapshot is stored last ([`Session`]); what is read is compared with the hash
//! that names it.
//!
//! Absent on purpose: cutting by content, walking of folders, pruning, which restic does.

mod ahead;
mod blobs;
mod crypto;
mod disk;
#[cfg(feature = "forging")]
mod forged;
mod forget;
mod id;
mod index;
mod local;
mod lock;
#[cfg(feature = "mutants")]
mod mutant;
mod pack;
mod polynomial;
mod record;
mod repository;
mod session;
mod snapshot;
mod storage;
mod time;
mod unlocked;
mod uploads;

pub use disk::{Held, SnapshotDisk, ZeroBlobs};
pub use forget::Keep;
pub use id::Id;
pub use index::Index;
pub use local::Folder;
pub use lock::{host_name, is_abandoned, partial_suffix};
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use pack::{BlobKind, Place};
pub use record::{LayerFile, LayerState, Layers, Record, Start};
pub use repository::{KeyCost, Repository};
pub use session::{Added, Packer, Session};
pub use snapshot::{Node, Snapshot, Tree};
pub use storage::{Change, Denied, Kind, Memory, Storage, WHOLE_BYTES_MAX};
pub use time::basic_now;
