//! The files that NTFS keeps for itself: the first records, and what lies in the directory `$Extend` and below it.

use std::collections::BTreeSet;

use block::{Error, Result};

use super::index::Directory;
use super::layout::RECORD_IS_DIRECTORY;
use super::mft::Mft;
use super::record::{FileReference, RecordNumber};

/// Records below this one are NTFS's own, named or not.
const SYSTEM_RECORDS: u64 = 16;

/// More files than `$Extend` has anywhere. Windows has a dozen, and those of transactions under way.
const FILES_MAX: usize = 1 << 16;

/// NTFS's own files.
#[derive(Default)]
pub(super) struct OwnFiles {
    below_extend: BTreeSet<RecordNumber>,
}

impl OwnFiles {
    /// Adds what lies below `$Extend`, found by its index.
    pub(super) fn add_below_extend(&mut self, mft: &Mft) -> Result<()> {
        let extend = mft.record(RecordNumber::EXTEND)?;
        let record = extend.view();
        // Volumes of NT 4 have none.
        if !record.is_in_use() || record.flags() & RECORD_IS_DIRECTORY == 0 {
            return Ok(());
        }
        let mut directories = vec![FileReference { number: record.number(), sequence: record.sequence() }];
        while let Some(reference) = directories.pop() {
            let owned = mft.base_record(reference)?;
            let record = owned.view();
            if record.flags() & RECORD_IS_DIRECTORY == 0 {
                continue;
            }
            Directory::open(mft, &record)?.each_entry(|reference| {
                if self.below_extend.len() >= FILES_MAX {
                    return Err(Error::unsupported(format!("more than {FILES_MAX} files in $Extend")));
                }
                if self.below_extend.insert(reference.number) {
                    directories.push(reference);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether a file is one of them. The root is not.
    pub(super) fn contain(&self, number: RecordNumber) -> bool {
        let is_system = number.0 < SYSTEM_RECORDS && number != RecordNumber::ROOT;
        is_system || self.below_extend.contains(&number)
    }
}
