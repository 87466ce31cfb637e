//! Whether records have room for all that their run lists say on the way, when files move batch by batch.
//!
//! What [`super::growth`] allows never needs this: there the longest list that may be is taken, whatever moves. Where the batches are known,
//! so are the lists, and most are shorter: a file that comes together has fewer runs with each step.
//!
//! Invariant: the records are rewritten as they will be ([`super::spread`]), so that what has room here has room then.

use std::collections::{BTreeMap, BTreeSet};

use block::{ErrorKind, Result};

use super::mft::Mft;
use super::record::RecordNumber;
use super::spread::FileRecords;
use crate::files::FileId;
use crate::rearrange::Relocations;

/// See [`crate::Rearrange::crowded`].
pub(super) fn crowded(
    mft: &Mft,
    mirrored_count: u64,
    files: &BTreeSet<FileId>,
    batches: &[Relocations],
) -> Result<BTreeSet<FileId>> {
    let mut found = BTreeSet::new();
    for (file, batches) in batches_of(files, batches) {
        let mut records = FileRecords::read(mft, &mft.as_opened(), RecordNumber(file.0), mirrored_count)?;
        if !has_room(&mut records, &batches)? {
            found.insert(file);
        }
    }
    Ok(found)
}

/// The batches in which something moves, of each of `files` of which something does.
fn batches_of<'a>(
    files: &BTreeSet<FileId>,
    batches: &'a [Relocations],
) -> BTreeMap<FileId, Vec<&'a Relocations>> {
    let mut all: BTreeMap<FileId, Vec<&Relocations>> = BTreeMap::new();
    for batch in batches {
        for file in batch.files().into_iter().filter(|file| files.contains(file)) {
            all.entry(file).or_default().push(batch);
        }
    }
    all
}

/// Whether a file's records have room at each step.
fn has_room(records: &mut FileRecords, batches: &[&Relocations]) -> Result<bool> {
    for batch in batches {
        match records.relocate(batch) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Invalid => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
