//! The files that NTFS keeps for itself: the first records, and what lies in the directory `$Extend` and below it.

use std::collections::BTreeSet;

use block::{Error, Result};

use super::index::Directory;
use super::layout::RECORD_IS_DIRECTORY;
use super::mft::{Mft, OwnedRecord};
use super::record::{FileReference, RecordNumber};

/// Records below this one are NTFS's own, named or not.
const SYSTEM_RECORDS: u64 = 16;

/// More entries than the directories below `$Extend` have anywhere. Windows has a dozen, and those of transactions
/// under way.
const ENTRIES_MAX: usize = 1 << 16;

/// NTFS's own files.
#[derive(Default)]
pub(super) struct OwnFiles {
    below_extend: BTreeSet<RecordNumber>,
}

impl OwnFiles {
    /// Adds what lies below `$Extend`, found by its index and those of the directories in it. What is broken there is
    /// told, and the rest added; an error of `tell` ends it.
    pub(super) fn add_below_extend(
        &mut self,
        mft: &Mft,
        mut tell: impl FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        let mut pending = Vec::new();
        let mut entry_count = 0;
        let extend = mft.record(RecordNumber::EXTEND).and_then(|extend| {
            // Volumes of NT 4 have none.
            match extend.view().is_in_use() {
                true => list(mft, &extend, &mut entry_count, &mut pending),
                false => Ok(()),
            }
        });
        extend.or_else(&mut tell)?;
        while let Some(reference) = pending.pop() {
            // Read before it is believed: what an index shows may be gone, and its number another file's.
            let found = mft.base_record(reference).and_then(|record| {
                match self.below_extend.insert(reference.number) {
                    true => list(mft, &record, &mut entry_count, &mut pending),
                    false => Ok(()),
                }
            });
            found.or_else(&mut tell)?;
        }
        Ok(())
    }

    /// Those below `$Extend`.
    pub(super) fn below_extend(&self) -> impl Iterator<Item = RecordNumber> + '_ {
        self.below_extend.iter().copied()
    }

    /// Whether a file is one of them. The root is not.
    pub(super) fn contain(&self, number: RecordNumber) -> bool {
        let is_system = number.0 < SYSTEM_RECORDS && number != RecordNumber::ROOT;
        is_system || self.below_extend.contains(&number)
    }
}

/// Appends the files that a record's index shows if it is a directory's. They are counted.
fn list(
    mft: &Mft,
    record: &OwnedRecord,
    entry_count: &mut usize,
    files: &mut Vec<FileReference>,
) -> Result<()> {
    let record = record.view();
    if record.flags() & RECORD_IS_DIRECTORY == 0 {
        return Ok(());
    }
    Directory::open(mft, &record)?.each_entry(|reference, _| {
        *entry_count += 1;
        if *entry_count > ENTRIES_MAX {
            return Err(record.error().field(
                "files below $Extend",
                "more",
                format!("at most {ENTRIES_MAX}"),
            ));
        }
        files.push(reference);
        Ok(())
    })
}
