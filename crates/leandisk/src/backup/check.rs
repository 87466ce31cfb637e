//! Whether a snapshot can be restored: every blob of its disks is read and compared with its hash, and a machine is started from them if
//! that is asked for.

use block::{Error, ErrorKind, Result};
use report::{CheckDocument, CheckedDisk};
use repository::SnapshotDisk;

use super::boot::{self, BootOptions};
use crate::stored::{Place, SnapshotName, disks_of, find_disk};
use crate::{Observer, Reported};

/// What is checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The snapshot, or one disk of it.
    pub snapshot: SnapshotName,
    /// Its repository.
    pub place: Place,
    /// How a machine is started from its disks, if one is.
    pub boot: Option<BootOptions>,
}

/// Reads the snapshot's disks, and starts a machine from them. `Mismatch` if something of them is missing or broken, or what was expected of the
/// machine did not come.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<Reported<CheckDocument>> {
    let prepared = options.boot.as_ref().map(boot::prepare).transpose()?;
    let repository = options.place.open(false)?;
    let index = repository.index()?;
    let (id, snapshot) = repository.find_snapshot(&options.snapshot.snapshot)?;
    let disks = disks_of(&repository, &index, &snapshot).map_err(as_mismatch)?;
    let disks = match &options.snapshot.disk {
        None => disks,
        wanted => vec![find_disk(disks, wanted.as_deref(), id)?],
    };
    if let Some(boot) = &prepared {
        boot.check_disks(disks.len())?;
    }
    let (mut checked, mut opened) = (Vec::new(), Vec::new());
    for found in disks {
        let path = format!("{}:{}", id.short(), found.name);
        let disk = SnapshotDisk::open(repository.clone(), &index, &found.node, path.as_ref())
            .map_err(as_mismatch)?;
        let progress = observer.progress("verify", disk.data_bytes(), observer.cancel()?);
        disk.check(2 * os::processor_count(), &|bytes| {
            progress.advanced(bytes, 0);
            !progress.is_cancelled()
        })
        .map_err(as_mismatch)?;
        progress.finish();
        checked.push(CheckedDisk {
            name: found.name,
            snapshot_path: found.snapshot_path,
            virtual_bytes: found.node.size,
            data_bytes: disk.data_bytes(),
        });
        opened.push(disk);
    }
    let boot = prepared.map(|boot| boot.run(opened, observer)).transpose()?;
    let ended = match (&options.boot, &boot) {
        (Some(options), Some(boot)) => options.verdict(boot),
        _ => Ok(()),
    };
    Ok(Reported { document: CheckDocument::new(id.to_string(), checked, boot), ended })
}

/// What a check finds broken is what it looks for.
pub(super) fn as_mismatch(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => {
            let mismatch = Error::mismatch(error.to_string());
            match error.hint_text().map(str::to_owned) {
                Some(hint) => mismatch.hint(hint).because(error),
                None => mismatch.because(error),
            }
        }
        _ => error,
    }
}
