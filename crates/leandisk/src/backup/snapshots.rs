//! The snapshots of a repository.

use block::Result;
use report::{SnapshotDiskEntry, SnapshotEntry, SnapshotsDocument};

use crate::stored::{Place, disks_of};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The repository.
    pub place: Place,
}

/// Lists them, oldest first.
pub fn run(options: &Options) -> Result<SnapshotsDocument> {
    let repository = options.place.open(false)?;
    let index = repository.index()?;
    let mut entries = Vec::new();
    for (id, snapshot) in repository.snapshots()? {
        // One whose tree is broken is there all the same.
        let disks = disks_of(&repository, &index, &snapshot).unwrap_or_default();
        let disks = disks.into_iter().map(|disk| SnapshotDiskEntry {
            name: disk.name,
            snapshot_path: disk.snapshot_path,
            virtual_bytes: disk.node.size,
        });
        entries.push(SnapshotEntry {
            id: id.to_string(),
            time: snapshot.time,
            hostname: snapshot.hostname,
            tags: snapshot.tags,
            paths: snapshot.paths,
            disks: disks.collect(),
        });
    }
    Ok(SnapshotsDocument::new(repository.place(), entries))
}
