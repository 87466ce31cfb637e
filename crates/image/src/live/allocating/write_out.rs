//! How changed tables reach the storage: by default where they lie, stage by stage.
//!
//! Invariant: when [`WriteOut::write_out`] returns, the snapshot and all data written before are on stable storage; and at no
//! moment before does the storage hold something that refers to what is not. If it fails for want of room, the snapshot says
//! what of it is still to be written, and it may be called again with that and more.
//!
//! Absent on purpose: when to do so ([`super::commit`]), and logs, which are a format's own.

use block::{Result, TargetFile};

use crate::live::{STAGES, Snapshot, Stage, broken};

/// Brings tables to the storage.
pub(crate) trait WriteOut: Send {
    /// Before the very first change.
    fn begin(&mut self, _file: &dyn TargetFile) -> Result<()> {
        Ok(())
    }

    /// Writes a snapshot; on return all of it, and all data written before, is on stable storage.
    fn write_out(&mut self, file: &dyn TargetFile, snapshot: &mut Snapshot) -> Result<()> {
        let mut stages = STAGES;
        if broken!(TablesBeforeData) {
            stages.reverse();
        }
        stages.into_iter().try_for_each(|stage| {
            write_stage(file, snapshot, stage)?;
            snapshot.written(stage);
            Ok(())
        })
    }

    /// After the last change, or instead of any if the first could not be begun.
    fn end(&mut self, _file: &dyn TargetFile) -> Result<()> {
        Ok(())
    }
}

/// Writes a stage, and flushes it. Data go with the first one, which is flushed though it be empty.
fn write_stage(file: &dyn TargetFile, snapshot: &Snapshot, stage: Stage) -> Result<()> {
    let writes = snapshot.writes(stage);
    if writes.is_empty() && stage != STAGES[0] {
        return Ok(());
    }
    for (at, bytes) in writes {
        file.write_at(at, &bytes)?;
    }
    let is_last = stage == Stage::References;
    if (is_last && broken!(NoFlushOfTables)) || (!is_last && broken!(NoFlushOfData)) {
        return Ok(());
    }
    file.flush()
}
