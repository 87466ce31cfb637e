//! What was promised of a disk's storage when it was made: a mark beside the file's contents that `serve` finds again.
//!
//! The mark is an extended attribute, because raw images have no place for it. It goes where the file goes as long as file
//! systems and tools take extended attributes along; without it a disk is thin.

use std::path::Path;

use rustix::fs::XattrFlags;
use serde::{Deserialize, Serialize};

/// The name of the attribute.
const NAME: &str = "user.leandisk.provision";

/// What of a disk's storage stays whatever its guest forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum StoragePromise {
    /// Nothing: a thin disk.
    #[default]
    Nothing,
    /// The storage. The host zeroes it when it is first written.
    Storage,
    /// The storage, and that it was written: zeros are written, too.
    Written,
}

impl StoragePromise {
    fn word(self) -> &'static str {
        match self {
            Self::Nothing => "thin",
            Self::Storage => "lazy",
            Self::Written => "eager",
        }
    }
}

/// Leaves the mark; `false` if the file system keeps none.
pub(crate) fn mark(file: &std::fs::File, kept: StoragePromise) -> bool {
    rustix::fs::fsetxattr(file, NAME, kept.word().as_bytes(), XattrFlags::empty()).is_ok()
}

/// What the mark of the file at `path` says.
pub fn kept(path: &Path) -> StoragePromise {
    let mut word = [0; 16];
    let len = rustix::fs::getxattr(path, NAME, &mut word[..]).unwrap_or(0);
    let found = word.get(..len).unwrap_or_default();
    let all = [StoragePromise::Storage, StoragePromise::Written];
    all.into_iter().find(|kept| kept.word().as_bytes() == found).unwrap_or_default()
}
