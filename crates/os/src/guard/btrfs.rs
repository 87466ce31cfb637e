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
