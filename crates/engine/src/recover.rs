//! Makes a disk whole after a change in place was interrupted.

use block::{EditDisk, LiveDisk, Result, TargetFile};
use extent::ExtentSet;
use journal::{Claim, Decision, Why};
use mutants::broken;
use plan::shorten::{MoveWhen, shorten};

use crate::compact::batches;
use crate::rearrange::apply;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// The disk was whole already, and nothing was written.
    NothingToDo(Why),
    /// The last committed batch was finished.
    Redone {
        /// Its number.
        sequence: u64,
        /// Bytes of metadata written.
        written_bytes: u64,
    },
    /// The last committed batch was taken back, because its data had not reached their new places.
    Undone {
        /// Its number.
        sequence: u64,
        /// Bytes of metadata written.
        written_bytes: u64,
    },
}

/// Puts in order what an interrupted change may have left in an image: what is counted as taken and holds nothing, and gaps
/// where there may be none. Says whether there was any. It may be interrupted and run again.
pub fn tidy_up(disk: &dyn LiveDisk) -> Result<bool> {
    let reclaimed_bytes = disk.reclaim()?;
    let gaps = disk.occupancy()?.filter(|occupancy| occupancy.is_dense);
    let Some(occupancy) = gaps else { return Ok(reclaimed_bytes > 0) };
    let shortening = shorten(&occupancy, &ExtentSet::new(), &ExtentSet::new(), 0, MoveWhen::Possible);
    let slot_bytes = occupancy.slot_bytes();
    for batch in batches(&shortening.moves, slot_bytes) {
        disk.relocate(&batch)?;
    }
    Ok(reclaimed_bytes > 0 || !shortening.moves.is_empty())
}

/// Does what the journal says. When it returns without an error, the disk is whole and on stable storage, and the caller
/// removes the journal. It may be interrupted and run again, any number of times. `Refused` if the journal is not that of the disk
/// that `claim` names, or the disk is not as the change left it; nothing was written then.
///
/// After a killed process, unlike after a power cut, what was found may lie in the host's cache alone. So the record is flushed
/// before it is carried out, and the disk before the journal may go, also if there was nothing to do.
pub fn recover(disk: &dyn EditDisk, journal: &dyn TargetFile, claim: &Claim) -> Result<Recovery> {
    let (record, is_redo) = match journal::decide(&journal, disk, claim)? {
        Decision::Nothing(why) => {
            if !broken!(RecoveryNotFlushed) {
                disk.flush()?;
            }
            return Ok(Recovery::NothingToDo(why));
        }
        Decision::Redo(record) => (record, true),
        Decision::Undo(record) => (record, false),
    };
    if !broken!(RedoneFromCache) {
        journal.flush()?;
    }
    let sequence = record.sequence;
    let written_bytes = apply(disk, &record, |patch| if is_redo { &patch.after } else { &patch.before })?;
    if !broken!(RecoveryNotFlushed) {
        disk.flush()?;
    }
    Ok(match is_redo {
        true => Recovery::Redone { sequence, written_bytes },
        false => Recovery::Undone { sequence, written_bytes },
    })
}
