//! Keys, and where trees begin.

use std::ops::RangeInclusive;

use block::Error;

use super::corrupt::Corrupt;
use super::layout::{RawKey, object};

/// What items are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key {
    pub(super) objectid: u64,
    /// Of [`super::layout::item`].
    pub(super) kind: u8,
    pub(super) offset: u64,
}

impl Key {
    pub(super) const MIN: Self = Self { objectid: 0, kind: 0, offset: 0 };
    pub(super) const MAX: Self = Self { objectid: u64::MAX, kind: u8::MAX, offset: u64::MAX };

    pub(super) fn new(objectid: u64, kind: u8, offset: u64) -> Self {
        Self { objectid, kind, offset }
    }

    /// Fails with what is wrong in the item that bears it.
    pub(super) fn wrong(self, name: &str, found: impl Into<u64>, expected: &str) -> Error {
        let Self { objectid, kind, offset } = self;
        let item = Corrupt::Item { objectid, kind, offset };
        Error::corrupt(item).field(name, found.into(), expected.to_owned())
    }
}

impl From<&RawKey> for Key {
    fn from(raw: &RawKey) -> Self {
        Self { objectid: raw.objectid.get(), kind: raw.type_, offset: raw.offset.get() }
    }
}

/// All keys.
pub(super) fn everything() -> RangeInclusive<Key> {
    Key::MIN..=Key::MAX
}

/// Where a tree begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Root {
    /// The number of the tree.
    pub(super) tree: u64,
    pub(super) logical: u64,
    pub(super) level: u8,
    pub(super) generation: u64,
}

/// Whether several trees may share blocks of this one.
pub(super) fn is_subvolume(tree: u64) -> bool {
    tree == object::FS_TREE || (object::FIRST_FREE..=object::LAST_FREE).contains(&tree)
}
