//! ext2, ext3 and ext4: the check, and what of a volume must not change when files move.
//!
//! Layers, each on the one before: [`layout`]; [`geometry`] (superblock, descriptors); [`inode`], [`map`] and
//! [`attributes`] (who owns what), [`table`]; [`directory`]; [`check`] and [`snapshot`].
//!
//! Absent on purpose: repair; backups of superblock and descriptors, and the journal's contents, which moving does not
//! touch; hashes of names; quotas.

mod attributes;
pub(super) mod check;
mod corrupt;
mod directory;
mod geometry;
mod inode;
mod layout;
mod map;
pub(super) mod snapshot;
mod table;

pub use corrupt::CorruptExt;
pub(super) use geometry::is_ext;
