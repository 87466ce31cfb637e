//! The earlier snapshots of the same disks, and what one of them still holds of a disk.

use std::sync::Arc;

use block::{Error, HostFile, HostState, ReadAt, Result};
use engine::Base;
use extent::{ExtentSet, HostOffset, HostSpan, Span, Virtual, VirtualOffset};
use repository::{Id, Index, Record, Repository, Snapshot, SnapshotDisk};

/// Among how many of the last snapshots one is looked for of which it is known what changed since.
const SNAPSHOTS_MAX: usize = 32;

/// What is known, or why it is not.
pub(super) type Known<T> = std::result::Result<T, String>;

/// The snapshots of the same disks, newest first, and where their blobs lie.
pub(super) struct Earlier<'a> {
    pub(super) repository: &'a Arc<Repository>,
    pub(super) index: &'a Index,
    pub(super) snapshots: Vec<(Id, Snapshot)>,
}

impl Earlier<'_> {
    pub(super) fn parent(&self) -> Option<Id> {
        self.snapshots.first().map(|(id, _)| *id)
    }

    /// The last snapshot of the disk `node_name` of which `changed` says what changed since; or why there is none.
    pub(super) fn base(
        &self,
        node_name: &str,
        virtual_bytes: u64,
        mut changed: impl FnMut(&EarlierDisk) -> Result<Known<ExtentSet<Virtual>>>,
    ) -> Result<Known<(Id, Base)>> {
        let mut reason = None;
        for (id, snapshot) in self.snapshots.iter().take(SNAPSHOTS_MAX) {
            let why = match self.disk(snapshot, node_name, virtual_bytes) {
                Ok(disk) => match changed(&disk)? {
                    Ok(changed) => return Ok(Ok((*id, disk.without(&changed)))),
                    Err(why) => why,
                },
                Err(why) => why,
            };
            // That of the last one says most.
            reason = reason.or(Some(why));
        }
        Ok(Err(reason.unwrap_or_else(|| super::FIRST_BACKUP.into())))
    }

    fn disk(&self, snapshot: &Snapshot, node_name: &str, virtual_bytes: u64) -> Known<EarlierDisk> {
        let Self { repository, index, .. } = self;
        let unread = |error: Error| format!("the last snapshot cannot be read: {error}");
        let record = repository.record(index, snapshot, node_name).map_err(unread)?;
        let record = record.ok_or("the last snapshot does not say how the disk was left")?;
        let disks = crate::stored::disks_of(repository, index, snapshot).map_err(unread)?;
        let disk = disks.into_iter().find(|disk| disk.node.name == node_name);
        let disk = disk.ok_or("the last snapshot does not hold the disk")?;
        let disk = SnapshotDisk::open((*repository).clone(), index, &disk.node, node_name.as_ref())
            .map_err(unread)?;
        if (disk.len_bytes(), record.virtual_bytes()) != (virtual_bytes, virtual_bytes) {
            return Err("the disk has another size than in the last snapshot".into());
        }
        let data = data_of(&disk).map_err(unread)?;
        Ok(EarlierDisk { disk, record, data })
    }
}

/// A disk as an earlier snapshot holds it.
pub(super) struct EarlierDisk {
    disk: SnapshotDisk,
    pub(super) record: Record,
    /// Where it has other blobs than of zeros.
    data: ExtentSet<Virtual>,
}

impl EarlierDisk {
    /// Of which parts something is known.
    pub(super) fn seen(&self) -> ExtentSet<Virtual> {
        self.data.union(&self.record.zeros())
    }

    /// What of it is to be relied on: what was read, and did not change.
    fn without(self, changed: &ExtentSet<Virtual>) -> Base {
        let read = self.data.subtract(&self.record.filled()).union(&self.record.zeros());
        Base { disk: self.disk, unchanged: read.subtract(changed) }
    }
}

/// Where a disk of a snapshot has other blobs than of zeros.
fn data_of(disk: &SnapshotDisk) -> Result<ExtentSet<Virtual>> {
    let map = disk.host_map(HostSpan::new(HostOffset::ZERO, disk.len_bytes()))?;
    let data = map.into_iter().filter(|extent| extent.state == HostState::Data);
    Ok(data
        .map(|extent| Span::new(VirtualOffset::new(extent.span.start().get()), extent.span.len_bytes()))
        .collect())
}
