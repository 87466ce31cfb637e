//! A disk of a snapshot, back in any format: a copy whose source is the snapshot.

use block::{Error, Result};
use report::{RestoreDocument, restore_document};

use super::in_place;
use crate::stored::SnapshotName;
use crate::{Observer, copy};

/// What is restored, and where to.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The copy: its source is `SNAPSHOT` or `SNAPSHOT:DISK`, and how that is opened names the repository.
    pub copy: copy::Options,
    /// Whether the target is the old disk, of which only what differs is written.
    pub in_place: bool,
}

/// Restores the disk. What the backup left out is zeros; all else is copied as it is, without being looked at, unless files are to be packed.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<RestoreDocument> {
    let mut copy = options.copy.clone();
    let text = copy.source.to_string_lossy().into_owned();
    let name = SnapshotName::parse(&text).ok_or_else(|| {
        Error::invalid(format!("'{text}' is no snapshot"))
            .hint("SNAPSHOT is 'latest', or 8 digits or more of its ID")
    })?;
    if copy.layout == copy::Layout::Keep {
        (copy.keep_free, copy.keep_swap) = (true, true);
    }
    let place = copy.open.repository.as_ref().ok_or_else(|| Error::invalid("no repository is named"))?;
    let (id, _) = place.open(false)?.find_snapshot(&name.snapshot)?;
    // What is the latest one must not change on the way.
    let disk = name.disk.as_ref().map(|disk| format!(":{disk}")).unwrap_or_default();
    copy.source = format!("{id}{disk}").into();
    if options.in_place {
        return in_place::run(&copy, &SnapshotName { snapshot: id.to_string(), disk: name.disk }, observer);
    }
    Ok(restore_document(copy::run(&copy, observer)?, &id.to_string(), name.disk.as_deref()))
}
