//! Figures of a backup for Prometheus: a file that its node exporter collects.
//!
//! Invariant: no other file is replaced than one that a backup wrote so.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use block::{Error, Result};
use report::{BACKUP_METRICS_START, BackupDocument, backup_metrics};

use super::Planned;
use crate::Observer;
use crate::output::{OutputFile, check_is_no_part_of};

/// The file, which may be written.
pub(super) struct Metrics<'a> {
    path: &'a Path,
    file: OutputFile,
}

impl<'a> Metrics<'a> {
    /// Looks, before the work begins, whether the file can be written.
    pub(super) fn prepare(path: &'a Path, disks: &[Planned]) -> Result<Self> {
        disks.iter().try_for_each(|disk| check_is_no_part_of(&disk.disk.stack, path))?;
        check_is_ours(path)?;
        Ok(Self { path, file: OutputFile::prepare(path, true, &[])? })
    }

    /// Replaces what an earlier backup left there.
    pub(super) fn write(&self, document: &BackupDocument, observer: &dyn Observer) -> Result<()> {
        // A backup takes long: another file may be there by now.
        check_is_ours(self.path)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        self.file.write_text(&backup_metrics(document, now), observer)
    }
}

/// `Refused` if another file is there than one that a backup wrote.
fn check_is_ours(path: &Path) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let mut start = Vec::new();
    File::open(path)
        .and_then(|file| file.take(BACKUP_METRICS_START.len() as u64).read_to_end(&mut start))
        .map_err(|error| Error::io("read", error).path(path.display()))?;
    if start == BACKUP_METRICS_START.as_bytes() {
        return Ok(());
    }
    let what = "is not a file with the figures of a backup, so it is not replaced";
    Err(Error::refused(what).path(path.display()))
}
