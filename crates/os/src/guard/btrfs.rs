//! What Btrfs says of its devices (`include/uapi/linux/btrfs.h`).

use std::fs::File;
use std::io;

use crate::ioctl::ioctl;

/// `_IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)`, 1024 bytes.
pub(super) const IOC_FS_INFO: u32 = 0x8400_941f;
/// Where the file system's number stands in it.
pub(super) const FS_INFO_UUID: usize = 16;
/// `_IOWR(0x94, 30, struct btrfs_ioctl_dev_info_args)`.
const IOC_DEV_INFO: u32 = 0xd000_941e;

/// The numbers of devices are not all taken: more than so many are not asked for.
const DEVICES_MAX: u64 = 4096;

/// `struct btrfs_ioctl_dev_info_args`.
#[repr(C)]
struct DevInfo {
    devid: u64,
    uuid: [u8; 16],
    bytes_used: u64,
    total_bytes: u64,
    rest: [u8; 4096 - 40],
}

const _: () = assert!(size_of::<DevInfo>() == 4096);

/// `_IOWR(0x94, 17, struct btrfs_ioctl_search_args)`, 4096 bytes.
const IOC_TREE_SEARCH: u32 = 0xd000_9411;
/// `BTRFS_ROOT_TREE_OBJECTID`, and the numbers that subvolumes have in it.
const ROOT_TREE: u64 = 1;
const SUBVOLUMES: (u64, u64) = (256, 0_u64.wrapping_sub(256));
/// `BTRFS_ROOT_ITEM_KEY`.
const ROOT_ITEM: u32 = 132;
/// `struct btrfs_ioctl_search_header`: the key, and how long the item is that follows.
const HEADER_BYTES: usize = 32;
const HEADER_ID: usize = 8;
const HEADER_TYPE: usize = 24;
const HEADER_LEN: usize = 28;
/// Where these are in `struct btrfs_root_item` (`include/uapi/linux/btrfs_tree.h`).
const ROOT_REFS: usize = 216;
const ROOT_PARENT_UUID: usize = 263;
const ROOT_MADE_SECONDS: usize = 339;
/// More subvolumes than so many are not looked at.
const SUBVOLUMES_MAX: usize = 1 << 14;

/// `struct btrfs_ioctl_search_args`.
#[repr(C)]
struct Search {
    tree: u64,
    objectids: (u64, u64),
    offsets: (u64, u64),
    generations: (u64, u64),
    min_type: u32,
    max_type: u32,
    item_count: u32,
    unused: [u32; 9],
    items: [u8; 4096 - 104],
}

const _: () = assert!(size_of::<Search>() == 4096);

/// Whether there is a snapshot that was made at `since` or later, in seconds since 1970; also where there are too many subvolumes to know.
pub(super) fn has_snapshot_since(root: &File, since: u64) -> io::Result<bool> {
    let (mut first, mut seen) = (SUBVOLUMES.0, 0);
    while seen < SUBVOLUMES_MAX {
        let mut search = Search {
            tree: ROOT_TREE,
            objectids: (first, SUBVOLUMES.1),
            offsets: (0, u64::MAX),
            generations: (0, u64::MAX),
            min_type: ROOT_ITEM,
            max_type: ROOT_ITEM,
            item_count: u32::MAX,
            unused: [0; 9],
            items: [0; 4096 - 104],
        };
        ioctl(root, IOC_TREE_SEARCH, &mut search)?;
        let found = root_items(&search.items, search.item_count);
        let Some((last, _)) = found.last() else { return Ok(false) };
        if found.iter().any(|(_, item)| is_snapshot_since(item, since)) {
            return Ok(true);
        }
        seen += found.len();
        let Some(next) = last.checked_add(1).filter(|next| *next <= SUBVOLUMES.1) else { return Ok(false) };
        first = next;
    }
    Ok(true)
}

/// The subvolumes that a search found, each with its number.
fn root_items(items: &[u8], count: u32) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    let mut rest = items;
    for _ in 0..count {
        let Some((header, behind)) = rest.split_at_checked(HEADER_BYTES) else { break };
        let len = own_number(header, HEADER_LEN).and_then(|len| usize::try_from(len).ok());
        let Some((item, behind)) = len.and_then(|len| behind.split_at_checked(len)) else { break };
        if own_number(header, HEADER_TYPE) == Some(ROOT_ITEM) {
            let id = header[HEADER_ID..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            found.extend(id.map(|id| (id, item)));
        }
        rest = behind;
    }
    found
}

