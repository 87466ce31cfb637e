//! Volume groups, as all documents list them.

use serde::Serialize;
use stack::Stack;

use crate::text::printable;

/// What a volume is called in words: its file system, with its name if it is a logical volume or has several devices.
pub(crate) fn titled(name: Option<&str>, filesystem: Option<&str>) -> String {
    let filesystem = filesystem.map_or("unknown contents".into(), printable);
    name.map_or(filesystem.clone(), |name| format!("{} {filesystem}", printable(name)))
}

/// A volume group of LVM2. Sizes are what `vgs` says of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VolumeGroupEntry {
    name: String,
    extent_bytes: u64,
    size_bytes: u64,
    free_bytes: u64,
}

/// Those of a disk.
pub(crate) fn entries(stack: &Stack) -> Vec<VolumeGroupEntry> {
    let entry = |group: &stack::VolumeGroup| VolumeGroupEntry {
        name: group.name.clone(),
        extent_bytes: group.extent_bytes,
        size_bytes: group.size_bytes,
        free_bytes: group.free_bytes,
    };
    stack.groups().iter().map(entry).collect()
}
