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
use crate::output::{OutputFile, output_beside};

/// Looks, before the work begins, whether the file can be written.
pub(super) fn prepare(path: &Path, disks: &[Planned]) -> Result<OutputFile> {
    if path.is_file() && !is_ours(path).map_err(|error| Error::io("read", error).path(path.display()))? {
        let what = "is not a file with the figures of a backup, so it is not replaced";
        return Err(Error::refused(what).path(path.display()));
    }
    disks.iter().try_for_each(|disk| output_beside(&disk.disk.stack, path, true, &[]).map(drop))?;
    OutputFile::prepare(path, true, &[])
}

fn is_ours(path: &Path) -> std::io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(BACKUP_METRICS_START.len() as u64).read_to_end(&mut start)?;
    Ok(start.is_empty() || start == BACKUP_METRICS_START.as_bytes())
}

/// Replaces what an earlier backup left there.
pub(super) fn write(file: &OutputFile, document: &BackupDocument, observer: &dyn Observer) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    file.write_text(&backup_metrics(document, now), observer)
}
