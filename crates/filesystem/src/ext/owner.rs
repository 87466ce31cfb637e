//! Who owns blocks of a volume.

use std::fmt;

use super::inode::InodeNumber;
use super::superblock::GroupNumber;

/// What owns clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The inode of this number.
    Inode(InodeNumber),
    /// Metadata, by their name, of the group of this number.
    Metadata(&'static str, GroupNumber),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inode(number) => write!(f, "inode {number}"),
            Self::Metadata(what, group) => write!(f, "the {what} of group {group}"),
        }
    }
}
