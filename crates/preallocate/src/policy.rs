//! How storage is reserved on which file system: measured, see `docs/decisions/host-preallocation.md`.

/// `f_type` of ext2, ext3 and ext4 (Linux, `include/uapi/linux/magic.h`, as the others).
const EXT_MAGIC: u64 = 0xef53;
/// `f_type` of XFS.
pub const XFS_MAGIC: u64 = 0x5846_5342;
/// `f_type` of Btrfs.
pub const BTRFS_MAGIC: u64 = 0x9123_683e;

/// How storage is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// What is reserved at once of a file of which nothing is known yet.
    pub(crate) first_bytes: u64,
    /// The least that is reserved at once.
    pub(crate) least_bytes: u64,
    /// The most.
    pub(crate) most_bytes: u64,
    /// Asked for in calls of this many bytes.
    pub(crate) call_bytes: u64,
    /// The same where little of what was reserved last was used.
    pub(crate) careful_call_bytes: u64,
}

const MIB: u64 = 1 << 20;

/// A call gives one extent at best, and the next call's does not join it: so calls are large.
const XFS: Policy = Policy {
    first_bytes: 256 * MIB,
    least_bytes: 16 * MIB,
    most_bytes: 1024 * MIB,
    call_bytes: 1024 * MIB,
    careful_call_bytes: 1024 * MIB,
};

/// Without anything reserved files get 8 MiB at a time here: less than twice that would make it worse.
const EXT4: Policy = XFS;

/// What a call gave is free for others again only when none of it is used any more. So calls are smaller, and small for files
/// that are written here and there: that bounds what is lost that way.
const BTRFS: Policy = Policy { call_bytes: 16 * MIB, careful_call_bytes: MIB, ..XFS };

/// The policy of the file system whose `f_type` is `magic`; `None`: nothing was measured there, and nothing is done.
pub fn policy_of(magic: u64) -> Option<Policy> {
    match magic {
        XFS_MAGIC => Some(XFS),
        EXT_MAGIC => Some(EXT4),
        BTRFS_MAGIC => Some(BTRFS),
        _ => None,
    }
}
