//! Whether records have room for all that their run lists say on the way, when files move batch by batch.
//!
//! What [`super::growth`] allows never needs this: there the longest list that may be is taken, whatever moves. Where the batches are known,
//! so are the lists, and most are shorter: a file that comes together has fewer runs with each step.
//!
//! Invariant: the records are rewritten as they will be ([`super::spread`]), so that what has room here has room then. Which spare record a file gets
//! may differ, how many it gets does not.

use std::collections::{BTreeMap, BTreeSet};

use block::{ErrorKind, Result};

use super::extension::SpareRecords;
use super::mft::{Mft, Records};
use super::record::RecordNumber;
use super::spread::FileRecords;
use crate::files::FileId;
use crate::rearrange::Relocations;

/// What becomes of records when files move batch by batch.
#[derive(Default)]
pub(super) struct Rooms {
    /// Files whose records have no room at some step, see [`crate::Rearrange::crowded`].
    pub(super) crowded: BTreeSet<FileId>,
    /// How many records files get that they did not have.
    pub(super) added_count: usize,
}

impl Rooms {
    /// Lets `batches` happen to `files`.
    pub(super) fn of(
        mft: &Mft,
        mirrored_count: u64,
        spares: &SpareRecords,
        files: &BTreeSet<FileId>,
        batches: &[Relocations],
    ) -> Result<Self> {
        let mut rooms = Self::default();
        for (file, batches) in batches_of(files, batches) {
            let mut records = FileRecords::read(mft, &mft.as_opened(), RecordNumber(file.0), mirrored_count)?;
            match added_count(&mut records, &batches, spares, rooms.added_count)? {
                Some(added_count) => rooms.added_count += added_count,
                None => _ = rooms.crowded.insert(file),
            }
        }
        Ok(rooms)
    }
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

/// How many records a file gets on the way after others got `taken` of them; `None` if there is no room at some step.
fn added_count(
    records: &mut FileRecords,
    batches: &[&Relocations],
    spares: &SpareRecords,
    taken: usize,
) -> Result<Option<usize>> {
    let mut added_count = 0;
    for batch in batches {
        let mut step = |records: &mut FileRecords, batch: &Relocations| -> Result<bool> {
            match records.relocate(batch, |count| Ok(spares.get(taken + added_count + count))) {
                Ok(changed) => added_count += changed.added.len(),
                Err(error) if error.kind() == ErrorKind::Invalid => return Ok(false),
                Err(error) => return Err(error),
            }
            Ok(true)
        };
        if step(records, batch)? {
            continue;
        }
        let Some((first, rest)) = batch.apart(&records.list_spans()?)? else { return Ok(None) };
        if !step(records, &first)? || !step(records, &rest)? {
            return Ok(None);
        }
    }
    Ok(Some(added_count))
}

/// See [`crate::Rearrange::first_of`]: the attribute lists of files that have no room while these move, too.
pub(super) fn first_of(
    mft: &Mft,
    records: &Records<'_>,
    mirrored_count: u64,
    spares: &SpareRecords,
    batch: &Relocations,
) -> Result<Option<(Relocations, Relocations)>> {
    let mut lists = Vec::new();
    for file in batch.files() {
        let file = FileRecords::read(mft, records, RecordNumber(file.0), mirrored_count)?;
        let has_room = match file.clone().relocate(batch, |count| Ok(spares.get(count))) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::Invalid => false,
            Err(error) => return Err(error),
        };
        if !has_room {
            lists.extend(file.list_spans()?);
        }
    }
    batch.apart(&lists)
}
