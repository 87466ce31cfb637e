//! How storage is reserved on which file system: measured, see `docs/decisions/host-preallocation.md`.

/// `f_type` of ext2, ext3 and ext4 (Linux, `include/uapi/linux/magic.h`, as the others).
const EXT_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// How storage is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// The least that is reserved at once.
    pub(crate) window_bytes_min: u64,
    /// The most.
    pub(crate) window_bytes_max: u64,
    /// Asked for in calls of this many bytes.
    pub(crate) call_bytes: u64,
}

const MIB: u64 = 1 << 20;

/// A call gives one extent at best, and the next call's does not join it: so calls are large.
const XFS: Policy = Policy { window_bytes_min: 16 * MIB, window_bytes_max: 256 * MIB, call_bytes: 256 * MIB };

/// Without anything reserved files get 8 MiB at a time here: less than twice that would make it worse.
const EXT4: Policy =
    Policy { window_bytes_min: 16 * MIB, window_bytes_max: 256 * MIB, call_bytes: 256 * MIB };

/// An extent's storage is free again only when none of it is used any more. Calls of 1 MiB bound what is lost that way, and what
/// they give in a row lies in a row.
const BTRFS: Policy = Policy { window_bytes_min: 16 * MIB, window_bytes_max: 256 * MIB, call_bytes: MIB };

/// The policy of the file system whose `f_type` is `magic`; `None`: nothing was measured there, and nothing is done.
pub(crate) fn of(magic: u64) -> Option<Policy> {
    match magic {
        XFS_MAGIC => Some(XFS),
        EXT_MAGIC => Some(EXT4),
        BTRFS_MAGIC => Some(BTRFS),
        _ => None,
    }
}
