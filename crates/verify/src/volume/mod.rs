//! The proof that a volume is whole, and that it is the volume that it was before its files were moved.
//!
//! [`check`] reads every structure of a file system and holds it against all others, as its own checker does. [`Snapshot`]
//! is a fingerprint of all that must stay when files move.
//!
//! Invariants:
//! - nothing here shares code with what reads volumes for plans or edits them: structs and parsers are written a second
//!   time, since one misunderstanding must not approve itself;
//! - any doubt is an error that names what, where, found and expected;
//! - memory is bounded: one bit a cluster or record of a window, and sums; a snapshot takes 24 bytes a file.
//!
//! Absent on purpose: repair, and pending journals: what was moved is a volume that was closed cleanly.

use std::sync::Arc;

use block::{Error, ReadAt, Result};
use extent::Volume;

mod bits;
mod btrfs;
mod exfat;
mod ext;
mod fat;
mod ntfs;
mod snapshot;
mod tally;
mod xfs;

pub use btrfs::CorruptBtrfs;
pub use exfat::CorruptExFat;
pub use ext::CorruptExt;
pub use fat::CorruptFat;
pub use ntfs::CorruptNtfs;
pub use snapshot::{Contents, Snapshot};
pub use xfs::CorruptXfs;

/// Where a volume is read from.
pub type Source = Arc<dyn ReadAt<Volume>>;

/// What a volume that passed was found to hold.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct VolumeReport {
    /// `ntfs`, `ext` for ext2, ext3 and ext4, `fat`, `exfat`, `xfs` or `btrfs`.
    pub filesystem: &'static str,
    /// Files that are no directories, those that the file system keeps for itself included.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Entries of directories.
    pub names: u64,
    /// Bytes of all clusters that have an owner.
    pub used_bytes: u64,
    /// Extent trees of ext4 with more blocks than they need: allowed, but none that were rewritten should be.
    pub wide_trees: u64,
}

/// How much of a volume is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    All,
    Owners,
}

/// Checks all structures of a volume. `Corrupt` names the first that is wrong; `Unsupported` is a file system, or a
/// feature of one, that cannot be checked.
pub fn check(source: &Source) -> Result<VolumeReport> {
    check_scope(source, Scope::All)
}

/// As [`check`], of what says who owns which clusters, and reads nothing else: bitmaps, counts, and the inodes or records with
/// their maps. Not looked at are names in directories, which the report then counts none of, and blocks of attributes.
pub fn check_owners(source: &Source) -> Result<VolumeReport> {
    check_scope(source, Scope::Owners)
}

fn check_scope(source: &Source, scope: Scope) -> Result<VolumeReport> {
    if ntfs::is_ntfs(source)? {
        return ntfs::check::check(source, scope);
    }
    if ext::is_ext(source)? {
        return ext::check::check(source, scope);
    }
    if fat::is_fat(source)? {
        return fat::check(source);
    }
    if exfat::is_exfat(source)? {
        return exfat::check(source);
    }
    if xfs::is_xfs(source)? {
        return xfs::check(source, scope);
    }
    if btrfs::is_btrfs(source)? {
        return btrfs::check(source, scope);
    }
    Err(unknown())
}

fn unknown() -> Error {
    Error::unsupported("the volume is not NTFS, ext, FAT, exFAT, XFS or Btrfs, and cannot be checked")
}
