//! Whether records have room for all that their run lists say on the way, when files move batch by batch.
//!
//! What [`super::growth`] allows never needs this: there the longest list that may be is taken, whatever moves. Where the batches are known,
//! so are the lists, and most are shorter: a file that comes together has fewer runs with each step.
//!
//! Invariant: the records are rewritten as they will be ([`super::rewrite`]), so that what has room here has room then.

use std::collections::{BTreeMap, BTreeSet};

use block::{ErrorKind, Result};

use super::mft::Mft;
use super::record::RecordNumber;
use super::rewrite::rewrite_record;
use crate::files::FileId;
use crate::rearrange::Relocations;

/// See [`crate::Rearrange::crowded`].
pub(super) fn crowded(
    mft: &Mft,
    files: &BTreeSet<FileId>,
    batches: &[Relocations],
) -> Result<BTreeSet<FileId>> {
    let mut found = BTreeSet::new();
    for (file, batches) in batches_of(files, batches) {
        if !has_room(mft, RecordNumber(file.0), &batches)? {
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

/// Whether the base record of a file and all its extension records have room at each step.
fn has_room(mft: &Mft, number: RecordNumber, batches: &[&Relocations]) -> Result<bool> {
    let records = mft.as_opened();
    let base = records.base(number)?;
    let mut numbers = BTreeSet::from([number]);
    for entry in records.attribute_list(&base.view())? {
        numbers.insert(entry.holder.number);
    }
    for number in numbers {
        let at = mft.record_offset(number);
        let mut bytes = records.raw(number)?;
        for batch in batches {
            match rewrite_record(&bytes, number, at, batch, &mft.geometry) {
                Ok(rewrite) => bytes = rewrite.map_or(bytes, |rewrite| rewrite.bytes),
                Err(error) if error.kind() == ErrorKind::Invalid => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(true)
}