/// Whether a subvolume is there still, began as another's snapshot, and was made at `since` or later.
fn is_snapshot_since(item: &[u8], since: u64) -> bool {
    let parent = item.get(ROOT_PARENT_UUID..ROOT_PARENT_UUID + 16);
    let refs = item.get(ROOT_REFS..ROOT_REFS + 4);
    let is_any = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    parent.is_some_and(is_any)
        && refs.is_some_and(is_any)
        && number(item, ROOT_MADE_SECONDS).is_some_and(|made| made >= since)
}

/// A number of a search's own, in the machine's order.
fn own_number(header: &[u8], at: usize) -> Option<u32> {
    header.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// A number of an item.
fn number(item: &[u8], at: usize) -> Option<u64> {
    item.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Bytes of all devices of the file system that no block group has.
pub(super) fn unallocated_bytes(root: &File) -> io::Result<u64> {
    let mut info = [0_u8; 1024];
    ioctl(root, IOC_FS_INFO, &mut info)?;
    let mut max_id = [0; 8];
    max_id.copy_from_slice(&info[..8]);
    let mut all = 0_u64;
    for devid in 1..=u64::from_ne_bytes(max_id).min(DEVICES_MAX) {
        let mut device =
            DevInfo { devid, uuid: [0; 16], bytes_used: 0, total_bytes: 0, rest: [0; 4096 - 40] };
        match ioctl(root, IOC_DEV_INFO, &mut device) {
            Ok(_) => all = all.saturating_add(device.total_bytes.saturating_sub(device.bytes_used)),
            // No device has this number any more.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A subvolume as a search tells it.
    fn told(id: u64, kind: u32, len: u32, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + 439];
        bytes[HEADER_ID..HEADER_ID + 8].copy_from_slice(&id.to_ne_bytes());
        bytes[HEADER_TYPE..HEADER_TYPE + 4].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&len.to_ne_bytes());
        let item = &mut bytes[HEADER_BYTES..];
        item[ROOT_REFS] = 1;
        item[ROOT_PARENT_UUID + 15] = 7;
        item[ROOT_MADE_SECONDS..ROOT_MADE_SECONDS + 8].copy_from_slice(&1000_u64.to_le_bytes());
        change(item);
        bytes
    }

    #[test]
    fn snapshots_are_told_from_subvolumes() {
        let as_it_is = |_: &mut [u8]| {};
        let items = [
            told(256, ROOT_ITEM, 439, as_it_is),
            told(257, ROOT_ITEM + 1, 439, as_it_is),
            told(258, ROOT_ITEM, 439, |item| item[ROOT_REFS] = 0),
            told(259, ROOT_ITEM, 439, |item| item[ROOT_PARENT_UUID + 15] = 0),
        ]
        .concat();
        let found = root_items(&items, 4);
        assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [256, 258, 259]);
        let since = |since| found.iter().map(|(_, item)| is_snapshot_since(item, since)).collect::<Vec<_>>();
        assert_eq!(since(1000), [true, false, false]);
        assert_eq!(since(1001), [false, false, false]);
        assert!(root_items(&told(256, ROOT_ITEM, 440, as_it_is), 1).is_empty(), "longer than there is");
        assert!(!is_snapshot_since(&[7; ROOT_MADE_SECONDS + 7], 0), "of an old kernel, shorter");
    }

    #[test]
    fn a_real_snapshot_is_found_while_it_is_there() {
        let host = testkit::HostMount::new("btrfs", 256 << 20);
        let at = |name: &str| host.path().join(name).display().to_string();
        let subvolume = |arguments: &[&str]| {
            testkit::run("btrfs", &[&["subvolume"], arguments].concat());
        };
        let system = crate::GuardedSystem::find(host.path()).unwrap().unwrap();
        let was_snapshotted = || system.was_snapshotted_within(3600).unwrap();
        assert!(!was_snapshotted());
        // More than one answer has room for.
        (0..20).for_each(|number| subvolume(&["create", &at(&format!("volume {number}"))]));
        assert!(!was_snapshotted(), "a subvolume is no snapshot");
        subvolume(&["snapshot", "-r", &at("volume 3"), &at("snapshot")]);
        assert!(was_snapshotted());
        assert!(!has_snapshot_since(&system.root().unwrap(), u64::MAX).unwrap(), "none was made later");
        // Before that is committed it is still there.
        subvolume(&["delete", "--commit-after", &at("snapshot")]);
        assert!(!was_snapshotted(), "it is being removed");
    }
}
