//! The names of a target that is being filled, and of the record that goes with it.
//!
//! Invariants:
//! - the target's own name means nothing before all of it has arrived and is on stable storage;
//! - a record has its name only when the target that it is of has, on stable storage; guests come after that: so a target without a record was
//!   never written by one;
//! - what a guest may have written is never removed: what cannot be gone on with is refused.

use block::{Disk, Error, FolderFile, Result, TargetFile, TargetFolder, TargetName};
use extent::HostOffset;

use super::record::{FillIdentity, read_record};
use super::{begin_fill, fill_identity};

/// How a fill begins, or goes on.
pub struct FillPlan<'a> {
    /// Where.
    pub folder: &'a dyn TargetFolder,
    /// What; [`FillIdentity::target`] is found here.
    pub identity: FillIdentity,
    /// What it is filled from.
    pub source: &'a dyn Disk,
}

impl FillPlan<'_> {
    /// Has a target and its record lie under their names, on stable storage. `make` makes an empty image if there is none. Answers what the fill is
    /// known by, and whether it goes on with what was there. `Refused` if that is of something else, or another process is at it.
    pub fn prepare(self, make: impl FnOnce(&dyn TargetFile) -> Result<()>) -> Result<(FillIdentity, bool)> {
        let Self { folder, .. } = self;
        let record = folder.open(TargetName::Filled)?;
        let target = folder.open(TargetName::Filling)?;
        match (target, record) {
            (Some(target), Some(record)) => {
                let identity = self.known_by(&*target)?;
                if fill_identity(&*record)?.as_ref() != Some(&identity) {
                    return Err(Error::refused(
                        "an interrupted fill of this target is of another snapshot, or was moved",
                    )
                    .hint("name the snapshot that it was of; or another target"));
                }
                // Who was killed may not have waited for the names, and a cut may leave the record under both of its own.
                folder.remove(TargetName::FilledDraft)?;
                folder.sync()?;
                Ok((identity, true))
            }
            (None, Some(_)) => Err(Error::refused(
                "there is the record of an interrupted fill, and not what was filled: it may have got its name and been moved",
            )
            .hint("remove .NAME.leandisk-filled to begin anew")),
            // Nobody was let in yet.
            (left, None) => {
                if left.is_some() {
                    folder.remove(TargetName::Filling)?;
                }
                drop(left);
                Ok((self.begin(make)?, false))
            }
        }
    }

    fn begin(self, make: impl FnOnce(&dyn TargetFile) -> Result<()>) -> Result<FillIdentity> {
        let folder = self.folder;
        let target = folder.create(TargetName::Filling)?;
        make(&*target)?;
        target.flush_all()?;
        folder.sync()?;
        let identity = self.known_by(&*target)?;
        folder.remove(TargetName::FilledDraft)?;
        let draft = folder.create(TargetName::FilledDraft)?;
        draft.write_at(HostOffset::ZERO, &begin_fill(&identity, self.source)?)?;
        draft.flush_all()?;
        folder.rename(TargetName::FilledDraft, TargetName::Filled)?;
        folder.sync()?;
        Ok(identity)
    }

    fn known_by(&self, target: &dyn FolderFile) -> Result<FillIdentity> {
        let identity = target.identity()?;
        let identity = identity.ok_or_else(|| Error::refused("what was filled belongs to another user"))?;
        Ok(FillIdentity { target: identity, ..self.identity.clone() })
    }
}

/// Gives a target its name once all of it has arrived and is on stable storage, as its record says. The record goes after that: while there is one,
/// what it is of is not taken for the beginning of another fill.
pub fn publish_fill(folder: &dyn TargetFolder) -> Result<()> {
    folder.rename(TargetName::Filling, TargetName::Target)?;
    folder.sync()?;
    folder.remove(TargetName::Filled)?;
    folder.sync()
}

/// Whether all has arrived by the word of the record in this folder; `None` without one.
pub fn is_filled(folder: &dyn TargetFolder) -> Result<Option<bool>> {
    let Some(record) = folder.open(TargetName::Filled)? else { return Ok(None) };
    Ok(read_record(&*record)?.map(|(_, units)| units.first_missing(0).is_none()))
}
